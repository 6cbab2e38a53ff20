//! Measuring on the GPUs of this machine, as `bench` does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};

use peerwarp_codegen::family::{DynConfig, Family, Target, Variant};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::measure::{Alone, Measure, MeasureError};
use crate::bench::gpu::{Ready, iterate};
use crate::bench::place::{Place, finish, sample};
use crate::bench::{BenchOptions, Case, Limits, Stats, What, Wire};
use crate::moe::{MoeProblem, MoeShape};
use crate::moe_run::{GpuRunError, MoeGpu, MoeTuning};
use crate::runtime::image::{Images, KernelImage};
use crate::runtime::{RuntimeError, World};

/// How often things are measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Iterations of each operation alone.
    pub iterations: u32,
    /// Iterations of the run-off.
    pub run_off: u32,
    /// Whether pairs are compared with the reference before they may win.
    pub check: bool,
}

/// Iterations of the run-off that do not count.
const WARMUP: u32 = 3;

/// A world of GPUs, all ranks in this process.
pub struct OnGpus {
    // Graphs and streams go before the world.
    places: Vec<Place>,
    world: Arc<World>,
    images: Compiling,
    effort: Effort,
    seed: u64,
    problem: Option<MoeProblem>,
}

impl OnGpus {
    /// Measures in this world with kernels from `images`; routing and inputs are uniform, from `seed`.
    pub fn new(
        world: &Arc<World>,
        images: Arc<dyn Images + Send + Sync>,
        effort: Effort,
        seed: u64,
    ) -> Result<OnGpus, RuntimeError> {
        let images = Compiling::new(images, world.members()[0].gpu.info().target)?;
        let places = Place::all(world, false, &images)?;
        Ok(OnGpus { places, world: Arc::clone(world), images, effort, seed, problem: None })
    }

    /// The problem of a shape: every rank has as many tokens as it may.
    fn case(&mut self, tuning: &MoeTuning) -> Result<Case, MeasureError> {
        let shape = tuning.dispatch.shape();
        let problem = match self.problem.take() {
            Some(problem) if problem.shape == shape => problem,
            _ => {
                let tokens = vec![shape.tokens; shape.ranks as usize];
                let problem = MoeProblem::uniform(shape, &tokens, self.seed);
                problem.map_err(|e| MeasureError::Refused { variant: None, reason: e.to_string() })?
            }
        };
        self.problem = Some(problem.clone());
        Ok(Case { problem, tuning: tuning.clone() })
    }

    fn ready(&mut self, tuning: &MoeTuning) -> Result<Ready, MeasureError> {
        let case = self.case(tuning)?;
        let ready = Ready::new(&case, 1, &self.world, &self.places, &self.images);
        ready.map_err(|e| self.refused(e, tuning))
    }

    /// Sorts errors into those of a candidate and those of the machine, which is made usable again.
    fn refused(&mut self, error: RuntimeError, tuning: &MoeTuning) -> MeasureError {
        let reason = short(&error.to_string());
        let variant = match &error {
            RuntimeError::Compile { variant, .. } => Some(variant.clone()),
            RuntimeError::NotResident { kernel, .. } => Some(kernel.clone()),
            RuntimeError::Aborted(aborted) => aborted.wait.as_ref().map(|wait| wait.kernel.clone()),
            RuntimeError::Argument { .. } | RuntimeError::Emit(_) => None,
            _ => return MeasureError::Machine(error),
        };
        if let RuntimeError::Aborted(_) = error
            && let Err(e) = self.mend()
        {
            return MeasureError::Machine(e);
        }
        let own = [tuning.dispatch.variant_name(), tuning.combine.variant_name()];
        MeasureError::Refused { variant: variant.filter(|v| own.contains(v)), reason }
    }

    /// After an expired wait: the kernels that start iterations have stopped in the middle too, and are made anew.
    fn mend(&mut self) -> Result<(), RuntimeError> {
        self.world.reset()?;
        self.places = Place::all(&self.world, false, &self.images)?;
        Ok(())
    }

    /// What `timed` yields with the pairs loaded. Nothing of it runs any more afterwards.
    fn with_ready<T>(
        &mut self,
        tunings: &[MoeTuning],
        timed: impl FnOnce(&mut OnGpus, &[Ready]) -> Result<T, RuntimeError>,
    ) -> Result<T, MeasureError> {
        let ready = tunings.iter().map(|t| self.ready(t)).collect::<Result<Vec<_>, _>>()?;
        let times = timed(self, &ready);
        // Also after an error: nothing may run any more when graphs and inputs go.
        let ended = finish(&self.world, &self.places);
        drop(ready);
        let failed = |e| self.refused(e, &tunings[0]);
        times.and_then(|times| ended.map(|()| times)).map_err(failed)
    }
}

impl Measure for OnGpus {
    fn prepare(&mut self, tunings: &[MoeTuning]) {
        let kernels = tunings.iter().flat_map(|t| {
            let dispatch = t.dispatch_launches().into_iter().map(Family::into_variant);
            dispatch.chain(t.combine_launches().into_iter().map(Family::into_variant)).collect::<Vec<_>>()
        });
        kernels.for_each(|kernel| self.images.start(kernel));
    }

