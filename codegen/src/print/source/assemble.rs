//! Puts the parts of an emitted source together.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    apart::{self, Primitives},
    banner,
    entry::entry_body,
    roles::{Parts, role_texts},
    sections::Sections,
    texts::{self, KernelText},
};
use crate::device::Device;
use crate::family::Target;
use crate::ir::{
    self, BlockWait, CommOp, FarPart, Kernel, OpKind, ParamId, ParamKind, SharedId, explain::Explain,
};
use crate::print::analysis::{
    WaitSite, ahead,
    gin::{self, GIN_DEPTH},
    multimem, signals,
    waits::polled,
};
use crate::print::control::timeline::use_types;
use crate::print::facts::{EmitOptions, Facts, FarEngine, Sites, Timeline};
use crate::print::launch::{ArgsLayout, EmitInfo, LaunchShape, args, host};
use crate::print::layout::{
    lane_order,
    shared::{lines_bytes, product_room, shared_align, shared_len, shared_of},
    spread::splats_apart,
};
use crate::print::loader::{Crew, Loaders, Obstacle, Ring, plan};
use crate::print::matrix::tensor;
use crate::print::text::{
    ConstantText, Prim, PrintError, Used,
    names::{is_identifier, is_taken, kernel_id, namespace},
    prim,
};
use crate::print::transport::far;

/// What a kernel asks of a device beyond what that has: less is better, and nothing fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Excess {
    /// Bytes of a block's shared memory.
    pub shared_bytes: u64,
    /// Blocks that wait for each other and are not resident with the others.
    pub blocks: u32,
}

/// An emitted kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// CUDA C++ or HIP C++: the kernel and, for the host side of a compilation, its launcher.
    pub text: String,
    /// A header for C and C++: the argument struct, what to allocate, the launch shape, and what the launcher offers.
    pub abi: String,
    /// What to call the source file.
    pub file_name: String,
    /// What to call the header.
    pub abi_file_name: String,
    /// Name of the entry.
    pub entry: String,
    /// How to launch it.
    pub launch: LaunchShape,
    /// What to pass.
    pub args: ArgsLayout,
    /// The kernel's parameters, [in words](crate::ir::signature_and_order): how much memory it uses of each, and in which order the
    /// elements of a matrix lie if it is not that of rows.
    pub params: Vec<String>,
    /// The places of its waits, by the numbers that a status record has.
    pub waits: Vec<WaitSite>,
    /// What it records about itself, if it was emitted with a timeline.
    pub timeline: Option<Timeline>,
}

impl Source {
    /// The roles and the entry: what the kernel's author wrote, without types, machine primitives and the launcher.
    pub fn roles(&self) -> &str {
        let begin = self.text.find("// ---- Roles").expect("a source has roles");
        let rest = &self.text[begin..];
        let end =
            ["// ---- Machine primitives", "}  // namespace"].iter().filter_map(|end| rest.find(end)).min();
        rest[..end.expect("a namespace ends behind the entry")].trim_end()
    }
}

/// A source whose machine primitives are in a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The source, which includes the header.
    pub source: Source,
    /// What the source uses of the header.
    pub primitives: Primitives,
}

/// A kernel in words, as it is emitted for a target: with the threads and the shared memory of its launch, and with the lines that keep
/// roles from having a loader.
pub(crate) fn explain(kernel: &Kernel, target: Target) -> Result<Explain, PrintError> {
    check(kernel, target)?;
    let mut explained = ir::explain(kernel);
    let kernel = &ahead::hoist(splats_apart(kernel));
    let facts = Facts::new(kernel, target, &EmitOptions::default())?;
    let loaders = Loaders::of(&facts);
    let (_, shared_bytes) = shared_offsets(&facts, loaders.as_ref());
    let loader_warps = loaders.as_ref().map_or(0, |loaders| loaders.crew.warps);
    explained.block_threads += u64::from(loader_warps * kernel.warp_size);
    explained.block_warps += loader_warps;
    (explained.loader_warps, explained.shared_bytes) = (loader_warps, shared_bytes.into());
    explained.shared_limit = Some(shared_limit(&facts)).filter(|&limit| limit < shared_bytes.into());
    for Obstacle { role, loc, why } in plan::obstacles(&facts) {
        explained.roles[role].no_loader = Some((loc.to_string(), why.into()));
    }
    for (number, role) in explained.roles.iter_mut().enumerate() {
        role.multiplies = tensor::instructions(&facts, loaders.as_ref(), number);
    }
    let flights = ir::explain::flights(kernel, &Device::of(target));
    for (role, flights) in explained.roles.iter_mut().zip(flights) {
        role.flights = flights;
    }
    Ok(explained)
}

