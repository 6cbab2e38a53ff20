//! How far the clocks of a world's GPUs are apart.

use std::sync::Arc;

use peerwarp_codegen::family::Family;

use crate::harness::trace::clock::{self, ClockError, ClockOffset};
use crate::harness::trace::sync::ClockSync;
use crate::runtime::handles::Stream;
use crate::runtime::image::Images;
use crate::runtime::op::{LaunchSpec, Operation};
use crate::runtime::{RuntimeError, World};

/// Rounds between rank 0 and each other rank in a measurement.
const ROUNDS: u32 = 64;

/// Why clocks were not compared.
#[derive(Debug, thiserror::Error)]
pub enum ClocksError {
    /// The GPUs.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// What they recorded does not go together.
    #[error(transparent)]
    Clock(#[from] ClockError),
}

/// Compares the clocks of all ranks, which are in this process.
#[derive(Debug)]
pub struct Clocks {
    // Streams go before the modules and the memory that are used on them.
    streams: Vec<Stream>,
    op: Operation,
}

impl Clocks {
    /// The kernel that it launches in a world of so many ranks.
    pub fn variant(ranks: u32) -> ClockSync {
        ClockSync { ranks, rounds: ROUNDS }
    }

    /// Room for records that images need for it.
    pub fn slots(ranks: u32) -> u32 {
        // One rank compares its clock with no other, and a timeline has room for a record at least.
        Clocks::variant(ranks).records().max(1)
    }

    /// `images` have a timeline of [`Clocks::slots`].
    ///
    /// # Errors
    /// Ranks are in other processes, images have no timeline, or as of [`Operation::new`].
    pub fn new(world: &Arc<World>, images: &dyn Images) -> Result<Clocks, RuntimeError> {
        let (here, ranks) = (world.members().len() as u32, world.ranks());
        if here != ranks {
            return Err(RuntimeError::invalid("ranks of this process", here, format!("all {ranks}")));
        }
        let variant = Clocks::variant(ranks).into_variant();
        for member in world.members() {
            let image = images.image(&*variant, member.gpu.info().target)?;
            if image.timeline.is_none() {
                return Err(RuntimeError::invalid("images", &image.variant, "images with a timeline"));
            }
        }
        let op = Operation::new(world, &[LaunchSpec::new("clocks", variant)], images)?;
        let streams = op.ranks().iter().map(|rank| Stream::new(rank.gpu())).collect::<Result<_, _>>()?;
        Ok(Clocks { streams, op })
    }

    /// Measures how far every rank's clock is ahead of rank 0's. Waits until it is done.
    ///
    /// # Errors
    /// A wait expired, a driver's call failed, or what was recorded contradicts itself.
    pub fn measure(&mut self) -> Result<Vec<ClockOffset>, ClocksError> {
        // The first launch finds the kernel not yet in the GPU's caches.
        for _ in 0..2 {
            for (rank, stream) in self.op.ranks_mut().iter_mut().zip(&self.streams) {
                // SAFETY: the kernel takes nothing that is not the operation's own; the stream is of the rank's GPU.
                unsafe { rank.launch_raw(0, &[], stream.raw())? };
            }
            self.op.world().finish_all(self.streams.iter().map(Stream::raw))?;
        }
        let recordings = self.op.ranks().iter().map(|rank| rank.recordings());
        let recordings = recordings.collect::<Result<Vec<_>, RuntimeError>>()?.concat();
        Ok(clock::offsets(&recordings)?)
    }
}
