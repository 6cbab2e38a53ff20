//! What products are run on, and what must come out.

use peerwarp_codegen::ir::Dtype;

use super::order::result;
use super::reference::{
    Matrix, ScaledProduct, activated, added_on, added_up, looked_at, operand_row, product, requantised,
    scaled, sum,
};
use super::{Activation, AllGatherMatmul, Matmul, MatmulReduceScatter, Output, Scales};
use crate::families::scales::{ScaleLayout, ScaleRoom};
use crate::harness::bench::TIMING;
use crate::harness::elements::{encode, round};
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

pub(in crate::families) fn contents(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    Contents::new(buffer, encode(dtype, values))
}

/// A row of a result, where it is.
pub(super) fn row_of(buffer: &str, at: u32, dtype: Dtype, values: &[f32]) -> Expected {
    let bytes = u64::from(dtype.bytes()) * values.len() as u64;
    let expected = Expected::exactly(buffer, dtype, encode(dtype, values));
    Expected { at: u64::from(at) * bytes, ..expected }.called(&format!("row {at}"))
}

/// Bias, weights of rows and activation of the product with one matrix.
pub(super) struct Epilogue {
    /// What is added to each row of its product.
    pub bias: Option<Vec<f32>>,
    /// What each row of the result is multiplied by.
    pub weights: Option<Vec<f32>>,
    pub activation: Activation,
    pub dtype: Dtype,
}

impl Epilogue {
    pub fn new(bias: Option<Vec<f32>>, activation: Activation, dtype: Dtype) -> Epilogue {
        Epilogue { bias, weights: None, activation, dtype }
    }

    pub fn inputs(&self) -> impl Iterator<Item = Contents> {
        let bias = self.bias.iter().map(|bias| contents("bias", self.dtype, bias));
        bias.chain(self.weights.iter().map(|weights| contents("weights", Dtype::F32, weights)))
    }

    /// A row of `out`.
    pub fn row(&self, at: u32, sums: Vec<f32>) -> Expected {
        let expected = row_of("out", at, self.dtype, &round(self.dtype, self.done(at, sums)));
        // The exponential is the target's own, and so may be the last bit of the result.
        let rel = if self.dtype == Dtype::Bf16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
        if self.is_exact() { expected } else { expected.within(1e-5, rel) }
    }

    /// A row of `out`, and its scales if it has any: `rows` apart.
    pub fn rows(&self, at: u32, sums: Vec<f32>, out: Output, rows: u32) -> Vec<Expected> {
        if out == Output::Wide {
            return vec![self.row(at, sums)];
        }
        let (elements, scales) = requantised(&self.done(at, sums));
        let all = quantised_row(at, &elements, &scales, rows);
        // Of a number next to a tie the exponential's last bit decides.
        let within = |of: Expected| match of.dtype {
            Dtype::Fp8 => of.within(1.0 / 512.0, 1.0 / 8.0),
            _ => of.within(1e-9, 1.0 / 4096.0),
        };
        all.into_iter().map(|of| if self.is_exact() { of } else { within(of) }).collect()
    }

    /// What a row of sums comes to, before it is rounded.
    fn done(&self, at: u32, sums: Vec<f32>) -> Vec<f32> {
        let sums = self.bias.iter().fold(sums, |sums, bias| sum(&sums, bias));
        let done = activated(self.activation, &sums);
        self.weights.iter().fold(done, |done, weights| scaled(&done, weights[at as usize], None))
    }

    fn is_exact(&self) -> bool {
        matches!(self.activation, Activation::None | Activation::Relu)
    }
}

/// A row of a result of fp8, and its scales, each of which is `rows` behind the one before.
pub(super) fn quantised_row(at: u32, elements: &[f32], scales: &[f32], rows: u32) -> Vec<Expected> {
    let of = |(block, scale): (u32, &f32)| {
        let expected = Expected::exactly("out_scales", Dtype::F32, encode(Dtype::F32, &[*scale]));
        let place = 4 * (u64::from(block) * u64::from(rows) + u64::from(at));
        Expected { at: place, ..expected }.called(&format!("row {at}, scale {block}"))
    };
    let scales = (0..).zip(scales).map(of);
    [row_of("out", at, Dtype::Fp8, elements)].into_iter().chain(scales).collect()
}

/// A vector that is added to each row of a result.
pub(super) fn bias(turn: Turn, columns: u32) -> Vec<f32> {
    Matrix { turn, which: 3, columns }.rows(1)
}

/// Scales of `x` and of `w`, so many of each, or those of blocks of `[m, n, k]`; and so many of all elements.
pub(super) fn scales_of(
    turn: Turn,
    scales: Scales,
    (counts, alphas): ([u64; 2], u64),
    [m, n, k]: [u32; 3],
) -> [Vec<f32>; 3] {
    let [x, w] = [(4, counts[0], m), (5, counts[1], n)].map(|(which, count, rows)| match scales {
        Scales::Mx => Matrix { turn, which, columns: k / 32 }.scales_of(rows, &[0.5, 1.0, 2.0]),
        Scales::Nvfp4 => Matrix { turn, which, columns: k / 16 }.scales_of(rows, &[0.5, 1.0, 1.5, 2.0]),
        _ => Matrix { turn, which, columns: count as u32 }.scales(),
    });
    [x, w, Matrix { turn, which: 7, columns: alphas as u32 }.scales()]
}

