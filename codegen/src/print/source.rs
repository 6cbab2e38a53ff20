//! Puts the parts of an emitted source together.

use std::collections::{BTreeSet, HashMap};

use crate::{
    device::Device,
    family::Target,
    ir::{
        BlockWait, CommOp, Kernel, OpId, OpKind, Param, ParamKind, Region, Role, SharedId, ValueId, ValueOp,
    },
};

use super::{
    EmitInfo, LaunchShape, PrintError, Source, ahead,
    args::{self, ArgsLayout},
    banner, blocks,
    copy::room_of,
    emitter::{Emitter, Facts},
    inline::Form,
    launch,
    loader::{Crew, Loaders, Side},
    matrix, multimem,
    names::{is_identifier, is_taken},
    ops::{self, type_name},
    prim::{Prim, Used},
    splats,
    template::{self, ConstantText, KernelText},
    timeline::{self, Sites},
    writer::Writer,
};

/// Emits a kernel.
pub(super) fn emit(
    kernel: &Kernel,
    target: Target,
    info: &EmitInfo,
    timeline: Option<u32>,
) -> Result<Source, PrintError> {
    check(kernel, target)?;
    let kernel = &ahead::hoist(splats::apart(kernel));
    let facts = Facts::new(kernel, target, timeline)?;
    let loaders = Loaders::of(&facts);
    let timeline = facts.timeline.as_ref().map(|sites| sites.layout(kernel));
    let (offsets, shared_bytes) = shared_offsets(kernel, target)?;
    let shared_bytes = shared_bytes.max(loaders.as_ref().map_or(0, Loaders::shared_bytes));
    let launch = LaunchShape {
        grid: kernel.grid_blocks(),
        block_threads: kernel.block_threads() + loaders.as_ref().map_or(0, Loaders::threads),
        shared_bytes,
        exclusive_sm_bytes: exclusive_sm_bytes(target).map(|half| half.max(shared_bytes)),
        overlaps_previous: target.overlaps_launches(),
    };
    let maps = loaders.as_ref().map_or(vec![], Loaders::maps);
    let layout = ArgsLayout::new(kernel, &facts.args, timeline.as_ref(), maps);
    check_args(kernel, target, &layout)?;
    let mut used = Used::default();
    used.add(Prim::Types);
    used.add(Prim::Index);
    timeline::use_types(facts.timeline.as_ref(), &mut used);
    let parts = Parts::new(&facts, loaders.as_ref())?;
    let (early, body) = entry_body(&parts, &mut used, &offsets)?;
    let roles = role_texts(&parts, &mut used, &offsets)?;
    for p in &kernel.params {
        ops::use_dtype(&mut used, p.dtype);
    }
    let crew = loaders.as_ref().map(|loaders| loaders.crew);
    let context = KernelText {
        banner: banner::lines(kernel, target, info, &launch, timeline.as_ref()),
        includes: includes(target, &used),
        namespace: namespace(kernel),
        types: texts(&used, target, kernel, crew, true)?,
        args: args_name(kernel),
        fields: args::fields(kernel, &facts.args, timeline.as_ref(), &layout.maps),
        ranks: kernel.ranks,
        constants: constants(kernel, facts.timeline.as_ref()),
        primitives: texts(&used, target, kernel, crew, false)?,
        roles,
        threads: launch.block_threads,
        entry: kernel.variant.clone(),
        overlaps_previous: launch.overlaps_previous,
        early,
        body,
    };
    let device = template::kernel(target, &context)?;
    let host = launch::Host {
        kernel,
        target,
        names: &facts.args,
        launch: &launch,
        layout: &layout,
        timeline: timeline.as_ref(),
    };
    let launcher = launch::launcher(&host)?;
    Ok(Source {
        text: format!("{device}\n{launcher}"),
        abi: launch::header(&host, info)?,
        file_name: format!("{}.{}", kernel.variant, target.file_extension()),
        abi_file_name: launch::header_name(kernel),
        entry: kernel.variant.clone(),
        launch,
        args: layout,
        params: kernel.params.iter().map(Param::signature).collect(),
        timeline,
    })
}

