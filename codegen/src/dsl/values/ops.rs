//! Operators between scalars, tiles, variables and host values, in all mixes.

use std::ops::*;

use super::element::{Bits, Element, Int, Num};
use super::tile::Tile;
use super::val::{FromRaw, IntoVal, Operand, Val, binary, unary};
use super::var::{TileVar, Var};
use crate::dsl::trace::tracer::try_current;
use crate::ir::{BinaryOp, Loc, UnaryOp};

/// Traits of right-hand sides. With the bound on the element type behind them, and not on the operator's own
/// implementation, rustc says which type cannot be calculated with, and why.
macro_rules! right_hand_side {
    ($($(#[$m:meta])* $name:ident: $bound:ident;)*) => {
        $($(#[$m])*
        #[diagnostic::on_unimplemented(
            message = "`{Self}` cannot be combined with a `{T}` value of the device",
            label = "expected a `{T}`, `Val<{T}>`, `Var<{T}>`, `Tile<{T}>` or `TileVar<{T}>`",
            note = "convert between element types with `.cast::<{T}>()`; the device has no implicit conversions"
        )]
        pub trait $name<T: Element>: Operand<T> {}
        impl<T: $bound, R: Operand<T>> $name<T> for R {})*
    };
}
right_hand_side! {
    /// Right-hand side of `+ - * /` with element type `T`.
    NumOperand: Num;
    /// Right-hand side of `% << >>` with element type `T`.
    IntOperand: Int;
    /// Right-hand side of `& | ^` with element type `T`.
    BitsOperand: Bits;
}

/// `lhs op rhs` for a device left-hand side of type `$lhs`, which `$read` turns into a handle.
macro_rules! device_lhs {
    ($trait:ident $method:ident $op:ident $bound:ident; $lhs:ty, $out:ty, |$s:ident| $read:expr) => {
        impl<T: Element, R: $bound<T>> $trait<R> for $lhs {
            type Output = $out;
            #[track_caller]
            fn $method(self, other: R) -> $out {
                let $s = self;
                let a = $read;
                binary(BinaryOp::$op, a.to_raw(), other.raw(), Loc::caller())
            }
        }
    };
}

macro_rules! binary_operator {
    ($trait:ident $method:ident $op:ident $bound:ident; $assign:ident $assign_method:ident; $($host:ty)*) => {
        device_lhs!($trait $method $op $bound; Val<T>, R::Out, |s| s);
        device_lhs!($trait $method $op $bound; Var<T>, R::Out, |s| s.get());
        device_lhs!($trait $method $op $bound; &Var<T>, R::Out, |s| s.get());
        device_lhs!($trait $method $op $bound; Tile<T>, Tile<T>, |s| s);
        device_lhs!($trait $method $op $bound; TileVar<T>, Tile<T>, |s| s.get());
        device_lhs!($trait $method $op $bound; &TileVar<T>, Tile<T>, |s| s.get());
        $(host_lhs!($trait $method $op; $host; Val<$host>, Var<$host>, &Var<$host> => Val<$host>);
        host_lhs!($trait $method $op; $host; Tile<$host>, TileVar<$host>, &TileVar<$host> => Tile<$host>);)*
        impl<T: Element, R: IntoVal<T> + $bound<T>> $assign<R> for Val<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                let new = binary(BinaryOp::$op, self.to_raw(), other.val().to_raw(), Loc::caller());
                name_alike(*self, new);
                *self = new;
            }
        }
        impl<T: Element, R: $bound<T>> $assign<R> for Tile<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                let new = binary(BinaryOp::$op, self.to_raw(), other.raw(), Loc::caller());
                name_alike(*self, new);
                *self = new;
            }
        }
        impl<T: Element, R: IntoVal<T> + $bound<T>> $assign<R> for Var<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                let new: Val<T> =
                    binary(BinaryOp::$op, self.get().to_raw(), other.val().to_raw(), Loc::caller());
                self.set(new);
            }
        }
        impl<T: Element, R: $bound<T>> $assign<R> for TileVar<T> {
            #[track_caller]
            fn $assign_method(&mut self, other: R) {
                let new: Tile<T> =
                    binary(BinaryOp::$op, self.get().to_raw(), other.raw(), Loc::caller());
                self.set(new);
            }
        }
    };
}

