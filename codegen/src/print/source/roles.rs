//! The functions of roles: one each, two where a loader brings what the others multiply.

use std::collections::HashMap;

use super::texts::has_lives;
use crate::ir::{Beside, Kernel, Role, SharedId, ValueId, rank_list};
use crate::print::control::statements;
use crate::print::emit::Group;
use crate::print::facts::{Facts, Form, Side};
use crate::print::loader::Loaders;
use crate::print::text::{Prim, PrintError, Used, Writer, type_name};

/// The prologue's values that a role reads, in order of definition.
pub(crate) fn role_parameters(facts: &Facts, role: usize) -> Vec<ValueId> {
    let p = &facts.p;
    let defined = p.kernel.prologue.ops.iter().flat_map(|&id| p.kernel.op(id).kind.outs());
    defined
        .filter(|&v| facts.forms.of(v) == Form::Named)
        .filter(|&v| facts.forms.readers(p, v).iter().any(|&r| p.position(r).role == Some(role)))
        .collect()
}

/// A kernel, and with loaders its parts: what they run and what all others do.
pub(crate) struct Parts<'a> {
    pub whole: &'a Facts<'a>,
    pub loaders: Option<(&'a Loaders, [Facts<'a>; 2])>,
}

impl<'a> Parts<'a> {
    pub fn new(whole: &'a Facts<'a>, loaders: Option<&'a Loaders>) -> Result<Parts<'a>, PrintError> {
        let both = |loaders: &'a Loaders| {
            let loads = Facts::part(Side::Loads, &loaders.loads, whole)?;
            Ok((loaders, [loads, Facts::part(Side::Multiplies, &loaders.multiplies, whole)?]))
        };
        Ok(Parts { whole, loaders: loaders.map(both).transpose()? })
    }

    /// The type of the group that a role beside another one is.
    pub fn beside(&self, role: usize) -> Option<String> {
        let kernel = self.whole.p.kernel;
        let host = kernel.roles[role].beside.as_ref()?;
        let before = kernel.roles[..role].iter().filter_map(|r| r.beside.as_ref());
        let before: Vec<u32> = before.filter(|b| b.role == host.role).map(|b| b.warps).collect();
        let loader = self.loaders.as_ref().map_or(0, |(loaders, _)| loaders.crew.warps);
        let first = kernel.block_warps + loader + before.iter().sum::<u32>();
        Some(format!("Beside<{first}, {}, {}>", host.warps, before.len()))
    }

    /// What a role's functions are written from, one each.
    pub fn of(&self, role: usize) -> &[Facts<'a>] {
        match &self.loaders {
            Some((loaders, both)) if loaders.ring(role).is_some() => both,
            _ => std::slice::from_ref(self.whole),
        }
    }
}

/// The roles' functions: two for a role with a loader.
pub(crate) fn role_texts(
    parts: &Parts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
) -> Result<Vec<String>, PrintError> {
    let mut texts = vec![];
    for role in 0..parts.whole.p.kernel.roles.len() {
        for part in parts.of(role) {
            texts.push(role_text(part, parts, used, offsets, role)?);
        }
    }
    Ok(texts)
}

/// One role's function.
fn role_text(
    facts: &Facts,
    parts: &Parts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
    index: usize,
) -> Result<String, PrintError> {
    let kernel = facts.p.kernel;
    let role = &kernel.roles[index];
    used.add(Prim::Block);
    let loaders = facts.side.and(parts.loaders.as_ref()).map(|(loaders, _)| *loaders);
    let mut e = statements::emitter(facts, loaders, used, offsets);
    let beside = parts.beside(index);
    if beside.is_some() {
        e.used.add(Prim::Beside);
        e.group = Group { name: "warps", lanes: kernel.role_warps(index) * kernel.warp_size };
    }
    // Before anything of the author's, so that it is called just that.
    let nth = is_numbered(kernel, index).then(|| e.names.fresh("nth"));
    let mut parameters = vec!["const Args& args".to_string()];
    parameters.extend(facts.timeline.is_some().then(|| "Timeline& timeline".to_string()));
    for v in role_parameters(facts, index) {
        let name = e.declare(v);
        parameters.push(format!("const {} {name}", type_name(e.ty(v).dtype)));
    }
    let loads = facts.loads();
    let group = match &beside {
        Some(ty) => format!("{ty} warps"),
        None if loads => "Loader loader".into(),
        None => "Block block".into(),
    };
    match nth {
        Some(nth) => {
            parameters.push(format!("const u32 {nth}"));
            let joined = has_lives(kernel, facts.target) && kernel.joining(index).next().is_some();
            let life = if joined { ", 2" } else { "" };
            e.w.line(&format!("const {group}(block_in_grid() - {nth}{life});"));
        }
        None => e.w.line(&format!("const {group}({});", kernel.places(index)[0].1)),
    }
    if !loads {
        e.declare_parts(&role.body);
    }
    e.declare_shared(&role.body, 1);
    e.declare_ring(index);
    e.share_registers();
    if let (Some(_), Some((loaders, _))) = (&beside, &parts.loaders) {
        e.give_registers(loaders);
    }
    e.declare_tensor_memory(&role.body);
    e.declare_opened(&role.body);
    e.region(&role.body)?;
    e.end_ring();
    let body = e.w.finish();
    let mut w = Writer::new(0);
    let who = match (facts.side, &role.beside) {
        (Some(Side::Loads), _) => "the loader of blocks".into(),
        (Some(Side::Multiplies), _) => "the other warps of blocks".into(),
        (None, Some(Beside { role, warps: 1 })) => format!("a warp beside {role}, in each of blocks"),
        (None, Some(Beside { role, warps })) => format!("{warps} warps beside {role}, in each of blocks"),
        (None, None) => "blocks".to_string(),
    };
    let others =
        kernel.joining(index).map(|r| format!(", and those of {} when they are done", kernel.roles[r].name));
    let numbers = block_numbers(kernel, index);
    w.comment(&format!("{}: {who} {numbers}{} ({})", role.name, others.collect::<String>(), role.loc));
    let (function, parameters) = (function(facts, role), parameters.join(", "));
    w.line(&format!("__device__ __forceinline__ void {function}({parameters}) {{"));
    w.append(&body);
    w.line("}");
    Ok(w.finish().trim_end().to_string())
}

/// Whether a role's functions are given the block's number in the role: it is not a constant less than its number in the grid.
pub(super) fn is_numbered(kernel: &Kernel, role: usize) -> bool {
    kernel.joining(role).next().is_some() || kernel.places(role).len() > 1
}

/// The numbers of a role's blocks: `0..8`, `0..8 of rank 0; 8..16 of ranks 1 to 3`.
pub(super) fn block_numbers(kernel: &Kernel, role: usize) -> String {
    let blocks = kernel.roles[role].blocks;
    let differ = kernel.differs_by_rank(role);
    let place = |(ranks, first): &(Vec<u32>, u32)| {
        let of = if differ { format!(" of {}", rank_list(ranks)) } else { String::new() };
        format!("{first}..{}{of}", first + blocks)
    };
    kernel.places(role).iter().map(place).collect::<Vec<_>>().join("; ")
}

/// The name of what a part of a role is.
pub(crate) fn function(facts: &Facts, role: &Role) -> String {
    format!("{}_{}", role.name, if facts.loads() { "loader" } else { "role" })
}
