//! Products of parts of the columns by several blocks, which one of them adds up: few rows have fewer tiles than a GPU has SMs.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Illegal;
use peerwarp_codegen::ir::{Dtype, dot_columns};

/// How the products of a kernel are cut into parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Parts of the columns: 1 if the block of a tile multiplies all of them.
    pub parts: u32,
    /// Columns of operands, and their type.
    pub columns: u32,
    pub dtype: Dtype,
    /// Tiles that a rank multiplies.
    pub tiles: u32,
    /// Rows and columns of a tile.
    pub tile: [u32; 2],
}

impl Split {
    /// Whether all parts are of equally many pieces in shared memory.
    pub(super) fn legal(&self) -> Result<(), Illegal> {
        let piece = dot_columns(self.dtype);
        let pieces = self.columns / piece;
        let whole = self.columns.is_multiple_of(piece * self.parts);
        let allowed = || match self.columns.is_multiple_of(piece) {
            true => format!("one that divides {pieces}, k in pieces of {piece}"),
            false => format!("1 with k = {}, which is no multiple of {piece}", self.columns),
        };
        Illegal::unless(self.parts == 1 || whole, "split", self.parts, allowed)?;
        // Rows of sums are counted in 32 bits.
        let rows = u64::from(self.tiles) * u64::from(self.tile[0]) * u64::from(self.parts);
        let allowed = || "1 with so many tiles: rows of sums are counted in 32 bits".to_owned();
        Illegal::unless(self.parts == 1 || rows <= u32::MAX.into(), "split", self.parts, allowed)
    }

    /// Parts of all tiles; of illegal ones at most as many as 32 bits count.
    pub(super) fn items(&self) -> u32 {
        self.tiles.saturating_mul(self.parts)
    }

    /// The tile and the part that item `i` is: those of a tile follow one another, so that several blocks have them at the same time.
    pub(super) fn item(&self, i: Val<u32>) -> Part {
        let (tile, number) = if self.parts == 1 { (i, 0u32.val()) } else { (i / self.parts, i % self.parts) };
        Part { split: *self, tile, number }
    }

    /// Parts whose sums are stored: all but the last of each tile.
    fn stored(&self) -> u32 {
        self.tiles * (self.parts - 1)
    }
}

/// A part of the columns of a tile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    split: Split,
    pub tile: Val<u32>,
    number: Val<u32>,
}

impl Part {
    /// Its columns of an operand.
    pub fn of(&self, rows: MatrixRows) -> MatrixRows {
        let Split { parts, columns, .. } = self.split;
        if parts == 1 { rows } else { rows.columns(self.number * (columns / parts), columns / parts) }
    }
}

/// What blocks need that share the columns of tiles.
#[derive(KernelArgs)]
#[args(config = Split)]
pub struct SplitArgs {
    /// Sums over all parts of the columns but the last, `[tile][part][row][column]`.
    #[shape(|c| [c.stored() * c.tile[0], c.tile[1]])]
    #[dtype(|_| Dtype::F32)]
    pub sums: Option<AnyMatrix>,
    /// Sums over a part are there, `[tile][part]`.
    #[len(|c| u64::from(c.stored()))]
    pub summed: Option<BlockFlags>,
}

impl SplitArgs {
    /// Goes on with the sums over all columns of a tile: in the block that has the last part, after those of the others, which it adds
    /// to its own in order.
    pub(super) fn whole(
        &self,
        b: Group,
        part: Part,
        sums: Tile<f32>,
        epoch: Option<Epoch>,
        then: impl FnOnce(Tile<f32>),
    ) {
        match (self.sums, self.summed, epoch) {
            (Some(stored), Some(summed), Some(epoch)) => {
                add_up(b, part, Stored { sums: stored, summed, epoch }, sums, then);
            }
            _ => then(sums),
        }
    }
}

/// Sums over parts.
struct Stored {
    sums: AnyMatrix,
    summed: BlockFlags,
    epoch: Epoch,
}

impl Stored {
    fn rows(&self, split: Split, slot: Val<u32>) -> MatrixRows {
        self.sums.rows(slot * split.tile[0], split.tile[0])
    }
}

#[kernel]
fn add_up(b: Group, part: Part, stored: Stored, sums: Tile<f32>, then: impl FnOnce(Tile<f32>)) {
    let Part { split, tile, number } = part;
    let last = split.parts - 1;
    if number < last {
        // A number below `last`, and known to be.
        let slot = tile * last + number % last;
        stored.rows(split, slot).store_f32(0, sums);
        stored.summed.signal(slot, stored.epoch);
    } else {
        let first = tile * split.parts;
        // Blocks that are the next ones to each other, unless there is a last one among them.
        let in_turn = b.count().is_multiple_of(split.parts);
        if in_turn {
            stored.summed.from(first % b.count()).wait_all(tile * last, last, 1, stored.epoch);
        }
        let mut all = sums;
        for other in 0..last {
            if !in_turn {
                stored.summed.from((first + other) % b.count()).wait(tile * last + other, stored.epoch);
            }
            all = all + stored.rows(split, tile * last + other).load_f32(0, split.tile[1]);
        }
        then(all);
    }
}
