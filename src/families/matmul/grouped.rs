//! Grouped matrix multiplication: each group of rows times a matrix of its own, as experts multiply.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::{Activation, epilogue};
use super::order::{self, Order, Pairs, most_columns, result};
use super::output::{Output, Stored};
use super::scales::{Product, Scales};

/// A variant of a grouped matrix multiplication.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "grouped_matmul", kernel = grouped_matmul, args = GroupedMatmulArgs, warps = warps)]
pub struct GroupedMatmul {
    /// Groups, each of which has a matrix of weights.
    #[key(short = "e", range = 1..=1024)]
    pub groups: u32,
    /// Rows of the result, and of `x` unless they are gathered: at least as many as all groups have together.
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
    /// Rows from the first one of a group to the first one of the next, whatever the counts are; 0 if groups follow one another.
    #[key(short = "gs", range = 0..=1048576, default = 0, omitted)]
    pub stride: u32,
    /// Rows of `x`, if an index says which of them each row of the result is of; 0 if `x` has the rows of the result.
    #[key(short = "g", range = 0..=1048576, default = 0, omitted)]
    pub gather: u32,
    /// World size; every rank multiplies its own matrices.
    #[key(short = "r", range = 1..=64, default = 1, omitted, ranks)]
    pub ranks: u32,
    /// Type of all elements; sums are of `f32` and rounded once. With fp8 (e4m3) it is that of `x` and `w`, and the rest is bf16. So it
    /// is with u32, words of eight e2m1.
    #[key(values = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp8, Dtype::U32])]
    pub dtype: Dtype,
    /// Which scales `x` and `w` of fp8 have. Each group has its own of `w`.
    #[key(short = "sc", default = Scales::None, omitted)]
    pub scales: Scales,
    /// Whether each group has a vector that is added to each row of its product.
    #[key(short = "b", default = false, omitted)]
    pub bias: bool,
    /// Activation applied to the accumulators.
    #[key(short = "f", default = Activation::None, omitted)]
    pub activation: Activation,
    /// Whether each row of the result is multiplied by a number of its own.
    #[key(short = "wt", default = false, omitted)]
    pub weighted: bool,
    /// What the result is rounded to.
    #[key(short = "o", default = Output::Wide, omitted)]
    pub out: Output,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], rule = |c| c.out.warps(c.scales.tile().is_some() || c.pair(), c.tile_rows))]
    pub warps: Option<u32>,
    /// Rows of a tile of the result.
    #[tune(short = "tr", shrinks, values = [64, 128, 256], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of the result.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tile_columns(key))]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w` in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| order::stages_of_groups(tile_rows(key), tile_columns(key)))]
    pub stages: u32,
    /// Height of a set of tiles in tiles; the tiles inside it run column by column (L2 reuse).
    #[tune(short = "h", values = [1, 2, 4, 8, 16, 32], rule = |_| 16)]
    pub height: Option<u32>,
    /// Which tiles a block has: a counter keeps blocks of unequal groups equally busy.
    #[tune(short = "by", default = Order::Counter)]
    pub order: Order,
    /// Whether blocks 2i and 2i + 1 multiply together, by the same rows of `w`: each brings half of them (`tcgen05` with `cta_group::2`, for
    /// `sm_100a`, `sm_103a` and `sm_110a` alone).
    #[tune(short = "pair", rule = |_| false)]
    pub pair: Option<bool>,
    /// Blocks.
    #[tune(short = "bl", shrinks, range = 1..=1024, rule = GroupedMatmul::blocks_rule)]
    pub blocks: Option<u32>,
}

/// Rows of a group, if all groups have equally many.
fn rows_each(key: &GroupedMatmulKey) -> u32 {
    key.rows.div_ceil(key.groups)
}

fn tile_rows(key: &GroupedMatmulKey) -> u32 {
    if let Some(rows) = key.scales.tile() {
        return rows;
    }
    order::tile_rows_of_groups(rows_each(key), key.groups)
}