/// Hands a variable's name on to its new value. A traced value never changes: `x += y` gives the name to another.
fn name_alike<V: FromRaw>(old: V, new: V) {
    let raw = old.to_raw();
    let name =
        try_current(|t| (t.id == raw.trace).then(|| t.builder.kernel.values[raw.id.index()].name.clone()));
    if let Some(Some(Some(name))) = name {
        crate::dsl::control::name_value(new, &name);
    }
}

/// `lhs op rhs` for a host left-hand side.
macro_rules! host_lhs {
    ($trait:ident $method:ident $op:ident; $host:ty; $($rhs:ty),* => $out:ty) => {
        $(impl $trait<$rhs> for $host {
            type Output = $out;
            #[track_caller]
            fn $method(self, other: $rhs) -> $out {
                let a: Val<$host> = self.val();
                binary(BinaryOp::$op, a.to_raw(), Operand::<$host>::raw(other), Loc::caller())
            }
        })*
    };
}

binary_operator!(Add add Add NumOperand; AddAssign add_assign; i32 u32 u64 f32);
binary_operator!(Sub sub Sub NumOperand; SubAssign sub_assign; i32 u32 u64 f32);
binary_operator!(Mul mul Mul NumOperand; MulAssign mul_assign; i32 u32 u64 f32);
binary_operator!(Div div Div NumOperand; DivAssign div_assign; i32 u32 u64 f32);
binary_operator!(Rem rem Rem IntOperand; RemAssign rem_assign; i32 u32 u64);
binary_operator!(BitAnd bitand And BitsOperand; BitAndAssign bitand_assign; bool i32 u32 u64);
binary_operator!(BitOr bitor Or BitsOperand; BitOrAssign bitor_assign; bool i32 u32 u64);
binary_operator!(BitXor bitxor Xor BitsOperand; BitXorAssign bitxor_assign; bool i32 u32 u64);
binary_operator!(Shl shl Shl IntOperand; ShlAssign shl_assign; i32 u32 u64);
binary_operator!(Shr shr Shr IntOperand; ShrAssign shr_assign; i32 u32 u64);

/// `op x` for every kind of device value.
macro_rules! unary_operator {
    ($trait:ident $method:ident $op:ident $bound:ident; $($t:ty, $out:ty, |$s:ident| $read:expr;)*) => {
        $(impl<T: $bound> $trait for $t {
            type Output = $out;
            #[track_caller]
            fn $method(self) -> $out {
                let $s = self;
                let a = $read;
                unary(UnaryOp::$op, a.to_raw(), Loc::caller())
            }
        })*
    };
}

/// An element type with negative values: `i32`, `f32`.
#[diagnostic::on_unimplemented(message = "`{Self}` has no negative values", note = "i32 and f32 have")]
pub trait Signed: Num {}
impl Signed for i32 {}
impl Signed for f32 {}

macro_rules! unary_operators {
    ($($trait:ident $method:ident $op:ident $bound:ident;)*) => {
        $(unary_operator! { $trait $method $op $bound;
            Val<T>, Val<T>, |s| s;
            Var<T>, Val<T>, |s| s.get();
            &Var<T>, Val<T>, |s| s.get();
            Tile<T>, Tile<T>, |s| s;
            TileVar<T>, Tile<T>, |s| s.get();
            &TileVar<T>, Tile<T>, |s| s.get();
        })*
    };
}
unary_operators! {
    Neg neg Neg Signed;
    Not not Not Bits;
}
