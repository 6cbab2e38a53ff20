//! A product with what a layer does to it: a bias, GELU, and the largest element of each row.

use std::f64::consts::FRAC_1_SQRT_2;

use peerwarp::harness::elements::{encode, mixed};
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// A variant of the product.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "matmul_gelu", kernel = matmul_gelu, args = MatmulGeluArgs, warps = 8)]
pub struct MatmulGelu {
    /// Rows of `x`, and of the result.
    #[key(short = "m", range = 1..=1048576)]
    pub m: u32,
    /// Rows of `w`: columns of the result.
    #[key(short = "n", range = 64..=1048576, multiple_of = 64)]
    pub n: u32,
    /// Columns of both.
    #[key(short = "k", range = 8..=1048576, multiple_of = 8)]
    pub k: u32,
    /// Type of all elements; sums are of `f32` and rounded once.
    #[key(values = [Dtype::Bf16, Dtype::Fp16], default = Dtype::Bf16)]
    pub dtype: Dtype,
    /// Columns of a tile of the result, of which a row is whole tiles.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| columns(key))]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w` in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 6, 8], default = |key| if columns(key) == 64 { 8 } else { 4 })]
    pub stages: u32,
    /// Height of a group of tiles; tiles inside it run column by column, so that the cache keeps what they share.
    #[tune(short = "g", values = [1, 4, 16, 32], default = 16)]
    pub group: u32,
    /// Blocks that multiply.
    #[tune(short = "b", shrinks, range = 1..=1024, default = |key| tiles(key, columns(key)).min(128))]
    pub blocks: u32,
}

/// Rows of a tile.
const ROWS: u32 = 128;

/// The widest tile that divides `n` and leaves work for most blocks: wide tiles load fewer elements for each product.
fn columns(key: &MatmulGeluKey) -> u32 {
    let fits = |columns: &u32| key.n.is_multiple_of(*columns) && tiles(key, *columns) >= 96;
    [256, 128].into_iter().find(fits).unwrap_or(64)
}

fn tiles(key: &MatmulGeluKey, columns: u32) -> u32 {
    key.m.div_ceil(ROWS).saturating_mul(key.n / columns)
}

impl Legal for MatmulGelu {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = || format!("a divisor of n = {}", self.n);
        Illegal::unless(
            self.n.is_multiple_of(self.tile_columns),
            "tile_columns",
            self.tile_columns,
            allowed,
        )?;
        let parts = u64::from(self.m) * u64::from(self.strips()) + u64::from(ROWS);
        let allowed = || format!("so many that {} tiles of each row are fewer than 2^32", self.strips());
        Illegal::unless(parts < 1 << 32, "m", self.m, allowed)
    }
}

impl MatmulGelu {
    /// Tiles of a row.
    fn strips(&self) -> u32 {
        self.n / self.tile_columns
    }

    /// Rows of tiles.
    fn bands(&self) -> u32 {
        self.m.div_ceil(ROWS)
    }

    /// Row and column of a tile, of a group of rows of tiles column by column.
    #[kernel]
    fn corner(&self, tile: Val<u32>) -> (Val<u32>, Val<u32>) {
        let of_group = self.group * self.strips();
        let first = tile / of_group * self.group;
        let left = self.bands().val() - first;
        // The last group may have fewer rows of tiles.
        let rows = left.lt(self.group).select(left, self.group);
        let rest = tile % of_group;
        (first + rest % rows, rest / rows)
    }
}

