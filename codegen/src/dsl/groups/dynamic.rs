//! Dynamic scheduling: groups draw their work from a counter as they become free.

use super::group::{DevRange, Group};
use crate::dsl::control::{DeviceIter, KIter};
use crate::dsl::memory::{
    Arg, Bound, Buf, IntoIndex, TypedArg,
    mem::{param_of, words_arg},
};
use crate::dsl::trace::{
    ScopeId, Trace, TraceError, rt,
    scope::{OpenRegion, RegionKind},
    tracer::attempt,
};
use crate::dsl::values::{FromRaw, IntoVal, Val, val::host};
use crate::ir::{
    BinaryOp, CompareOp, ControlOp, Dtype, Loc, MemoryOp, ParamKind, ReduceOp, Region, SignalOrder, Type,
    ValueId,
};

/// Work counters for dynamic scheduling and tickets ([`Group::last`]), in this rank's memory. All are zero before the first launch
/// and after each. Nothing else writes them.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
/// # let (x, y): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 4096), p.arg("y", 64));
/// # #[kernel]
/// # fn body(next_row: Counters, x: Ptr<f32>, y: Ptr<f32>) {
/// role("sum", 16, |block| {
///     block.split(2, |g| {
///         for row in g.dynamic(64u32, Some(next_row.counter(0))) { // to whichever group is free
///             y.set(row, x.load(row * 64, 64).sum());
///         }
///     });
/// });
/// # }
/// # body(p.arg("next_row", 1), x, y);
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    buf: Buf,
}

words_arg!(Counters);

/// One of the [`Counters`]: for the groups of one role, in one loop or one ticket that runs once a launch. A second one on it is
/// refused.
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
    /// The work of this group under dynamic scheduling: the numbers `0..n`, which free groups draw from a work
    /// counter, each once. Lower numbers are drawn first. Drawing is an atomic of this rank's memory that all warps of the group wait for,
    /// which pays where a number is much work and groups are not equally fast. Where a block has a warp that brings what the others
    /// multiply, that warp draws, ahead of them.
    ///
    /// All groups of the role run the loop, with the same `n` of at most 2^31, and none leaves it with `break`. The last group that finds
    /// no number left resets the counter.
    ///
    /// Without a counter this is [`Group::strided`]. Use it in `for` in a `#[kernel]` function.
    ///
    /// # Orders
    /// Nothing: two turns that share memory need flags of their own.
    ///
    /// # Errors
    /// Ends the trace where a second loop draws from the counter, or a loop around this one.
    #[track_caller]
    pub fn dynamic(&self, n: impl IntoVal<u32>, counter: Option<Counter>) -> Dynamic {
        Dynamic { range: self.strided(n), groups: self.count(), counter }
    }
}

impl Group {
    /// Runs `tail` in the last group of the role to come here: in the last block, or inside a split in the last of the groups
    /// of all blocks. It sees what every other group of the role did before it came.
    ///
    /// All groups of the role come here once a launch, and none waits. The last one sets the counter back to
    /// zero for the next launch.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 8), |p| {
    /// # let (x, part, y): (Ptr<f32>, Ptr<f32>, Ptr<f32>) = (p.arg("x", 4096), p.arg("part", 16), p.arg("y", 1));
    /// # let ticket: Counters = p.arg("ticket", 1);
    /// role("sum", 16, |block| {
    ///     part.set(block.index(), x.load(block.index() * 256, 256).sum());
    ///     block.last(ticket.counter(0), || y.set(0, part.load(0, 16).sum()));
    /// });
    /// # }).unwrap();
    /// ```
    ///
    /// # Orders
    /// All that the other groups of the role did before they came here comes before `tail`.
    ///
    /// # Errors
    /// Ends the trace where a second ticket or loop uses the counter.
    #[track_caller]
    pub fn last(&self, counter: Counter, tail: impl FnOnce()) {
        let loc = Loc::caller();
        let (index, count) = (counter.index.index(), host(self.count(), loc).to_raw());
        let cond = attempt(loc, |t| {
            counter.take_one_ticket(t, loc)?;
            let index = counter.buf.at(t, index, 1, loc)?;
            let count = t.use_value(count.trace, count.id, loc)?;
            let counter = param_of(&counter.buf).expect("counters are a parameter");
            let order = SignalOrder::Release;
            let is_last = Type::scalar(Dtype::Bool);
            Ok(t.emit(is_last, loc, |out| MemoryOp::Ticket { out, counter, index, count, order }))
        });
        let arm = OpenRegion::open(RegionKind::Then, loc);
        tail();
        let then = arm.close();
        rt::push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
    }
}

/// Numbers under dynamic scheduling, to be used in `for`; see [`Group::dynamic`].
#[derive(Clone, Copy, Debug)]
pub struct Dynamic {
    range: DevRange<u32>,
    groups: u32,
    counter: Option<Counter>,
}

