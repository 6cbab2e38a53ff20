//! Measuring on the GPUs of this machine, as `bench` does.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};

use peerwarp_codegen::family::{DynConfig, Family, Target, Variant};
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::key::Key;
use super::measure::{Alone, Measure, MeasureError};
use super::pairs::{Inputs, Ready};
use crate::families::moe::run::{GpuRunError, MoeGpu, MoeTuning, Round, Way};
use crate::families::moe::{MoeProblem, MoeShape, work};
use crate::harness::bench::place::{Place, finish, sample};
use crate::harness::bench::run::iterate;
use crate::harness::bench::{Limits, Stats};
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
    of_key: Option<OfKey>,
}

/// What all pairs of a key are measured with.
struct OfKey {
    key: Key,
    problem: MoeProblem,
    inputs: Arc<Vec<Inputs>>,
    /// What the reference says of pairs that go the same way.
    rounds: Vec<(Way, Reference)>,
}

/// A round with the reference's results, once it is computed.
type Reference = Arc<OnceLock<Arc<Vec<Round>>>>;

impl OfKey {
    /// Every rank has as many tokens as it may.
    fn new(key: Key, seed: u64, world: &World) -> Result<OfKey, RuntimeError> {
        let tokens = vec![key.shape.tokens; key.shape.ranks as usize];
        let problem = MoeProblem::uniform(key.shape, &tokens, seed);
        let problem = problem.map_err(|e| RuntimeError::invalid("shape", e, "one that has a problem"))?;
        let inputs = Inputs::all(&problem, key.layout, world)?;
        Ok(OfKey { key, problem, inputs, rounds: vec![] })
    }

    /// Begins to compute what the reference says of pairs that go this way: of many tokens it takes as long as a search.
    fn start(&mut self, way: Way, threads: &ThreadPool) {
        let (reference, problem) = (Reference::default(), self.problem.clone());
        self.rounds.push((way, Arc::clone(&reference)));
        threads.spawn(move || {
            reference.get_or_init(|| Arc::new(vec![Round::new(&problem, way, 0)]));
        });
    }

    /// What the reference says of pairs that go this way.
    fn rounds(&mut self, way: Way) -> Arc<Vec<Round>> {
        let known = |way: Way| self.rounds.iter().find(|(of, _)| *of == way).map(|(_, r)| Arc::clone(r));
        if let Some(reference) = known(way) {
            // Waits for a thread that is at it; what none has begun yet is made here.
            return Arc::clone(reference.get_or_init(|| Arc::new(vec![Round::new(&self.problem, way, 0)])));
        }
        // Where rows arrive makes no difference to what they are.
        let elsewhere = known(Way { in_place: !way.in_place, ..way });
        let round = match elsewhere.as_ref().and_then(|reference| reference.get()) {
            Some(rounds) => Round { way, ..rounds[0].clone() },
            None => Round::new(&self.problem, way, 0),
        };
        let rounds = Arc::new(vec![round]);
        self.rounds.push((way, Arc::new(OnceLock::from(Arc::clone(&rounds)))));
        rounds
    }
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
        Ok(OnGpus { places, world: Arc::clone(world), images, effort, seed, of_key: None })
    }

    /// What a pair is measured with: that of the pair before, if it is of the same key.
    fn of_key(&mut self, tuning: &MoeTuning) -> Result<&mut OfKey, MeasureError> {
        let key = Key::of(&tuning.dispatch);
        // What is no longer needed goes first.
        let of_key = match self.of_key.take().filter(|of| of.key == key) {
            Some(of_key) => of_key,
            None => {
                let new = OfKey::new(key, self.seed, &self.world);
                let mut new = new.map_err(|e| self.refused(e, tuning))?;
                if self.effort.check {
                    // The first pair is the default, which is checked in the end, and others go its way.
                    new.start(tuning.way(), &self.images.threads);
                }
                new
            }
        };
        Ok(self.of_key.insert(of_key))
    }

    fn ready(&mut self, tuning: &MoeTuning) -> Result<Ready, MeasureError> {
        let of_key = self.of_key(tuning)?;
        let inputs = Arc::clone(&of_key.inputs);
        let ready = Ready::new(tuning, &inputs, &self.world, &self.places, &self.images);
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
        kernels(tunings).for_each(|kernel| self.images.start(kernel));
    }

    fn foresee(&mut self, tunings: &[MoeTuning]) {
        kernels(tunings).take_while(|_| self.images.is_idle()).for_each(|kernel| self.images.start(kernel));
    }

    fn alone(&mut self, tuning: &MoeTuning) -> Result<Alone, MeasureError> {
        self.prepare(std::slice::from_ref(tuning));
        let iterations = self.effort.iterations;
        self.with_ready(std::slice::from_ref(tuning), |on, ready| {
            let graphs = &ready[0].graphs;
            let times = iterate(&on.world, &mut on.places, &[&graphs.dispatch, &graphs.combine], iterations)?;
            let [dispatch, combine] = [0, 1].map(|n| Stats::of_ranks(&times[n]).0.median);
            Ok(Alone { dispatch, combine })
        })
    }

    fn check(&mut self, tuning: &MoeTuning) -> Result<(), MeasureError> {
        if !self.effort.check {
            return Ok(());
        }
        let rounds = self.of_key(tuning)?.rounds(tuning.way());
        let ran = MoeGpu::of_rounds(rounds, tuning, &self.world, &self.images).and_then(|mut gpu| gpu.run(0));
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
        let problem = self.of_key.as_ref().map(|of| &of.problem).filter(|p| p.shape == *shape)?;
        let [there, back] =
            [work::of_dispatch, work::of_combine].map(|of| of(shape, problem.routing(0), true));
        Some(limits.of_work(&there.then(&back), 1)?.us)
    }
}

