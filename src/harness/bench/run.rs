//! Timing problems on GPUs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::limit::{Known, Limits};
use super::place::{Place, finish, sample};
use super::result::{Bench, CaseTimes, Check, Machine, Method, SCHEMA, Timing};
use super::stats::Stats;
use super::timed::Timed;
use crate::harness::session::GpuSession;
use crate::harness::workload::{Inputs, Metric, Problem, Work};
use crate::runtime::handles::Graph;
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// Iterations that do not count: clocks come up, and links and caches are as they will be.
const WARMUP: u32 = 3;

/// A problem to time, with its kernels; of its rounds the first.
#[derive(Clone, Debug)]
pub struct Case {
    /// The problem.
    pub problem: Arc<dyn Problem>,
}

/// How to time.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Iterations that count.
    pub iterations: u32,
    /// Rounds of the graph of many; none is made if there are no more than 1.
    pub rounds: u32,
    /// Whether to write more than any cache holds before each iteration.
    pub flush_l2: bool,
    /// Whether every problem is first run and compared with the reference.
    pub check: bool,
    /// The measured times and rates of this machine's parts, or why they were not measured. GPUs of known names need none.
    pub limits: Result<Limits, String>,
}

/// Why there are no times.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The GPUs, or a problem that cannot be put on them.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// What a kernel computes is not right, so that its times mean nothing.
    #[error("{variant}: {what}")]
    Wrong {
        /// The first kernel of the round.
        variant: String,
        /// What is wrong.
        what: String,
    },
}

/// Times all cases, one after the other. In a world of several processes all of them do so, and each gets all ranks'
/// times. `inputs` is what the cases' problems were made with, and `each` is called after each case.
///
/// # Errors
/// What a kernel computes is wrong, a wait expired, a driver's call failed, or the host is slower than GPUs can be kept busy.
pub fn run(
    cases: &[Case],
    options: &BenchOptions,
    inputs: &Inputs,
    world: &Arc<World>,
    images: &dyn Images,
    each: &mut dyn FnMut(),
) -> Result<Bench, BenchError> {
    let gpus = of_all(world, world.members().iter().map(|m| m.gpu.info().name.clone()).collect())?;
    let mut places = Place::all(world, options.flush_l2, images)?;
    let floor_us = floor(world, &mut places, options)?;
    let known = Known::of(&options.limits, &gpus);
    let (limits, no_limits) = (known.as_ref().ok().cloned(), known.err());
    let mut times = vec![];
    for case in cases {
        let problem = &case.problem;
        let check = if options.check { check(problem, world, images)? } else { Check::Skipped };
        let timed = time(&**problem, options, world, &mut places, images)?;
        times.push(reported(&**problem, check, timed, limits.as_ref().map(|known| &known.limits)));
        each();
    }
    Ok(Bench {
        schema: SCHEMA,
        machine: Machine {
            driver: world.members()[0].gpu.info().driver.clone(),
            gpus,
            sharing: format!("{:?}", world.sharing()).to_lowercase(),
            peerwarp: env!("CARGO_PKG_VERSION").into(),
        },
        method: Method {
            iterations: options.iterations,
            rounds: options.rounds,
            l2_flushed: options.flush_l2,
            given: inputs.given.clone(),
            seed: inputs.seed,
            process_per_rank: world.members().len() < world.ranks() as usize,
            sms_shared: world.shares_sms(),
            ranks_per_gpu: world.ranks_per_gpu(),
        },
        floor_us,
        limits,
        no_limits,
        cases: times,
        baselines: vec![],
    })
}

/// The time of a graph of one kernel that does next to nothing.
fn floor(world: &World, places: &mut [Place], options: &BenchOptions) -> Result<Stats, RuntimeError> {
    let graphs = places.iter().map(Place::idle_graph).collect::<Result<Vec<_>, _>>()?;
    let times = iterate(world, places, &[&graphs], options.iterations)?;
    Ok(Stats::of_ranks(&times[0]).0)
}

/// Runs a problem with the host looking at its results.
fn check(problem: &Arc<dyn Problem>, world: &Arc<World>, images: &dyn Images) -> Result<Check, BenchError> {
    let ran = GpuSession::new(Arc::clone(problem), world, images)?.run(0)?.verdict;
    let wrong = ran.first_wrong.clone().or_else(|| (!ran.ok()).then(|| "a wrong result".to_owned()));
    let own = world.members().iter().flat_map(|member| problem.expected(member.rank, 0));
    let exact = own.map(|expected| expected.tolerance.is_none()).reduce(|all, one| all && one);
    let found = Found { wrong, exact, max_abs_err: ran.max_abs_err };
    let all = world.gather(Ok(found))?;
    if let Some(what) = all.iter().find_map(|found| found.wrong.clone()) {
        let variant = problem.variants().into_iter().next().unwrap_or_default();
        return Err(BenchError::Wrong { variant, what });
    }
    let max_abs_err = all.iter().map(|found| found.max_abs_err).fold(0.0, f64::max);
    let exact = all.iter().filter_map(|found| found.exact).reduce(|all, one| all && one);
    Ok(exact.map_or(Check::NoReference, |exact| Check::Right { exact, max_abs_err }))
}