fn tile_columns(key: &GroupedMatmulKey) -> u32 {
    if let Some(columns) = key.scales.tile() {
        return columns;
    }
    if let Some(columns) = key.out.tile_columns(key.activation, most_columns(key.dtype)) {
        return columns;
    }
    let k = (key.k * key.dtype.bytes()).div_ceil(2);
    let (rows, groups) = (tile_rows(key), key.groups.min(key.rows));
    let weights = u64::from(groups) * u64::from(key.n) * u64::from(k);
    let bands = groups * rows_each(key).div_ceil(rows);
    order::columns_of_groups([rows, bands], [key.n, k], weights, most_columns(key.dtype))
}

impl Legal for GroupedMatmul {
    fn legal(&self) -> Result<(), Illegal> {
        order::whole_rows(self.n, self.k, self.dtype)?;
        self.activation.legal(self.n)?;
        self.scales.legal(self.dtype, 1)?;
        let by = (self.out, self.warps());
        self.scales.tiles_legal(self.k, [self.tile_rows, self.tile_columns], by)?;
        self.groups_legal()?;
        let [x, w] = self.scale_counts();
        let counted = x.max(w) + u64::from(self.tile_rows.max(self.tile_columns)) <= u32::MAX.into();
        let allowed = || "another one with so many rows and columns: scales are counted in 32 bits";
        Illegal::unless(counted || self.scales.tile().is_some(), "scales", self.scales.name(), allowed)?;
        let there = self.stride.checked_mul(self.groups).is_some_and(|rows| rows <= self.rows);
        let allowed =
            || format!("at most {}: {} groups have {} rows", self.rows / self.groups, self.groups, self.rows);
        Illegal::unless(there, "stride", self.stride, allowed)?;
        let allowed = || "1 with a stride, which says where each group begins";
        Illegal::unless(self.align == 1 || self.stride == 0, "align", self.align, allowed)?;
        order::columns_fit(self.tile_columns, self.dtype)?;
        let tile = [self.tile_rows, self.tile_columns];
        self.out.legal([self.rows, self.n], self.activation, tile)?;
        if self.pair() {
            let GroupedMatmul { tile_rows, order, scales, out, .. } = *self;
            let (group, blocks, warps) = (("height", self.height()), self.blocks(), self.warps());
            Pairs { tile_rows, group, blocks, order, scales, out, warps, split: 1 }.legal()?;
        }
        order::legal(self.tile_rows, self.tile_columns, self.warps(), self.stages)
    }
}

impl GroupedMatmul {
    /// A block for each tile, if all groups have equally many rows, up to as many as are there at once.
    fn blocks_rule(&self) -> u32 {
        let bands = self.rows.div_ceil(self.groups).div_ceil(self.tile_rows);
        let bands = if self.pair() { bands.next_multiple_of(2) } else { bands };
        (self.groups.min(self.rows) * bands * self.strips())
            .clamp(1, order::resident_blocks(self.tile_rows, self.tile_columns, self.stages))
    }

    /// With scales in tiles of 128 rows each group begins with one, and so do its weights.
    fn groups_legal(&self) -> Result<(), Illegal> {
        let Some(tile) = self.scales.tile() else { return Ok(()) };
        let whole = |(field, value): (&'static str, u32)| {
            let allowed = || format!("a multiple of {tile} with such scales, whose tiles have so many rows");
            Illegal::unless(value.is_multiple_of(tile), field, value, allowed)
        };
        whole(if self.stride > 0 { ("stride", self.stride) } else { ("align", self.align) })?;
        whole(("n", self.n))?;
        let allowed = || "0 with such scales, which stand in tiles, whose rows no list names";
        Illegal::unless(self.gather == 0, "gather", self.gather, allowed)
    }

    /// The row behind a group's last one: no count goes beyond the rows of `x`, or into the next group.
    fn end(&self, start: Val<u32>, count: Val<u32>) -> Val<u32> {
        match self.stride {
            0 => start + count.min(self.rows.val() - start),
            stride => start + count.min(stride),
        }
    }

    /// The first row of the group behind one that begins and ends so.
    fn next_start(&self, start: Val<u32>, end: Val<u32>) -> Val<u32> {
        match (self.stride, self.align) {
            (0, 1) => end,
            (0, align) => ((end + (align - 1)) / align * align).min(self.rows),
            (stride, _) => start + stride,
        }
    }

