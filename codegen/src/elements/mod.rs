//! Rows as bytes and as numbers, for workloads and their references. They stand in this crate because development builds optimise it.

pub mod e4m3;
pub mod loops;

use half::f16;
use half::slice::HalfFloatSliceExt;

use self::e4m3::{e4m3_from_f32, e4m3_to_f32};
use crate::bf16;
use crate::ir::Dtype;

/// The numbers that the bytes of a row of floats stand for.
///
/// # Panics
/// When the type is not a float type.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => {
            let mut values = vec![0.0; bytes.len() / 2];
            decode_bf16(bytes, &mut values);
            values
        }
        Dtype::Fp16 => {
            let halves = bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]));
            let mut values = vec![0.0; bytes.len() / 2];
            halves.collect::<Vec<_>>().convert_to_f32_slice(&mut values);
            values
        }
        Dtype::Fp8 => bytes.iter().map(|&b| e4m3_to_f32(b)).collect(),
        Dtype::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 => panic!("{dtype} is not a float type"),
    }
}

/// The bytes of numbers, each rounded to the nearest, ties to even.
///
/// # Panics
/// When the type is not a float type.
pub fn encode(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::Bf16 => {
            let mut bytes = vec![0; values.len() * 2];
            encode_bf16(values, &mut bytes);
            bytes
        }
        Dtype::Fp16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(values);
            halves.iter().flat_map(|x| x.to_le_bytes()).collect()
        }
        Dtype::Fp8 => values.iter().map(|&x| e4m3_from_f32(x)).collect(),
        Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 => panic!("{dtype} is not a float type"),
    }
}

/// Rounds each number to the nearest of the type.
///
/// # Panics
/// When the type is not a float type.
pub fn round(dtype: Dtype, mut values: Vec<f32>) -> Vec<f32> {
    if dtype == Dtype::Bf16 {
        round_bf16(&mut values);
        return values;
    }
    decode(dtype, &encode(dtype, &values))
}

// A bf16 is the upper half of an f32. Said so, these loops vectorise.

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn decode_bf16(bytes: &[u8], values: &mut [f32]) {
    for (x, b) in values.iter_mut().zip(bytes.chunks_exact(2)) {
        *x = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn encode_bf16(values: &[f32], bytes: &mut [u8]) {
    for (b, x) in bytes.chunks_exact_mut(2).zip(values) {
        b.copy_from_slice(&bf16::bits_of(*x).to_le_bytes());
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn round_bf16(values: &mut [f32]) {
    for x in values {
        *x = f32::from_bits(u32::from(bf16::bits_of(*x)) << 16);
    }
}

/// A number of which every bit depends on all bits of `z`: most of splitmix64's finaliser, without its last shift.
pub fn mixed(mut z: u64) -> u64 {
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        z = (z ^ z >> shift).wrapping_mul(factor);
    }
    z
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_to_the_type() {
        let x = [1.0 + 1.0 / 512.0, -3.0];
        assert_eq!(round(Dtype::Bf16, x.to_vec()), [1.0, -3.0]);
        assert_eq!(round(Dtype::Fp16, x.to_vec()), x);
        assert_eq!(round(Dtype::Fp8, x.to_vec()), [1.0, -3.0]);
        assert_eq!(round(Dtype::F32, x.to_vec()), x);
        assert_eq!(encode(Dtype::Bf16, &[1.0]), [0x80, 0x3f]);
    }

    #[test]
    fn every_bf16_has_the_value_that_the_library_says() {
        for bits in 0..=u16::MAX {
            let (got, want) =
                (decode(Dtype::Bf16, &bits.to_le_bytes())[0], half::bf16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
        }
    }
}
