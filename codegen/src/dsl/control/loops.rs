//! `for`, `while`, `break` and `continue`.

use super::branch::{Cond, Known};
use crate::dsl::trace::{
    ScopeId, TraceError,
    error::raise,
    rt::{self, Mark, OpenRegion, RegionKind},
    tracer::{attempt, try_current},
};
use crate::dsl::values::{FromRaw, IntoVal, Val, element::Int, val::host};
use crate::dsl::{DevRange, Var};
use crate::ir::{BinaryOp, ControlOp, Loc, OpKind, Region, ValueId};

/// The ends of a range `a..b`.
#[derive(Debug)]
pub struct Ends<A, B>(A, B);

/// The ends of a range `a..b`.
pub fn ends<A, B>(a: A, b: B) -> Ends<A, B> {
    Ends(a, b)
}

/// A range of the device with step one.
fn range<T: Int>(start: Val<T>, end: Val<T>, loc: Loc) -> DevRange<T> {
    let one: Val<u32> = host(1, loc);
    DevRange { start, end, step: one.cast_at(loc) }
}

/// The end that comes after the last value.
fn after<T: Int>(last: Val<T>, loc: Loc) -> Val<T> {
    let one: Val<u32> = host(1, loc);
    rt::binary(BinaryOp::Add, last.to_raw(), one.cast_at::<T>(loc).to_raw(), loc)
}

macro_rules! device_start {
    ($($t:ty)*) => {
        $(impl<T: Int, B> Ends<$t, B> {
            /// `a..b`
            #[track_caller]
            pub fn range(self) -> DevRange<T>
            where
                B: IntoVal<T>,
            {
                range(self.0.val(), self.1.val(), Loc::caller())
            }

            /// `a..=b`, where `b` is below the largest value of its type.
            #[track_caller]
            pub fn range_inclusive(self) -> DevRange<T>
            where
                B: IntoVal<T>,
            {
                let loc = Loc::caller();
                range(self.0.val(), after(self.1.val(), loc), loc)
            }
        })*
    };
}
device_start!(Val<T> Var<T>);

/// A range from the host to the device.
pub trait DeviceEnd {
    /// Type of the first value.
    type Start;
    /// Integer type of the range.
    type Int: Int;
    /// `a..b`
    #[track_caller]
    fn range(self) -> DevRange<Self::Int>
    where
        Self::Start: IntoVal<Self::Int>;
    /// `a..=b`, where `b` is below the largest value of its type.
    #[track_caller]
    fn range_inclusive(self) -> DevRange<Self::Int>
    where
        Self::Start: IntoVal<Self::Int>;
}

macro_rules! device_end {
    ($($t:ty)*) => {
        $(impl<A, T: Int> DeviceEnd for Ends<A, $t> {
            type Start = A;
            type Int = T;
            #[track_caller]
            fn range(self) -> DevRange<T>
            where
                A: IntoVal<T>,
            {
                range(self.0.val(), self.1.val(), Loc::caller())
            }
            #[track_caller]
            fn range_inclusive(self) -> DevRange<T>
            where
                A: IntoVal<T>,
            {
                let loc = Loc::caller();
                range(self.0.val(), after(self.1.val(), loc), loc)
            }
        })*
    };
}
device_end!(Val<T> Var<T>);

/// The other end of a host range.
#[diagnostic::on_unimplemented(
    message = "a range from a `{A}` to a `{Self}`",
    label = "this range starts with a `{A}` and ends with a `{Self}`",
    note = "both ends must have one type"
)]
pub trait SameEnd<A> {
    /// It.
    #[doc(hidden)]
    fn same(self) -> A;
}

impl<A> SameEnd<A> for A {
    fn same(self) -> A {
        self
    }
}

/// A range of the host.
pub trait HostEnds<A, B> {
    /// Rust's own range.
    fn range(&self) -> std::ops::Range<A>
    where
        A: Clone,
        B: Clone + SameEnd<A>;
    /// Rust's own inclusive range.
    fn range_inclusive(&self) -> std::ops::RangeInclusive<A>
    where
        A: Clone,
        B: Clone + SameEnd<A>;
}

impl<A, B> HostEnds<A, B> for Ends<A, B> {
    fn range(&self) -> std::ops::Range<A>
    where
        A: Clone,
        B: Clone + SameEnd<A>,
    {
        self.0.clone()..self.1.clone().same()
    }
    fn range_inclusive(&self) -> std::ops::RangeInclusive<A>
    where
        A: Clone,
        B: Clone + SameEnd<A>,
    {
        self.0.clone()..=self.1.clone().same()
    }
}

