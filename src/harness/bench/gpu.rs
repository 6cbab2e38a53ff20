//! Timing on GPUs.

use std::sync::Arc;

use peerwarp_codegen::family::Family;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::inputs::Inputs;
use super::limit::Limits;
use super::place::{Place, finish, sample};
use super::result::{Bench, CaseTimes, Machine, Method, Timing, What};
use super::stats::Stats;
use super::wire::Wire;
use crate::families::moe::run::{GpuRunError, MoeGpu, MoeTuning};
use crate::families::moe::{MoeAllToAll, MoeRank};
use crate::families::moe::{MoeError, MoeProblem};
use crate::runtime::handles::Graph;
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// Iterations that do not count: clocks come up, and links and caches are as they will be.
const WARMUP: u32 = 3;

/// A problem to time, and what with.
#[derive(Clone, Debug)]
pub struct Case {
    /// The problem; the routing of its first round is used.
    pub problem: MoeProblem,
    /// The kernels.
    pub tuning: MoeTuning,
}

/// How to time.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// Iterations that count.
    pub iterations: u32,
    /// Rounds of the graph of many.
    pub rounds: u32,
    /// Whether to write more than any cache holds before each iteration.
    pub flush_l2: bool,
    /// Whether every problem is first run once and compared with the reference.
    pub check: bool,
}

/// Why there are no times.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A problem, or what it is run with.
    #[error(transparent)]
    Moe(#[from] MoeError),
    /// The GPUs.
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

impl From<GpuRunError> for BenchError {
    fn from(error: GpuRunError) -> BenchError {
        match error {
            GpuRunError::Moe(e) => BenchError::Moe(e),
            GpuRunError::Runtime(e) => BenchError::Runtime(e),
        }
    }
}

/// Times all cases, one after the other. In a world of several processes all of them do so, and each gets all ranks'
/// times. `routing` says in words where the cases' routing comes from, and `each` is called after each case.
pub fn run(
    cases: &[Case],
    options: &BenchOptions,
    routing: &str,
    world: &Arc<World>,
    images: &dyn Images,
    each: &mut dyn FnMut(),
) -> Result<Bench, BenchError> {
    let gpus = of_all(world, world.members().iter().map(|m| m.gpu.info().name.clone()).collect())?;
    let mut places = Place::all(world, options.flush_l2, images)?;
    let floor_us = floor(world, &mut places, options)?;
    let mut times = vec![];
    for case in cases {
        times.push(time(case, options, world, (&gpus, &mut places), images)?);
        each();
    }
    Ok(Bench {
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
            routing: routing.to_owned(),
            seed: cases.first().map_or(0, |c| c.problem.seed),
            checked: options.check,
            process_per_rank: world.members().len() < world.ranks() as usize,
            multiprocessors_shared: world.shares_multiprocessors(),
        },
        floor_us,
        cases: times,
        peers: vec![],
    })
}

/// The time of a graph of one kernel that does next to nothing.
fn floor(world: &World, places: &mut [Place], options: &BenchOptions) -> Result<Stats, RuntimeError> {
    let graphs = places.iter().map(Place::idle_graph).collect::<Result<Vec<_>, _>>()?;
    let times = iterate(world, places, &[&graphs], options)?;
    Ok(Stats::of_ranks(&times[0]).0)
}

/// Takes one case's times.
fn time(
    case: &Case,
    options: &BenchOptions,
    world: &Arc<World>,
    (gpus, places): (&[String], &mut [Place]),
    images: &dyn Images,
) -> Result<CaseTimes, BenchError> {
    case.problem.check()?;
    case.tuning.check(&case.problem.shape)?;
    if options.check {
        check(case, world, images)?;
    }
    let (shape, routing) = (case.problem.shape, case.problem.routing(0));
    let inputs = Inputs::all(&case.problem, case.tuning.dispatch.layout, world)?;
    let ready = Ready::new(case, options.rounds, &inputs, world, places, images)?;
    let timed = measure(world, places, &ready.graphs, options);
    // Also after an error: nothing may run any more when graphs and inputs go.
    let ended = finish(world, places);
    let timed = timed?;
    ended?;

    let dedup = case.tuning.dispatch.dedup;
    let (wire, least) = (Wire::of(&shape, routing, dedup), Wire::of(&shape, routing, true));
    let limits = Limits::of(gpus.iter().map(String::as_str));
    let timing = |(what, ranks): (What, Times)| {
        let (us, rank_spread_us) = Stats::of_ranks(&ranks);
        let bytes = wire.busiest(what);
        let limit = limits.map(|l| l.of_operation(what, options.rounds, &least));
        Timing { what, us, rank_spread_us, gbps: bytes as f64 / us.median / 1e3, limit }
    };
    let times = timed.into_iter().map(timing).collect();
    let dispatch = case.tuning.dispatch_launches();
    let combine = case.tuning.combine_launches();
    let variants = dispatch.iter().map(Family::variant_name).chain(combine.iter().map(Family::variant_name));
    let variants = variants.chain(case.tuning.round_trip.iter().map(Family::variant_name));
    let (variants, tokens_per_rank) = (variants.collect(), routing.tokens_per_rank(shape.topk));
    Ok(CaseTimes { shape, tokens_per_rank, variants, wire, times })
}

/// A case's graphs, and what they use: it goes after them.
pub(crate) struct Ready {
    pub graphs: Graphs,
    _inputs: Arc<Vec<Inputs>>,
    _op: MoeAllToAll,
}

