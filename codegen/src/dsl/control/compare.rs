//! `< <= > >= == !=`.

use half::{bf16, f16};

use crate::dsl::rt;
use crate::dsl::val::{Element, FromRaw, IntoVal, Num, Raw, Val};
use crate::dsl::{Tile, TileVar, Var};
use crate::ir::{CompareOp, Loc};

/// The operands of a comparison. They are borrowed, as Rust's own comparisons borrow them.
#[derive(Debug)]
pub struct Pair<'a, A: ?Sized, B: ?Sized>(&'a A, &'a B);

/// The operands of a comparison.
pub fn pair<'a, A: ?Sized, B: ?Sized>(a: &'a A, b: &'a B) -> Pair<'a, A, B> {
    Pair(a, b)
}

/// What a device value of element type `T` can be compared with.
#[diagnostic::on_unimplemented(
    message = "cannot compare a `{T}` value of the device with `{Self}`",
    label = "a `{T}` value of the device is compared with `{Self}`",
    note = "the device has no implicit conversions: both sides need one element type; convert with `.cast::<{T}>()`"
)]
pub trait Comparand<T: Element> {
    /// `Val<bool>` for a scalar, `Tile<bool>` for a tile.
    type Truth: FromRaw;
    /// The value.
    #[track_caller]
    fn comparand(&self) -> Raw;
}

macro_rules! comparand {
    ($($t:ty => $truth:ty, |$s:ident| $read:expr;)*) => {
        $(impl<T: Element> Comparand<T> for $t {
            type Truth = $truth;
            #[track_caller]
            fn comparand(&self) -> Raw {
                let $s = self;
                $read.to_raw()
            }
        })*
    };
}
comparand! {
    Val<T> => Val<bool>, |s| *s;
    Var<T> => Val<bool>, |s| s.get();
    Tile<T> => Tile<bool>, |s| *s;
    TileVar<T> => Tile<bool>, |s| s.get();
}

macro_rules! host_comparand {
    ($($t:ty)*) => {
        $(impl Comparand<$t> for $t {
            type Truth = Val<bool>;
            #[track_caller]
            fn comparand(&self) -> Raw {
                (*self).val().to_raw()
            }
        })*
    };
}
host_comparand!(bool i32 u32 u64 f32 f16 bf16);

/// The comparisons of a device value on the left: with a scalar the result has the right side's shape, with a tile it
/// is a tile.
macro_rules! device_left {
    ($left:ty => $($truth:tt)*) => {
        impl<T: Element, B: ?Sized> Pair<'_, $left, B> {
            device_left!(@ ordered; $($truth)*; lt Lt "`<`", le Le "`<=`", gt Gt "`>`", ge Ge "`>=`");
            device_left!(@ equal; $($truth)*; eq Eq "`==`", ne Ne "`!=`");
        }
    };
    (@ ordered; $truth:ty; $($name:ident $op:ident $doc:literal),*) => {
        $(#[doc = $doc]
        #[track_caller]
        pub fn $name(self) -> $truth
        where
            T: Num,
            B: Comparand<T>,
        {
            rt::compare(CompareOp::$op, Comparand::<T>::comparand(self.0), self.1.comparand(), Loc::caller())
        })*
    };
    (@ equal; $truth:ty; $($name:ident $op:ident $doc:literal),*) => {
        $(#[doc = $doc]
        #[track_caller]
        pub fn $name(self) -> $truth
        where
            B: Comparand<T>,
        {
            rt::compare(CompareOp::$op, Comparand::<T>::comparand(self.0), self.1.comparand(), Loc::caller())
        })*
    };
}
device_left!(Val<T> => B::Truth);
device_left!(Var<T> => B::Truth);
device_left!(Tile<T> => Tile<bool>);
device_left!(TileVar<T> => Tile<bool>);

macro_rules! right_methods {
    ($($name:ident $op:ident $($num:ident)? $doc:literal;)*) => {
        $(#[doc = $doc]
        #[track_caller]
        fn $name(self) -> Self::Truth
        where
            Self::Left: Comparand<Self::Element>,
            $(Self::Element: $num,)?
        {
            let (a, b) = self.raws();
            rt::compare(CompareOp::$op, a, b, Loc::caller())
        })*
    };
}

/// The comparisons of a host value on the left with a device value on the right.
pub trait DeviceRight: Sized {
    /// Element type of the right side.
    type Element: Element;
    /// Type of the left side.
    type Left: ?Sized;
    /// `Val<bool>` or `Tile<bool>`.
    type Truth: FromRaw;
    /// Both operands.
    #[track_caller]
    fn raws(self) -> (Raw, Raw)
    where
        Self::Left: Comparand<Self::Element>;
    right_methods! {
        lt Lt Num "`<`";
        le Le Num "`<=`";
        gt Gt Num "`>`";
        ge Ge Num "`>=`";
        eq Eq "`==`";
        ne Ne "`!=`";
    }
}

macro_rules! device_right {
    ($($right:ty => $truth:ty;)*) => {
        $(impl<A: ?Sized, T: Element> DeviceRight for Pair<'_, A, $right> {
            type Element = T;
            type Left = A;
            type Truth = $truth;
            #[track_caller]
            fn raws(self) -> (Raw, Raw)
            where
                A: Comparand<T>,
            {
                (self.0.comparand(), Comparand::<T>::comparand(self.1))
            }
        })*
    };
}
device_right! {
    Val<T> => Val<bool>;
    Var<T> => Val<bool>;
    Tile<T> => Tile<bool>;
    TileVar<T> => Tile<bool>;
}

macro_rules! host_methods {
    ($($name:ident $bound:ident $doc:literal;)*) => {
        $(#[doc = $doc]
        fn $name(&self) -> bool
        where
            A: $bound<B>;)*
    };
    (impl $($name:ident $bound:ident $op:tt;)*) => {
        $(fn $name(&self) -> bool
        where
            A: $bound<B>,
        {
            *self.0 $op *self.1
        })*
    };
}

/// Rust's own comparisons.
pub trait HostPair<A: ?Sized, B: ?Sized> {
    host_methods! {
        lt PartialOrd "`<`";
        le PartialOrd "`<=`";
        gt PartialOrd "`>`";
        ge PartialOrd "`>=`";
        eq PartialEq "`==`";
        ne PartialEq "`!=`";
    }
}

impl<A: ?Sized, B: ?Sized> HostPair<A, B> for Pair<'_, A, B> {
    host_methods! { impl
        lt PartialOrd <;
        le PartialOrd <=;
        gt PartialOrd >;
        ge PartialOrd >=;
        eq PartialEq ==;
        ne PartialEq !=;
    }
}