    fn alone(&mut self, tuning: &MoeTuning) -> Result<Alone, MeasureError> {
        self.prepare(std::slice::from_ref(tuning));
        let options =
            BenchOptions { iterations: self.effort.iterations, rounds: 1, flush_l2: false, check: false };
        self.with_ready(std::slice::from_ref(tuning), |on, ready| {
            let graphs = &ready[0].graphs;
            let times = iterate(&on.world, &mut on.places, &[&graphs.dispatch, &graphs.combine], &options)?;
            let [dispatch, combine] = [0, 1].map(|n| Stats::of_ranks(&times[n]).0.median);
            Ok(Alone { dispatch, combine })
        })
    }

    fn check(&mut self, tuning: &MoeTuning) -> Result<(), MeasureError> {
        if !self.effort.check {
            return Ok(());
        }
        let case = self.case(tuning)?;
        let ran =
            MoeGpu::new(&case.problem, tuning, 1, &self.world, &self.images).and_then(|mut gpu| gpu.run(0));
        let ran = ran.map_err(|e| match e {
            GpuRunError::Moe(e) => MeasureError::Refused { variant: None, reason: e.to_string() },
            GpuRunError::Runtime(e) => self.refused(e, tuning),
        })?;
        let wrong = |variant: String, what| {
            Err(MeasureError::Refused { variant: Some(variant), reason: format!("wrong result: {what}") })
        };
        match (ran.wrong_dispatch, ran.errors.first_wrong) {
            (Some(what), _) => wrong(tuning.dispatch.variant_name(), what),
            (None, Some(what)) => wrong(tuning.combine.variant_name(), what),
            (None, None) => Ok(()),
        }
    }

    fn round_trips(&mut self, tunings: &[MoeTuning]) -> Result<Vec<Vec<f64>>, MeasureError> {
        let iterations = self.effort.run_off;
        self.with_ready(tunings, |on, ready| {
            let mut times = vec![vec![]; ready.len()];
            for iteration in 0..WARMUP + iterations {
                for turn in 0..ready.len() {
                    // Nobody always comes first.
                    let pair = (turn + iteration as usize) % ready.len();
                    let round = &ready[pair].graphs.round;
                    let taken = sample(&on.world, &mut on.places, &[round])?;
                    let slowest = taken[0].iter().max().copied().unwrap_or_default();
                    if iteration >= WARMUP {
                        times[pair].push(slowest.as_secs_f64() * 1e6);
                    }
                }
            }
            Ok(times)
        })
    }

    fn limit_us(&self, shape: &MoeShape) -> Option<f64> {
        let limits = Limits::of(self.world.members().iter().map(|m| m.gpu.info().name.as_str()))?;
        let problem = self.problem.as_ref().filter(|p| p.shape == *shape)?;
        let wire = Wire::of(shape, problem.routing(0), true);
        Some(limits.of_operation(What::RoundTrip, 1, &wire).us)
    }
}

/// The first line of an error: compilers say a lot.
fn short(text: &str) -> String {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

/// An image, or why there is none.
type Made = Arc<OnceLock<Result<KernelImage, String>>>;

/// Compiles kernels on threads of its own as soon as it is told of them, each once.
struct Compiling {
    images: Arc<dyn Images + Send + Sync>,
    target: Target,
    made: Mutex<HashMap<String, Made>>,
    threads: ThreadPool,
}

impl Compiling {
    fn new(images: Arc<dyn Images + Send + Sync>, target: Target) -> Result<Compiling, RuntimeError> {
        // One processor is left for the thread that measures.
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        let threads = ThreadPoolBuilder::new().num_threads(processors.saturating_sub(1).max(1)).build();
        let threads = threads.map_err(|e| {
            RuntimeError::invalid("compiler threads", processors, format!("as many as can be started: {e}"))
        })?;
        Ok(Compiling { images, target, made: Mutex::default(), threads })
    }

    fn place(&self, variant: &str) -> (Made, bool) {
        let mut made = self.made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let new = !made.contains_key(variant);
        (Arc::clone(made.entry(variant.to_owned()).or_default()), new)
    }

    /// Begins to compile a kernel, unless that was begun before.
    fn start(&self, variant: Variant) {
        let (place, new) = self.place(&variant.variant_name());
        if new {
            let (images, target) = (Arc::clone(&self.images), self.target);
            self.threads.spawn(move || {
                place.get_or_init(|| make(&*images, &*variant, target));
            });
        }
    }
}

fn make(images: &dyn Images, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, String> {
    images.image(variant, target).map_err(|e| match e {
        RuntimeError::Compile { log, .. } => log,
        other => other.to_string(),
    })
}

impl Images for Compiling {
    fn image(&self, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, RuntimeError> {
        if target != self.target {
            return self.images.image(variant, target);
        }
        let name = variant.variant_name();
        let (place, _) = self.place(&name);
        // Waits for a thread that is at it; what none has begun yet is made here.
        let made = place.get_or_init(|| make(&*self.images, variant, target));
        let refused = |log| RuntimeError::Compile { variant: name, arch: target.arch().into(), log };
        made.clone().map_err(refused)
    }
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
