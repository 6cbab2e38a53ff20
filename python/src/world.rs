//! Worlds: simulated ranks in this process, or one rank of several processes with a GPU each.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use peerwarp::runtime::{Launched, Secret, World, WorldOptions, gpus};
use pyo3::prelude::*;

use crate::error::{Failure, detached};
use crate::simulated::{Ranks, lock};

/// Simulated ranks of this process.
#[pyclass(frozen)]
pub struct SimulatedWorld {
    pub ranks: Arc<Ranks>,
}

#[pymethods]
impl SimulatedWorld {
    #[new]
    fn new(ranks: u32, seed: u64, check_races: bool) -> Result<SimulatedWorld, Failure> {
        Ok(SimulatedWorld { ranks: Arc::new(Ranks::new(ranks, seed, check_races)?) })
    }
}

/// This process's rank of a world of GPUs.
#[pyclass(frozen)]
pub struct GpuWorld {
    /// None once it was left.
    world: Mutex<Option<World>>,
}

/// Seconds as a duration: what is no number of them is refused.
fn seconds(field: &str, value: f64) -> Result<Duration, Failure> {
    let refused = || Failure::invalid(field, value, "seconds: more than 0");
    Duration::try_from_secs_f64(value).ok().filter(|d| !d.is_zero()).ok_or_else(refused)
}

impl GpuWorld {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&World) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        detached(py, || match &*lock(&self.world) {
            Some(world) => act(world),
            None => Err(Failure::Other("the world was left".into())),
        })
    }
}

#[pymethods]
impl GpuWorld {
    /// Meets the other ranks at an address of this machine.
    #[new]
    fn new(
        py: Python<'_>,
        rank_ranks_local_rank: (u32, u32, u32),
        address_secret: (String, String),
        wait_budget_form_timeout: (f64, f64),
        share_sms: bool,
    ) -> Result<GpuWorld, Failure> {
        let ((rank, ranks, local_rank), (address, secret)) = (rank_ranks_local_rank, address_secret);
        let (wait_budget, form_timeout) = wait_budget_form_timeout;
        let options = WorldOptions {
            wait_budget: seconds("wait_budget", wait_budget)?,
            form_timeout: seconds("form_timeout", form_timeout)?,
            share_sms,
            ..WorldOptions::default()
        };
        detached(py, || {
            let secret = Secret::new(&secret)?;
            let launched = Launched { launcher: "torch", rank, ranks, local_rank, address, secret };
            let world = World::of_process(&gpus()?, &launched, &options)?;
            Ok(GpuWorld { world: Mutex::new(Some(world)) })
        })
    }

    /// Raises what a kernel left behind whose wait expired.
    fn check(&self, py: Python<'_>) -> Result<(), Failure> {
        self.with(py, |world| Ok(world.check()?))
    }

    /// Clears flags, epochs and counters on all ranks.
    fn reset(&self, py: Python<'_>) -> Result<(), Failure> {
        self.with(py, |world| Ok(world.reset()?))
    }

    /// Waits for the other ranks, and ends it.
    fn leave(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, || match lock(&self.world).take() {
            Some(world) => Ok(world.leave()?),
            None => Ok(()),
        })
    }
}

/// Why this process cannot have a rank on a GPU, in words; none if it can.
#[pyfunction]
pub fn why_no_gpu(py: Python<'_>) -> Result<Option<String>, Failure> {
    detached(py, || Ok(gpus().err().map(|error| error.to_string())))
}

/// A new secret of a world of processes.
#[pyfunction]
pub fn draw_secret() -> Result<String, Failure> {
    Ok(Secret::draw()?.expose().to_owned())
}
