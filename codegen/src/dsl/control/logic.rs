//! `&&` and `||`.

use crate::dsl::trace::rt::{self, OpenRegion, RegionKind};
use crate::dsl::values::{FromRaw, IntoVal, Raw, Val, val::splat};
use crate::dsl::{Tile, TileVar, Var};
use crate::ir::{BinaryOp, ControlOp, Loc, Region, ValueId};

/// An operand of `&&` and `||`.
#[diagnostic::on_unimplemented(
    message = "`&&` and `||` in a kernel take `bool`, `Val<bool>` and `Tile<bool>`, not `{Self}`",
    label = "not a truth value"
)]
pub trait Truth {
    /// `bool`, `Val<bool>` or `Tile<bool>`.
    type Value;
    /// The current value.
    #[track_caller]
    fn truth(&self) -> Self::Value;
}

macro_rules! truths {
    ($($t:ty => $value:ty, |$s:ident| $read:expr;)*) => {
        $(#[diagnostic::do_not_recommend]
        impl Truth for $t {
            type Value = $value;
            #[track_caller]
            fn truth(&self) -> $value {
                let $s = self;
                $read
            }
        })*
    };
}
truths! {
    bool => bool, |s| *s;
    Val<bool> => Val<bool>, |s| *s;
    Var<bool> => Val<bool>, |s| s.get();
    Tile<bool> => Tile<bool>, |s| *s;
    TileVar<bool> => Tile<bool>, |s| s.get();
}

/// The value of an operand.
#[track_caller]
pub fn truth<T: Truth<Value = V> + ?Sized, V>(operand: &T) -> V {
    operand.truth()
}

/// `a && ..` or `a || ..` in progress; `L` is the type of the left side.
#[derive(Debug)]
pub struct Logic<L> {
    left: L,
    is_and: bool,
    loc: Loc,
    /// The region of the right side, which the device evaluates only when the left side does not decide.
    open: Option<OpenRegion>,
}

/// Begins `a && ..`.
#[track_caller]
pub fn and<T: Truth<Value = L> + ?Sized, L>(left: &T) -> Logic<L> {
    Logic { left: left.truth(), is_and: true, loc: Loc::caller(), open: None }
}

/// Begins `a || ..`.
#[track_caller]
pub fn or<T: Truth<Value = L> + ?Sized, L>(left: &T) -> Logic<L> {
    Logic { left: left.truth(), is_and: false, loc: Loc::caller(), open: None }
}

/// The left side of `&&` and `||`.
pub trait LeftSide: Copy {
    /// Whether the right side is to be evaluated, and in which region.
    #[doc(hidden)]
    fn enter(self, is_and: bool, loc: Loc) -> (bool, Option<OpenRegion>);
}

impl LeftSide for bool {
    fn enter(self, is_and: bool, _: Loc) -> (bool, Option<OpenRegion>) {
        (self == is_and, None)
    }
}

impl LeftSide for Val<bool> {
    fn enter(self, is_and: bool, loc: Loc) -> (bool, Option<OpenRegion>) {
        rt::use_value(self.to_raw(), loc);
        let kind = if is_and { RegionKind::Then } else { RegionKind::Else };
        (true, Some(OpenRegion::open(kind, loc)))
    }
}

impl LeftSide for Tile<bool> {
    fn enter(self, _: bool, _: Loc) -> (bool, Option<OpenRegion>) {
        (true, None)
    }
}

impl<L: LeftSide> Logic<L> {
    /// Whether the right side is to be evaluated now.
    pub fn needs_right(&mut self) -> bool {
        let (needed, open) = self.left.enter(self.is_and, self.loc);
        self.open = open;
        needed
    }
}

