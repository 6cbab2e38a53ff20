//! The search for one key: from the best pair so far to its neighbours, those first that the model thinks best of.
//!
//! Dispatch and combine are timed each alone, in one go: a change of one says nothing of the other, so that a measurement
//! tries a new dispatch and a new combine at once. What the run-off then compares are round trips.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use peerwarp_codegen::family::Family;

use super::key::Key;
use super::measure::{Alone, Measure, MeasureError};
use super::model::Model;
use super::runoff;
use super::space::{Step, steps};
use super::table::Refusal;
use crate::families::moe::kernels::{Combine, Dispatch};
use crate::families::moe::run::MoeTuning;
use crate::harness::bench::Stats;
use crate::runtime::RuntimeError;

/// How many pairs are measured before the search looks which is best.
const BATCH: usize = 8;

/// How much longer than its neighbour a kernel may take by the model and still be tried.
const HOPELESS: f64 = 2.0;

/// How many of the best pairs are looked at for two that can be used.
const LOOKED_AT: usize = 16;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Measurements at most.
    pub trials: u32,
    /// Not later than this.
    pub until: Option<Instant>,
}

impl Budget {
    fn left(&self, tried: usize) -> bool {
        tried < self.trials as usize && self.until.is_none_or(|until| Instant::now() < until)
    }
}

/// A measurement.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Trial {
    /// Dispatch.
    pub dispatch: String,
    /// Its time alone, in microseconds.
    pub dispatch_us: f64,
    /// Combine.
    pub combine: String,
    /// Its time alone, in microseconds.
    pub combine_us: f64,
}

/// What the search found.
#[derive(Clone, Debug)]
pub struct Found {
    /// The pair that won the run-off.
    pub winner: MoeTuning,
    /// Its times alone.
    pub alone: Alone,
    /// Pairs of the run-off with the medians of their round trips, in microseconds.
    pub round_trips: Vec<(MoeTuning, f64)>,
    /// What the model would take.
    pub model: MoeTuning,
    /// All measurements, in their order.
    pub trials: Vec<Trial>,
    /// How many kernels were not tried, by the reason.
    pub pruned: BTreeMap<String, u32>,
    /// Kernels that cannot be used.
    pub refused: Vec<Refusal>,
}

impl Found {
    /// The median round trip of a pair of the run-off.
    pub fn round_trip_us(&self, tuning: &MoeTuning) -> Option<f64> {
        self.round_trips.iter().find(|(t, _)| t == tuning).map(|(_, us)| *us)
    }
}

/// Why there is no winner.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// None of the pairs can be used.
    #[error("{key}: none of {tried} pairs can be used; the last one: {reason}")]
    Nothing {
        /// What was searched for.
        key: Box<Key>,
        /// How many were tried.
        tried: usize,
        /// Why the last one cannot.
        reason: String,
    },
    /// The machine failed.
    #[error(transparent)]
    Machine(#[from] RuntimeError),
}

/// Where a search starts: the defaults, what the model would take, and what won for keys like it.
pub fn seeds(default: &MoeTuning, model: &Model, like: &[MoeTuning]) -> Vec<MoeTuning> {
    let mut all = vec![default.clone()];
    for seed in like.iter().cloned().chain([model.best(default)]) {
        if !all.contains(&seed) {
            all.push(seed);
        }
    }
    all
}

/// Searches from these pairs, the first of which is the default. `each` is called after each measurement.
pub fn search(
    measure: &mut dyn Measure,
    seeds: &[MoeTuning],
    budget: &Budget,
    each: &mut dyn FnMut(),
) -> Result<Found, SearchError> {
    let default = &seeds[0];
    let model = Model::new(default.dispatch.shape());
    let mut state = State::new(model);
    measure.prepare(seeds);
    // Compilers have nothing to do while seeds are measured, and one that knows nothing yet is as good to ask as the other.
    measure.foresee(&State::new(model).next(default));
    for seed in seeds {
        // The default is measured however little time there is.
        if state.trials.is_empty() || budget.left(state.tried) {
            state.try_pair(measure, seed)?;
            each();
        }
    }
    while let Some(best) = state.ranking(1).pop() {
        let all = state.next(&best);
        let (next, later) = all.split_at(all.len().min(BATCH));
        measure.prepare(next);
        measure.foresee(later);
        for tuning in next {
            if budget.left(state.tried) {
                state.try_pair(measure, tuning)?;
                each();
            }
        }
        if next.is_empty() || !budget.left(state.tried) {
            break;
        }
    }
    state.run_off(measure, default)
}

