//! Reading and changing one operand of an operation.

use super::super::analysis::{Tree, target};
use super::super::*;
use super::edit::{constant, define_before};
use super::{MutateError, Operand, Slot};

/// The value in a slot.
pub(super) fn get(kernel: &mut Kernel, op: OpId, slot: Slot) -> Result<ValueId, MutateError> {
    let found = match slot {
        Slot::Index | Slot::Value | Slot::Count | Slot::From | Slot::Mask => {
            field(&mut kernel.ops[op.index()].kind, slot).copied()
        }
        Slot::Target => target(kernel, &kernel.op(op).kind),
    };
    found.ok_or(MutateError::NoSlot { op: kernel.op(op).kind.name(), slot })
}

/// Puts a value into a slot that [`get`] found. A target changes for this operation only, which leaves its parcel.
pub(super) fn set(kernel: &mut Kernel, op: OpId, slot: Slot, new: ValueId) {
    let Op { kind, loc } = &mut kernel.ops[op.index()];
    if let Some(v) = field(kind, slot) {
        *v = new;
    } else if let OpKind::SendPackets { target, .. } | OpKind::SendLl { target, .. } = kind {
        *target = retarget(*target, new);
    } else if let OpKind::Put { parcel, .. } | OpKind::Copy { parcel, .. } | OpKind::Signal { parcel, .. } =
        kind
    {
        let target = retarget(kernel.parcels[parcel.index()].target, new);
        *parcel = ParcelId(kernel.parcels.len() as u32);
        kernel.parcels.push(Parcel { target, loc: *loc });
    }
}

fn retarget(old: Target, new: ValueId) -> Target {
    match old {
        Target::Rank(_) => Target::Rank(new),
        Target::Mask(_) => Target::Mask(new),
    }
}

/// The slot's field, if the operation has it. Targets are no field of operations but of parcels.
fn field(kind: &mut OpKind, slot: Slot) -> Option<&mut ValueId> {
    match (slot, kind) {
        (Slot::Index, OpKind::SendLl { index, .. } | OpKind::ReadLl { index, .. }) => Some(index),
        (Slot::Value, OpKind::SendLl { epoch, .. } | OpKind::ReadLl { epoch, .. }) => Some(epoch),
        (Slot::From, OpKind::ReadLl { from, .. }) => Some(from),
        (Slot::Mask, OpKind::ReadLl { mask, .. }) => Some(mask),
        (Slot::Count, OpKind::WaitAll { count, .. }) => Some(count),
        (Slot::From, OpKind::Wait { from, .. }) => Some(from),
        (Slot::From, OpKind::TakePackets { tiles, .. }) => tiles.first_mut().map(|t| &mut t.from),
        (Slot::Index, OpKind::TakePackets { tiles, .. }) => tiles.first_mut().map(|t| &mut t.index),
        (
            Slot::Mask,
            OpKind::TakePackets { mask, .. }
            | OpKind::WaitAll { only: Some(mask), .. }
            | OpKind::Tally { mask, .. },
        ) => Some(mask),
        (
            Slot::Index,
            OpKind::Load { index, .. }
            | OpKind::LoadMasked { index, .. }
            | OpKind::Gather { index, .. }
            | OpKind::Store { index, .. }
            | OpKind::Scatter { index, .. }
            | OpKind::Atomic { index, .. }
            | OpKind::Tally { index, .. }
            | OpKind::Put { index, .. }
            | OpKind::Copy { index, .. }
            | OpKind::Signal { index, .. }
            | OpKind::Wait { index, .. }
            | OpKind::WaitAll { index, .. }
            | OpKind::SendPackets { index, .. },
        ) => Some(index),
        (
            Slot::Value,
            OpKind::Store { value, .. }
            | OpKind::Scatter { value, .. }
            | OpKind::Atomic { value, .. }
            | OpKind::Put { value, .. }
            | OpKind::Signal { value, .. }
            | OpKind::Wait { value, .. }
            | OpKind::WaitAll { value, .. }
            | OpKind::SendPackets { value, .. },
        ) => Some(value),
        _ => None,
    }
}

/// A number as a constant of an arithmetic type.
pub(super) fn number(dtype: Dtype, n: i64) -> Result<Const, MutateError> {
    match dtype {
        Dtype::I32 => Ok(Const::I32(n as i32)),
        Dtype::U32 => Ok(Const::U32(n as u32)),
        Dtype::U64 => Ok(Const::U64(n as u64)),
        Dtype::F32 => Ok(Const::F32((n as f32).to_bits())),
        Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => {
            Err(MutateError::NoNumber { ty: Type::scalar(dtype) })
        }
    }
}

/// A number of a type, spread over a tile right before `op` if the type is one.
pub(super) fn number_value(kernel: &mut Kernel, op: OpId, ty: Type, n: i64) -> Result<ValueId, MutateError> {
    let scalar = constant(kernel, number(ty.dtype, n)?);
    Ok(match ty.len {
        None => scalar,
        Some(_) => define_before(kernel, op, ty, |out| OpKind::Splat { out, a: scalar }),
    })
}

/// The value that an operand stands for at `op`, where a value of type `ty` is needed.
pub(super) fn resolve(
    kernel: &mut Kernel,
    op: OpId,
    ty: Type,
    operand: &Operand,
) -> Result<ValueId, MutateError> {
    match operand {
        Operand::Number(n) => number_value(kernel, op, ty, *n),
        Operand::Named(name) => named(kernel, op, name),
    }
}

/// The value called `name` nearest before `op`, or the current value of the variable called so.
pub(super) fn named(kernel: &mut Kernel, op: OpId, name: &str) -> Result<ValueId, MutateError> {
    let tree = Tree::of(kernel);
    let is = |v: &ValueId| kernel.values[v.index()].name.as_deref() == Some(name);
    let mut value = None;
    let mut variable = None;
    for &id in tree.in_order() {
        let kind = &kernel.op(id).kind;
        let before = tree.position(id).is_some_and(|p| p.role.is_none()) || tree.dominates(id, op);
        match kind {
            OpKind::For { var, .. } if is(var) && tree.enclosing(op).any(|o| o == id) => value = Some(*var),
            OpKind::VarDecl { var, .. }
                if before && kernel.vars[var.index()].name.as_deref() == Some(name) =>
            {
                variable = Some(*var);
            }
            _ if before => value = kind.outs().into_iter().rfind(is).or(value),
            _ => {}
        }
    }
    match (value, variable) {
        (Some(v), _) => Ok(v),
        (None, Some(var)) => {
            let ty = kernel.vars[var.index()].ty;
            Ok(define_before(kernel, op, ty, |out| OpKind::VarGet { out, var }))
        }
        (None, None) => Err(MutateError::NoSuchName { name: name.into(), loc: kernel.op(op).loc }),
    }
}
