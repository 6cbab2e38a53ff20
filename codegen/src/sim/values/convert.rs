//! Conversion between element types.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::arith::{Bits, map};
use super::value::Tile;
use crate::bf16::bits_of;
use crate::fp8;
use crate::ir::Dtype;

/// Converts a tile. Conversions that involve an 8- or 16-bit float go through `f32`.
pub(crate) fn cast_tile(from: Dtype, to: Dtype, a: &Tile, out: &mut Tile) {
    let bytes = from.bytes() as usize;
    let len = a.bytes() / bytes;
    if from == to {
        *out = a.clone();
        return;
    }
    match (from, to) {
        (Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8, Dtype::F32) => widen(from, a, out.fresh(len)),
        (Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8, _) => {
            let mut wide = Tile::default();
            widen(from, a, wide.fresh(len));
            from_wide(Dtype::F32, to, &wide, out, len);
        }
        (Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32, _) => {
            from_wide(from, to, a, out, len);
        }
    }
}

/// As `f32`.
fn widen(from: Dtype, a: &Tile, out: &mut [f32]) {
    match from {
        Dtype::Fp16 => a.view::<f16>().convert_to_f32_slice(out),
        Dtype::Bf16 => widen_bf16(a.view(), out),
        Dtype::Fp8 => map(a.view::<u8>(), out, fp8::to_f32),
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => convert(from, a, out),
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn widen_bf16(a: &[u16], out: &mut [f32]) {
    map(a, out, |v| f32::from_bits(u32::from(v) << 16));
}

fn from_wide(from: Dtype, to: Dtype, a: &Tile, out: &mut Tile, len: usize) {
    match to {
        Dtype::Bool => match from {
            Dtype::U64 => map(a.view::<u64>(), out.fresh(len), |v| u8::from(v != 0)),
            Dtype::F32 => map(a.view::<f32>(), out.fresh(len), |v| u8::from(v != 0.0)),
            Dtype::Bool => *out = a.clone(),
            Dtype::I32 | Dtype::U32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
                map(a.view::<u32>(), out.fresh(len), |v| u8::from(v != 0))
            }
        },
        Dtype::I32 => convert(from, a, out.fresh::<i32>(len)),
        Dtype::U32 => convert(from, a, out.fresh::<u32>(len)),
        Dtype::U64 => convert(from, a, out.fresh::<u64>(len)),
        Dtype::F32 => convert(from, a, out.fresh::<f32>(len)),
        Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
            let mut floats = Tile::default();
            let floats: &[f32] = if from == Dtype::F32 {
                a.view()
            } else {
                convert(from, a, floats.fresh::<f32>(len));
                floats.view()
            };
            if to == Dtype::Fp16 {
                out.fresh::<f16>(len).convert_from_f32_slice(floats);
            } else if to == Dtype::Bf16 {
                narrow(floats, out.fresh(len));
            } else {
                map(floats, out.fresh(len), fp8::from_f32);
            }
        }
    }
}

#[multiversion::multiversion(targets("x86_64+avx2"))]
fn narrow(floats: &[f32], out: &mut [u16]) {
    map(floats, out, bits_of);
}

/// Types that Rust's `as` converts to with the semantics of [`crate::ir::ValueOp::Cast`].
trait Wide: Copy {
    fn from_bool(v: u8) -> Self;
    fn from_i32(v: i32) -> Self;
    fn from_u32(v: u32) -> Self;
    fn from_u64(v: u64) -> Self;
    fn from_f32(v: f32) -> Self;
}

macro_rules! wide {
    ($($t:ty)*) => {$(
        impl Wide for $t {
            #[inline(always)]
            fn from_bool(v: u8) -> $t { v as $t }
            #[inline(always)]
            fn from_i32(v: i32) -> $t { v as $t }
            #[inline(always)]
            fn from_u32(v: u32) -> $t { v as $t }
            #[inline(always)]
            fn from_u64(v: u64) -> $t { v as $t }
            #[inline(always)]
            fn from_f32(v: f32) -> $t { v as $t }
        }
    )*};
}
wide!(i32 u32 u64 f32);

fn convert<T: Wide>(from: Dtype, a: &Tile, out: &mut [T]) {
    match from {
        Dtype::I32 => map(a.view(), out, T::from_i32),
        Dtype::U32 => map(a.view(), out, T::from_u32),
        Dtype::U64 => map(a.view(), out, T::from_u64),
        Dtype::F32 => map(a.view(), out, T::from_f32),
        // The small floats were widened before.
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => map(a.view(), out, T::from_bool),
    }
}