    /// Scales of `x` and of `w`.
    pub(super) fn scale_counts(&self) -> [u64; 2] {
        self.scales.counts([self.x_rows(), self.n, self.k], self.groups, self.activation)
    }

    /// Rows of `x`.
    pub(super) fn x_rows(&self) -> u32 {
        if self.gather > 0 { self.gather } else { self.rows }
    }

    /// Columns of the result.
    pub(super) fn columns(&self) -> u32 {
        self.activation.columns(self.n)
    }

    /// The tile of rows of `x` and of `w` that begins at a row of `x` and a column of a group's product.
    fn product(
        &self,
        a: &GroupedMatmulArgs,
        rows: [MatrixRows; 2],
        group: Val<u32>,
        at: [Val<u32>; 2],
    ) -> Product {
        let GroupedMatmul { n, k, scales, activation, tile_rows, tile_columns, stages, .. } = *self;
        Product {
            scales,
            activation,
            rows,
            of: scales.of_sums([a.x_scales, a.w_scales], a.alpha),
            index: a.index,
            at,
            group,
            tile: [tile_rows, tile_columns],
            shape: [self.x_rows(), n, k],
            stages,
            told: false,
        }
    }

    /// Where the rows of a tile go that end before row `end`.
    fn stored(&self, a: &GroupedMatmulArgs, row: Val<u32>, end: Val<u32>) -> Stored {
        let GroupedMatmul { rows: all, activation, tile_rows: rows, .. } = *self;
        Stored { out: a.out, scales: a.out_scales, activation, all, row, rows, end: Some(end) }
    }

    /// A row with which a tile begins, which groups begin with: said so where products ask for it.
    fn whole_tile(&self, row: Val<u32>) -> Val<u32> {
        self.scales.tile().map_or(row, |tile| row / tile * tile)
    }

    /// Rows of tiles of a group; with pairs an even number, of which the last may have no rows.
    fn bands(&self, rows: Val<u32>) -> Val<u32> {
        let each = if self.pair() { 2 } else { 1 };
        let bands = (rows + (each * self.tile_rows - 1)) / (each * self.tile_rows);
        if self.pair() { bands * each } else { bands }
    }

    /// Tiles side by side that a block multiplies before it stores them.
    fn beside(&self) -> u32 {
        self.out.beside(self.activation, self.tile_columns)
    }

    /// Columns of tiles, or of so many side by side.
    fn strips(&self) -> u32 {
        self.n.div_ceil(self.beside() * self.tile_columns)
    }

    /// Scales of the result.
    pub(super) fn out_scales(&self) -> u32 {
        self.out.scales(self.rows, self.n, self.activation)
    }

    /// The first row and the first column of a group's tile, in sets of `height` rows of tiles column by column.
    fn corner(&self, tile: Val<u32>, bands: Val<u32>) -> (Val<u32>, Val<u32>) {
        let height = self.height();
        let set = height * self.strips();
        let first = tile / set * height;
        let rest = tile % set;
        // The last set may have fewer rows of tiles.
        let rows = (bands - first).min(height);
        ((first + rest % rows) * self.tile_rows, rest / rows * (self.beside() * self.tile_columns))
    }
}

