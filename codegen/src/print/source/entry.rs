//! The entry of an emitted source: the prologue, and whose turn it is: roles by block, those beside them by warp.

use std::collections::HashMap;

use super::roles::{Parts, function, is_numbered, role_parameters};
use super::texts::has_lives;
use crate::family::Target;
use crate::ir::{Kernel, SharedId, rank_list};
use crate::print::analysis::signals::{asks_status, begun};
use crate::print::control::statements;
use crate::print::emit::Emitter;
use crate::print::facts::Facts;
use crate::print::layout::shared::copy_room;
use crate::print::text::{Prim, PrintError, Used, Writer};

/// The entry: what comes before the end of the launch before, if anything does; and what comes after it. These are the prologue, and
/// roles by block index.
pub(crate) fn entry_body(
    parts: &Parts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
) -> Result<(Option<String>, String), PrintError> {
    let facts = parts.whole;
    let kernel = facts.p.kernel;
    let mut e = statements::emitter(facts, None, used, offsets);
    if kernel.beside_warps() > 0 && matches!(facts.target, Target::Hip(_)) {
        e.used.add(Prim::Beside);
        e.w.line("open_meetings();");
    }
    let joined: Vec<usize> =
        (0..kernel.roles.len()).filter(|&role| kernel.joining(role).next().is_some()).collect();
    for &role in &joined {
        e.names.fresh(&nth_name(kernel, role)); // before anything of the author's, so that it is called just that
    }
    let early = match kernel.begins_early {
        true => {
            e.region(&kernel.prologue)?;
            Some(std::mem::replace(&mut e.w, Writer::new(1)).finish().trim_end().to_owned())
        }
        false => None,
    };
    e.begin_timeline();
    let epoch = kernel.prologue.ops.iter().find_map(|&id| begun(kernel, id));
    let aborted = asks_status(kernel).then(|| e.names.fresh("aborted"));
    if let Some(aborted) = &aborted {
        e.used.add(Prim::System);
        e.w.line(&format!(
            "const bool {aborted} = load_relaxed_system(&args.status[args.rank]->aborted) != 0;"
        ));
    }
    if early.is_none() {
        e.release_earlier_launches(|role| parts.of(role).len() > 1);
        e.region(&kernel.prologue)?;
    }
    // Only now, so that the loads of the prologue don't wait for this one. Whole blocks leave: groups meet at barriers
    // that would wait for the warps of a part.
    let leaves = match (epoch, aborted) {
        (Some(epoch), _) => Some(format!("{} == 0", e.values[&epoch])),
        (None, Some(aborted)) if kernel.beside_warps() > 0 => Some(all_agree(&mut e, &aborted)),
        (None, Some(aborted)) => {
            e.used.add(Prim::Block);
            Some(format!("Block(0).any({aborted})"))
        }
        (None, None) => None,
    };
    if let Some(leaves) = leaves {
        e.w.line(&format!(
            "if ({leaves}) return;  // what launches before this one left behind may be anything"
        ));
    }
    for &role in &joined {
        let (name, role) = (nth_name(kernel, role), &kernel.roles[role].name);
        e.w.line_with(
            &format!("u32 {name} = ~0u;"),
            &format!("this block's number in {role}, once it is of it"),
        );
    }
    by_rank(&mut e, parts, &joined);
    for role in joined {
        e.w.line(&format!("if ({} < {}) {{", nth_name(kernel, role), kernel.role_blocks(role)));
        e.w.deeper();
        call_role(&mut e, parts, role, 0);
        e.w.shallower();
        e.w.line("}");
    }
    if kernel.ops.iter().any(|op| copy_room(&op.kind, facts.target).is_some()) {
        e.used.add(Prim::BulkDone);
        e.w.line("bulk_done();  // those of a role that has given up, too: they read shared memory");
    }
    Ok((early, e.w.finish().trim_end().to_owned()))
}

