//! Edits of the tree of regions. Ids stay as they are; positions are looked up afresh for each edit.

use super::super::analysis::{Position, Tree};
use super::super::*;

/// The region an operation stands in.
fn region_mut(kernel: &mut Kernel, position: Position) -> &mut Region {
    match (position.parent, position.role) {
        (Some((holder, n)), _) => kernel.ops[holder.index()].kind.regions_mut().swap_remove(n),
        (None, Some(role)) => &mut kernel.roles[role].body,
        (None, None) => &mut kernel.prologue,
    }
}

/// Operations of the region that `op` stands in, and its index there.
pub(super) fn siblings(kernel: &mut Kernel, op: OpId) -> Option<(&mut Vec<OpId>, usize)> {
    let position = Tree::of(kernel).position(op)?;
    Some((&mut region_mut(kernel, position).ops, position.index))
}

/// Adds an operation right before another.
pub(crate) fn insert_before(kernel: &mut Kernel, op: OpId, kind: impl Into<OpKind>) {
    let loc = kernel.op(op).loc;
    let new = kernel.add_op(kind, loc);
    if let Some((ops, index)) = siblings(kernel, op) {
        ops.insert(index, new);
    }
}

/// Adds an operation that defines a value right before another.
pub(super) fn define_before<K: Into<OpKind>>(
    kernel: &mut Kernel,
    op: OpId,
    ty: Type,
    kind: impl FnOnce(ValueId) -> K,
) -> ValueId {
    let out = kernel.add_value(ty, None);
    insert_before(kernel, op, kind(out));
    out
}

/// Adds a constant at the start of the prologue, where everything sees it.
pub(crate) fn constant(kernel: &mut Kernel, value: Const) -> ValueId {
    let out = kernel.add_value(Type::scalar(value.dtype()), None);
    let id = kernel.add_op(ValueOp::Const { out, value }, kernel.loc);
    kernel.prologue.ops.insert(0, id);
    out
}

/// Takes an operation out of its region; it stays in the arena, where nothing reaches it.
pub(super) fn remove(kernel: &mut Kernel, op: OpId) {
    if let Some((ops, index)) = siblings(kernel, op) {
        ops.remove(index);
    }
}

/// Moves an operation to right before another one.
pub(crate) fn move_before(kernel: &mut Kernel, op: OpId, before: OpId) {
    remove(kernel, op);
    if let Some((ops, index)) = siblings(kernel, before) {
        ops.insert(index, op);
    }
}

/// Puts an operation into the first arm of a new `If`.
pub(super) fn wrap_in_if(kernel: &mut Kernel, op: OpId, cond: ValueId) {
    let loc = kernel.op(op).loc;
    let then = Region { ops: vec![op] };
    if let Some(position) = Tree::of(kernel).position(op) {
        let branch =
            kernel.add_op(ControlOp::If { cond, then, otherwise: Region::default(), results: vec![] }, loc);
        region_mut(kernel, position).ops[position.index] = branch;
    }
}
