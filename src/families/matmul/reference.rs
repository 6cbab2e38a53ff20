//! What products of matrices are, in plain Rust: nothing of the kernels is in it.

use peerwarp_codegen::ir::Dtype;

use super::{Activation, Scales};
use crate::harness::elements::{loops, round};
use crate::harness::workload::Turn;

/// Rows of a matrix of small whole numbers, so many that sums of their products are exact in `f32`, whatever the order.
#[derive(Clone, Copy, Debug)]
pub struct Matrix {
    pub turn: Turn,
    /// Tells matrices of a rank apart.
    pub which: u64,
    pub columns: u32,
}

impl Matrix {
    /// One row.
    pub fn row(&self, row: u32) -> Vec<i32> {
        let Turn { seed, rank, round } = self.turn;
        let matrix = seed ^ self.which << 60 ^ u64::from(round) << 48 ^ u64::from(rank) << 32;
        loops::small_whole(matrix ^ u64::from(row).wrapping_mul(0x9e37_79b9_7f4a_7c15), self.columns)
    }

    /// The first row as scales: sixteenths from 1/16 to 1.
    pub fn scales(&self) -> Vec<f32> {
        self.row(0).into_iter().map(|x| (x + 9) as f32 / 16.0).collect()
    }

    /// The first rows as scales: one of these each, by which sums stay exact.
    pub fn scales_of(&self, rows: u32, values: &[f32]) -> Vec<f32> {
        let of_row =
            |row: u32| self.row(row).into_iter().map(|x| values[x.rem_euclid(values.len() as i32) as usize]);
        (0..rows).flat_map(of_row).collect()
    }

    /// The first rows, all of them as floats.
    pub fn rows(&self, rows: u32) -> Vec<f32> {
        let mut all = Vec::with_capacity(rows as usize * self.columns as usize);
        (0..rows).for_each(|row| all.extend(loops::floats(&self.row(row))));
        all
    }
}

/// A row times a number, and times those of its columns then.
pub fn scaled(row: &[f32], by: f32, columns: Option<&[f32]>) -> Vec<f32> {
    let of_column = |i: usize| columns.map_or(1.0, |columns| columns[i]);
    row.iter().enumerate().map(|(i, x)| x * by * of_column(i)).collect()
}

/// A product with one of several matrices of weights, where both operands have scales.
#[derive(Clone, Copy, Debug)]
pub struct ScaledProduct<'a> {
    pub scales: Scales,
    /// All scales of `x` and of `w`, those that a product multiplies by row by row; and those of all elements.
    pub of: &'a [Vec<f32>; 3],
    /// Rows of `x`, rows of a matrix of weights, columns of both.
    pub shape: [u32; 3],
    pub group: usize,
    pub activation: Activation,
}

/// A row of small whole numbers as [`ScaledProduct::row`] multiplies it: of e2m1, twice what its lower four bits are.
pub fn operand_row(scales: Scales, row: Vec<i32>) -> Vec<i32> {
    if scales == Scales::Nvfp4 { loops::twice_e2m1(&row) } else { row }
}

impl ScaledProduct<'_> {
    /// Row `at`, of the row `x` of the left matrix and all of `w`: each an [`operand_row`].
    pub fn row(&self, at: u32, x: &[i32], w: &[Vec<i32>]) -> Vec<f32> {
        let (ScaledProduct { group, shape: [m, n, k], .. }, [x_scales, w_scales, alpha]) = (*self, self.of);
        let (m, n, at) = (m as usize, n as usize, at as usize);
        match self.scales {
            Scales::None => product(x, w),
            Scales::Tensor => scaled(&product(x, w), x_scales[0], Some(&vec![w_scales[group]; n])),
            Scales::Row => scaled(&product(x, w), x_scales[at], Some(&w_scales[group * n..][..n])),
            Scales::Block => {
                let blocks = k.div_ceil(128) as usize;
                let of_group = &w_scales[w_scales.len() / self.groups() * group..];
                let scale =
                    |row: usize, i: usize| x_scales[i * m + at] * of_group[self.row_block(row) * blocks + i];
                product_of_blocks(x, w, 128, scale)
            }
            Scales::Mx => {
                let blocks = k as usize / 32;
                let of_w = |row: usize, i: usize| w_scales[(group * n + row) * blocks + i];
                product_of_blocks(x, w, 32, |row, i| x_scales[at * blocks + i] * of_w(row, i))
            }
            Scales::Nvfp4 => {
                let blocks = k as usize / 16;
                let scale = |row: usize, i: usize| {
                    x_scales[at * blocks + i] * w_scales[(group * n + row) * blocks + i] / 4.0
                };
                scaled(&product_of_blocks(x, w, 16, scale), alpha[group], None)
            }
        }
    }

    /// How many matrices of weights have scales of blocks.
    fn groups(&self) -> usize {
        let [_, n, k] = self.shape.map(|size| size as usize);
        let halves = if self.activation.is_gated() { 2 } else { 1 };
        self.of[1].len() / (halves * (n / halves).div_ceil(128) * k.div_ceil(128))
    }

    /// The block of 128 rows of `w` that a row is of: gates and values, 16 rows of each in turn, have blocks of their own.
    fn row_block(&self, row: usize) -> usize {
        if !self.activation.is_gated() {
            return row / 128;
        }
        let of_gates = (self.shape[1] as usize / 2).div_ceil(128);
        (row / 32 * 16 + row % 16) / 128 + if row % 32 < 16 { 0 } else { of_gates }
    }
}

