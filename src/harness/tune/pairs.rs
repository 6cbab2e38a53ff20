//! Pairs of dispatch and combine that are ready to be timed.

use std::sync::Arc;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::families::moe::kernels::Layout;
use crate::families::moe::run::MoeTuning;
use crate::families::moe::run::io::{Io, combined_row_bytes};
use crate::families::moe::{MoeAllToAll, MoeProblem, MoeRank, Tokens, work};
use crate::harness::bench::place::Place;
use crate::harness::suite::random_bytes;
use crate::harness::workload::Contents;
use crate::runtime::gpu::DevicePtr;
use crate::runtime::handles::{Buffer, Graph};
use crate::runtime::image::Images;
use crate::runtime::{Member, RuntimeError, World};

/// Bytes that are drawn; longer buffers repeat them.
const PATTERN: usize = 1 << 20;

/// What a rank's buffers hold while kernels are timed, of the first round's routing: how long kernels take does not depend on
/// values, but links and memory that move zeros may be faster than they are.
fn timing_inputs(problem: &MoeProblem, rank: u32) -> Vec<Contents> {
    let (shape, routing, at) = (problem.shape, problem.routing(0), rank as usize);
    let tokens = routing.tokens_per_rank(shape.topk)[at];
    let mut rng = ChaCha8Rng::seed_from_u64(problem.seed);
    rng.set_stream(u64::from(rank));
    let mut all = vec![
        Contents::of("n", &[tokens]),
        Contents::of("ids", &routing.ids[at]),
        Contents::of("weights", &routing.weights[at]),
        Contents::repeated("x", random_bytes(shape.dtype.dispatched(), PATTERN, &mut rng)),
        Contents::repeated("y", random_bytes(shape.dtype.combined(), PATTERN, &mut rng)),
    ];
    if shape.scales() > 0 {
        all.push(Contents::of("x_scale", &vec![1.0f32; (tokens * shape.scales()) as usize]));
    }
    all
}

/// Everything that dispatch and combine read or write of the caller's.
#[derive(Debug)]
pub(crate) struct Inputs {
    io: Io,
    y: Buffer,
}

impl Inputs {
    /// Of the first round of a problem, for every rank of this process.
    pub fn all(
        problem: &MoeProblem,
        layout: Layout,
        world: &World,
    ) -> Result<Arc<Vec<Inputs>>, RuntimeError> {
        let inputs = world.members().iter().map(|member| Inputs::new(problem, layout, member));
        world.agree(inputs.collect::<Result<Vec<_>, _>>()).map(Arc::new)
    }

    fn new(problem: &MoeProblem, layout: Layout, member: &Member) -> Result<Inputs, RuntimeError> {
        let (shape, routing, at) = (problem.shape, problem.routing(0), member.rank as usize);
        let rows = match layout {
            // As many rows come as entries name this rank's experts.
            Layout::Experts => work::rows(&shape, routing, false).iter().map(|to| to[at]).sum(),
            Layout::Tokens => layout.places(shape.ranks * shape.tokens, shape.topk),
        };
        let io = Io::new(&member.gpu, &shape)?;
        let y = Buffer::new(&member.gpu, rows * combined_row_bytes(&shape))?;
        for contents in timing_inputs(problem, member.rank) {
            let buffer = match contents.buffer.as_str() {
                "n" => &io.n,
                "ids" => &io.ids,
                "weights" => &io.weights,
                "x_scale" => &io.x_scale,
                "x" => &io.x,
                _ => &y,
            };
            match contents.repeated {
                true => fill(buffer, &contents.bytes)?,
                false => buffer.write(0, &contents.bytes)?,
            }
        }
        Ok(Inputs { io, y })
    }

    /// For dispatch.
    pub fn tokens(&self) -> Tokens {
        self.io.tokens()
    }

    /// The experts' outputs.
    pub fn y(&self) -> DevicePtr {
        self.y.ptr()
    }

    /// Where combine puts its sums.
    pub fn out(&self) -> DevicePtr {
        self.io.out.ptr()
    }
}

fn fill(buffer: &Buffer, pattern: &[u8]) -> Result<(), RuntimeError> {
    let mut at = 0;
    while at < buffer.bytes() {
        let part = (buffer.bytes() - at).min(pattern.len() as u64);
        buffer.write(at, &pattern[..part as usize])?;
        at += part;
    }
    Ok(())
}

/// A pair's graphs, and what they use: it goes after them.
pub(super) struct Ready {
    pub graphs: Graphs,
    _inputs: Arc<Vec<Inputs>>,
    _op: MoeAllToAll,
}

/// What is launched on each rank.
#[derive(Default)]
pub(super) struct Graphs {
    pub dispatch: Vec<Graph>,
    pub combine: Vec<Graph>,
    pub round: Vec<Graph>,
}

impl Ready {
    /// Loads a pair, with inputs of its layout.
    pub fn new(
        tuning: &MoeTuning,
        inputs: &Arc<Vec<Inputs>>,
        world: &Arc<World>,
        places: &[Place],
        images: &dyn Images,
    ) -> Result<Ready, RuntimeError> {
        let mut op = MoeAllToAll::new(world, tuning, images)?;
        let graphs = world.agree(graphs(places, op.ranks_mut(), inputs))?;
        Ok(Ready { graphs, _inputs: Arc::clone(inputs), _op: op })
    }
}

fn graphs(places: &[Place], ranks: &mut [MoeRank], inputs: &[Inputs]) -> Result<Graphs, RuntimeError> {
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
        graphs.round.push(stream.capture(|| {
            // SAFETY: as above.
            unsafe {
                let routed = rank.dispatch_raw(&io.tokens(), stream.raw())?;
                rank.combine_raw(routed, io.y(), io.out(), stream.raw())
            }
        })?);
    }
    Ok(graphs)
}
