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
        return;
    }
    match aim(kind) {
        Some(Aim::Own(target)) => *target = retarget(*target, new),
        Some(Aim::Parcel(parcel)) => {
            let old = kernel.parcels[parcel.index()].clone();
            *parcel = ParcelId(kernel.parcels.len() as u32);
            kernel.parcels.push(Parcel { target: retarget(old.target, new), loc: *loc, ..old });
        }
        None => {}
    }
}

/// Where an operation has its target.
enum Aim<'a> {
    Own(&'a mut Target),
    Parcel(&'a mut ParcelId),
}

fn aim(kind: &mut OpKind) -> Option<Aim<'_>> {
    let OpKind::Comm(op) = kind else { return None };
    match op {
        CommOp::SendMessages(SendMessages { target, .. }) => Some(Aim::Own(target)),
        CommOp::Put(Put { parcel, .. })
        | CommOp::PutMatrix(PutMatrix { parcel, .. })
        | CommOp::BulkCopy(BulkCopy { parcel, .. })
        | CommOp::Signal(Signal { parcel, .. }) => Some(Aim::Parcel(parcel)),
        any!(waits, far) | CommOp::ReceiveMessages(_) | CommOp::BlockSignal(_) => None,
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
    let slots = match kind {
        OpKind::Memory(op) => memory_slots(op),
        OpKind::Comm(op) => comm_slots(op),
        OpKind::Matrix(op) => matrix_slots(op),
        OpKind::Value(_) | OpKind::Control(_) => return None,
    };
    match slot {
        Slot::Index => slots.index,
        Slot::Value => slots.value,
        Slot::Count => slots.count,
        Slot::From => slots.from,
        Slot::Mask => slots.mask,
        Slot::Target => None,
    }
}

/// The fields that an operation has for slots.
#[derive(Default)]
struct Slots<'a> {
    index: Option<&'a mut ValueId>,
    value: Option<&'a mut ValueId>,
    count: Option<&'a mut ValueId>,
    from: Option<&'a mut ValueId>,
    mask: Option<&'a mut ValueId>,
}

/// The rank whose instance of a window is read.
fn rank_of(place: &mut Place) -> Option<&mut ValueId> {
    match place {
        Place::Peer(_, rank) => Some(rank),
        Place::Param(_) | Place::Shared(_) | Place::All(..) => None,
    }
}

fn memory_slots(op: &mut MemoryOp) -> Slots<'_> {
    let none = Slots::default();
    match op {
        MemoryOp::Load { index, place, .. }
        | MemoryOp::LoadMasked { index, place, .. }
        | MemoryOp::Gather { index, place, .. } => Slots { index: Some(index), from: rank_of(place), ..none },
        MemoryOp::Store { index, value, .. }
        | MemoryOp::Scatter { index, value, .. }
        | MemoryOp::Atomic { index, value, .. } => Slots { index: Some(index), value: Some(value), ..none },
        MemoryOp::Ticket { index, count, .. } => Slots { index: Some(index), count: Some(count), ..none },
        MemoryOp::Tally { index, mask, .. } => Slots { index: Some(index), mask: Some(mask), ..none },
    }
}

fn matrix_slots(op: &mut MatrixOp) -> Slots<'_> {
    let none = Slots::default();
    match op {
        MatrixOp::Dot(Dot { a, count, .. }) => Slots { index: Some(&mut a.row), count: Some(count), ..none },
        MatrixOp::LoadMatrix(LoadMatrix { at, .. }) => {
            Slots { index: Some(&mut at.row), from: rank_of(&mut at.place), ..none }
        }
        MatrixOp::LoadRow(LoadRow { index, .. }) => Slots { index: Some(index), ..none },
        MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => none,
        MatrixOp::StoreMatrix(StoreMatrix { to, value, .. }) => {
            Slots { index: Some(&mut to.row), value: Some(value), ..none }
        }
    }
}

fn comm_slots(op: &mut CommOp) -> Slots<'_> {
    let none = Slots::default();
    match op {
        CommOp::Put(Put { index, value, .. })
        | CommOp::Signal(Signal { index, value, .. })
        | CommOp::BlockSignal(BlockSignal { index, value, .. }) => {
            Slots { index: Some(index), value: Some(value), ..none }
        }
        CommOp::SendMessages(SendMessages { index, value, epoch, count, .. }) => {
            let value = Some(epoch.as_mut().unwrap_or(value));
            Slots { index: Some(index), value, count: count.as_mut(), ..none }
        }
        CommOp::PutMatrix(PutMatrix { to, value, .. }) => {
            Slots { index: Some(&mut to.row), value: Some(value), ..none }
        }
        CommOp::BulkCopy(BulkCopy { index, .. }) => Slots { index: Some(index), ..none },
        CommOp::Wait(Wait { index, from, value, .. }) => {
            Slots { index: Some(index), value: Some(value), from: Some(from), ..none }
        }
        CommOp::BlockWait(BlockWait { index, count, from, value, .. }) => {
            Slots { index: Some(index), value: Some(value), count: Some(count), from: Some(from), ..none }
        }
        CommOp::WaitAll(WaitAll { index, count, value, only, .. }) => {
            Slots { index: Some(index), value: Some(value), count: Some(count), mask: only.as_mut(), ..none }
        }
        CommOp::ReceiveMessages(ReceiveMessages { mask, tiles, epoch, count, .. }) => {
            let (index, from) = tiles.first_mut().map(|t| (&mut t.index, &mut t.from)).unzip();
            Slots { index, value: epoch.as_mut(), from, mask: Some(mask), count: count.as_mut() }
        }
        CommOp::FarPut(FarPut { index, .. }) => Slots { index: Some(index), ..none },
        CommOp::FarPublish(FarPublish { counter, adds, .. }) => {
            Slots { index: Some(counter), value: Some(adds), ..none }
        }
        CommOp::FarWait(FarWait { counter, count, from, value, .. }) => {
            Slots { index: Some(counter), value: Some(value), count: Some(count), from: Some(from), ..none }
        }
        CommOp::FarSettle(_) => none,
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
        if let Some(counter) = kind.counter().filter(is)
            && tree.enclosing(op).any(|o| o == id)
        {
            value = Some(counter);
        } else if let Some(var) = kind.declares()
            && before
            && kernel.vars[var.index()].name.as_deref() == Some(name)
        {
            variable = Some(var);
        } else if before {
            value = kind.outs().into_iter().rfind(is).or(value);
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
