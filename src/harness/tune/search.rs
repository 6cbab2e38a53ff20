//! The search for one key: from the best candidate so far to its neighbours, those first that the model thinks best of.
//!
//! Components are timed each by itself, in one go: a change of one says nothing of the others, so that a measurement tries a
//! new variant of each at once. What the run-off then compares are whole rounds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Instant;

use peerwarp_codegen::family::Variant;

use super::components::{Candidate, Components, CostModel};
use super::key::Key;
use super::measure::{Measure, MeasureError, Task};
use super::ranking::Ranking;
use super::record::Refusal;
use super::runoff;
use super::space::{Step, best, steps};
use crate::harness::bench::Stats;
use crate::runtime::RuntimeError;

/// How many candidates are measured before the search looks which is best.
const BATCH: usize = 8;

/// How much longer than its neighbour a kernel may take by the model and still be tried.
const HOPELESS: f64 = 2.0;

/// How many of the best candidates are looked at for two that can be used.
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
    /// Names of the variants.
    pub variants: Vec<String>,
    /// The time of each by itself, in microseconds.
    pub us: Vec<f64>,
}

/// What the search found.
#[derive(Clone, Debug)]
pub struct Searched {
    /// The candidate that won the run-off.
    pub winner: Candidate,
    /// The times of its components, each by itself, in microseconds.
    pub components: Vec<f64>,
    /// Candidates of the run-off with the medians of their rounds, in microseconds.
    pub rounds: Vec<(Candidate, f64)>,
    /// What the model would take, if there is one.
    pub model: Option<Candidate>,
    /// All measurements, in their order.
    pub trials: Vec<Trial>,
    /// How many variants were not tried, by the reason.
    pub pruned: BTreeMap<String, u32>,
    /// Variants that cannot be used.
    pub refused: Vec<Refusal>,
}

impl Searched {
    /// The median round of a candidate of the run-off.
    pub fn round_us(&self, candidate: &Candidate) -> Option<f64> {
        self.rounds.iter().find(|(c, _)| c == candidate).map(|(_, us)| *us)
    }
}

/// Why there is no winner.
#[derive(Debug, thiserror::Error)]
pub enum SearchError {
    /// None of the candidates can be used.
    #[error("{key}: none of {tried} candidates can be used; the last one: {reason}")]
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

/// Where a search starts: the defaults, what is known to be good, what won for keys like it, and what the model would take.
pub fn seeds(task: &Task, like: &[Candidate]) -> Vec<Candidate> {
    let model = task.cost_model();
    let best = model.map(|model| best(&*model, &task.suite.components(), &task.defaults));
    let mut all = vec![task.defaults.clone()];
    for seed in task.start.iter().chain(like).cloned().chain(best) {
        if !all.contains(&seed) {
            all.push(seed);
        }
    }
    all
}

/// Searches from these candidates, the first of which is the default. `each` is called after each measurement.
///
/// # Errors
/// Nothing can be used, or the machine fails.
pub fn search(
    task: &Task,
    measure: &mut dyn Measure,
    seeds: &[Candidate],
    budget: &Budget,
    each: &mut dyn FnMut(),
) -> Result<Searched, SearchError> {
    let mut state = State::new(task);
    measure.prepare(seeds);
    // Compilers have nothing to do while seeds are measured, and one that knows nothing yet is as good to ask as the other.
    measure.precompile(&State::new(task).next(&task.defaults));
    for seed in seeds {
        // The default is measured however little time there is.
        if state.trials.is_empty() || budget.left(state.tried) {
            state.try_one(measure, seed)?;
            each();
        }
    }
    while let Some(best) = state.best() {
        let all = state.next(&best);
        let (next, later) = all.split_at(all.len().min(BATCH));
        measure.prepare(next);
        measure.precompile(later);
        for candidate in next {
            if budget.left(state.tried) {
                state.try_one(measure, candidate)?;
                each();
            }
        }
        if next.is_empty() || !budget.left(state.tried) {
            break;
        }
    }
    state.run_off(measure)
}

/// What is known of the variants of a component: their times, or that they cannot be used.
type Known = BTreeMap<String, (Variant, Option<f64>)>;

struct State<'a> {
    task: &'a Task,
    components: Components,
    model: Option<Box<dyn CostModel>>,
    known: Vec<Known>,
    /// Candidates of which it is not known whose fault it is.
    bad: BTreeSet<Vec<String>>,
    /// Candidates that compute what they should.
    right: BTreeSet<Vec<String>>,
    tried: usize,
    trials: Vec<Trial>,
    pruned: HashMap<&'static str, BTreeSet<String>>,
    illegal: u32,
    refused: Vec<Refusal>,
}