/// The scales as inputs, if there are any. Scales of rows that make up tiles are no numbers.
pub(super) fn scale_inputs(
    scales: Scales,
    [x, w, alpha]: [Vec<f32>; 3],
    [m, n, k]: [u32; 3],
) -> impl Iterator<Item = Contents> {
    let named = [("x_scales", x, m), ("w_scales", w, n), ("alpha", alpha, 0)];
    named.into_iter().filter(|(_, of, _)| !of.is_empty()).map(move |(name, of, rows)| {
        let (block, byte): (u32, fn(f32) -> u8) = match scales {
            Scales::Mx if rows > 0 => (32, |scale| (scale.to_bits() >> 23) as u8),
            Scales::Nvfp4 if rows > 0 => (16, |scale| encode(Dtype::Fp8, &[scale])[0]),
            _ => return contents(name, Dtype::F32, &of),
        };
        let blocks = u64::from(k / block);
        let room = ScaleRoom::new(ScaleLayout::Tiles, k / block / 4, (rows.into(), 1));
        let mut bytes = vec![u8::MAX; 4 * room.all_words() as usize];
        for (i, scale) in (0..).zip(&of) {
            let (row, block) = (i / blocks, i % blocks);
            bytes[(4 * room.place(row, block / 4) + block % 4) as usize] = byte(*scale);
        }
        Contents::new(name, bytes)
    })
}

/// Rows of an operand: small whole numbers, or the lower four bits of each. What is no number is one of all ones there.
pub(super) fn operand(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    if dtype != Dtype::U32 {
        return contents(buffer, dtype, values);
    }
    let bits = |x: f32| if x.is_nan() { 15 } else { x as i8 as u8 & 15 };
    Contents::new(buffer, values.chunks(2).map(|two| bits(two[0]) | bits(two[1]) << 4).collect())
}

/// A rank's matrices of a type, of `[m, n, k]`, and what its epilogue takes.
fn inputs(turn: Turn, [m, n, k]: [u32; 3], dtype: Dtype, epilogue: &Epilogue) -> Vec<Contents> {
    let x = operand("x", dtype, &left(turn, k).rows(m));
    let w = operand("w", dtype, &right(turn, k).rows(n));
    [x, w].into_iter().chain(epilogue.inputs()).collect()
}

/// Operations of a product.
pub(super) fn flops(rows: u32, columns: u32, k: u32) -> u64 {
    2 * u64::from(rows) * u64::from(columns) * u64::from(k)
}

/// FLOPs and bytes a second that limits of products are computed from: H200's, dense, of 16 and of 8 bits, and what its memory is
/// read with.
fn tflops(dtype: Dtype) -> f64 {
    if matches!(dtype, Dtype::Fp8 | Dtype::U32) { 1600.0 } else { 800.0 }
}
const MEMORY_TBPS: f64 = 4.3;

/// What ranks do that each multiply their own: at least their operations, or the weights' way from memory.
pub(in crate::families) fn product_work(ranks: u32, dtype: Dtype, flops: u64, weight_bytes: u64) -> Work {
    let us = (flops as f64 / tflops(dtype)).max(weight_bytes as f64 / MEMORY_TBPS) / 1e6;
    Work { hops: 0, flops, steps: vec![("product".to_owned(), us)], ..Work::all_to_all(ranks, 0) }
}

impl Matmul {
    fn epilogue(&self, turn: Turn) -> Epilogue {
        let bias = self.bias.then(|| bias(turn, self.n));
        Epilogue::new(bias, self.activation, result(self.dtype))
    }
}

impl Workload for Matmul {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let shape = [self.m, self.n, self.k];
        let all = inputs(turn, shape, self.dtype, &self.epilogue(turn));
        let scales = scales_of(turn, self.scales, (self.scale_counts(), self.scales.alphas(1)), shape);
        all.into_iter().chain(scale_inputs(self.scales, scales, shape)).collect()
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let whole = |of: Matrix, row: u32| operand_row(self.scales, of.row(row));
        let w: Vec<Vec<i32>> = (0..self.n).map(|row| whole(right(turn, self.k), row)).collect();
        let epilogue = self.epilogue(turn);
        let rows = looked_at(turn.seed, self.m, u64::from(self.n) * u64::from(self.k));
        let (shape, activation) = ([self.m, self.n, self.k], self.activation);
        let scales = scales_of(turn, self.scales, (self.scale_counts(), self.scales.alphas(1)), shape);
        let of_scales = ScaledProduct { scales: self.scales, of: &scales, shape, group: 0, activation };
        let of = |at: u32| {
            epilogue.rows(at, of_scales.row(at, &whole(left(turn, self.k), at), &w), self.out, self.m)
        };
        rows.into_iter().flat_map(of).collect()
    }

    fn work(&self) -> Work {
        let weights =
            u64::from(self.n) * u64::from(self.scales.columns(self.k)) * u64::from(self.dtype.bytes());
        product_work(self.ranks, self.dtype, flops(self.m, self.n, self.k), weights)
    }
}

impl AllGatherMatmul {
    fn epilogue(&self, turn: Turn) -> Epilogue {
        Epilogue::new(self.bias.then(|| bias(turn, self.n)), self.activation, self.dtype)
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
        Epilogue::new(self.bias.then(|| bias(turn, self.n)), self.activation, self.dtype)
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
