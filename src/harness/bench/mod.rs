//! How long MoE dispatch and combine take on this machine's GPUs, and how far that is from what its links allow.
//!
//! What is timed is put on every rank's stream behind a kernel that first keeps the GPU busy, so that the host is done
//! before anything is measured, and then waits for all GPUs ([`align`]). The time of an iteration is the slowest rank's.

pub mod align;
pub(crate) mod gpu;
mod gpumode;
mod html;
pub(crate) mod inputs;
mod limit;
mod peers;
pub(crate) mod place;
mod plot;
pub mod report;
mod result;
mod stats;
pub(crate) mod wire;

pub use gpu::{BenchError, BenchOptions, Case, run};
pub use gpumode::{GpuModeShape, gpumode};
pub use html::html;
pub use limit::{H200, Limit, Limits};
pub use peers::{Peer, PeerTiming, compare};
pub use result::{Bench, CaseTimes, Machine, Method, Timing, What};
pub use stats::Stats;
pub use wire::{RankBytes, Wire};
