//! What can be checked only when the whole kernel is traced, and the removal of what nothing uses.

use super::error::TraceError;
use super::tracer::Trace;
use crate::ir::{Effect, Kernel, OpId, ParamId, ParamKind, Region, ValueId, analysis};

/// The checks at the end of a trace.
pub(crate) fn at_end(t: &Trace) -> Result<(), TraceError> {
    if t.builder.kernel.roles.is_empty() {
        return Err(TraceError::new(
            t.builder.kernel.loc,
            "a kernel without roles",
            "say which blocks run what: `role(\"name\", blocks, |b| ..)`",
        ));
    }
    goes_on(t)?;
    if let (true, [(_, first), (_, second), ..]) = (t.builder.kernel.begins_early, t.epochs.as_slice()) {
        let help = "begin this epoch where the launch before is over: `a.epoch.begin()`";
        return Err(TraceError::new(*second, "a second epoch of a kernel that begins early", help)
            .note(*first, "the other one is begun here"));
    }
    crate::dsl::channel::at_end(t)?;
    unsignalled(t)?;
    receipts(t)
}

fn goes_on(t: &Trace) -> Result<(), TraceError> {
    let roles = &t.builder.kernel.roles;
    for role in roles {
        let Some(next) = &role.goes_on_as else { continue };
        if roles.iter().all(|r| r.name != *next) {
            let message = format!("role `{}` goes on as `{next}`, which is no role of the kernel", role.name);
            let names: Vec<String> = roles.iter().map(|r| format!("`{}`", r.name)).collect();
            return Err(TraceError::new(role.loc, message, format!("the roles are {}", names.join(", "))));
        }
    }
    Ok(())
}

fn unsignalled(t: &Trace) -> Result<(), TraceError> {
    match t.parcels.iter().find(|p| p.signalled.is_none()) {
        None => Ok(()),
        Some(p) => Err(TraceError::new(
            p.made.loc,
            "this parcel is never signalled",
            "receivers see what it carries only after `parcel.signal(&flags, index, epoch)`",
        )),
    }
}

/// Every read of an inbox must have the receipt of a flag whose signal publishes puts to that inbox, when this kernel
/// signals the flag at all: the receive half of a split operation cannot know.
fn receipts(t: &Trace) -> Result<(), TraceError> {
    // What is put into a window is its owner's to read, who needs no receipt: a peer's is read after it was published.
    let is_window = |p: ParamId| t.builder.kernel.params[p.index()].kind == ParamKind::Window;
    let covers = |flag: ParamId, buffer: ParamId| {
        t.parcels.iter().zip(&t.builder.kernel.parcels).any(|(p, parcel)| {
            let carried = match is_window(buffer) {
                true => parcel.windows.contains(&buffer),
                false => p.puts.iter().any(|put| put.0 == buffer),
            };
            p.signalled == Some(flag) && carried
        })
    };
    let name = |p: ParamId| &t.builder.kernel.params[p.index()].name;
    for read in &t.reads {
        let flag = t.builder.kernel.receipts[read.receipt.index()].flag;
        let signalled = t.parcels.iter().any(|p| p.signalled == Some(flag));
        if !signalled || covers(flag, read.buffer) {
            continue;
        }
        let (flag_name, buffer) = (name(flag), name(read.buffer));
        let mut better: Vec<&str> = vec![];
        for p in &t.parcels {
            if let Some(f) = p.signalled.filter(|&f| covers(f, read.buffer)) {
                better.push(name(f));
            }
        }
        better.sort_unstable();
        better.dedup();
        let window = is_window(read.buffer);
        let help = match better.as_slice() {
            [] if window => format!("publish it: `{buffer}.signal(peers, &{flag_name}, ..)`"),
            [] => format!("put to `{buffer}` in the parcel that is signalled on `{flag_name}`"),
            flags => format!("read it with the receipt of a wait on `{}`", flags.join("` or `")),
        };
        return Err(TraceError::new(
            read.loc,
            format!(
                "the receipt of `{flag_name}` does not cover `{buffer}`: no parcel signalled on `{flag_name}` {}",
                if window { "publishes it" } else { "puts there" }
            ),
            help,
        )
        .note(t.builder.kernel.receipts[read.receipt.index()].loc, "the receipt is of this wait"));
    }
    Ok(())
}

/// Removes pure operations whose results nothing uses. Loads stay: what they read is part of what the kernel does.
pub(crate) fn drop_unused(k: &mut Kernel) {
    let mut used = vec![0u32; k.values.len()];
    let all: Vec<OpId> = reachable(k);
    for &id in &all {
        for v in operands(k, id) {
            used[v.index()] += 1;
        }
    }
    let mut dead = vec![false; k.ops.len()];
    // Users come after what they use, so one pass backwards finds chains.
    for &id in all.iter().rev() {
        let kind = &k.op(id).kind;
        let pure = matches!(kind.effect(), Effect::None | Effect::ReadsVar);
        if pure && kind.outs().iter().all(|v| used[v.index()] == 0) {
            dead[id.index()] = true;
            for v in operands(k, id) {
                used[v.index()] -= 1;
            }
        }
    }
    let keep = |r: &mut Region| r.ops.retain(|op| !dead[op.index()]);
    keep(&mut k.prologue);
    k.roles.iter_mut().for_each(|r| keep(&mut r.body));
    for op in &mut k.ops {
        op.kind.regions_mut().into_iter().for_each(keep);
    }
}

fn reachable(k: &Kernel) -> Vec<OpId> {
    let mut all = vec![];
    for region in std::iter::once(&k.prologue).chain(k.roles.iter().map(|r| &r.body)) {
        k.walk(region, &mut |id, _| all.push(id));
    }
    all
}

/// The values that an operation uses, that of its target included.
fn operands(k: &Kernel, id: OpId) -> Vec<ValueId> {
    let kind = &k.op(id).kind;
    let mut v = kind.operands();
    v.extend(analysis::target(k, kind));
    v
}