/// Emits a kernel.
pub(crate) fn emit(
    kernel: &Kernel,
    target: Target,
    info: &EmitInfo,
    options: &EmitOptions,
) -> Result<Source, PrintError> {
    emit_split(kernel, target, info, options, None).map(|split| split.source)
}

/// Emits a kernel, which includes its primitives from `folder` if there is one.
pub(crate) fn emit_split(
    kernel: &Kernel,
    target: Target,
    info: &EmitInfo,
    options: &EmitOptions,
    folder: Option<&str>,
) -> Result<Split, PrintError> {
    check(kernel, target)?;
    if options.far == FarEngine::Gin {
        gin::check(kernel)?;
    }
    let kernel = &ahead::hoist(splats_apart(kernel));
    let facts = Facts::new(kernel, target, options)?;
    let loaders = Loaders::of(&facts);
    let timeline = facts.timeline.as_ref().map(|sites| sites.layout(kernel));
    let (offsets, shared_bytes) = shared_offsets(&facts, loaders.as_ref());
    check_shared(&facts, shared_bytes)?;
    let launch = LaunchShape {
        grid: kernel.grid_blocks(),
        block_threads: block_threads(kernel) + loaders.as_ref().map_or(0, Loaders::threads),
        shared_bytes,
        exclusive_sm_bytes: exclusive_sm_bytes(target).map(|half| half.max(shared_bytes)),
        tensor_columns: tensor::columns(&facts, loaders.as_ref()),
        overlaps_previous: target.overlaps_launches(),
        waits: kernel.waits(),
    };
    let maps = loaders.as_ref().map_or(vec![], Loaders::maps);
    let layout = ArgsLayout::new(kernel, &facts.args, timeline.as_ref(), maps, facts.far);
    check_args(kernel, target, &layout)?;
    let mut used = Used::default();
    used.add(Prim::Types);
    used.add(Prim::Index);
    use_types(facts.timeline.as_ref(), &mut used);
    if loaders.is_some() || kernel.beside_warps() > 0 {
        used.add(Prim::Meeting);
    }
    let parts = Parts::new(&facts, loaders.as_ref())?;
    let (early, body) = entry_body(&parts, &mut used, &offsets)?;
    let roles = role_texts(&parts, &mut used, &offsets)?;
    for p in &kernel.params {
        prim::use_dtype(&mut used, p.dtype);
    }
    if kernel.far_channel().is_some() {
        used.add(far::carrier(facts.far));
    }
    if folder.is_some() {
        // Most primitives need it, and so a header of them takes it for granted.
        used.add(Prim::Bits);
    }
    let crew = loaders.as_ref().map(|loaders| loaders.crew);
    let primitives = Primitives {
        target,
        shape: texts::shape(target, kernel, crew),
        texts: texts(&used, target, kernel, crew)?,
    };
    let (types, others): (Vec<_>, Vec<_>) = primitives.texts.iter().partition(|(prim, _)| prim.is_type());
    let others: Vec<&str> = others.into_iter().map(|(_, text)| text.as_str()).collect();
    let between: Vec<&str> = roles.iter().chain(&early).chain([&body]).map(String::as_str).collect();
    let sections = match folder {
        Some(_) => Sections::default(),
        None => Sections::of(&others, &between),
    };
    let context = KernelText {
        banner: banner::lines(kernel, target, info, &launch, timeline.as_ref()),
        includes: includes(target, &used),
        namespace: namespace(kernel),
        types: types.into_iter().map(|(_, text)| text.clone()).collect(),
        fields: args::fields(kernel, &facts.args, timeline.as_ref(), &layout.maps),
        nodes: kernel.nodes > 1,
        ranks: kernel.ranks,
        constants: constants(&facts, folder.is_some()),
        macros: folder.map_or(vec![], |_| apart::macros(&used)),
        primitives: folder.map(|folder| format!("{folder}{}", primitives.file_name())),
        before: sections.before,
        after: sections.after,
        roles,
        threads: launch.block_threads,
        blocks_each: blocks_each(&facts, launch.block_threads, launch.shared_bytes),
        paired: signals::is_paired(kernel),
        entry: kernel.variant.clone(),
        overlaps_previous: launch.overlaps_previous,
        early,
        body,
    };
    let device = texts::kernel(target, &context)?;
    let waits = facts.waits.sites();
    let host = host::Host {
        kernel,
        target,
        names: &facts.args,
        launch: &launch,
        layout: &layout,
        waits: &waits,
        timeline: timeline.as_ref(),
        far: facts.far,
    };
    let launcher = host::launcher(&host)?;
    let source = Source {
        text: format!("{device}\n{launcher}"),
        abi: host::header(&host, info)?,
        file_name: format!("{}.{}", kernel.variant, target.file_extension()),
        abi_file_name: host::header_name(kernel),
        entry: kernel.variant.clone(),
        launch,
        args: layout,
        params: lane_order::words(kernel, &facts.lane_order),
        waits,
        timeline,
    };
    Ok(Split { source, primitives })
}

