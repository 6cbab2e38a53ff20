//! Operations: kernels on the ranks of a world, with the memory that they keep from launch to launch.
//!
//! An [`Operation`] has one launch or several, which share buffers by name. It allocates what is the kernels' own
//! ([`Binding::State`](peerwarp_codegen::dsl::Binding)), and takes what is the caller's with each launch. Everything is made
//! when it is constructed: a launch allocates nothing, waits for nothing, and may be captured in a graph.

mod call;
mod memory;
mod plan;
mod rank;
mod stream;
mod tensor;
mod typed;
mod window;

use std::sync::Arc;

use super::far;
use super::image::Images;
use super::{RuntimeError, World};
use plan::Plan;
use rank::Making;

pub(crate) use call::enough_rows;
pub use call::{Call, Extent, LaunchArgs, Scalar, apart};
pub use memory::{Memory, Taken, Whose};
pub(crate) use plan::as_in;
pub use plan::{BufferSpec, LaunchSpec, buffers};
pub use rank::RankOp;
pub use stream::StreamRef;
pub use tensor::{Element, Held, RawTensor, Readable, TensorInfo, Writable};
pub use typed::{Op, OpRank, RankOf};
pub use window::SymmetricPart;

/// Kernels that share memory, on the ranks of this process.
#[derive(Debug)]
pub struct Operation {
    ranks: Vec<RankOp>,
    world: Arc<World>,
}

impl Operation {
    /// Allocates and loads on every rank. In a world of several processes all have to do so in the same order.
    ///
    /// # Errors
    /// A variant is for another world size, another rank has other variants, launches disagree on a buffer, a kernel cannot be had or
    /// its blocks cannot be resident at once, or memory runs out.
    pub fn new(
        world: &Arc<World>,
        launches: &[LaunchSpec],
        images: &dyn Images,
    ) -> Result<Operation, RuntimeError> {
        let plan = alike(world, launches)?;
        let shared = Arc::new(world.allocate(plan.symmetric_bytes.max(1))?);
        let far = far::carry(world, &plan.far)?;
        let rank = |index| {
            let far = far.as_ref();
            Making { world, index, plan: &plan, shared: &shared, far, launches, images }.rank()
        };
        let ranks: Result<Vec<RankOp>, _> = (0..world.members().len()).map(rank).collect();
        // No rank launches before all ranks can.
        Ok(Operation { ranks: world.agree(ranks)?, world: Arc::clone(world) })
    }

    /// The ranks of this process, in the order of [`World::members`]. Each may be driven by a thread of its own.
    pub fn ranks_mut(&mut self) -> &mut [RankOp] {
        &mut self.ranks
    }

    /// The ranks of this process.
    pub fn ranks(&self) -> &[RankOp] {
        &self.ranks
    }

    /// The ranks of this process, each by itself.
    pub fn into_ranks(self) -> Vec<RankOp> {
        self.ranks
    }

    /// The world that it runs in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }
}

/// The plan of these launches, which has the same variants on all ranks.
fn alike(world: &World, launches: &[LaunchSpec]) -> Result<Plan, RuntimeError> {
    let (nodes, near) = (world.teams().nodes(), world.teams().local_ranks());
    // What is for one node runs on each, by itself.
    let fits = |l: &LaunchSpec| {
        [(world.ranks(), nodes), (near, 1)].contains(&(l.variant.ranks(), l.variant.nodes()))
    };
    let planned = match launches.iter().find(|l| !fits(l)) {
        None => Plan::new(launches),
        Some(other) if other.variant.ranks() == world.ranks() => {
            let allowed = format!("{nodes}, as many as the world has");
            let field = format!("nodes of {}", other.variant.variant_name());
            Err(RuntimeError::invalid(field, other.variant.nodes(), allowed))
        }
        Some(other) => {
            let allowed = format!("{}, the size of the world", world.ranks());
            let field = format!("ranks of {}", other.variant.variant_name());
            Err(RuntimeError::invalid(field, other.variant.ranks(), allowed))
        }
    };
    let name = |l: &LaunchSpec| (l.label.clone(), l.variant.variant_name());
    let own: Vec<(String, String)> = launches.iter().map(name).collect();
    let (plan, own) = match planned {
        Ok(plan) => (plan, Ok(own)),
        Err(e) => (Plan::default(), Err(e)),
    };
    let all = world.gather(own)?;
    for (names, rank) in all.iter().zip(0..).skip(1) {
        let longest = names.len().max(all[0].len());
        let of = |names: &[(String, String)], at| {
            names.get(at).cloned().unwrap_or_else(|| ("a launch".into(), "none".into()))
        };
        let pairs = (0..longest).map(|at| (of(names, at), of(&all[0], at)));
        if let Some(((launch, variant), (_, first))) = pairs.into_iter().find(|(a, b)| a != b) {
            return Err(RuntimeError::OtherVariant { launch, rank, variant, first });
        }
    }
    Ok(plan)
}

#[cfg(test)]
mod tests;
