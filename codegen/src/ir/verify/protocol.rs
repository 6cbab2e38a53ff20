//! Receipts: reading what peers write needs a wait before it, on a flag that covers the buffer.

use std::collections::{HashMap, HashSet};

use super::*;

pub(super) fn check(report: &mut Report<'_>, tree: &Tree) {
    let covered = covered_buffers(report.kernel, tree);
    let mut waits: HashMap<ReceiptId, OpId> = HashMap::new();
    for &id in tree.in_order() {
        let op = report.kernel.op(id);
        if let Some((receipt, flag)) = waited(&op.kind) {
            let named = report.kernel.receipts[receipt.index()].flag;
            if named != flag {
                let (waited, named) = (report.param(flag).name.clone(), report.param(named).name.clone());
                report.add(op.loc, Problem::ReceiptFlag { waited, named });
            }
            match waits.get(&receipt) {
                Some(&first) => {
                    report.add(op.loc, Problem::ReceiptTwice { first: report.kernel.op(first).loc })
                }
                None => drop(waits.insert(receipt, id)),
            }
        }
    }
    for &id in tree.in_order() {
        for (place, receipt) in loaded(&report.kernel.op(id).kind) {
            read(report, tree, id, place, receipt, &waits, &covered);
        }
    }
}

/// The receipt that a wait yields, and its flags.
fn waited(kind: &OpKind) -> Option<(ReceiptId, ParamId)> {
    let OpKind::Comm(op) = kind else { return None };
    match op {
        CommOp::Wait(Wait { receipt, flag, .. }) | CommOp::WaitAll(WaitAll { receipt, flag, .. }) => {
            Some((*receipt, *flag))
        }
        CommOp::FarWait(FarWait { receipt, counts, .. }) => Some((*receipt, *counts)),
        any!(puts, signals, messages)
        | CommOp::BlockWait(_)
        | CommOp::FarPut(_)
        | CommOp::FarPublish(_)
        | CommOp::FarSettle(_) => None,
    }
}

/// What an operation reads, each with the receipt that it has.
fn loaded(kind: &OpKind) -> Vec<(Place, Option<ReceiptId>)> {
    match kind {
        OpKind::Memory(op) => loaded_elements(op).into_iter().collect(),
        OpKind::Matrix(op) => match op {
            MatrixOp::Dot(Dot { a, b, .. }) => {
                let list = [a.list, a.scales, b.scales].into_iter().flatten();
                let list = list.map(|list| (Place::Param(list), None));
                [(a.place, a.receipt), (b.place, b.receipt)].into_iter().chain(list).collect()
            }
            MatrixOp::LoadMatrix(LoadMatrix { at, .. }) => vec![(at.place, at.receipt)],
            MatrixOp::LoadRow(LoadRow { place, receipt, list, .. }) => {
                let list = list.map(|list| (Place::Param(list.param), None));
                [(*place, *receipt)].into_iter().chain(list).collect()
            }
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) | MatrixOp::StoreMatrix(_) => vec![],
        },
        OpKind::Value(_) | OpKind::Comm(_) | OpKind::Control(_) => vec![],
    }
}

fn loaded_elements(op: &MemoryOp) -> Option<(Place, Option<ReceiptId>)> {
    match *op {
        MemoryOp::Load { place, receipt, .. }
        | MemoryOp::LoadMasked { place, receipt, .. }
        | MemoryOp::Gather { place, receipt, .. } => Some((place, receipt)),
        any!(stores, counts) => None,
    }
}

/// For each flag array that this kernel signals, the buffers that the signalled parcels put into or publish. A split launch waits
/// for flags that another kernel signals; those are not judged.
fn covered_buffers(kernel: &Kernel, tree: &Tree) -> HashMap<ParamId, HashSet<ParamId>> {
    let mut puts: HashMap<ParcelId, Vec<ParamId>> = HashMap::new();
    for &id in tree.in_order() {
        // What is put into a window is its owner's to read, without a receipt.
        let put = kernel.op(id).kind.puts();
        if let Some((parcel, buffer)) = put
            && kernel.params[buffer.index()].kind != ParamKind::Window
        {
            puts.entry(parcel).or_default().push(buffer);
        }
    }
    let mut covered: HashMap<ParamId, HashSet<ParamId>> = HashMap::new();
    for &id in tree.in_order() {
        if let Some(Signal { parcel, flag, .. }) = kernel.op(id).kind.signal() {
            let windows = &kernel.parcels[parcel.index()].windows;
            let buffers = puts.get(parcel).into_iter().flatten().chain(windows);
            covered.entry(*flag).or_default().extend(buffers);
        }
        if let OpKind::Comm(CommOp::FarPut(FarPut { inbox, counts, .. })) = kernel.op(id).kind {
            covered.entry(counts).or_default().insert(inbox);
        }
    }
    covered
}

fn read(
    report: &mut Report<'_>,
    tree: &Tree,
    id: OpId,
    place: Place,
    receipt: Option<ReceiptId>,
    waits: &HashMap<ReceiptId, OpId>,
    covered: &HashMap<ParamId, HashSet<ParamId>>,
) {
    let loc = report.kernel.op(id).loc;
    let buffer = report.place_name(place);
    // What others write, and what others own.
    let foreign = match place {
        Place::Param(p) => Some(p).filter(|&p| {
            matches!(report.param(p).kind, ParamKind::Symmetric | ParamKind::Far(FarPart::Inbox))
        }),
        Place::Peer(p, _) | Place::All(p, _) => Some(p),
        Place::Shared(_) => None,
    };
    let Some(receipt) = receipt else {
        if foreign.is_some() {
            report.add(loc, Problem::ReceiptMissing { buffer });
        }
        return;
    };
    let wait = waits.get(&receipt).copied();
    if !wait.is_some_and(|w| tree.dominates(w, id)) {
        let wait = wait.map(|w| report.kernel.op(w).loc);
        report.add(loc, Problem::ReceiptNotVisible { buffer: buffer.clone(), wait });
    }
    let flag = report.kernel.receipts[receipt.index()].flag;
    if let (Some(p), Some(buffers)) = (foreign, covered.get(&flag))
        && !buffers.contains(&p)
    {
        let flag = report.param(flag).name.clone();
        report.add(loc, Problem::ReceiptCoversNothing { buffer, flag });
    }
}