/// What is known of kernels: their times, or that they cannot be used.
type Known<F> = BTreeMap<String, (F, Option<f64>)>;

struct State {
    model: Model,
    dispatch: Known<Dispatch>,
    combine: Known<Combine>,
    /// Pairs of which it is not known whose fault it is.
    bad_pairs: BTreeSet<(String, String)>,
    /// Pairs that compute what they should.
    right: BTreeSet<(String, String)>,
    tried: usize,
    trials: Vec<Trial>,
    pruned: HashMap<&'static str, BTreeSet<String>>,
    illegal: u32,
    refused: Vec<Refusal>,
}

impl State {
    fn new(model: Model) -> State {
        State {
            model,
            dispatch: Known::new(),
            combine: Known::new(),
            bad_pairs: BTreeSet::new(),
            right: BTreeSet::new(),
            tried: 0,
            trials: vec![],
            pruned: HashMap::new(),
            illegal: 0,
            refused: vec![],
        }
    }

    fn try_pair(&mut self, measure: &mut dyn Measure, tuning: &MoeTuning) -> Result<(), SearchError> {
        let (d, c) = names(tuning);
        if self.dispatch.contains_key(&d) && self.combine.contains_key(&c) {
            return Ok(());
        }
        self.tried += 1;
        match measure.alone(tuning) {
            Ok(Alone { dispatch, combine }) => {
                self.dispatch.entry(d.clone()).or_insert((tuning.dispatch.clone(), Some(dispatch)));
                self.combine.entry(c.clone()).or_insert((tuning.combine.clone(), Some(combine)));
                self.trials.push(Trial {
                    dispatch: d,
                    dispatch_us: dispatch,
                    combine: c,
                    combine_us: combine,
                });
                Ok(())
            }
            Err(MeasureError::Refused { variant, reason }) => {
                self.refuse(tuning, variant, reason);
                Ok(())
            }
            Err(MeasureError::Machine(e)) => Err(e.into()),
        }
    }

    /// A kernel, or if it is not known which of them the pair, is out.
    fn refuse(&mut self, tuning: &MoeTuning, variant: Option<String>, reason: String) {
        let (d, c) = names(tuning);
        let variant = match variant {
            Some(v) if v == d => {
                self.dispatch.insert(d, (tuning.dispatch.clone(), None));
                v
            }
            Some(v) if v == c => {
                self.combine.insert(c, (tuning.combine.clone(), None));
                v
            }
            _ => {
                let both = format!("{d} with {c}");
                self.bad_pairs.insert((d, c));
                both
            }
        };
        self.refused.push(Refusal { variant, reason });
    }

    /// The pairs with the least sums of times, the best first.
    fn ranking(&self, most: usize) -> Vec<MoeTuning> {
        fn timed<F: Clone>(all: &Known<F>) -> Vec<(F, f64)> {
            all.values().filter_map(|(config, us)| Some((config.clone(), (*us)?))).collect()
        }
        let (dispatch, combine) = (timed(&self.dispatch), timed(&self.combine));
        let mut pairs: Vec<(f64, usize, usize)> = (0..dispatch.len())
            .flat_map(|d| (0..combine.len()).map(move |c| (d, c)))
            .map(|(d, c)| (dispatch[d].1 + combine[c].1, d, c))
            .collect();
        pairs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let pair = |(_, d, c): (f64, usize, usize)| MoeTuning {
            dispatch: dispatch[d].0.clone(),
            combine: combine[c].0.clone(),
            split: false,
            round_trip: None,
        };
        let good =
            |t: &MoeTuning| !self.bad_pairs.contains(&names(t)) && t.check(&t.dispatch.shape()).is_ok();
        pairs.into_iter().map(pair).filter(good).take(most).collect()
    }

