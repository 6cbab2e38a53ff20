//! What products are run on, and what must come out.

use peerwarp_codegen::ir::Dtype;

use super::reference::{
    Matrix, activated, added_on, added_up, looked_at, product, product_of_blocks, scaled, sum,
};
use super::scales::BLOCK;
use super::{Activation, AllGatherMatmul, Matmul, MatmulReduceScatter, Scales};
use crate::harness::bench::TIMING;
use crate::harness::elements::encode;
use crate::harness::verdict::Expected;
use crate::harness::workload::{Baseline, Contents, Turn, Work, Workload};

/// cuBLAS, with NCCL where there is something to gather or to scatter, PyTorch's asynchronous tensor parallelism, and its grouped
/// product.
pub(super) const BASELINES: Baseline =
    Baseline { scripts: &[("products.py", include_str!("../../../bench/baselines/products.py")), TIMING] };

/// The matrix that is multiplied with `w`.
pub(super) fn left(turn: Turn, columns: u32) -> Matrix {
    Matrix { turn, which: 1, columns }
}

/// A rank's `w`.
pub(super) fn right(turn: Turn, columns: u32) -> Matrix {
    Matrix { turn, which: 2, columns }
}

pub(super) fn contents(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    Contents::new(buffer, encode(dtype, values))
}

/// A row of a result, where it is.
pub(super) fn row_of(buffer: &str, at: u32, dtype: Dtype, values: &[f32]) -> Expected {
    let bytes = u64::from(dtype.bytes()) * values.len() as u64;
    let expected = Expected::exactly(buffer, dtype, encode(dtype, values));
    Expected { at: u64::from(at) * bytes, ..expected }.called(&format!("row {at}"))
}

/// What becomes of sums.
struct Epilogue {
    /// What the sums of each row, and of each column, are multiplied by.
    scales: Option<[Vec<f32>; 2]>,
    /// What is added to each row of a rank's result.
    bias: Option<Vec<f32>>,
    activation: Activation,
    dtype: Dtype,
}

impl Epilogue {
    fn new(turn: Turn, columns: u32, with_bias: bool, activation: Activation, dtype: Dtype) -> Epilogue {
        let bias = with_bias.then(|| Matrix { turn, which: 3, columns }.rows(1));
        Epilogue { scales: None, bias, activation, dtype }
    }

    fn inputs(&self) -> Option<Contents> {
        Some(contents("bias", self.dtype, self.bias.as_deref()?))
    }

    /// A row of `out`.
    fn row(&self, at: u32, sums: Vec<f32>) -> Expected {
        let sums = self.scales.iter().fold(sums, |sums, [x, w]| scaled(&sums, x[at as usize], w));
        let sums = self.bias.iter().fold(sums, |sums, bias| sum(&sums, bias));
        let expected = row_of("out", at, self.dtype, &activated(self.activation, &sums, self.dtype));
        // The exponential is the target's own, and so may be the last bit of the result.
        let rel = if self.dtype == Dtype::Bf16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
        if self.activation == Activation::Silu { expected.within(1e-5, rel) } else { expected }
    }
}

/// A rank's matrices of a type, of `[m, n, k]`, and what its epilogue takes.
fn inputs(turn: Turn, [m, n, k]: [u32; 3], dtype: Dtype, epilogue: &Epilogue) -> Vec<Contents> {
    let x = contents("x", dtype, &left(turn, k).rows(m));
    let w = contents("w", dtype, &right(turn, k).rows(n));
    [x, w].into_iter().chain(epilogue.inputs()).collect()
}

/// Operations of a product.
pub(super) fn flops(rows: u32, columns: u32, k: u32) -> u64 {
    2 * u64::from(rows) * u64::from(columns) * u64::from(k)
}

/// FLOPs and bytes a second that limits of products are computed from: H200's, dense, of 16 and of 8 bits, and what its memory is
/// read with.
fn tflops(dtype: Dtype) -> f64 {
    if dtype == Dtype::Fp8 { 1600.0 } else { 800.0 }
}
const MEMORY_TBPS: f64 = 4.3;

/// What ranks do that each multiply their own: at least their operations, or the weights' way from memory.
pub(super) fn product_work(ranks: u32, dtype: Dtype, flops: u64, weight_bytes: u64) -> Work {
    let us = (flops as f64 / tflops(dtype)).max(weight_bytes as f64 / MEMORY_TBPS) / 1e6;
    Work { hops: 0, flops, steps: vec![("product".to_owned(), us)], ..Work::all_to_all(ranks, 0) }
}

impl Matmul {
    fn epilogue(&self, turn: Turn) -> Epilogue {
        let epilogue = Epilogue::new(turn, self.n, self.bias, self.activation, self.result());
        let [x, w] = self.scales(turn);
        let every = |scales: Vec<f32>, rows: u32| scales.repeat(rows as usize / scales.len());
        let scales = match self.scales {
            Scales::None | Scales::Block => None,
            Scales::Tensor | Scales::Row => Some([every(x, self.m), every(w, self.n)]),
        };
        Epilogue { scales, ..epilogue }
    }

