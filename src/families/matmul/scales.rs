//! Scales of fp8 operands: what the values of `x` and `w` are multiplied by.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::Dtype;

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

    /// Scales of `x` and of `w`, of `[m, n, k]`.
    pub(super) fn counts(self, [m, n, k]: [u32; 3]) -> [u64; 2] {
        let all = |rows: u32| u64::from(rows) * u64::from(k.div_ceil(BLOCK));
        match self {
            Scales::None => [0; 2],
            Scales::Tensor => [1; 2],
            Scales::Row => [m.into(), n.into()],
            Scales::Block => [all(m), all(n.div_ceil(BLOCK))],
        }
    }
}

/// Rows of operands, and how their blocks are scaled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blocks {
    /// Rows of `x` and of `w`.
    pub rows: [MatrixRows; 2],
    /// Scales of `x`, `[k / 128][m]`, and of `w`, `[n / 128][k / 128]`.
    pub scales: [Ptr<f32>; 2],
    /// The first of the rows.
    pub at: [Val<u32>; 2],
    pub tile: [u32; 2],
    /// All rows of `x`, and columns of both.
    pub m: u32,
    pub k: u32,
    pub stages: u32,
}

impl Blocks {
    /// The sums over `columns` columns of block `i`, times the product of its scales.
    fn one(&self, b: Group, i: Val<u32>, columns: u32) -> Tile<f32> {
        let ([x, w], [x_scales, w_scales], [row, column]) = (self.rows, self.scales, self.at);
        let sums = b.dot(x.columns(i * BLOCK, columns), w, self.stages);
        let scale = w_scales.get(column / BLOCK * self.k.div_ceil(BLOCK) + i);
        sums * (x_scales.load_columns_f32(i * self.m + row, self.tile) * scale)
    }
}

/// The sums of a tile, block after block in order.
#[kernel]
pub(super) fn added_up(b: Group, blocks: Blocks) -> Tile<f32> {
    let (whole, rest) = (blocks.k / BLOCK, blocks.k % BLOCK);
    let mut sums = var(blocks.one(b, 0u32.val(), blocks.k.min(BLOCK)));
    for i in 1u32.val()..whole.val() {
        sums.set(sums.get() + blocks.one(b, i, BLOCK));
    }
    if whole > 0 && rest > 0 {
        sums.set(sums.get() + blocks.one(b, whole.val(), rest));
    }
    sums.get()
}

/// The sums of a tile, which begins at a row and a column of the result, times the scales of `x`, then times those of `w`.
#[kernel]
pub(super) fn scaled(
    scales: Scales,
    [x, w]: [Option<Ptr<f32>>; 2],
    [row, column]: [Val<u32>; 2],
    tile: [u32; 2],
    sums: Tile<f32>,
) -> Tile<f32> {
    match (scales, x, w) {
        (Scales::Tensor, Some(x), Some(w)) => sums * x.get(0) * w.get(0),
        (Scales::Row, Some(x), Some(w)) => {
            sums * x.load_columns_f32(row, tile) * w.load_rows_f32(column, tile)
        }
        _ => sums,
    }
}
