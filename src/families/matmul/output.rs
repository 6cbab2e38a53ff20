//! Results of products: 16 bits wide, or fp8 with scales that the next product takes.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::Activation;
use super::order::{self, result};
use super::scales::BLOCK;
use crate::families::quantise::E4M3_MAX;

/// What the result of a product is rounded to.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Output {
    /// 16 bits: bf16 for fp8 operands, otherwise their own type.
    Wide,
    /// fp8 (e4m3) with an `f32` scale for each row and 128 columns: what a product with `scales = block` takes as its `x`.
    Fp8,
}

impl Output {
    /// Type of the result of operands of a type.
    pub(in crate::families) fn dtype(self, operands: Dtype) -> Dtype {
        if self == Output::Fp8 { Dtype::Fp8 } else { result(operands) }
    }

    /// Columns of sums that a scale is of.
    const fn block(activation: Activation) -> u32 {
        if activation.is_gated() { 2 * BLOCK } else { BLOCK }
    }

    /// Columns of tiles, of which those of a type have so many at most, that make whole scales of the result.
    pub(super) fn tile_columns(self, activation: Activation, most: u32) -> Option<u32> {
        (self == Output::Fp8).then(|| Output::block(activation).min(most))
    }

    /// Tiles side by side that a block multiplies before it stores them: as many as a scale is of.
    pub(in crate::families) fn beside(self, activation: Activation, tile_columns: u32) -> u32 {
        match self {
            Output::Wide => 1,
            Output::Fp8 => (Output::block(activation) / tile_columns).max(1),
        }
    }

    /// Scales of a result, and whether its columns and those of tiles are whole blocks.
    pub(super) fn legal(
        self,
        [rows, n]: [u32; 2],
        activation: Activation,
        [tile_rows, tile_columns]: [u32; 2],
    ) -> Result<(), Illegal> {
        if self == Output::Wide {
            return Ok(());
        }
        let block = Output::block(activation);
        let allowed =
            || format!("a multiple of {block} with out = fp8: a scale is of 128 columns of the result");
        Illegal::unless(n.is_multiple_of(block), "n", n, allowed)?;
        let allowed = || format!("at most {block} with out = fp8: a scale is of 128 columns of the result");
        Illegal::unless(tile_columns <= block, "tile_columns", tile_columns, allowed)?;
        let counted = u64::from(rows) * u64::from(n / block) + u64::from(tile_rows) <= u32::MAX.into();
        let allowed = || "wide with so many rows and columns: scales are counted in 32 bits";
        Illegal::unless(counted, "out", self.name(), allowed)
    }

    /// Warps that multiply tiles of so many rows. Where none may meet for the scale of a row, as where a loader has to bring operands, each has
    /// 32 whole rows in tensor memory.
    pub(super) fn warps(self, apart: bool, tile_rows: u32) -> u32 {
        if apart && self == Output::Fp8 { (tile_rows / 32).max(4) } else { order::warps(tile_rows) }
    }

    /// Whether warps that may not meet need not.
    pub(super) fn warps_legal(self, tile_rows: u32, warps: u32) -> Result<(), Illegal> {
        let most = tile_rows / 32;
        let allowed = || {
            format!(
                "at most {most} with out = fp8 here: a warp has 32 whole rows, and finds their scales alone"
            )
        };
        Illegal::unless(self == Output::Wide || warps <= most, "warps", warps, allowed)
    }

    /// Scales of a result of so many rows and columns of sums, one a row of a matrix.
    pub(in crate::families) fn scales(self, rows: u32, n: u32, activation: Activation) -> u32 {
        match self {
            Output::Wide => 0,
            Output::Fp8 => (n / Output::block(activation)).saturating_mul(rows),
        }
    }

    /// The tiles that a block stores together: each one's first column of sums, and what `of` makes of it.
    pub(in crate::families) fn tiles(
        beside: u32,
        (column, tile_columns): (Val<u32>, u32),
        of: impl Fn(Val<u32>) -> Tile<f32>,
    ) -> Vec<(Val<u32>, Tile<f32>)> {
        let at = |i: u32| if i == 0 { column } else { column + i * tile_columns };
        (0..beside).map(at).map(|column| (column, of(column))).collect()
    }
}

/// Where rows of a result go.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) struct Stored {
    pub out: AnyMatrix,
    /// Scales, if the result is fp8: `[n / 128][rows]`.
    pub scales: Option<AnyMatrix>,
    pub activation: Activation,
    /// All rows of the result.
    pub all: u32,
    /// The first one, how many a tile has, and the row from which on none is stored.
    pub row: Val<u32>,
    pub rows: u32,
    pub end: Option<Val<u32>>,
}

impl Stored {
    /// Stores tiles side by side, which have scales together if any.
    #[track_caller]
    pub fn store(self, tiles: Vec<(Val<u32>, Tile<f32>)>) {
        match self.scales {
            Some(scales) => self.quantised(scales, tiles),
            None => self.rounded(tiles),
        }
    }

    #[track_caller]
    fn rounded(self, tiles: Vec<(Val<u32>, Tile<f32>)>) {
        for (column, tile) in tiles {
            let rows = self.out.rows(self.row, self.rows);
            let rows = if let Some(end) = self.end { rows.below(end) } else { rows };
            rows.store_f32(self.activation.place(column), tile);
        }
    }

    /// A scale is the largest magnitude over 448, or 1 of zeros, as where rows are quantised that are sent.
    #[kernel]
    fn quantised(self, scales: AnyMatrix, tiles: Vec<(Val<u32>, Tile<f32>)>) {
        let first = tiles[0].0;
        let magnitudes = tiles.iter().map(|(_, tile)| tile.abs()).reduce(|a, b| a.maximum(b));
        let largest = magnitudes.expect("a block has a tile").row_max();
        let scale = (largest == 0.0).select(1.0, largest / E4M3_MAX);
        self.rounded(tiles.into_iter().map(|(column, tile)| (column, tile / scale)).collect());
        let before = self.activation.place(first) / BLOCK * self.all;
        let end = before + self.end.unwrap_or_else(|| self.all.val());
        scales.rows(before + self.row, self.rows).below(end).store_f32(0, scale);
    }
}