/// Sides of `&&` and `||` that go together.
#[diagnostic::on_unimplemented(
    message = "`&&` and `||` cannot combine `{Self}` with `{R}`",
    note = "a host `bool` on the left decides whether the right side is evaluated at all, so it cannot stand beside a \
            tile: use a host `if`"
)]
pub trait LogicWith<R>: Sized {
    /// Type of the result.
    type Out;
    /// The result, of the right side if it was evaluated.
    #[doc(hidden)]
    fn join(logic: Logic<Self>, right: Option<R>) -> Self::Out;
}

/// Ends `a && b` or `a || b`.
pub fn logic<L: LogicWith<R>, R>(logic: Logic<L>, right: Option<R>) -> L::Out {
    L::join(logic, right)
}

#[diagnostic::do_not_recommend]
impl LogicWith<bool> for bool {
    type Out = bool;
    fn join(logic: Logic<bool>, right: Option<bool>) -> bool {
        right.unwrap_or(logic.left)
    }
}

#[diagnostic::do_not_recommend]
impl LogicWith<Val<bool>> for bool {
    type Out = Val<bool>;
    fn join(logic: Logic<bool>, right: Option<Val<bool>>) -> Val<bool> {
        right.unwrap_or_else(|| constant(logic.left, logic.loc))
    }
}

macro_rules! device_logic {
    ($($left:ty, $right:ty => $out:ty, |$r:ident, $loc:ident| $raw:expr;)*) => {
        $(#[diagnostic::do_not_recommend]
        impl LogicWith<$right> for $left {
            type Out = $out;
            fn join(logic: Logic<Self>, right: Option<$right>) -> $out {
                let $loc = logic.loc;
                // Only a host value on the left leaves the right side out.
                let right = right.map(|$r| $raw);
                device(logic.left.to_raw(), logic.is_and, $loc, logic.open, right)
            }
        })*
    };
}
device_logic! {
    Val<bool>, bool => Val<bool>, |r, loc| constant(r, loc).to_raw();
    Val<bool>, Val<bool> => Val<bool>, |r, _loc| r.to_raw();
    Val<bool>, Tile<bool> => Tile<bool>, |r, _loc| r.to_raw();
    Tile<bool>, bool => Tile<bool>, |r, loc| constant(r, loc).to_raw();
    Tile<bool>, Val<bool> => Tile<bool>, |r, _loc| r.to_raw();
    Tile<bool>, Tile<bool> => Tile<bool>, |r, _loc| r.to_raw();
}

fn constant(value: bool, loc: Loc) -> Val<bool> {
    crate::dsl::values::val::host(value, loc)
}

fn device<V: FromRaw>(left: Raw, is_and: bool, loc: Loc, open: Option<OpenRegion>, right: Option<Raw>) -> V {
    let Some(right) = right else { return V::from_raw(left) };
    let op = if is_and { BinaryOp::And } else { BinaryOp::Or };
    let Some(open) = open else { return rt::binary(op, left, right, loc) };
    if open.is_pure() {
        open.splice();
        return rt::binary(op, left, right, loc);
    }
    // The right side has effects or may fail (a load out of bounds): the device must not run it for nothing.
    let cond = rt::use_value(left, loc);
    let ty = rt::type_of(right, loc);
    let evaluated = (open, rt::use_value(right, loc));
    let evaluated: (Region, ValueId) = (evaluated.0.close(), evaluated.1);
    let kind = if is_and { RegionKind::Else } else { RegionKind::Then };
    let open = OpenRegion::open(kind, loc);
    let decided = constant(!is_and, loc);
    let decided = match ty.len {
        None => decided.to_raw(),
        Some(len) => splat(decided.val(), len).to_raw(),
    };
    let decided = (open.close(), decided.id);
    let (then, otherwise) = if is_and { (evaluated, decided) } else { (decided, evaluated) };
    let out = rt::fresh(ty, loc);
    let results = vec![(out.id, then.1, otherwise.1)];
    rt::push(ControlOp::If { cond, then: then.0, otherwise: otherwise.0, results }, loc);
    V::from_raw(out)
}
