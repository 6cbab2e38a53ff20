//! Timelines of kernels: what each warp of each rank did when, on one clock.
//!
//! Kernels that were emitted with a timeline ([`crate::codegen::print::emit_with_timeline`]) leave a [`Recording`] on every
//! rank. [`record`] runs a problem of any family and returns its rounds: [`clock`] says how far the ranks' clocks are apart, a
//! [`Trace`] puts recordings on one clock. [`chrome`] writes it for Perfetto, and [`Summary`] says where the time went.

pub mod chrome;
pub mod clock;
pub mod clocks;
mod matches;
mod record;
mod summary;
pub mod sync;

use crate::runtime::{Event, Recording, Warp};
use clock::ClockLine;

pub use matches::{Buffers, Match, matches};
pub use record::{Recorded, record};
pub use summary::{FlagRow, KernelRow, SiteRow, Summary};

/// One round of launches on all ranks, on the clock of rank 0.
#[derive(Clone, Debug)]
pub struct Trace {
    /// One for each launch of each rank: the first launch of all ranks, then the second.
    pub recordings: Vec<Recording>,
    /// When the first warp of any rank began, on the clock of rank 0, in nanoseconds.
    pub start_ns: i64,
    /// Which memory launches share.
    pub buffers: Buffers,
}

impl Trace {
    /// Puts recordings on the clock of rank 0. `clocks` is by rank. Parameters are the buffers of their names.
    pub fn new(recordings: Vec<Recording>, clocks: &[ClockLine]) -> Trace {
        let recordings: Vec<Recording> = recordings.into_iter().map(|r| on_common_clock(r, clocks)).collect();
        let warps = recordings.iter().flat_map(|r| &r.warps);
        let start_ns = warps.map(|w| w.begin_ns).min().unwrap_or(0);
        Trace { recordings, start_ns, buffers: Buffers::default() }
    }

    /// The same of launches whose parameters are these buffers.
    #[must_use]
    pub fn with_buffers(self, buffers: Buffers) -> Trace {
        Trace { buffers, ..self }
    }

    /// World size.
    pub fn ranks(&self) -> u32 {
        self.recordings.iter().map(|r| r.rank + 1).max().unwrap_or(0)
    }

    /// Microseconds from the trace's start to a time of the common clock.
    pub fn micros(&self, ns: i64) -> f64 {
        (ns - self.start_ns) as f64 / 1e3
    }

    /// Records that had no room.
    pub fn dropped(&self) -> u64 {
        self.recordings.iter().map(Recording::dropped).sum()
    }
}

/// A recording with its times on the clock of rank 0. `clocks` is by rank.
fn on_common_clock(mut recording: Recording, clocks: &[ClockLine]) -> Recording {
    let clock = &clocks[recording.rank as usize];
    for warp in &mut recording.warps {
        let events = warp.events.iter_mut().flat_map(|e| [&mut e.begin_ns, &mut e.end_ns]);
        for time in [&mut warp.begin_ns, &mut warp.end_ns].into_iter().chain(events) {
            *time = clock.common(*time);
        }
    }
    recording
}

#[cfg(test)]
#[path = "tests.rs"]
pub(crate) mod tests;