    /// The scales of `x` and of `w`.
    fn scales(&self, turn: Turn) -> [Vec<f32>; 2] {
        let [x, w] = self.scale_counts();
        [(4, x), (5, w)].map(|(which, count)| Matrix { turn, which, columns: count as u32 }.scales())
    }

    /// The sums of row `at`, of blocks with their scales.
    fn sums(&self, turn: Turn, at: u32, w: &[Vec<i32>], [x_scales, w_scales]: &[Vec<f32>; 2]) -> Vec<f32> {
        let x = left(turn, self.k).row(at);
        if self.scales != Scales::Block {
            return product(&x, w);
        }
        let (blocks, block) = (self.k.div_ceil(BLOCK) as usize, BLOCK as usize);
        let scale = |row: usize, i: usize| {
            x_scales[i * self.m as usize + at as usize] * w_scales[row / block * blocks + i]
        };
        product_of_blocks(&x, w, BLOCK, scale)
    }
}

impl Workload for Matmul {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let all = inputs(turn, [self.m, self.n, self.k], self.dtype, &self.epilogue(turn));
        let scales = ["x_scales", "w_scales"].into_iter().zip(self.scales(turn));
        let scales = scales.filter(|(_, scales)| !scales.is_empty());
        all.into_iter().chain(scales.map(|(name, scales)| contents(name, Dtype::F32, &scales))).collect()
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let w: Vec<Vec<i32>> = (0..self.n).map(|row| right(turn, self.k).row(row)).collect();
        let epilogue = self.epilogue(turn);
        let rows = looked_at(turn.seed, self.m, u64::from(self.n) * u64::from(self.k));
        let scales = self.scales(turn);
        let of = |at: u32| epilogue.row(at, self.sums(turn, at, &w, &scales));
        rows.into_iter().map(of).collect()
    }

    fn work(&self) -> Work {
        let weights = u64::from(self.n) * u64::from(self.k) * u64::from(self.dtype.bytes());
        product_work(self.ranks, self.dtype, flops(self.m, self.n, self.k), weights)
    }
}

impl AllGatherMatmul {
    fn epilogue(&self, turn: Turn) -> Epilogue {
        Epilogue::new(turn, self.n, self.bias, self.activation, self.dtype)
    }
}

impl Workload for AllGatherMatmul {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        inputs(turn, [self.rows(), self.n, self.k], self.dtype, &self.epilogue(turn))
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let w: Vec<Vec<i32>> = (0..self.n).map(|row| right(turn, self.k).row(row)).collect();
        let x = |at: u32| left(Turn { rank: at / self.rows(), ..turn }, self.k).row(at % self.rows());
        let epilogue = self.epilogue(turn);
        let of = |at: u32| epilogue.row(at, product(&x(at), &w));
        let gathered = |at: u32| {
            let x: Vec<f32> = x(at).into_iter().map(|x| x as f32).collect();
            row_of("gathered", at, self.dtype, &x)
        };
        let rows = looked_at(turn.seed, self.m, u64::from(self.n) * u64::from(self.k));
        let all = looked_at(turn.seed, if self.gathered { self.m } else { 0 }, self.k.into());
        rows.into_iter().map(of).chain(all.into_iter().map(gathered)).collect()
    }

    fn work(&self) -> Work {
        let rows = u64::from(self.rows()) * u64::from(self.k) * u64::from(self.dtype.bytes());
        Work { flops: flops(self.m, self.n, self.k), ..Work::all_to_all(self.ranks, rows) }
    }
}

impl MatmulReduceScatter {
    fn epilogue(&self, turn: Turn) -> Epilogue {
        Epilogue::new(turn, self.n, self.bias, self.activation, self.dtype)
    }
}

impl Workload for MatmulReduceScatter {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        inputs(turn, [self.m, self.n, self.k], self.dtype, &self.epilogue(turn))
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let epilogue = self.epilogue(turn);
        // The owner's own part first, then those of the ranks before it.
        let add = if self.adds_on() { added_on } else { added_up };
        let rank = |back| (turn.rank + self.ranks - back) % self.ranks;
        let ranks = (0..self.ranks).map(|back| Turn { rank: rank(back), ..turn });
        let w = |turn| (0..self.n).map(|row| right(turn, self.k).row(row)).collect::<Vec<_>>();
        let parts: Vec<(Matrix, Vec<Vec<i32>>)> = ranks.map(|turn| (left(turn, self.k), w(turn))).collect();
        let of = |at: u32| {
            let from = turn.rank * self.rows() + at;
            let parts: Vec<Vec<f32>> = parts.iter().map(|(x, w)| product(&x.row(from), w)).collect();
            epilogue.row(at, add(&parts, self.dtype))
        };
        let each = u64::from(self.ranks) * u64::from(self.n) * u64::from(self.k);
        looked_at(turn.seed, self.rows(), each).into_iter().map(of).collect()
    }

    fn work(&self) -> Work {
        let rows = u64::from(self.rows()) * u64::from(self.n) * u64::from(self.dtype.bytes());
        Work { flops: flops(self.m, self.n, self.k), ..Work::all_to_all(self.ranks, rows) }
    }
}
