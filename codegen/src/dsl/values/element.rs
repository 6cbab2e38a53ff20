//! Element types of the device.

use half::{bf16, f16};

use crate::ir::{Const, Dtype};

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// An element type of scalars, tiles and buffers.
pub trait Element: Copy + Sealed + 'static {
    /// The same in the IR.
    const DTYPE: Dtype;
}

/// An element type whose host values can be used in a kernel.
pub trait Constant: Element {
    /// The host value as a constant of the IR. The 16-bit floats become `f32` and are cast on the device.
    #[doc(hidden)]
    fn constant(self) -> Const;
}

/// An element type that can be calculated with: `i32`, `u32`, `u64`, `f32`. Cast the 8- and 16-bit floats to `f32` first.
#[diagnostic::on_unimplemented(
    message = "kernels cannot calculate with `{Self}`",
    note = "arithmetic works on i32, u32, u64 and f32; cast the 8- and 16-bit floats with `.cast::<f32>()`"
)]
pub trait Num: Constant {}

/// An integer type: `i32`, `u32`, `u64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an integer type of the device",
    note = "i32, u32 and u64 are"
)]
pub trait Int: Num {}

/// A type with bitwise (or, for `bool`, logical) operations: `bool`, `i32`, `u32`, `u64`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no bitwise operations in a kernel",
    note = "bool, i32, u32 and u64 have"
)]
pub trait Bits: Constant {}

/// Marker of the 8-bit float of the device, 4 exponent and 3 mantissa bits, no infinities (OCP E4M3FN). A storage type:
/// `cast` it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct F8;

macro_rules! element {
    ($($t:ty: $dtype:ident;)*) => {
        $(impl Sealed for $t {}
        impl Element for $t {
            const DTYPE: Dtype = Dtype::$dtype;
        })*
    };
}
element! { bool: Bool; i32: I32; u32: U32; u64: U64; f32: F32; f16: Fp16; bf16: Bf16; F8: Fp8; }

macro_rules! constant {
    ($($t:ty: $x:ident => $c:expr;)*) => {
        $(impl Constant for $t {
            fn constant(self) -> Const {
                let $x = self;
                $c
            }
        })*
    };
}
constant! {
    bool: x => Const::Bool(x);
    i32: x => Const::I32(x);
    u32: x => Const::U32(x);
    u64: x => Const::U64(x);
    f32: x => Const::F32(x.to_bits());
    f16: x => Const::F32(x.to_f32().to_bits());
    bf16: x => Const::F32(x.to_f32().to_bits());
}

macro_rules! mark {
    ($m:ident: $($t:ty)*) => { $(impl $m for $t {})* };
}
mark!(Num: i32 u32 u64 f32);
mark!(Int: i32 u32 u64);
mark!(Bits: bool i32 u32 u64);
