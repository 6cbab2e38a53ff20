//! Many seeds.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use rayon::prelude::*;

use super::machine::Machine;
use super::options::Options;
use crate::sim::findings::finding::Findings;
use crate::threads::{self, ThreadsRefused};

/// What exploring schedules showed.
#[derive(Debug)]
pub struct Exploration {
    /// Seeds that were run to their end.
    pub runs: u64,
    /// The failing run with the lowest seed among those run. `None` says that no explored schedule failed, not that
    /// none can.
    pub first_failure: Option<(u64, Box<Findings>)>,
    /// Instructions over all runs.
    pub steps: u64,
}

/// Runs a machine once for each seed, on all cores, and stops starting runs after the first failure. `progress` is
/// called after each run with the number of runs done.
///
/// This explores schedules: it proves nothing about the others. Data races, and flags overwritten without being
/// ordered after the wait for them, are found from what synchronises rather than from the schedule, so a single seed
/// shows most of them; deadlocks and mistakes that depend on data need the schedule that leads there.
///
/// # Errors
/// The system refuses threads.
pub fn check(
    machine: &Machine,
    seeds: Range<u64>,
    options: &Options,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Exploration, ThreadsRefused> {
    threads::pool()?;
    let (runs, steps) = (AtomicU64::new(0), AtomicU64::new(0));
    let first: Mutex<Option<(u64, Box<Findings>)>> = Mutex::new(None);
    let lowest = AtomicU64::new(u64::MAX);
    seeds.into_par_iter().for_each(|seed| {
        // Seeds above a failing one need not run; those below do, so that the answer does not depend on timing.
        if seed > lowest.load(Ordering::Relaxed) {
            return;
        }
        let result = machine.run(&options.with_seed(seed));
        let report = match &result {
            Ok(outcome) => &outcome.report,
            Err(findings) => &findings.report,
        };
        steps.fetch_add(report.steps, Ordering::Relaxed);
        progress(runs.fetch_add(1, Ordering::Relaxed) + 1);
        if let Err(findings) = result {
            lowest.fetch_min(seed, Ordering::Relaxed);
            let mut first = first.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if first.as_ref().is_none_or(|f| seed < f.0) {
                *first = Some((seed, findings));
            }
        }
    });
    let first_failure = first.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    Ok(Exploration { runs: runs.into_inner(), first_failure, steps: steps.into_inner() })
}
