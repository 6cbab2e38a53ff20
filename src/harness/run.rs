//! Runs: a problem on simulated ranks or on GPUs, once, and what comes out of it.

use std::sync::Arc;
use std::time::Instant;

use peerwarp_codegen::sim::{Findings, Options};

use super::session::{GpuRun, GpuSession, Ran, SimSession};
use super::workload::{Problem, WorkloadError};
use crate::runtime::gpu::Gpu;
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World, WorldOptions, for_ranks};

/// What a run on the simulator yields.
#[derive(Debug)]
pub struct SimRun {
    /// What it did and how its results compare, or what the checker found.
    pub outcome: Result<Ran, Box<Findings>>,
    /// How long it took.
    pub seconds: f64,
}

/// Runs a problem on simulated ranks.
///
/// # Errors
/// A kernel is wrong, or the problem is.
pub fn on_simulator(problem: &Arc<dyn Problem>, options: &Options) -> Result<SimRun, WorkloadError> {
    let session = SimSession::new(Arc::clone(problem))?;
    let start = Instant::now();
    let outcome = session.run(options);
    Ok(SimRun { outcome, seconds: start.elapsed().as_secs_f64() })
}

/// Runs every round of a problem on the GPUs of a world, then all of them as a graph `replays` times.
///
/// # Errors
/// A kernel cannot be had, a wait expired, or a driver's call failed.
pub fn on_gpus(
    problem: &Arc<dyn Problem>,
    world: &Arc<World>,
    images: &dyn Images,
    replays: u32,
) -> Result<GpuRun, RuntimeError> {
    GpuSession::new(Arc::clone(problem), world, images)?.run(replays)
}

/// A world of so many ranks on the first of these GPUs, or on all of them where they may be shared, or why there is none, in words.
///
/// # Errors
/// There are too few GPUs, or they cannot reach each other's memory.
pub fn fitting(
    gpus: &Result<Vec<Arc<dyn Gpu>>, RuntimeError>,
    ranks: u32,
    options: &WorldOptions,
) -> Result<World, String> {
    let why = |e: &RuntimeError| match e {
        // How to install it matters only to users of GPUs.
        RuntimeError::NotInstalled { what, .. } => format!("{what} was not found"),
        other => other.to_string(),
    };
    let gpus = gpus.as_ref().map_err(why)?;
    match for_ranks(gpus, ranks, options.share_gpus) {
        Some(gpus) => World::of_gpus(&gpus, options).map_err(|e| why(&e)),
        None => Err(format!("{ranks} ranks need as many GPUs, and there are {}", gpus.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mock::{Machine, MockGpu};

    #[test]
    fn a_world_that_does_not_fit_says_why() {
        let missing = RuntimeError::TooFewGpus { backend: "cuda", found: 0, needed: 1 };
        let why = fitting(&Err(missing), 2, &WorldOptions::default()).unwrap_err();
        assert!(why.contains("GPUs are needed"), "{why}");
        let why = fitting(&Ok(vec![]), 2, &WorldOptions::default()).unwrap_err();
        assert_eq!(why, "2 ranks need as many GPUs, and there are 0");
    }

    #[test]
    fn ranks_take_gpus_in_turns_only_where_these_are_shared() {
        let machine = Machine::default();
        let world = |gpus, ranks, share_gpus| {
            let options = WorldOptions { share_gpus, ..WorldOptions::default() };
            fitting(&Ok(MockGpu::all(&machine, gpus)), ranks, &options)
        };
        let gpus =
            |world: World| -> Vec<u32> { world.members().iter().map(|m| m.gpu.info().ordinal).collect() };
        assert_eq!(world(2, 3, false).unwrap_err(), "3 ranks need as many GPUs, and there are 2");
        assert_eq!(gpus(world(2, 3, true).unwrap()), [0, 1, 0]);
        assert_eq!(gpus(world(4, 2, true).unwrap()), [0, 1]);
        assert_eq!(world(0, 2, true).unwrap_err(), "2 ranks need as many GPUs, and there are 0");
    }
}
