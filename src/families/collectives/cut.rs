//! Vectors of any length, cut into tiles that travel as whole packets.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::length::{LengthArgs, Lengths, There};

/// How a vector is cut: into tiles of one length and a rest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    /// Elements of the vector.
    pub elements: u32,
    /// Elements of a tile.
    pub chunk: u32,
    /// Elements of a packet.
    pub packet: u32,
    /// Elements of a row, of which launches say how many there are; 0 if they have all elements.
    pub row: u32,
    /// What there is in a launch, if it says so.
    pub there: Option<There>,
}

impl Cut {
    pub fn new(elements: u32, chunk: u32, dtype: Dtype) -> Cut {
        Cut { elements, chunk, packet: PACKET_BYTES / dtype.bytes(), row: 0, there: None }
    }

    /// The same of vectors whose lengths launches say.
    pub fn of_any(self, lengths: Lengths) -> Cut {
        Cut { row: lengths.cut_row(), ..self }
    }

    /// What a launch has of it.
    pub fn of(self, there: Option<There>) -> Cut {
        Cut { there, ..self }
    }

    /// The same where vectors, or parts, have one length.
    pub fn of_launch(self, lengths: Lengths, a: &LengthArgs) -> Cut {
        self.of(a.there(lengths))
    }

    /// All tiles, of which those hold something that a launch has.
    pub fn with_empty(self) -> Cut {
        let all = |there: There| There { len: self.elements.val(), held: Some(there.len) };
        self.of(self.there.map(all))
    }

    /// Elements of a buffer with all tiles one after another: whole packets.
    pub fn room(&self) -> u32 {
        if self.row > 0 { self.tiles() * self.longest() } else { self.elements.next_multiple_of(self.packet) }
    }

    /// Elements of the longest tile where it travels: packets are whole.
    pub fn longest(&self) -> u32 {
        self.elements.min(self.chunk).next_multiple_of(self.packet)
    }

    /// Bytes of it.
    pub fn bytes(&self) -> u64 {
        u64::from(self.longest() / self.packet) * u64::from(PACKET_BYTES)
    }

    /// How many tiles there are.
    pub fn tiles(&self) -> u32 {
        self.elements.div_ceil(self.chunk)
    }

    /// Does something with each of a block's tiles. Blocks of the same number have the same ones, in every loop and on every rank.
    #[kernel]
    pub fn each(&self, b: Group, mut act: impl FnMut(Piece)) {
        if let Some(there) = self.there {
            return self.each_there(b, there, act);
        }
        let (full, rest) = (self.elements / self.chunk, self.elements % self.chunk);
        if full > 0 {
            for index in b.strided(full) {
                act(Piece { index, at: index * self.chunk, len: self.chunk, real: self.chunk, end: None });
            }
        }
        if rest > 0 {
            let len = rest.next_multiple_of(self.packet);
            // It is dealt out as the others are.
            if b.index() == full % b.count() {
                act(Piece { index: full.val(), at: (full * self.chunk).val(), len, real: rest, end: None });
            }
        }
    }

    /// The same with the tiles of a launch: first those that are full, then those that tensors hold in part or not at all.
    #[kernel]
    fn each_there(&self, b: Group, there: There, mut act: impl FnMut(Piece)) {
        let (len, held) = (self.longest(), there.held.unwrap_or(there.len));
        let full = held / self.chunk;
        if self.elements >= self.chunk {
            for index in b.strided(full) {
                act(Piece { index, at: index * self.chunk, len, real: len, end: None });
            }
        }
        // Rows of whole tiles leave no tile in part.
        if there.held.is_some() || !self.row.is_multiple_of(self.chunk) {
            let all = (there.len + (self.chunk - 1)) / self.chunk;
            // They are dealt out as the others are.
            let first = full + (b.index() + b.count() - full % b.count()) % b.count();
            for index in (first..all).step_by(b.count()) {
                act(Piece { index, at: index * self.chunk, len, real: len, end: Some(held) });
            }
        }
    }

    /// The same with those tiles that hold some of a part, which has at most as many elements as are cut.
    #[kernel]
    pub fn each_of(&self, b: Group, part: Part, mut act: impl FnMut(Piece)) {
        let there = part.len.unwrap_or(self.elements.val());
        let (full, rest) = (self.elements / self.chunk, self.elements % self.chunk);
        if full > 0 {
            let held = (there + (self.chunk - 1)) / self.chunk;
            for index in b.strided(held.min(full)) {
                act(Piece { index, at: index * self.chunk, len: self.chunk, real: self.chunk, end: None });
            }
        }
        if rest > 0 {
            let len = rest.next_multiple_of(self.packet);
            // It is dealt out as the others are.
            if b.index() == full % b.count() && there > full * self.chunk {
                act(Piece { index: full.val(), at: (full * self.chunk).val(), len, real: rest, end: None });
            }
        }
    }
}

/// A tile of a vector.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Its number.
    pub index: Val<u32>,
    /// Its first element.
    pub at: Val<u32>,
    /// Elements that travel: whole packets.
    pub len: u32,
    /// Elements of them that are the vector's.
    pub real: u32,
    /// Elements of the vector in this launch, where the tile may go beyond them.
    pub end: Option<Val<u32>>,
}

/// Who owns a tile. A block's tiles have the ranks as owners in turn, and so have the blocks' first ones, so that all links are in use
/// at once.
pub(super) fn owner(ranks: u32, b: Group, t: &Piece) -> Val<u32> {
    (t.index / b.count() + t.index % b.count()) % ranks
}

/// Whether all ranks are active.
pub(super) fn all_active() -> Val<bool> {
    active_ranks().eq_to(u64::MAX >> (64 - local_ranks()))
}

