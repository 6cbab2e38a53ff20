//! What collectives compute, in plain Rust: nothing of the kernels is in it.

use std::ops::Range;

use peerwarp_codegen::ir::Dtype;

use super::Reduction;
use crate::harness::elements::round;
use crate::harness::workload::Turn;

/// The vector of a rank in a round: representable in the element type, of both signs and of several sizes.
pub fn vector(Turn { seed, rank, round: turn }: Turn, elements: u32, dtype: Dtype) -> Vec<f32> {
    let number = |i: u32| {
        let mut z = seed ^ u64::from(turn) << 48 ^ u64::from(rank) << 32 ^ u64::from(i);
        // The finaliser of splitmix64.
        for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb_u64)] {
            z = (z ^ z >> shift).wrapping_mul(factor);
        }
        // From 1/128 to 2.
        let exponent = 120 + (z & 7) as u32;
        let mantissa = (z >> 41) as u32 & 0x7f_ffff;
        let sign = (z >> 3 & 1) as u32;
        f32::from_bits(sign << 31 | exponent << 23 | mantissa)
    };
    round(dtype, &(0..elements).map(number).collect::<Vec<f32>>())
}

/// The vectors of all ranks.
pub fn vectors(turn: Turn, ranks: u32, elements: u32, dtype: Dtype) -> Vec<Vec<f32>> {
    (0..ranks).map(|rank| vector(Turn { rank, ..turn }, elements, dtype)).collect()
}

/// Element by element the reduction over all ranks: in `f32`, in the order of ranks, rounded once.
pub fn reduction(op: Reduction, vectors: &[Vec<f32>], dtype: Dtype) -> Vec<f32> {
    let mut all = vectors.iter();
    let mut sum = all.next().cloned().unwrap_or_default();
    for vector in all {
        for (sum, x) in sum.iter_mut().zip(vector) {
            *sum = match op {
                Reduction::Sum => *sum + x,
                Reduction::Max => sum.max(*x),
                Reduction::Min => sum.min(*x),
            };
        }
    }
    round(dtype, &sum)
}

/// The part of a vector that belongs to a rank: all parts but the last ones are of one length.
pub fn part(elements: u32, ranks: u32, rank: u32) -> Range<usize> {
    let len = elements.div_ceil(ranks);
    let at = |rank: u32| (u64::from(rank) * u64::from(len)).min(elements.into()) as usize;
    at(rank)..at(rank + 1)
}
