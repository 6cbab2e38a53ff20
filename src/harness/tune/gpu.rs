//! Measuring on the GPUs of this machine, as `bench` does.

use std::sync::Arc;

use super::compile::Compiling;
use super::components::Candidate;
use super::measure::{Measure, MeasureError, Task};
use crate::harness::bench::place::{Place, finish, sample};
use crate::harness::bench::run::iterate;
use crate::harness::bench::timed::{Operands, Timed};
use crate::harness::bench::{Limits, Stats};
use crate::harness::session::GpuSession;
use crate::harness::workload::{Inputs, Problem, WorkloadError};
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// How often things are measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Iterations of each component by itself.
    pub iterations: u32,
    /// Iterations of the run-off.
    pub run_off: u32,
    /// Whether candidates are compared with the reference before they may win.
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
    task: Option<OfTask>,
}

/// What all candidates of a task are measured with.
struct OfTask {
    task: Task,
    /// The problem of the first candidate: others may share what it has computed.
    first: Option<Arc<dyn Problem>>,
    /// What the caller passes: the same for all candidates that have the same buffers. Those of the last one.
    operands: Option<Arc<Operands>>,
}

impl OfTask {
    fn problem(&self, candidate: &Candidate, seed: u64) -> Result<Arc<dyn Problem>, WorkloadError> {
        let inputs = Inputs { seed, rounds: 1, ragged: false, given: self.task.given.clone() };
        let (suite, variants) = (self.task.suite, candidate.variants());
        let problem: Arc<dyn Problem> = match &self.first {
            Some(first) => suite.problem_like(&**first, variants, &inputs)?.into(),
            None => suite.problem(variants, &inputs)?.into(),
        };
        let (metrics, components) = (problem.metrics().len(), candidate.len());
        match metrics == components {
            true => Ok(problem),
            false => {
                let problem = format!("{} has {metrics} metrics and {components} components", suite.name());
                Err(WorkloadError::Kernel(format!("{problem}: each component needs a metric of its own")))
            }
        }
    }
}

impl OnGpus {
    /// Measures in this world with kernels from `images`; inputs are from `seed`.
    ///
    /// # Errors
    /// The GPUs, or threads cannot be started.
    pub fn new(
        world: &Arc<World>,
        images: Arc<dyn Images + Send + Sync>,
        effort: Effort,
        seed: u64,
    ) -> Result<OnGpus, RuntimeError> {
        let images = Compiling::new(images, world.members()[0].gpu.info().target)?;
        let places = Place::all(world, false, &images)?;
        Ok(OnGpus { places, world: Arc::clone(world), images, effort, seed, task: None })
    }

    /// The problem of a candidate.
    fn problem(&mut self, candidate: &Candidate) -> Result<Arc<dyn Problem>, MeasureError> {
        let Some(of) = &mut self.task else {
            return Err(RuntimeError::invalid("task", "", "one that was started").into());
        };
        let problem = match of.problem(candidate, self.seed) {
            Ok(problem) => problem,
            Err(WorkloadError::Runtime(e)) => return Err(self.refused(e, candidate)),
            Err(e) => return Err(MeasureError::Refused { variant: None, reason: short(&e.to_string()) }),
        };
        if of.first.is_none() {
            of.first = Some(Arc::clone(&problem));
            if self.effort.check {
                // Of much work a reference takes as long as a search: it is computed meanwhile, for all who share it.
                let problem = Arc::clone(&problem);
                self.images.spawn(move || drop(problem.expected(0, 0)));
            }
        }
        Ok(problem)
    }

    fn timed(&mut self, candidate: &Candidate) -> Result<Timed, MeasureError> {
        let problem = self.problem(candidate)?;
        let timed = self.operands(&*problem).and_then(|operands| {
            let (world, places) = (&self.world, &self.places);
            Timed::with_operands(&*problem, &operands, 1, world, places, &self.images)
        });
        timed.map_err(|e| self.refused(e, candidate))
    }

    /// What the caller passes to candidates of the task, made anew where one has other buffers than the last.
    fn operands(&mut self, problem: &dyn Problem) -> Result<Arc<Operands>, RuntimeError> {
        if let Some(known) = self.task.as_ref().and_then(|of| of.operands.clone())
            && known.fit(problem)?
        {
            return Ok(known);
        }
        let operands = Arc::new(Operands::new(problem, &self.world)?);
        if let Some(of) = &mut self.task {
            of.operands = Some(Arc::clone(&operands));
        }
        Ok(operands)
    }