/// Converts a scalar.
pub(crate) fn cast_scalar(from: Dtype, to: Dtype, bits: u64) -> u64 {
    let small = |d| matches!(d, Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8);
    if from == to {
        return bits;
    }
    if small(from) || small(to) {
        let value = match from {
            Dtype::Fp16 => f16::from_bits(bits as u16).to_f32(),
            Dtype::Bf16 => bf16::from_bits(bits as u16).to_f32(),
            Dtype::Fp8 => fp8::to_f32(bits as u8),
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => to_wide::<f32>(from, bits),
        };
        return match to {
            Dtype::Fp16 => u64::from(f16::from_f32(value).to_bits()),
            Dtype::Bf16 => u64::from(bits_of(value)),
            Dtype::Fp8 => u64::from(fp8::from_f32(value)),
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => {
                cast_scalar(Dtype::F32, to, value.to_bits64())
            }
        };
    }
    match to {
        Dtype::Bool if from == Dtype::F32 => u64::from(f32::from_bits64(bits) != 0.0),
        Dtype::Bool => u64::from(bits != 0),
        Dtype::I32 => to_wide::<i32>(from, bits).to_bits64(),
        Dtype::U32 => to_wide::<u32>(from, bits).to_bits64(),
        Dtype::U64 => to_wide::<u64>(from, bits),
        Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => to_wide::<f32>(from, bits).to_bits64(),
    }
}

fn to_wide<T: Wide>(from: Dtype, bits: u64) -> T {
    match from {
        Dtype::I32 => T::from_i32(i32::from_bits64(bits)),
        Dtype::U32 => T::from_u32(bits as u32),
        Dtype::U64 => T::from_u64(bits),
        Dtype::F32 => T::from_f32(f32::from_bits64(bits)),
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => T::from_bool(bits as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interesting values of each type, as scalar bits.
    fn samples(d: Dtype) -> Vec<u64> {
        let floats = [0.0f32, -0.0, 1.5, -2.75, 0.1, 448.0, 1e4, -3e9, 1e20, 1e-8, f32::NAN, f32::INFINITY];
        match d {
            Dtype::Bool => vec![0, 1],
            Dtype::I32 => [0, 1, -1, i32::MIN, i32::MAX, 77].map(i32::to_bits64).to_vec(),
            Dtype::U32 => vec![0, 1, 0x8000_0000, 0xffff_ffff, 300],
            Dtype::U64 => vec![0, 1, u64::MAX, 1 << 40, 0x1_0000_0001],
            Dtype::F32 => floats.map(f32::to_bits64).to_vec(),
            Dtype::Fp16 => floats.map(|v| u64::from(f16::from_f32(v).to_bits())).to_vec(),
            Dtype::Bf16 => floats.map(|v| u64::from(bf16::from_f32(v).to_bits())).to_vec(),
            Dtype::Fp8 => floats.map(|v| u64::from(fp8::from_f32(v))).to_vec(),
        }
    }

    fn tile(d: Dtype, bits: &[u64]) -> Tile {
        let mut t = Tile::default();
        match d.bytes() {
            1 => map(bits, t.fresh(bits.len()), |v| v as u8),
            2 => map(bits, t.fresh(bits.len()), |v| v as u16),
            4 => map(bits, t.fresh(bits.len()), |v| v as u32),
            _ => map(bits, t.fresh(bits.len()), |v| v),
        }
        t
    }

    fn element(d: Dtype, t: &Tile, i: usize) -> u64 {
        match d.bytes() {
            1 => t.view::<u8>()[i].into(),
            2 => t.view::<u16>()[i].into(),
            4 => t.view::<u32>()[i].into(),
            _ => t.view::<u64>()[i],
        }
    }

    fn is_nan(d: Dtype, bits: u64) -> bool {
        d.is_float() && f32::from_bits64(cast_scalar(d, Dtype::F32, bits)).is_nan()
    }

    #[test]
    fn tiles_convert_as_scalars_do() {
        for from in Dtype::ALL {
            let bits = samples(from);
            let a = tile(from, &bits);
            for to in Dtype::ALL {
                let mut out = Tile::default();
                cast_tile(from, to, &a, &mut out);
                for (i, &b) in bits.iter().enumerate() {
                    let (scalar, tile) = (cast_scalar(from, to, b), element(to, &out, i));
                    let both_nan = is_nan(to, scalar) && is_nan(to, tile);
                    assert!(scalar == tile || both_nan, "{from} {b:#x} to {to}: {scalar:#x} and {tile:#x}");
                }
            }
        }
    }

    #[test]
    fn casts_do_what_the_operation_says() {
        let f = |v: f32| v.to_bits64();
        assert_eq!(cast_scalar(Dtype::F32, Dtype::I32, f(-1.9)), (-1i32).to_bits64());
        assert_eq!(cast_scalar(Dtype::F32, Dtype::I32, f(3e9)), i32::MAX.to_bits64());
        assert_eq!(cast_scalar(Dtype::F32, Dtype::U32, f(-5.0)), 0);
        assert_eq!(cast_scalar(Dtype::I32, Dtype::U64, (-1i32).to_bits64()), u64::MAX);
        assert_eq!(cast_scalar(Dtype::U64, Dtype::U32, 0x1_0000_0007), 7);
        assert_eq!(cast_scalar(Dtype::U32, Dtype::F32, 0xffff_ffff), f(4294967296.0));
        assert_eq!(cast_scalar(Dtype::F32, Dtype::Fp8, f(1e9)), 0x7e);
    }
}
