//! Where accesses begin, and which elements of a tile they touch.

use std::ops::Add;

use crate::dsl::trace::{Pure, Trace, TraceError, error::fail_at, tracer::attempt};
use crate::dsl::values::{
    FromRaw, Operand, Raw, Val,
    val::{host, length_mismatch},
    var::Var,
};
use crate::ir::{BinaryOp, CompareOp, Const, Dtype, Loc, Type, ValueId, ValueOp};

/// Anything that can index a buffer: host `u32`, `u64`, `usize` and non-negative integer literals, `u32` or `u64`
/// values and variables of the device, and an [`Index`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot index a buffer in a kernel",
    label = "expected a host integer, a `Val<u32>` or a `Val<u64>`",
    note = "convert a signed value with `.to_u32()`; use `.to_u64()` for offsets beyond 2^32 elements"
)]
pub trait IntoIndex: Sized {
    /// As an index.
    #[doc(hidden)]
    #[track_caller]
    fn index(self) -> Index;

    /// The same place, for an access that touches memory only where `mask` holds: a tile of `bool` decides for each
    /// element, a scalar for all of them. What is loaded elsewhere is 0, and what is stored or put elsewhere goes nowhere.
    ///
    /// It is a mask for every load, store and put of a tile, whatever the element type:
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # use peerwarp_codegen::ir::Dtype;
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let x = p.erased::<AnyPtr>("x", 4096, Dtype::Bf16);
    /// # role("main", 1, |b| {
    /// let even = (arange(256) % 2).eq_to(0);
    /// let row = x.load_f32(1024.only(even), 256);       // 0 where the index is odd
    /// let more = x.load(2048.only(b.index().lt(1)), 256); // all of it, or zeros
    /// x.store_f32(0.only(even), row + more.to_f32());
    /// # });
    /// # }).unwrap();
    /// ```
    #[track_caller]
    fn only(self, mask: impl Operand<bool>) -> Index {
        let Index { raw, part } = self.index();
        let loc = Loc::caller();
        let mask = match (part.mask, mask.raw()) {
            (None, mask) => mask,
            (Some(before), mask) => {
                crate::dsl::values::val::binary::<Untyped>(BinaryOp::And, before, mask, loc).0
            }
        };
        Index { raw, part: Part { mask: Some(mask), ..part } }
    }
}

/// A value of any type and shape.
#[derive(Clone, Copy)]
struct Untyped(Raw);

impl FromRaw for Untyped {
    fn from_raw(raw: Raw) -> Self {
        Untyped(raw)
    }
    fn to_raw(self) -> Raw {
        self.0
    }
}

/// Where an access begins, and which of a tile's elements it touches: all, unless it comes from [`TileRange::at`] or has a
/// mask ([`IntoIndex::only`]).
///
/// An offset can be added to it, on either side. It is no number of the device, so that it cannot be used without what
/// it says about the elements; [`TileRange::first`] is one.
///
/// [`TileRange::at`]: crate::dsl::TileRange::at
/// [`TileRange::first`]: crate::dsl::TileRange::first
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Index {
    pub(crate) raw: Raw,
    pub(crate) part: Part,
}

/// Which elements of a tile an access touches.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Part {
    /// The length that the tile must have.
    pub len: Option<u32>,
    /// As many of its first ones as this `u32` scalar says, at most the length.
    pub count: Option<Raw>,
    /// Those where this holds: a `bool` tile, or a scalar for all of them.
    pub mask: Option<Raw>,
}

impl Index {
    pub(crate) fn whole(raw: Raw) -> Index {
        Index { raw, part: Part::default() }
    }
}

