//! Loops over long rows of numbers.

use super::mixed;
use crate::fp8::e2m1_to_f32;

/// Numbers of both signs and of several sizes, from 1/128 to 2: one for each of the first `len` numbers mixed with `seed`.
pub fn of_all_sizes(seed: u64, len: u32) -> Vec<f32> {
    let number = |i: u32| {
        let z = mixed(seed ^ u64::from(i));
        let exponent = 120 + (z & 7) as u32;
        let mantissa = (z >> 41) as u32 & 0x7f_ffff;
        let sign = (z >> 3 & 1) as u32;
        f32::from_bits(sign << 31 | exponent << 23 | mantissa)
    };
    (0..len).map(number).collect()
}

/// Whole numbers from -8 to 7: one for each of the first `len` numbers mixed with `seed`.
pub fn small_whole(seed: u64, len: u32) -> Vec<i32> {
    (0..len).map(|i| (mixed(seed ^ u64::from(i)) >> 60) as i32 - 8).collect()
}

/// Whole numbers as floats.
pub fn floats(values: &[i32]) -> Vec<f32> {
    values.iter().map(|x| *x as f32).collect()
}

/// The sum of the products of two rows.
#[multiversion::multiversion(targets("x86_64+avx2"))]
pub fn dot(a: &[i32], b: &[i32]) -> i32 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The sum of the products of blocks of two rows, each times a scale and rounded once with the sum before.
#[multiversion::multiversion(targets("x86_64+avx2+fma"))]
pub fn dot_of_blocks(a: &[i32], b: &[i32], block: usize, scales: &[f32]) -> f32 {
    let mut sum = 0f32;
    for ((a, b), scale) in a.chunks(block).zip(b.chunks(block)).zip(scales) {
        let product: i32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
        sum = (product as f32).mul_add(*scale, sum);
    }
    sum
}

/// Twice the values that the lower four bits of each number have as e2m1.
pub fn twice_e2m1(row: &[i32]) -> Vec<i32> {
    row.iter().map(|&x| (2.0 * e2m1_to_f32(x as u8)) as i32).collect()
}

/// Adds a row to another.
pub fn add(sum: &mut [f32], row: &[f32]) {
    sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += x);
}

/// Keeps the larger of two elements.
pub fn max(most: &mut [f32], row: &[f32]) {
    most.iter_mut().zip(row).for_each(|(most, x)| *most = most.max(*x));
}

/// Keeps the smaller of two elements.
pub fn min(least: &mut [f32], row: &[f32]) {
    least.iter_mut().zip(row).for_each(|(least, x)| *least = least.min(*x));
}

/// Multiplies each element by a number.
pub fn scale(row: &mut [f32], factor: f32) {
    row.iter_mut().for_each(|x| *x *= factor);
}

/// Adds a row times a weight to another, rounded once.
// Without an instruction of its own for it, `mul_add` is a call for each element.
#[multiversion::multiversion(targets("x86_64+avx2+fma"))]
pub fn add_weighted(sum: &mut [f32], weight: f32, row: &[f32]) {
    for (s, x) in sum.iter_mut().zip(row) {
        *s = weight.mul_add(*x, *s);
    }
}

/// Numbers from -1 up to 1, of random bits.
pub fn uniform(bits: &[u32]) -> Vec<f32> {
    let between_1_and_2 = |bits: u32| f32::from_bits(1f32.to_bits() | bits >> 9);
    bits.iter().map(|bits| (between_1_and_2(*bits) - 1.0) * 2.0 - 1.0).collect()
}

/// How far elements are off at most, and how large they should be at most; a NaN stays.
#[multiversion::multiversion(targets("x86_64+avx2+fma"))]
pub fn off_and_largest(found: &[f32], want: &[f32]) -> [f64; 2] {
    // Side by side, so that it vectorises.
    const LANES: usize = 8;
    let (mut off, mut largest) = ([0f64; LANES], [0f64; LANES]);
    for (found, want) in found.chunks(LANES).zip(want.chunks(LANES)) {
        for (((f, w), off), largest) in found.iter().zip(want).zip(&mut off).zip(&mut largest) {
            *off = larger(*off, (f64::from(*f) - f64::from(*w)).abs());
            *largest = larger(*largest, f64::from(w.abs()));
        }
    }
    [off, largest].map(|lanes| lanes.into_iter().fold(0.0, larger))
}

/// The larger one. Unlike [`f64::max`], this keeps a NaN.
pub fn larger(a: f64, b: f64) -> f64 {
    if a >= b || a.is_nan() { a } else { b }
}