/// Parameters of [`grouped_matmul`].
#[derive(KernelArgs)]
#[args(config = GroupedMatmul)]
pub struct GroupedMatmulArgs {
    /// The rows of all groups, one group's behind the other's, `[rows][k]`.
    #[input]
    #[shape(|c| [c.x_rows(), c.scales.columns(c.k)])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// The row of `x` that each row of the result is of, group after group, `[rows]`: `x` has `[gather][k]` in any order, and scales of these
    /// rows. Numbers of rows of no group are not used.
    #[input]
    #[len(|c| if c.gather > 0 { c.rows.into() } else { 0 })]
    pub index: Option<Ptr<u32>>,
    /// Rows of each group, `[groups]`. Rows that `x` does not have are left out.
    #[input]
    #[len(|c| c.groups.into())]
    pub counts: Ptr<u32>,
    /// The weights, a row for each column of the product, `[groups][n][k]`.
    #[input]
    #[shape(|c| [c.groups * c.n, c.scales.columns(c.k)])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// Scales of `x`: one of all elements, `[1]`, one of each row, `[rows]`, or one of each row and 128 columns, `[k / 128][rows]`.
    /// With `mx` and `nvfp4` words of four, `[rows / 128][k / 128][32][4]`, of nvfp4 `[rows / 128][k / 64][32][4]`: row r of 128 has word `[r % 32][r / 32]`.
    #[input]
    #[len(|c| c.scale_counts()[0])]
    #[dtype(|c| c.scales.dtype())]
    pub x_scales: Option<AnyPtr>,
    /// Scales of `w`: one of each group, `[groups]`, one of each row, `[groups][n]`, or one of each 128 rows and columns,
    /// `[groups][n / 128][k / 128]`; with gates `[groups][2][n / 256][k / 128]`, those of the gates first. With `mx` and `nvfp4` words as of `x`.
    #[input]
    #[len(|c| c.scale_counts()[1])]
    #[dtype(|c| c.scales.dtype())]
    pub w_scales: Option<AnyPtr>,
    /// With `nvfp4` what sums are multiplied by, `[groups]`: the scale of all of `x` times that of all of `w`.
    #[input]
    #[len(|c| c.scales.alphas(c.groups))]
    pub alpha: Option<Ptr<f32>>,
    /// What is added to each row of a group's product, `[groups][n]`.
    #[input]
    #[len(|c| if c.bias { u64::from(c.groups) * u64::from(c.n) } else { 0 })]
    #[dtype(|c| result(c.dtype))]
    pub bias: Option<AnyPtr>,
    /// What each row of the result is multiplied by, `[rows]`.
    #[input]
    #[len(|c| if c.weighted { c.rows.into() } else { 0 })]
    pub weights: Option<Ptr<f32>>,
    /// The products, `[rows][n]`; with gates `[rows][n / 2]`. Rows of no group are not written.
    #[output]
    #[shape(|c| [c.rows, c.columns()])]
    #[dtype(|c| c.out.dtype(c.dtype))]
    pub out: AnyMatrix,
    /// Scales of a result of fp8, one of each row and 128 columns, `[n / 128][rows]`; with gates `[n / 256][rows]`.
    #[output]
    #[shape(|c| [c.out_scales(), 1])]
    #[dtype(|_| Dtype::F32)]
    pub out_scales: Option<AnyMatrix>,
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
    role("multiply", c.blocks(), |b| {
        let tiles = all_tiles(c, a);
        let (mut group, mut first, mut start) = (var(0u32), var(0u32), var(0u32));
        let mut end = var(c.end(0u32.val(), a.counts.get(0)));
        for i in b.dynamic(tiles, next) {
            while i >= &first + c.bands(&end - start.get()) * c.strips() {
                first += c.bands(&end - start.get()) * c.strips();
                group += 1;
                start.set(c.next_start(start.get(), end.get()));
                end.set(c.end(start.get(), a.counts.get(&group)));
            }
            let (down, column) = c.corner(i - first.get(), c.bands(&end - start.get()));
            let row = c.whole_tile(&start + down);
            let x = match &a.index {
                // Rows of the group behind are not brought.
                Some(index) => {
                    let last = end.get();
                    a.x.gather_rows(index, row, c.tile_rows).below(last)
                }
                None => c.scales.of_rows(a.x.rows(row, c.tile_rows), a.x_scales),
            };
            let tiles = Output::tiles(c.beside(), (column, c.tile_columns), |column: Val<u32>| {
                let w = a.w.rows(&group * c.n + column, c.tile_columns);
                let w = c.scales.of_rows(w, a.w_scales);
                let w = if c.pair() { w.in_pairs() } else { w };
                let product = c.product(a, [x, w], group.get(), [row, column]);
                let done =
                    epilogue(a.bias, c.activation, &group * c.n + column, product.tile, product.sums(b));
                match a.weights {
                    Some(weights) => {
                        done * weights
                            .load_columns_f32(row, [c.tile_rows, c.activation.columns(c.tile_columns)])
                    }
                    None => done,
                }
            });
            c.stored(a, row, end.get()).store(tiles);
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
        start.set(c.next_start(start.get(), end));
    }
    tiles.get()
}