/// Who does the part of a rank: itself, or the first active rank in its place.
pub(super) fn stand_in(of: Val<u32>) -> Val<u32> {
    is_active(of).select(of, active_ranks().trailing_zeros())
}

/// Where in a buffer a vector is.
#[derive(Clone, Copy)]
pub(super) struct Part {
    /// Its first element.
    pub first: Index,
    /// How many elements it has there, if not on all ranks as many as were cut.
    len: Option<Val<u32>>,
}

impl Part {
    /// A vector that is there from some element on.
    pub fn from(first: impl IntoIndex) -> Part {
        Part { first: first.index(), len: None }
    }

    /// A vector of which so many elements are there.
    pub fn of(first: impl IntoIndex, len: Val<u32>) -> Part {
        Part { first: first.index(), len: Some(len) }
    }

    /// All of a buffer.
    pub fn whole() -> Part {
        Part::from(0u32)
    }

    /// The same part of another buffer.
    pub fn at(self, first: impl IntoIndex) -> Part {
        Part { first: first.index(), ..self }
    }

    /// Which elements of a tile there are; none if all are.
    fn there(&self, t: &Piece) -> Option<Tile<bool>> {
        match self.len.or(t.end) {
            None if t.real == t.len => None,
            None => Some(arange(t.len).lt(t.real)),
            Some(len) => Some(arange(t.len).lt((len.max(t.at) - t.at).min(t.real))),
        }
    }

    /// A tile of the vector. Where it ends, zeros follow.
    pub fn load(&self, x: &AnyPtr, t: &Piece) -> AnyTile {
        match self.there(t) {
            None => x.load(self.first + t.at, t.len),
            Some(there) => x.load_where(self.first + t.at, there),
        }
    }

    /// The same of a rank's, and zeros if it is not active.
    pub fn load_of(&self, x: &AnyWindow, of: Val<u32>, got: &Arrived, t: &Piece) -> AnyTile {
        let (active, x) = (is_active(of), x.of(of));
        match self.there(t) {
            None => x.load_if(got, self.first + t.at, t.len, active),
            Some(there) => x.load_where(got, self.first + t.at, there & active.splat(t.len)),
        }
    }

    /// Writes a tile of the vector, and nothing behind it.
    pub fn store(&self, out: &AnyPtr, t: &Piece, tile: AnyTile) {
        match self.there(t) {
            None => out.store(self.first + t.at, tile),
            Some(there) => out.store_where(self.first + t.at, tile, there),
        }
    }
}

/// The first element of a rank's row, where each of `ranks` rows has so many: in 64 bits if 32 do not count all elements.
pub(super) fn row(rank: Val<u32>, elements: u32, ranks: u32) -> Index {
    if elements.checked_mul(ranks).is_some() {
        (rank * elements).index()
    } else {
        (rank.to_u64() * u64::from(elements)).index()
    }
}

/// The same of rows as long as a launch says, of at most as many elements as are cut.
pub(super) fn row_of(rank: Val<u32>, cut: &Cut, ranks: u32) -> Index {
    match cut.there {
        None => row(rank, cut.elements, ranks),
        Some(There { len, .. }) if cut.elements.checked_mul(ranks).is_some() => (rank * len).index(),
        Some(There { len, .. }) => (rank.to_u64() * len.to_u64()).index(),
    }
}

/// A vector in parts, one for each rank: all of one length, but for the last ones where that does not divide it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    /// Elements of the vector.
    pub elements: u32,
    /// Elements of a part.
    pub part: u32,
    /// Elements of a part in this launch, if it says so.
    there: Option<Val<u32>>,
}

impl Parts {
    pub fn new(elements: u32, ranks: u32) -> Parts {
        Parts { elements, part: elements.div_ceil(ranks), there: None }
    }

    /// The same as long as a launch says.
    pub fn in_launch(self, cut: &Cut) -> Parts {
        Parts { there: cut.there.map(|there| there.len), ..self }
    }

    /// The part of a rank among others that have room for the longest.
    pub fn in_row(&self, of: Val<u32>, row: Val<u32>) -> Part {
        match self.there {
            None => self.of(of).at(row * self.part),
            Some(len) => Part::from(row * len),
        }
    }

    /// The part of a rank.
    pub fn of(&self, rank: Val<u32>) -> Part {
        if let Some(len) = self.there {
            return Part::from(rank * len);
        }
        let first = rank * self.part;
        let all = self.elements.is_multiple_of(self.part) && self.elements / self.part == ranks();
        Part { first: first.index(), len: (!all).then(|| first.max(self.elements) - first) }
    }
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::dsl::{TraceMeta, trace};

    use super::*;

    fn traced(elements: u32, chunk: u32) -> Vec<(u32, u32)> {
        let mut found = vec![];
        let cut = Cut::new(elements, chunk, Dtype::Bf16);
        trace(TraceMeta::new("cut", 2, 32, 1), |_| {
            role("all", 1, |b| cut.each(b, |t| found.push((t.len, t.real))));
        })
        .unwrap();
        found
    }

    #[test]
    fn tiles_are_whole_packets_and_the_last_may_be_shorter() {
        assert_eq!(traced(512, 256), [(256, 256)]);
        assert_eq!(traced(513, 256), [(256, 256), (8, 1)]);
        assert_eq!(traced(7, 256), [(8, 7)]);
        let cut = Cut::new(513, 256, Dtype::Bf16);
        assert_eq!((cut.longest(), cut.tiles()), (256, 3));
        assert_eq!(Cut::new(7, 256, Dtype::Bf16).longest(), 8);
    }
}
