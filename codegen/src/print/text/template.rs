//! The handlebars templates and what they are rendered with.

use std::sync::OnceLock;

use handlebars::{Handlebars, no_escape};
use serde::Serialize;

use crate::{family::Target, ir::Kernel};

use super::prim::{Context, Prim};
use crate::print::{
    PrintError,
    analysis::waits::WaitSite,
    facts::timeline::{Timeline, TimelineSite},
    launch::args::{BufferText, DocumentedText, FieldText, MapText, PointerText},
    loader::plan::Crew,
    matrix::{matrices, products::ProductsText},
    source::assemble::fnv,
};

/// A file of `templates`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Template {
    /// Its path there, without the extension.
    pub name: &'static str,
    pub text: &'static str,
}

/// The template whose name the parts make up.
macro_rules! template {
    ($($part:literal),+) => {
        Template {
            name: concat!($($part),+),
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/templates/", $($part,)+ ".hbs")),
        }
    };
}
pub(crate) use template;

/// The templates that are not of primitives.
const SKELETONS: &[Template] = &[
    template!("cuda/kernel"),
    template!("hip/kernel"),
    template!("cuda/launch"),
    template!("hip/launch"),
    template!("hip/prelude"),
    template!("abi.h"),
];

/// Every template.
fn all() -> impl Iterator<Item = Template> {
    SKELETONS.iter().copied().chain(Prim::ALL.iter().flat_map(|p| p.templates().each()))
}

/// A named constant of the emitted source.
#[derive(Debug, Serialize)]
pub(crate) struct ConstantText {
    pub r#type: &'static str,
    pub name: String,
    pub value: String,
    pub comment: Option<String>,
}

/// What `kernel.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct KernelText {
    pub banner: Vec<String>,
    pub includes: Vec<&'static str>,
    pub namespace: String,
    pub types: Vec<String>,
    pub fields: Vec<FieldText>,
    pub ranks: u32,
    pub constants: Vec<ConstantText>,
    /// Macros that the header of primitives asks for.
    pub macros: Vec<&'static str>,
    /// The header of primitives, if there is one.
    pub primitives: Option<String>,
    /// Types of primitives, and declarations.
    pub before: Vec<String>,
    /// What they do.
    pub after: Vec<String>,
    pub roles: Vec<String>,
    pub threads: u32,
    pub entry: String,
    pub overlaps_previous: bool,
    /// What comes before the end of the launch before.
    pub early: Option<String>,
    pub body: String,
}

/// What `abi.h.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct AbiText {
    pub title: String,
    pub doc: Vec<String>,
    pub usage: Vec<String>,
    pub target: String,
    pub command: String,
    pub guard: String,
    pub prefix: String,
    pub args: String,
    pub fields: Vec<DocumentedText>,
    pub buffers: Vec<BufferText>,
    pub block_flags: bool,
    pub tensor_maps: bool,
    pub waits: Vec<WaitText>,
    pub timeline: Option<TimelineText>,
    pub ranks: u32,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
    pub exclusive_sm_bytes: Option<u32>,
    pub args_bytes: u32,
    pub kernel_id: String,
    pub entry: String,
    pub compilers: &'static str,
    pub stream: &'static str,
    pub error: &'static str,
}

/// A wait, as the header has it.
#[derive(Debug, Serialize)]
pub(crate) struct WaitText {
    pub number: usize,
    pub file: String,
    pub line: u32,
}

impl WaitText {
    pub fn of((number, site): (usize, &WaitSite)) -> WaitText {
        WaitText { number, file: site.file.replace('\\', "/").replace('"', "'"), line: site.line }
    }
}

/// What the header says about a timeline.
#[derive(Debug, Serialize)]
pub(crate) struct TimelineText {
    pub slots: u32,
    pub slices: u32,
    pub sites: Vec<SiteText>,
}

/// A site of it.
#[derive(Debug, Serialize)]
pub(crate) struct SiteText {
    pub number: usize,
    pub what: String,
}

impl TimelineText {
    pub fn of(timeline: &Timeline) -> TimelineText {
        let text = |(number, s): (usize, &TimelineSite)| {
            let parameter = s.parameter.iter().map(|p| format!(" {p}")).collect::<String>();
            SiteText { number, what: format!("{}: {}{parameter} ({})", s.role, s.kind.name(), s.place()) }
        };
        let sites = timeline.sites.iter().enumerate().map(text).collect();
        TimelineText { slots: timeline.slots, slices: timeline.slices, sites }
    }
}

/// What `launch.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct LaunchText {
    pub header: String,
    pub namespace: String,
    pub args: String,
    pub args_bytes: u32,
    pub entry: String,
    pub ranks: u32,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
    pub exclusive_sm_bytes: Option<u32>,
    pub large_shared: bool,
    pub overlaps_previous: bool,
    pub pointers: Vec<PointerText>,
    pub maps: Vec<MapText>,
}

/// What the templates of primitives that depend on the block's shape are rendered with.
#[derive(Debug, Serialize)]
struct BlockText {
    warp_size: u32,
    warps: u32,
    block_warps: u32,
    threads: u32,
    /// Whether blocks have more warps than their role's, and whether other roles have some of these.
    others: bool,
    beside: bool,
    /// Those of roles beside others included, but not the loader's.
    all_warps: u32,
    /// Places where the warps of a block meet.
    meetings: u32,
    /// Warps that are of no role's group, if blocks have some.
    loader: Option<Crew>,
    loader_threads: u32,
    /// Whether what ends an expired wait is emitted wherever one may expire.
    ends_inline: bool,
    shared_align: u32,
}

