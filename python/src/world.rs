//! Worlds: simulated ranks in this process, or one rank of several processes with a GPU each.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use peerwarp::build::toolchain::{Tool, find_in};
use peerwarp::codegen::family::Target;
use peerwarp::families::moe::MoeRegistry;
use peerwarp::harness::choose::Device;
use peerwarp::harness::session::SimRanks;
use peerwarp::runtime::cache::ModuleCache;
use peerwarp::runtime::gpu::Gpu;
use peerwarp::runtime::image::Jit;
use peerwarp::runtime::op::SymmetricPart;
use peerwarp::runtime::{Launched, RuntimeError, Secret, World, WorldOptions, gpus};
use pyo3::prelude::*;

use crate::error::{Failure, detached};
use crate::simulated::lock;

/// Simulated ranks of this process.
#[pyclass(frozen)]
pub struct SimulatedWorld {
    pub ranks: Arc<SimRanks>,
}

#[pymethods]
impl SimulatedWorld {
    #[new]
    fn new(ranks: u32, seed: u64, check_races: bool) -> Result<SimulatedWorld, Failure> {
        Ok(SimulatedWorld { ranks: Arc::new(SimRanks::new(ranks, seed, check_races)?) })
    }
}

/// This process's rank of a world of GPUs.
#[pyclass(frozen)]
pub struct GpuWorld {
    /// None once it was left.
    world: Mutex<Option<Arc<World>>>,
    /// Folders in which NVRTC is looked for first.
    compilers: Vec<PathBuf>,
    images: OnceLock<Jit>,
}

/// Seconds as a duration: what is no number of them is refused.
pub fn seconds(field: &str, value: f64) -> Result<Duration, Failure> {
    Ok(WorldOptions::seconds(field, value)?)
}

/// What ranks must have in common: the program, and which variants were tuned for their GPUs.
fn facts(gpu: Option<&Arc<dyn Gpu>>) -> BTreeMap<String, String> {
    let device = gpu.map_or_else(Device::default, |gpu| Device::of_gpu(gpu.info()));
    let tuned = MoeRegistry::new([], true).on(device).digest();
    let version = env!("CARGO_PKG_VERSION").into();
    BTreeMap::from([("version of peerwarp".into(), version), ("table of tuned variants".into(), tuned)])
}

impl GpuWorld {
    /// Does something in the world, with its compiler.
    pub fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&Arc<World>, &Jit) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        detached(py, || {
            let world = self.world()?;
            // All ranks look for theirs before any of them does more: without one of them others would wait.
            let images = world.agree(self.images())?;
            act(&world, images)
        })
    }

    /// Does something in the world that needs no compiler.
    pub fn with_world<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&Arc<World>) -> Result<T, Failure> + Send,
    ) -> Result<T, Failure> {
        detached(py, || act(&self.world()?))
    }

    /// What kernels are compiled for.
    pub fn target(&self) -> Result<Target, Failure> {
        Ok(self.world()?.members()[0].gpu.info().target)
    }

    /// What variants are chosen for.
    pub fn device(&self) -> Result<Device, Failure> {
        Ok(Device::of_gpu(self.world()?.members()[0].gpu.info()))
    }

    fn world(&self) -> Result<Arc<World>, Failure> {
        lock(&self.world).clone().ok_or_else(|| Failure::Other("the world was left".into()))
    }

    fn images(&self) -> Result<&Jit, RuntimeError> {
        if let Some(images) = self.images.get() {
            return Ok(images);
        }
        let found = find_in(Tool::Nvrtc, &self.compilers)?;
        let images = Jit::with_nvrtc(&found, ModuleCache::of_user())?;
        Ok(self.images.get_or_init(|| images))
    }
}

#[pymethods]
impl GpuWorld {
    /// Meets the other ranks at an address of this machine, or makes the world of a process that takes a rank's place.
    #[new]
    fn new(
        py: Python<'_>,
        rank_ranks_local_rank: (u32, u32, u32),
        address_secret: (String, String),
        wait_budget_form_timeout: (f64, f64),
        share_sms_share_gpus_at_once: (bool, bool, u32),
        compilers: Vec<PathBuf>,
        takes_place: bool,
    ) -> Result<GpuWorld, Failure> {
        let ((rank, ranks, local_rank), (address, secret)) = (rank_ranks_local_rank, address_secret);
        let ((wait_budget, form_timeout), (share_sms, share_gpus, launches_at_once)) =
            (wait_budget_form_timeout, share_sms_share_gpus_at_once);
        let mut options = WorldOptions {
            wait_budget: seconds("wait_budget", wait_budget)?,
            form_timeout: seconds("form_timeout", form_timeout)?,
            share_sms,
            share_gpus,
            launches_at_once,
            ..WorldOptions::default()
        };
        detached(py, || {
            let secret = Secret::new(&secret)?;
            let gpus = gpus()?;
            options.facts = facts(gpus.get(local_rank as usize));
            let launched =
                Launched { launcher: "torch", rank, ranks, local_rank, node: None, address, secret };
            let form = if takes_place { World::in_place_of } else { World::of_process };
            let world = form(&gpus, &launched, &options)?;
            let world = Mutex::new(Some(Arc::new(world)));
            Ok(GpuWorld { world, compilers, images: OnceLock::new() })
        })
    }

