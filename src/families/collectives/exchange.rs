//! What collectives are made of: sending a vector to all, sending everybody its part, and reducing everybody's tiles.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

use super::cut::{Cut, Part, Parts, Piece};
use super::inbox::{Inbox, Receipt};

/// How elements of different ranks become one.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Added in `f32`, in the order of ranks, and rounded once.
    Sum,
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Reduction {
    /// What changes nothing.
    pub fn identity(self) -> f32 {
        match self {
            // So that zeros keep their sign.
            Reduction::Sum => -0.0,
            Reduction::Max => f32::NEG_INFINITY,
            Reduction::Min => f32::INFINITY,
        }
    }

    fn tiles(self, a: Tile<f32>, b: Tile<f32>) -> Tile<f32> {
        match self {
            Reduction::Sum => a + b,
            Reduction::Max => a.maximum(b),
            Reduction::Min => a.minimum(b),
        }
    }
}

/// All ranks but this one, as a mask.
pub(super) fn others() -> Val<u64> {
    !bit(rank()) & (u64::MAX >> (64 - ranks()))
}

/// The flag of a block's exchange, for what `source` sends, and the first of those of all sources.
pub(super) fn flag(b: Group, exchange: u32) -> Val<u32> {
    (b.index() + exchange * b.count()) * ranks()
}

/// Sends this rank's vector to all others, as the row of its number; `keep` gets what is sent.
pub(super) fn send_to_all(
    b: Group,
    inbox: &Inbox<'_>,
    cut: Cut,
    (x, part): (&AnyPtr, Part),
    mut keep: impl FnMut(Piece, AnyTile),
) {
    let mut sending = inbox.send_to(Peers::others());
    cut.each(b, |t| {
        let tile = part.load(x, &t);
        sending.tile(rank() * cut.row() + t.at, tile);
        keep(t, tile);
    });
    sending.signal(flag(b, 0) + rank());
}

/// Sends every other rank its part of a vector, as the row of this rank's number. The next rank's is the first, so that not all
/// ranks send to the same one.
#[kernel]
pub(super) fn send_to_each(b: Group, inbox: &Inbox<'_>, cut: Cut, x: &AnyPtr, parts: Parts) {
    for i in 1..ranks().val() {
        let to = (rank() + i) % ranks();
        let mut sending = inbox.send_to(Peers::rank(to));
        cut.each(b, |t| sending.tile(rank() * cut.row() + t.at, parts.of(to).load(x, &t)));
        sending.signal(flag(b, 0) + rank());
    }
}

/// Takes every other rank's row. The next rank's is the first.
#[kernel]
pub(super) fn take_from_each(
    b: Group,
    inbox: &Inbox<'_>,
    cut: Cut,
    mut act: impl FnMut(Val<u32>, Piece, AnyTile),
) {
    let got = inbox.wait(flag(b, 0), others());
    for i in 1..ranks().val() {
        let from = (rank() + i) % ranks();
        cut.each(b, |t| act(from, t, got.take(from * cut.row() + t.at, t.len, from)));
    }
}

/// How a block reduces.
#[derive(Clone, Copy)]
pub(super) struct Reduce {
    pub op: Reduction,
    /// Ranks whose tiles are on their way at once.
    pub together: u32,
}

/// Bytes of tiles on their way that a thread has room for: half of the registers that it may have with 512 in a block.
const BYTES_IN_FLIGHT: u32 = 256;

impl Reduce {
    /// With tiles of `len` elements of `bytes` bytes, in blocks of `warps` warps.
    pub fn new(op: Reduction, ranks: u32, len: u32, bytes: u32, warps: u32) -> Reduce {
        let of_thread = (len * bytes).div_ceil(32 * warps).max(16);
        Reduce { op, together: (BYTES_IN_FLIGHT / of_thread).clamp(1, ranks) }
    }

    /// Everybody's tiles as one, in the order of ranks, so that all ranks get the same bits: this rank's own, and others' from the
    /// places that `place` says.
    #[kernel]
    pub fn tiles(
        &self,
        got: &Receipt<'_>,
        own: AnyTile,
        len: u32,
        place: impl Fn(Val<u32>) -> Val<u32>,
    ) -> Tile<f32> {
        let mut sum = var(splat(self.op.identity(), len));
        let own = own.to_f32();
        let mut some = |first: Val<u32>, count: u32| {
            let from: Vec<Val<u32>> = (0..count).map(|i| first + i).collect();
            let tiles = got.take_others(from.iter().map(|r| (place(*r), *r)).collect(), len);
            for (r, theirs) in from.into_iter().zip(tiles) {
                let part = r.eq_to(rank()).splat(len).select(own, theirs.to_f32());
                sum.set(self.op.tiles(sum.get(), part));
            }
        };
        let (whole, rest) = (ranks() / self.together, ranks() % self.together);
        if whole == 1 {
            some(0u32.val(), self.together);
        } else {
            for i in 0..whole.val() {
                some(i * self.together, self.together);
            }
        }
        if rest > 0 {
            some((whole * self.together).val(), rest);
        }
        sum.get()
    }
}
