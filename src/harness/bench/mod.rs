//! How long a problem's kernels take on this machine's GPUs, and how far that is from what its links allow.
//!
//! What is timed is put on every rank's stream behind a kernel that first keeps the GPU busy, so that the host is done
//! before anything is measured, and then waits for all GPUs ([`align`]). The time of an iteration is the slowest rank's.

pub mod align;
mod baselines;
mod limit;
mod links;
pub(crate) mod place;
pub mod report;
mod result;
pub(crate) mod run;
mod stats;
pub(crate) mod timed;

pub use baselines::{BaselineTimes, BaselineTiming, TIMING, compare};
pub use limit::{H200, Known, Limit, Limits};
pub use links::RankBytes;
pub use report::html;
pub use result::{Bench, CaseTimes, Check, Machine, Method, SCHEMA, Timing, in_words};
pub use run::{BenchError, BenchOptions, Case, run};
pub use stats::Stats;
