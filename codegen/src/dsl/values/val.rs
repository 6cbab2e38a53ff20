//! Scalars of the device.

use std::fmt;
use std::marker::PhantomData;

use half::{bf16, f16};

use super::element::{Constant, Element, Num};
use super::select::Alternatives;
use super::tile::Tile;
use crate::dsl::trace::{Pure, TraceError, tracer::attempt};
use crate::ir::{BinaryOp, CompareOp, Dtype, Loc, Type, UnaryOp, ValueId};

/// A value of the device without its element type.
#[derive(Clone, Copy, Debug)]
pub struct Raw {
    /// In the kernel.
    pub(crate) id: ValueId,
    /// Which trace it belongs to.
    pub(crate) trace: u32,
    /// Elements, for a tile.
    pub(crate) len: Option<u32>,
    /// Traces are of one thread.
    pub(crate) _here: PhantomData<*const ()>,
}

/// How many elements a tile has, and how many each row has if it is a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Extent {
    len: u32,
    columns: Option<u32>,
}

impl Extent {
    /// That of a tile; nothing for a scalar.
    pub fn from_type(ty: Type) -> Option<Extent> {
        ty.len.map(|len| Extent { len, columns: ty.columns })
    }

    /// A tile of so many elements.
    pub fn of(self, dtype: Dtype) -> Type {
        Type { dtype, len: Some(self.len), columns: self.columns }
    }

    /// Number of elements.
    pub fn len(self) -> u32 {
        self.len
    }
}

impl From<u32> for Extent {
    fn from(len: u32) -> Extent {
        Extent { len, columns: None }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.columns {
            Some(columns) => write!(f, "{} x {columns}", self.len / columns),
            None => self.len.fmt(f),
        }
    }
}

/// A scalar of the device, uniform over the group that computes it. A cheap handle: copying it copies no data.
///
/// Arithmetic (`+ - * / %`, `& | ^ << >>`, `!`, unary `-`) works with other scalars, variables and host values of the
/// same type, and with tiles elementwise; integer arithmetic wraps. Comparisons and `if` work in a
/// [`#[kernel]`](macro@crate::kernel) function; [`Val::lt`] and its kin, and [`Val::select`], everywhere.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let x: Ptr<u32> = p.arg("x", 1024);
/// # role("main", 1, |b| {
/// let n = x.get(0);                    // Val<u32>
/// let next = (n + 1) % 8;
/// let set = bit(next) | 1;             // Val<u64>
/// let scaled = 0.5 * n.to_f32();       // Val<f32>
/// let least = n.lt(next).select(n, next);
/// # x.set(1, least + set.popcount() + scaled.to_u32());
/// # });
/// # }).unwrap();
/// ```
///
/// Element types never mix without being told to:
///
/// ```compile_fail,E0277
/// # use peerwarp_codegen::dsl::prelude::*;
/// fn sum(n: Val<u32>, weight: Val<f32>) -> Val<f32> {
///     n * weight // `Val<f32>` cannot be combined with a `u32` value of the device
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Val<T: Element> {
    raw: Raw,
    _t: PhantomData<T>,
}

impl<T: Element> fmt::Debug for Val<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Val<{}>(%{})", T::DTYPE, self.raw.id.0)
    }
}

/// Anything that can stand for a scalar of type `T` in a kernel: a host value, a [`Val`], a [`Var`](crate::dsl::Var) or a
/// reference to one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a scalar of type `{T}` in a kernel",
    label = "expected a `{T}`, a `Val<{T}>` or a `Var<{T}>`",
    note = "convert between element types with `.cast::<{T}>()`"
)]
pub trait IntoVal<T: Element> {
    /// As a scalar of the device. `c.topk.val()` of a host value makes the device go through `0..c.topk.val()` in a
    /// loop, where `0..c.topk` is unrolled.
    #[track_caller]
    fn val(self) -> Val<T>;
}

/// Right-hand side of arithmetic and comparisons with element type `T`: what [`IntoVal`] takes, and tiles.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be combined with a `{T}` value of the device",
    label = "expected a `{T}`, `Val<{T}>`, `Var<{T}>`, `Tile<{T}>` or `TileVar<{T}>`",
    note = "convert between element types with `.cast::<{T}>()`; the device has no implicit conversions"
)]
pub trait Operand<T: Element> {
    /// What combining it with a `Val<T>` yields: `Val<T>` for a scalar, `Tile<T>` for a tile.
    type Out: FromRaw;
    /// What comparing it with a `Val<T>` yields: `Val<bool>` or `Tile<bool>`.
    type Truth: FromRaw;
    /// The value.
    #[doc(hidden)]
    #[track_caller]
    fn raw(self) -> Raw;
}

/// A typed handle of a value.
pub trait FromRaw: Copy {
    /// Gives the value its type.
    #[doc(hidden)]
    fn from_raw(raw: Raw) -> Self;
    /// The value without its type.
    #[doc(hidden)]
    fn to_raw(self) -> Raw;
}