    /// What to measure next around the best pair: new kernels, the most promising first, a dispatch and a combine at
    /// once where they go together.
    fn next(&mut self, best: &MoeTuning) -> Vec<MoeTuning> {
        let (all, illegal) = steps(best);
        self.illegal = self.illegal.max(illegal);
        let mut new: Vec<(f64, Step)> =
            all.into_iter().filter_map(|step| Some((self.promise(best, &step)?, step))).collect();
        new.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (both, single): (Vec<Step>, Vec<Step>) =
            new.into_iter().map(|(_, step)| step).partition(|s| s.dispatch && s.combine);
        let (dispatch, combine): (Vec<Step>, Vec<Step>) = single.into_iter().partition(|s| s.dispatch);
        let mut next = vec![];
        let (mut dispatch, mut combine, mut both) =
            (dispatch.into_iter(), combine.into_iter(), both.into_iter());
        loop {
            let (d, c, b) = (dispatch.next(), combine.next(), both.next());
            if d.is_none() && c.is_none() && b.is_none() {
                return next;
            }
            next.extend(b.map(|step| step.to));
            match (d, c) {
                (Some(d), Some(c)) => {
                    let at_once = MoeTuning { combine: c.to.combine.clone(), ..d.to.clone() };
                    match at_once.check(&best.dispatch.shape()) {
                        Ok(()) => next.push(at_once),
                        Err(_) => next.extend([d.to, c.to]),
                    }
                }
                (d, c) => next.extend(d.into_iter().chain(c).map(|step| step.to)),
            }
        }
    }

    /// What the model expects of a step, relative to where it starts; none if it is not to be tried.
    fn promise(&mut self, best: &MoeTuning, step: &Step) -> Option<f64> {
        let (d, c) = names(&step.to);
        let known = (!step.dispatch || self.dispatch.contains_key(&d))
            && (!step.combine || self.combine.contains_key(&c));
        if known || self.bad_pairs.contains(&(d.clone(), c.clone())) {
            return None;
        }
        let (from, to) = (self.model.times(best), self.model.times(&step.to));
        let (least, fits) = (self.model.least(&step.to), self.model.fits(&step.to));
        let own = |all: Option<f64>| all.unwrap_or(f64::INFINITY);
        let here = names(best);
        let dispatch_us = own(self.dispatch.get(&here.0).and_then(|k| k.1));
        let combine_us = own(self.combine.get(&here.1).and_then(|k| k.1));
        let parts = [
            (step.dispatch, d, fits.0, least.dispatch >= dispatch_us, to.dispatch / from.dispatch),
            (step.combine, c, fits.1, least.combine >= combine_us, to.combine / from.combine),
        ];
        let mut promise = f64::INFINITY;
        for (changed, name, fits, beyond, ratio) in parts {
            if !changed {
                continue;
            }
            let reason = match (fits, beyond, ratio > HOPELESS) {
                (false, ..) => Some("registers"),
                (_, true, _) => Some("limit"),
                (.., true) => Some("model"),
                _ => None,
            };
            if let Some(reason) = reason {
                self.pruned.entry(reason).or_default().insert(name);
                return None;
            }
            promise = promise.min(ratio);
        }
        Some(promise)
    }

