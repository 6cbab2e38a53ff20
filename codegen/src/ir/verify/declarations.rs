//! The kernel's shape, parameters, shared arrays, roles and the types of its values.

use std::collections::HashSet;

use super::*;

/// Most blocks of a grid in one dimension.
const MAX_BLOCKS: u64 = (1 << 31) - 1;

pub(super) fn check(report: &mut Report<'_>) {
    shape(report);
    names(report);
    for p in &report.kernel.params {
        parameter(report, p);
    }
    for s in &report.kernel.shared {
        shared(report, s);
    }
    tiles(report);
}

fn shape(report: &mut Report<'_>) {
    let k = report.kernel;
    if k.ranks == 0 || k.ranks > MAX_RANKS {
        report.add(k.loc, Problem::Ranks { found: k.ranks, limit: MAX_RANKS });
    }
    if !(1..=FAR_RANKS).contains(&k.nodes.saturating_mul(k.ranks.max(1))) {
        report.add(k.loc, Problem::Nodes { nodes: k.nodes, ranks: k.ranks, limit: FAR_RANKS });
    }
    if k.nodes > 1 && k.far_channel().is_none() {
        report.add(k.loc, Problem::NodesApart { nodes: k.nodes });
    }
    if crate::device::packet_bytes(k.warp_size).is_none() {
        report.add(k.loc, Problem::WarpSize { found: k.warp_size });
    }
    let threads = (u64::from(k.block_warps) + u64::from(k.beside_warps())) * u64::from(k.warp_size);
    if k.block_warps == 0 || threads > MAX_BLOCK_THREADS.into() {
        let limit = MAX_BLOCK_THREADS;
        report.add(k.loc, Problem::BlockWarps { warps: k.block_warps, lanes: k.warp_size, limit });
    }
    let mut epochs = vec![];
    k.walk(&k.prologue, &mut |_, op| {
        if let OpKind::Value(ValueOp::Epoch { advance, .. }) = op.kind {
            epochs.push(advance);
        }
    });
    if k.begins_early && epochs != [true] {
        report.add(k.loc, Problem::EarlyEpochs { found: epochs.len() });
    }
    if k.roles.is_empty() {
        report.add(k.loc, Problem::NoRoles);
    }
    for r in k.roles.iter().filter(|r| r.blocks == 0) {
        report.add(r.loc, Problem::NoBlocks { role: r.name.clone() });
    }
    for r in &k.roles {
        let Some(ranks) = &r.ranks else { continue };
        let ordered = ranks.is_sorted_by(|a, b| a < b) && ranks.last().is_some_and(|&last| last < k.ranks);
        if !ordered {
            let (role, last) = (r.name.clone(), k.ranks.saturating_sub(1));
            report.add(r.loc, Problem::RoleRanks { role, ranks: ranks.clone(), last });
        }
        let shared = r.goes_on_as.iter().chain(r.beside.as_ref().map(|beside| &beside.role));
        for other in shared {
            if k.roles.iter().any(|o| o.name == *other && o.ranks != r.ranks) {
                report.add(r.loc, Problem::OtherRanks { role: r.name.clone(), other: other.clone() });
            }
        }
    }
    for (role, r) in k.roles.iter().enumerate() {
        let Some(to) = &r.goes_on_as else { continue };
        let last = k.goes_on(role).is_some_and(|(to, _)| to != role && k.roles[to].goes_on_as.is_none());
        if !last {
            report.add(r.loc, Problem::GoesOnNowhere { role: r.name.clone(), to: to.clone() });
        }
    }
    (0..k.roles.len()).for_each(|role| beside(report, role));
    (0..k.roles.len()).for_each(|role| pairs(report, role));
    let blocks: u64 = k.roles.iter().map(|r| u64::from(r.blocks)).sum();
    if blocks > MAX_BLOCKS {
        report.add(k.loc, Problem::GridTooLarge { blocks, limit: MAX_BLOCKS });
    }
}

/// Blocks 2i and 2i + 1 of the grid are of one role from beginning to end, if it multiplies in pairs.
fn pairs(report: &mut Report<'_>, role: usize) {
    let k = report.kernel;
    let Role { name, blocks, body, loc, .. } = &k.roles[role];
    let mut paired = false;
    k.walk(body, &mut |_, op| {
        paired |= matches!(op.kind, OpKind::Matrix(MatrixOp::Dot(Dot { paired: true, .. })));
    });
    if !paired {
        return;
    }
    let alone = k.roles.iter().all(|role| role.beside.is_none() && role.goes_on_as.is_none());
    let odd = k.places(role).into_iter().map(|(_, first)| first).find(|first| first % 2 == 1);
    if odd.is_some() || blocks % 2 == 1 || k.grid_blocks() % 2 == 1 || !alone {
        let first = odd.unwrap_or_else(|| k.places(role).first().map_or(0, |(_, first)| *first));
        let (role, grid) = (name.clone(), k.grid_blocks());
        report.add(*loc, Problem::Pairs { role, blocks: *blocks, first, grid });
    }
}