    /// Sorts errors into those of a candidate and those of the machine, which is made usable again.
    fn refused(&mut self, error: RuntimeError, candidate: &Candidate) -> MeasureError {
        let reason = short(&error.to_string());
        let variant = match &error {
            RuntimeError::Compile { variant, .. } => Some(variant.clone()),
            RuntimeError::NotResident { kernel, .. }
            | RuntimeError::NotResidentTogether { kernel, .. }
            | RuntimeError::NoMulticast { kernel, .. } => Some(kernel.clone()),
            RuntimeError::Aborted(aborted) => aborted.wait.as_ref().map(|wait| wait.kernel.clone()),
            RuntimeError::Argument { .. } | RuntimeError::Emit(_) => None,
            _ => return MeasureError::Machine(error),
        };
        if let RuntimeError::Aborted(_) = error
            && let Err(e) = self.mend()
        {
            return MeasureError::Machine(e);
        }
        MeasureError::Refused { variant: variant.filter(|v| candidate.has(v)), reason }
    }

    /// After an expired wait: the kernels that start iterations have stopped in the middle too, and are made anew.
    fn mend(&mut self) -> Result<(), RuntimeError> {
        self.world.reset()?;
        self.places = Place::all(&self.world, false, &self.images)?;
        Ok(())
    }

    /// What `times` yields with the candidates loaded. Nothing of it runs any more afterwards.
    fn with_timed<T>(
        &mut self,
        candidates: &[Candidate],
        times: impl FnOnce(&mut OnGpus, &[Timed]) -> Result<T, RuntimeError>,
    ) -> Result<T, MeasureError> {
        let timed = candidates.iter().map(|c| self.timed(c)).collect::<Result<Vec<_>, _>>()?;
        let times = times(self, &timed);
        // Also after an error: nothing may run any more when graphs and inputs go.
        let ended = finish(&self.world, &self.places);
        drop(timed);
        let failed = |e| self.refused(e, &candidates[0]);
        times.and_then(|times| ended.map(|()| times)).map_err(failed)
    }

    fn first(&self) -> Option<&Arc<dyn Problem>> {
        self.task.as_ref().and_then(|of| of.first.as_ref())
    }
}

impl Measure for OnGpus {
    fn start(&mut self, task: &Task) {
        self.task = Some(OfTask { task: task.clone(), first: None, operands: None });
    }

    fn prepare(&mut self, candidates: &[Candidate]) {
        let variants = candidates.iter().flat_map(Candidate::variants);
        variants.for_each(|variant| self.images.start(variant.clone()));
    }

    fn precompile(&mut self, candidates: &[Candidate]) {
        let variants = candidates.iter().flat_map(Candidate::variants);
        let variants = variants.take_while(|_| self.images.is_idle());
        variants.for_each(|variant| self.images.start(variant.clone()));
    }

    fn components(&mut self, candidate: &Candidate) -> Result<Vec<f64>, MeasureError> {
        self.prepare(std::slice::from_ref(candidate));
        let iterations = self.effort.iterations;
        self.with_timed(std::slice::from_ref(candidate), |on, timed| {
            let times = iterate(&on.world, &mut on.places, &timed[0].metrics(), iterations)?;
            Ok(times.iter().map(|of_ranks| Stats::of_ranks(of_ranks).0.median).collect())
        })
    }

    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureError> {
        if !self.effort.check {
            return Ok(());
        }
        let problem = self.problem(candidate)?;
        let session = GpuSession::new(problem, &self.world, &self.images);
        let ran = session.and_then(|mut session| session.run(0));
        let ran = ran.map_err(|e| self.refused(e, candidate))?;
        match ran.verdict.first_wrong {
            None => Ok(()),
            Some(what) => {
                Err(MeasureError::Refused { variant: None, reason: format!("wrong result: {what}") })
            }
        }
    }

    fn rounds(&mut self, candidates: &[Candidate]) -> Result<Vec<Vec<f64>>, MeasureError> {
        let iterations = self.effort.run_off;
        self.with_timed(candidates, |on, timed| {
            let mut times = vec![vec![]; timed.len()];
            for iteration in 0..WARMUP + iterations {
                for turn in 0..timed.len() {
                    // No variant always comes first.
                    let candidate = (turn + iteration as usize) % timed.len();
                    let taken = sample(&on.world, &mut on.places, &[timed[candidate].round()])?;
                    let slowest = taken[0].iter().max().copied().unwrap_or_default();
                    if iteration >= WARMUP {
                        times[candidate].push(slowest.as_secs_f64() * 1e6);
                    }
                }
            }
            Ok(times)
        })
    }

    fn metrics(&self) -> Vec<String> {
        self.first().map_or_else(Vec::new, |problem| problem.metrics().into_iter().map(|m| m.name).collect())
    }

    fn limit_us(&self) -> Option<f64> {
        let alike = || Limits::of(self.world.members().iter().map(|m| m.gpu.info().name.as_str()));
        let limits = self.task.as_ref().and_then(|of| of.task.limits).or_else(alike)?;
        let metrics = self.first()?.metrics();
        let round = metrics.into_iter().map(|m| m.work).reduce(|all, next| all.then(&next))?;
        limits.of_work(&round, 1).map(|limit| limit.us)
    }
}

/// The first line of an error: compilers say a lot.
fn short(text: &str) -> String {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
