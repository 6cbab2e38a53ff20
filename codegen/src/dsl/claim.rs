//! Work that groups claim, number by number, as they become free.

use super::args::{Arg, Bound, TypedArg};
use super::buffer::{Buf, IntoIndex};
use super::control::{DeviceIter, KIter};
use super::group::{DevRange, Group};
use super::rt;
use super::scope::{OpenRegion, RegionKind, ScopeId};
use super::val::{FromRaw, IntoVal, Val, host};
use crate::ir::{BinaryOp, CompareOp, Dtype, Loc, OpKind, ParamKind, ReduceOp, Region, ValueId};

/// Counters that groups claim work from, in this rank's memory. All are zero before the first launch and after each, and nobody else
/// touches them.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
/// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 4096), p.arg("y", 64));
/// # #[kernel]
/// # fn body(rows_claimed: Counters, x: Ptr<f32>, y: Ptr<f32>) {
/// role("sum", 16, |block| {
///     block.split(2, |g| {
///         for row in g.claimed(64u32, Some(rows_claimed.counter(0))) { // to whichever group is free
///             y.set(row, x.load(row * 64, 64).sum());
///         }
///     });
/// });
/// # }
/// # body(p.arg("rows_claimed", 1), x, y);
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    buf: Buf,
}

impl Arg for Counters {
    const KIND: ParamKind = ParamKind::Counters;
    fn bind(b: Bound) -> Self {
        Counters { buf: Buf::param(b) }
    }
}
impl TypedArg for Counters {
    const DTYPE: Dtype = Dtype::U32;
}

/// One of the [`Counters`]: for the groups of one role, in one loop.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    buf: Buf,
    index: u32,
}

impl Counters {
    /// The `index`-th one.
    pub fn counter(&self, index: u32) -> Counter {
        Counter { buf: self.buf, index }
    }
}

impl Group {
    /// The work of this group when it claims the numbers of `0..n` from a counter, one after the other, until there are none
    /// left: groups that are done earlier do more. Lower numbers are claimed first. A claim is an atomic of this rank's memory
    /// that all warps of the group wait for, which pays where a number is much work and groups are not equally fast.
    ///
    /// All groups of the role run the loop, with the same `n` of at most 2^31, and none leaves it with `break`: that each hears of
    /// its end is how the counter gets back to zero.
    ///
    /// Without a counter this is [`Group::strided`]. Use it in `for` in a `#[kernel]` function.
    #[track_caller]
    pub fn claimed(&self, n: impl IntoVal<u32>, counter: Option<Counter>) -> Claimed {
        Claimed { range: self.strided(n), groups: self.count(), counter }
    }
}

/// Numbers that groups claim, to be used in `for`; see [`Group::claimed`].
#[derive(Clone, Copy, Debug)]
pub struct Claimed {
    range: DevRange<u32>,
    groups: u32,
    counter: Option<Counter>,
}

impl KIter for Claimed {
    type Item = Val<u32>;
    type Iter = ClaimedIter;
    fn sweep(self, name: &'static str, loc: Loc) -> (ClaimedIter, Option<ScopeId>) {
        let Some(counter) = self.counter else {
            let (iter, scope) = self.range.sweep(name, loc);
            return (ClaimedIter::Strided(iter), scope);
        };
        let DevRange { end, .. } = self.range;
        let forever = rt::use_value(true.val().to_raw(), loc);
        let open = OpenRegion::open(RegionKind::Claims, loc);
        let scope = open.scope();
        let mark = rt::mark();
        let number = counter.update(ReduceOp::Sum, 1, loc);
        if !name.is_empty() {
            rt::name(mark, name);
        }
        when(CompareOp::Ge, number, end, loc, || {
            // Every group hears it once. The last one puts the counter back to zero, for which the order of the updates of one
            // element is enough; the next launch comes after all of them.
            let last = rt::binary(BinaryOp::Add, end.to_raw(), host(self.groups - 1, loc).to_raw(), loc);
            when(CompareOp::Eq, number, last, loc, || {
                counter.update(ReduceOp::And, 0, loc);
            });
            rt::push(OpKind::Break { depth: 0 }, loc);
        });
        (ClaimedIter::Claims { number: Some(number), forever, open: Some(open), loc }, Some(scope))
    }
}

impl Counter {
    /// Updates it once for the group; what it was.
    fn update(&self, op: ReduceOp, value: u32, loc: Loc) -> Val<u32> {
        Val::from_raw(self.buf.atomic(op, self.index.index(), host(value, loc).to_raw(), loc))
    }
}

/// What is traced under a condition.
fn when(op: CompareOp, a: Val<u32>, b: Val<u32>, loc: Loc, body: impl FnOnce()) {
    let cond: Val<bool> = rt::compare(op, a.to_raw(), b.to_raw(), loc);
    let cond = rt::use_value(cond.to_raw(), loc);
    let arm = OpenRegion::open(RegionKind::Then, loc);
    body();
    let then = arm.close();
    rt::push(OpKind::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
}

/// Yields the number of a group's turn once; asked again, it ends the loop.
#[derive(Debug)]
pub enum ClaimedIter {
    /// The numbers are the group's from the start.
    Strided(DeviceIter<u32>),
    /// The loop claims one in each turn.
    Claims {
        /// What was claimed.
        number: Option<Val<u32>>,
        /// The loop's condition.
        forever: ValueId,
        /// The loop's body.
        open: Option<OpenRegion>,
        /// Where it stands.
        loc: Loc,
    },
}

impl Iterator for ClaimedIter {
    type Item = Val<u32>;

    fn next(&mut self) -> Option<Val<u32>> {
        match self {
            ClaimedIter::Strided(iter) => iter.next(),
            ClaimedIter::Claims { number, forever, open, loc } => number.take().or_else(|| {
                let (header, cond, body) = (Region::default(), *forever, open.take()?.close());
                rt::push(OpKind::While { header, cond, body }, *loc);
                None
            }),
        }
    }
}