/// What can be refused before anything is analysed.
pub(super) fn check(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    let variant = || kernel.variant.clone();
    if kernel.warp_size != target.warp_size() {
        return Err(PrintError::WarpSize {
            kernel: variant(),
            traced: kernel.warp_size,
            target,
            target_lanes: target.warp_size(),
        });
    }
    if kernel.block_threads() > 1024 {
        return Err(PrintError::BlockTooLarge { kernel: variant(), threads: kernel.block_threads(), target });
    }
    let roles = kernel.roles.iter().map(|r| ("role", &r.name));
    let params = kernel.params.iter().map(|p| ("parameter", &p.name));
    for (what, name) in [("variant", &kernel.variant)].into_iter().chain(roles).chain(params) {
        if !is_identifier(name) {
            return Err(PrintError::Name { what, name: name.clone() });
        }
    }
    if is_taken(&kernel.variant) {
        return Err(PrintError::TakenName { name: variant() });
    }
    multimem::check(kernel, target)
}

fn check_args(kernel: &Kernel, target: Target, layout: &ArgsLayout) -> Result<(), PrintError> {
    // CUDA 12.1 raised the limit from 4 KiB; ROCm's kernel argument segment is 4 KiB unless told otherwise.
    let limit = match target {
        Target::Cuda(_) => 32764,
        Target::Hip(_) => 4096,
    };
    let bytes = u64::from(layout.bytes);
    if bytes > limit {
        return Err(PrintError::TooManyArguments { kernel: kernel.variant.clone(), bytes, limit, target });
    }
    Ok(())
}

/// Dynamic shared memory of which an SM has no more than one block's: half of it. Only NVIDIA's launchers ask for it.
fn exclusive_sm_bytes(target: Target) -> Option<u32> {
    let half = (Device::of(target).sm_shared_bytes / 2).next_multiple_of(1024);
    matches!(target, Target::Cuda(_)).then_some(half)
}

/// The first byte of each shared array, and the bytes of a block. A block has one role, so roles overlap.
fn shared_offsets(kernel: &Kernel, target: Target) -> Result<(HashMap<SharedId, u32>, u32), PrintError> {
    let mut offsets = HashMap::new();
    let mut most = 0u64;
    let rooms: BTreeSet<SharedId> = kernel.ops.iter().filter_map(|op| matrix::room_of(&op.kind)).collect();
    for role in &kernel.roles {
        let mut end = 0u64;
        for id in shared_of(kernel, &role.body, target) {
            let s = &kernel.shared[id.index()];
            // An array of several roles keeps the place that its first role gave it.
            let align =
                u64::from(if rooms.contains(&id) { matrix::shared_align(kernel, target) } else { 16 });
            let start = offsets.get(&id).map_or(end.next_multiple_of(align), |&o| u64::from(o));
            offsets.insert(id, start as u32);
            let len = u64::from(matrix::shared_len(kernel, id, target));
            let one = (len * u64::from(s.dtype.bytes())).next_multiple_of(16);
            end = end.max(start + one * u64::from(s.copies));
        }
        most = most.max(end);
    }
    let limit = u64::from(Device::of(target).block_array_bytes());
    if most > limit {
        return Err(PrintError::SharedTooLarge {
            kernel: kernel.variant.clone(),
            bytes: most,
            limit,
            target,
        });
    }
    Ok((offsets, most as u32))
}

/// The shared arrays that a region uses on a target.
pub(super) fn shared_of(kernel: &Kernel, region: &Region, target: Target) -> BTreeSet<SharedId> {
    let mut found = BTreeSet::new();
    kernel.walk(region, &mut |_, op| {
        found.extend(op.kind.accesses().into_iter().filter_map(|a| a.place.shared()));
        found.extend(room_of(&op.kind, target));
        found.extend(matrix::room_of(&op.kind));
    });
    found
}

