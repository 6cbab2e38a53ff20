//! Scales of fp8 operands: what the values of `x` and `w` are multiplied by.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::{Dtype, dot_columns};

use super::epilogue::{Activation, Sums};
use super::output::Output;

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
    /// A power of two (e8m0) of each row of either, for each 32 columns: mxfp8, as `tcgen05` multiplies it.
    Mx,
    /// An e4m3 of each row of either, for each 16 elements of e2m1, and one of all: nvfp4, as `tcgen05` multiplies it.
    Nvfp4,
}

/// Columns that a scale is of, and rows of `w`.
pub(super) const BLOCK: u32 = 128;

impl Scales {
    /// Scales are of fp8 alone, and of words of e2m1. Blocks of columns with scales are added up in order, by one block.
    pub(super) fn legal(self, dtype: Dtype, split: u32) -> Result<(), Illegal> {
        let allowed = || match dtype {
            Dtype::U32 => "nvfp4 with dtype = u32, words of eight e2m1".to_owned(),
            _ => format!(
                "none with dtype = {dtype}: only elements of fp8 have scales, and words of e2m1 (u32) those of nvfp4"
            ),
        };
        let fits = match dtype {
            Dtype::U32 => self == Scales::Nvfp4,
            Dtype::Fp8 => self != Scales::Nvfp4,
            _ => self == Scales::None,
        };
        Illegal::unless(fits, "scales", self.name(), allowed)?;
        let allowed = || format!("1 with scales = {}: a block adds up all columns of a tile", self.name());
        let alone = self == Scales::Block || self.tile().is_some();
        Illegal::unless(!alone || split == 1, "split", split, allowed)
    }

    /// Tiles of scales have 128 rows, and so have those of products with them, of as many columns. k is a multiple of a piece.
    /// No warps meet while a loader brings scales.
    pub(super) fn tiles_legal(
        self,
        k: u32,
        [rows, columns]: [u32; 2],
        (out, warps): (Output, u32),
    ) -> Result<(), Illegal> {
        let Some(tile) = self.tile() else { return Ok(()) };
        let piece = dot_columns(Dtype::Fp8) * if self == Scales::Nvfp4 { 2 } else { 1 };
        let allowed = || format!("a multiple of {piece} with scales = {}", self.name());
        Illegal::unless(k.is_multiple_of(piece), "k", k, allowed)?;
        [("tile_rows", rows), ("tile_columns", columns)].into_iter().try_for_each(|(field, value)| {
            Illegal::unless(value == tile, field, value, || format!("{tile} with scales = {}", self.name()))
        })?;
        out.warps_legal(rows, warps)
    }

    /// The tile of a product by which other choices of tiles are replaced, where the product itself multiplies by scales.
    pub(super) fn tile(self) -> Option<u32> {
        matches!(self, Scales::Mx | Scales::Nvfp4).then_some(BLOCK)
    }

    /// Element type of the scales: an `f32` each, or a word of four.
    pub(super) fn dtype(self) -> Dtype {
        if self.tile().is_some() { Dtype::U32 } else { Dtype::F32 }
    }

    /// Columns of operands in memory with `k` elements: words have eight.
    pub(super) fn columns(self, k: u32) -> u32 {
        if self == Scales::Nvfp4 { k / 8 } else { k }
    }

    /// Numbers that sums are multiplied by: the scales of all, one for each matrix of weights.
    pub(super) fn alphas(self, groups: u32) -> u64 {
        if self == Scales::Nvfp4 { groups.into() } else { 0 }
    }

    /// Rows of an operand, with their scales if the product itself multiplies by them.
    pub(super) fn of_rows(self, rows: MatrixRows, scales: Option<AnyPtr>) -> MatrixRows {
        scales.filter(|_| self.tile().is_some()).map_or(rows, |scales| rows.scaled_by(&scales.typed()))
    }