impl KIter for Dynamic {
    type Item = Val<u32>;
    type Iter = DynamicIter;
    fn sweep(self, name: &'static str, loc: Loc) -> (DynamicIter, Option<ScopeId>) {
        let Some(counter) = self.counter.filter(|_| !self.range.is_empty(loc)) else {
            let (iter, scope) = self.range.sweep(name, loc);
            return (DynamicIter::Strided(iter), scope);
        };
        let DevRange { end, .. } = self.range;
        let forever = rt::use_value(true.val().to_raw(), loc);
        counter.draw_in_one_loop(loc);
        let open = OpenRegion::open(RegionKind::Dynamic, loc);
        let scope = open.scope();
        let mark = rt::mark();
        let number = counter.update(ReduceOp::Sum, 1, loc);
        if !name.is_empty() {
            rt::name(mark, name);
        }
        when(CompareOp::Ge, number, end, loc, || {
            // Every group draws past the end once. The last one to do so resets the counter, for which the order of the updates of one
            // element is enough; the next launch comes after all of them.
            let last = rt::binary(BinaryOp::Add, end.to_raw(), host(self.groups - 1, loc).to_raw(), loc);
            when(CompareOp::Eq, number, last, loc, || {
                counter.update(ReduceOp::And, 0, loc);
            });
            rt::push(ControlOp::Break { depth: 0 }, loc);
        });
        (DynamicIter::Counter { number: Some(number), forever, open: Some(open), loc }, Some(scope))
    }
}

impl Counter {
    /// Fails where a second loop would draw from it, or one loop more than once: groups that are not done with the first would
    /// share numbers with those that are, and reset the counter under them.
    fn draw_in_one_loop(&self, loc: Loc) {
        let param = param_of(&self.buf).expect("counters are a parameter");
        attempt(loc, |t| {
            let name = format!("work counter {} of `{}`", self.index, self.buf.name(t));
            if let Some(around) = t.open_scopes().find(|s| s.kind.is_loop()) {
                let message = format!("{name} is drawn from by a loop that runs several times");
                let help = "move the loop out of the other one, or use `g.strided(n)`: nothing tells groups that \
                            all others have drawn to the end before the next time";
                return Err(
                    TraceError::new(loc, message, help).note(around.loc, "the loop around it is here")
                );
            }
            let first = t.drawn.iter().find(|d| (d.0, d.1) == (param, self.index)).map(|d| d.2);
            if let Some(first) = first {
                let message = format!("{name} is drawn from by two loops");
                let help = "give each loop a counter of its own: `counters.counter(1)`";
                return Err(TraceError::new(loc, message, help).note(first, "the other loop is here"));
            }
            t.drawn.push((param, self.index, loc));
            Ok(())
        });
    }

    /// Fails where a group would take a second ticket of it in a launch.
    fn take_one_ticket(&self, t: &mut Trace, loc: Loc) -> Result<(), TraceError> {
        let param = param_of(&self.buf).expect("counters are a parameter");
        let name = format!("counter {} of `{}`", self.index, self.buf.name(t));
        if let Some(around) = t.open_scopes().find(|s| s.kind.is_loop()) {
            let message = format!("a ticket of {name} in a loop that runs several times");
            let help = "a group takes one ticket of a counter in a launch: move it out of the loop";
            return Err(TraceError::new(loc, message, help).note(around.loc, "the loop around it is here"));
        }
        if let Some(first) = t.drawn.iter().find(|d| (d.0, d.1) == (param, self.index)).map(|d| d.2) {
            let message = format!("{name} has another use");
            let help = "give each loop and each ticket a counter of its own: `counters.counter(1)`";
            return Err(TraceError::new(loc, message, help).note(first, "the other use is here"));
        }
        t.drawn.push((param, self.index, loc));
        Ok(())
    }

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
    rt::push(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
}

/// Yields the number of a group's turn once; asked again, it ends the loop.
#[derive(Debug)]
pub enum DynamicIter {
    /// The numbers are the group's from the start.
    Strided(DeviceIter<u32>),
    /// The loop draws a number in each turn.
    Counter {
        /// The number drawn.
        number: Option<Val<u32>>,
        /// The loop's condition.
        forever: ValueId,
        /// The loop's body.
        open: Option<OpenRegion>,
        /// Where it stands.
        loc: Loc,
    },
}

impl Iterator for DynamicIter {
    type Item = Val<u32>;

    fn next(&mut self) -> Option<Val<u32>> {
        match self {
            DynamicIter::Strided(iter) => iter.next(),
            DynamicIter::Counter { number, forever, open, loc } => number.take().or_else(|| {
                let (header, cond, body) = (Region::default(), *forever, open.take()?.close());
                rt::push(ControlOp::While { header, cond, body }, *loc);
                None
            }),
        }
    }
}
