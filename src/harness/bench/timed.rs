//! A problem that is ready to be timed: its data on the GPUs, and its launches as graphs.

use std::ops::Range;
use std::sync::Arc;

use peerwarp_codegen::dsl::Binding;
use peerwarp_codegen::ir::Dtype;
use peerwarp_codegen::threads;
use rayon::prelude::*;

use super::place::Place;
use crate::harness::session::{Windows, pass};
use crate::harness::workload::{Metric, Problem, RankMemory};
use crate::runtime::gpu::{DevicePtr, RawStream};
use crate::runtime::handles::{Buffer, Graph};
use crate::runtime::image::Images;
use crate::runtime::op::{BufferSpec, Operation, RankOp};
use crate::runtime::{Member, RuntimeError, World};

/// What fills operands that no caller writes: finite and not zero as any float, which links and memory may move faster.
const FILLER: u8 = 0x3c;

/// What a caller passes to a problem's launches, on each rank of this process.
#[derive(Debug)]
pub(crate) struct Operands {
    /// The buffers that they were made for.
    specs: Vec<BufferSpec>,
    ranks: Vec<RankOperands>,
}

#[derive(Debug)]
struct RankOperands {
    rank: u32,
    buffers: Vec<(String, Buffer)>,
}

impl Operands {
    /// Allocates them, and writes [`Problem::timing_inputs`]. All processes of the world do so.
    ///
    /// # Errors
    /// Memory runs out, or the inputs do not fit the operands.
    pub fn new(problem: &dyn Problem, world: &World) -> Result<Operands, RuntimeError> {
        let specs = passed(problem)?;
        let windows = Windows::new(world, &specs, |_| 1)?;
        let members = world.members().par_iter().enumerate();
        let ranks =
            members.map(|(index, member)| RankOperands::new(&specs, problem, (index, member), &windows));
        let ranks = world.agree(threads::pool().map_err(Into::into).and_then(|()| ranks.collect()))?;
        Ok(Operands { ranks, specs })
    }

    /// Whether another problem for the same key and inputs takes them as they are.
    ///
    /// # Errors
    /// The problem's launches do not go together.
    pub fn fit(&self, problem: &dyn Problem) -> Result<bool, RuntimeError> {
        Ok(passed(problem)? == self.specs)
    }

    /// The addresses of a rank of this process, in the order in which the operation takes them.
    fn addresses(&self, member: usize, rank: &RankOp) -> Result<Vec<DevicePtr>, RuntimeError> {
        let own = &self.ranks[member];
        let of = |o: &BufferSpec| match own.buffer(&o.name).filter(|b| b.bytes() >= o.param.bytes()) {
            Some(buffer) => Ok(buffer.ptr()),
            None => {
                let allowed = format!("{} bytes or more on rank {}", o.param.bytes(), own.rank);
                let found = own.buffer(&o.name).map_or(0, Buffer::bytes);
                Err(RuntimeError::invalid(format!("operand {}", o.name), format!("{found} bytes"), allowed))
            }
        };
        rank.operands().iter().map(of).collect()
    }
}

/// The buffers that a caller passes.
fn passed(problem: &dyn Problem) -> Result<Vec<BufferSpec>, RuntimeError> {
    Ok(problem.buffers()?.into_iter().filter(|b| b.binding != Binding::State).collect())
}

impl RankOperands {
    fn new(
        specs: &[BufferSpec],
        problem: &dyn Problem,
        (index, member): (usize, &Member),
        windows: &Windows,
    ) -> Result<RankOperands, RuntimeError> {
        let buffer = |spec: &BufferSpec| {
            let buffer = match windows.part(&spec.name, 0, index) {
                Some(part) => part,
                None => Buffer::new(&member.gpu, spec.param.bytes())?,
            };
            buffer.fill(filler(spec), RawStream::DEFAULT)?;
            Ok((spec.name.clone(), buffer))
        };
        let buffers = specs.iter().map(buffer).collect::<Result<_, RuntimeError>>()?;
        member.gpu.synchronize()?;
        let mut own = RankOperands { rank: member.rank, buffers };
        let written = problem.timing_inputs(member.rank).iter().try_for_each(|c| c.write(&mut own));
        written.map_err(|e| RuntimeError::invalid("inputs", e, "what fits the operands"))?;
        Ok(own)
    }

    fn buffer(&self, name: &str) -> Option<&Buffer> {
        self.buffers.iter().find(|(own, _)| own == name).map(|(_, buffer)| buffer)
    }

    fn known(&self, name: &str) -> Result<&Buffer, String> {
        let known = || self.buffers.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        self.buffer(name).ok_or_else(|| format!("{name} is no operand, which are {}", known()))
    }
}

/// What a buffer holds that no caller writes: integers may be indices, and 0 is one everywhere.
fn filler(spec: &BufferSpec) -> u8 {
    match (spec.binding, spec.param.dtype) {
        (Binding::Input | Binding::InOut, Dtype::Bf16 | Dtype::Fp16 | Dtype::Fp8 | Dtype::F32) => FILLER,
        _ => 0,
    }
}

impl RankMemory for RankOperands {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn read(&mut self, buffer: &str, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
        self.known(buffer)?.read(at, bytes).map_err(|e| e.to_string())
    }

    fn write(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.known(buffer)?.write(at, bytes).map_err(|e| format!("{buffer}: {e}"))
    }

