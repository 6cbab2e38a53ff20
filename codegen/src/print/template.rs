//! The handlebars templates and what they are rendered with.

use std::sync::OnceLock;

use handlebars::{Handlebars, no_escape};
use serde::Serialize;

use crate::{family::Target, ir::Kernel};

use super::{
    PrintError,
    args::{BufferText, DocumentedText, FieldText, PointerText},
    prim::{Context, Prim},
    timeline::{Timeline, TimelineSite},
};

const CUDA_KERNEL: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/cuda/kernel.hbs"));
const HIP_KERNEL: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/hip/kernel.hbs"));
const CUDA_LAUNCH: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/cuda/launch.hbs"));
const HIP_LAUNCH: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/hip/launch.hbs"));
const HIP_PRELUDE: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/hip/prelude.hbs"));
const ABI: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../templates/abi.h.hbs"));

/// A named constant of the emitted source.
#[derive(Debug, Serialize)]
pub(super) struct ConstantText {
    pub r#type: &'static str,
    pub name: String,
    pub value: String,
    pub comment: Option<String>,
}

/// What `kernel.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(super) struct KernelText {
    pub banner: Vec<String>,
    pub includes: Vec<&'static str>,
    pub namespace: String,
    pub types: Vec<String>,
    pub args: String,
    pub fields: Vec<FieldText>,
    pub ranks: u32,
    pub constants: Vec<ConstantText>,
    pub primitives: Vec<String>,
    pub roles: Vec<String>,
    pub threads: u32,
    pub entry: String,
    pub body: String,
}

/// What `abi.h.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(super) struct AbiText {
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
    pub timeline: Option<TimelineText>,
    pub ranks: u32,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
    pub args_bytes: u32,
    pub kernel_id: String,
    pub entry: String,
    pub compilers: &'static str,
    pub stream: &'static str,
    pub error: &'static str,
}

/// What the header says about a timeline.
#[derive(Debug, Serialize)]
pub(super) struct TimelineText {
    pub slots: u32,
    pub slices: u32,
    pub sites: Vec<SiteText>,
}

/// A site of it.
#[derive(Debug, Serialize)]
pub(super) struct SiteText {
    pub number: usize,
    pub what: String,
}

impl TimelineText {
    pub fn of(timeline: &Timeline) -> TimelineText {
        let text = |(number, s): (usize, &TimelineSite)| {
            let parameter = s.parameter.iter().map(|p| format!(" {p}")).collect::<String>();
            SiteText {
                number,
                what: format!("{}: {}{parameter} ({}:{})", s.role, s.kind.name(), s.file, s.line),
            }
        };
        let sites = timeline.sites.iter().enumerate().map(text).collect();
        TimelineText { slots: timeline.slots, slices: timeline.slices, sites }
    }
}

/// What `launch.hbs` is rendered with.
#[derive(Debug, Serialize)]
pub(super) struct LaunchText {
    pub header: String,
    pub namespace: String,
    pub args: String,
    pub args_bytes: u32,
    pub entry: String,
    pub ranks: u32,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
    pub large_shared: bool,
    pub pointers: Vec<PointerText>,
}

/// What the templates of primitives that depend on the block's shape are rendered with.
#[derive(Debug, Serialize)]
struct BlockText {
    warp_size: u32,
    warps: u32,
    block_warps: u32,
    threads: u32,
}

/// What the templates of primitives that depend on the target are rendered with.
#[derive(Debug, Serialize)]
struct TargetText {
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
        let files = [
            ("cuda/kernel", CUDA_KERNEL),
            ("hip/kernel", HIP_KERNEL),
            ("cuda/launch", CUDA_LAUNCH),
            ("hip/launch", HIP_LAUNCH),
            ("hip/prelude", HIP_PRELUDE),
            ("abi.h", ABI),
        ];
        for (name, text) in files {
            h.register_template_string(name, text)
                .map_err(|e| PrintError::Template { template: name, message: e.to_string() })?;
        }
        for &prim in Prim::ALL {
            for (backend, text) in [("cuda", prim.cuda()), ("hip", prim.hip())] {
                h.register_template_string(&format!("{backend}/prim/{}", prim.file()), text)
                    .map_err(|e| PrintError::Template { template: prim.file(), message: e.to_string() })?;
            }
        }
        Ok(h)
    });
    built.as_ref().map_err(Clone::clone)
}

fn render(template: &'static str, name: &str, context: &impl Serialize) -> Result<String, PrintError> {
    registry()?.render(name, context).map_err(|e| PrintError::Template { template, message: e.to_string() })
}

/// The emitted source.
pub(super) fn kernel(target: Target, context: &KernelText) -> Result<String, PrintError> {
    let name = match target {
        Target::Cuda(_) => "cuda/kernel",
        Target::Hip(_) => "hip/kernel",
    };
    render(name, name, context)
}

/// The C header.
pub(super) fn abi(context: &AbiText) -> Result<String, PrintError> {
    render("abi.h", "abi.h", context)
}

/// The launcher, which follows the emitted source.
pub(super) fn launch(target: Target, context: &LaunchText) -> Result<String, PrintError> {
    let name = match target {
        Target::Cuda(_) => "cuda/launch",
        Target::Hip(_) => "hip/launch",
    };
    render(name, name, context)
}

/// What stands in for `hip/hip_runtime.h` where there is no ROCm.
pub(super) fn hip_prelude() -> Result<String, PrintError> {
    render("hip/prelude", "hip/prelude", &NothingText {})
}

/// A primitive's text for a kernel.
pub(super) fn primitive(prim: Prim, target: Target, kernel: &Kernel) -> Result<String, PrintError> {
    let name = format!("{}/prim/{}", target.backend(), prim.file());
    let text = match prim.context() {
        Context::Nothing => render(prim.file(), &name, &NothingText {}),
        Context::Block => {
            let block = BlockText {
                warp_size: kernel.warp_size,
                warps: kernel.block_warps,
                block_warps: kernel.block_warps,
                threads: kernel.block_threads(),
            };
            render(prim.file(), &name, &block)
        }
        Context::Target => {
            let fence_acquire = match target {
                Target::Cuda(arch) => arch.capability() >= 90,
                Target::Hip(_) => true,
            };
            render(prim.file(), &name, &TargetText { fence_acquire })
        }
    };
    text.map(|t| t.trim_end().to_string())
}