/// What is to be compiled for these pairs.
fn kernels(tunings: &[MoeTuning]) -> impl Iterator<Item = Variant> {
    tunings.iter().flat_map(|t| {
        let dispatch = t.dispatch_launches().into_iter().map(Family::into_variant);
        dispatch.chain(t.combine_launches().into_iter().map(Family::into_variant)).collect::<Vec<_>>()
    })
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
    /// Kernels that were begun and are not done.
    under_way: Arc<AtomicUsize>,
    at_work: Arc<AtWork>,
    threads: ThreadPool,
}

impl Compiling {
    fn new(images: Arc<dyn Images + Send + Sync>, target: Target) -> Result<Compiling, RuntimeError> {
        // One processor is left for the thread that measures.
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        Compiling::on_threads(processors.saturating_sub(1).max(1), images, target)
    }

    fn on_threads(
        number: usize,
        images: Arc<dyn Images + Send + Sync>,
        target: Target,
    ) -> Result<Compiling, RuntimeError> {
        let threads = ThreadPoolBuilder::new().num_threads(number).build().map_err(|e| {
            RuntimeError::invalid("compiler threads", number, format!("as many as can be started: {e}"))
        })?;
        Ok(Compiling {
            images,
            target,
            made: Mutex::default(),
            under_way: Arc::default(),
            at_work: Arc::default(),
            threads,
        })
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
            let (images, target, under_way) =
                (Arc::clone(&self.images), self.target, Arc::clone(&self.under_way));
            let at_work = Arc::clone(&self.at_work);
            under_way.fetch_add(1, Ordering::Relaxed);
            self.threads.spawn(move || {
                at_work.unless_over(|| {
                    place.get_or_init(|| make(&*images, &*variant, target));
                });
                under_way.fetch_sub(1, Ordering::Relaxed);
            });
        }
    }

    /// Whether half of the threads or more have nothing to do: the others are left for what is certain to be needed.
    fn is_idle(&self) -> bool {
        2 * (self.under_way.load(Ordering::Relaxed) + 1) <= self.threads.current_num_threads()
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.at_work.end();
    }
}

/// Work of threads that nobody waits for, except at the end: a process that ends while the compiler's library is at work
/// crashes in it.
#[derive(Default)]
struct AtWork {
    /// How many are at work; none begins any more once it is over.
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl AtWork {
    fn state(&self) -> MutexGuard<'_, (usize, bool)> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn unless_over(&self, work: impl FnOnce()) {
        let mut state = self.state();
        if state.1 {
            return;
        }
        state.0 += 1;
        drop(state);
        work();
        self.state().0 -= 1;
        self.changed.notify_all();
    }

    /// Waits for those that are at work; those that have not begun do nothing.
    fn end(&self) {
        let mut state = self.state();
        state.1 = true;
        while state.0 > 0 {
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

fn make(images: &dyn Images, variant: &dyn DynConfig, target: Target) -> Result<KernelImage, String> {
    images.image(variant, target).map_err(|e| match e {
        RuntimeError::Compile { log, .. } => log,
        other => other.to_string(),
    })
}

// SAFETY: another one's images, as they are.
unsafe impl Images for Compiling {
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