/// The prologue's values that a role reads, in order of definition.
fn role_parameters(facts: &Facts, role: usize) -> Vec<ValueId> {
    let p = &facts.p;
    let defined = p.kernel.prologue.ops.iter().flat_map(|&id| p.kernel.op(id).kind.outs());
    defined
        .filter(|&v| facts.forms.of(v) == Form::Named)
        .filter(|&v| facts.forms.readers(p, v).iter().any(|&r| p.position(r).role == Some(role)))
        .collect()
}

/// A kernel, and with loaders its parts: what they run and what all others do.
struct Parts<'a> {
    whole: &'a Facts<'a>,
    loaders: Option<(&'a Loaders, [Facts<'a>; 2])>,
}

impl<'a> Parts<'a> {
    fn new(whole: &'a Facts<'a>, loaders: Option<&'a Loaders>) -> Result<Parts<'a>, PrintError> {
        let part = |loaders, side| Facts::part(side, loaders, whole.target);
        let both = |loaders| Ok((loaders, [part(loaders, Side::Loads)?, part(loaders, Side::Multiplies)?]));
        Ok(Parts { whole, loaders: loaders.map(both).transpose()? })
    }

    /// What a role's functions are written from, one each.
    fn of(&self, role: usize) -> &[Facts<'a>] {
        match &self.loaders {
            Some((loaders, both)) if loaders.ring(role).is_some() => both,
            _ => std::slice::from_ref(self.whole),
        }
    }
}

/// The roles' functions: two for a role with a loader.
fn role_texts(
    parts: &Parts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
) -> Result<Vec<String>, PrintError> {
    let mut texts = vec![];
    let mut first = 0;
    for (i, role) in parts.whole.p.kernel.roles.iter().enumerate() {
        for part in parts.of(i) {
            texts.push(role_text(part, used, offsets, i, first)?);
        }
        first += role.blocks;
    }
    Ok(texts)
}

/// One role's function.
fn role_text(
    facts: &Facts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
    index: usize,
    first_block: u32,
) -> Result<String, PrintError> {
    let kernel = facts.p.kernel;
    let role = &kernel.roles[index];
    used.add(Prim::Block);
    let mut e = Emitter::new(facts, used, offsets);
    // Before anything of the author's, so that it is called just that.
    let nth = kernel.joining(index).next().is_some().then(|| e.names.fresh("nth"));
    let mut parameters = vec!["const Args& args".to_string()];
    parameters.extend(facts.timeline.is_some().then(|| "Timeline& timeline".to_string()));
    for v in role_parameters(facts, index) {
        let name = e.declare(v);
        parameters.push(format!("const {} {name}", type_name(e.ty(v).dtype)));
    }
    let loads = facts.loads();
    let group = if loads { "Loader loader" } else { "Block block" };
    match nth {
        Some(nth) => {
            parameters.push(format!("const u32 {nth}"));
            e.w.line(&format!("const {group}(block_in_grid() - {nth});"));
        }
        None => e.w.line(&format!("const {group}({first_block});")),
    }
    if !loads {
        e.declare_parts(&role.body);
    }
    e.declare_shared(&role.body, 1);
    e.declare_ring(index);
    e.share_registers();
    e.declare_opened(&role.body);
    e.region(&role.body)?;
    let body = e.w.finish();
    let mut w = Writer::new(0);
    let who = match facts.side {
        Some((Side::Loads, _)) => "the loader of blocks",
        Some((Side::Multiplies, _)) => "the other warps of blocks",
        None => "blocks",
    };
    let blocks = format!("{first_block}..{}", first_block + role.blocks);
    let others =
        kernel.joining(index).map(|r| format!(", and those of {} when they are done", kernel.roles[r].name));
    w.comment(&format!("{}: {who} {blocks}{} ({})", role.name, others.collect::<String>(), role.loc));
    let (function, parameters) = (function(facts, role), parameters.join(", "));
    w.line(&format!("__device__ __forceinline__ void {function}({parameters}) {{"));
    w.append(&body);
    w.line("}");
    Ok(w.finish().trim_end().to_string())
}

/// The name of what a part of a role is.
fn function(facts: &Facts, role: &Role) -> String {
    format!("{}_{}", role.name, if facts.loads() { "loader" } else { "role" })
}

/// The entry: what comes before the end of the launch before, if anything does; and what comes after it. These are the prologue, and
/// roles by block index.
fn entry_body(
    parts: &Parts,
    used: &mut Used,
    offsets: &HashMap<SharedId, u32>,
) -> Result<(Option<String>, String), PrintError> {
    let facts = parts.whole;
    let kernel = facts.p.kernel;
    let mut e = Emitter::new(facts, used, offsets);
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
    let alone = kernel.roles.len() == 1;
    for &role in &joined {
        let (name, role) = (nth_name(kernel, role), &kernel.roles[role].name);
        e.w.line_with(
            &format!("u32 {name} = ~0u;"),
            &format!("this block's number in {role}, once it is of it"),
        );
    }
    let mut first = 0;
    for (i, role) in kernel.roles.iter().enumerate() {
        first += role.blocks;
        let last = i + 1 == kernel.roles.len();
        match i {
            _ if alone => {
                call_role(&mut e, parts, i);
                continue;
            }
            0 => e.w.line(&format!("if (block_in_grid() < {first}) {{")),
            _ if last => e.w.line("} else {"),
            _ => e.w.line(&format!("}} else if (block_in_grid() < {first}) {{")),
        }
        e.w.deeper();
        if joined.contains(&i) {
            e.w.line(&format!("{} = block_in_grid() - {};", nth_name(kernel, i), first - role.blocks));
        } else {
            call_role(&mut e, parts, i);
        }
        if let Some((next, from)) = kernel.goes_on(i) {
            go_on(&mut e, kernel, next, (first - role.blocks, from));
        }
        e.w.shallower();
        if last {
            e.w.line("}");
        }
    }
    for role in joined {
        e.w.line(&format!("if ({} < {}) {{", nth_name(kernel, role), kernel.role_blocks(role)));
        e.w.deeper();
        call_role(&mut e, parts, role);
        e.w.shallower();
        e.w.line("}");
    }
    if kernel.ops.iter().any(|op| room_of(&op.kind, facts.target).is_some()) {
        e.used.add(Prim::BulkDone);
        e.w.line("bulk_done();  // those of a role that has given up, too: they read shared memory");
    }
    Ok((early, e.w.finish().trim_end().to_owned()))
}

/// The variable that has a block's number in a role that others go on as.
fn nth_name(kernel: &Kernel, role: usize) -> String {
    format!("nth_of_{}", kernel.roles[role].name)
}

/// A block that is done with its role goes on as another one: from its first block in the grid on, as which blocks there.
fn go_on(e: &mut Emitter, kernel: &Kernel, next: usize, (first, from): (u32, u32)) {
    e.used.add(Prim::Block);
    e.w.line_with(&format!("Block({first}).sync();"), "all of it is done: shared memory may be another's");
    let shift = if from >= first { format!("+ {}", from - first) } else { format!("- {}", first - from) };
    e.w.line(&format!("{} = block_in_grid() {shift};", nth_name(kernel, next)));
}

/// The calls of a role's functions, by the warps that run them.
fn call_role(e: &mut Emitter, parts: &Parts, index: usize) {
    let kernel = parts.whole.p.kernel;
    let role = &kernel.roles[index];
    let timeline = e.timeline_parameter();
    let call = |facts: &Facts| {
        let mut values: String =
            role_parameters(facts, index).iter().map(|v| format!(", {}", e.values[v])).collect();
        if kernel.joining(index).next().is_some() {
            values += &format!(", {}", nth_name(kernel, index));
        }
        format!("{}(args{timeline}{values});", function(facts, role))
    };
    let calls: Vec<String> = parts.of(index).iter().map(call).collect();
    let lines = match (calls.as_slice(), &parts.loaders) {
        ([loads, multiplies], _) => {
            vec![
                "if (in_loader()) {".into(),
                format!("    {loads}"),
                "} else {".into(),
                format!("    {multiplies}"),
                "}".into(),
            ]
        }
        ([all], Some(_)) => vec![format!("if (!in_loader()) {all}")],
        _ => calls,
    };
    lines.iter().for_each(|line| e.w.line(line));
    if kernel.roles[index].goes_on_as.is_none() {
        e.end_role(index, &nth_name(kernel, index));
    }
}

/// The epoch that an operation begins.
pub(super) fn begun(kernel: &Kernel, id: OpId) -> Option<ValueId> {
    if let OpKind::Value(ValueOp::Epoch { out, advance: true, .. }) = kernel.op(id).kind {
        return Some(out);
    }
    None
}

/// Whether blocks ask by themselves if the world is aborted: ranks say something to each other, and no epoch tells.
pub(super) fn asks_status(kernel: &Kernel) -> bool {
    talks(kernel) && !kernel.prologue.ops.iter().any(|&id| begun(kernel, id).is_some())
}

/// Whether ranks say anything to each other.
fn talks(kernel: &Kernel) -> bool {
    let mut kinds = kernel.params.iter().map(|p| p.kind);
    kinds.any(|kind| matches!(kind, ParamKind::Flags | ParamKind::Packets | ParamKind::Ll))
}

/// Texts of the primitives: those of the element types, which the argument struct needs, or all others.
fn texts(
    used: &Used,
    target: Target,
    kernel: &Kernel,
    loader: Option<Crew>,
    types: bool,
) -> Result<Vec<String>, PrintError> {
    let mut out = vec![];
    for prim in used.iter().filter(|p| p.is_type() == types) {
        out.push(template::primitive(prim, target, kernel, loader)?);
    }
    Ok(out)
}

fn includes(target: Target, used: &Used) -> Vec<&'static str> {
    match target {
        Target::Hip(_) => vec!["hip/hip_runtime.h"],
        Target::Cuda(_) => {
            [(Prim::Bf16, "cuda_bf16.h"), (Prim::Fp16, "cuda_fp16.h"), (Prim::Fp8, "cuda_fp8.h")]
                .into_iter()
                .filter(|(p, _)| used.contains(*p))
                .map(|(_, header)| header)
                .collect()
        }
    }
}

