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
        for window in &p.windows {
            in_range(report, p.loc, "parameter", window.0, kernel.params.len());
        }
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
    op.kind.parts(&mut |part| match part {
        Part::Out(v) | Part::Counter(v) | Part::In(v) | Part::Target(Target::Rank(v) | Target::Mask(v)) => {
            in_range(report, op.loc, "value", v.0, k.values.len());
        }
        Part::Param(p) => in_range(report, op.loc, "parameter", p.0, k.params.len()),
        Part::Shared(s) => in_range(report, op.loc, "shared array", s.0, k.shared.len()),
        Part::Var(v) => in_range(report, op.loc, "variable", v.0, k.vars.len()),
        Part::Parcel(p) => in_range(report, op.loc, "parcel", p.0, k.parcels.len()),
        Part::Receipt(r) => in_range(report, op.loc, "receipt", r.0, k.receipts.len()),
        // What a region holds is checked when it is reached.
        Part::Region(_) => {}
    });
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
