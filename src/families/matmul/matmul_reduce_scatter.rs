//! Matrix multiplication and reduce-scatter in one kernel.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::order::{self, Cut};

/// A variant of matrix multiplication and reduce-scatter.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "matmul_reduce_scatter", kernel = matmul_reduce_scatter, args = MatmulReduceScatterArgs, warps = warps)]
pub struct MatmulReduceScatter {
    /// Rows of each rank's `x`; every rank gets as many of the result as every other one.
    #[key(short = "m", range = 2..=1048576)]
    pub m: u32,
    /// Rows of each rank's `w`: columns of the result.
    #[key(short = "n", range = 8..=1048576)]
    pub n: u32,
    /// Columns of both, on each rank.
    #[key(short = "k", range = 8..=1048576)]
    pub k: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of all elements. Products are summed up in `f32`, rounded where they go to another rank, and added up in `f32`.
    #[key(values = [Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], default = |key| order::warps(tile_rows(key)))]
    pub warps: u32,
    /// Rows of a tile of the result.
    #[tune(short = "tr", values = [64, 128, 256], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of the result.
    #[tune(short = "tc", values = [64, 128, 256], default = |key| tile_columns(key))]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w` in shared memory at once.
    #[tune(short = "s", values = [2, 3, 4, 5, 6], default = |key| stages(key))]
    pub stages: u32,
    /// Rows of tiles that are gone through column by column.
    #[tune(short = "g", values = [1, 2, 4, 8, 16, 32], default = 16)]
    pub group: u32,
    /// Blocks.
    #[tune(short = "bl", range = 1..=1024, default = |key| blocks(key))]
    pub blocks: u32,
}

/// Of tiles of one rank's rows.
fn tile_rows(key: &MatmulReduceScatterKey) -> u32 {
    order::tile_rows(key.m / key.ranks)
}

/// Rows of tiles of all ranks.
fn bands(key: &MatmulReduceScatterKey) -> u32 {
    (key.m / key.ranks).div_ceil(tile_rows(key)) * key.ranks
}

fn tile_columns(key: &MatmulReduceScatterKey) -> u32 {
    order::tile_columns(bands(key), key.n, order::SMS)
}

fn stages(key: &MatmulReduceScatterKey) -> u32 {
    order::stages(tile_rows(key), tile_columns(key))
}

fn blocks(key: &MatmulReduceScatterKey) -> u32 {
    (bands(key) * key.n.div_ceil(tile_columns(key))).clamp(1, order::SMS)
}

impl Legal for MatmulReduceScatter {
    fn legal(&self) -> Result<(), Illegal> {
        for (field, value) in [("n", self.n), ("k", self.k)] {
            Illegal::unless(
                value.is_multiple_of(8),
                field,
                value,
                || "a multiple of 8: rows are whole 16 bytes",
            )?;
        }
        let allowed = || format!("a multiple of {}, the number of ranks", self.ranks);
        Illegal::unless(self.m.is_multiple_of(self.ranks), "m", self.m, allowed)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps, self.stages)?;
        // Rows of tiles that are sent, in two banks, are counted in 32 bits.
        let of_a_band = 2 * (self.ranks - 1) * self.cut().strips();
        let most = u32::MAX / of_a_band / self.tile_rows * self.tile_rows;
        let allowed = || format!("at most {} with n = {}", u64::from(most) * u64::from(self.ranks), self.n);
        Illegal::unless(self.rows() <= most, "m", self.m, allowed)
    }
}

impl MatmulReduceScatter {
    /// Rows of the result that each rank gets.
    pub fn rows(&self) -> u32 {
        self.m / self.ranks
    }

    /// The tiles of one rank's rows.
    fn cut(&self) -> Cut {
        let MatmulReduceScatter { n: columns, tile_rows, tile_columns, group, .. } = *self;
        Cut { rows: self.rows(), columns, tile_rows, tile_columns, group }
    }

    /// Tiles that a rank multiplies for the others.
    fn sent(&self) -> u32 {
        (self.ranks - 1) * self.cut().tiles()
    }
}

/// Parameters of [`matmul_reduce_scatter`].
#[derive(KernelArgs)]
#[args(config = MatmulReduceScatter)]
pub struct MatmulReduceScatterArgs {
    /// This rank's columns of the left matrix, `[m][k]`.
    #[input]
    #[shape(|c| [c.m, c.k])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// The same columns of the right matrix, a row for each column of the result, `[n][k]`.
    #[input]
    #[shape(|c| [c.n, c.k])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// This rank's rows of the sum over all ranks, `[m / ranks][n]`.
    #[output]
    #[shape(|c| [c.rows(), c.n])]
    #[dtype(|c| c.dtype)]
    pub out: AnyMatrix,
    /// This rank's part of others' rows, `[parity][turn][tile][row][column]`.
    #[shape(|c| [2 * c.sent() * c.tile_rows, c.tile_columns])]
    #[dtype(|c| c.dtype)]
    pub partials: AnyWindowMatrix,
    /// Another rank has its part of a tile, `[parity][turn][tile]`.
    #[len(|c| 2 * u64::from(c.sent()))]
    pub multiplied: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Multiplies for everybody, and adds up for its own rows what all have: first its own part, then that of the next rank, and so on
/// around.
///
/// Every rank waits for all others in each launch: whoever multiplies into a bank again knows that all have read it.
#[kernel]
pub fn matmul_reduce_scatter(c: &MatmulReduceScatter, a: &MatmulReduceScatterArgs) {
    let (epoch, cut) = (a.epoch.begin(), c.cut());
    let bank = epoch.parity() * c.sent();
    let rows = |slot: Val<u32>| slot * c.tile_rows;

    role("multiply", c.blocks, |b| {
        for i in b.strided(c.ranks * cut.tiles()) {
            // The next rank's rows first, this rank's own last: by then the others have multiplied their part.
            let owner = (rank() + 1 + i / cut.tiles()) % c.ranks;
            let tile = i % cut.tiles();
            let at = cut.tile(tile);
            let row = at.row();
            let column = at.column();
            let x = a.x.rows(owner * c.rows() + row, c.tile_rows);
            let sums = b.dot(x, a.w.rows(column, c.tile_columns), c.stages);
            if owner == rank() {
                let mut sums = sums;
                for ahead in 1..c.ranks {
                    let peer = (rank() + ahead) % c.ranks;
                    let slot = bank + (c.ranks - 1 - ahead) * cut.tiles() + tile;
                    let got = a.multiplied.from(peer).wait(slot, epoch);
                    let theirs = a.partials.of(peer).rows(&got, rows(slot), c.tile_rows);
                    sums = sums + theirs.load_f32(0, c.tile_columns);
                }
                a.out.rows(row, c.tile_rows).store_f32(column, sums);
            } else {
                let slot = bank + i % c.sent();
                a.partials.rows(rows(slot), c.tile_rows).store_f32(0, sums);
                a.partials.signal(Peers::rank(owner), &a.multiplied, slot, epoch);
            }
        }
    });
}
