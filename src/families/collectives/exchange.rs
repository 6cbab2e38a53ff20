//! What collectives are made of: sending a vector to all, sending each rank its part, and reducing all ranks' tiles.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Any, Num};
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::cut::{Cut, Part, Parts, Piece};
use super::pull::Published;

/// Tiles on their way.
pub(super) type Tiles<'a> = OpenChannel<'a, Any>;

/// How elements of different ranks become one.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// Floats are added in `f32`, in the order of ranks, and rounded once; integers wrap.
    Sum,
    /// The largest number; NaN where all ranks have NaN.
    Max,
    /// The smallest number; NaN where all ranks have NaN.
    Min,
    /// The sum over the number of ranks, of those that are active, divided in `f32` and rounded once.
    Avg,
    /// The largest, or the first NaN of a rank.
    MaxNan,
    /// The smallest, or the first NaN of a rank.
    MinNan,
}

impl Reduction {
    /// What changes nothing.
    pub fn identity(self) -> f32 {
        match self {
            // So that zeros keep their sign.
            Reduction::Sum | Reduction::Avg => -0.0,
            // Every number beats a NaN.
            Reduction::Max | Reduction::Min => f32::NAN,
            Reduction::MaxNan => f32::NEG_INFINITY,
            Reduction::MinNan => f32::INFINITY,
        }
    }

    /// What a switch does, which knows neither averages nor extremes that keep NaN.
    pub(super) fn of_switch(self) -> ReduceOp {
        match self {
            Reduction::Sum | Reduction::Avg => ReduceOp::Sum,
            Reduction::Max | Reduction::MaxNan => ReduceOp::Max,
            Reduction::Min | Reduction::MinNan => ReduceOp::Min,
        }
    }

    /// What counts of a rank's tile: all of it, or nothing if the rank is not active. Zeros come in its place, which are nothing to a
    /// sum.
    fn counted<T: Summand>(self, of: Val<u32>, tile: Tile<T>, len: u32) -> Tile<T> {
        match self {
            Reduction::Sum | Reduction::Avg => tile,
            // Worlds of several nodes need all ranks.
            _ if nodes() > 1 => tile,
            Reduction::Max | Reduction::Min | Reduction::MaxNan | Reduction::MinNan => {
                is_active(of).splat(len).select(tile, splat(T::identity(self), len))
            }
        }
    }

    fn tiles<T: Summand>(self, a: Tile<T>, b: Tile<T>) -> Tile<T> {
        match self {
            Reduction::Sum | Reduction::Avg => a + b,
            Reduction::Max => a.maximum(b),
            Reduction::Min => a.minimum(b),
            // Of comparisons alone: every target chooses the same bits.
            Reduction::MaxNan => (a.ge(b) | a.ne_to(a)).select(a, b),
            Reduction::MinNan => (a.le(b) | a.ne_to(a)).select(a, b),
        }
    }
}

/// What elements are reduced as.
pub(super) trait Summand: Num {
    /// The elements of a tile.
    fn of(tile: AnyTile) -> Tile<Self>;

    /// What changes nothing.
    fn identity(op: Reduction) -> Val<Self>;

    /// The average of so many.
    fn average(sum: Tile<Self>, count: Val<f32>) -> Tile<Self>;
}

/// All floats.
impl Summand for f32 {
    fn of(tile: AnyTile) -> Tile<f32> {
        tile.to_f32()
    }

    fn identity(op: Reduction) -> Val<f32> {
        op.identity().val()
    }

    fn average(sum: Tile<f32>, count: Val<f32>) -> Tile<f32> {
        sum / count
    }
}

/// Integers, which have neither averages nor NaNs; sums wrap.
impl Summand for i32 {
    fn of(tile: AnyTile) -> Tile<i32> {
        tile.typed()
    }

    fn identity(op: Reduction) -> Val<i32> {
        match op {
            Reduction::Sum | Reduction::Avg => 0.val(),
            Reduction::Max | Reduction::MaxNan => i32::MIN.val(),
            Reduction::Min | Reduction::MinNan => i32::MAX.val(),
        }
    }

    fn average(sum: Tile<i32>, _: Val<f32>) -> Tile<i32> {
        sum
    }
}

/// All ranks but this one, as a mask.
fn others() -> Val<u64> {
    !bit(local_rank()) & (u64::MAX >> (64 - local_ranks()))
}

/// The channel of tiles of a cut, so many of each sender: a tile is a message.
pub(super) fn tiles(transport: Transport, ranks: u32, tiles: u32, cut: Cut) -> ChannelShape {
    ChannelShape::new(transport, ranks, Slots::ByNumber(tiles)).banks_for(cut.bytes())
}

/// Sends a tile.
pub(super) fn send(channel: &Tiles<'_>, to: Peers, slot: Val<u32>, tile: AnyTile) {
    let message = channel.to(to).slot(slot);
    message.put(0, tile);
    message.done();
}

/// Sends this rank's vector to all others; `keep` gets what is sent.
pub(super) fn send_to_all(
    b: Group,
    channel: &Tiles<'_>,
    cut: Cut,
    (x, part): (&AnyPtr, Part),
    mut keep: impl FnMut(Piece, AnyTile),
) {
    cut.each(b, |t| {
        let tile = part.load(x, &t);
        send(channel, Peers::others(), t.index, tile);
        keep(t, tile);
    });
}

