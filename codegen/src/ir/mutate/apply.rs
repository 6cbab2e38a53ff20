//! What each mutation does.

use std::collections::HashSet;

use super::super::analysis::{Def, DefUse, Tree, target};
use super::super::*;
use super::edit::{define_before, remove, siblings, wrap_in_if};
use super::operand::{self, named, number_value, resolve};
use super::{Change, Condition, MutateError, Mutation, Operand, Site, Slot};

pub(super) fn apply(kernel: &mut Kernel, mutation: &Mutation) -> Result<(), MutateError> {
    match mutation {
        Mutation::Relax(site) => each(kernel, site, relax),
        Mutation::SignalFirst(site) => each(kernel, site, signal_first),
        Mutation::Drop(site) => each(kernel, site, |kernel, op| {
            without_results(kernel, op)?;
            remove(kernel, op);
            Ok(())
        }),
        Mutation::Offset { site, slot, by } => each(kernel, site, |k, op| offset(k, op, *slot, *by)),
        Mutation::Replace { site, slot, with } => each(kernel, site, |kernel, op| {
            let old = operand::get(kernel, op, *slot)?;
            let ty = kernel.ty(old);
            let new = resolve(kernel, op, ty, with)?;
            operand::set(kernel, op, *slot, new);
            Ok(())
        }),
        Mutation::ReplaceValue { name, nth, with } => replace_value(kernel, name, *nth, with),
        Mutation::Guard { site, when, whole_parcel } => guard(kernel, site, when, *whole_parcel),
        Mutation::At { op, operand, change } => at(kernel, *op, *operand, *change),
        Mutation::KeepEpoch(word) => keep_epoch(kernel, word),
    }
}

fn each(
    kernel: &mut Kernel,
    site: &Site,
    mut change: impl FnMut(&mut Kernel, OpId) -> Result<(), MutateError>,
) -> Result<(), MutateError> {
    site.find(kernel)?.into_iter().try_for_each(|op| change(kernel, op))
}

fn without_results(kernel: &Kernel, op: OpId) -> Result<(), MutateError> {
    let kind = &kernel.op(op).kind;
    if kind.outs().is_empty() { Ok(()) } else { Err(MutateError::DefinesValues { op: kind.name() }) }
}

fn relax(kernel: &mut Kernel, op: OpId) -> Result<(), MutateError> {
    let kind = &mut kernel.ops[op.index()].kind;
    if let OpKind::Comm(
        CommOp::Signal(Signal { order, .. }) | CommOp::BlockSignal(BlockSignal { order, .. }),
    )
    | OpKind::Memory(MemoryOp::Ticket { order, .. }) = kind
    {
        *order = SignalOrder::Relaxed;
        return Ok(());
    }
    Err(MutateError::NoParcel { op: kind.name() })
}

fn offset(kernel: &mut Kernel, op: OpId, slot: Slot, by: i64) -> Result<(), MutateError> {
    let old = operand::get(kernel, op, slot)?;
    let new = moved(kernel, op, old, by)?;
    operand::set(kernel, op, slot, new);
    Ok(())
}

/// A value with a number added to it, right before an operation.
fn moved(kernel: &mut Kernel, op: OpId, old: ValueId, by: i64) -> Result<ValueId, MutateError> {
    let ty = kernel.ty(old);
    let (way, size) = if by < 0 { (BinaryOp::Sub, by.saturating_neg()) } else { (BinaryOp::Add, by) };
    let by = number_value(kernel, op, ty, size)?;
    Ok(define_before(kernel, op, ty, |out| ValueOp::Binary { out, op: way, a: old, b: by }))
}

fn at(kernel: &mut Kernel, op: OpId, operand: usize, change: Change) -> Result<(), MutateError> {
    let kind = &kernel.op(op).kind;
    let operands = kind.operands();
    let Some(&old) = operands.get(operand) else {
        return Err(MutateError::NoOperand { op: kind.name(), count: operands.len() });
    };
    let new = match change {
        Change::By(by) => moved(kernel, op, old, by)?,
        Change::To(number) => number_value(kernel, op, kernel.ty(old), number)?,
    };
    *kernel.ops[op.index()].kind.operands_mut()[operand] = new;
    Ok(())
}

fn parcel_of(kernel: &Kernel, op: OpId) -> Result<ParcelId, MutateError> {
    let kind = &kernel.op(op).kind;
    kind.member().map(|(parcel, _)| parcel).ok_or(MutateError::NoParcel { op: kind.name() })
}

/// Reorders the region of the signal: what it needs, itself, then everything from the parcel's first put on. A signal without
/// data goes before all of its region that it does not need.
fn signal_first(kernel: &mut Kernel, signal: OpId) -> Result<(), MutateError> {
    let parcel = kernel.op(signal).kind.member().map(|(parcel, _)| parcel);
    let bare = parcel.is_none_or(|p| kernel.parcels[p.index()].bare);
    let tree = Tree::of(kernel);
    let defs = DefUse::of(kernel, &tree);
    let home = tree.position(signal);
    let same_region = |o: OpId| match (tree.position(o), home) {
        (Some(p), Some(h)) => (p.role == h.role && p.parent == h.parent).then_some(p.index),
        _ => None,
    };
    let first_put = tree
        .in_order()
        .iter()
        .filter(|&&o| parcel.is_some_and(|p| is_published(kernel, o, p)))
        .find_map(|&o| std::iter::once(o).chain(tree.enclosing(o)).find_map(same_region));
    let needed = needs(kernel, &defs, signal);
    let Some(first) = first_put.or(bare.then_some(0)) else {
        return Err(MutateError::NoParcel { op: "signal" });
    };
    let Some((ops, at)) = siblings(kernel, signal) else { return Ok(()) };
    if first < at {
        let (front, back): (Vec<OpId>, Vec<OpId>) = ops[first..at].iter().partition(|o| needed.contains(o));
        ops.splice(first..=at, front.into_iter().chain([signal]).chain(back));
    }
    Ok(())
}