/// Parameters of [`matmul_gelu`].
#[derive(KernelArgs)]
#[args(config = MatmulGelu)]
pub struct MatmulGeluArgs {
    /// The left matrix, `[m][k]`.
    #[input]
    #[shape(|c| [c.m, c.k])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// The right matrix, a row for each column of the result, `[n][k]`.
    #[input]
    #[shape(|c| [c.n, c.k])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// What is added to each row of the product, `[n]`.
    #[input]
    #[len(|c| c.n.into())]
    #[dtype(|c| c.dtype)]
    pub bias: AnyPtr,
    /// GELU of the product with the bias, `[m][n]`.
    #[output]
    #[shape(|c| [c.m, c.n])]
    #[dtype(|c| c.dtype)]
    pub out: AnyMatrix,
    /// The largest element of each row of `out`.
    #[output]
    #[len(|c| c.m.into())]
    #[dtype(|c| c.dtype)]
    pub row_max: AnyPtr,
    /// The largest element of each tile's rows, `[column of tiles][row]`.
    #[shape(|c| [c.strips() * c.m, 1])]
    #[dtype(|_| Dtype::F32)]
    pub tile_max: AnyMatrix,
    /// Work counter of the tiles.
    #[len(|_| 1)]
    pub next_tile: Counters,
    /// Blocks that have no tile left.
    #[len(|c| c.blocks.into())]
    pub done: BlockFlags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// `ln` of how likely a normal variable exceeds `y`, from 0 to 6, by powers of `y`: a least-squares fit that is 3.3e-6 off at most.
const LN_TAIL: [f32; 8] = [
    -0.693_143_9,
    -0.797_986_4,
    -0.317_783_3,
    -0.037_402_272,
    5.897_221_6e-3,
    -6.449_91e-4,
    4.269_672_7e-5,
    -1.271_796_5e-6,
];

/// GELU: `x` times how likely a normal variable is below `x`. Below -6 it is -6e-9, and NaN stays NaN.
fn gelu(x: Tile<f32>) -> Tile<f32> {
    let y = x.abs().minimum(6.0);
    let [lower @ .., sixth, seventh] = LN_TAIL;
    let power = lower.into_iter().rev().fold(y * seventh + sixth, |sum, each| sum.fma(y, each));
    (x + x.abs()) * 0.5 - y * power.exp()
}

/// Multiplies `x` with `w`, rows with rows; adds a bias, applies GELU, and finds the largest element of each row.
#[kernel]
pub fn matmul_gelu(c: &MatmulGelu, a: &MatmulGeluArgs) {
    let epoch = a.epoch.begin();
    role("multiply", c.blocks, |b| {
        for tile in b.dynamic(c.bands() * c.strips(), Some(a.next_tile.counter(0))) {
            let (band, strip) = c.corner(tile);
            let (row, column) = (band * ROWS, strip * c.tile_columns);
            let sums = b.dot(a.x.rows(row, ROWS), a.w.rows(column, c.tile_columns), c.stages);
            let sums = sums + a.bias.load_rows_f32(column, [ROWS, c.tile_columns]);
            let out = gelu(sums);
            a.tile_max.rows(strip * c.m + row, ROWS).below((strip + 1) * c.m).store_f32(0, out.row_max());
            a.out.rows(row, ROWS).store_f32(column, out);
        }
        a.done.signal(b.index(), epoch);
    });
    role("maximum", c.bands().min(4), |b| {
        a.done.wait_all(0, c.blocks, 1, epoch);
        let tile_max = a.tile_max.elements();
        for t in b.tiles(c.m, 1024) {
            let mut most = var(splat(f32::NEG_INFINITY, 1024));
            for strip in 0..c.strips().val() {
                let of_strip = tile_max.load_f32((strip * c.m + t.first()).only(t.mask()), t.len());
                most.set(most.get().maximum(of_strip));
            }
            a.row_max.store_f32(t.at(), most.get());
        }
    });
}

impl MatmulGelu {
    /// A row of a matrix of eighths, so few that sums of their products are exact.
    fn row(&self, turn: Turn, which: u64, row: u32, columns: u32) -> Vec<f32> {
        let first = turn.seed ^ which << 60 ^ u64::from(turn.rank) << 52 ^ u64::from(turn.round) << 44;
        let first = mixed(first ^ u64::from(row));
        (0..u64::from(columns)).map(|i| ((mixed(first ^ i) % 15) as f32 - 7.0) / 8.0).collect()
    }

    fn matrix(&self, turn: Turn, which: u64, [rows, columns]: [u32; 2]) -> Vec<u8> {
        let all: Vec<f32> = (0..rows).flat_map(|row| self.row(turn, which, row, columns)).collect();
        encode(self.dtype, &all)
    }
}

impl Workload for MatmulGelu {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let matrix = |name, which, shape| Contents::new(name, self.matrix(turn, which, shape));
        vec![
            matrix("x", 1, [self.m, self.k]),
            matrix("w", 2, [self.n, self.k]),
            matrix("bias", 3, [1, self.n]),
        ]
    }

    /// Checks some rows of a large product.
    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let w: Vec<Vec<f32>> = (0..self.n).map(|row| self.row(turn, 2, row, self.k)).collect();
        let bias = self.row(turn, 3, 0, self.n);
        let each = u64::from(self.n) * u64::from(self.k);
        let apart = u64::from(self.m).div_ceil((1 << 26) / each + 1).max(1) as usize;
        let bytes = u64::from(self.dtype.bytes());
        let of = |row: u32| {
            let x = self.row(turn, 1, row, self.k);
            let dot = |w: &Vec<f32>| x.iter().zip(w).map(|(x, w)| f64::from(x * w)).sum::<f64>();
            let sums = w.iter().zip(&bias).map(|(w, bias)| dot(w) + f64::from(*bias));
            let out = sums.map(|x| 0.5 * x * (1.0 + libm::erf(x * FRAC_1_SQRT_2)));
            let out: Vec<f32> = out.map(|x| x as f32).collect();
            let most = out.iter().copied().fold(f32::MIN, f32::max);
            let near = |buffer, at: u64, values: &[f32]| {
                let expected = Expected::exactly(buffer, self.dtype, encode(self.dtype, values));
                Expected { at: at * bytes, ..expected }
                    .called(&format!("{buffer} of row {row}"))
                    .within(1e-5, 1.0 / 128.0)
            };
            [near("out", u64::from(row) * u64::from(self.n), &out), near("row_max", row.into(), &[most])]
        };
        (0..self.m).step_by(apart).flat_map(of).collect()
    }

    fn work(&self) -> Work {
        let flops = 2 * u64::from(self.m) * u64::from(self.n) * u64::from(self.k);
        Work { flops, ..Work::all_to_all(1, 0) }
    }
}
