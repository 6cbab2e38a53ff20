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
    } else if let OpKind::Comm(
        CommOp::SendPackets(SendPackets { target, .. }) | CommOp::SendLl(SendLl { target, .. }),
    ) = kind
    {
        *target = retarget(*target, new);
    } else if let OpKind::Comm(
        CommOp::Put(Put { parcel, .. })
        | CommOp::BulkCopy(BulkCopy { parcel, .. })
        | CommOp::Signal(Signal { parcel, .. }),
    ) = kind
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
        (
            Slot::Index,
            OpKind::Comm(CommOp::SendLl(SendLl { index, .. }) | CommOp::ReadLl(ReadLl { index, .. })),
        ) => Some(index),
        (
            Slot::Value,
            OpKind::Comm(CommOp::SendLl(SendLl { epoch, .. }) | CommOp::ReadLl(ReadLl { epoch, .. })),
        ) => Some(epoch),
        (Slot::From, OpKind::Comm(CommOp::ReadLl(ReadLl { from, .. }))) => Some(from),
        (Slot::Mask, OpKind::Comm(CommOp::ReadLl(ReadLl { mask, .. }))) => Some(mask),
        (Slot::Count, OpKind::Comm(CommOp::WaitAll(WaitAll { count, .. }))) => Some(count),
        (Slot::From, OpKind::Comm(CommOp::Wait(Wait { from, .. }))) => Some(from),
        (Slot::From, OpKind::Comm(CommOp::TakePackets(TakePackets { tiles, .. }))) => {
            tiles.first_mut().map(|t| &mut t.from)
        }
        (Slot::Index, OpKind::Comm(CommOp::TakePackets(TakePackets { tiles, .. }))) => {
            tiles.first_mut().map(|t| &mut t.index)
        }
        (
            Slot::Mask,
            OpKind::Comm(
                CommOp::TakePackets(TakePackets { mask, .. })
                | CommOp::WaitAll(WaitAll { only: Some(mask), .. }),
            )
            | OpKind::Memory(MemoryOp::Tally { mask, .. }),
        ) => Some(mask),
        (
            Slot::Index,
            OpKind::Memory(
                MemoryOp::Load { index, .. }
                | MemoryOp::LoadMasked { index, .. }
                | MemoryOp::Gather { index, .. }
                | MemoryOp::Store { index, .. }
                | MemoryOp::Scatter { index, .. }
                | MemoryOp::Atomic { index, .. }
                | MemoryOp::Tally { index, .. },
            )
            | OpKind::Comm(
                CommOp::Put(Put { index, .. })
                | CommOp::BulkCopy(BulkCopy { index, .. })
                | CommOp::Signal(Signal { index, .. })
                | CommOp::Wait(Wait { index, .. })
                | CommOp::WaitAll(WaitAll { index, .. })
                | CommOp::SendPackets(SendPackets { index, .. }),
            ),
        ) => Some(index),
        (
            Slot::Value,
            OpKind::Memory(
                MemoryOp::Store { value, .. }
                | MemoryOp::Scatter { value, .. }
                | MemoryOp::Atomic { value, .. },
            )
            | OpKind::Comm(
                CommOp::Put(Put { value, .. })
                | CommOp::Signal(Signal { value, .. })
                | CommOp::Wait(Wait { value, .. })
                | CommOp::WaitAll(WaitAll { value, .. })
                | CommOp::SendPackets(SendPackets { value, .. }),
            ),
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
        Some(_) => define_before(kernel, op, ty, |out| ValueOp::Splat { out, a: scalar }),
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
            OpKind::Control(ControlOp::For { var, .. }) if is(var) && tree.enclosing(op).any(|o| o == id) => {
                value = Some(*var)
            }
            OpKind::Control(ControlOp::VarDecl { var, .. })
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
            Ok(define_before(kernel, op, ty, |out| ControlOp::VarGet { out, var }))
        }
        (None, None) => Err(MutateError::NoSuchName { name: name.into(), loc: kernel.op(op).loc }),
    }
}
