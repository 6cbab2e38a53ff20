//! Matrix multiplication: every rank multiplies its own.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::{Activation, Sums, epilogue};
use super::order::{self, Cut, Order, Pairs, Passage, Tiling, most_columns, result};
use super::output::{Output, Stored};
use super::scales::{Product, Scales};
use super::split::{Split, SplitArgs};

/// A variant of a matrix multiplication.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "matmul", kernel = matmul, args = MatmulArgs, warps = warps)]
pub struct Matmul {
    /// Rows of `x`, and of the result.
    #[key(short = "m", range = 1..=1048576)]
    pub m: u32,
    /// Rows of `w`: columns of the result.
    #[key(short = "n", range = 8..=1048576)]
    pub n: u32,
    /// Columns of both.
    #[key(short = "k", range = 8..=1048576)]
    pub k: u32,
    /// World size; every rank multiplies its own matrices.
    #[key(short = "r", range = 1..=64, default = 1, omitted, ranks)]
    pub ranks: u32,
    /// Type of all elements; sums are of `f32` and rounded once. With fp8 (e4m3) it is that of `x` and `w`, and the rest is bf16. So it
    /// is with u32, words of eight e2m1.
    #[key(values = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp8, Dtype::U32])]
    pub dtype: Dtype,
    /// Which scales `x` and `w` of fp8 have.
    #[key(short = "sc", default = Scales::None, omitted)]
    pub scales: Scales,
    /// Whether there is a vector that is added to each row of the result.
    #[key(short = "b", default = false)]
    pub bias: bool,
    /// Activation applied to the accumulators.
    #[key(default = Activation::None)]
    pub activation: Activation,
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
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tiling(key).columns)]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w`, of fp8 of 128, in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| stages(key))]
    pub stages: u32,
    /// Height of a tile group; tiles inside it run column by column (L2 reuse).
    #[tune(short = "g", values = [1, 2, 4, 8, 16, 32], rule = |_| 16)]
    pub group: Option<u32>,
    /// Which tiles a block has: its own from the start, or the next one of a work counter whenever it is free.
    #[tune(short = "by", default = |key| drawn(key))]
    pub order: Order,
    /// Parts of the columns of `x` and `w`, which blocks share: sums over all of them are added up in order by one of them.
    #[tune(short = "sp", values = [1, 2, 4, 7, 8, 16], default = |key| tiling(key).split)]
    pub split: u32,
    /// Whether blocks 2i and 2i + 1 multiply together, by the same rows of `w`: each brings half of them (`tcgen05` with `cta_group::2`, for
    /// `sm_100a`, `sm_103a` and `sm_110a` alone).
    #[tune(short = "pair", rule = |_| false)]
    pub pair: Option<bool>,
    /// Blocks.
    #[tune(short = "bl", shrinks, range = 1..=1024, rule = |c| c.parts().items().clamp(1, order::SMS))]
    pub blocks: Option<u32>,
}

/// Blocks draw tiles from a work counter where m is above 128: with fewer rows the counter costs more than it gains
/// (`bench/results/products.md`, order of tiles).
fn drawn(key: &MatmulKey) -> Order {
    if key.m > 128 && tiling(key).split == 1 { Order::Counter } else { Order::Strided }
}

fn tile_rows(key: &MatmulKey) -> u32 {
    key.scales.tile().unwrap_or(order::tile_rows(key.m))
}

fn tiling(key: &MatmulKey) -> Tiling {
    if let Some(columns) = key.scales.tile() {
        return Tiling { columns, split: 1 };
    }
    if let Some(columns) = key.out.tile_columns(key.activation, most_columns(key.dtype)) {
        return Tiling { columns, split: 1 };
    }
    let passage = Passage { ranks: 1, arrival: 0 };
    let k = (key.k * key.dtype.bytes()).div_ceil(2);
    let rows = [order::tile_rows(key.m), order::bands(key.m)];
    let tiling = match key.scales {
        Scales::Block => Tiling::unsplit(rows, key.n, k, order::SMS, u64::from(key.n) * u64::from(k)),
        Scales::None | Scales::Tensor | Scales::Row | Scales::Mx | Scales::Nvfp4 => {
            Tiling::of(rows, key.n, k, order::SMS, passage)
        }
    };
    Tiling { columns: tiling.columns.min(most_columns(key.dtype)), ..tiling }
}

fn stages(key: &MatmulKey) -> u32 {
    let one_each = tiling(key).items(order::bands(key.m), key.n) <= order::SMS;
    order::stages(tile_rows(key), tiling(key).columns, one_each)
}

impl Legal for Matmul {
    fn legal(&self) -> Result<(), Illegal> {
        order::whole_rows(self.n, self.k, self.dtype)?;
        self.activation.legal(self.n)?;
        self.scales.legal(self.dtype, self.split)?;
        let by = (self.out, self.warps());
        self.scales.tiles_legal(self.k, [self.tile_rows, self.tile_columns], by)?;
        let counted = self.scale_counts()[0] + u64::from(self.tile_rows) <= u32::MAX.into();
        let allowed = || "another one with so many rows and columns: scales are counted in 32 bits";
        Illegal::unless(counted || self.scales.tile().is_some(), "scales", self.scales.name(), allowed)?;
        order::columns_fit(self.tile_columns, self.dtype)?;
        self.out.legal([self.m, self.n], self.activation, [self.tile_rows, self.tile_columns])?;
        let beside = self.beside();
        let allowed = || {
            format!(
                "1 with out = fp8 and tiles of {} columns: a block has {beside} of them",
                self.tile_columns
            )
        };
        Illegal::unless(self.split == 1 || beside == 1, "split", self.split, allowed)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps(), self.stages)?;
        self.order.legal(self.split)?;
        if self.pair() {
            let Matmul { tile_rows, order, scales, out, split, .. } = *self;
            let (group, blocks, warps) = (("group", self.group()), self.blocks(), self.warps());
            Pairs { tile_rows, group, blocks, order, scales, out, warps, split }.legal()?;
        }
        self.parts().legal()
    }
}

impl Matmul {
    /// Tiles side by side that a block multiplies before it stores them.
    fn beside(&self) -> u32 {
        self.out.beside(self.activation, self.tile_columns)
    }

    /// Tiles of the result, or so many side by side.
    fn cut(&self) -> Cut {
        let Matmul { m: rows, n: columns, tile_rows, .. } = *self;
        let tile_columns = self.beside() * self.tile_columns;
        Cut { rows, columns, tile_rows, tile_columns, group: self.group(), pair: self.pair() }
    }

    /// Scales of `x` and of `w`.
    pub(super) fn scale_counts(&self) -> [u64; 2] {
        self.scales.counts([self.m, self.n, self.k], 1, self.activation)
    }

    /// Scales of the result.
    pub(super) fn out_scales(&self) -> u32 {
        self.out.scales(self.m, self.n, self.activation)
    }

    /// Where the rows of a tile go.
    fn stored(&self, a: &MatmulArgs, row: Val<u32>) -> Stored {
        let Matmul { m: all, activation, tile_rows: rows, .. } = *self;
        Stored { out: a.out, scales: a.out_scales, activation, all, row, rows, end: None }
    }

    /// The tile of rows of `x` and of `w` that begins at a row and a column of the product.
    fn product(&self, a: &MatmulArgs, rows: [MatrixRows; 2], at: [Val<u32>; 2]) -> Product {
        let Matmul { m, n, k, scales, activation, tile_rows, tile_columns, stages, .. } = *self;
        Product {
            scales,
            activation,
            rows,
            of: scales.of_sums([a.x_scales, a.w_scales], a.alpha),
            index: None,
            at,
            group: 0u32.val(),
            tile: [tile_rows, tile_columns],
            shape: [m, n, k],
            stages,
            told: false,
        }
    }

    fn parts(&self) -> Split {
        self.cut().split(self.split, self.k, self.dtype, 1)
    }
}

/// Parameters of [`matmul`].
#[derive(KernelArgs)]
#[args(config = Matmul)]
pub struct MatmulArgs {
    /// The left matrix, `[m][k]`.
    #[input]
    #[shape(|c| [c.m, c.scales.columns(c.k)])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// The right matrix, a row for each column of the result, `[n][k]`.
    #[input]
    #[shape(|c| [c.n, c.scales.columns(c.k)])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// Scales of `x`: one of all elements, `[1]`, one of each row, `[m]`, or one of each row and 128 columns, `[k / 128][m]`. With `mx` words
    /// of four, `[m / 128][k / 128][32][4]`, of nvfp4 `[m / 128][k / 64][32][4]`: row r of 128 has word `[r % 32][r / 32]`.
    #[input]
    #[len(|c| c.scale_counts()[0])]
    #[dtype(|c| c.scales.dtype())]
    pub x_scales: Option<AnyPtr>,
    /// Scales of `w`: one of all elements, `[1]`, one of each row, `[n]`, or one of each 128 rows and columns,
    /// `[n / 128][k / 128]`; with gates `[2][n / 256][k / 128]`, those of the gates first. With `mx` and `nvfp4` words as of `x`.
    #[input]
    #[len(|c| c.scale_counts()[1])]
    #[dtype(|c| c.scales.dtype())]
    pub w_scales: Option<AnyPtr>,
    /// With `nvfp4` what sums are multiplied by, `[1]`: the scale of all of `x` times that of all of `w`.
    #[input]
    #[len(|c| c.scales.alphas(1))]
    pub alpha: Option<Ptr<f32>>,
    /// What is added to each row of the result, `[n]`.
    #[input]
    #[len(|c| if c.bias { c.n.into() } else { 0 })]
    #[dtype(|c| result(c.dtype))]
    pub bias: Option<AnyPtr>,
    /// The product, `[m][n]`; with gates `[m][n / 2]`.
    #[output]
    #[shape(|c| [c.m, c.activation.columns(c.n)])]
    #[dtype(|c| c.out.dtype(c.dtype))]
    pub out: AnyMatrix,
    /// Scales of a result of fp8, one of each row and 128 columns, `[n / 128][m]`; with gates `[n / 256][m]`.
    #[output]
    #[shape(|c| [c.out_scales(), 1])]
    #[dtype(|_| Dtype::F32)]
    pub out_scales: Option<AnyMatrix>,
    /// Work counter of the tiles, if blocks draw them.
    #[len(|c| c.order.counters())]
    pub next_tile: Option<Counters>,
    /// What blocks need that share the columns of tiles.
    #[group(|c| c.parts())]
    pub split: SplitArgs,
    /// Counts launches, if blocks wait for each other.
    #[len(|c| u64::from(c.split > 1))]
    pub epoch: Option<EpochWord>,
}

/// Multiplies `x` with `w`, rows with rows.
#[kernel]
pub fn matmul(c: &Matmul, a: &MatmulArgs) {
    let (cut, parts) = (c.cut(), c.parts());
    let epoch = a.epoch.map(|epoch| epoch.begin());
    let tiles = a.next_tile.map(|next| next.counter(0));
    role("multiply", c.blocks(), |b| {
        for i in b.dynamic(parts.items(), tiles) {
            let part = parts.item(i);
            let (row, column) = cut.corner(part.tile);
            let x = c.scales.of_rows(a.x.rows(row, c.tile_rows), a.x_scales);
            let of = |column: Val<u32>| {
                let w = c.scales.of_rows(a.w.rows(column, c.tile_columns), a.w_scales);
                let w = if c.pair() { w.in_pairs() } else { w };
                c.product(a, [x, w], [row, column])
            };
            let done = |column: Val<u32>, sums: Sums| {
                let done = epilogue(a.bias, c.activation, column, [c.tile_rows, c.tile_columns], sums);
                done
            };
            if c.split > 1 {
                let product = of(column);
                let sums = b.dot(part.of(x), product.rows[1], c.stages);
                a.split.whole(b, part, sums, epoch, |sums| {
                    c.stored(a, row).store(vec![(column, done(column, product.scaled(sums)))]);
                });
            } else {
                let tiles = Output::tiles(c.beside(), (column, c.tile_columns), |column: Val<u32>| {
                    done(column, of(column).sums(b))
                });
                c.stored(a, row).store(tiles);
            }
        }
    });
}
