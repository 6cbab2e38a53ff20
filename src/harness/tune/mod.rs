//! Which variants of dispatch and combine are fastest on a machine, found by measuring, and kept in tables.
//!
//! A search for one [`Key`], a shape and a layout, starts from the defaults, from what a cost model ([`Model`]) would take and from what won for
//! shapes like it, and goes from the best pair so far to its neighbours ([`search()`]); a run-off decides ([`winner`]). What
//! wins is a [`Record`] of a device's [`Table`], and [`Tuned`] finds it there. docs/tuning.md has the method and the format.

mod components;
mod digest;
pub mod gpu;
mod key;
mod lookup;
mod measure;
mod model;
mod pairs;
mod runoff;
mod search;
mod space;
mod table;

use std::time::{Duration, Instant, SystemTime};

use rayon::prelude::*;
use serde::Serialize;

pub use components::{Components, CostModel};
pub use digest::digest;
pub use key::Key;
pub use lookup::{Choice, Chosen, Tuned, device_slug};
pub use measure::{Alone, Measure, MeasureError};
pub use model::{COSTS, Costs, Model};
pub use runoff::{MARGIN, winner};
pub use search::{Budget, Found, SearchError, Trial, search, seeds};
pub use table::{Made, Pair, Record, Refusal, SCHEMA, Table, TableError, Timed, Times};

use crate::families::moe::MoeError;
use crate::families::moe::run::MoeTuning;
use crate::runtime::RuntimeError;

/// How to tune.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measurements of a key at most.
    pub trials: u32,
    /// Time for all keys: what one leaves goes to those after it, and those that it does not suffice for are left out.
    pub budget: Option<Duration>,
    /// Whether to tune again what the table has.
    pub force: bool,
    /// What records are made with.
    pub made: Made,
}

/// What became of a shape with a layout.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Which.
    #[serde(flatten)]
    pub key: Key,
    /// How it went.
    #[serde(flatten)]
    pub end: End,
}

/// How tuning went.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum End {
    /// It has a record now.
    Tuned {
        /// The record.
        record: Box<Record>,
        /// Round trips of the run-off: pairs with their medians.
        run_off: Vec<Timed>,
        /// All measurements, in their order.
        trials: Vec<Trial>,
        /// How long it took, in seconds.
        seconds: f64,
    },
    /// The table had a record already.
    Skipped,
    /// The budget was spent before its turn.
    OutOfTime,
    /// None of the pairs can be used.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why tuning ended early. What was found before is in the table.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// The table cannot be kept.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The machine.
    #[error(transparent)]
    Machine(#[from] RuntimeError),
}

/// What tuning tells while it is at it.
pub trait Watch {
    /// So much is done, of 1.
    fn progress(&mut self, part: f64, key: &Key);
    /// The table has another record, and is to be kept.
    fn keep(&mut self, table: &Table) -> Result<(), TableError>;
}

/// Tunes these, one after the other, and puts what it finds into the table.
pub fn tune(
    keys: &[Key],
    table: &mut Table,
    measure: &mut dyn Measure,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Vec<Outcome>, TuneError> {
    let there = |key: &Key| table.record(key).is_some_and(|record| table.tuning(record).is_ok());
    let skipped: Vec<bool> = keys.par_iter().map(|key| !options.force && there(key)).collect();
    let todo: Vec<Key> = keys.iter().zip(&skipped).filter(|(_, skip)| !**skip).map(|(key, _)| *key).collect();
    let mut run = Run { todo, table, measure, options, watch, overhead: Duration::ZERO };
    let end = options.budget.map(|budget| Instant::now() + budget);
    let mut number = 0;
    let mut outcomes = vec![];
    for (key, skip) in keys.iter().zip(skipped) {
        let end = match skip {
            true => End::Skipped,
            false => {
                number += 1;
                run.key(number - 1, end)?
            }
        };
        outcomes.push(Outcome { key: *key, end });
    }
    Ok(outcomes)
}

/// A run under way.
struct Run<'a> {
    /// What it has to tune.
    todo: Vec<Key>,
    table: &'a mut Table,
    measure: &'a mut dyn Measure,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    /// How long the key before took for checks and its run-off, which come when its search has ended.
    overhead: Duration,
}

