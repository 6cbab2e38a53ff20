//! What a host program in C or C++ is given: the header, and the launcher at the end of the source.

use crate::{
    family::Target,
    ir::{Kernel, ParamKind},
};

use super::args::{self, ArgNames, ArgsLayout, MapText};
use crate::print::{
    EmitInfo, LaunchShape, PrintError,
    analysis::waits::WaitSite,
    facts::timeline::Timeline,
    source::assemble::{args_name, kernel_id, namespace},
    text::{
        template::{self, AbiText, LaunchText, TimelineText, WaitText},
        writer::wrap_words,
    },
};

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
}

/// The C header.
pub(crate) fn header(host: &Host, info: &EmitInfo) -> Result<String, PrintError> {
    let &Host { kernel, target, names, launch, layout, waits, timeline } = host;
    let prefix = kernel.variant.to_uppercase();
    let runtime = Runtime::of(target);
    template::abi(&AbiText {
        title: kernel.variant.clone(),
        doc: if kernel.doc.is_empty() { vec![] } else { wrap_words(&uncommented(&kernel.doc), WIDTH) },
        usage: kernel.usage.lines().map(uncommented).collect(),
        target: target.to_string(),
        command: info.command.clone(),
        guard: format!("{prefix}_H"),
        args: args_name(kernel),
        fields: args::documented(kernel, names, timeline, &layout.maps, WIDTH),
        tensor_maps: !layout.maps.is_empty(),
        buffers: args::buffers(kernel, names, timeline),
        block_flags: kernel.params.iter().any(|p| p.kind == ParamKind::BlockFlags),
        waits: waits.iter().enumerate().map(WaitText::of).collect(),
        timeline: timeline.map(TimelineText::of),
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
    let &Host { kernel, target, names, launch, layout, timeline, .. } = host;
    template::launch(
        target,
        &LaunchText {
            header: header_name(kernel),
            namespace: namespace(kernel),
            args: args_name(kernel),
            args_bytes: layout.bytes,
            entry: kernel.variant.clone(),
            ranks: kernel.ranks,
            grid: launch.grid,
            threads: launch.block_threads,
            shared: launch.shared_bytes,
            exclusive_sm_bytes: launch.exclusive_sm_bytes,
            large_shared: launch.shared_bytes > Runtime::of(target).shared_bytes,
            overlaps_previous: launch.overlaps_previous,
            pointers: args::pointers(kernel, names, timeline),
            maps: layout.maps.iter().map(MapText::of).collect(),
        },
    )
}

/// What the header is called, which the launcher includes.
pub(crate) fn header_name(kernel: &Kernel) -> String {
    format!("{}.h", kernel.variant)
}