/// How the results of the ranks of a process compare.
#[derive(Serialize, Deserialize)]
struct Found {
    wrong: Option<String>,
    /// Whether all that was compared has to be right to the bit; none if there was nothing.
    exact: Option<bool>,
    max_abs_err: f64,
}

/// Microseconds, `[rank][iteration]`.
pub(crate) type Times = Vec<Vec<f64>>;

/// Times of something, in a graph of so many rounds.
struct Measured {
    metric: String,
    rounds: u32,
    work: Work,
    times: Times,
}

/// Takes one problem's times.
fn time(
    problem: &dyn Problem,
    options: &BenchOptions,
    world: &Arc<World>,
    places: &mut [Place],
    images: &dyn Images,
) -> Result<Vec<Measured>, RuntimeError> {
    let timed = Timed::new(problem, options.rounds, world, places, images)?;
    let measured = measure(problem, &timed, options, world, places);
    // Also after an error: nothing may run any more when graphs and operands go.
    let ended = finish(world, places);
    let measured = measured?;
    ended.map(|()| measured)
}

fn measure(
    problem: &dyn Problem,
    timed: &Timed,
    options: &BenchOptions,
    world: &World,
    places: &mut [Place],
) -> Result<Vec<Measured>, RuntimeError> {
    let metrics = problem.metrics();
    let round_work = metrics.iter().map(|m| m.work.clone()).reduce(|all, next| all.then(&next));
    let round_work = round_work.unwrap_or_default();
    let mut measured = vec![];
    if !metrics.is_empty() {
        // A metric belongs to those before it: all are timed in turn.
        let times = iterate(world, places, &timed.metrics(), options.iterations)?;
        let of = |(metric, times): (&Metric, Times)| Measured {
            metric: metric.name.clone(),
            rounds: 1,
            work: metric.work.clone(),
            times,
        };
        measured.extend(metrics.iter().zip(times).map(of));
    }
    let whole = (metrics.len() != 1).then(|| (1, timed.round()));
    for (rounds, graphs) in whole.into_iter().chain(timed.rounds().map(|graphs| (options.rounds, graphs))) {
        let mut times = iterate(world, places, &[graphs], options.iterations)?.swap_remove(0);
        times.iter_mut().flatten().for_each(|us| *us /= f64::from(rounds));
        measured.push(Measured { metric: problem.round_name(), rounds, work: round_work.clone(), times });
    }
    Ok(measured)
}

/// What is reported of a problem.
fn reported(
    problem: &dyn Problem,
    check: Check,
    measured: Vec<Measured>,
    limits: Option<&Limits>,
) -> CaseTimes {
    let known = measured.iter().filter(|m| !m.work.bytes.is_empty());
    let wire = known.map(|m| (m.metric.clone(), m.work.by_rank())).collect();
    let timing = |m: Measured| {
        let (us, rank_spread_us) = Stats::of_ranks(&m.times);
        let bytes = (!m.work.bytes.is_empty()).then(|| m.work.busiest());
        let gbps = bytes.map(|bytes| bytes as f64 / us.median / 1e3);
        let limit = limits.and_then(|l| l.of_work(&m.work, m.rounds));
        Timing { metric: m.metric, rounds: m.rounds, us, rank_spread_us, bytes, gbps, limit }
    };
    CaseTimes {
        title: problem.title(),
        short_title: problem.short_title(),
        key: key(problem),
        facts: problem.facts().into_iter().collect(),
        per_rank: problem.per_rank().into_iter().collect(),
        variants: problem.variants(),
        check,
        wire,
        times: measured.into_iter().map(timing).collect(),
    }
}

/// Key fields of the first kernel.
fn key(problem: &dyn Problem) -> BTreeMap<String, serde_json::Value> {
    let Some(launch) = problem.launches().first() else { return BTreeMap::new() };
    launch.variant.key().into_iter().collect()
}

/// What all ranks have, in their order, from what those of this process have.
fn of_all<T>(world: &World, here: Vec<T>) -> Result<Vec<T>, RuntimeError>
where
    T: Serialize + DeserializeOwned,
{
    Ok(world.gather(Ok(here))?.into_iter().flatten().collect())
}

/// Launches `steps`, `[graph][rank of this process]`, in turn, over and over, each started by all ranks at once: the times of
/// each, on all ranks.
///
/// # Errors
/// A wait expired, a driver's call failed, or the host is slower than GPUs can be kept busy.
pub(crate) fn iterate(
    world: &World,
    places: &mut [Place],
    steps: &[&[Graph]],
    iterations: u32,
) -> Result<Vec<Times>, RuntimeError> {
    let mut times = vec![vec![vec![]; places.len()]; steps.len()];
    for iteration in 0..WARMUP + iterations {
        let taken = sample(world, places, steps)?;
        if iteration >= WARMUP {
            for (all, taken) in times.iter_mut().zip(taken) {
                all.iter_mut().zip(taken).for_each(|(rank, time)| rank.push(time.as_secs_f64() * 1e6));
            }
        }
    }
    times.into_iter().map(|here| of_all(world, here)).collect()
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod tests;
