//! Scales of fp8 operands: what the values of `x` and `w` are multiplied by.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::{Activation, Sums};

/// Which scales the two operands of a product have.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scales {
    /// None: the elements are the values.
    None,
    /// One of all elements of each operand.
    Tensor,
    /// One of each row of each operand: of a token, and of a column of the result.
    Row,
    /// One of each row of `x` and of each 128 rows of `w`, for each 128 columns.
    Block,
}

/// Columns that a scale is of, and rows of `w`.
pub(super) const BLOCK: u32 = 128;

impl Scales {
    /// Scales are of fp8 alone. Blocks of columns with scales are added up in order, by one block.
    pub(super) fn legal(self, dtype: Dtype, split: u32) -> Result<(), Illegal> {
        let allowed = || format!("none with dtype = {dtype}: only elements of fp8 have scales");
        Illegal::unless(self == Scales::None || dtype == Dtype::Fp8, "scales", self.name(), allowed)?;
        let allowed = || "1 with scales = block: a block adds up all columns of a tile";
        Illegal::unless(self != Scales::Block || split == 1, "split", split, allowed)
    }

    /// Scales of `x` and of `w`, of `[m, n, k]` and so many matrices of weights.
    pub(super) fn counts(self, [m, n, k]: [u32; 3], groups: u32, activation: Activation) -> [u64; 2] {
        let blocks = |rows: u32| u64::from(rows) * u64::from(k.div_ceil(BLOCK));
        let groups = u64::from(groups);
        match self {
            Scales::None => [0; 2],
            Scales::Tensor => [1, groups],
            Scales::Row => [m.into(), groups * u64::from(n)],
            Scales::Block => [blocks(m), groups * blocks(row_blocks(n, activation))],
        }
    }
}

/// Blocks of 128 rows of a matrix of weights. Gates and values have their own.
pub(super) fn row_blocks(n: u32, activation: Activation) -> u32 {
    let parts = if activation.is_gated() { 2 } else { 1 };
    parts * (n / parts).div_ceil(BLOCK)
}

/// A tile of a product, whose operands may have scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub scales: Scales,
    pub activation: Activation,
    /// Rows of `x` and of `w`.
    pub rows: [MatrixRows; 2],
    /// Their scales, if they have any.
    pub of: [Option<Ptr<f32>>; 2],
    /// The first row of `x`, and the first column of the product.
    pub at: [Val<u32>; 2],
    /// Which of the matrices of weights it is of.
    pub group: Val<u32>,
    pub tile: [u32; 2],
    /// All rows of `x`, rows of a matrix of weights, and columns of both.
    pub shape: [u32; 3],
    pub stages: u32,
}

impl Product {
    /// The sums of a tile times the scales of `x`, then times those of `w`.
    #[kernel]
    pub fn scaled(self, sums: Tile<f32>) -> Sums {
        let ([row, column], tile) = (self.at, self.tile);
        Sums::All(match (self.scales, self.of) {
            (Scales::Tensor, [Some(x), Some(w)]) => sums * x.get(0) * w.get(self.group),
            (Scales::Row, [Some(x), Some(w)]) => {
                sums * x.load_columns_f32(row, tile)
                    * w.load_rows_f32(self.group * self.shape[1] + column, tile)
            }
            _ => sums,
        })
    }

    /// The sums of a tile, block after block in order.
    #[kernel]
    pub fn added_up(self, b: Group) -> Sums {
        let (whole, rest) = (self.shape[2] / BLOCK, self.shape[2] % BLOCK);
        let first = self.block(b, 0u32.val(), self.shape[2].min(BLOCK));
        let mut sums: Vec<_> = first.parts().into_iter().map(var).collect();
        for i in 1u32.val()..whole.val() {
            add(&mut sums, || self.block(b, i, BLOCK));
        }
        if whole > 0 && rest > 0 {
            add(&mut sums, || self.block(b, whole.val(), rest));
        }
        match &sums[..] {
            [gate, up] => Sums::Gated([gate.get(), up.get()]),
            all => Sums::All(all[0].get()),
        }
    }

    /// The sums over `columns` columns of block `i`, times the product of its scales.
    fn block(&self, b: Group, i: Val<u32>, columns: u32) -> Sums {
        let ([x, w], [row, column], [m, n, k]) = (self.rows, self.at, self.shape);
        let [x_scales, w_scales] = self.of.map(|scales| scales.expect("blocks have scales"));
        let (all, [rows, width]) = (row_blocks(n, self.activation), self.tile);
        let sums = self.activation.apart(b.dot(x.columns(i * BLOCK, columns), w, self.stages));
        let scaled = |sums: Tile<f32>, row_block: Val<u32>| {
            let scale = w_scales.get(row_block * k.div_ceil(BLOCK) + i);
            sums * (x_scales.load_columns_f32(i * m + row, [rows, self.activation.columns(width)]) * scale)
        };
        let first = self.group * all + self.activation.place(column) / BLOCK;
        match sums {
            Sums::All(sums) => Sums::All(scaled(sums, first)),
            Sums::Gated([gate, up]) => Sums::Gated([scaled(gate, first), scaled(up, first + all / 2)]),
        }
    }
}

/// Adds a block's sums to those of the blocks before it.
fn add(sums: &mut [TileVar<f32>], block: impl FnOnce() -> Sums) {
    let before: Vec<_> = sums.iter().map(TileVar::get).collect();
    let parts = before.into_iter().zip(block().parts());
    sums.iter_mut().zip(parts).for_each(|(sum, (before, part))| sum.set(before + part));
}