/// What the templates of primitives that depend on the target are rendered with.
#[derive(Debug, Serialize)]
struct TargetText {
    /// Whether it is one of CUDA's.
    cuda: bool,
    /// Whether there is a fence that acquires only.
    fence_acquire: bool,
}

/// What all other primitives' templates are rendered with.
#[derive(Debug, Serialize)]
struct NothingText {}

fn registry() -> Result<&'static Handlebars<'static>, PrintError> {
    static REGISTRY: OnceLock<Result<Handlebars<'static>, PrintError>> = OnceLock::new();
    let built = REGISTRY.get_or_init(|| {
        let mut h = Handlebars::new();
        h.set_strict_mode(true);
        h.register_escape_fn(no_escape);
        for Template { name, text } in all() {
            h.register_template_string(name, text)
                .map_err(|e| PrintError::Template { template: name, message: e.to_string() })?;
        }
        Ok(h)
    });
    built.as_ref().map_err(Clone::clone)
}

fn render(name: &'static str, context: &impl Serialize) -> Result<String, PrintError> {
    registry()?
        .render(name, context)
        .map_err(|e| PrintError::Template { template: name, message: e.to_string() })
}

/// The emitted source.
pub(crate) fn kernel(target: Target, context: &KernelText) -> Result<String, PrintError> {
    let name = match target {
        Target::Cuda(_) => "cuda/kernel",
        Target::Hip(_) => "hip/kernel",
    };
    render(name, context)
}

/// The C header.
pub(crate) fn abi(context: &AbiText) -> Result<String, PrintError> {
    render("abi.h", context)
}

/// The launcher, which follows the emitted source.
pub(crate) fn launch(target: Target, context: &LaunchText) -> Result<String, PrintError> {
    let name = match target {
        Target::Cuda(_) => "cuda/launch",
        Target::Hip(_) => "hip/launch",
    };
    render(name, context)
}

/// What stands in for `hip/hip_runtime.h` where there is no ROCm.
pub(crate) fn hip_prelude() -> Result<String, PrintError> {
    render("hip/prelude", &NothingText {})
}

impl BlockText {
    fn of(kernel: &Kernel, target: Target, loader: Option<Crew>) -> BlockText {
        BlockText {
            warp_size: kernel.warp_size,
            warps: kernel.block_warps,
            block_warps: kernel.block_warps,
            threads: kernel.block_threads(),
            others: loader.is_some() || kernel.beside_warps() > 0,
            beside: kernel.beside_warps() > 0,
            all_warps: kernel.block_warps + kernel.beside_warps(),
            meetings: 1 + kernel.roles.iter().filter(|role| role.beside.is_some()).count() as u32,
            loader_threads: loader.map_or(0, |crew| crew.warps * kernel.warp_size),
            loader,
            ends_inline: loader.is_some_and(|crew| crew.ends_inline),
            shared_align: matrices::shared_align(kernel, target),
        }
    }
}

/// What the texts of primitives depend on beside the target, as a part of a file's name: the warps of a block, and a digest where
/// a loader, roles beside others, or products of matrices make a difference.
pub(crate) fn shape(target: Target, kernel: &Kernel, loader: Option<Crew>) -> String {
    let block = BlockText::of(kernel, target, loader);
    let products = ProductsText::of(kernel);
    let warps = format!("{}_warps", kernel.block_warps);
    let plain = !block.others && block.shared_align == 16 && products == ProductsText::default();
    if plain { warps } else { format!("{warps}_{:016x}", fnv(&format!("{block:?} {products:?}"))) }
}

/// A primitive's text for a kernel.
pub(crate) fn primitive(
    prim: Prim,
    target: Target,
    kernel: &Kernel,
    loader: Option<Crew>,
) -> Result<String, PrintError> {
    let name = prim.templates().of(target).name;
    let text = match prim.context() {
        Context::Nothing => render(name, &NothingText {}),
        Context::Block => render(name, &BlockText::of(kernel, target, loader)),
        Context::Target => {
            let fence_acquire = match target {
                Target::Cuda(arch) => arch.capability() >= 90,
                Target::Hip(_) => true,
            };
            let cuda = matches!(target, Target::Cuda(_));
            render(name, &TargetText { cuda, fence_acquire })
        }
        Context::Products => render(name, &ProductsText::of(kernel)),
    };
    text.map(|t| t.trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        fs,
        path::{Path, PathBuf},
    };

    use super::*;

    /// The files below a folder.
    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
        entries.flat_map(|p| if p.is_dir() { files(&p) } else { vec![p] }).collect()
    }

    #[test]
    fn every_file_is_used_once() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../templates");
        let mut there = files(&root);
        let mut used: Vec<PathBuf> = all().map(|t| root.join(format!("{}.hbs", t.name))).collect();
        there.sort();
        used.sort();
        assert_eq!(there, used);
    }

    #[test]
    fn every_text_stands_once() {
        let mut names = BTreeMap::new();
        for Template { name, text } in all() {
            assert!(!text.trim().is_empty(), "`{name}` is empty");
            if let Some(other) = names.insert(text, name) {
                panic!("`{other}` and `{name}` have the same text; what targets share is in templates/prim");
            }
        }
    }
}
