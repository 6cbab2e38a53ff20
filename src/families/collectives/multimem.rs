//! What the switch between GPUs stores to all ranks at once.

use peerwarp_codegen::dsl::prelude::*;

use super::cut::Piece;
use super::pull::Pull;

/// What arrives at every rank, and its flags.
#[derive(KernelArgs)]
#[args(config = Pull)]
pub struct MultimemArgs {
    /// The reduced tiles of all ranks.
    #[len(|c| c.len())]
    #[dtype(|c| c.dtype)]
    pub reduced: AnySym,
    /// A rank's tiles of a block have arrived, `[block][rank]`.
    #[len(|c| c.flags())]
    pub reduced_arrived: Flags,
}

/// The same in a launch.
#[derive(Clone, Copy)]
pub(super) struct Reduced {
    buffer: AnySym,
    flags: Flags,
    epoch: Epoch,
    pull: Pull,
}

impl MultimemArgs {
    pub(super) fn open(&self, epoch: Epoch, pull: Pull) -> Reduced {
        Reduced { buffer: self.reduced, flags: self.reduced_arrived, epoch, pull }
    }
}

impl Reduced {
    /// Stores to all ranks.
    pub fn put(&self, parcel: &mut Parcel, at: Val<u32>, tile: AnyTile) {
        parcel.put_any(&self.buffer, at, tile);
    }

    /// Signals what this block has stored, and waits for what the same block of every rank has.
    pub fn exchange(&self, b: Group, parcel: Parcel) -> Arrived {
        let first = self.pull.first_flag(self.epoch, b);
        parcel.signal(&self.flags, first + rank(), self.epoch);
        self.flags.wait_all(first, ranks(), 1, self.epoch)
    }

    /// A tile that has arrived.
    pub fn load(&self, got: &Arrived, t: &Piece) -> AnyTile {
        self.buffer.load(got, t.at, t.len)
    }
}
