//! Operations of one family's kernel, whose launches take what the kernel's parameters say.

use std::marker::PhantomData;
use std::sync::Arc;

use peerwarp_codegen::family::Family;

use super::{LaunchArgs, LaunchSpec, Operation, RankOp, StreamRef};
use crate::runtime::gpu::Gpu;
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

/// A family's kernel on the ranks of this process, in one configuration.
///
/// It owns what the kernel keeps from launch to launch: symmetric memory, flags, epochs and counters. What callers pass with each
/// launch is a struct that `#[derive(KernelArgs)]` makes: of `AddArgs` it is `AddLaunch`, with a field for each parameter that is
/// marked `#[input]` or `#[output]`, and for each number that is passed by value.
#[derive(Debug)]
pub struct Op<F: Family> {
    ranks: Vec<OpRank<F>>,
    world: Arc<World>,
    config: F,
}

impl<F: Family> Op<F> {
    /// Allocates and loads on every rank. In a world of several processes all have to do so in the same order.
    ///
    /// # Errors
    /// The configuration is not legal or is for another world size, the kernel cannot be had or its blocks cannot be resident at
    /// once, or memory runs out.
    pub fn new(world: &Arc<World>, config: &F, images: &dyn Images) -> Result<Op<F>, RuntimeError> {
        config
            .check()
            .map_err(|e| RuntimeError::invalid("configuration", config.variant_name(), e.to_string()))?;
        let launch = LaunchSpec::new(F::KERNEL.name, config.clone().into_variant());
        let op = Operation::new(world, &[launch], images)?;
        let ranks = op.into_ranks().into_iter().map(|rank| OpRank { rank, family: PhantomData }).collect();
        Ok(Op { ranks, world: Arc::clone(world), config: config.clone() })
    }

    /// The configuration that it is for.
    pub fn config(&self) -> &F {
        &self.config
    }

    /// The world that it runs in.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// The rank with this number in the world. If it is not of this process, launches are refused.
    pub fn rank(&mut self, rank: u32) -> RankOf<'_, F> {
        let found = self.ranks.iter_mut().find(|r| r.rank.rank() == rank);
        RankOf { found, rank, ranks: self.world.ranks() }
    }

    /// The ranks of this process, in the order of [`World::members`]. Each may be driven by a thread of its own.
    pub fn ranks_mut(&mut self) -> &mut [OpRank<F>] {
        &mut self.ranks
    }

    /// The ranks of this process.
    pub fn ranks(&self) -> &[OpRank<F>] {
        &self.ranks
    }
}

/// A rank of an [`Op`], by its number.
#[derive(Debug)]
pub struct RankOf<'a, F: Family> {
    found: Option<&'a mut OpRank<F>>,
    rank: u32,
    ranks: u32,
}

impl<F: Family> RankOf<'_, F> {
    /// [`OpRank::launch`].
    ///
    /// # Errors
    /// As there, and if the rank is not of this process.
    pub fn launch<'s, L>(self, stream: impl Into<StreamRef<'s>>, args: L) -> Result<(), RuntimeError>
    where
        L: LaunchArgs<Args = F::Args>,
    {
        self.here()?.launch(stream, args)
    }

    /// [`OpRank::capture`].
    ///
    /// # Errors
    /// As there, and if the rank is not of this process.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn capture<'s, L>(self, stream: impl Into<StreamRef<'s>>, args: L) -> Result<(), RuntimeError>
    where
        L: LaunchArgs<Args = F::Args>,
    {
        // SAFETY: as the caller says.
        unsafe { self.here()?.capture(stream, args) }
    }
}

impl<'a, F: Family> RankOf<'a, F> {
    /// The rank itself.
    ///
    /// # Errors
    /// It is not of this process.
    pub fn here(self) -> Result<&'a mut OpRank<F>, RuntimeError> {
        let RankOf { found, rank, ranks } = self;
        let allowed = || format!("a rank of this process, in a world of {ranks}");
        found.ok_or_else(|| RuntimeError::invalid("rank", rank, allowed()))
    }
}

/// One rank of an [`Op`].
#[derive(Debug)]
pub struct OpRank<F: Family> {
    rank: RankOp,
    family: PhantomData<fn() -> F>,
}

impl<F: Family> OpRank<F> {
    /// Its number in the world.
    pub fn rank(&self) -> u32 {
        self.rank.rank()
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        self.rank.gpu()
    }

    /// Launches the kernel on a stream of this rank's GPU, the same one for every launch. All ranks launch in turn. Nothing is
    /// allocated, and no rank is waited for; tensors are borrowed until this returns, and cudarc frees or reuses none of them before
    /// the kernel has ended.
    ///
    /// # Errors
    /// A tensor is too short, of another element type, on another GPU or not aligned; an output overlaps another operand; an
    /// optional parameter is given without being one of the variant's, or the other way round; the stream is of another GPU, is not
    /// that of earlier launches or is being captured; the world was aborted; or the driver refuses.
    pub fn launch<'s, L>(&mut self, stream: impl Into<StreamRef<'s>>, args: L) -> Result<(), RuntimeError>
    where
        L: LaunchArgs<Args = F::Args>,
    {
        self.rank.launch_args(0..1, stream.into(), args)
    }

    /// [`OpRank::launch`] on a stream that is being captured, as a part of a graph.
    ///
    /// # Errors
    /// As there, but that the stream may be captured.
    ///
    /// # Safety
    /// The operation, its world and the tensors stay as they are until the graph is launched for the last time and has ended. What
    /// else uses the tensors is ordered before or after the graph, as cudarc's events know nothing of it; so are other launches of
    /// this rank. One thread at a time launches the graph.
    pub unsafe fn capture<'s, L>(
        &mut self,
        stream: impl Into<StreamRef<'s>>,
        args: L,
    ) -> Result<(), RuntimeError>
    where
        L: LaunchArgs<Args = F::Args>,
    {
        // SAFETY: as the caller says.
        unsafe { self.rank.capture_args(0..1, stream.into(), args) }
    }

    /// The rank without its family's types.
    pub fn untyped(&mut self) -> &mut RankOp {
        &mut self.rank
    }
}