impl State<'_> {
    fn new(task: &Task) -> State<'_> {
        State {
            task,
            components: task.suite.components(),
            model: task.cost_model(),
            known: vec![Known::new(); task.defaults.len()],
            bad: BTreeSet::new(),
            right: BTreeSet::new(),
            tried: 0,
            trials: vec![],
            pruned: HashMap::new(),
            illegal: 0,
            refused: vec![],
        }
    }

    fn is_known(&self, candidate: &Candidate, component: usize) -> bool {
        self.known[component].contains_key(&candidate.names()[component])
    }

    /// The time of a component, if it was measured.
    fn us(&self, candidate: &Candidate, component: usize) -> Option<f64> {
        self.known[component].get(&candidate.names()[component]).and_then(|(_, us)| *us)
    }

    fn try_one(&mut self, measure: &mut dyn Measure, candidate: &Candidate) -> Result<(), SearchError> {
        if (0..candidate.len()).all(|at| self.is_known(candidate, at)) {
            return Ok(());
        }
        self.tried += 1;
        match measure.components(candidate) {
            Ok(us) => {
                for (at, us) in us.iter().enumerate().take(candidate.len()) {
                    let variant = candidate.variants()[at].clone();
                    let name = candidate.names()[at].clone();
                    self.known[at].entry(name).or_insert((variant, Some(*us)));
                }
                self.trials.push(Trial { variants: candidate.names().to_vec(), us });
                Ok(())
            }
            Err(MeasureError::Refused { variant, reason }) => {
                self.refuse(candidate, variant, reason);
                Ok(())
            }
            Err(MeasureError::Machine(e)) => Err(e.into()),
        }
    }

    /// A variant, or if it is not known which of them the candidate, is out.
    fn refuse(&mut self, candidate: &Candidate, variant: Option<String>, reason: String) {
        let at = match candidate.len() {
            1 => Some(0),
            _ => candidate.names().iter().position(|own| Some(own) == variant.as_ref()),
        };
        let variant = match at {
            Some(at) => {
                let name = candidate.names()[at].clone();
                self.known[at].insert(name.clone(), (candidate.variants()[at].clone(), None));
                name
            }
            None => {
                self.bad.insert(candidate.names().to_vec());
                candidate.to_string()
            }
        };
        self.refused.push(Refusal { variant, reason });
    }

    /// The candidate with the least sum of times.
    fn best(&self) -> Option<Candidate> {
        self.ranking().next()
    }

    /// The candidates with the least sums of times, the best first.
    fn ranking(&self) -> impl Iterator<Item = Candidate> + '_ {
        let timed = |known: &Known| {
            known.values().filter_map(|(variant, us)| Some((variant.clone(), (*us)?))).collect()
        };
        let all = Ranking::new(self.known.iter().map(timed).collect());
        all.map(Candidate::new)
            .filter(|c| !self.bad.contains(c.names()) && self.components.check(c.variants()).is_ok())
    }

    /// What to measure next around the best candidate: new variants, the most promising first, one of each component at once
    /// where they go together.
    fn next(&mut self, best: &Candidate) -> Vec<Candidate> {
        let (all, illegal) = steps(&self.components, best);
        self.illegal = self.illegal.max(illegal);
        let mut new: Vec<(f64, Step)> =
            all.into_iter().filter_map(|step| Some((self.promise(best, &step)?, step))).collect();
        new.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (several, single): (Vec<Step>, Vec<Step>) =
            new.into_iter().map(|(_, step)| step).partition(|s| s.changed.len() > 1);
        let of = |at: usize| single.iter().filter(move |s| s.changed == [at]).map(|s| &s.to);
        let mut single: Vec<_> = (0..best.len()).map(of).collect();
        let mut several = several.into_iter();
        let mut next = vec![];
        loop {
            let together = several.next();
            let steps: Vec<(usize, &Candidate)> =
                single.iter_mut().enumerate().filter_map(|(at, steps)| Some((at, steps.next()?))).collect();
            if together.is_none() && steps.is_empty() {
                return next;
            }
            next.extend(together.map(|step| step.to));
            next.extend(self.at_once(best, &steps));
        }
    }

    /// All of these changes, each of one component, in one candidate where they go together; otherwise each by itself.
    fn at_once(&self, best: &Candidate, steps: &[(usize, &Candidate)]) -> Vec<Candidate> {
        let one = steps.iter().fold(best.clone(), |all, (at, to)| all.with(*at, to.variants()[*at].clone()));
        match steps.is_empty() || self.components.check(one.variants()).is_err() {
            true => steps.iter().map(|(_, to)| (*to).clone()).collect(),
            false => vec![one],
        }
    }

    /// What the model expects of a step, relative to where it starts, the same of all steps if there is none; none if it is
    /// not to be tried.
    fn promise(&mut self, best: &Candidate, step: &Step) -> Option<f64> {
        let known = step.changed.iter().all(|&at| self.is_known(&step.to, at));
        if known || self.bad.contains(step.to.names()) {
            return None;
        }
        let Some(model) = &self.model else { return Some(1.0) };
        let (from, to) = (model.times(best.variants()), model.times(step.to.variants()));
        let (least, fits) = (model.least(step.to.variants()), model.fits(step.to.variants()));
        let mut promise = f64::INFINITY;
        for &at in &step.changed {
            let ratio = to[at] / from[at];
            let beyond = least[at] >= self.us(best, at).unwrap_or(f64::INFINITY);
            let reason = match (fits[at], beyond, ratio > HOPELESS) {
                (false, ..) => Some("registers"),
                (_, true, _) => Some("limit"),
                (.., true) => Some("model"),
                _ => None,
            };
            if let Some(reason) = reason {
                self.pruned.entry(reason).or_default().insert(step.to.names()[at].clone());
                return None;
            }
            promise = promise.min(ratio);
        }
        Some(promise)
    }

    /// The last word: the default against the best candidates and the model's, those that compute what they should.
    fn run_off(mut self, measure: &mut dyn Measure) -> Result<Searched, SearchError> {
        let model = self.model.as_ref().map(|model| best(&**model, &self.components, &self.task.defaults));
        loop {
            let all = self.contenders(measure, model.as_ref())?;
            if all.is_empty() {
                let reason = self.refused.pop().map_or_else(|| "no time".to_owned(), |r| r.reason);
                let key = Box::new(self.task.key());
                return Err(SearchError::Nothing { key, tried: self.tried, reason });
            }
            match measure.rounds(&all) {
                Ok(times) => return Ok(self.found(all, &times, model)),
                Err(MeasureError::Machine(e)) => return Err(e.into()),
                Err(MeasureError::Refused { variant, reason }) => {
                    let named = |c: &&Candidate| variant.as_ref().is_some_and(|v| c.has(v));
                    // One of them must go, or this does not end.
                    let out = all.iter().find(named).unwrap_or(&all[all.len() - 1]).clone();
                    self.refuse(&out, variant.filter(|v| out.has(v)), reason);
                }
            }
        }
    }

    /// The default, the best, the runner-up and the model's choice, as far as they are right and not the same.
    fn contenders(
        &mut self,
        measure: &mut dyn Measure,
        model: Option<&Candidate>,
    ) -> Result<Vec<Candidate>, SearchError> {
        let default = &self.task.defaults;
        let mut all: Vec<Candidate> = vec![];
        if self.usable(default) && self.right(measure, default)? {
            all.push(default.clone());
        }
        let mut best = 0;
        let ranked: Vec<Candidate> = self.ranking().take(LOOKED_AT).collect();
        for candidate in ranked {
            if best == 2 {
                break;
            }
            if candidate == *default {
                best += 1;
            } else if self.usable(&candidate) && self.right(measure, &candidate)? {
                best += 1;
                all.push(candidate);
            }
        }
        if let Some(model) = model
            && !all.contains(model)
            && self.usable(model)
            && self.right(measure, model)?
        {
            all.push(model.clone());
        }
        Ok(all)
    }

    /// Whether all variants of a candidate were timed.
    fn usable(&self, candidate: &Candidate) -> bool {
        let timed = (0..candidate.len()).all(|at| self.us(candidate, at).is_some());
        timed && !self.bad.contains(candidate.names())
    }

    fn right(&mut self, measure: &mut dyn Measure, candidate: &Candidate) -> Result<bool, SearchError> {
        if self.right.contains(candidate.names()) {
            return Ok(true);
        }
        match measure.check(candidate) {
            Ok(()) => Ok(self.right.insert(candidate.names().to_vec())),
            Err(MeasureError::Machine(e)) => Err(e.into()),
            Err(MeasureError::Refused { variant, reason }) => {
                self.refuse(candidate, variant, reason);
                Ok(false)
            }
        }
    }

    fn found(self, all: Vec<Candidate>, times: &[Vec<f64>], model: Option<Candidate>) -> Searched {
        let winner = all[runoff::winner(times)].clone();
        let components = (0..winner.len()).map(|at| self.us(&winner, at).unwrap_or(f64::NAN)).collect();
        let counted = self.pruned.iter().map(|(reason, all)| ((*reason).to_owned(), all.len() as u32));
        let mut pruned: BTreeMap<String, u32> = counted.collect();
        if self.illegal > 0 {
            pruned.insert("illegal".into(), self.illegal);
        }
        let medians = times.iter().map(|t| Stats::of(t).median);
        let rounds = all.into_iter().zip(medians).collect();
        Searched { winner, components, rounds, model, trials: self.trials, pruned, refused: self.refused }
    }
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