/// What `for` runs over: an iterator of the host, which is unrolled, or a range of the device.
#[diagnostic::on_unimplemented(
    message = "`for` in a kernel cannot run over a `{Self}`",
    label = "neither an iterator nor a range of the device",
    note = "write a range of the device as `a..b`, `a..=b`, `(a..b).step_by(c)`, `g.strided(n)` or `g.dynamic(n, counter)`"
)]
pub trait KIter {
    /// What the loop variable is.
    type Item;
    /// What yields it.
    type Iter: Iterator<Item = Self::Item>;
    /// Begins the loop.
    #[doc(hidden)]
    fn sweep(self, name: &'static str, loc: Loc) -> (Self::Iter, Option<ScopeId>);
}

#[diagnostic::do_not_recommend]
impl<I: IntoIterator> KIter for I {
    type Item = I::Item;
    type Iter = I::IntoIter;
    fn sweep(self, _: &'static str, _: Loc) -> (I::IntoIter, Option<ScopeId>) {
        (self.into_iter(), None)
    }
}

impl<T: Int> KIter for DevRange<T> {
    type Item = Val<T>;
    type Iter = DeviceIter<T>;
    fn sweep(self, name: &'static str, loc: Loc) -> (DeviceIter<T>, Option<ScopeId>) {
        if self.is_empty(loc) {
            return (DeviceIter { turn: Turn::Over, loc }, None);
        }
        let [start, end, step] = [self.start, self.end, self.step].map(|v| rt::use_value(v.to_raw(), loc));
        let open = OpenRegion::open(RegionKind::For, loc);
        let scope = open.scope();
        let mark = rt::mark();
        let var = Val::from_raw(rt::fresh(crate::ir::Type::scalar(T::DTYPE), loc));
        if !name.is_empty() {
            rt::name(mark, name);
        }
        let traced = For { var: var.to_raw().id, bounds: [start, end, step], open };
        (DeviceIter { turn: Turn::Body(var, traced), loc }, Some(scope))
    }
}

/// Yields the loop variable of a device `for` once; asked again, it ends the loop. Of an empty range it yields nothing.
#[derive(Debug)]
pub struct DeviceIter<T: Int> {
    turn: Turn<T>,
    loc: Loc,
}

/// What is next of a device `for`.
#[derive(Debug)]
enum Turn<T: Int> {
    /// Its body is to be traced.
    Body(Val<T>, For),
    /// Its body has been traced.
    End(For),
    /// Nothing.
    Over,
}

/// A `for` in progress.
#[derive(Debug)]
struct For {
    var: ValueId,
    bounds: [ValueId; 3],
    open: OpenRegion,
}

impl<T: Int> Iterator for DeviceIter<T> {
    type Item = Val<T>;

    fn next(&mut self) -> Option<Val<T>> {
        match std::mem::replace(&mut self.turn, Turn::Over) {
            Turn::Body(var, traced) => {
                self.turn = Turn::End(traced);
                Some(var)
            }
            Turn::End(For { var, bounds: [start, end, step], open }) => {
                let body = open.close();
                rt::push(ControlOp::For { var, start, end, step, body }, self.loc);
                None
            }
            Turn::Over => None,
        }
    }
}

/// Begins a `for` that nothing leaves early; `name` is the loop variable's, or empty.
#[track_caller]
pub fn each<I: KIter<Iter = It>, It>(over: I, name: &'static str) -> It {
    over.sweep(name, Loc::caller()).0
}

/// Begins a `for` in which `break` or `continue` stands.
#[track_caller]
pub fn each_with_exit<I: KIter<Iter = It>, It>(over: I, name: &'static str) -> (It, Exit) {
    let mark = rt::mark();
    let (iter, device) = over.sweep(name, Loc::caller());
    (iter, Exit { mark, device, is_block: false })
}

/// A loop that `break` or `continue` can mean.
#[derive(Clone, Copy, Debug)]
pub struct Exit {
    /// Where the loop begins.
    mark: Mark,
    /// Its body, when the device runs it.
    device: Option<ScopeId>,
    /// Whether it is a labelled block.
    is_block: bool,
}

/// Begins a loop of the host.
pub fn begin_loop() -> Exit {
    Exit { mark: rt::mark(), device: None, is_block: false }
}

/// Begins a labelled block.
pub fn begin_block() -> Exit {
    Exit { is_block: true, ..begin_loop() }
}

impl Exit {
    /// `break` or `continue` of this loop. `true`: the host does it. `false`: it was traced, and what follows in the
    /// region is never reached.
    #[track_caller]
    pub fn exit(&self, word: &str) -> bool {
        let Some(body) = self.device else {
            self.leave(word);
            return true;
        };
        let loc = Loc::caller();
        attempt(loc, |t| {
            let inner = t.scopes[body as usize].depth + 1;
            // `continue` of this loop draws the next number; all else that leaves the loop does not.
            let left = t.open_scopes().skip(inner - usize::from(word == "break"));
            if let Some(drawing) = left.filter(|s| s.kind == RegionKind::Dynamic).last() {
                return Err(TraceError::new(
                    loc,
                    format!("`{word}` leaves a dynamically scheduled loop"),
                    "each group has to draw until no number is left: put what follows into an `if`, or use `g.strided(n)`",
                )
                .note(drawing.loc, "the loop is here"));
            }
            let depth = t.open_scopes().skip(inner).filter(|s| s.kind.is_loop()).count() as u32;
            let exit = if word == "break" {
                OpKind::Control(ControlOp::Break { depth })
            } else {
                OpKind::Control(ControlOp::Continue { depth })
            };
            t.builder.push(exit, loc);
            Ok(())
        });
        false
    }

