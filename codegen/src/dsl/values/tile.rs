//! Tiles: comptime-sized 1-D values, spread over the lanes of a group.

use std::fmt;
use std::marker::PhantomData;

use super::element::{Element, Int, Num};
use super::val::{
    Extent, FromRaw, IntoVal, Operand, Raw, Val, binary, compare, elementwise, length_mismatch, pure,
};
use super::var::TileVar;
use crate::dsl::trace::{Pure, error::fail_at, tracer::attempt};
use crate::ir::{BinaryOp, CompareOp, Dtype, Loc, ReduceOp, Type, ValueOp, verify::MAX_TILE};

/// A 1-D value of a comptime number of elements, spread over the lanes of the group that makes it. A cheap handle:
/// copying it copies no data.
///
/// Arithmetic works elementwise with tiles of the same length, scalars and host values. Reductions yield scalars that
/// the whole group has.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 1024), p.arg("y", 1024));
/// # role("main", 1, |b| {
/// let row = x.load(0, 256);                               // Tile<f32> of 256 elements
/// let shifted = row - row.max();
/// let weights = shifted.exp() / shifted.exp().sum();
/// y.store(0, weights);
/// let large = weights.gt(0.01);                           // Tile<bool>
/// y.scatter(arange(256) * 4, large.select(row, 0.0), large);
/// # });
/// # }).unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct Tile<T: Element> {
    raw: Raw,
    _t: PhantomData<T>,
}

impl<T: Element> fmt::Debug for Tile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tile<{}; {}>(%{})", T::DTYPE, self.len(), self.raw.id.0)
    }
}

impl<T: Element> FromRaw for Tile<T> {
    fn from_raw(raw: Raw) -> Self {
        debug_assert!(raw.len.is_some());
        Tile { raw, _t: PhantomData }
    }
    fn to_raw(self) -> Raw {
        self.raw
    }
}

/// Anything that can stand for a tile of `T`: a [`Tile`], a [`TileVar`] or a reference to one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tile of `{T}` in a kernel",
    label = "expected a `Tile<{T}>` or a `TileVar<{T}>`",
    note = "convert between element types with `.cast::<{T}>()`; scalars have methods of their own (`set`, `put_value`), \
            or become tiles with `.splat(len)`"
)]
pub trait IntoTile<T: Element>: Operand<T> {
    /// As a tile.
    #[track_caller]
    fn tile(self) -> Tile<T>;
}

macro_rules! tile_operand {
    ($($t:ty, |$s:ident| $read:expr;)*) => {
        $(#[diagnostic::do_not_recommend]
        impl<T: Element> Operand<T> for $t {
            type Out = Tile<T>;
            type Truth = Tile<bool>;
            #[track_caller]
            fn raw(self) -> Raw {
                self.tile().raw
            }
        }
        impl<T: Element> IntoTile<T> for $t {
            #[track_caller]
            fn tile(self) -> Tile<T> {
                let $s = self;
                $read
            }
        })*
    };
}
tile_operand! {
    Tile<T>, |s| s;
    &Tile<T>, |s| *s;
    TileVar<T>, |s| s.get();
    &TileVar<T>, |s| s.get();
}

/// Fails unless a tile can have this length.
pub(crate) fn check_len(loc: Loc, len: u32) {
    if len == 0 {
        fail_at(loc, "a tile of zero elements", "guard it with a host `if` on the config: `if n > 0 { .. }`");
    }
    if len > MAX_TILE {
        fail_at(
            loc,
            format!("a tile of {len} elements"),
            format!("a group's registers hold at most {MAX_TILE}: work in chunks, in a host `for`"),
        );
    }
}