/// Whether something holds in any thread of a block, those beside its role too.
fn all_agree(e: &mut Emitter, mine: &str) -> String {
    e.used.add(Prim::Meeting);
    let kernel = e.f.p.kernel;
    let warps = kernel.block_warps + kernel.beside_warps();
    let place = match e.f.target {
        Target::Cuda(_) => "{0}",
        Target::Hip(_) => "(everybodys_place())",
    };
    format!("!Meeting<{warps}>{place}.all(!{mine})")
}

/// Chooses among the roles that have blocks of their own, first by rank where ranks have different roles.
fn by_rank(e: &mut Emitter, parts: &Parts, joined: &[usize]) {
    let kernel = parts.whole.p.kernel;
    let kinds = kernel.kinds_of_ranks();
    if let [all] = kinds.as_slice() {
        return by_block(e, parts, joined, all[0]);
    }
    for (n, ranks) in kinds.iter().enumerate() {
        match n {
            0 => e.w.line(&format!("if ({}) {{", is_one_of(ranks))),
            _ if n + 1 == kinds.len() => e.w.line_with("} else {", &rank_list(ranks)),
            _ => e.w.line(&format!("}} else if ({}) {{", is_one_of(ranks))),
        }
        e.w.deeper();
        by_block(e, parts, joined, ranks[0]);
        e.w.shallower();
    }
    e.w.line("}");
}

/// Whether this rank is one of these.
fn is_one_of(ranks: &[u32]) -> String {
    let (first, last) = (ranks[0], ranks[ranks.len() - 1]);
    match ranks.len() {
        1 => format!("args.rank == {first}"),
        n if last - first + 1 != n as u32 => {
            let each: Vec<String> = ranks.iter().map(|rank| format!("args.rank == {rank}")).collect();
            each.join(" || ")
        }
        _ if first == 0 => format!("args.rank <= {last}"),
        _ => format!("args.rank >= {first} && args.rank <= {last}"),
    }
}

/// Chooses among the roles of a rank that have blocks of their own. Further blocks of the grid do nothing.
fn by_block(e: &mut Emitter, parts: &Parts, joined: &[usize], rank: u32) {
    let kernel = parts.whole.p.kernel;
    let own = |&role: &usize| kernel.roles[role].beside.is_none() && kernel.roles[role].is_on(rank);
    let with_blocks: Vec<usize> = (0..kernel.roles.len()).filter(own).collect();
    let leaves_none = kernel.blocks_of(rank) == kernel.grid_blocks();
    let mut first = 0;
    for (n, &i) in with_blocks.iter().enumerate() {
        let role = &kernel.roles[i];
        first += role.blocks;
        let last = n + 1 == with_blocks.len();
        match n {
            _ if with_blocks.len() == 1 && leaves_none => {
                call_role(e, parts, i, 0);
                continue;
            }
            0 => e.w.line(&format!("if (block_in_grid() < {first}) {{")),
            _ if last && leaves_none => e.w.line("} else {"),
            _ => e.w.line(&format!("}} else if (block_in_grid() < {first}) {{")),
        }
        e.w.deeper();
        if joined.contains(&i) {
            e.w.line(&format!("{} = block_in_grid() - {};", nth_name(kernel, i), first - role.blocks));
        } else {
            call_role(e, parts, i, first - role.blocks);
        }
        if let Some((next, from)) = kernel.goes_on(i) {
            let beside = kernel.beside_warps() > 0 || parts.loaders.is_some();
            go_on(e, kernel, next, (first - role.blocks, from), beside);
        }
        e.w.shallower();
        if last {
            e.w.line("}");
        }
    }
}

/// The variable that has a block's number in a role that others go on as.
fn nth_name(kernel: &Kernel, role: usize) -> String {
    format!("nth_of_{}", kernel.roles[role].name)
}

