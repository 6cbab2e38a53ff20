//! Numbers of work counters in a role with a loader. The loader draws them, as it is the first one to need them; all other warps take
//! them from it, through shared memory. So both go through the same tiles, and leave the loop together.

use crate::ir::{Kernel, MemoryOp, OpId, OpKind, ParamKind, Region};
use crate::print::analysis::Program;

/// Bytes of the two mbarriers and the number, in whole 16 bytes.
pub(crate) const BYTES: u32 = 32;

/// Whether an operation is an update of a work counter.
pub(crate) fn draws(kernel: &Kernel, op: &MemoryOp) -> bool {
    let MemoryOp::Atomic { place, .. } = op else { return false };
    place.param().is_some_and(|id| kernel.params[id.index()].kind == ParamKind::Counters)
}

/// The updates of work counters in a region whose numbers anything is made of.
pub(crate) fn of(p: &Program, region: &Region) -> Vec<OpId> {
    let mut found = vec![];
    p.kernel.walk(region, &mut |id, op| {
        let OpKind::Memory(memory) = &op.kind else { return };
        let used = op.kind.outs().iter().any(|v| !p.users(*v).is_empty());
        found.extend((used && draws(p.kernel, memory)).then_some(id));
    });
    found
}