    fn size(&self, buffer: &str) -> Result<u64, String> {
        self.known(buffer).map(Buffer::bytes)
    }

    fn poison(&self) -> Option<u8> {
        None
    }
}

/// A problem's launches as graphs, one for each rank of this process, and what they use.
#[derive(Debug)]
pub(crate) struct Timed {
    // Graphs go before the kernels and the memory that they use.
    graphs: Graphs,
    _op: Operation,
    _operands: Arc<Operands>,
}

/// What is launched on each rank of this process.
#[derive(Debug, Default)]
struct Graphs {
    /// By metric.
    metrics: Vec<Vec<Graph>>,
    /// Of a whole round; none where it is the only metric.
    round: Vec<Graph>,
    /// Of many rounds; none where there are no more than one.
    rounds: Vec<Graph>,
}

impl Timed {
    /// Loads a problem, with operands of its own; if `rounds` is more than 1, one of the graphs has so many. All processes of
    /// the world do so.
    ///
    /// # Errors
    /// As of [`Operation::new`], [`Operands::new`] and [`Stream::capture`](crate::runtime::handles::Stream::capture).
    pub fn new(
        problem: &dyn Problem,
        rounds: u32,
        world: &Arc<World>,
        places: &[Place],
        images: &dyn Images,
    ) -> Result<Timed, RuntimeError> {
        let operands = Arc::new(Operands::new(problem, world)?);
        Timed::with_operands(problem, &operands, rounds, world, places, images)
    }

    /// The same with operands that were made before, for a problem whose buffers have the same names and sizes.
    ///
    /// # Errors
    /// As of [`Timed::new`]; or the operands are too small, or others.
    pub fn with_operands(
        problem: &dyn Problem,
        operands: &Arc<Operands>,
        rounds: u32,
        world: &Arc<World>,
        places: &[Place],
        images: &dyn Images,
    ) -> Result<Timed, RuntimeError> {
        let metrics = problem.metrics();
        covering(&metrics, problem.launches().len())?;
        let mut op = Operation::new(world, problem.launches(), images)?;
        let mut numbers = op.ranks_mut().iter_mut();
        let numbers = numbers.try_for_each(|rank| pass(rank, &problem.timing_numbers(rank.rank())));
        let graphs = numbers.and_then(|()| graphs(&metrics, operands, rounds, places, op.ranks_mut()));
        let graphs = world.agree(graphs)?;
        Ok(Timed { graphs, _op: op, _operands: Arc::clone(operands) })
    }

    /// The graphs of each metric, `[metric][rank of this process]`: to be launched in turn, for a metric belongs to those
    /// before it.
    pub fn metrics(&self) -> Vec<&[Graph]> {
        self.graphs.metrics.iter().map(Vec::as_slice).collect()
    }

    /// The graphs of a whole round.
    pub fn round(&self) -> &[Graph] {
        match &self.graphs.metrics[..] {
            [only] => only,
            _ => &self.graphs.round,
        }
    }

    /// The graphs of many rounds; none if there are no more than one.
    pub fn rounds(&self) -> Option<&[Graph]> {
        (!self.graphs.rounds.is_empty()).then_some(&self.graphs.rounds)
    }
}

fn graphs(
    metrics: &[Metric],
    operands: &Operands,
    rounds: u32,
    places: &[Place],
    ranks: &mut [RankOp],
) -> Result<Graphs, RuntimeError> {
    let mut graphs = Graphs { metrics: metrics.iter().map(|_| vec![]).collect(), ..Graphs::default() };
    for (member, (place, rank)) in places.iter().zip(ranks).enumerate() {
        let addresses = operands.addresses(member, rank)?;
        for (graphs, metric) in graphs.metrics.iter_mut().zip(metrics) {
            graphs.push(graph(place, rank, &addresses, metric.launches.clone(), 1)?);
        }
        let all = 0..rank.launches();
        if metrics.len() != 1 {
            graphs.round.push(graph(place, rank, &addresses, all.clone(), 1)?);
        }
        if rounds > 1 {
            graphs.rounds.push(graph(place, rank, &addresses, all, rounds)?);
        }
    }
    Ok(graphs)
}

/// A graph of these launches, so many times.
fn graph(
    place: &Place,
    rank: &mut RankOp,
    addresses: &[DevicePtr],
    launches: Range<usize>,
    times: u32,
) -> Result<Graph, RuntimeError> {
    let stream = place.stream();
    stream.capture(|| {
        (0..times).flat_map(|_| launches.clone()).try_for_each(|launch| {
            // SAFETY: the buffers are of this GPU, as large as the specs demand, and outlive the graph.
            unsafe { rank.launch_raw(launch, addresses, stream.raw()) }
        })
    })
}

/// Whether metrics are all of a round, each launch once and in order: else kernels would be launched out of turn.
fn covering(metrics: &[Metric], launches: usize) -> Result<(), RuntimeError> {
    let mut next = 0;
    for metric in metrics {
        let range = &metric.launches;
        if range.start != next || range.end <= range.start || range.end > launches {
            let allowed = format!("launches from {next} on, up to {launches} at most");
            return Err(RuntimeError::invalid(
                format!("metric {}", metric.name),
                format!("{range:?}"),
                allowed,
            ));
        }
        next = range.end;
    }
    match next == launches || metrics.is_empty() {
        true => Ok(()),
        false => {
            Err(RuntimeError::invalid("metrics", format!("launches 0..{next}"), format!("all {launches}")))
        }
    }
}