/// A block that is done with its role goes on as another one: from its first block in the grid on, as which blocks there. Loaders and warps
/// beside do not.
fn go_on(e: &mut Emitter, kernel: &Kernel, next: usize, (first, from): (u32, u32), beside: bool) {
    e.used.add(Prim::Block);
    let whose = if beside { "if (in_block()) " } else { "" };
    let life = if has_lives(kernel, e.f.target) { ", 1" } else { "" };
    let meets = format!("{whose}Block({first}{life}).sync();");
    e.w.line_with(&meets, "all of it is done: shared memory may be another's");
    let shift = if from >= first { format!("+ {}", from - first) } else { format!("- {}", first - from) };
    e.w.line(&format!("{} = block_in_grid() {shift};", nth_name(kernel, next)));
}

/// The calls of a role's functions and of those beside it, by the warps that run them. `first` is the first block of the role.
fn call_role(e: &mut Emitter, parts: &Parts, index: usize, first: u32) {
    let kernel = parts.whole.p.kernel;
    let timeline = e.timeline_parameter();
    let call = |e: &Emitter, facts: &Facts, index: usize| {
        let mut values: String =
            role_parameters(facts, index).iter().map(|v| format!(", {}", e.values[v])).collect();
        match kernel.joining(index).next() {
            Some(_) => values += &format!(", {}", nth_name(kernel, index)),
            None if !is_numbered(kernel, index) => {}
            None if first == 0 => values += ", block_in_grid()",
            None => values += &format!(", block_in_grid() - {first}"),
        }
        format!("{}(args{timeline}{values});", function(facts, &kernel.roles[index]))
    };
    // By whom, what they call, and the role that they are of.
    let mut calls: Vec<(String, String, usize)> = vec![];
    let own = parts.of(index);
    if let [loads, _] = own {
        calls.push(("in_loader()".into(), call(e, loads, index), index));
    }
    for role in kernel.companions(index) {
        let ty = parts.beside(role).expect("it runs beside another role");
        calls.push((format!("{ty}::has_this()"), call(e, parts.whole, role), role));
    }
    let last = call(e, own.last().expect("a role has a function"), index);
    // Blocks may have warps that have nothing to do in this role.
    let idle =
        kernel.companion_warps(index) < kernel.beside_warps() || (parts.loaders.is_some() && own.len() == 1);
    let condition = if idle { "in_block()" } else { "" };
    calls.push((condition.into(), last, index));
    let moved = parts.loaders.as_ref().is_some_and(|(loaders, _)| loaders.crew.registers.is_some());
    write_calls(e, kernel, &calls, moved && kernel.goes_on(index).is_some());
}

/// Chooses among calls, and says that roles end. All but the last one's warps leave the kernel then if `leave`: what comes after has as many
/// registers as the fewest of the warps that come there.
fn write_calls(e: &mut Emitter, kernel: &Kernel, calls: &[(String, String, usize)], leave: bool) {
    let ends = |e: &mut Emitter, role: usize| {
        if kernel.roles[role].goes_on_as.is_none() {
            e.end_role(role, &nth_name(kernel, role));
        }
    };
    if let [(condition, call, role)] = calls {
        let asked = if condition.is_empty() { String::new() } else { format!("if ({condition}) ") };
        e.w.line(&format!("{asked}{call}"));
        return ends(e, *role);
    }
    for (n, (condition, call, role)) in calls.iter().enumerate() {
        let otherwise = if n == 0 { "" } else { "} else " };
        let asked = if condition.is_empty() { String::new() } else { format!("if ({condition}) ") };
        e.w.line(&format!("{otherwise}{asked}{{"));
        e.w.deeper();
        e.w.line(call);
        ends(e, *role);
        if leave && n + 1 < calls.len() {
            e.w.line_with("return;", "with few registers: the others go on with more");
        }
        e.w.shallower();
    }
    if let Some((condition, _, role)) = calls.last()
        && !condition.is_empty()
        && e.f.timeline.is_some()
    {
        e.w.line("} else {");
        e.w.deeper();
        ends(e, *role); // warps that have nothing to do have ended, too
        e.w.shallower();
    }
    e.w.line("}");
}
