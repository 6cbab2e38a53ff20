//! Every id is in range and every operation stands in at most one place. Nothing else may be looked at before that.

use super::*;

pub(super) fn check(report: &mut Report<'_>) {
    let kernel = report.kernel;
    for op in &kernel.ops {
        operation(report, op);
    }
    for p in &kernel.parcels {
        let (Target::Rank(v) | Target::Mask(v)) = p.target;
        in_range(report, p.loc, "value", v.0, kernel.values.len());
    }
    for r in &kernel.receipts {
        in_range(report, r.loc, "parameter", r.flag.0, kernel.params.len());
    }
    let mut seen = vec![false; kernel.ops.len()];
    reach(report, &kernel.prologue, kernel.loc, &mut seen, 0);
    for role in &kernel.roles {
        reach(report, &role.body, role.loc, &mut seen, 0);
    }
}

fn in_range(report: &mut Report<'_>, loc: Loc, what: &'static str, id: u32, count: usize) {
    if id as usize >= count {
        report.add(loc, Problem::NoSuchId { what, id, count });
    }
}

fn operation(report: &mut Report<'_>, op: &Op) {
    let k = report.kernel;
    let counter = match op.kind {
        OpKind::Control(ControlOp::For { var, .. }) => Some(var),
        _ => None,
    };
    let target = match op.kind {
        OpKind::Comm(
            CommOp::SendPackets(SendPackets { target: Target::Rank(v) | Target::Mask(v), .. })
            | CommOp::SendLl(SendLl { target: Target::Rank(v) | Target::Mask(v), .. }),
        ) => Some(v),
        _ => None,
    };
    for v in op.kind.outs().into_iter().chain(op.kind.operands()).chain(counter).chain(target) {
        in_range(report, op.loc, "value", v.0, k.values.len());
    }
    match &op.kind {
        OpKind::Value(ValueOp::ScalarParam { param: p, .. } | ValueOp::Epoch { word: p, .. })
        | OpKind::Comm(
            CommOp::SendPackets(SendPackets { packets: p, .. })
            | CommOp::TakePackets(TakePackets { packets: p, .. })
            | CommOp::SendLl(SendLl { ll: p, .. })
            | CommOp::ReadLl(ReadLl { ll: p, .. }),
        ) => {
            in_range(report, op.loc, "parameter", p.0, k.params.len());
        }
        OpKind::Comm(
            CommOp::Put(Put { parcel, buffer: p, .. }) | CommOp::Signal(Signal { parcel, flag: p, .. }),
        ) => {
            in_range(report, op.loc, "parameter", p.0, k.params.len());
            in_range(report, op.loc, "parcel", parcel.0, k.parcels.len());
        }
        OpKind::Comm(CommOp::BulkCopy(BulkCopy { parcel, buffer, source, room, .. })) => {
            in_range(report, op.loc, "parameter", buffer.0, k.params.len());
            in_range(report, op.loc, "parameter", source.0, k.params.len());
            in_range(report, op.loc, "parcel", parcel.0, k.parcels.len());
            place(report, op.loc, Place::Shared(*room));
        }
        OpKind::Comm(
            CommOp::Wait(Wait { receipt, flag, .. }) | CommOp::WaitAll(WaitAll { receipt, flag, .. }),
        ) => {
            in_range(report, op.loc, "parameter", flag.0, k.params.len());
            in_range(report, op.loc, "receipt", receipt.0, k.receipts.len());
        }
        OpKind::Memory(
            MemoryOp::Load { place: at, receipt, .. }
            | MemoryOp::LoadMasked { place: at, receipt, .. }
            | MemoryOp::Gather { place: at, receipt, .. },
        ) => {
            place(report, op.loc, *at);
            if let Some(r) = receipt {
                in_range(report, op.loc, "receipt", r.0, k.receipts.len());
            }
        }
        OpKind::Memory(
            MemoryOp::Store { place: at, .. }
            | MemoryOp::Scatter { place: at, .. }
            | MemoryOp::Atomic { place: at, .. }
            | MemoryOp::Tally { place: at, .. },
        ) => {
            place(report, op.loc, *at);
        }
        OpKind::Control(
            ControlOp::VarDecl { var, .. } | ControlOp::VarGet { var, .. } | ControlOp::VarSet { var, .. },
        ) => {
            in_range(report, op.loc, "variable", var.0, k.vars.len());
        }
        OpKind::Value(
            ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::GroupIndex { .. }
            | ValueOp::Binary { .. }
            | ValueOp::Unary { .. }
            | ValueOp::Compare { .. }
            | ValueOp::Select { .. }
            | ValueOp::Cast { .. }
            | ValueOp::Fma { .. }
            | ValueOp::Bitcast { .. }
            | ValueOp::Splat { .. }
            | ValueOp::Arange { .. }
            | ValueOp::Reduce { .. }
            | ValueOp::Scan { .. },
        )
        | OpKind::Control(
            ControlOp::If { .. }
            | ControlOp::For { .. }
            | ControlOp::While { .. }
            | ControlOp::Break { .. }
            | ControlOp::Continue { .. }
            | ControlOp::Split { .. },
        ) => {}
    }
}

fn place(report: &mut Report<'_>, loc: Loc, place: Place) {
    match place {
        Place::Param(p) => in_range(report, loc, "parameter", p.0, report.kernel.params.len()),
        Place::Shared(s) => in_range(report, loc, "shared array", s.0, report.kernel.shared.len()),
    }
}

/// Marks what a region reaches. Nothing is followed twice or too deep, so cycles end.
fn reach(report: &mut Report<'_>, region: &Region, loc: Loc, seen: &mut [bool], depth: usize) {
    if depth > MAX_DEPTH {
        return report.add(loc, Problem::NestedTooDeep { limit: MAX_DEPTH });
    }
    for &id in &region.ops {
        let kernel = report.kernel;
        let Some(op) = kernel.ops.get(id.index()) else {
            in_range(report, loc, "operation", id.0, kernel.ops.len());
            continue;
        };
        if std::mem::replace(&mut seen[id.index()], true) {
            report.add(op.loc, Problem::ReachedTwice { op: id.0 });
            continue;
        }
        for nested in op.kind.regions() {
            reach(report, nested, op.loc, seen, depth + 1);
        }
    }
}
