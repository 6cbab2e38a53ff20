//! `< <= > >= == !=`.

use half::{bf16, f16};

use crate::dsl::trace::rt;
use crate::dsl::values::{Element, FromRaw, IntoVal, Raw, Val, element::Num};
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

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for Val<T> {
    type Truth = Val<bool>;
    #[track_caller]
    fn comparand(&self) -> Raw {
        self.to_raw()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for Var<T> {
    type Truth = Val<bool>;
    #[track_caller]
    fn comparand(&self) -> Raw {
        self.get().to_raw()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for Tile<T> {
    type Truth = Tile<bool>;
    #[track_caller]
    fn comparand(&self) -> Raw {
        self.to_raw()
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> Comparand<T> for TileVar<T> {
    type Truth = Tile<bool>;
    #[track_caller]
    fn comparand(&self) -> Raw {
        self.get().to_raw()
    }
}

macro_rules! host_comparand {
    ($($t:ty)*) => {
        $(#[diagnostic::do_not_recommend]
        impl Comparand<$t> for $t {
            type Truth = Val<bool>;
            #[track_caller]
            fn comparand(&self) -> Raw {
                (*self).val().to_raw()
            }
        })*
    };
}
host_comparand!(bool i32 u32 u64 f32 f16 bf16);

/// An ordering comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `<`
    Lt,
    /// `<=`
    Le,
    /// `>`
    Gt,
    /// `>=`
    Ge,
}

impl Order {
    fn op(self) -> CompareOp {
        match self {
            Order::Lt => CompareOp::Lt,
            Order::Le => CompareOp::Le,
            Order::Gt => CompareOp::Gt,
            Order::Ge => CompareOp::Ge,
        }
    }
}

fn equality(equal: bool) -> CompareOp {
    if equal { CompareOp::Eq } else { CompareOp::Ne }
}

/// A device value on the left of a comparison.
pub trait DeviceLeft {
    /// Its element type.
    type Element: Element;
    /// Type of the result: with a scalar it has the shape of the right side, with a tile it is a tile.
    type Truth<Right: FromRaw>: FromRaw;
    /// The value.
    #[track_caller]
    fn left(&self) -> Raw;
}

macro_rules! device_left {
    ($($t:ty, |$right:ident| $truth:ty;)*) => {
        $(impl<T: Element> DeviceLeft for $t {
            type Element = T;
            type Truth<$right: FromRaw> = $truth;
            #[track_caller]
            fn left(&self) -> Raw {
                Comparand::<T>::comparand(self)
            }
        })*
    };
}
device_left! {
    Val<T>, |R| R;
    Var<T>, |R| R;
    Tile<T>, |_R| Tile<bool>;
    TileVar<T>, |_R| Tile<bool>;
}

// The result of the right side is a parameter and no projection: a projection that does not normalise would make method
// lookup pass on to the next step, and the error would speak of something else.
impl<A: DeviceLeft + ?Sized, B: ?Sized> Pair<'_, A, B> {
    /// `< <= > >=`
    #[track_caller]
    pub fn order<R: FromRaw>(self, order: Order) -> A::Truth<R>
    where
        A::Element: Num,
        B: Comparand<A::Element, Truth = R>,
    {
        rt::compare(order.op(), self.0.left(), self.1.comparand(), Loc::caller())
    }

    /// `==` (`true`) or `!=` (`false`)
    #[track_caller]
    pub fn equal<R: FromRaw>(self, equal: bool) -> A::Truth<R>
    where
        B: Comparand<A::Element, Truth = R>,
    {
        rt::compare(equality(equal), self.0.left(), self.1.comparand(), Loc::caller())
    }
}

/// The comparisons of a host value on the left with a device value on the right.
pub trait DeviceRight<A: ?Sized> {
    /// Element type of the right side.
    type Element: Element;
    /// `Val<bool>` or `Tile<bool>`.
    type Truth: FromRaw;
    /// `< <= > >=`
    #[track_caller]
    fn order(self, order: Order) -> Self::Truth
    where
        A: Comparand<Self::Element>,
        Self::Element: Num;
    /// `==` (`true`) or `!=` (`false`)
    #[track_caller]
    fn equal(self, equal: bool) -> Self::Truth
    where
        A: Comparand<Self::Element>;
}

impl<A: ?Sized, B: DeviceLeft + ?Sized> DeviceRight<A> for Pair<'_, A, B> {
    type Element = B::Element;
    type Truth = B::Truth<Val<bool>>;

    #[track_caller]
    fn order(self, order: Order) -> Self::Truth
    where
        A: Comparand<B::Element>,
    {
        rt::compare(order.op(), self.0.comparand(), self.1.left(), Loc::caller())
    }

    #[track_caller]
    fn equal(self, equal: bool) -> Self::Truth
    where
        A: Comparand<B::Element>,
    {
        rt::compare(equality(equal), self.0.comparand(), self.1.left(), Loc::caller())
    }
}

/// Rust's own comparisons.
pub trait HostPair<A: ?Sized, B: ?Sized> {
    /// `< <= > >=`
    fn order(&self, order: Order) -> bool
    where
        A: PartialOrd<B>;
    /// `==` (`true`) or `!=` (`false`)
    fn equal(&self, equal: bool) -> bool
    where
        A: PartialEq<B>;
}

impl<A: ?Sized, B: ?Sized> HostPair<A, B> for Pair<'_, A, B> {
    #[inline]
    fn order(&self, order: Order) -> bool
    where
        A: PartialOrd<B>,
    {
        match order {
            Order::Lt => *self.0 < *self.1,
            Order::Le => *self.0 <= *self.1,
            Order::Gt => *self.0 > *self.1,
            Order::Ge => *self.0 >= *self.1,
        }
    }

    #[inline]
    fn equal(&self, equal: bool) -> bool
    where
        A: PartialEq<B>,
    {
        if equal { *self.0 == *self.1 } else { *self.0 != *self.1 }
    }
}

/// Nothing: what Rust's own comparisons of a device value would need.
#[diagnostic::on_unimplemented(
    message = "a `{Self}` is known only on the device: Rust itself cannot compare it",
    label = "compared outside a `#[kernel]` function, or with something that is not of its element type",
    note = "put `#[kernel]` on the function to compare device values with `<`, `==` and so on, and to branch on them"
)]
pub trait ComparisonWithoutKernelAttribute {
    /// Never called.
    #[doc(hidden)]
    fn never(&self) -> bool;
}

macro_rules! no_host_comparison {
    ($($t:ident)*) => {
        $(impl<T: Element, R: ?Sized> PartialEq<R> for $t<T>
        where
            $t<T>: ComparisonWithoutKernelAttribute,
        {
            fn eq(&self, _: &R) -> bool {
                self.never()
            }
        }

        impl<T: Element, R: ?Sized> PartialOrd<R> for $t<T>
        where
            $t<T>: ComparisonWithoutKernelAttribute,
        {
            fn partial_cmp(&self, _: &R) -> Option<std::cmp::Ordering> {
                self.never().then_some(std::cmp::Ordering::Equal)
            }
        })*
    };
}
no_host_comparison!(Val Var Tile TileVar);