impl<T: Element> FromRaw for Val<T> {
    fn from_raw(raw: Raw) -> Self {
        debug_assert!(raw.len.is_none());
        Val { raw, _t: PhantomData }
    }
    fn to_raw(self) -> Raw {
        self.raw
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> IntoVal<T> for Val<T> {
    fn val(self) -> Val<T> {
        self
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> IntoVal<T> for &Val<T> {
    fn val(self) -> Val<T> {
        *self
    }
}

macro_rules! host_into_val {
    ($($t:ty)*) => {
        $(#[diagnostic::do_not_recommend]
        impl IntoVal<$t> for $t {
            #[track_caller]
            fn val(self) -> Val<$t> {
                host(self, Loc::caller())
            }
        })*
    };
}
host_into_val!(bool i32 u32 u64 f32 f16 bf16);

macro_rules! scalar_operand {
    ($($t:ty)*) => {
        $(#[diagnostic::do_not_recommend]
        impl<T: Element> Operand<T> for $t {
            type Out = Val<T>;
            type Truth = Val<bool>;
            fn raw(self) -> Raw {
                self.raw
            }
        })*
    };
}
scalar_operand!(Val<T> &Val<T>);

macro_rules! host_operand {
    ($($t:ty)*) => {
        $(#[diagnostic::do_not_recommend]
        impl Operand<$t> for $t {
            type Out = Val<$t>;
            type Truth = Val<bool>;
            #[track_caller]
            fn raw(self) -> Raw {
                self.val().raw
            }
        })*
    };
}
host_operand!(bool i32 u32 u64 f32 f16 bf16);

/// A host value as a scalar.
pub(crate) fn host<T: Constant>(x: T, loc: Loc) -> Val<T> {
    let c = Val::<f32>::from_raw(attempt(loc, |t| {
        let id = t.host(x.constant(), loc);
        Ok(t.raw(id))
    }));
    match T::DTYPE {
        Dtype::Fp16 | Dtype::Bf16 => c.cast_at::<T>(loc),
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 | Dtype::Fp8 => Val::from_raw(c.raw),
    }
}

/// A pure operation on values, each checked to be usable at `loc`.
pub(crate) fn pure<R: FromRaw, const N: usize>(
    loc: Loc,
    operands: [Raw; N],
    op: impl FnOnce([ValueId; N]) -> Pure,
) -> R {
    R::from_raw(attempt(loc, |t| {
        let mut ids = [ValueId(0); N];
        for (id, raw) in ids.iter_mut().zip(operands) {
            *id = t.use_value(raw.trace, raw.id, loc)?;
        }
        let out = t.pure(op(ids), loc)?;
        Ok(t.raw(out))
    }))
}

/// As [`pure`], for elementwise operations: scalars are spread to the length of the tiles among the operands, which
/// must agree.
pub(crate) fn elementwise<R: FromRaw, const N: usize>(
    loc: Loc,
    operands: [Raw; N],
    op: impl FnOnce([ValueId; N]) -> Pure,
) -> R {
    R::from_raw(attempt(loc, |t| {
        let mut ids = [ValueId(0); N];
        for (id, raw) in ids.iter_mut().zip(operands) {
            *id = t.use_value(raw.trace, raw.id, loc)?;
        }
        let extents = ids.map(|id| Extent::from_type(t.ty(id)));
        if let Some(common) = common(loc, &extents)? {
            for (id, _) in ids.iter_mut().zip(extents).filter(|(_, extent)| extent.is_none()) {
                *id = t.pure(Pure::Splat(*id, common), loc)?;
            }
        }
        let out = t.pure(op(ids), loc)?;
        Ok(t.raw(out))
    }))
}

fn common(loc: Loc, operands: &[Option<Extent>]) -> Result<Option<Extent>, TraceError> {
    let mut tiles = operands.iter().flatten().copied();
    let Some(first) = tiles.next() else { return Ok(None) };
    match tiles.find(|&other| other != first) {
        None => Ok(Some(first)),
        Some(other) => Err(length_mismatch(loc, first, other)),
    }
}

/// Two tiles of different lengths in one operation.
pub(crate) fn length_mismatch(loc: Loc, a: impl Into<Extent>, b: impl Into<Extent>) -> TraceError {
    let (a, b): (Extent, Extent) = (a.into(), b.into());
    TraceError::new(
        loc,
        format!("tiles of {a} and of {b} elements in one operation"),
        "elementwise operations need tiles of one length: load both with the same length, or `splat` a scalar",
    )
}

impl<T: Element> Val<T> {
    /// The same value as another type. Float to narrower float rounds to nearest even (fp8 saturates); float to
    /// integer truncates and saturates; integers wrap or extend; `bool` becomes 0 or 1.
    ///
    /// # Errors
    /// Ends the trace for a number to `bool`, and between an integer and a float of 8 or 16 bits.
    #[track_caller]
    pub fn cast<U: Element>(self) -> Val<U> {
        self.cast_at(Loc::caller())
    }

    pub(crate) fn cast_at<U: Element>(self, loc: Loc) -> Val<U> {
        super::tile::check_cast::<T, U>(loc);
        pure(loc, [self.raw], |[a]| Pure::Cast(U::DTYPE, a))
    }

    /// Whether both are equal; the method behind `==` for code outside a `#[kernel]` function.
    #[track_caller]
    pub fn eq_to<R: Operand<T>>(self, other: R) -> R::Truth {
        compare(CompareOp::Eq, self.raw, other.raw(), Loc::caller())
    }

    /// Whether they differ; the method behind `!=`.
    #[track_caller]
    pub fn ne_to<R: Operand<T>>(self, other: R) -> R::Truth {
        compare(CompareOp::Ne, self.raw, other.raw(), Loc::caller())
    }
}

/// A comparison; `R` is `Val<bool>` or `Tile<bool>` as the operands' shapes demand.
pub(crate) fn compare<R: FromRaw>(op: CompareOp, a: Raw, b: Raw, loc: Loc) -> R {
    elementwise(loc, [a, b], |[a, b]| Pure::Compare(op, a, b))
}

pub(crate) fn binary<R: FromRaw>(op: BinaryOp, a: Raw, b: Raw, loc: Loc) -> R {
    elementwise(loc, [a, b], |[a, b]| Pure::Binary(op, a, b))
}

pub(crate) fn unary<R: FromRaw>(op: UnaryOp, a: Raw, loc: Loc) -> R {
    pure(loc, [a], |[a]| Pure::Unary(op, a))
}

macro_rules! ordered {
    ($($name:ident $op:ident $doc:literal;)*) => {
        $(#[doc = $doc]
        #[track_caller]
        pub fn $name<R: Operand<T>>(self, other: R) -> R::Truth {
            compare(CompareOp::$op, self.raw, other.raw(), Loc::caller())
        })*
    };
}

impl<T: Num> Val<T> {
    ordered! {
        lt Lt "Whether this is below `other`; the method behind `<`.";
        le Le "Whether this is at most `other`; the method behind `<=`.";
        gt Gt "Whether this is above `other`; the method behind `>`.";
        ge Ge "Whether this is at least `other`; the method behind `>=`.";
    }

    /// The smaller of both.
    #[track_caller]
    pub fn min<R: Operand<T>>(self, other: R) -> R::Out {
        binary(BinaryOp::Min, self.raw, other.raw(), Loc::caller())
    }

    /// The larger of both.
    #[track_caller]
    pub fn max<R: Operand<T>>(self, other: R) -> R::Out {
        binary(BinaryOp::Max, self.raw, other.raw(), Loc::caller())
    }
}

impl Val<bool> {
    /// `a` if this holds, else `b`: scalars, tiles of one length, or one of each, of one element type; or two
    /// [`AnyTile`](crate::dsl::AnyTile)s of one. Both are computed. An `if` runs only one, but keeps loads in its arms apart from all
    /// others. A load under a mask ([`IntoIndex::only`](crate::dsl::IntoIndex::only)) touches no memory where it is not wanted, and all
    /// of them are in flight together:
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let (x, y, out): (Ptr<f32>, Ptr<f32>, Ptr<f32>) = (p.arg("x", 256), p.arg("y", 256), p.arg("out", 256));
    /// # role("main", 1, |b| {
    /// let even = (rank() & 1).eq_to(0);
    /// let part = even.select(x.load(0.only(even), 256), y.load(0.only(!even), 256));
    /// # out.store(0, part);
    /// # });
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn select<A: Alternatives<B, M>, B, M>(self, a: A, b: B) -> A::Out {
        a.choose(b, self.raw, Loc::caller())
    }
}

impl Val<f32> {
    /// `self * b + c` with one rounding.
    #[track_caller]
    pub fn fma(self, b: impl IntoVal<f32>, c: impl IntoVal<f32>) -> Val<f32> {
        let (b, c) = (b.val(), c.val());
        pure(Loc::caller(), [self.raw, b.raw, c.raw], |[a, b, c]| Pure::Fma(a, b, c))
    }
}

/// The `u64` with bit `i` set: a set of ranks with the one member `i`. `i` must be below 64.
#[track_caller]
pub fn bit(i: impl IntoVal<u32>) -> Val<u64> {
    let loc = Loc::caller();
    let shift = i.val().cast_at::<u64>(loc);
    binary(BinaryOp::Shl, host(1u64, loc).raw, shift.raw, loc)
}

/// A tile of `len` elements that all equal `value`.
///
/// # Errors
/// Ends the trace for a length of 0 or above the largest tile.
#[track_caller]
pub fn splat<T: Element>(value: impl IntoVal<T>, len: u32) -> Tile<T> {
    let loc = Loc::caller();
    super::tile::check_len(loc, len);
    pure(loc, [value.val().raw], |[a]| Pure::Splat(a, len.into()))
}
