//! Rounds of a problem, recorded on GPUs.

use std::sync::Arc;

use super::clock::ClockLine;
use super::clocks::{Clocks, ClocksError};
use super::{Buffers, Trace};
use crate::harness::session::{GpuRun, GpuSession};
use crate::harness::workload::Problem;
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// Rounds of a problem on one clock.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The rounds that were run and compared before any was recorded.
    pub ran: GpuRun,
    /// How the ranks' clocks were put together, by rank.
    pub clocks: Vec<ClockLine>,
    /// The recorded rounds in order.
    pub traces: Vec<Trace>,
}

/// Runs all rounds of a problem and compares their results. Then launches them at once, as a graph on each rank, and reads what the
/// last one recorded; this `times` times. Clocks are compared before and after.
///
/// `kernels` are images with a timeline, `clocks` those of [`Clocks`]. All ranks of the world are in this process.
///
/// # Errors
/// Images have no timeline, a wait expired, a driver's call failed, or clocks cannot be compared.
pub fn record(
    problem: Arc<dyn Problem>,
    world: &Arc<World>,
    times: u32,
    kernels: &dyn Images,
    clocks: &dyn Images,
) -> Result<Recorded, ClocksError> {
    let buffers = Buffers::of(problem.launches());
    let launches = problem.launches().len();
    let mut clocks = Clocks::new(world, clocks)?;
    let mut session = GpuSession::new(problem, world, kernels)?;
    let ran = session.run(0)?;
    let before = clocks.measure()?;
    let rounds = (0..times).map(|_| session.record(1)).collect::<Result<Vec<_>, _>>()?;
    let after = clocks.measure()?;
    if rounds.iter().any(|recordings| recordings.len() != launches * world.ranks() as usize) {
        let without = ran.variants.join(", ");
        return Err(
            RuntimeError::invalid("images", without, "images with a timeline, for all kernels").into()
        );
    }
    let clocks: Vec<ClockLine> =
        before.into_iter().zip(after).map(|(before, after)| ClockLine { before, after }).collect();
    let trace = |recordings| Trace::new(recordings, &clocks).with_buffers(buffers.clone());
    let traces = rounds.into_iter().map(trace).collect();
    Ok(Recorded { ran, clocks, traces })
}
