//! Far channels by NCCL's GIN: puts of the GPU itself, which RCCL has under the same names.
//!
//! NCCL waits without a limit for room in a full queue. So a group waits first, within its budget, until there is room for all puts that
//! follow each other at once: a context never has more than [`GIN_DEPTH`] in its queues.

use std::collections::HashMap;

use crate::ir::{CommOp, FarPublish, FarPut, FarReach, Kernel, OpId, OpKind, Region, ValueId};
use crate::print::text::PrintError;

/// Most puts that the queues of a context of GIN hold. No queue may be shorter: NCCL's proxy for InfiniBand has queues for 256. A put
/// takes two entries of GDAKI's, which is asked for twice as many.
pub const GIN_DEPTH: u32 = 256;

/// The place of a put in a burst: puts that follow each other at once, to the same ranks and for the same counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Burst {
    /// Puts of the burst, of its first one; `None` of the others.
    pub puts: Option<u32>,
    /// Whether another put of the burst follows.
    pub more: bool,
}

/// The bursts of a kernel, by their puts.
pub(crate) fn bursts(kernel: &Kernel) -> HashMap<OpId, Burst> {
    let mut found = HashMap::new();
    kernel.roles.iter().for_each(|role| region(kernel, &role.body, &mut found));
    found
}

fn region(kernel: &Kernel, region_of: &Region, found: &mut HashMap<OpId, Burst>) {
    let mut open: Vec<(OpId, &FarPut)> = vec![];
    for &id in &region_of.ops {
        let kind = &kernel.op(id).kind;
        match kind {
            OpKind::Comm(CommOp::FarPut(put)) => {
                if open.last().is_some_and(|(_, last)| !joins(last, put)) {
                    close(&mut open, found);
                }
                open.push((id, put));
            }
            // Between two puts to the same ranks there may be what computes the places of the second.
            OpKind::Value(_) => {}
            OpKind::Comm(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Control(_) => {
                close(&mut open, found);
            }
        }
        kind.regions().into_iter().for_each(|inner| region(kernel, inner, found));
    }
    close(&mut open, found);
}

fn joins(a: &FarPut, b: &FarPut) -> bool {
    (a.peer, a.reach, a.counts, a.counter) == (b.peer, b.reach, b.counts, b.counter)
}

fn close(open: &mut Vec<(OpId, &FarPut)>, found: &mut HashMap<OpId, Burst>) {
    let puts = open.len();
    for (n, (id, _)) in open.drain(..).enumerate() {
        found.insert(id, Burst { puts: (n == 0).then_some(puts as u32), more: n + 1 < puts });
    }
}

/// Whether GIN carries a kernel.
pub(crate) fn check(kernel: &Kernel) -> Result<(), PrintError> {
    if kernel.far_channel().is_none() {
        return Err(PrintError::NothingFar { kernel: kernel.variant.clone() });
    }
    let bursts = bursts(kernel);
    let mut deepest = None;
    for role in &kernel.roles {
        kernel.walk(&role.body, &mut |id, op| {
            let OpKind::Comm(comm) = &op.kind else { return };
            let (counts, ranks, each) = match comm {
                CommOp::FarPut(FarPut { counts, peer, reach, .. }) => {
                    (*counts, reached(kernel, *peer, *reach), bursts[&id].puts.unwrap_or(0))
                }
                CommOp::FarPublish(FarPublish { counts, peer, reach, .. }) if !kernel.far_is_put(*counts) => {
                    (*counts, reached(kernel, *peer, *reach), 1)
                }
                any!(puts, signals, waits, messages)
                | CommOp::FarPublish(_)
                | CommOp::FarWait(_)
                | CommOp::FarSettle(_) => return,
            };
            let puts = u64::from(ranks) * u64::from(each);
            if puts > GIN_DEPTH.into() && deepest.is_none() {
                let counts = kernel.params[counts.index()].name.clone();
                deepest =
                    Some(PrintError::FarDepth { loc: op.loc, counts, ranks, each, puts, depth: GIN_DEPTH });
            }
        });
    }
    deepest.map_or(Ok(()), Err)
}

/// How many ranks something goes to.
fn reached(kernel: &Kernel, peer: Option<ValueId>, reach: FarReach) -> u32 {
    let (_, ranks) = reach.of(kernel);
    if peer.is_some() { 1 } else { ranks - u32::from(reach.others) }
}
