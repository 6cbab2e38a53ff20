//! What must be known while tracing.

use super::compare::DeviceLeft;
use crate::dsl::values::{Element, IntoVal, Val, element::Constant};

/// A condition that must be known while tracing: beside `let` in a condition, in a match guard, left of `|| return`,
/// and under `#[host]`.
#[diagnostic::on_unimplemented(
    message = "this condition must be known while tracing, and a `{Self}` is known only on the device",
    label = "known only on the device",
    note = "conditions beside `let`, match guards, and conditions under `#[host]` are Rust's own; a plain `if` or \
            `while` takes a device condition"
)]
pub trait HostTest {
    /// Its value.
    #[doc(hidden)]
    fn host_test(&self) -> bool;
}

#[diagnostic::do_not_recommend]
impl HostTest for bool {
    fn host_test(&self) -> bool {
        *self
    }
}

/// The value of a condition that is known while tracing.
pub fn host_test<C: HostTest + ?Sized>(cond: &C) -> bool {
    cond.host_test()
}

/// What `assert!` takes.
#[diagnostic::on_unimplemented(
    message = "cannot assert a `{Self}`: it is known only when the kernel runs",
    label = "known only on the device",
    note = "assert what the configuration says; the simulator checks bounds and protocol of every access"
)]
pub trait Asserted {
    /// Its value.
    #[doc(hidden)]
    fn asserted(&self) -> bool;
}

#[diagnostic::do_not_recommend]
impl Asserted for bool {
    fn asserted(&self) -> bool {
        *self
    }
}

/// The value of an asserted condition.
pub fn asserted<C: Asserted + ?Sized>(cond: &C) -> bool {
    cond.asserted()
}

/// What `match` is on, where the patterns are numbers or truth values.
#[derive(Debug)]
pub struct Matched<X>(pub X);

/// What can be matched.
#[diagnostic::on_unimplemented(
    message = "cannot `match` on a `{Self}`: it is known only when the kernel runs",
    label = "known only on the device",
    note = "use `if` and `else if` with comparisons; `match` works on values of the host"
)]
pub trait Matchable {
    /// It, as what the patterns are for.
    #[doc(hidden)]
    fn matchable<R>(self) -> R;
}

impl<T: Element> Matched<Val<T>> {
    /// An error, that nothing else follows from.
    pub fn host<R>(self) -> R
    where
        Val<T>: Matchable,
    {
        self.0.matchable()
    }
}

/// What Rust can match.
pub trait AnyMatched {
    /// Its type.
    type Value;
    /// It.
    fn host(self) -> Self::Value;
}

impl<X> AnyMatched for Matched<X> {
    type Value = X;
    fn host(self) -> X {
        self.0
    }
}

/// What `as` converts.
#[derive(Debug)]
pub struct Converted<X>(pub X);

/// What `as` can convert.
#[diagnostic::on_unimplemented(
    message = "`as` cannot convert a `{Self}`: it is known only on the device",
    label = "use `.cast::<T>()`",
    note = "`.to_u64()` and the like are short for it; nothing makes a device value one of the host"
)]
pub trait Convertible {
    /// Never called.
    #[doc(hidden)]
    fn never(&self) -> u8;
}

impl<X: DeviceLeft> Converted<X> {
    /// An error, that nothing else follows from: every number type takes a `u8`.
    pub fn host(self) -> u8
    where
        X: Convertible,
    {
        self.0.never()
    }
}

/// What Rust can convert, or says why it cannot.
pub trait AnyConverted {
    /// Its type.
    type Value;
    /// It.
    fn host(self) -> Self::Value;
}

impl<X> AnyConverted for Converted<X> {
    type Value = X;
    #[inline]
    fn host(self) -> X {
        self.0
    }
}

/// What a number can stand for as the value of an arm.
#[diagnostic::on_unimplemented(
    message = "a `{L}` cannot stand for a `{Self}`",
    label = "the other arm of the `if` yields a `{Self}`"
)]
pub trait FromNumber<L> {
    /// It.
    #[doc(hidden)]
    #[track_caller]
    fn from_number(number: L) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T> FromNumber<T> for T {
    fn from_number(number: T) -> T {
        number
    }
}

#[diagnostic::do_not_recommend]
impl<T: Constant + IntoVal<T>> FromNumber<T> for Val<T> {
    #[track_caller]
    fn from_number(number: T) -> Val<T> {
        number.val()
    }
}

/// A number as the value of one arm of an `if`: of the host or of the device, as the other arm's value is.
#[track_caller]
pub fn number<L, R: FromNumber<L>>(number: L) -> R {
    R::from_number(number)
}
