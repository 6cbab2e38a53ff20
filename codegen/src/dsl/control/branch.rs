//! `if`.

use std::marker::PhantomData;

use crate::dsl::trace::{
    ScopeId, Thing, TraceError,
    error::raise,
    rt::{self, OpenRegion, RegionKind},
    scope::escape,
    tracer::attempt,
};
use crate::dsl::values::{Element, FromRaw, Raw, Val};
use crate::dsl::{Tile, Var};
use crate::ir::{Const, ControlOp, Loc, Region, UnaryOp, ValueId};

/// Kind of an `if` whose condition is known while tracing.
#[derive(Clone, Copy, Debug)]
pub enum Host {}

/// Kind of an `if` whose condition is known on the device only.
#[derive(Clone, Copy, Debug)]
pub enum Device {}

/// The value of a condition.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// Known now.
    Now(bool),
    /// A scalar `bool` of the device.
    Later(Raw),
}

/// What `if` and `while` take as a condition.
#[diagnostic::on_unimplemented(
    message = "a condition in a kernel is a `bool` or a `Val<bool>`, not a `{Self}`",
    label = "not a condition",
    note = "a tile of bools is not one condition: reduce it with `.any()` or `.all()`, or choose elementwise with \
            `.select(a, b)`"
)]
pub trait Cond {
    /// [`Host`] or [`Device`].
    type Kind;
    /// Its value.
    #[track_caller]
    fn known(&self) -> Known;
}

#[diagnostic::do_not_recommend]
impl Cond for bool {
    type Kind = Host;
    fn known(&self) -> Known {
        Known::Now(*self)
    }
}

#[diagnostic::do_not_recommend]
impl Cond for Val<bool> {
    type Kind = Device;
    fn known(&self) -> Known {
        Known::Later(self.to_raw())
    }
}

#[diagnostic::do_not_recommend]
impl Cond for Var<bool> {
    type Kind = Device;
    #[track_caller]
    fn known(&self) -> Known {
        Known::Later(self.get().to_raw())
    }
}

/// What became of one arm of an `if`.
#[derive(Debug)]
pub enum Arm<T> {
    /// It ran and yielded a value.
    Value(T),
    /// It ran and was left by `break` or `continue`.
    Exited,
    /// It did not run.
    Skipped,
}

/// An `if` in progress.
#[derive(Debug)]
pub struct If<K> {
    loc: Loc,
    state: State,
    _kind: PhantomData<K>,
}

#[derive(Debug)]
enum State {
    Now(bool),
    Later { cond: ValueId, then: Option<Traced>, open: Option<OpenRegion> },
}

/// An arm that was traced.
#[derive(Debug)]
struct Traced {
    scope: ScopeId,
    region: Region,
}

/// Begins an `if`.
#[track_caller]
pub fn begin_if<C: Cond<Kind = K> + ?Sized, K>(cond: &C) -> If<K> {
    let loc = Loc::caller();
    let state = match cond.known() {
        Known::Now(cond) => State::Now(cond),
        Known::Later(cond) => match rt::constant(cond, loc) {
            Some(Const::Bool(cond)) => State::Now(cond),
            _ => State::Later { cond: rt::use_value(cond, loc), then: None, open: None },
        },
    };
    If { loc, state, _kind: PhantomData }
}

impl<K> If<K> {
    /// Whether the first arm is to be run now.
    pub fn then_arm(&mut self) -> bool {
        match &mut self.state {
            State::Now(cond) => *cond,
            State::Later { open, .. } => {
                *open = Some(OpenRegion::open(RegionKind::Then, self.loc));
                true
            }
        }
    }

    /// Whether the second arm is to be run now.
    pub fn else_arm(&mut self) -> bool {
        match &mut self.state {
            State::Now(cond) => !*cond,
            State::Later { open, then, .. } => {
                *then = open.take().map(close);
                *open = Some(OpenRegion::open(RegionKind::Else, self.loc));
                true
            }
        }
    }
}

fn close(open: OpenRegion) -> Traced {
    Traced { scope: open.scope(), region: open.close() }
}

