//! What the templates of the header and the launcher are rendered with.

use serde::Serialize;

use super::args::{BufferText, DocumentedText, MapText, PointerText};
use crate::family::Target;
use crate::print::analysis::WaitSite;
use crate::print::facts::{Timeline, TimelineSite};
use crate::print::text::{PrintError, template::render};

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
    pub far_channels: u64,
    /// Puts that queues have room for, where GIN carries them.
    pub gin_depth: Option<u32>,
    pub block_flags: bool,
    pub tensor_maps: bool,
    pub waits: Vec<WaitText>,
    pub timeline: Option<TimelineText>,
    /// Where there are several.
    pub nodes: Option<u32>,
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
    /// Where there are several.
    pub nodes: Option<u32>,
    pub ranks: u32,
    pub far_channels: u64,
    /// Channels that a proxy has.
    pub channels: u64,
    /// The last one that may be the kernel's first.
    pub most_first_channel: u64,
    pub grid: u32,
    pub threads: u32,
    pub shared: u32,
    pub exclusive_sm_bytes: Option<u32>,
    pub large_shared: bool,
    pub overlaps_previous: bool,
    /// Whether two neighbouring blocks are a cluster.
    pub paired: bool,
    pub pointers: Vec<PointerText>,
    pub maps: Vec<MapText>,
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