    /// The scales that sums are multiplied by.
    pub(super) fn of_sums(
        self,
        scales: [Option<AnyPtr>; 2],
        alpha: Option<Ptr<f32>>,
    ) -> [Option<Ptr<f32>>; 2] {
        match self {
            Scales::Mx | Scales::Nvfp4 => [None, alpha],
            _ => scales.map(|of| of.map(|of| of.typed())),
        }
    }

    /// Scales of `x` and of `w`, of `[m, n, k]` and so many matrices of weights.
    pub(in crate::families) fn counts(
        self,
        [m, n, k]: [u32; 3],
        groups: u32,
        activation: Activation,
    ) -> [u64; 2] {
        let columns = if self == Scales::Nvfp4 { 64 } else { BLOCK };
        let blocks = |rows: u32| u64::from(rows) * u64::from(k.div_ceil(columns));
        let groups = u64::from(groups);
        match self {
            Scales::None => [0; 2],
            Scales::Tensor => [1, groups],
            Scales::Row => [m.into(), groups * u64::from(n)],
            Scales::Block => [blocks(m), groups * blocks(row_blocks(n, activation))],
            Scales::Mx | Scales::Nvfp4 => {
                [blocks(m.next_multiple_of(BLOCK)), groups * blocks(n.next_multiple_of(BLOCK))]
            }
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
pub(in crate::families) struct Product {
    pub scales: Scales,
    pub activation: Activation,
    /// Rows of `x` and of `w`.
    pub rows: [MatrixRows; 2],
    /// Their scales, if they have any.
    pub of: [Option<Ptr<f32>>; 2],
    /// Which row of `x` each row of the result is of, if they are not the same.
    pub index: Option<Ptr<u32>>,
    /// The first row of the result, and the first column of the product.
    pub at: [Val<u32>; 2],
    /// Which of the matrices of weights it is of.
    pub group: Val<u32>,
    pub tile: [u32; 2],
    /// All rows of `x`, rows of a matrix of weights, and columns of both.
    pub shape: [u32; 3],
    pub stages: u32,
    /// Whether other blocks tell that `x` is there: a tile's first sums, which a loader waits for, come before its scales then.
    pub told: bool,
}

impl Product {
    /// The sums of a tile, with all scales.
    #[track_caller]
    pub fn sums(self, b: Group) -> Sums {
        let [x, w] = self.rows;
        match self.scales {
            Scales::Block => self.added_up(b),
            _ => self.scaled(b.dot(x, w, self.stages)),
        }
    }

    /// The sums of a tile times the scales of `x`, then times those of `w`.
    #[kernel]
    pub fn scaled(self, sums: Tile<f32>) -> Sums {
        let ([row, column], tile) = (self.at, self.tile);
        Sums::All(match (self.scales, self.of) {
            (Scales::Nvfp4, [_, Some(alpha)]) => sums * alpha.get(self.group),
            (Scales::Tensor, [Some(x), Some(w)]) => sums * x.get(0) * w.get(self.group),
            (Scales::Row, [Some(x), Some(w)]) => {
                sums * (match &self.index {
                    Some(index) => x.gather_columns_f32(0u32, index, row, tile),
                    None => x.load_columns_f32(row, tile),
                }) * w.load_rows_f32(self.group * self.shape[1] + column, tile)
            }
            _ => sums,
        })
    }

    /// The sums of a tile, block after block in order. The scales of a block are read while the block before is multiplied.
    #[kernel]
    fn added_up(self, b: Group) -> Sums {
        let (whole, rest) = (self.shape[2] / BLOCK, self.shape[2] % BLOCK);
        let at = (0u32.val(), self.shape[2].min(BLOCK));
        let before = self.told.then(|| self.block_sums(b, at));
        let scales = BlockScales::new(&self);
        let (of_x, of_w) = scales.turn(&self, (self.shape[2] > BLOCK).then(|| 1u32.val()));
        let first = before.unwrap_or_else(|| self.block_sums(b, at)).parts();
        let mut sums: Vec<_> =
            first.into_iter().zip(of_w).map(|(part, of_w)| var(part * (of_x * of_w))).collect();
        for i in 1u32.val()..whole.val() {
            let after = (i + 1).min(self.shape[2].div_ceil(BLOCK) - 1);
            add(&mut sums, || self.block(b, (i, BLOCK), &scales, Some(after)));
        }
        if whole > 0 && rest > 0 {
            add(&mut sums, || self.block(b, (whole.val(), rest), &scales, None));
        }
        match &sums[..] {
            [gate, up] => Sums::Gated([gate.get(), up.get()]),
            all => Sums::All(all[0].get()),
        }
    }

    /// The sums over so many columns of block `i`, each with its scales; `after` is the block after it, if there is one.
    fn block(
        &self,
        b: Group,
        (i, columns): (Val<u32>, u32),
        scales: &BlockScales,
        after: Option<Val<u32>>,
    ) -> Vec<(Tile<f32>, Tile<f32>)> {
        let (of_x, of_w) = scales.turn(self, after);
        let sums = self.block_sums(b, (i, columns)).parts();
        sums.into_iter().zip(of_w).map(|(part, of_w)| (part, of_x * of_w)).collect()
    }

    fn block_sums(&self, b: Group, (i, columns): (Val<u32>, u32)) -> Sums {
        let [x, w] = self.rows;
        self.activation.apart(b.dot(x.columns(i * BLOCK, columns), w, self.stages))
    }

    /// The scales of block `i` of `x`.
    fn x_scales(&self, i: Val<u32>) -> Tile<f32> {
        let ([row, _], [m, ..], [rows, width]) = (self.at, self.shape, self.tile);
        let x = self.of[0].expect("blocks have scales");
        let shape = [rows, self.activation.columns(width)];
        match &self.index {
            Some(index) => x.gather_columns_f32(i * m, index, row, shape),
            None => x.load_columns_f32(i * m + row, shape),
        }
    }

    /// Those of `w`: of gates and of values, if there are any.
    fn w_scales(&self, i: Val<u32>) -> Vec<Val<f32>> {
        let ([_, column], [_, n, k]) = (self.at, self.shape);
        let w = self.of[1].expect("blocks have scales");
        let all = row_blocks(n, self.activation);
        let first = self.group * all + self.activation.place(column) / BLOCK;
        let parts = if self.activation.is_gated() { vec![first, first + all / 2] } else { vec![first] };
        parts.into_iter().map(|row_block| w.get(row_block * k.div_ceil(BLOCK) + i)).collect()
    }
}

/// The scales of the block whose turn it is, which have been read.
struct BlockScales {
    of_x: TileVar<f32>,
    of_w: Vec<Var<f32>>,
}

impl BlockScales {
    /// Those of the first block.
    fn new(product: &Product) -> BlockScales {
        let of_w = product.w_scales(0u32.val()).into_iter().map(var).collect();
        BlockScales { of_x: var(product.x_scales(0u32.val())), of_w }
    }

    /// Takes those that have been read, and reads those of the block after.
    fn turn(&self, product: &Product, after: Option<Val<u32>>) -> (Tile<f32>, Vec<Val<f32>>) {
        let now = (self.of_x.get(), self.of_w.iter().map(Var::get).collect());
        if let Some(after) = after {
            self.of_x.handle().set(product.x_scales(after));
            self.of_w
                .iter()
                .zip(product.w_scales(after))
                .for_each(|(scale, after)| scale.handle().set(after));
        }
        now
    }
}

/// Adds a block's sums, times their scales, to those of the blocks before it.
fn add(sums: &mut [TileVar<f32>], block: impl FnOnce() -> Vec<(Tile<f32>, Tile<f32>)>) {
    let before: Vec<_> = sums.iter().map(TileVar::get).collect();
    let parts = before.into_iter().zip(block());
    sums.iter_mut().zip(parts).for_each(|(sum, (before, (part, scale)))| sum.set(part.fma(scale, before)));
}