/// Sends every other rank its part of a vector, tile by tile: as many have come from each rank at any time. The next rank's is the first,
/// so that not all ranks send to the same one.
#[kernel]
pub(super) fn send_to_each(b: Group, channel: &Tiles<'_>, cut: Cut, x: &AnyPtr, parts: Parts) {
    cut.each(b, |t| {
        for i in 1..ranks().val() {
            let to = (rank() + i) % ranks();
            send(channel, Peers::rank(to), t.index, parts.of(to).load(x, &t));
        }
    });
}

/// Takes what every other rank sends, tile by tile as it comes. The next rank's is the first.
#[kernel]
pub(super) fn take_from_each(
    b: Group,
    channel: &Tiles<'_>,
    cut: Cut,
    mut act: impl FnMut(Val<u32>, Piece, AnyTile),
) {
    cut.each(b, |t| {
        for i in 1..ranks().val() {
            let from = (rank() + i) % ranks();
            act(from, t, channel.from(from).slot(t.index).load(0, t.len));
        }
    });
}

/// How a block reduces.
#[derive(Clone, Copy)]
pub(super) struct Reduce {
    pub op: Reduction,
    /// Ranks whose tiles become one.
    pub ranks: u32,
    /// Type of the elements.
    pub dtype: Dtype,
    /// Ranks whose tiles are on their way at once.
    pub together: u32,
}

/// Registers of a thread for elements: of its own tile and the result, as `f32`, and of tiles on their way. A thread has 128 with 16
/// warps, of which addresses take many, and half as many with 32.
fn registers(warps: u32) -> u32 {
    if warps > 16 { 36 } else { 72 }
}

impl Reduce {
    /// With tiles of `len` elements, in blocks of `warps` warps.
    pub fn new(op: Reduction, ranks: u32, len: u32, dtype: Dtype, warps: u32) -> Reduce {
        let bytes = dtype.bytes();
        let of_thread = len.div_ceil(32 * warps).max(PACKET_BYTES / bytes);
        let left = registers(warps).saturating_sub(2 * of_thread);
        Reduce { op, ranks, dtype, together: (4 * left / (of_thread * bytes)).clamp(1, ranks) }
    }

    /// All ranks' tiles of a slot as one, in the order of ranks, so that all ranks get the same bits: this rank's own, and what the
    /// others send. The result is of `f32`, or of integers.
    pub fn tiles(&self, channel: &Tiles<'_>, slot: Val<u32>, own: AnyTile, len: u32) -> AnyTile {
        match self.dtype {
            Dtype::I32 => self.sent::<i32>(channel, slot, own, len).into(),
            _ => self.sent::<f32>(channel, slot, own, len).into(),
        }
    }

    #[kernel]
    fn sent<T: Summand>(&self, channel: &Tiles<'_>, slot: Val<u32>, own: AnyTile, len: u32) -> Tile<T> {
        let own = T::of(own);
        let theirs = channel.from_some(others()).slot(slot);
        self.all(len, |first, count| {
            let each = (0..count).zip(theirs.load_each(first, count, 0, len));
            let mine = |i: u32| (first + i).eq_to(local_rank()).splat(len);
            let counted = |i, tile: AnyTile| self.op.counted(first + i, T::of(tile), len);
            each.map(|(i, tile)| mine(i).select(own, counted(i, tile))).collect()
        })
    }

    /// The same of tiles in memory that peers read.
    pub fn published(&self, all: &Published, got: &Arrived, t: &Piece) -> AnyTile {
        self.loaded(t.len, |of| all.tile(of, got, t))
    }

    /// The same of tiles that `load` has by their ranks.
    pub fn loaded(&self, len: u32, load: impl Fn(Val<u32>) -> AnyTile) -> AnyTile {
        match self.dtype {
            Dtype::I32 => self.read::<i32>(len, load).into(),
            _ => self.read::<f32>(len, load).into(),
        }
    }

    fn read<T: Summand>(&self, len: u32, load: impl Fn(Val<u32>) -> AnyTile) -> Tile<T> {
        self.all(len, |first, count| {
            let each: Vec<AnyTile> = (0..count).map(|i| load(first + i)).collect();
            let counted = |(i, tile): (u32, AnyTile)| self.op.counted(first + i, T::of(tile), len);
            (0..count).zip(each).map(counted).collect()
        })
    }

    /// A result in the type of the elements.
    pub fn rounded(&self, result: AnyTile) -> AnyTile {
        if self.dtype == Dtype::I32 { result } else { AnyTile::rounded(result.typed(), self.dtype) }
    }

    /// All ranks' tiles as one; `load` has those of some ranks, from the first of them on.
    #[kernel]
    fn all<T: Summand>(&self, len: u32, mut load: impl FnMut(Val<u32>, u32) -> Vec<Tile<T>>) -> Tile<T> {
        let mut sum = var(splat(T::identity(self.op), len));
        let mut some = |first: Val<u32>, count: u32| {
            for tile in load(first, count) {
                sum.set(self.op.tiles(sum.get(), tile));
            }
        };
        let (whole, rest) = (self.ranks / self.together, self.ranks % self.together);
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
        match self.op {
            Reduction::Avg => T::average(sum.get(), self.count()),
            _ => sum.get(),
        }
    }

    /// How many ranks count. Worlds of several nodes need all ranks.
    fn count(&self) -> Val<f32> {
        if nodes() > 1 { (self.ranks as f32).val() } else { active_ranks().popcount().to_f32() }
    }
}
