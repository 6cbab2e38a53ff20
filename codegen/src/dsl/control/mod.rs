//! What code that [`#[kernel]`](macro@crate::kernel) rewrote calls; not for authors.
//!
//! Every entry decides by the types of its operands: those of the host behave as in plain Rust, those of the device are
//! traced. Operations with two operands ([`Pair`], [`Ends`]) decide by method lookup, in three steps: inherent methods
//! for a device value on the left, a trait by value for one on the right, a trait by reference for the host. Unlike a
//! trait with a blanket implementation this gives host operations their plain type at once, so that inference works as
//! in plain Rust, and it works in generic helpers.

mod branch;
mod compare;
mod host;
mod logic;
mod loops;
mod names;
mod place;

pub use branch::{Arm, Cond, Device, Host, If, Known, Merge, MergeIf, begin_if};
pub use branch::{end_if, end_if_or_exit, merge, merge_or_exit};
pub use compare::{
    Comparand, ComparisonWithoutKernelAttribute, DeviceLeft, DeviceRight, HostPair, Order, Pair, pair,
};
pub use host::{
    AnyConverted, AnyMatched, Asserted, Converted, Convertible, FromNumber, HostTest, Matchable, Matched,
    asserted, host_test, number,
};
pub use logic::{Logic, LogicWith, Truth, and, logic, or, truth};
pub use loops::{DeviceEnd, DeviceIter, Ends, Exit, HostEnds, KIter, SameEnd, While};
pub use loops::{begin_block, begin_loop, begin_while, each, each_with_exit, ends};
pub(super) use names::name_value;
pub use names::{name, named};
pub use place::{
    AnyPlace, DevicePlace, Place, Plain, TileVarNow, ValNow, VarNow, change, leave, lend, place, touch,
};

pub use crate::dsl::trace::rt::{Mark, mark};

/// The traits behind method lookup, to be in scope where rewritten code stands.
pub mod lookup {
    pub use super::{
        AnyConverted as _, AnyMatched as _, AnyPlace as _, DeviceEnd as _, DeviceRight as _, HostEnds as _,
        HostPair as _,
    };
}