/// Whether an operation puts into a parcel, or stores to a window that the parcel's signal publishes.
fn is_published(kernel: &Kernel, op: OpId, parcel: ParcelId) -> bool {
    let kind = &kernel.op(op).kind;
    let windows = &kernel.parcels[parcel.index()].windows;
    let stored = |a: Accessed| {
        a.access == Access::Store && a.place.param().is_some_and(|window| windows.contains(&window))
    };
    kind.puts().is_some_and(|(of, _)| of == parcel) || kind.accesses().into_iter().any(stored)
}

/// The operations that an operation's operands and target come from, directly or not.
fn needs(kernel: &Kernel, defs: &DefUse, op: OpId) -> HashSet<OpId> {
    let mut found = HashSet::new();
    let kind = &kernel.op(op).kind;
    let mut open = kind.operands();
    open.extend(target(kernel, kind));
    while let Some(v) = open.pop() {
        if let Def::Op(id) = defs.def(v)
            && found.insert(id)
        {
            open.extend(kernel.op(id).kind.operands());
        }
    }
    found
}

fn guard(kernel: &mut Kernel, site: &Site, when: &Condition, whole_parcel: bool) -> Result<(), MutateError> {
    let mut ops = site.find(kernel)?;
    if whole_parcel {
        let parcels = ops.iter().map(|&o| parcel_of(kernel, o)).collect::<Result<Vec<_>, _>>()?;
        let tree = Tree::of(kernel);
        let member = |&&o: &&OpId| parcel_of(kernel, o).is_ok_and(|p| parcels.contains(&p));
        ops = tree.in_order().iter().filter(member).copied().collect();
    }
    for op in ops {
        without_results(kernel, op)?;
        let value = named(kernel, op, &when.name)?;
        let ty = kernel.ty(value);
        let number = number_value(kernel, op, ty, when.number)?;
        let cond = define_before(kernel, op, ty.with_dtype(Dtype::Bool), |out| ValueOp::Compare {
            out,
            op: when.op,
            a: value,
            b: number,
        });
        wrap_in_if(kernel, op, cond);
    }
    Ok(())
}

fn replace_value(
    kernel: &mut Kernel,
    name: &str,
    nth: Option<usize>,
    with: &Operand,
) -> Result<(), MutateError> {
    let tree = Tree::of(kernel);
    let mut found = vec![];
    for &id in tree.in_order() {
        let kind = &kernel.op(id).kind;
        let named = |v: &ValueId| kernel.values[v.index()].name.as_deref() == Some(name);
        found.extend(kind.outs().into_iter().chain(kind.counter()).filter(named));
    }
    if found.is_empty() {
        return Err(MutateError::NoSuchValue { name: name.into() });
    }
    let chosen = match nth {
        None => found,
        Some(n) => match found.get(n) {
            Some(&v) => vec![v],
            None => {
                let site = format!("the values named `{name}`");
                return Err(MutateError::NoSuchNth { site, nth: n, found: found.len() });
            }
        },
    };
    for old in chosen {
        let uses = DefUse::of(kernel, &Tree::of(kernel)).uses(old).to_vec();
        for op in uses {
            let ty = kernel.ty(old);
            let new = resolve(kernel, op, ty, with)?;
            substitute(kernel, op, old, new);
        }
    }
    Ok(())
}

/// Replaces a value in all operands of an operation, its parcel's target included.
fn substitute(kernel: &mut Kernel, op: OpId, old: ValueId, new: ValueId) {
    if let Ok(parcel) = parcel_of(kernel, op) {
        let (Target::Rank(v) | Target::Mask(v)) = &mut kernel.parcels[parcel.index()].target;
        if *v == old {
            *v = new;
        }
    }
    for v in kernel.ops[op.index()].kind.operands_mut() {
        if *v == old {
            *v = new;
        }
    }
}

fn keep_epoch(kernel: &mut Kernel, name: &str) -> Result<(), MutateError> {
    let tree = Tree::of(kernel);
    let is_it = |&&o: &&OpId| matches!(kernel.op(o).kind, OpKind::Value(ValueOp::Epoch { word, .. }) if kernel.params[word.index()].name == name);
    let Some(&found) = tree.in_order().iter().find(is_it) else {
        return Err(MutateError::NoSuchEpoch { name: name.into() });
    };
    if let OpKind::Value(ValueOp::Epoch { advance, .. }) = &mut kernel.ops[found.index()].kind {
        *advance = false;
        // A launch that begins early advances its epoch.
        kernel.begins_early = false;
    }
    Ok(())
}
