//! Accesses to all ranks' memory at once: who can have them, how wide they are, and the stores that need a fence.

use std::collections::HashSet;

use super::Program;
use crate::family::Target;
use crate::ir::{CommOp, Kernel, MemoryOp, OpId, OpKind, Place, Put, ReceiptId, ValueId, Wait, WaitAll};
use crate::print::text::PrintError;

/// Refuses a kernel that reaches all ranks at once, for a target that cannot.
pub(crate) fn check(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    if target.has_multimem() {
        return Ok(());
    }
    let Some(param) = kernel.multicast().into_iter().next() else { return Ok(()) };
    let buffer = kernel.params[param.index()].name.clone();
    Err(PrintError::NoMultimem { kernel: kernel.variant.clone(), buffer, target })
}

/// The stores by the pointer of one rank that come after a wait and before a read of all ranks at once, which that wait's receipt is
/// for. The wait has a proxy fence behind it; these stores need one of their own.
pub(crate) fn fenced_stores(p: &Program) -> HashSet<OpId> {
    let mut fenced = HashSet::new();
    for &load in p.ops() {
        let OpKind::Memory(MemoryOp::Load { place: Place::All(param, _), receipt, .. }) =
            p.kernel.op(load).kind
        else {
            continue;
        };
        let wait =
            p.ops().iter().copied().find(|&id| receipt.is_some() && receipt_of(p.kernel, id) == receipt);
        // What another group of the rank stores comes between by way of a later wait for it.
        let heard =
            p.ops().iter().any(|&id| hears(p.kernel, id) && Some(id) != wait && between(p, wait, id, load));
        let stores = |id: &OpId| {
            let multicast = sixteen(p.kernel, *id).is_some();
            let accesses = p.kernel.op(*id).kind.accesses();
            !multicast && accesses.iter().any(|a| a.access.stores() && a.place.param() == Some(param))
        };
        let stores = p.ops().iter().copied().filter(stores);
        fenced.extend(stores.filter(|&store| heard || between(p, wait, store, load)));
    }
    fenced
}

/// The receipt that a wait makes.
fn receipt_of(kernel: &Kernel, id: OpId) -> Option<ReceiptId> {
    match kernel.op(id).kind {
        OpKind::Comm(CommOp::Wait(Wait { receipt, .. }) | CommOp::WaitAll(WaitAll { receipt, .. })) => {
            Some(receipt)
        }
        OpKind::Comm(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Value(_) | OpKind::Control(_) => {
            None
        }
    }
}

/// Whether an operation orders what another group did before what comes after it.
fn hears(kernel: &Kernel, id: OpId) -> bool {
    let block = matches!(
        kernel.op(id).kind,
        OpKind::Comm(CommOp::BlockWait(_)) | OpKind::Memory(MemoryOp::Ticket { .. })
    );
    block || receipt_of(kernel, id).is_some()
}

/// Whether an operation of a role may run after a wait, which stands before a load, and before that load.
fn between(p: &Program, wait: Option<OpId>, id: OpId, load: OpId) -> bool {
    let [at, end] = [id, load].map(|op| p.position(op));
    if at.role != end.role {
        return false;
    }
    let Some(wait) = wait else { return true };
    let again = |l: &OpId| {
        p.kernel.op(*l).kind.is_loop() && p.inside(id, *l) && p.inside(load, *l) && !p.inside(wait, *l)
    };
    at.order > p.position(wait).order && (at.order < end.order || p.ops().iter().any(again))
}

/// The tile that an operation reads of all ranks at once or puts to them, whose lanes have 16 bytes each.
pub(crate) fn sixteen(kernel: &Kernel, id: OpId) -> Option<ValueId> {
    match kernel.op(id).kind {
        OpKind::Memory(MemoryOp::Load { out, place: Place::All(..), .. }) => Some(out),
        OpKind::Comm(CommOp::Put(Put { parcel, value, .. })) => {
            kernel.parcels[parcel.index()].multicast.then_some(value)
        }
        OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Value(_) | OpKind::Control(_) => {
            None
        }
    }
}