    /// A world of one rank, on a GPU of this process.
    #[staticmethod]
    fn alone(
        py: Python<'_>,
        gpu: u32,
        wait_budget: f64,
        share_sms_at_once: (bool, u32),
        compilers: Vec<PathBuf>,
    ) -> Result<GpuWorld, Failure> {
        let (share_sms, launches_at_once) = share_sms_at_once;
        let wait_budget = seconds("wait_budget", wait_budget)?;
        let options = WorldOptions { wait_budget, share_sms, launches_at_once, ..WorldOptions::default() };
        detached(py, || {
            let gpus = gpus()?;
            let own = gpus.get(gpu as usize).ok_or_else(|| {
                Failure::invalid("device", gpu, format!("a GPU of the {} that this process sees", gpus.len()))
            })?;
            let world = World::of_gpus(std::slice::from_ref(own), &options)?;
            let world = Mutex::new(Some(Arc::new(world)));
            Ok(GpuWorld { world, compilers, images: OnceLock::new() })
        })
    }

    /// Raises what a kernel left behind whose wait expired.
    fn check(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, || Ok(self.world()?.check()?))
    }

    /// Where this process's rank finds the word that says whether the world was aborted, and what keeps it there.
    fn fault_word(&self, rank: u32) -> Result<(u64, FaultWord), Failure> {
        let world = self.world()?;
        Ok((world.fault_word(rank)?, FaultWord { _world: world }))
    }

    /// What kernels are compiled for: `cuda:sm_90a`.
    fn target_name(&self) -> Result<String, Failure> {
        Ok(self.target()?.to_string())
    }

    /// Zeroed memory on every rank that all ranks reach: this rank's address, and what keeps it there. All ranks make it in the same
    /// order, with the same size.
    fn symmetric(&self, py: Python<'_>, bytes: u64) -> Result<(u64, SymmetricMemory), Failure> {
        self.with_world(py, |world| {
            let part = world.symmetric::<u8>(bytes)?.swap_remove(0);
            Ok((part.buffer().ptr(), SymmetricMemory { _part: part, _world: Arc::clone(world) }))
        })
    }

    /// Clears flags, epochs and counters on all ranks.
    fn reset(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, || Ok(self.world()?.reset()?))
    }

    /// Goes on without a rank.
    fn deactivate(&self, py: Python<'_>, rank: u32) -> Result<(), Failure> {
        detached(py, || Ok(self.world()?.deactivate(rank)?))
    }

    /// Goes on with the ranks that come here: those without which it does.
    fn go_on(&self, py: Python<'_>) -> Result<Vec<u32>, Failure> {
        detached(py, || Ok(self.world()?.go_on()?))
    }

    /// Lets a new process take the place of a rank.
    fn replace(&self, py: Python<'_>, rank: u32) -> Result<(), Failure> {
        detached(py, || Ok(self.world()?.replace(rank)?))
    }

    /// The ranks that it goes on with.
    fn active(&self) -> Result<Vec<u32>, Failure> {
        let world = self.world()?;
        Ok((0..world.ranks()).filter(|rank| world.is_active(*rank)).collect())
    }

    /// Waits for the other ranks, and ends it.
    fn leave(&self, py: Python<'_>) -> Result<(), Failure> {
        detached(py, || {
            let mut world = lock(&self.world);
            match world.take().map(Arc::try_unwrap) {
                None => Ok(()),
                Some(Ok(left)) => Ok(left.leave()?),
                Some(Err(used)) => {
                    *world = Some(used);
                    let allowed = "none: `del` them, and the tensors that dispatch returned, first";
                    Err(Failure::invalid("operations of the world", "in use", allowed))
                }
            }
        })
    }
}

/// Keeps a world, so that its words stay where they are.
#[pyclass(frozen)]
pub struct FaultWord {
    _world: Arc<World>,
}

/// Keeps memory that all ranks reach, and its world.
#[pyclass(frozen)]
pub struct SymmetricMemory {
    _part: SymmetricPart<u8>,
    _world: Arc<World>,
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
