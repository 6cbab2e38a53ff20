//! What code that `#[kernel]` rewrote calls; not for authors.

pub use super::error::fail_at;
pub use super::scope::{Mark, OpenRegion, RegionKind};
pub use super::tracer::active;

use super::scope::Thing;
use super::tracer::{Nameable, attempt, try_current, with};
use crate::dsl::values::{FromRaw, Raw};
use crate::ir::{BinaryOp, CompareOp, Const, Loc, OpId, OpKind, Type, UnaryOp, ValueId};

/// The current place in the trace, if one is going on.
pub fn mark() -> Mark {
    try_current(|t| Mark {
        at: Some((t.id, *t.open.last().expect("the prologue is open"))),
        made: t.yielded.len(),
    })
    .unwrap_or(Mark { at: None, made: 0 })
}

/// Names what was yielded last since the mark, unless it has a name or is a constant.
pub fn name(mark: Mark, name: &str) {
    try_current(|t| {
        if mark.at.map(|m| m.0) != Some(t.id) {
            return;
        }
        let slot = match t.yielded.get(mark.made..).and_then(|new| new.last()) {
            Some(Nameable::Value(v)) if t.constant(*v).is_some() => return,
            Some(Nameable::Value(v)) => &mut t.builder.kernel.values[v.index()].name,
            Some(Nameable::Var(v)) => &mut t.builder.kernel.vars[v.index()].name,
            Some(Nameable::Nothing) | None => return,
        };
        slot.get_or_insert_with(|| name.into());
    });
}

/// The open regions of the current trace from the outermost inwards.
pub fn open_regions() -> Vec<(RegionKind, Loc)> {
    try_current(|t| t.open_scopes().map(|s| (s.kind.clone(), s.loc)).collect()).unwrap_or_default()
}

/// Checks that a value may be used at `loc`, and returns its place in the kernel.
pub fn use_value(value: Raw, loc: Loc) -> ValueId {
    attempt(loc, |t| t.use_value(value.trace, value.id, loc))
}

/// What it is, if that is known while tracing.
pub(in crate::dsl) fn constant(value: Raw, loc: Loc) -> Option<Const> {
    attempt(loc, |t| {
        t.same_trace(value.trace, Thing::Value, loc)?;
        Ok(t.constant(value.id))
    })
}

/// Its type.
pub fn type_of(value: Raw, loc: Loc) -> Type {
    attempt(loc, |t| {
        t.same_trace(value.trace, Thing::Value, loc)?;
        Ok(t.ty(value.id))
    })
}

/// A new value of the innermost open region, which an operation pushed later defines there.
pub fn fresh(ty: Type, loc: Loc) -> Raw {
    with(loc, |t| {
        let v = t.fresh(ty, loc);
        t.raw(v)
    })
}

/// Appends an operation to the innermost open region.
pub fn push(kind: impl Into<OpKind>, loc: Loc) -> OpId {
    with(loc, |t| t.push(kind, loc))
}

/// Comparison of scalars or tiles; scalars are spread to the length of a tile.
pub fn compare<R: FromRaw>(op: CompareOp, a: Raw, b: Raw, loc: Loc) -> R {
    crate::dsl::values::val::compare(op, a, b, loc)
}

/// Arithmetic on scalars or tiles; scalars are spread to the length of a tile.
pub fn binary<R: FromRaw>(op: BinaryOp, a: Raw, b: Raw, loc: Loc) -> R {
    crate::dsl::values::val::binary(op, a, b, loc)
}

/// One-operand arithmetic.
pub fn unary<R: FromRaw>(op: UnaryOp, a: Raw, loc: Loc) -> R {
    crate::dsl::values::val::unary(op, a, loc)
}

/// The constant that a scalar is known to be.
pub fn known(value: Raw, loc: Loc) -> Option<crate::ir::Const> {
    attempt(loc, |t| {
        t.same_trace(value.trace, Thing::Value, loc)?;
        Ok(t.constant(value.id))
    })
}
