//! What products of matrices are, in plain Rust: nothing of the kernels is in it.

use peerwarp_codegen::ir::Dtype;

use super::Activation;
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

    /// The first rows, all of them as floats.
    pub fn rows(&self, rows: u32) -> Vec<f32> {
        let mut all = Vec::with_capacity(rows as usize * self.columns as usize);
        (0..rows).for_each(|row| all.extend(loops::floats(&self.row(row))));
        all
    }
}

/// A row of sums times the scale of its row of `x`, and those of the rows of `w` then.
pub fn scaled(sums: &[f32], x: f32, w: &[f32]) -> Vec<f32> {
    sums.iter().zip(w).map(|(sum, w)| sum * x * w).collect()
}

/// A row of the product whose operands have scales: block after block of so many columns, each times the product of `scale` of the
/// row of `w` and the block.
pub fn product_of_blocks(
    x: &[i32],
    w: &[Vec<i32>],
    block: u32,
    scale: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let of_row = |(n, row): (usize, &Vec<i32>)| {
        let blocks = x.chunks(block as usize).zip(row.chunks(block as usize)).enumerate();
        blocks.map(|(i, (x, w))| loops::dot(x, w) as f32 * scale(n, i)).fold(0.0, |sum, part| sum + part)
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

/// What becomes of sums, rounded.
pub fn activated(activation: Activation, sums: &[f32], dtype: Dtype) -> Vec<f32> {
    let of = |x: f32| match activation {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Silu => (f64::from(x) / (1.0 + (-f64::from(x)).exp())) as f32,
    };
    round(dtype, sums.iter().map(|x| of(*x)).collect())
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
    fn parts_of_others_are_rounded_before_they_are_added() {
        // 257 has nine bits, of which bf16 has eight.
        let sums = |own: f32, other: f32| added_up(&[vec![own, 1.0], vec![other, 2.0]], Dtype::Bf16);
        let parts = |own, other| activated(Activation::None, &sums(own, other), Dtype::Bf16);
        assert_eq!((parts(257.0, 1.0), parts(1.0, 257.0)), (vec![258.0, 3.0], vec![256.0, 3.0]));
        // The sum itself is rounded after what is added to it.
        assert_eq!(sums(1.0, 257.0), [257.0, 3.0]);
    }

    #[test]
    fn sums_that_go_on_are_rounded_by_each_rank() {
        let sums = |all: [f32; 3]| added_on(&all.map(|x| vec![x]), Dtype::Bf16);
        let parts = |all| activated(Activation::None, &sums(all), Dtype::Bf16);
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