/// Fails for the conversions that the device does not have.
pub(crate) fn check_cast<T: Element, U: Element>(loc: Loc) {
    let (from, to) = (T::DTYPE, U::DTYPE);
    let storage = |d: Dtype| d.is_float() && d != Dtype::F32;
    if to == Dtype::Bool && from != Dtype::Bool {
        fail_at(loc, format!("a cast of {from} to bool"), "compare it with zero: `x != 0`");
    }
    if storage(from) && !to.is_float() || storage(to) && !from.is_float() {
        fail_at(loc, format!("a cast of {from} to {to}"), "go through f32: `x.cast::<f32>().cast::<..>()`");
    }
}

/// A scalar spread to `len` elements; a tile must have that length.
pub(crate) fn spread(raw: Raw, extent: impl Into<Extent>, loc: Loc) -> Raw {
    let extent = extent.into();
    attempt(loc, |t| {
        let id = t.use_value(raw.trace, raw.id, loc)?;
        match Extent::from_type(t.ty(id)) {
            Some(own) if own == extent => Ok(raw),
            Some(own) => Err(length_mismatch(loc, extent, own)),
            None => {
                let out = t.pure(Pure::Splat(id, extent), loc)?;
                Ok(t.raw(out))
            }
        }
    })
}

/// The tile 0, 1, 2, .. of `len` elements.
///
/// # Errors
/// As [`splat`](crate::dsl::splat).
#[track_caller]
pub fn arange(len: u32) -> Tile<u32> {
    arange_at(len, Loc::caller())
}

pub(crate) fn arange_at(len: u32, loc: Loc) -> Tile<u32> {
    check_len(loc, len);
    // A value of its own each time: tiles that meet the same value are spread over lanes in the same way, which must not
    // happen to those that have nothing else in common.
    Tile::from_raw(attempt(loc, |t| {
        let out = t.emit(Type::tile(Dtype::U32, len), loc, |out| ValueOp::Arange { out });
        Ok(t.raw(out))
    }))
}

macro_rules! compared {
    ($($name:ident $op:ident $doc:literal;)*) => {
        $(#[doc = $doc]
        #[track_caller]
        pub fn $name(self, other: impl Operand<T>) -> Tile<bool> {
            compare(CompareOp::$op, self.raw, other.raw(), Loc::caller())
        })*
    };
}

impl<T: Element> Tile<T> {
    /// Number of elements.
    #[allow(clippy::len_without_is_empty)] // no tile is empty
    pub fn len(&self) -> u32 {
        self.raw.len.unwrap_or(1)
    }

    /// The same values as another type; see [`Val::cast`].
    ///
    /// # Errors
    /// As [`Val::cast`].
    #[track_caller]
    pub fn cast<U: Element>(self) -> Tile<U> {
        let loc = Loc::caller();
        check_cast::<T, U>(loc);
        pure(loc, [self.raw], |[a]| Pure::Cast(U::DTYPE, a))
    }

    compared! {
        eq_to Eq "Where both are equal; the method behind `==` for code outside a `#[kernel]` function.";
        ne_to Ne "Where they differ; the method behind `!=`.";
    }
}

impl<T: Num> Tile<T> {
    compared! {
        lt Lt "Where this is below `other`; the method behind `<`.";
        le Le "Where this is at most `other`; the method behind `<=`.";
        gt Gt "Where this is above `other`; the method behind `>`.";
        ge Ge "Where this is at least `other`; the method behind `>=`.";
    }

    /// The smaller of both, elementwise.
    #[track_caller]
    pub fn minimum(self, other: impl Operand<T>) -> Tile<T> {
        binary(BinaryOp::Min, self.raw, other.raw(), Loc::caller())
    }

    /// The larger of both, elementwise.
    #[track_caller]
    pub fn maximum(self, other: impl Operand<T>) -> Tile<T> {
        binary(BinaryOp::Max, self.raw, other.raw(), Loc::caller())
    }

    /// Sum of all elements. Float sums follow a fixed tree that depends on the group's size only.
    #[track_caller]
    pub fn sum(self) -> Val<T> {
        self.reduce(ReduceOp::Sum, Loc::caller())
    }