/// The constants that the rest of the source names.
fn constants(kernel: &Kernel, timeline: Option<&Sites>) -> Vec<ConstantText> {
    let mut out = wait_constants(kernel);
    out.extend(timeline.iter().flat_map(|sites| sites.constants()));
    out
}

/// What waits say about themselves when they expire.
fn wait_constants(kernel: &Kernel) -> Vec<ConstantText> {
    let mut awaited = BTreeSet::new();
    let mut roles = BTreeSet::new();
    for (i, role) in kernel.roles.iter().enumerate() {
        kernel.walk(&role.body, &mut |_, op| {
            for a in op.kind.accesses().into_iter().filter(|a| a.access.waits()) {
                awaited.extend(a.place.param());
                roles.insert(i);
            }
            if let OpKind::Comm(CommOp::BlockWait(BlockWait { flag, .. })) = op.kind {
                roles.extend(blocks::signaller(kernel, flag));
            }
        });
    }
    if awaited.is_empty() {
        return vec![];
    }
    let number = |name: String, value: usize| ConstantText {
        r#type: "u32",
        name,
        value: value.to_string(),
        comment: None,
    };
    let mut out = vec![ConstantText {
        r#type: "u64",
        name: "kernel_id".into(),
        value: format!("{}ull", kernel_id(kernel)),
        comment: Some("in the record of a wait that expires".into()),
    }];
    out.extend(roles.iter().map(|&i| number(format!("role_{}", kernel.roles[i].name), i)));
    out.extend(awaited.iter().map(|f| number(format!("flag_{}", kernel.params[f.index()].name), f.index())));
    out
}

/// FNV-1a of the variant's name.
pub(super) fn kernel_id(kernel: &Kernel) -> String {
    let hash = kernel
        .variant
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:#018x}")
}

/// The argument struct's type, on the device and in the header.
pub(super) fn args_name(kernel: &Kernel) -> String {
    format!("{}_Args", kernel.variant)
}

/// The namespace of all that is not an entry.
pub(super) fn namespace(kernel: &Kernel) -> String {
    format!("{}_source", kernel.variant)
}
