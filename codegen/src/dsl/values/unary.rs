//! One-operand functions and conversions of scalars and of each element of tiles. The operators `-` and `!` stand with the others.

use super::element::{Element, Int, Num};
use super::tile::Tile;
use super::val::{FromRaw, Val, pure, unary};
use crate::dsl::trace::Pure;
use crate::ir::{Loc, UnaryOp};

/// A method of scalars and tiles an operation.
macro_rules! functions {
    ($([$($generic:tt)*] $t:ty: { $($name:ident $op:ident $out:ty, $doc:literal;)+ })+) => {
        $(
            functions! { @of Val, [$($generic)*] $t: { $($name $op $out, $doc;)+ } }
            functions! { @of Tile, [$($generic)*] $t: { $($name $op $out, [$doc " Of each element."];)+ } }
        )+
    };
    (@of $of:ident, [$($generic:tt)*] $t:ty: { $($name:ident $op:ident $out:ty, $doc:tt;)+ }) => {
        impl $($generic)* $of<$t> {
            $(
                #[doc = functions!(@doc $doc)]
                #[track_caller]
                pub fn $name(self) -> $of<$out> {
                    unary(UnaryOp::$op, self.to_raw(), Loc::caller())
                }
            )+
        }
    };
    (@doc [$doc:literal $more:literal]) => { concat!($doc, $more) };
    (@doc $doc:literal) => { $doc };
}

functions! {
    [<T: Int>] T: {
        popcount PopCount u32, "Number of set bits.";
        trailing_zeros TrailingZeros u32, "Number of zero bits below the lowest set bit; the width (32 or 64) for zero.";
    }
    [] i32: {
        abs Abs i32, "Absolute value.";
    }
    [] f32: {
        abs Abs f32, "Absolute value.";
        exp Exp f32, "e to the power of this.";
        sqrt Sqrt f32, "Square root.";
        tanh Tanh f32, "Hyperbolic tangent, within 2 units in the last place on every target.";
        rsqrt Rsqrt f32, "1 / sqrt of this, rounded once: the same bits on every target. NaN below zero.";
        log Log f32, "Natural logarithm, within 1 unit in the last place; the same bits on every target. NaN below zero.";
        erf Erf f32, "Error function, within 1.5 units in the last place; the same bits on every target.";
        sin Sin f32, "Sine of radians, within 2 units in the last place; the same bits on every target. NaN beyond 2^20.";
        cos Cos f32, "Cosine of radians, within 2 units in the last place; the same bits on every target. NaN beyond 2^20.";
    }
}

macro_rules! conversions {
    ($($of:ident)+ => $names:tt) => { $(conversions! { @of $of $names })+ };
    (@of $of:ident { $($name:ident $to:ty, $doc:literal;)+ }) => {
        impl<T: Num> $of<T> {
            $(
                #[doc = $doc]
                #[track_caller]
                pub fn $name(self) -> $of<$to> {
                    pure(Loc::caller(), [self.to_raw()], |[a]| Pure::Cast(<$to>::DTYPE, a))
                }
            )+
        }
    };
}

conversions! {
    Val Tile => {
        to_u32 u32, "As `u32` (truncating a float, wrapping an integer).";
        to_i32 i32, "As `i32`.";
        to_u64 u64, "As `u64`; use it for element offsets beyond 2^32.";
        to_f32 f32, "As `f32`.";
    }
}