    /// The largest element; [`Tile::maximum`] is the larger of two tiles, element by element.
    #[track_caller]
    pub fn max(self) -> Val<T> {
        self.reduce(ReduceOp::Max, Loc::caller())
    }

    /// The smallest element; [`Tile::minimum`] is the smaller of two tiles, element by element.
    #[track_caller]
    pub fn min(self) -> Val<T> {
        self.reduce(ReduceOp::Min, Loc::caller())
    }

    /// Prefix sums: element `i` is the sum of the elements up to and with `i`, or before `i` when `exclusive`.
    #[track_caller]
    pub fn scan_sum(self, exclusive: bool) -> Tile<T> {
        pure(Loc::caller(), [self.raw], |[a]| Pure::Scan(ReduceOp::Sum, a, exclusive))
    }
}

impl<T: Element> Tile<T> {
    fn reduce(self, op: ReduceOp, loc: Loc) -> Val<T> {
        pure(loc, [self.raw], |[a]| Pure::Reduce(op, a))
    }
}

impl<T: Int> Tile<T> {
    /// Bitwise or of all elements.
    #[track_caller]
    pub fn or_all(self) -> Val<T> {
        self.reduce(ReduceOp::Or, Loc::caller())
    }

    /// Bitwise and of all elements.
    #[track_caller]
    pub fn and_all(self) -> Val<T> {
        self.reduce(ReduceOp::And, Loc::caller())
    }
}

impl Tile<bool> {
    /// Whether any element holds.
    #[track_caller]
    pub fn any(self) -> Val<bool> {
        self.reduce(ReduceOp::Or, Loc::caller())
    }

    /// Whether all elements hold.
    #[track_caller]
    pub fn all(self) -> Val<bool> {
        self.reduce(ReduceOp::And, Loc::caller())
    }

    /// `a` where an element holds, else `b`; scalars stand for tiles of their value.
    #[track_caller]
    pub fn select<T: Element>(self, a: impl Operand<T>, b: impl Operand<T>) -> Tile<T> {
        let (a, b) = (a.raw(), b.raw());
        elementwise(Loc::caller(), [self.raw, a, b], |[c, a, b]| Pure::Select(c, a, b))
    }
}

impl Tile<f32> {
    /// `self * b + c` with one rounding, elementwise.
    #[track_caller]
    pub fn fma(self, b: impl Operand<f32>, c: impl Operand<f32>) -> Tile<f32> {
        let (b, c) = (b.raw(), c.raw());
        elementwise(Loc::caller(), [self.raw, b, c], |[a, b, c]| Pure::Fma(a, b, c))
    }
}

/// A type whose bits another type of the same width can take: `i32`, `u32`, `f32`.
#[diagnostic::on_unimplemented(
    message = "the bits of `{Self}` cannot be reinterpreted",
    note = "`bitcast` works between i32, u32 and f32"
)]
pub trait Word: Num {}
impl Word for i32 {}
impl Word for u32 {}
impl Word for f32 {}

impl<T: Word> Tile<T> {
    /// The same bits as another 32-bit type.
    #[track_caller]
    pub fn bitcast<U: Word>(self) -> Tile<U> {
        pure(Loc::caller(), [self.raw], |[a]| Pure::Bitcast(U::DTYPE, a))
    }
}

impl<T: Word> Val<T> {
    /// The same bits as another 32-bit type.
    #[track_caller]
    pub fn bitcast<U: Word>(self) -> Val<U> {
        pure(Loc::caller(), [self.to_raw()], |[a]| Pure::Bitcast(U::DTYPE, a))
    }
}

impl<T: Element> Val<T> {
    /// A tile of `len` elements that all equal this.
    #[track_caller]
    pub fn splat(self, len: u32) -> Tile<T> {
        super::val::splat(IntoVal::<T>::val(self), len)
    }
}