/// What an `if` of kind `K` may yield: anything on the host; on the device scalars, tiles, `()`, and tuples and arrays
/// of them.
#[diagnostic::on_unimplemented(
    message = "a device `if` cannot yield a value of type `{Self}`",
    label = "this `if` is decided on the device and yields a `{Self}`",
    note = "it can yield scalars (`Val`), tiles, `()`, and tuples or arrays of them; make a device value of a number \
            with `.val()`, read a variable with `.get()`"
)]
pub trait MergeIf<K>: Sized {
    /// Whether it holds no device value.
    const EMPTY: bool;
    /// The value of the `if`, of those of its arms.
    fn merge(then: Self, otherwise: Self, results: &mut Merge) -> Self;
}

#[diagnostic::do_not_recommend]
impl<T> MergeIf<Host> for T {
    const EMPTY: bool = true;
    fn merge(then: Self, _: Self, _: &mut Merge) -> Self {
        then
    }
}

#[diagnostic::do_not_recommend]
impl MergeIf<Device> for () {
    const EMPTY: bool = true;
    fn merge(_: (), _: (), _: &mut Merge) {}
}

/// The type of an expression that never yields a value.
type Never = <fn() -> ! as Returns>::Value;

/// The type a function pointer returns.
pub trait Returns {
    /// It.
    type Value;
}

impl<R> Returns for fn() -> R {
    type Value = R;
}

