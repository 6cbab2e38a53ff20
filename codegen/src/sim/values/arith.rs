//! Integer, float and logic arithmetic on slices. Scalars go through the same code as slices of one element, so that
//! a scalar and a tile can never disagree.

use bytemuck::Pod;

use crate::ir::{BinaryOp, CompareOp, Dtype, NoResult, OneOperand, TwoOperands, UnaryOp, truths};

/// Why arithmetic is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    /// It has no result.
    NoResult(NoResult),
    /// A product of 32 bits that does not fit them, in an order, a quotient or a conversion to 64 bits. The exact number.
    Wrapped(u64),
}

impl From<NoResult> for Trap {
    fn from(no_result: NoResult) -> Trap {
        Trap::NoResult(no_result)
    }
}

/// What all element types that take part in arithmetic can do.
pub(crate) trait Num: OneOperand + TwoOperands + Pod + PartialOrd {}
impl<T: OneOperand + TwoOperands + Pod + PartialOrd> Num for T {}

#[inline(always)]
pub(crate) fn zip<A: Copy, B: Copy, O>(a: &[A], b: &[B], out: &mut [O], f: impl Fn(A, B) -> O) {
    for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *o = f(a, b);
    }
}

#[inline(always)]
pub(crate) fn map<A: Copy, O>(a: &[A], out: &mut [O], f: impl Fn(A) -> O) {
    for (o, &a) in out.iter_mut().zip(a) {
        *o = f(a);
    }
}

#[inline(always)]
pub(crate) fn compare<T: Copy + PartialOrd>(op: CompareOp, a: &[T], b: &[T], out: &mut [u8]) {
    match op {
        CompareOp::Eq => zip(a, b, out, |a, b| u8::from(a == b)),
        CompareOp::Ne => zip(a, b, out, |a, b| u8::from(a != b)),
        CompareOp::Lt => zip(a, b, out, |a, b| u8::from(a < b)),
        CompareOp::Le => zip(a, b, out, |a, b| u8::from(a <= b)),
        CompareOp::Gt => zip(a, b, out, |a, b| u8::from(a > b)),
        CompareOp::Ge => zip(a, b, out, |a, b| u8::from(a >= b)),
    }
}

/// A scalar as an element of its type: scalars are kept as the low bits of a `u64`.
pub(crate) trait Bits: Pod {
    fn from_bits64(bits: u64) -> Self;
    fn to_bits64(self) -> u64;
}

macro_rules! bits {
    ($($t:ty, $from:expr, $to:expr;)*) => {$(
        impl Bits for $t {
            #[inline(always)]
            fn from_bits64(bits: u64) -> $t {
                $from(bits)
            }
            #[inline(always)]
            fn to_bits64(self) -> u64 {
                $to(self)
            }
        }
    )*};
}
bits! {
    u8, |b| b as u8, u64::from;
    u16, |b| b as u16, u64::from;
    u32, |b| b as u32, u64::from;
    i32, |b| b as u32 as i32, |v: i32| u64::from(v as u32);
    u64, |b| b, |v| v;
    f32, |b| f32::from_bits(b as u32), |v: f32| u64::from(v.to_bits());
}

/// Calls a generic function with the Rust type that holds an arithmetic element type. Types without arithmetic, which
/// the verifier keeps out of arithmetic, are taken as unsigned integers of their size.
macro_rules! with_num {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            Dtype::I32 => {
                type $t = i32;
                $body
            }
            Dtype::U32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 | Dtype::Bool => {
                type $t = u32;
                $body
            }
            Dtype::U64 => {
                type $t = u64;
                $body
            }
            Dtype::F32 => {
                type $t = f32;
                $body
            }
        }
    };
}
pub(crate) use with_num;

pub(crate) fn scalar_binary(op: BinaryOp, dtype: Dtype, a: u64, b: u64) -> Result<u64, Trap> {
    if dtype == Dtype::Bool {
        let mut out = [0u8];
        truths(op, &[a as u8], &[b as u8], &mut out);
        return Ok(u64::from(out[0]));
    }
    with_num!(dtype, T => {
        let mut out = [T::from_bits64(0)];
        T::binary(op, &[T::from_bits64(a)], &[T::from_bits64(b)], &mut out)?;
        Ok(out[0].to_bits64())
    })
}

