//! What ranks and blocks say to each other: epochs, signals, and signals of what earlier launches did.

use crate::family::Target;
use crate::ir::{
    self, CommOp, Dot, Kernel, MatrixOp, OpId, OpKind, ParamId, ParamKind, Signal, SignalOrder, ValueId,
    ValueOp,
};

/// The epoch that an operation begins.
pub(crate) fn begun(kernel: &Kernel, id: OpId) -> Option<ValueId> {
    if let OpKind::Value(ValueOp::Epoch { out, advance: true, .. }) = kernel.op(id).kind {
        return Some(out);
    }
    None
}

/// Whether pairs of blocks multiply: where some products are of pairs, all are.
pub(crate) fn is_paired(kernel: &Kernel) -> bool {
    kernel.ops.iter().any(|op| matches!(op.kind, OpKind::Matrix(MatrixOp::Dot(Dot { paired: true, .. }))))
}

/// Whether blocks ask by themselves if the world is aborted: ranks say something to each other, and no epoch tells.
pub(crate) fn asks_status(kernel: &Kernel) -> bool {
    talks(kernel) && !kernel.prologue.ops.iter().any(|&id| begun(kernel, id).is_some())
}

/// Whether ranks say anything to each other.
fn talks(kernel: &Kernel) -> bool {
    let mut kinds = kernel.params.iter().map(|p| p.kind);
    kinds.any(|kind| matches!(kind, ParamKind::Flags | ParamKind::Counts | ParamKind::Messages(_)))
}

/// The role that signals flags between blocks, if it is one.
pub(crate) fn signaller(kernel: &Kernel, flag: ParamId) -> Option<usize> {
    let signals = |role: &usize| {
        let mut found = false;
        kernel.walk(&kernel.roles[*role].body, &mut |_, op| {
            let mut sent = op.kind.accesses().into_iter().filter(|a| a.access.is_awaited());
            found |= sent.any(|a| a.place.param() == Some(flag));
        });
        found
    };
    let mut roles = (0..kernel.roles.len()).filter(signals);
    roles.next().filter(|_| roles.next().is_none())
}

/// The signal of a role for which that holds, if there is one.
pub(crate) fn released_by(kernel: &Kernel, target: Target, role: usize) -> Option<OpId> {
    // Blocks that come from another role have done something there, warps beside a role are the last of a block; and before the launch before is over nothing is done.
    let apart = matches!(target, Target::Cuda(_))
        && !kernel.begins_early
        && kernel.beside_warps() == 0
        && kernel.kinds_of_ranks().len() == 1; // which blocks these are must not depend on the rank
    if !apart || kernel.joining(role).next().is_some() {
        return None;
    }
    let ops = &kernel.roles[role].body.ops;
    let id = *ops.iter().find(|id| !matches!(kernel.op(**id).kind, OpKind::Value(_)))?;
    let OpKind::Comm(CommOp::Signal(Signal { parcel, flag, order: SignalOrder::Release, .. })) =
        kernel.op(id).kind
    else {
        return None;
    };
    let parcel = &kernel.parcels[parcel.index()];
    (parcel.bare && !kernel.counts(flag) && matches!(parcel.target, ir::Target::Mask(_))).then_some(id)
}

/// The same of all roles.
pub(crate) fn released(kernel: &Kernel, target: Target) -> Vec<OpId> {
    (0..kernel.roles.len()).filter_map(|role| released_by(kernel, target, role)).collect()
}
