//! Which variants of dispatch and combine are fastest on a machine, found by measuring, and kept in tables.
//!
//! A search for one shape starts from the defaults, from what a cost model ([`Model`]) would take and from what won for
//! shapes like it, and goes from the best pair so far to its neighbours ([`search()`]); a run-off decides ([`winner`]). What
//! wins is a [`Record`] of a device's [`Table`], and [`Tuned`] finds it there. docs/tuning.md has the method and the format.

mod digest;
pub mod gpu;
mod lookup;
mod measure;
mod model;
mod runoff;
mod search;
mod space;
mod table;

use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;

pub use digest::digest;
pub use lookup::{Choice, Chosen, Tuned, device_slug};
pub use measure::{Alone, Measure, MeasureError};
pub use model::{COSTS, Costs, Model};
pub use runoff::{MARGIN, winner};
pub use search::{Budget, Found, SearchError, Trial, search, seeds};
pub use table::{Made, Pair, Record, Refusal, SCHEMA, Table, TableError, Timed, Times};

use crate::moe::{MoeError, MoeShape};
use crate::moe_run::MoeTuning;
use crate::runtime::RuntimeError;

/// How to tune.
#[derive(Clone, Debug)]
pub struct Options {
    /// Measurements of a shape at most.
    pub trials: u32,
    /// Time for all shapes: what one leaves goes to those after it.
    pub budget: Option<Duration>,
    /// Whether to tune again what the table has.
    pub force: bool,
    /// What records are made with.
    pub made: Made,
}

/// What became of a shape.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The shape.
    pub shape: MoeShape,
    /// How it went.
    #[serde(flatten)]
    pub end: End,
}

/// How tuning a shape went.
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
    /// None of the pairs can be used.
    Failed {
        /// Why.
        reason: String,
    },
}

/// Why tuning ended early. What was found before is in the table.
#[derive(Debug, thiserror::Error)]
pub enum TuneError {
    /// A shape.
    #[error(transparent)]
    Moe(#[from] MoeError),
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
    fn progress(&mut self, part: f64, shape: &MoeShape);
    /// The table has another record, and is to be kept.
    fn keep(&mut self, table: &Table) -> Result<(), TableError>;
}

/// Tunes these shapes, one after the other, and puts what it finds into the table.
pub fn tune(
    shapes: &[MoeShape],
    table: &mut Table,
    measure: &mut dyn Measure,
    options: &Options,
    watch: &mut dyn Watch,
) -> Result<Vec<Outcome>, TuneError> {
    let end = options.budget.map(|budget| Instant::now() + budget);
    let mut outcomes = vec![];
    for (number, shape) in shapes.iter().enumerate() {
        watch.progress(number as f64 / shapes.len() as f64, shape);
        let there = table.record(shape).is_some_and(|r| table.tuning(r).is_ok());
        if there && !options.force {
            outcomes.push(Outcome { shape: *shape, end: End::Skipped });
            continue;
        }
        let started = Instant::now();
        let seeds = seeds_of(shape, table)?;
        measure.prepare(&seeds);
        if let Some(next) = shapes.get(number + 1) {
            measure.prepare(&seeds_of(next, table)?);
        }
        let left = shapes.len() - number;
        let until = end.map(|end| started + end.saturating_duration_since(started) / left as u32);
        let budget = Budget { trials: options.trials, until };
        let mut tried = 0;
        let mut each = || {
            tried += 1;
            let here = part(tried, options.trials, started, until);
            watch.progress((number as f64 + here) / shapes.len() as f64, shape);
        };
        let end = match search(measure, &seeds, &budget, &mut each) {
            Err(SearchError::Machine(e)) => return Err(e.into()),
            Err(nothing @ SearchError::Nothing { .. }) => End::Failed { reason: nothing.to_string() },
            Ok(found) => {
                let record = record(shape, &seeds[0], &found, table, measure, &options.made)?;
                table.insert(record.clone());
                watch.keep(table)?;
                let run_off = found.round_trips.iter().map(|(t, us)| Timed::of(t, Some(*us))).collect();
                let (record, seconds) = (Box::new(record), started.elapsed().as_secs_f64());
                End::Tuned { record, run_off, trials: found.trials, seconds }
            }
        };
        outcomes.push(Outcome { shape: *shape, end });
    }
    Ok(outcomes)
}

/// How much of a shape's budget is spent, of 1.
fn part(tried: u32, trials: u32, started: Instant, until: Option<Instant>) -> f64 {
    let of_trials = f64::from(tried) / f64::from(trials.max(1));
    let of_time = until.map_or(0.0, |until| {
        let all = until.saturating_duration_since(started).as_secs_f64();
        started.elapsed().as_secs_f64() / all.max(1e-9)
    });
    of_trials.max(of_time).min(1.0)
}

fn seeds_of(shape: &MoeShape, table: &Table) -> Result<Vec<MoeTuning>, MoeError> {
    let default = MoeTuning::defaults(shape)?;
    Ok(seeds(&default, &Model::new(*shape), &lookup::alike(table, shape)))
}

fn record(
    shape: &MoeShape,
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
        limit_us: measure.limit_us(shape).map(|us| (us * 1e3).round() / 1e3),
        shape: *shape,
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