    /// `break` or `continue` of a loop that only the host can run.
    #[track_caller]
    pub fn leave(&self, word: &str) {
        let Some((kind, opened)) = self.mark.conditional_since() else { return };
        let (place, thing) = match kind {
            RegionKind::Then | RegionKind::Else => ("under a device condition", "the condition"),
            RegionKind::For | RegionKind::Condition | RegionKind::While | RegionKind::Dynamic => {
                ("inside a device loop", "the device loop")
            }
            // These are not conditional.
            RegionKind::Prologue | RegionKind::Role(_) | RegionKind::Split(_) => return,
        };
        let (left, help) = match self.is_block {
            true => ("a block", "let an `if` yield the value, or assign a variable of the device"),
            false => (
                "a loop of the host",
                "a loop of the host is unrolled while tracing, when the condition is not known. Loop over a range of \
                 the device (`for i in 0..n` with a device `n`) or use `while`; or put what follows into the `if`",
            ),
        };
        raise(
            TraceError::new(Loc::caller(), format!("`{word}` leaves {left} {place}"), help)
                .note(opened, format!("{thing} is here")),
        )
    }

    /// Whether an exit to a loop further out was just traced, so that this loop is left as well.
    pub fn passed(&self) -> bool {
        self.device.is_none() && passed()
    }
}

/// Whether the innermost region ends in an exit.
fn passed() -> bool {
    try_current(|t| {
        let last = t.builder.open_ops(t.builder.depth() - 1).last();
        last.is_some_and(|&op| {
            matches!(
                t.builder.kernel.op(op).kind,
                OpKind::Control(ControlOp::Break { .. } | ControlOp::Continue { .. })
            )
        })
    })
    .unwrap_or(false)
}

/// A `while` in progress.
#[derive(Debug)]
pub struct While {
    loc: Loc,
    mark: Mark,
    condition: Option<OpenRegion>,
    device: Option<DeviceWhile>,
}

#[derive(Debug)]
struct DeviceWhile {
    header: Region,
    cond: ValueId,
    body: OpenRegion,
}

/// Begins a `while`.
#[track_caller]
pub fn begin_while() -> While {
    While { loc: Loc::caller(), mark: rt::mark(), condition: None, device: None }
}

impl While {
    /// Before the condition is evaluated.
    pub fn condition(&mut self) {
        self.condition = rt::active().then(|| OpenRegion::open(RegionKind::Condition, self.loc));
    }

    /// Whether the body is to be run now.
    #[track_caller]
    pub fn test<C: Cond + ?Sized>(&mut self, cond: &C) -> bool {
        let cond = cond.known();
        match (cond, self.condition.take()) {
            (Known::Now(cond), open) => {
                if let Some(open) = open {
                    open.splice();
                }
                cond
            }
            (Known::Later(cond), Some(open)) => {
                let cond = rt::use_value(cond, self.loc);
                let header = open.close();
                let body = OpenRegion::open(RegionKind::While, self.loc);
                self.device = Some(DeviceWhile { header, cond, body });
                true
            }
            // A device condition outside any trace: reading it fails.
            (Known::Later(cond), None) => {
                rt::use_value(cond, self.loc);
                false
            }
        }
    }

    /// After the body: whether the loop is complete.
    pub fn done(&mut self) -> bool {
        let Some(DeviceWhile { header, cond, body }) = self.device.take() else { return false };
        let body = body.close();
        rt::push(ControlOp::While { header, cond, body }, self.loc);
        true
    }

    fn as_exit(&self) -> Exit {
        let device = self.device.as_ref().map(|d| d.body.scope());
        Exit { mark: self.mark, device, is_block: false }
    }

    /// As [`Exit::exit`].
    #[track_caller]
    pub fn exit(&self, word: &str) -> bool {
        self.as_exit().exit(word)
    }

    /// As [`Exit::passed`].
    pub fn passed(&self) -> bool {
        self.as_exit().passed()
    }
}
