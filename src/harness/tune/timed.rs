//! A problem on GPUs as graphs that are timed.

use std::sync::Arc;

use peerwarp_codegen::ir::ParamKind;

use crate::harness::bench::Limits;
use crate::harness::bench::place::Place;
use crate::harness::workload::{Contents, Problem, Work};
use crate::runtime::gpu::DevicePtr;
use crate::runtime::handles::{Buffer, Graph};
use crate::runtime::image::Images;
use crate::runtime::op::Operation;
use crate::runtime::{RuntimeError, World};

/// Operations of an iteration at most.
const MOST_METRICS: usize = 2;

/// A problem's graphs, and what they use.
#[derive(Debug)]
pub(crate) struct Timed {
    /// `[metric][rank]`.
    metrics: Vec<Vec<Graph>>,
    /// Of whole rounds, `[rank]`.
    round: Vec<Graph>,
    // These go after the graphs that use them.
    _op: Operation,
    _buffers: Vec<Vec<Buffer>>,
}

impl Timed {
    /// Loads a problem; the graph of rounds has so many.
    pub fn new(
        problem: &dyn Problem,
        rounds: u32,
        world: &Arc<World>,
        places: &[Place],
        images: &dyn Images,
    ) -> Result<Timed, RuntimeError> {
        let metrics = problem.metrics();
        if metrics.len() > MOST_METRICS {
            let allowed = format!("at most {MOST_METRICS}, which is what is timed in turn");
            return Err(RuntimeError::invalid("metrics", metrics.len(), allowed));
        }
        let mut op = Operation::new(world, problem.launches(), images)?;
        let buffers = world.agree(inputs(&op, problem))?;
        let mut of_metrics: Vec<Vec<Graph>> = metrics.iter().map(|_| vec![]).collect();
        let mut round = vec![];
        let all = 0..problem.launches().len();
        for ((place, rank), buffers) in places.iter().zip(op.ranks_mut()).zip(&buffers) {
            let stream = place.stream();
            let addresses: Vec<DevicePtr> = buffers.iter().map(Buffer::ptr).collect();
            let mut capture = |launches: std::ops::Range<usize>, rounds: u32| {
                stream.capture(|| {
                    for launch in (0..rounds).flat_map(|_| launches.clone()) {
                        // SAFETY: the buffers are of this GPU, as large as the specs demand, and outlive the graphs.
                        unsafe { rank.launch_raw(launch, &addresses, stream.raw())? };
                    }
                    Ok(())
                })
            };
            for (graphs, metric) in of_metrics.iter_mut().zip(&metrics) {
                graphs.push(capture(metric.launches.clone(), 1)?);
            }
            round.push(capture(all.clone(), rounds)?);
        }
        Ok(Timed { metrics: of_metrics, round, _op: op, _buffers: buffers })
    }

    /// What is launched for each metric, `[metric][rank]`.
    pub fn metrics(&self) -> Vec<&[Graph]> {
        self.metrics.iter().map(Vec::as_slice).collect()
    }

    /// What is launched for a round on each rank.
    pub fn round(&self) -> &[Graph] {
        &self.round
    }
}

/// A buffer for each operand of each rank, with inputs.
fn inputs(op: &Operation, problem: &dyn Problem) -> Result<Vec<Vec<Buffer>>, RuntimeError> {
    let of_rank = |rank: &crate::runtime::op::RankOp| {
        let given = problem.timing_inputs(rank.rank());
        let operands = rank.operands().iter().filter(|o| o.param.kind != ParamKind::Scalar);
        let buffer = |o: &crate::runtime::op::BufferSpec| {
            let buffer = Buffer::new(rank.gpu(), o.param.bytes())?;
            given.iter().filter(|c| c.buffer == o.name).try_for_each(|contents| write(&buffer, contents))?;
            Ok(buffer)
        };
        operands.map(buffer).collect::<Result<Vec<_>, RuntimeError>>()
    };
    op.ranks().iter().map(of_rank).collect()
}

fn write(buffer: &Buffer, contents: &Contents) -> Result<(), RuntimeError> {
    let (mut at, end) = (contents.at, buffer.bytes());
    loop {
        let part = (end - at).min(contents.bytes.len() as u64);
        buffer.write(at, &contents.bytes[..part as usize])?;
        at += part;
        if !contents.repeated || at >= end || part == 0 {
            return Ok(());
        }
    }
}

/// The least that a round can take.
pub(super) fn limit_us(limits: &Limits, problem: &dyn Problem) -> Option<f64> {
    let work = problem.metrics().into_iter().map(|m| m.work).reduce(|all, next| all.then(&next))?;
    let bytes = busiest(&work)?;
    let steps: f64 = work.steps.iter().map(|(_, us)| us).sum();
    let wire = limits.wire_us(problem.ranks(), bytes);
    Some(limits.first_node_us + f64::from(work.hops) * limits.hop_us + steps + wire + limits.tail_us)
}

/// Bytes of the busiest rank in its busier direction; none if they are not known.
fn busiest(work: &Work) -> Option<u64> {
    let bytes = work.least.as_ref().unwrap_or(&work.bytes);
    let other = |from: usize, to: usize| if from == to { 0 } else { bytes[from][to] };
    let all = 0..bytes.len();
    let out = all.clone().map(|from| all.clone().map(|to| other(from, to)).sum());
    let into = all.clone().map(|to| all.clone().map(|from| other(from, to)).sum());
    out.chain(into).max()
}