/// A row of the product whose operands have scales: block after block of so many columns, each times the product of `scale` of the
/// row of `w` and the block, rounded once with the sum before.
fn product_of_blocks(x: &[i32], w: &[Vec<i32>], block: u32, scale: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    let blocks = x.len().div_ceil(block as usize);
    let of_row = |(n, row): (usize, &Vec<i32>)| {
        let scales: Vec<f32> = (0..blocks).map(|i| scale(n, i)).collect();
        loops::dot_of_blocks(x, row, block as usize, &scales)
    };
    w.iter().enumerate().map(of_row).collect()
}

/// A row of the product: the row `x` times each of the rows of `w`.
pub fn product(x: &[i32], w: &[Vec<i32>]) -> Vec<f32> {
    w.iter().map(|row| loops::dot(x, row) as f32).collect()
}

/// The sum of the parts of a row that ranks have: the first as it is, the others rounded, since they have come from other ranks, and
/// added to it in order.
pub fn added_up(parts: &[Vec<f32>], dtype: Dtype) -> Vec<f32> {
    let (own, others) = parts.split_first().expect("a world has ranks");
    others.iter().fold(own.clone(), |sums, part| sum(&sums, &round(dtype, part.clone())))
}

/// The same sum where each of the others in order adds its part to what came and rounds that, and the first comes last.
pub fn added_on(parts: &[Vec<f32>], dtype: Dtype) -> Vec<f32> {
    let (own, others) = parts.split_first().expect("a world has ranks");
    let nothing = vec![0.0; own.len()];
    sum(&others.iter().fold(nothing, |come, part| round(dtype, sum(&come, part))), own)
}

/// The sum of two rows.
pub fn sum(a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut sum = a.to_vec();
    loops::add(&mut sum, b);
    sum
}

/// A row of sums after its activation.
pub fn activated(activation: Activation, sums: &[f32]) -> Vec<f32> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let of = |x: &f32| match activation {
        Activation::Relu => x.max(0.0),
        Activation::Silu => (f64::from(*x) * sigmoid((*x).into())) as f32,
        _ => *x,
    };
    let gated = |(gate, up): (&f32, &f32)| {
        let (gate, up) = (f64::from(*gate), f64::from(*up));
        match activation {
            Activation::SwigluClamped => {
                let (gate, up) = (gate.min(7.0), up.clamp(-7.0, 7.0));
                gate * sigmoid(1.702 * gate) * (up + 1.0)
            }
            _ => gate * sigmoid(gate) * up,
        }
    };
    let pairs = sums.chunks_exact(32).flat_map(|pair| pair[..16].iter().zip(&pair[16..]));
    match activation.is_gated() {
        true => pairs.map(|pair| gated(pair) as f32).collect(),
        false => sums.iter().map(of).collect(),
    }
}

/// A row over the scales of its blocks of 128 columns, and these: the largest magnitude over 448, or 1 of zeros.
pub fn requantised(row: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let scale = |block: &[f32]| {
        let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        if largest == 0.0 { 1.0 } else { largest / 448.0 }
    };
    let scales: Vec<f32> = row.chunks(128).map(scale).collect();
    (row.iter().enumerate().map(|(i, x)| x / scales[i / 128]).collect(), scales)
}