impl Part {
    /// The mask of an access to a scalar, or to a tile of `len` elements; none if it touches all of them.
    pub fn mask(self, t: &mut Trace, len: Option<u32>, loc: Loc) -> Result<Option<ValueId>, TraceError> {
        let Some(len) = len else { return self.scalar(loc).map(|()| None) };
        let count = self.count(t, len, loc)?;
        let mut mask = self.mask.map(|m| t.use_value(m.trace, m.id, loc)).transpose()?;
        if mask.is_some_and(|m| t.uniform(m) == Some(Const::Bool(true))) {
            mask = None;
        }
        if let Some(n) = mask.and_then(|m| t.ty(m).len)
            && n != len
        {
            return Err(length_mismatch(loc, len, n));
        }
        let tile = |t: &mut Trace, v: ValueId| match t.ty(v).is_tile() {
            true => Ok(v),
            false => t.pure(Pure::Splat(v, len.into()), loc),
        };
        match (count, mask) {
            (None, None) => Ok(None),
            (None, Some(mask)) => tile(t, mask).map(Some),
            (Some(count), None) => first(t, count, len, loc).map(Some),
            (Some(count), Some(mask)) if !t.ty(mask).is_tile() => {
                let count = none_unless(t, mask, count, loc)?;
                first(t, count, len, loc).map(Some)
            }
            (Some(count), Some(mask)) => {
                let first = first(t, count, len, loc)?;
                t.pure(Pure::Binary(BinaryOp::And, first, mask), loc).map(Some)
            }
        }
    }

    /// A scalar condition, spread to those of a tile's elements that are touched.
    pub fn spread(self, cond: Raw, len: u32, loc: Loc) -> Raw {
        let only = |before: Option<Raw>| match before {
            None => cond,
            Some(before) => crate::dsl::values::val::binary::<Untyped>(BinaryOp::And, before, cond, loc).0,
        };
        let part = Part { mask: Some(only(self.mask)), ..self };
        attempt(loc, |t| {
            let mask = match part.mask(t, Some(len), loc)? {
                Some(mask) => mask,
                // It is known to hold.
                None => {
                    let always = t.host(Const::Bool(true), loc);
                    t.pure(Pure::Splat(always, len.into()), loc)?
                }
            };
            Ok(t.raw(mask))
        })
    }

    /// `mask`, where an access under it touches these elements, too.
    pub fn and(self, t: &mut Trace, mask: Raw, loc: Loc) -> Result<ValueId, TraceError> {
        let own = self.mask(t, mask.len, loc)?;
        let mask = t.use_value(mask.trace, mask.id, loc)?;
        own.map_or(Ok(mask), |own| t.pure(Pure::Binary(BinaryOp::And, own, mask), loc))
    }

    /// A value to be written and its mask, usable here and of one length.
    pub fn masked(
        self,
        t: &mut Trace,
        value: Raw,
        mask: Option<Raw>,
        loc: Loc,
    ) -> Result<(ValueId, Option<ValueId>), TraceError> {
        let v = t.use_value(value.trace, value.id, loc)?;
        let Some(mask) = mask else { return Ok((v, self.mask(t, value.len, loc)?)) };
        if mask.len != value.len {
            return Err(length_mismatch(loc, value.len.unwrap_or(1), mask.len.unwrap_or(1)));
        }
        Ok((v, Some(self.and(t, mask, loc)?)))
    }

    /// How many first elements of a tile are touched, for what moves them in larger pieces; none if all are.
    pub fn first_only(
        self,
        t: &mut Trace,
        len: u32,
        what: &str,
        loc: Loc,
    ) -> Result<Option<ValueId>, TraceError> {
        let count = self.count(t, len, loc)?;
        let Some(mask) = self.mask else { return Ok(count) };
        if mask.len.is_some() {
            let message = format!("{what} under a mask of elements");
            let help = "a scalar decides for all of them, and `t.at()` of a tile range for how many";
            return Err(TraceError::new(loc, message, help));
        }
        let mask = t.use_value(mask.trace, mask.id, loc)?;
        if t.constant(mask) == Some(Const::Bool(true)) {
            return Ok(count);
        }
        let count = count.unwrap_or_else(|| t.host(Const::U32(len), loc));
        none_unless(t, mask, count, loc).map(Some)
    }

    /// Fails unless all elements are touched.
    pub fn all(self, t: &mut Trace, len: u32, what: &str, loc: Loc) -> Result<(), TraceError> {
        if self.count(t, len, loc)?.is_none() && self.mask.is_none() {
            return Ok(());
        }
        let message = format!("{what} of some of a tile's elements");
        Err(TraceError::new(
            loc,
            message,
            "it moves whole tiles: use a put, a load or a store, which take masks",
        ))
    }

    /// Fails where one element would be accessed under a mask.
    fn scalar(self, loc: Loc) -> Result<(), TraceError> {
        match self.mask {
            None => Ok(()),
            Some(_) => Err(TraceError::new(
                loc,
                "one element accessed under a mask",
                "masks are for tiles: put the access into an `if`",
            )),
        }
    }