#[diagnostic::do_not_recommend]
impl MergeIf<Device> for Never {
    const EMPTY: bool = true;
    fn merge(then: Self, _: Self, _: &mut Merge) -> Self {
        then
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> MergeIf<Device> for Val<T> {
    const EMPTY: bool = false;
    fn merge(then: Self, otherwise: Self, results: &mut Merge) -> Self {
        results.one(then, otherwise)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Element> MergeIf<Device> for Tile<T> {
    const EMPTY: bool = false;
    fn merge(then: Self, otherwise: Self, results: &mut Merge) -> Self {
        results.one(then, otherwise)
    }
}

#[diagnostic::do_not_recommend]
impl<T: MergeIf<Device>, const N: usize> MergeIf<Device> for [T; N] {
    const EMPTY: bool = T::EMPTY;
    fn merge(then: Self, otherwise: Self, results: &mut Merge) -> Self {
        let mut otherwise = otherwise.into_iter();
        then.map(|a| match otherwise.next() {
            Some(b) => T::merge(a, b, results),
            None => a,
        })
    }
}

macro_rules! merge_tuple {
    ($($t:ident $a:ident $b:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<$($t: MergeIf<Device>),*> MergeIf<Device> for ($($t,)*) {
            const EMPTY: bool = $($t::EMPTY)&&*;
            fn merge(($($a,)*): Self, ($($b,)*): Self, results: &mut Merge) -> Self {
                ($($t::merge($a, $b, results),)*)
            }
        }
    };
}
merge_tuple!(A a0 a1);
merge_tuple!(A a0 a1 B b0 b1);
merge_tuple!(A a0 a1 B b0 b1 C c0 c1);
merge_tuple!(A a0 a1 B b0 b1 C c0 c1 D d0 d1);
merge_tuple!(A a0 a1 B b0 b1 C c0 c1 D d0 d1 E e0 e1);
merge_tuple!(A a0 a1 B b0 b1 C c0 c1 D d0 d1 E e0 e1 F f0 f1);

/// The results of a device `if`, as they are collected.
#[derive(Debug)]
pub struct Merge {
    loc: Loc,
    then: ScopeId,
    otherwise: ScopeId,
    results: Vec<(ValueId, ValueId, ValueId)>,
}

impl Merge {
    /// One result of the `if`: a new value that is `then` or `otherwise`.
    fn one<V: FromRaw>(&mut self, then: V, otherwise: V) -> V {
        let (then, otherwise) = (then.to_raw(), otherwise.to_raw());
        let a = yielded(then, self.then, self.loc);
        let b = yielded(otherwise, self.otherwise, self.loc);
        let (ty, other) = (rt::type_of(then, self.loc), rt::type_of(otherwise, self.loc));
        if ty != other {
            raise(TraceError::new(
                self.loc,
                format!("an `if` whose arms yield a {ty} and a {other}"),
                "both arms must yield tiles of one length",
            ));
        }
        let out = rt::fresh(ty, self.loc);
        self.results.push((out.id, a, b));
        V::from_raw(out)
    }
}

/// Checks that a value exists at the end of an arm, which is closed already.
fn yielded(value: Raw, arm: ScopeId, loc: Loc) -> ValueId {
    let thing = if value.len.is_some() { Thing::Tile } else { Thing::Value };
    attempt(loc, |t| {
        t.same_trace(value.trace, thing, loc)?;
        let made = t.values[value.id.index()];
        let scope = t.resolve(made.scope);
        match scope == arm || t.is_open(scope) {
            true => Ok(value.id),
            false => Err(escape(t, thing, loc, made.loc, scope)),
        }
    })
}

/// Ends an `if` with both arms.
pub fn merge<K, T: MergeIf<K>>(c: If<K>, then: Arm<T>, otherwise: Arm<T>) -> T {
    // Without `break` in the arms only a device arm that panicked yields nothing.
    match merge_or_exit(c, then, otherwise) {
        Some(value) => value,
        None => unreachable!("an arm that nothing leaves yields a value"),
    }
}

/// Ends an `if` with both arms, in which `break` or `continue` stands. `None`: what follows is never reached.
pub fn merge_or_exit<K, T: MergeIf<K>>(c: If<K>, then: Arm<T>, otherwise: Arm<T>) -> Option<T> {
    let loc = c.loc;
    let (cond, then_arm, open) = match c.state {
        State::Now(cond) => return taken(if cond { then } else { otherwise }),
        State::Later { cond, then, open } => (cond, then, open),
    };
    let (Some(first), Some(open)) = (then_arm, open) else { return None };
    match (then, otherwise) {
        (Arm::Value(a), Arm::Value(b)) => {
            let second = close(open);
            let mut merge = Merge { loc, then: first.scope, otherwise: second.scope, results: vec![] };
            let value = T::merge(a, b, &mut merge);
            push(cond, first.region, second.region, merge.results, loc);
            Some(value)
        }
        // What only one arm reaches needs no result of the `if`: it follows the `if`.
        (Arm::Value(a), _) if !T::EMPTY => {
            let second = close(open);
            push(negated(cond, loc), second.region, Region::default(), vec![], loc);
            attempt(loc, |t| {
                t.splice_scope(first.scope, first.region);
                Ok(())
            });
            Some(a)
        }
        (_, Arm::Value(b)) if !T::EMPTY => {
            let scope = open.scope();
            let second = open.close();
            push(cond, first.region, Region::default(), vec![], loc);
            attempt(loc, |t| {
                t.splice_scope(scope, second);
                Ok(())
            });
            Some(b)
        }
        (then, otherwise) => {
            push(cond, first.region, close(open).region, vec![], loc);
            taken(then).or(taken(otherwise))
        }
    }
}

fn taken<T>(arm: Arm<T>) -> Option<T> {
    match arm {
        Arm::Value(value) => Some(value),
        Arm::Exited | Arm::Skipped => None,
    }
}

fn negated(cond: ValueId, loc: Loc) -> ValueId {
    let raw = attempt(loc, |t| Ok(t.raw(cond)));
    rt::unary::<Val<bool>>(UnaryOp::Not, raw, loc).to_raw().id
}

fn push(cond: ValueId, then: Region, otherwise: Region, results: Vec<(ValueId, ValueId, ValueId)>, loc: Loc) {
    rt::push(ControlOp::If { cond, then, otherwise, results }, loc);
}

/// Ends an `if` without `else`.
pub fn end_if<K>(c: If<K>, then: Arm<()>) {
    end_if_or_exit(c, then);
}

/// Ends an `if` without `else`, in which `break` or `continue` stands. `None`: what follows is never reached.
pub fn end_if_or_exit<K>(c: If<K>, then: Arm<()>) -> Option<()> {
    match c.state {
        State::Now(false) => Some(()),
        State::Now(true) => taken(then),
        State::Later { cond, open, .. } => {
            let region = open.map(OpenRegion::close).unwrap_or_default();
            push(cond, region, Region::default(), vec![], c.loc);
            Some(())
        }
    }
}