    /// The last word: the default against the best pairs and the model's, those that compute what they should.
    fn run_off(mut self, measure: &mut dyn Measure, default: &MoeTuning) -> Result<Found, SearchError> {
        let model = self.model.best(default);
        loop {
            let pairs = self.contenders(measure, default, &model)?;
            if pairs.is_empty() {
                let reason = self.refused.pop().map_or_else(|| "no time".to_owned(), |r| r.reason);
                let key = Box::new(Key::of(&default.dispatch));
                return Err(SearchError::Nothing { key, tried: self.tried, reason });
            }
            match measure.round_trips(&pairs) {
                Ok(times) => return Ok(self.found(pairs, &times, model)),
                Err(MeasureError::Machine(e)) => return Err(e.into()),
                Err(MeasureError::Refused { variant, reason }) => {
                    let named = |t: &&MoeTuning| variant.as_ref().is_some_and(|v| has(t, v));
                    // One of them must go, or this does not end.
                    let out = pairs.iter().find(named).unwrap_or(&pairs[pairs.len() - 1]).clone();
                    self.refuse(&out, variant.filter(|v| has(&out, v)), reason);
                }
            }
        }
    }

    /// The default, the best, the runner-up and the model's choice, as far as they are right and not the same.
    fn contenders(
        &mut self,
        measure: &mut dyn Measure,
        default: &MoeTuning,
        model: &MoeTuning,
    ) -> Result<Vec<MoeTuning>, SearchError> {
        let mut all: Vec<MoeTuning> = vec![];
        if self.usable(default) && self.right(measure, default)? {
            all.push(default.clone());
        }
        let mut best = 0;
        for pair in self.ranking(LOOKED_AT) {
            if best == 2 {
                break;
            }
            if pair == *default {
                best += 1;
            } else if self.usable(&pair) && self.right(measure, &pair)? {
                best += 1;
                all.push(pair);
            }
        }
        if !all.contains(model) && self.usable(model) && self.right(measure, model)? {
            all.push(model.clone());
        }
        Ok(all)
    }

    /// Whether both kernels of a pair were timed.
    fn usable(&self, tuning: &MoeTuning) -> bool {
        let (d, c) = names(tuning);
        let timed = |us: Option<Option<f64>>| us.flatten().is_some();
        timed(self.dispatch.get(&d).map(|k| k.1))
            && timed(self.combine.get(&c).map(|k| k.1))
            && !self.bad_pairs.contains(&(d, c))
    }

    fn right(&mut self, measure: &mut dyn Measure, tuning: &MoeTuning) -> Result<bool, SearchError> {
        if self.right.contains(&names(tuning)) {
            return Ok(true);
        }
        match measure.check(tuning) {
            Ok(()) => Ok(self.right.insert(names(tuning))),
            Err(MeasureError::Machine(e)) => Err(e.into()),
            Err(MeasureError::Refused { variant, reason }) => {
                self.refuse(tuning, variant, reason);
                Ok(false)
            }
        }
    }

    fn found(self, pairs: Vec<MoeTuning>, times: &[Vec<f64>], model: MoeTuning) -> Found {
        let winner = pairs[runoff::winner(times)].clone();
        let (d, c) = names(&winner);
        let of = |known: Option<Option<f64>>| known.flatten().unwrap_or(f64::NAN);
        let alone = Alone {
            dispatch: of(self.dispatch.get(&d).map(|k| k.1)),
            combine: of(self.combine.get(&c).map(|k| k.1)),
        };
        let counted = self.pruned.iter().map(|(reason, all)| ((*reason).to_owned(), all.len() as u32));
        let mut pruned: BTreeMap<String, u32> = counted.collect();
        if self.illegal > 0 {
            pruned.insert("illegal".into(), self.illegal);
        }
        let medians = times.iter().map(|t| Stats::of(t).median);
        let round_trips = pairs.into_iter().zip(medians).collect();
        Found { winner, alone, round_trips, model, trials: self.trials, pruned, refused: self.refused }
    }
}

fn names(tuning: &MoeTuning) -> (String, String) {
    (tuning.dispatch.variant_name(), tuning.combine.variant_name())
}

fn has(tuning: &MoeTuning, variant: &str) -> bool {
    let (d, c) = names(tuning);
    d == variant || c == variant
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
