//! Rows as bytes and as numbers.

use half::f16;
use peerwarp_codegen::ir::Dtype;

use super::fp8::{e4m3_from_f32, e4m3_to_f32};

/// The numbers that the bytes of a row of floats stand for.
///
/// # Panics
/// When the type is not a float type.
pub fn decode(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let pairs = bytes.chunks_exact(2).map(|b| [b[0], b[1]]);
    match dtype {
        // A bf16 is the upper half of an f32. Said so, the loop vectorises.
        Dtype::Bf16 => pairs.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)).collect(),
        Dtype::Fp16 => pairs.map(|b| f16::from_le_bytes(b).to_f32()).collect(),
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
        Dtype::Bf16 => bytes_of(values, |x| bf16_bits(x).to_le_bytes()),
        Dtype::Fp16 => bytes_of(values, |x| f16::from_f32(x).to_le_bytes()),
        Dtype::Fp8 => values.iter().map(|&x| e4m3_from_f32(x)).collect(),
        Dtype::F32 => bytes_of(values, f32::to_le_bytes),
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 => panic!("{dtype} is not a float type"),
    }
}

fn bytes_of<const N: usize>(values: &[f32], bytes: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
    values.iter().map(|&x| bytes(x)).collect::<Vec<_>>().into_flattened()
}

/// Rounded to the nearest, ties to even, without branches, so that the loop vectorises.
fn bf16_bits(x: f32) -> u16 {
    let bits = x.to_bits();
    let upper = bits >> 16;
    let rounded = bits.wrapping_add(0x7fff + (upper & 1)) >> 16;
    // To round could make an infinity of a NaN.
    (if x.is_nan() { upper | 0x40 } else { rounded }) as u16
}

/// Each number rounded to the nearest of the type.
pub fn round(dtype: Dtype, values: &[f32]) -> Vec<f32> {
    decode(dtype, &encode(dtype, values))
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn rounds_to_the_type() {
        let x = [1.0 + 1.0 / 512.0, -3.0];
        assert_eq!(round(Dtype::Bf16, &x), [1.0, -3.0]);
        assert_eq!(round(Dtype::Fp16, &x), x);
        assert_eq!(round(Dtype::Fp8, &x), [1.0, -3.0]);
        assert_eq!(round(Dtype::F32, &x), x);
        assert_eq!(encode(Dtype::Bf16, &[1.0]), [0x80, 0x3f]);
    }

    #[test]
    fn bf16_is_what_the_library_says() {
        let of = |bits: u32| f32::from_bits(bits);
        let near = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff]
            .map(|low| [0x3f80, 0x3f81, 0x7f7f, 0xff7f].map(|up| of(up << 16 | low)));
        let rest = [
            0.0,
            -0.0,
            f32::INFINITY,
            -f32::INFINITY,
            f32::NAN,
            of(0x7f80_0001),
            of(0xff80_ffff),
            of(1),
            of(0x0080_8000),
        ];
        for x in near.into_iter().flatten().chain(rest) {
            assert_eq!(bf16_bits(x), bf16::from_f32(x).to_bits(), "{x}");
        }
        for bits in 0..=u16::MAX {
            let (got, want) = (decode(Dtype::Bf16, &bits.to_le_bytes())[0], bf16::from_bits(bits).to_f32());
            assert!(got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan());
        }
    }
}
