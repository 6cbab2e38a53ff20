//! How a kernel is emitted.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What carries the far channels of an emitted kernel. The kernel does not say, and is the same for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FarEngine {
    /// A ring of commands for a proxy of the host, which hands them to libfabric.
    #[default]
    Ring,
    /// GIN of NCCL 2.32 or newer, or of RCCL: the GPU puts by itself.
    Gin,
}

impl FarEngine {
    /// Every engine.
    pub const ALL: [FarEngine; 2] = [FarEngine::Ring, FarEngine::Gin];

    /// What options call it.
    pub const fn name(self) -> &'static str {
        match self {
            FarEngine::Ring => "ring",
            FarEngine::Gin => "gin",
        }
    }
}

impl fmt::Display for FarEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a kernel is emitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EmitOptions {
    /// Records that a warp has room for in a timeline, 1 to 65536; none for a kernel without one. With a timeline the argument
    /// struct has one more member, `timeline`, which points to [`Timeline::bytes`](super::Timeline::bytes) bytes on each rank.
    pub timeline: Option<u32>,
    /// Whether comments and tables name lines of the author's source, and not its files alone.
    pub lines: bool,
    /// What carries its far channels.
    pub far: FarEngine,
}

impl Default for EmitOptions {
    fn default() -> EmitOptions {
        EmitOptions { timeline: None, lines: true, far: FarEngine::Ring }
    }
}