impl Run<'_> {
    /// Tunes the key with this number.
    fn key(&mut self, number: usize, end: Option<Instant>) -> Result<End, TuneError> {
        let (key, all, started) = (self.todo[number], self.todo.len(), Instant::now());
        self.watch.progress(number as f64 / all as f64, &key);
        if end.is_some_and(|end| started >= end) {
            return Ok(End::OutOfTime);
        }
        let seeds = match seeds_of(&key, self.table) {
            Ok(seeds) => seeds,
            Err(e) => return Ok(End::Failed { reason: e.to_string() }),
        };
        self.measure.prepare(&seeds);
        if let Some(next) = self.todo.get(number + 1).and_then(|next| seeds_of(next, self.table).ok()) {
            self.measure.prepare(&next);
        }
        let until = end.map(|end| started + share(end - started, all - number, self.overhead));
        let budget = Budget { trials: self.options.trials, until };
        let (mut tried, mut last) = (0, started);
        let mut each = || {
            (tried, last) = (tried + 1, Instant::now());
            let here = part(tried, self.options.trials, started, until);
            self.watch.progress((number as f64 + here) / all as f64, &key);
        };
        let found = search(self.measure, &seeds, &budget, &mut each);
        self.overhead = last.elapsed();
        let found = match found {
            Err(SearchError::Machine(e)) => return Err(e.into()),
            Err(nothing @ SearchError::Nothing { .. }) => {
                return Ok(End::Failed { reason: nothing.to_string() });
            }
            Ok(found) => found,
        };
        let record = record(&key, &seeds[0], &found, self.table, self.measure, &self.options.made)?;
        self.table.insert(record.clone());
        self.watch.keep(self.table)?;
        let run_off = found.round_trips.iter().map(|(t, us)| Timed::of(t, Some(*us))).collect();
        let (record, seconds) = (Box::new(record), started.elapsed().as_secs_f64());
        Ok(End::Tuned { record, run_off, trials: found.trials, seconds })
    }
}

/// How long the search of one of `keys` keys may take, so that each has as much of the time that is left.
fn share(left: Duration, keys: usize, overhead: Duration) -> Duration {
    (left / keys as u32).saturating_sub(overhead)
}

/// How much of a key's budget is spent, of 1.
fn part(tried: u32, trials: u32, started: Instant, until: Option<Instant>) -> f64 {
    let of_trials = f64::from(tried) / f64::from(trials.max(1));
    let of_time = until.map_or(0.0, |until| {
        let all = until.saturating_duration_since(started).as_secs_f64();
        started.elapsed().as_secs_f64() / all.max(1e-9)
    });
    of_trials.max(of_time).min(1.0)
}

fn seeds_of(key: &Key, table: &Table) -> Result<Vec<MoeTuning>, MoeError> {
    let default = key.defaults()?;
    Ok(seeds(&default, &Model::new(key.shape), &lookup::alike(table, key)))
}

fn record(
    key: &Key,
    default: &MoeTuning,
    found: &Found,
    table: &Table,
    measure: &dyn Measure,
    made: &Made,
) -> Result<Record, TableError> {
    let winner = &found.winner;
    Ok(Record {
        winner: Pair::of(winner),
        kernels: digest(winner, table.target)?,
        measured: today(),
        tried: found.trials.len() as u32,
        layout: key.layout,
        limit_us: measure.limit_us(&key.shape).map(|us| (us * 1e3).round() / 1e3),
        shape: key.shape,
        us: Times {
            round_trip: found.round_trip_us(winner).unwrap_or(f64::NAN),
            dispatch: found.alone.dispatch,
            combine: found.alone.combine,
        },
        default: Timed::of(default, found.round_trip_us(default)),
        model: Timed::of(&found.model, found.round_trip_us(&found.model)),
        made: made.clone(),
        pruned: found.pruned.clone(),
        refused: found.refused.clone(),
    })
}

/// The day by UTC, `2026-11-22`.
fn today() -> String {
    let mut now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.truncate("2026-11-22".len());
    now
}

#[cfg(test)]
pub(crate) use table::tests::record as record_for_tests;

#[cfg(test)]
mod fake;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
