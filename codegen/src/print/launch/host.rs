//! What a host program in C or C++ is given: the header, and the launcher at the end of the source.

use serde::{Deserialize, Serialize};

use super::{
    ArgsLayout,
    args::{self, MapText},
    texts::{self, AbiText, LaunchText, TimelineText, WaitText},
};
use crate::family::Target;
use crate::ir::{FAR_CHANNELS, Kernel, ParamKind};
use crate::print::analysis::{WaitSite, gin::GIN_DEPTH, signals::is_paired};
use crate::print::facts::{FarEngine, Timeline};
use crate::print::text::{
    ArgNames, PrintError,
    names::{args_name, kernel_id, namespace},
    wrap_words,
};

/// What the banner of an emitted source says about its making.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmitInfo {
    /// The exact command that regenerates the file.
    pub command: String,
}

/// How a kernel must be launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchShape {
    /// Blocks.
    pub grid: u32,
    /// Threads a block.
    pub block_threads: u32,
    /// Dynamic shared memory a block, in bytes: what its arrays take.
    pub shared_bytes: u32,
    /// So many bytes instead, where the device has an SM for each block: then each has one to itself. The blocks of the
    /// next launch spread over SMs as they become free, and a combine of few tokens ends 1 us earlier (measured on
    /// H200s; presumably as launches that follow each other then divide L1 and shared memory alike).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclusive_sm_bytes: Option<u32>,
    /// Columns of tensor memory that a block takes, of the 512 of an SM.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tensor_columns: u32,
    /// Whether the kernel itself waits for the launches before it on the stream, and may be launched while they end.
    #[serde(default)]
    pub overlaps_previous: bool,
    /// Whether all blocks must be resident at once, as blocks wait: [`Kernel::waits`](crate::ir::Kernel::waits).
    #[serde(default = "waits", skip_serializing_if = "is_true")]
    pub waits: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn waits() -> bool {
    true
}

fn is_true(flag: &bool) -> bool {
    *flag
}

/// Columns of text behind ` * `.
const WIDTH: usize = 104;

/// Where a header's launcher has its names from.
struct Runtime {
    compilers: &'static str,
    stream: &'static str,
    error: &'static str,
    /// Dynamic shared memory that a block gets without asking for more.
    shared_bytes: u32,
}

impl Runtime {
    fn of(target: Target) -> Runtime {
        match target {
            Target::Cuda(_) => Runtime {
                compilers: "nvcc",
                stream: "cudaStream_t",
                error: "cudaError_t",
                shared_bytes: 48 << 10,
            },
            Target::Hip(_) => Runtime {
                compilers: "hipcc or clang",
                stream: "hipStream_t",
                error: "hipError_t",
                shared_bytes: 64 << 10,
            },
        }
    }
}

/// What the header and the launcher are about.
pub(crate) struct Host<'a> {
    pub kernel: &'a Kernel,
    pub target: Target,
    pub names: &'a ArgNames,
    pub launch: &'a LaunchShape,
    pub layout: &'a ArgsLayout,
    pub waits: &'a [WaitSite],
    pub timeline: Option<&'a Timeline>,
    pub far: FarEngine,
}

/// The C header.
pub(crate) fn header(host: &Host, info: &EmitInfo) -> Result<String, PrintError> {
    let &Host { kernel, target, names, launch, layout, waits, timeline, far } = host;
    let prefix = kernel.variant.to_uppercase();
    let runtime = Runtime::of(target);
    texts::abi(&AbiText {
        title: kernel.variant.clone(),
        doc: if kernel.doc.is_empty() { vec![] } else { wrap_words(&uncommented(&kernel.doc), WIDTH) },
        usage: kernel.usage.lines().map(uncommented).collect(),
        target: target.to_string(),
        command: info.command.clone(),
        guard: format!("{prefix}_H"),
        args: args_name(kernel),
        fields: args::documented(kernel, names, timeline, &layout.maps, (far, WIDTH)),
        tensor_maps: !layout.maps.is_empty(),
        buffers: args::buffers(kernel, names, timeline),
        far_channels: kernel.far_channels(),
        gin_depth: (far == FarEngine::Gin).then_some(GIN_DEPTH),
        block_flags: kernel.params.iter().any(|p| p.kind == ParamKind::BlockFlags),
        waits: waits.iter().enumerate().map(WaitText::of).collect(),
        timeline: timeline.map(TimelineText::of),
        nodes: (kernel.nodes > 1).then_some(kernel.nodes),
        ranks: kernel.ranks,
        grid: launch.grid,
        threads: launch.block_threads,
        shared: launch.shared_bytes,
        exclusive_sm_bytes: launch.exclusive_sm_bytes,
        args_bytes: layout.bytes,
        kernel_id: kernel_id(kernel),
        entry: kernel.variant.clone(),
        compilers: runtime.compilers,
        stream: runtime.stream,
        error: runtime.error,
        prefix,
    })
}

/// An author's text inside of a C comment, which it must not end.
fn uncommented(text: &str) -> String {
    text.replace("*/", "* /")
}

/// The launcher.
pub(crate) fn launcher(host: &Host) -> Result<String, PrintError> {
    let &Host { kernel, target, names, launch, layout, timeline, far, .. } = host;
    texts::launch(
        target,
        &LaunchText {
            header: header_name(kernel),
            namespace: namespace(kernel),
            args: args_name(kernel),
            args_bytes: layout.bytes,
            entry: kernel.variant.clone(),
            nodes: (kernel.nodes > 1).then_some(kernel.nodes),
            ranks: kernel.ranks,
            far_channels: kernel.far_channels(),
            channels: FAR_CHANNELS,
            most_first_channel: FAR_CHANNELS.saturating_sub(kernel.far_channels()),
            grid: launch.grid,
            threads: launch.block_threads,
            shared: launch.shared_bytes,
            exclusive_sm_bytes: launch.exclusive_sm_bytes,
            large_shared: launch.shared_bytes > Runtime::of(target).shared_bytes,
            overlaps_previous: launch.overlaps_previous,
            paired: is_paired(kernel),
            pointers: args::pointers(kernel, names, timeline, far),
            maps: layout.maps.iter().map(MapText::of).collect(),
        },
    )
}

/// What the header is called, which the launcher includes.
pub(crate) fn header_name(kernel: &Kernel) -> String {
    format!("{}.h", kernel.variant)
}
