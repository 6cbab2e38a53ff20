//! Parcels: puts, then exactly one signal, on every path; or a signal without data.

use std::collections::BTreeMap;

use super::*;

#[derive(Default)]
struct Uses {
    puts: Vec<OpId>,
    signals: Vec<OpId>,
}

pub(super) fn check(report: &mut Report<'_>, tree: &Tree) {
    let mut parcels: BTreeMap<ParcelId, Uses> = BTreeMap::new();
    let mut leaves = vec![];
    for &id in tree.in_order() {
        let op = report.kernel.op(id);
        match op.kind.member() {
            Some((parcel, Member::Put(_))) => parcels.entry(parcel).or_default().puts.push(id),
            Some((parcel, Member::Signal(_))) => parcels.entry(parcel).or_default().signals.push(id),
            None => {}
        }
        if let Some((param, SignalOrder::Relaxed)) = op.kind.release() {
            let (name, flag) = (op.kind.name(), report.param(param).name.clone());
            report.add(op.loc, Problem::Relaxed { name, flag });
        }
        if let Some(depth) = leaves_loop(&op.kind) {
            leaves.push((id, tree.target_loop(report.kernel, id, depth)));
        }
    }
    for (&id, uses) in &parcels {
        parcel(report, tree, id, uses, &leaves);
    }
}

fn parcel(report: &mut Report<'_>, tree: &Tree, id: ParcelId, uses: &Uses, leaves: &[(OpId, Option<OpId>)]) {
    let kernel = report.kernel;
    let loc = |id: OpId| kernel.op(id).loc;
    let bare = kernel.parcels[id.index()].bare;
    if let Some(&put) = uses.puts.first()
        && bare
    {
        return report.add(loc(put), Problem::PutIntoBare { buffer: put_buffer(report, put) });
    }
    let Some(&signal) = uses.signals.first() else {
        let first = uses.puts[0];
        return report.add(loc(first), Problem::NeverSignalled { buffer: put_buffer(report, first) });
    };
    for &again in &uses.signals[1..] {
        report.add(loc(again), Problem::SignalledTwice { first: loc(signal) });
    }
    let Some(Signal { flag, parcel, .. }) = kernel.op(signal).kind.signal() else { return };
    let windows = &kernel.parcels[parcel.index()].windows;
    let flag = report.param(*flag).name.clone();
    if uses.puts.is_empty() && windows.is_empty() && !bare {
        return report.add(loc(signal), Problem::EmptyParcel { flag });
    }
    let order = |id: OpId| tree.position(id).map(|p| p.order);
    for &put in &uses.puts {
        if order(put) > order(signal) {
            let buffer = put_buffer(report, put);
            report.add(loc(put), Problem::PutAfterSignal { buffer, signal: loc(signal) });
        } else if let Some(top) = sibling_before(tree, signal, put) {
            skips(report, tree, (top, put, signal), leaves);
        } else {
            report.add(loc(signal), Problem::SignalElsewhere { flag: flag.clone(), put: loc(put) });
        }
    }
}

fn put_buffer(report: &Report<'_>, put: OpId) -> String {
    let puts = report.kernel.op(put).kind.puts();
    puts.map(|(_, buffer)| report.param(buffer).name.clone()).unwrap_or_default()
}

/// The depth of the loop that an operation leaves, or whose next round it begins.
fn leaves_loop(kind: &OpKind) -> Option<u32> {
    let OpKind::Control(op) = kind else { return None };
    match op {
        ControlOp::Break { depth } | ControlOp::Continue { depth } => Some(*depth),
        any!(branches, variables) => None,
    }
}

/// The operation of the signal's own region that is or holds the put; none if the put is outside that region.
fn sibling_before(tree: &Tree, signal: OpId, put: OpId) -> Option<OpId> {
    let home = tree.position(signal)?;
    std::iter::once(put)
        .chain(tree.enclosing(put))
        .find(|&o| tree.position(o).is_some_and(|p| p.role == home.role && p.parent == home.parent))
}

/// Reports jumps that a path can take after the put and that pass the signal by. A jump before the put counts too if a
/// loop holds both, because it may come a round later.
fn skips(
    report: &mut Report<'_>,
    tree: &Tree,
    (top, put, signal): (OpId, OpId, OpId),
    leaves: &[(OpId, Option<OpId>)],
) {
    let order = |id: OpId| tree.position(id).map(|p| p.order);
    let around: Vec<OpId> = tree.enclosing(signal).collect();
    let is_loop = |o: OpId| report.kernel.op(o).kind.is_loop();
    let rounds: Vec<OpId> =
        tree.enclosing(put).take_while(|o| !around.contains(o)).filter(|&o| is_loop(o)).collect();
    let found = leaves.iter().find(|(leave, target)| {
        let passes_signal = target.is_some_and(|t| around.contains(&t));
        let between = order(*leave) > order(top) && order(*leave) < order(signal);
        let later_round = tree.enclosing(*leave).any(|o| rounds.contains(&o));
        let after_put = order(*leave) > order(put) && !exclusive(tree, put, *leave);
        passes_signal && between && (later_round || after_put)
    });
    if let Some(&(leave, _)) = found {
        let op = report.kernel.op(leave);
        let loc = |id: OpId| report.kernel.op(id).loc;
        let problem = Problem::SignalSkipped { op: op.kind.name(), put: loc(put), signal: loc(signal) };
        report.add(op.loc, problem);
    }
}

/// Whether two operations stand in different arms of one `if`.
fn exclusive(tree: &Tree, a: OpId, b: OpId) -> bool {
    let arms = |id: OpId| {
        let up = std::iter::once(id).chain(tree.enclosing(id));
        up.filter_map(|o| tree.position(o)?.parent)
    };
    arms(a).any(|(holder, arm)| arms(b).any(|(h, other)| h == holder && other != arm))
}
