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

/// A device value on the left of a comparison.
pub trait DeviceLeft {
    /// Its element type.
    type Element: Element;
    /// Type of the result: with a scalar it has the right side's shape, with a tile it is a tile.
    type Truth<B: Comparand<Self::Element> + ?Sized>: FromRaw;
    /// The value.
    #[track_caller]
    fn left(&self) -> Raw;
}

macro_rules! device_left {
    ($($t:ty, |$b:ident| $truth:ty;)*) => {
        $(impl<T: Element> DeviceLeft for $t {
            type Element = T;
            type Truth<$b: Comparand<T> + ?Sized> = $truth;
            #[track_caller]
            fn left(&self) -> Raw {
                Comparand::<T>::comparand(self)
            }
        })*
    };
}
device_left! {
    Val<T>, |B| B::Truth;
    Var<T>, |B| B::Truth;
    Tile<T>, |_B| Tile<bool>;
    TileVar<T>, |_B| Tile<bool>;
}

macro_rules! left_methods {
    ($($name:ident $op:ident $($num:ident)? $doc:literal;)*) => {
        $(#[doc = $doc]
        #[track_caller]
        pub fn $name(self) -> A::Truth<B>
        where
            B: Comparand<A::Element>,
            $(A::Element: $num,)?
        {
            rt::compare(CompareOp::$op, self.0.left(), self.1.comparand(), Loc::caller())
        })*
    };
}

impl<A: DeviceLeft + ?Sized, B: ?Sized> Pair<'_, A, B> {
    left_methods! {
        lt Lt Num "`<`";
        le Le Num "`<=`";
        gt Gt Num "`>`";
        ge Ge Num "`>=`";
        eq Eq "`==`";
        ne Ne "`!=`";
    }
}

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

/// Nothing: what Rust's own comparisons of a device value would need.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` is known only on the device: Rust itself cannot compare it",
    label = "compared outside a `#[kernel]` function, or with something that is not of its element type",
    note = "put `#[kernel]` on the function to compare device values with `<`, `==` and so on, and to branch on them"
)]
pub trait HostComparable {
    /// Never called.
    #[doc(hidden)]
    fn never(&self) -> bool;
}

macro_rules! no_host_comparison {
    ($($t:ident)*) => {
        $(impl<T: Element, R: ?Sized> PartialEq<R> for $t<T>
        where
            $t<T>: HostComparable,
        {
            fn eq(&self, _: &R) -> bool {
                self.never()
            }
        }

        impl<T: Element, R: ?Sized> PartialOrd<R> for $t<T>
        where
            $t<T>: HostComparable,
        {
            fn partial_cmp(&self, _: &R) -> Option<std::cmp::Ordering> {
                self.never().then_some(std::cmp::Ordering::Equal)
            }
        })*
    };
}
no_host_comparison!(Val Var Tile TileVar);