pub(crate) fn scalar_compare(op: CompareOp, dtype: Dtype, a: u64, b: u64) -> u64 {
    let mut out = [0u8];
    with_num!(dtype, T => compare(op, &[T::from_bits64(a)], &[T::from_bits64(b)], &mut out));
    u64::from(out[0])
}

pub(crate) fn scalar_unary(op: UnaryOp, dtype: Dtype, a: u64) -> u64 {
    if dtype == Dtype::Bool {
        return a ^ 1; // only `Not` is defined on truth values
    }
    with_num!(dtype, T => {
        if op.counts() {
            let mut out = [0];
            T::count(op, &[T::from_bits64(a)], &mut out);
            return u64::from(out[0]);
        }
        let mut out = [T::from_bits64(0)];
        T::unary(op, &[T::from_bits64(a)], &mut out);
        out[0].to_bits64()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn i(op: BinaryOp, a: i32, b: i32) -> Result<i32, Trap> {
        scalar_binary(op, Dtype::I32, a.to_bits64(), b.to_bits64()).map(i32::from_bits64)
    }

    #[test]
    fn integers_wrap_and_trap() {
        assert_eq!(i(BinaryOp::Add, i32::MAX, 1), Ok(i32::MIN));
        assert_eq!(i(BinaryOp::Div, i32::MIN, -1), Err(Trap::NoResult(NoResult::DivisionOverflow)));
        assert_eq!(i(BinaryOp::Rem, i32::MIN, -1), Err(Trap::NoResult(NoResult::DivisionOverflow)));
        assert_eq!(i(BinaryOp::Div, i32::MIN, 1), Ok(i32::MIN));
        assert_eq!(i(BinaryOp::Div, -7, 2), Ok(-3));
        assert_eq!(i(BinaryOp::Rem, -7, 2), Ok(-1));
        assert_eq!(i(BinaryOp::Rem, 1, 0), Err(Trap::NoResult(NoResult::DivisionByZero)));
        assert_eq!(i(BinaryOp::Shr, -8, 1), Ok(-4));
        assert_eq!(i(BinaryOp::Shl, 1, 31), Ok(i32::MIN));
        assert_eq!(i(BinaryOp::Shl, 1, 32), Err(Trap::NoResult(NoResult::ShiftOverflow)));
        assert_eq!(i(BinaryOp::Shl, 1, -1), Err(Trap::NoResult(NoResult::ShiftOverflow)));
        assert_eq!(scalar_binary(BinaryOp::Shr, Dtype::U32, 0x8000_0000, 31), Ok(1));
        assert_eq!(scalar_binary(BinaryOp::Mul, Dtype::U32, 0xffff_ffff, 2), Ok(0xffff_fffe));
        assert_eq!(scalar_binary(BinaryOp::Shl, Dtype::U64, 1, 63), Ok(1 << 63));
    }

    #[test]
    fn comparisons_respect_the_sign() {
        let minus = (-1i32).to_bits64();
        assert_eq!(scalar_compare(CompareOp::Lt, Dtype::I32, minus, 0), 1);
        assert_eq!(scalar_compare(CompareOp::Lt, Dtype::U32, minus, 0), 0);
        let nan = f32::NAN.to_bits64();
        assert_eq!(scalar_compare(CompareOp::Eq, Dtype::F32, nan, nan), 0);
        assert_eq!(scalar_compare(CompareOp::Ne, Dtype::F32, nan, nan), 1);
    }

    #[test]
    fn bit_counts() {
        assert_eq!(scalar_unary(UnaryOp::PopCount, Dtype::U64, 0xff00_0000_0000_0001), 9);
        assert_eq!(scalar_unary(UnaryOp::TrailingZeros, Dtype::U32, 0), 32);
        assert_eq!(scalar_unary(UnaryOp::TrailingZeros, Dtype::U64, 0), 64);
        assert_eq!(scalar_unary(UnaryOp::Not, Dtype::U32, 0), 0xffff_ffff);
        assert_eq!(scalar_unary(UnaryOp::Not, Dtype::Bool, 0), 1);
    }
}