    /// How many first elements of a tile are touched, if not all.
    fn count(self, t: &mut Trace, len: u32, loc: Loc) -> Result<Option<ValueId>, TraceError> {
        if let Some(n) = self.len
            && n != len
        {
            let message = format!("a tile of {len} elements at a tile range of {n}");
            let help = "load `t.len()` elements at `t.at()`; for tiles of another length, calculate with `t.first()`";
            return Err(TraceError::new(loc, message, help));
        }
        let Some(count) = self.count else { return Ok(None) };
        let count = t.use_value(count.trace, count.id, loc)?;
        let all = matches!(t.constant(count), Some(Const::U32(n)) if n >= len);
        Ok((!all).then_some(count))
    }
}

/// Where a tile's index is below `count`. A tile of its own for each access: those that meet are spread over lanes alike.
fn first(t: &mut Trace, count: ValueId, len: u32, loc: Loc) -> Result<ValueId, TraceError> {
    let i = t.emit(Type::tile(Dtype::U32, len), loc, |out| ValueOp::Arange { out });
    let count = t.pure(Pure::Splat(count, len.into()), loc)?;
    t.pure(Pure::Compare(CompareOp::Lt, i, count), loc)
}

fn none_unless(t: &mut Trace, cond: ValueId, count: ValueId, loc: Loc) -> Result<ValueId, TraceError> {
    let zero = t.host(Const::U32(0), loc);
    t.pure(Pure::Select(cond, count, zero), loc)
}

impl IntoIndex for Index {
    fn index(self) -> Index {
        self
    }
}

macro_rules! host_index {
    ($($t:ty)*) => {
        $(impl IntoIndex for $t {
            #[track_caller]
            fn index(self) -> Index {
                let loc = Loc::caller();
                match (u32::try_from(self), u64::try_from(self)) {
                    (Ok(i), _) => Index::whole(host(i, loc).to_raw()),
                    (_, Ok(i)) => Index::whole(host(i, loc).to_raw()),
                    _ => fail_at(loc, format!("element {self} of a buffer"), "indices count from 0"),
                }
            }
        })*
    };
}
host_index!(i32 u32 u64 usize);

macro_rules! device_index {
    ($($t:ty)*) => {
        $(impl IntoIndex for Val<$t> {
            fn index(self) -> Index {
                Index::whole(self.to_raw())
            }
        }
        impl IntoIndex for Var<$t> {
            #[track_caller]
            fn index(self) -> Index {
                Index::whole(self.get().to_raw())
            }
        }
        impl IntoIndex for &Var<$t> {
            #[track_caller]
            fn index(self) -> Index {
                Index::whole(self.get().to_raw())
            }
        })*
    };
}
device_index!(u32 u64);

/// The sum of two indices, one of which may say which elements.
fn sum(a: Index, b: Index, loc: Loc) -> Index {
    let part = match (a.part, b.part) {
        (part, Part { len: None, count: None, mask: None })
        | (Part { len: None, count: None, mask: None }, part) => part,
        _ => fail_at(
            loc,
            "the sum of two indices that both say which elements",
            "add a number: `t.first()` is the one of a tile range",
        ),
    };
    let dtype = |i: Index| attempt(loc, |t| Ok(t.ty(t.use_value(i.raw.trace, i.raw.id, loc)?).dtype));
    let (x, y) = match (dtype(a), dtype(b)) {
        (x, y) if x == y => (a.raw, b.raw),
        _ => (super::buffer::cast(a.raw, Dtype::U64, loc), super::buffer::cast(b.raw, Dtype::U64, loc)),
    };
    Index { raw: crate::dsl::values::val::binary::<Untyped>(BinaryOp::Add, x, y, loc).0, part }
}

impl<I: IntoIndex> Add<I> for Index {
    type Output = Index;
    #[track_caller]
    fn add(self, other: I) -> Index {
        sum(self, other.index(), Loc::caller())
    }
}

macro_rules! offset {
    ($($t:ty)*) => {
        $(impl Add<Index> for $t {
            type Output = Index;
            #[track_caller]
            fn add(self, other: Index) -> Index {
                sum(self.index(), other, Loc::caller())
            }
        })*
    };
}
offset!(i32 u32 u64 usize Val<u32> Val<u64> Var<u32> &Var<u32> Var<u64> &Var<u64>);