/// Rows whose products are looked at: all of them, unless that takes long; then some and the last.
pub fn looked_at(seed: u64, rows: u32, each: u64) -> Vec<u32> {
    const MULTIPLICATIONS: u64 = 1 << 31;
    let most = (MULTIPLICATIONS / each.max(1)).clamp(4, rows.max(4).into()) as u32;
    if most >= rows {
        return (0..rows).collect();
    }
    let step = rows / most;
    let shift = (seed % u64::from(step)) as u32;
    let mut some: Vec<u32> = (0..most).map(|i| i * step + shift).filter(|row| *row < rows).collect();
    some.push(rows - 1);
    some.dedup();
    some
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_is_that_of_the_definition() {
        let w = vec![vec![1, 0, -2], vec![3, 4, 5]];
        assert_eq!(product(&[2, 7, 1], &w), [0.0, 39.0]);
    }

    #[test]
    fn gates_open_the_values_behind_them() {
        let mut sums = vec![0.0; 64];
        // The second gate of the first pair, the first one of the second pair, and the values behind them.
        (sums[1], sums[17], sums[32], sums[48]) = (8.0, -9.0, -1.0, 3.0);
        let of = |activation: Activation| activated(activation, &sums);
        let (plain, clamped) = (of(Activation::Swiglu), of(Activation::SwigluClamped));
        let near = |x: f32, y: f64| (f64::from(x) - y).abs() < 1e-5;
        assert_eq!((plain.len(), plain[0], clamped[0]), (32, 0.0, 0.0));
        assert!(
            near(plain[1], -9.0 * 8.0 / (1.0 + (-8.0f64).exp()))
                && near(plain[16], -3.0 / (1.0 + 1.0f64.exp()))
        );
        assert!(near(clamped[1], -6.0 * 7.0 / (1.0 + (-1.702 * 7.0f64).exp())), "{clamped:?}");
        assert!(near(clamped[16], -4.0 / (1.0 + 1.702f64.exp())), "{clamped:?}");
    }

    #[test]
    fn a_block_of_a_result_has_a_scale_of_its_own() {
        let mut row = vec![0.0; 256];
        (row[3], row[127], row[128]) = (-896.0, 7.0, 0.0);
        let (elements, scales) = requantised(&row);
        assert_eq!((scales, elements[3], elements[127], elements[128]), (vec![2.0, 1.0], -448.0, 3.5, 0.0));
    }

    #[test]
    fn gates_and_values_have_blocks_of_scales_of_their_own() {
        let scales = [vec![1.0], (0..4).map(|i| i as f32).collect(), vec![]];
        let of = |activation| ScaledProduct {
            scales: Scales::Block,
            of: &scales,
            shape: [1, 320, 8],
            group: 0,
            activation,
        };
        let gated = of(Activation::Swiglu);
        assert_eq!([0, 15, 16, 255, 256, 272].map(|row| gated.row_block(row)), [0, 0, 2, 2, 1, 3]);
        assert_eq!([0, 127, 128, 256].map(|row| of(Activation::None).row_block(row)), [0, 0, 1, 2]);
    }

    #[test]
    fn parts_of_others_are_rounded_before_they_are_added() {
        // 257 has nine bits, of which bf16 has eight.
        let sums = |own: f32, other: f32| added_up(&[vec![own, 1.0], vec![other, 2.0]], Dtype::Bf16);
        let parts = |own, other| round(Dtype::Bf16, sums(own, other));
        assert_eq!((parts(257.0, 1.0), parts(1.0, 257.0)), (vec![258.0, 3.0], vec![256.0, 3.0]));
        // The sum itself is rounded after what is added to it.
        assert_eq!(sums(1.0, 257.0), [257.0, 3.0]);
    }

    #[test]
    fn sums_that_go_on_are_rounded_by_each_rank() {
        let sums = |all: [f32; 3]| added_on(&all.map(|x| vec![x]), Dtype::Bf16);
        let parts = |all| round(Dtype::Bf16, sums(all));
        // 256 + 1 is no bf16 and becomes 256, twice; 1 + 1 is one.
        assert_eq!((parts([1.0, 256.0, 1.0]), parts([256.0, 1.0, 1.0])), (vec![256.0], vec![258.0]));
        assert_eq!(sums([1.0, 256.0, 1.0]), [257.0]);
    }

    #[test]
    fn matrices_differ_by_rank_round_name_and_place_and_have_every_number() {
        let turn = Turn { seed: 3, rank: 0, round: 0 };
        let of = |turn, which| Matrix { turn, which, columns: 64 }.rows(4);
        let all = [
            of(turn, 0),
            of(turn, 1),
            of(Turn { rank: 1, ..turn }, 0),
            of(Turn { round: 1, ..turn }, 0),
            of(Turn { seed: 4, ..turn }, 0),
        ];
        assert!((0..5).all(|i| (0..i).all(|j| all[i] != all[j])));
        assert!(all[0][..64] != all[0][64..128]);
        assert!((-8..8).all(|n| all[0].contains(&(n as f32))));
    }

    #[test]
    fn large_products_are_looked_at_here_and_there() {
        assert_eq!(looked_at(5, 7, 1000), (0..7).collect::<Vec<_>>());
        let some = looked_at(5, 8192, 1 << 25);
        assert!(some.len() >= 64 && some.len() < 70 && some.last() == Some(&8191), "{some:?}");
        assert!(some.windows(2).all(|w| w[0] < w[1]));
    }
}