/// What can be refused before anything is analysed.
pub(crate) fn check(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    let variant = || kernel.variant.clone();
    if kernel.warp_size != target.warp_size() {
        return Err(PrintError::WarpSize {
            kernel: variant(),
            traced: kernel.warp_size,
            target,
            target_lanes: target.warp_size(),
        });
    }
    let threads = block_threads(kernel);
    if threads > 1024 {
        return Err(PrintError::BlockTooLarge { kernel: variant(), threads, target });
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
    tensor::check(kernel, target)?;
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

/// Threads of a block, of roles beside others too.
fn block_threads(kernel: &Kernel) -> u32 {
    kernel.block_threads() + kernel.beside_warps() * kernel.warp_size
}

/// The first byte of each shared array, and the bytes of a block. A block is of one role, so roles overlap; those beside a role come
/// behind its arrays and its ring, and behind these what its blocks go on as: warps beside may not be done then.
fn shared_offsets(facts: &Facts, loaders: Option<&Loaders>) -> (HashMap<SharedId, u32>, u32) {
    let (kernel, target) = (facts.p.kernel, facts.target);
    let mut offsets = HashMap::new();
    let mut most = 0u64;
    let rooms: BTreeSet<SharedId> = kernel.ops.iter().filter_map(|op| product_room(&op.kind)).collect();
    let mut taken: HashMap<&str, u64> = HashMap::new();
    for (number, role) in kernel.roles.iter().enumerate() {
        let block = role.beside.as_ref().map_or(role.name.as_str(), |beside| &beside.role);
        let crowded = kernel.joining(number).filter(|&earlier| kernel.companions(earlier).next().is_some());
        let behind = crowded.filter_map(|earlier| taken.get(kernel.roles[earlier].name.as_str()));
        let mut end = taken.get(block).copied().into_iter().chain(behind.copied()).max().unwrap_or(0);
        for id in shared_of(kernel, &role.body, target) {
            let s = &kernel.shared[id.index()];
            // An array of several roles keeps the place that its first role gave it.
            let align = u64::from(if rooms.contains(&id) { shared_align(kernel, target) } else { 16 });
            let start = offsets.get(&id).map_or(end.next_multiple_of(align), |&o| u64::from(o));
            offsets.insert(id, start as u32);
            let len = u64::from(shared_len(kernel, id, target));
            let one = (len * u64::from(s.dtype.bytes())).next_multiple_of(16);
            end = end.max(start + one * u64::from(s.copies));
        }
        let ring = loaders.and_then(|loaders| loaders.ring(number)).map_or(0, Ring::bytes);
        end = end.max(ring.into());
        taken.insert(block, end);
        most = most.max(end);
    }
    (offsets, u32::try_from(most).unwrap_or(u32::MAX))
}

/// What is left of a block's shared memory for its arrays.
fn shared_limit(facts: &Facts) -> u64 {
    let all = u64::from(Device::of(facts.target).block_array_bytes());
    all.saturating_sub(lines_bytes(&facts.p, &facts.layouts))
}

fn check_shared(facts: &Facts, bytes: u32) -> Result<(), PrintError> {
    let (bytes, limit) = (u64::from(bytes), shared_limit(facts));
    if bytes <= limit {
        return Ok(());
    }
    Err(PrintError::SharedTooLarge {
        kernel: facts.p.kernel.variant.clone(),
        bytes,
        limit,
        target: facts.target,
    })
}

/// What a kernel asks of a target's device beyond what that has.
pub(crate) fn excess(kernel: &Kernel, target: Target) -> Result<Excess, PrintError> {
    check(kernel, target)?;
    let kernel = &ahead::hoist(splats_apart(kernel));
    let facts = Facts::new(kernel, target, &EmitOptions::default())?;
    let loaders = Loaders::of(&facts);
    let (_, bytes) = shared_offsets(&facts, loaders.as_ref());
    let threads = block_threads(kernel) + loaders.as_ref().map_or(0, Loaders::threads);
    let shared_bytes = u64::from(bytes).saturating_sub(shared_limit(&facts));
    let device = Device::of(target);
    let each = blocks_each(&facts, threads, bytes);
    let resident = device.surely_resident_blocks(threads, bytes, each);
    // How many are resident is known of blocks that fit.
    let counted = kernel.waits() && shared_bytes == 0;
    let blocks = if counted { kernel.grid_blocks().saturating_sub(resident) } else { 0 };
    Ok(Excess { shared_bytes, blocks })
}

/// Blocks of so many threads and bytes that an SM has at once if all are resident: a compiler leaves registers for them. HIP's compilers are not
/// told.
fn blocks_each(facts: &Facts, threads: u32, shared_bytes: u32) -> u32 {
    match facts.target {
        Target::Cuda(_) => {
            Device::of(facts.target).blocks_each(facts.p.kernel.grid_blocks(), threads, shared_bytes)
        }
        Target::Hip(_) => 1,
    }
}

/// Texts of the primitives.
fn texts(
    used: &Used,
    target: Target,
    kernel: &Kernel,
    loader: Option<Crew>,
) -> Result<BTreeMap<Prim, String>, PrintError> {
    used.iter().map(|prim| Ok((prim, texts::primitive(prim, target, kernel, loader)?))).collect()
}

fn includes(target: Target, used: &Used) -> Vec<&'static str> {
    let own: &[_] = match target {
        Target::Hip(_) => &[(Prim::Types, "hip/hip_runtime.h")],
        Target::Cuda(_) => {
            &[(Prim::Bf16, "cuda_bf16.h"), (Prim::Fp16, "cuda_fp16.h"), (Prim::Fp8, "cuda_fp8.h")]
        }
    };
    // RCCL's header has the name of NCCL's.
    let all = own.iter().chain(&[(Prim::Gin, "nccl_device.h")]);
    all.filter(|(prim, _)| used.contains(*prim)).map(|(_, header)| *header).collect()
}

/// The constants that the rest of the source names, or that a header of primitives may name.
fn constants(facts: &Facts, header: bool) -> Vec<ConstantText> {
    let mut out = wait_constants(facts.p.kernel, header);
    out.extend(far_constants(facts.p.kernel, facts.far));
    out.extend(facts.timeline.iter().flat_map(Sites::constants));
    out
}

/// What waits say about themselves when they expire.
fn wait_constants(kernel: &Kernel, header: bool) -> Vec<ConstantText> {
    let mut awaited = BTreeSet::new();
    let mut roles = BTreeSet::new();
    for (i, role) in kernel.roles.iter().enumerate() {
        kernel.walk(&role.body, &mut |_, op| {
            for polled in polled(&op.kind) {
                awaited.insert(polled);
                roles.insert(i);
            }
            if let OpKind::Comm(CommOp::BlockWait(BlockWait { flag, .. })) = op.kind {
                roles.extend(signals::signaller(kernel, flag));
            }
        });
    }
    if awaited.is_empty() && !header {
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

/// How many ranks far channels reach, and the first channel of each array of far counters, among the kernel's.
fn far_constants(kernel: &Kernel, engine: FarEngine) -> Vec<ConstantText> {
    let number =
        |name, value: u64| ConstantText { r#type: "u32", name, value: value.to_string(), comment: None };
    let counts = (0..kernel.params.len() as u32).map(ParamId);
    let counts = counts.filter(|p| kernel.params[p.index()].kind == ParamKind::Far(FarPart::Counts));
    let channels = counts
        .map(|p| number(far::channel_name(&kernel.params[p.index()].name), kernel.first_far_channel(p)));
    let all = kernel.far_channel().map(|_| ConstantText {
        comment: (kernel.nodes > 1).then(|| format!("of {} machines", kernel.nodes)),
        ..number("all_ranks".into(), kernel.all_ranks().into())
    });
    let depth = (engine == FarEngine::Gin).then(|| ConstantText {
        comment: Some("puts in a context at most, whose queues have room for them".into()),
        ..number("far_depth".into(), GIN_DEPTH.into())
    });
    all.into_iter().chain(depth).chain(channels).collect()
}