/// What a role that runs beside another one must have in common with it, and must not have.
fn beside(report: &mut Report<'_>, role: usize) {
    let k = report.kernel;
    let Role { name, blocks, body, beside, goes_on_as, loc, .. } = &k.roles[role];
    let Some(Beside { role: host, warps }) = beside else { return };
    let joined = |role: usize| k.joining(role).next().is_some();
    let fits = k.roles.iter().position(|r| r.name == *host).is_some_and(|at| {
        let host = &k.roles[at];
        host.beside.is_none() && host.blocks == *blocks && !joined(at)
    });
    let limit = k.block_warps;
    if !fits || goes_on_as.is_some() || joined(role) || !(1..=limit).contains(warps) {
        let (role, beside) = (name.clone(), host.clone());
        report.add(*loc, Problem::Beside { role, beside, warps: *warps, limit });
    }
    let mut splits = vec![];
    k.walk(body, &mut |_, op| {
        splits.extend(matches!(op.kind, OpKind::Control(ControlOp::Split { .. })).then_some(op.loc));
    });
    splits.into_iter().for_each(|loc| report.add(loc, Problem::SplitBeside { role: name.clone() }));
}

fn names(report: &mut Report<'_>) {
    let k = report.kernel;
    let identifier = |n: &str| {
        n.bytes().all(|c| c == b'_' || c.is_ascii_alphanumeric())
            && !n.is_empty()
            && !n.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut check = |what: &'static str, name: &str, loc: Loc, seen: Option<&mut HashSet<String>>| {
        if !identifier(name) {
            report.add(loc, Problem::BadName { what, name: name.into() });
        }
        if seen.is_some_and(|s| !s.insert(name.into())) {
            report.add(loc, Problem::DuplicateName { what, name: name.into() });
        }
    };
    check("kernel", &k.name, k.loc, None);
    check("variant", &k.variant, k.loc, None);
    let (mut params, mut roles) = (HashSet::new(), HashSet::new());
    for p in &k.params {
        check("parameter", &p.name, k.loc, Some(&mut params));
    }
    for r in &k.roles {
        check("role", &r.name, r.loc, Some(&mut roles));
    }
    for s in &k.shared {
        check("shared array", &s.name, s.loc, None);
    }
}

fn parameter(report: &mut Report<'_>, p: &Param) {
    let loc = report.kernel.loc;
    let (dtype_ok, allowed) = match p.kind {
        ParamKind::Local
        | ParamKind::Symmetric
        | ParamKind::Window
        | ParamKind::Far(FarPart::Outbox | FarPart::Inbox) => {
            (p.dtype != Dtype::Bool, "truth values live in registers only; use u32")
        }
        ParamKind::Messages(transport) => (transport.carries(p.dtype), transport.traits().elements),
        ParamKind::Flags
        | ParamKind::Counts
        | ParamKind::BlockFlags
        | ParamKind::EpochWord
        | ParamKind::Counters
        | ParamKind::Far(FarPart::Counts) => (p.dtype == Dtype::U32, "it is always u32"),
        ParamKind::Scalar => (p.dtype.is_arithmetic(), "scalars are passed as i32, u32, u64 or f32"),
    };
    if !dtype_ok {
        let (param, kind) = (p.name.clone(), p.kind.noun());
        report.add(loc, Problem::ParamDtype { param, kind, found: p.dtype, allowed });
    }
    let single = matches!(p.kind, ParamKind::EpochWord | ParamKind::Scalar);
    if single && p.len != 1 {
        let (param, kind) = (p.name.clone(), p.kind.noun());
        report.add(loc, Problem::ParamLength { param, kind, len: p.len });
    }
    if let Some(transport) = p.kind.transport() {
        let unit = transport.unit(p.dtype);
        if !p.len.is_multiple_of(unit.into()) {
            report.add(
                loc,
                Problem::MessageBufferLength { transport, param: p.name.clone(), len: p.len, unit },
            );
        }
    }
    if p.len.checked_mul(p.element_bytes().into()).is_none_or(|b| b > i64::MAX as u64) {
        report.add(loc, Problem::BufferTooLarge { param: p.name.clone(), len: p.len });
    }
}

fn shared(report: &mut Report<'_>, s: &Shared) {
    if s.dtype == Dtype::Bool {
        report.add(s.loc, Problem::SharedDtype { shared: s.name.clone() });
    }
    if s.len == 0 {
        report.add(s.loc, Problem::SharedEmpty { shared: s.name.clone() });
    }
    let warps = report.kernel.block_warps;
    if s.copies == 0 || !warps.is_multiple_of(s.copies) {
        report.add(s.loc, Problem::SharedCopies { shared: s.name.clone(), copies: s.copies, warps });
    }
}

/// Tile lengths of values and variables. A value without a definition has no place of its own: the kernel's stands for it.
fn tiles(report: &mut Report<'_>) {
    let k = report.kernel;
    let mut place = vec![k.loc; k.values.len()];
    report.each_op(&mut |_, op| {
        for v in op.kind.outs().into_iter().chain(op.kind.counter()) {
            place[v.index()] = op.loc;
        }
    });
    let limit = MAX_TILE;
    let bad = |ty: Type| ty.len.filter(|&n| n == 0 || n > limit);
    for (i, v) in k.values.iter().enumerate() {
        if let Some(len) = bad(v.ty) {
            let value = report.names.value(ValueId(i as u32));
            report.add(place[i], Problem::TileLength { value, len, limit });
        }
    }
    let broken = |ty: Type| {
        ty.len.zip(ty.columns).filter(|&(len, columns)| columns == 0 || !len.is_multiple_of(columns))
    };
    for (i, v) in k.values.iter().enumerate() {
        if let Some((len, columns)) = broken(v.ty) {
            let value = report.names.value(ValueId(i as u32));
            report.add(place[i], Problem::BrokenRows { value, len, columns });
        }
    }
    for (i, v) in k.vars.iter().enumerate() {
        if let Some(len) = bad(v.ty) {
            let value = report.names.var(VarId(i as u32));
            report.add(v.loc, Problem::TileLength { value, len, limit });
        }
    }
}
