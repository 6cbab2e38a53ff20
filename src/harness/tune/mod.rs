//! Which variants of a suite's families are fastest on a machine, found by measuring, and kept in tables.
//!
//! A search for one [`Key`] starts from the defaults, from what a cost model would take and from what won for keys like it, and
//! goes from the best candidate so far to its neighbours ([`search()`]); a run-off decides ([`winner`]). What wins is a
//! [`Record`] of a device's [`Table`], and [`Tuned`] finds it there. docs/how-to/tuning.md has the method and the format.

mod compile;
mod components;
pub mod gpu;
mod key;
mod lookup;
mod measure;
mod ranking;
mod record;
mod runoff;
mod search;
pub(crate) mod space;
mod table;

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

pub use components::{Candidate, Components, CostModel, Together};
pub use key::{Key, KeyFields, KeyValue};
pub use lookup::{Choice, Found, Tuned, device_slug};
pub use measure::{Measure, MeasureError, Task};
pub use record::{Made, Names, Record, Refusal, Revisions, Timed};
pub use runoff::{MARGIN, winner};
pub use search::{Budget, SearchError, Searched, Trial, search, seeds};
pub use table::{SCHEMA, Table, TableError};

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

/// What became of a task.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// What was to be tuned.
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
        /// The run-off: candidates with the medians of their rounds.
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
    /// None of the candidates can be used.
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

/// What tuning reports while it is at it.
pub trait Watch {
    /// So much is done, of 1.
    fn progress(&mut self, part: f64, key: &Key);
    /// The table has another record, and is to be kept.
    fn keep(&mut self, table: &Table) -> Result<(), TableError>;
}

/// Tunes these, one after the other, and puts what it finds into the table.
///
/// # Errors
/// The machine fails, or the table cannot be kept. What was found before is in the table.
pub fn tune(
    tasks: &[Task],
    table: &mut Table,
    measure: &mut dyn Measure,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Vec<Outcome>, TuneError> {
    let there = |task: &Task| {
        table.record(&task.key()).is_some_and(|record| {
            record.is_current(task.suite, Some(&options.made.driver)) && record.winner(task.suite).is_ok()
        })
    };
    let skipped: Vec<bool> = tasks.iter().map(|task| !options.force && there(task)).collect();
    let todo: Vec<&Task> =
        tasks.iter().zip(&skipped).filter(|(_, skip)| !**skip).map(|(task, _)| task).collect();
    let mut run = Run { todo, table, measure, options, watch, overhead: Duration::ZERO };
    let end = options.budget.map(|budget| Instant::now() + budget);
    let mut number = 0;
    let mut outcomes = vec![];
    for (task, skip) in tasks.iter().zip(skipped) {
        let end = match skip {
            true => End::Skipped,
            false => {
                number += 1;
                run.task(number - 1, end)?
            }
        };
        outcomes.push(Outcome { key: task.key(), end });
    }
    Ok(outcomes)
}

/// A run under way.
struct Run<'a> {
    /// What it has to tune.
    todo: Vec<&'a Task>,
    table: &'a mut Table,
    measure: &'a mut dyn Measure,
    options: &'a Options,
    watch: &'a mut dyn Watch,
    /// How long the task before took for checks and its run-off, which come when its search has ended.
    overhead: Duration,
}

impl Run<'_> {
    /// Tunes the task with this number.
    fn task(&mut self, number: usize, end: Option<Instant>) -> Result<End, TuneError> {
        let (task, all, started) = (self.todo[number], self.todo.len(), Instant::now());
        let key = task.key();
        self.watch.progress(number as f64 / all as f64, &key);
        if end.is_some_and(|end| started >= end) {
            return Ok(End::OutOfTime);
        }
        if let Err(reason) = task.suite.components().check(task.defaults.variants()) {
            return Ok(End::Failed { reason });
        }
        self.measure.start(task);
        let seeds = seeds(task, &lookup::alike(self.table, task));
        self.measure.prepare(&seeds);
        if let Some(next) = self.todo.get(number + 1) {
            self.measure.prepare(&search::seeds(next, &lookup::alike(self.table, next)));
        }
        let until = end.map(|end| started + share(end - started, all - number, self.overhead));
        let budget = Budget { trials: self.options.trials, until };
        let (mut tried, mut last) = (0, started);
        let mut each = || {
            (tried, last) = (tried + 1, Instant::now());
            let here = part(tried, self.options.trials, started, until);
            self.watch.progress((number as f64 + here) / all as f64, &key);
        };
        let found = search(task, self.measure, &seeds, &budget, &mut each);
        self.overhead = last.elapsed();
        let found = match found {
            Err(SearchError::Machine(e)) => return Err(e.into()),
            Err(nothing @ SearchError::Nothing { .. }) => {
                return Ok(End::Failed { reason: nothing.to_string() });
            }
            Ok(found) => found,
        };
        let record = record(task, &found, self.measure, &self.options.made);
        self.table.insert(record.clone());
        self.watch.keep(self.table)?;
        let run_off = found.rounds.iter().map(|(c, us)| Timed::of(c, Some(*us))).collect();
        let (record, seconds) = (Box::new(record), started.elapsed().as_secs_f64());
        Ok(End::Tuned { record, run_off, trials: found.trials, seconds })
    }
}

/// How long the search of one of `tasks` tasks may take, so that each has as much of the time that is left.
fn share(left: Duration, tasks: usize, overhead: Duration) -> Duration {
    (left / tasks as u32).saturating_sub(overhead)
}

/// How much of a task's budget is spent, of 1.
fn part(tried: u32, trials: u32, started: Instant, until: Option<Instant>) -> f64 {
    let of_trials = f64::from(tried) / f64::from(trials.max(1));
    let of_time = until.map_or(0.0, |until| {
        let all = until.saturating_duration_since(started).as_secs_f64();
        started.elapsed().as_secs_f64() / all.max(1e-9)
    });
    of_trials.max(of_time).min(1.0)
}

fn record(task: &Task, found: &Searched, measure: &dyn Measure, made: &Made) -> Record {
    let (winner, key) = (&found.winner, task.key());
    let timed = |candidate: &Candidate| Timed::of(candidate, found.round_us(candidate));
    Record {
        measured: today(),
        tried: found.trials.len() as u32,
        limit_us: measure.limit_us().map(|us| (us * 1e3).round() / 1e3),
        us: found.round_us(winner).unwrap_or(f64::NAN),
        variants: record::names(winner),
        revisions: record::revisions(winner),
        metrics: measure.metrics().into_iter().zip(found.components.iter().copied()).collect(),
        default: timed(&task.defaults),
        model: found.model.as_ref().map(timed),
        made: made.clone(),
        pruned: found.pruned.clone(),
        refused: found.refused.clone(),
        suite: key.suite,
        key: key.fields,
    }
}

/// The day by UTC, `2026-11-22`.
fn today() -> String {
    let mut now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.truncate("2026-11-22".len());
    now
}

#[cfg(test)]
pub(crate) mod example;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod kill_tests;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;
