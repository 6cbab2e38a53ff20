//! What ranks read of each other, where it is: windows, which their owners publish block by block.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Piece};

/// What is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pull {
    /// Ranks that read it.
    pub readers: u32,
    /// Elements of a bank: whole packets.
    pub elements: u32,
    /// Two banks that launches use in turn, or one where something else keeps ranks from storing what a peer still reads.
    pub banks: u32,
    /// Blocks, each of which publishes its tiles by a flag of its own.
    pub blocks: u32,
    /// Type of the elements.
    pub dtype: Dtype,
}

impl Pull {
    /// A vector that is cut so, for so many ranks.
    pub(super) fn new(cut: Cut, (readers, blocks): (u32, u32), dtype: Dtype) -> Pull {
        Pull { readers, elements: cut.room(), banks: 2, blocks, dtype }
    }

    /// The same in one bank.
    pub(super) fn once(self) -> Pull {
        Pull { banks: 1, ..self }
    }

    /// Elements of all banks.
    pub(super) fn len(&self) -> u64 {
        u64::from(self.banks) * u64::from(self.elements)
    }

    /// The first element of a launch's bank.
    pub(super) fn bank(&self, epoch: Epoch) -> Val<u32> {
        if self.banks == 2 { epoch.parity() * self.elements } else { 0u32.val() }
    }

    /// Tiles in slots of their own: for what a rank makes of several ranks' tiles.
    pub(super) fn slots(self, slots: u32, cut: Cut) -> Pull {
        Pull { elements: slots * cut.longest(), ..self }
    }

    pub(super) fn flags(&self) -> u64 {
        u64::from(self.banks) * u64::from(self.blocks) * u64::from(self.readers)
    }

    /// The first flag of a block in a launch's bank.
    pub(super) fn first_flag(&self, epoch: Epoch, b: Group) -> Val<u32> {
        let block = if self.banks == 2 { epoch.parity() * self.blocks + b.index() } else { b.index() };
        block * ranks()
    }
}

/// A window that peers read, and its flags.
#[derive(KernelArgs)]
#[args(config = Pull)]
pub struct PullArgs {
    /// This rank's vector, for peers to read; in two banks `[parity][element]`.
    #[len(|c| c.len())]
    #[dtype(|c| c.dtype)]
    pub vector: AnyWindow,
    /// A block's tiles of a rank's `vector` may be read, `[block][rank]`; in two banks `[parity][block][rank]`.
    #[len(|c| c.flags())]
    pub vector_ready: Flags,
}

/// The same for what is reduced.
#[derive(KernelArgs)]
#[args(config = Pull)]
pub struct PullSumsArgs {
    /// Reductions of the tiles that this rank owns, for peers to read, `[slot][element]`.
    #[len(|c| c.len())]
    #[dtype(|c| c.dtype)]
    pub sums: AnyWindow,
    /// A block's tiles of a rank's `sums` may be read, `[block][rank]`.
    #[len(|c| c.flags())]
    pub sums_ready: Flags,
}

/// A window in a launch.
#[derive(Clone, Copy)]
pub(super) struct Published {
    window: AnyWindow,
    flags: Flags,
    epoch: Epoch,
    /// The first element of this launch's bank.
    bank: Val<u32>,
    pull: Pull,
}

impl Published {
    /// Of two banks the one whose turn it is. Every rank waits for all others in each launch, so that a rank in this one
    /// is done with the last one that had the same bank.
    fn open(window: AnyWindow, flags: Flags, epoch: Epoch, pull: Pull) -> Published {
        Published { window, flags, epoch, bank: pull.bank(epoch), pull }
    }

    /// Stores a tile to this rank's own, from element `at` on.
    pub fn store(&self, at: Val<u32>, tile: AnyTile) {
        self.window.store(self.bank + at, tile);
    }

    /// Publishes what this block has stored, and waits until the same block of every rank has done so.
    pub fn exchange(&self, b: Group) -> Arrived {
        let first = self.pull.first_flag(self.epoch, b);
        self.window.signal(Peers::all(), &self.flags, first + rank(), self.epoch);
        self.flags.wait_all(first, ranks(), 1, self.epoch)
    }

    /// `len` elements of a rank's, from element `at` on.
    pub fn load(&self, of: Val<u32>, got: &Arrived, at: Val<u32>, len: u32) -> AnyTile {
        self.window.of(of).load_if(got, self.bank + at, len, is_active(of))
    }

    /// A tile of all ranks' vectors, reduced by the switch.
    pub fn reduced(&self, op: ReduceOp, got: &Arrived, t: &Piece) -> AnyTile {
        self.window.load_reduce(op, got, self.bank + t.at, t.len)
    }

    /// A tile of a rank's vector.
    pub fn tile(&self, of: Val<u32>, got: &Arrived, t: &Piece) -> AnyTile {
        self.load(of, got, t.at, t.len)
    }
}

impl PullArgs {
    pub(super) fn open(&self, epoch: Epoch, pull: Pull) -> Published {
        Published::open(self.vector, self.vector_ready, epoch, pull)
    }
}

impl PullSumsArgs {
    pub(super) fn open(&self, epoch: Epoch, pull: Pull) -> Published {
        Published::open(self.sums, self.sums_ready, epoch, pull)
    }
}