impl Ready {
    /// Loads a case, with inputs of its problem and layout; one of its graphs has `rounds` rounds.
    pub fn new(
        case: &Case,
        rounds: u32,
        inputs: &Arc<Vec<Inputs>>,
        world: &Arc<World>,
        places: &[Place],
        images: &dyn Images,
    ) -> Result<Ready, RuntimeError> {
        let mut op = MoeAllToAll::new(world, &case.tuning, images)?;
        let fused = case.tuning.round_trip.is_some();
        let graphs = world.agree(graphs(places, op.ranks_mut(), inputs, rounds, fused))?;
        Ok(Ready { graphs, _inputs: Arc::clone(inputs), _op: op })
    }
}

/// Runs a case once with the host looking at every step.
fn check(case: &Case, world: &Arc<World>, images: &dyn Images) -> Result<(), BenchError> {
    let ran = MoeGpu::new(&case.problem, &case.tuning, 1, world, images)?.run(0)?;
    let wrong = world.gather(Ok(ran.wrong_dispatch.or(ran.errors.first_wrong)))?;
    match wrong.into_iter().flatten().next() {
        None => Ok(()),
        Some(what) => {
            Err(BenchError::Wrong { variant: ran.variants.into_iter().next().unwrap_or_default(), what })
        }
    }
}

/// Microseconds, `[rank][iteration]`.
pub(crate) type Times = Vec<Vec<f64>>;

/// What is launched on each rank, by operation: nothing for one that a case does not have.
#[derive(Default)]
pub(crate) struct Graphs {
    pub dispatch: Vec<Graph>,
    pub combine: Vec<Graph>,
    pub round: Vec<Graph>,
    rounds: Vec<Graph>,
    fused: Vec<Graph>,
    fused_rounds: Vec<Graph>,
}

fn graphs(
    places: &[Place],
    ranks: &mut [MoeRank],
    inputs: &[Inputs],
    rounds: u32,
    fused: bool,
) -> Result<Graphs, RuntimeError> {
    let mut graphs = Graphs::default();
    for ((place, rank), io) in places.iter().zip(ranks).zip(inputs) {
        let stream = place.stream();
        let mut routed = None;
        // SAFETY: the buffers are of this GPU, as large as the problem demands, and outlive the graphs.
        graphs.dispatch.push(stream.capture(|| {
            routed = Some(unsafe { rank.dispatch_raw(&io.tokens(), stream.raw())? });
            Ok(())
        })?);
        graphs.combine.push(stream.capture(|| match routed {
            // SAFETY: as above.
            Some(routed) => unsafe { rank.combine_raw(routed, io.y(), io.out(), stream.raw()) },
            None => Ok(()),
        })?);
        let mut of = |rounds| {
            stream.capture(|| {
                for _ in 0..rounds {
                    // SAFETY: as above.
                    unsafe {
                        let routed = rank.dispatch_raw(&io.tokens(), stream.raw())?;
                        rank.combine_raw(routed, io.y(), io.out(), stream.raw())?;
                    }
                }
                Ok(())
            })
        };
        graphs.round.push(of(1)?);
        graphs.rounds.push(of(rounds)?);
        let mut fused_of = |rounds| {
            stream.capture(|| {
                // SAFETY: as above.
                (0..rounds)
                    .try_for_each(|_| unsafe { rank.round_trip_raw(&io.tokens(), io.out(), stream.raw()) })
            })
        };
        if fused {
            graphs.fused.push(fused_of(1)?);
            graphs.fused_rounds.push(fused_of(rounds)?);
        }
    }
    Ok(graphs)
}

/// Times of each operation.
fn measure(
    world: &World,
    places: &mut [Place],
    graphs: &Graphs,
    options: &BenchOptions,
) -> Result<Vec<(What, Times)>, RuntimeError> {
    // A combine belongs to the dispatch before it: the two are timed in turn.
    let [dispatch, combine] = two(iterate(world, places, &[&graphs.dispatch, &graphs.combine], options)?);
    let mut times = vec![(What::Dispatch, dispatch), (What::Combine, combine)];
    let rest = [
        (What::RoundTrip, &graphs.round),
        (What::RoundTripOfMany, &graphs.rounds),
        (What::FusedRoundTrip, &graphs.fused),
        (What::FusedRoundTripOfMany, &graphs.fused_rounds),
    ];
    for (what, graphs) in rest.into_iter().filter(|(_, graphs)| !graphs.is_empty()) {
        let mut taken = iterate(world, places, &[graphs], options)?.swap_remove(0);
        let number = if what.is_of_many() { f64::from(options.rounds) } else { 1.0 };
        taken.iter_mut().flatten().for_each(|us| *us /= number);
        times.push((what, taken));
    }
    Ok(times)
}

fn two<T: Default>(all: Vec<T>) -> [T; 2] {
    let mut all = all.into_iter();
    [all.next().unwrap_or_default(), all.next().unwrap_or_default()]
}

/// What all ranks have, in their order, from what those of this process have.
fn of_all<T>(world: &World, here: Vec<T>) -> Result<Vec<T>, RuntimeError>
where
    T: Serialize + DeserializeOwned,
{
    Ok(world.gather(Ok(here))?.into_iter().flatten().collect())
}

/// Launches `steps` in turn, over and over, each started by all ranks at once: the times of each, on all ranks.
pub(crate) fn iterate(
    world: &World,
    places: &mut [Place],
    steps: &[&[Graph]],
    options: &BenchOptions,
) -> Result<Vec<Times>, RuntimeError> {
    let mut times = vec![vec![vec![]; places.len()]; steps.len()];
    for iteration in 0..WARMUP + options.iterations {
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
#[path = "gpu_tests.rs"]
mod tests;
