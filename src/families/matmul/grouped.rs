//! Grouped matrix multiplication: each group of rows times a matrix of its own, as experts multiply.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::order::{self, Order, Tiling};

/// A variant of a grouped matrix multiplication.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "grouped_matmul", kernel = grouped_matmul, args = GroupedMatmulArgs, warps = warps)]
pub struct GroupedMatmul {
    /// Groups, each of which has a matrix of weights.
    #[key(short = "e", range = 1..=1024)]
    pub groups: u32,
    /// Rows of `x` and of the result: at least as many as all groups have together.
    #[key(short = "m", range = 1..=1048576)]
    pub rows: u32,
    /// Rows of each matrix of weights: columns of the result.
    #[key(short = "n", range = 8..=1048576)]
    pub n: u32,
    /// Columns of `x` and of the weights.
    #[key(short = "k", range = 8..=1048576)]
    pub k: u32,
    /// The first row of each group is a multiple of it.
    #[key(short = "a", range = 1..=256, default = 1, omitted)]
    pub align: u32,
    /// World size; every rank multiplies its own matrices.
    #[key(short = "r", range = 1..=64, default = 1, omitted, ranks)]
    pub ranks: u32,
    /// Type of all elements; sums are of `f32` and rounded once.
    #[key(values = [Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], default = |key| order::warps(tile_rows(key)))]
    pub warps: u32,
    /// Rows of a tile of the result.
    #[tune(short = "tr", shrinks, values = [64, 128, 256], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of the result.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tile_columns(key))]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w` in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| order::stages(tile_rows(key), tile_columns(key), false))]
    pub stages: u32,
    /// Height of a set of tiles in tiles; the tiles inside it run column by column (L2 reuse).
    #[tune(short = "h", values = [1, 2, 4, 8, 16, 32], default = 16)]
    pub height: u32,
    /// How blocks share the tiles.
    #[tune(short = "by", default = Order::Strided)]
    pub order: Order,
    /// Blocks.
    #[tune(short = "bl", shrinks, range = 1..=1024, default = |key| blocks(key))]
    pub blocks: u32,
}

/// Rows of a group, if all groups have equally many.
fn rows_each(key: &GroupedMatmulKey) -> u32 {
    key.rows.div_ceil(key.groups)
}

fn tile_rows(key: &GroupedMatmulKey) -> u32 {
    order::tile_rows(rows_each(key))
}

/// Rows of tiles, if all groups have equally many rows.
fn bands(key: &GroupedMatmulKey) -> u32 {
    key.groups.min(key.rows) * order::bands(rows_each(key))
}

fn tile_columns(key: &GroupedMatmulKey) -> u32 {
    let weights = u64::from(key.groups.min(key.rows)) * u64::from(key.n) * u64::from(key.k);
    Tiling::unsplit([tile_rows(key), bands(key)], key.n, key.k, order::SMS, weights).columns
}

fn blocks(key: &GroupedMatmulKey) -> u32 {
    (bands(key) * key.n.div_ceil(tile_columns(key))).clamp(1, order::SMS)
}

impl Legal for GroupedMatmul {
    fn legal(&self) -> Result<(), Illegal> {
        order::whole_rows(self.n, self.k, self.dtype)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps, self.stages)
    }
}

impl GroupedMatmul {
    /// The row behind a group's last one: no count goes beyond the rows of `x`.
    fn end(&self, start: Val<u32>, count: Val<u32>) -> Val<u32> {
        start + count.min(self.rows.val() - start)
    }

    /// The first row of the group behind one that ends so.
    fn next_start(&self, end: Val<u32>) -> Val<u32> {
        match self.align {
            1 => end,
            align => ((end + (align - 1)) / align * align).min(self.rows),
        }
    }

    /// Rows of tiles of a group.
    fn bands(&self, rows: Val<u32>) -> Val<u32> {
        (rows + (self.tile_rows - 1)) / self.tile_rows
    }

    /// Columns of tiles.
    fn strips(&self) -> u32 {
        self.n.div_ceil(self.tile_columns)
    }

    /// The first row and the first column of a group's tile, in sets of `height` rows of tiles column by column.
    fn corner(&self, tile: Val<u32>, bands: Val<u32>) -> (Val<u32>, Val<u32>) {
        let set = self.height * self.strips();
        let first = tile / set * self.height;
        let rest = tile % set;
        // The last set may have fewer rows of tiles.
        let rows = (bands - first).min(self.height);
        ((first + rest % rows) * self.tile_rows, rest / rows * self.tile_columns)
    }
}

/// Parameters of [`grouped_matmul`].
#[derive(KernelArgs)]
#[args(config = GroupedMatmul)]
pub struct GroupedMatmulArgs {
    /// The rows of all groups, one group's behind the other's, `[rows][k]`.
    #[input]
    #[shape(|c| [c.rows, c.k])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// Rows of each group, `[groups]`. Rows that `x` does not have are left out.
    #[input]
    #[len(|c| c.groups.into())]
    pub counts: Ptr<u32>,
    /// The weights, a row for each column of the result, `[groups][n][k]`.
    #[input]
    #[shape(|c| [c.groups * c.n, c.k])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// The products, `[rows][n]`. Rows of no group are not written.
    #[output]
    #[shape(|c| [c.rows, c.n])]
    #[dtype(|c| c.dtype)]
    pub out: AnyMatrix,
    /// Work counter of the tiles, if blocks draw them.
    #[len(|c| c.order.counters())]
    pub next_tile: Option<Counters>,
}

/// Multiplies the rows of each group with its weights, rows with rows.
///
/// Tiles are numbered group by group. A block that goes from one to the next adds up the tiles of the groups between. The last
/// tile of a group may have rows of the group behind, and the last one across rows of its weights: these are multiplied, and
/// not stored.
#[kernel]
pub fn grouped_matmul(c: &GroupedMatmul, a: &GroupedMatmulArgs) {
    let next = a.next_tile.map(|next| next.counter(0));
    role("multiply", c.blocks, |b| {
        let tiles = all_tiles(c, a);
        let (mut group, mut first, mut start) = (var(0u32), var(0u32), var(0u32));
        let mut end = var(c.end(0u32.val(), a.counts.get(0)));
        for i in b.dynamic(tiles, next) {
            while i >= &first + c.bands(&end - start.get()) * c.strips() {
                first += c.bands(&end - start.get()) * c.strips();
                group += 1;
                start.set(c.next_start(end.get()));
                end.set(c.end(start.get(), a.counts.get(&group)));
            }
            let (down, column) = c.corner(i - first.get(), c.bands(&end - start.get()));
            let row = &start + down;
            let w = a.w.rows(&group * c.n + column, c.tile_columns);
            let sums = b.dot(a.x.rows(row, c.tile_rows), w, c.stages);
            a.out.rows(row, c.tile_rows).below(end.get()).store_f32(column, sums);
        }
    });
}

/// Tiles of all groups.
#[kernel]
fn all_tiles(c: &GroupedMatmul, a: &GroupedMatmulArgs) -> Val<u32> {
    let (mut start, mut tiles) = (var(0u32), var(0u32));
    for group in 0..c.groups.val() {
        let end = c.end(start.get(), a.counts.get(group));
        tiles += c.bands(end - start.get()) * c.strips();
        start.set(c.next_start(end));
    }
    tiles.get()
}
