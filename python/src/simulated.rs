//! Runs on simulated ranks, with the caller's bytes.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use peerwarp::codegen::sim::Options;
use peerwarp::harness::session::{HostSteps, SimLaunches};

use crate::error::Failure;

/// Most ranks of a world, as kernels address them by a mask of 64 bits.
const RANKS: std::ops::RangeInclusive<u32> = 1..=64;

/// Simulated ranks, and how their schedules are drawn.
#[derive(Debug)]
pub struct Ranks {
    pub ranks: u32,
    pub seed: u64,
    pub check_races: bool,
    /// How many runs there were.
    runs: AtomicU32,
}

impl Ranks {
    pub fn new(ranks: u32, seed: u64, check_races: bool) -> Result<Ranks, Failure> {
        if !RANKS.contains(&ranks) {
            let allowed = format!("{} to {}", RANKS.start(), RANKS.end());
            return Err(Failure::invalid("ranks", ranks, allowed));
        }
        Ok(Ranks { ranks, seed, check_races, runs: AtomicU32::new(0) })
    }

    /// Runs launches with a host. Every run has a schedule of its own, which follows from the seed and the run's number, and is in
    /// the epoch after the one of the run before: so both halves of double buffers get their turns.
    pub fn run<H: HostSteps + 'static>(
        &self,
        launches: &SimLaunches,
        count: usize,
        host: H,
    ) -> Result<Arc<H>, Failure> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let seed = self.seed.wrapping_add(number.into());
        let options = Options { seed, race_checks: self.check_races, ..Options::default() };
        let host = Arc::new(host);
        let steps: Arc<dyn HostSteps> = Arc::clone(&host) as _;
        match launches.run(count, number, &steps, &options)? {
            Ok(_) => Ok(host),
            Err(found) => Err(Failure::Found(found)),
        }
    }
}

/// Whether there is something for each rank.
pub fn one_each(field: &str, found: usize, ranks: u32) -> Result<(), Failure> {
    match found == ranks as usize {
        true => Ok(()),
        false => Err(Failure::invalid(field, found, format!("{ranks}, one for each rank"))),
    }
}

/// Locks something that no panic can leave half-written.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
