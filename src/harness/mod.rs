//! What every family gets: runs against a reference, protocol checks, benchmarks, tuning and timelines.

pub mod bench;
pub mod blocks;
pub mod bytes;
pub mod catalogue;
pub mod check;
pub mod choose;
pub mod hints;
mod html;
pub mod mutation;
pub mod request;
pub mod run;
pub mod session;
pub mod suite;
pub mod topo;
pub mod trace;
pub mod tune;
pub mod verdict;
pub mod workload;

pub use peerwarp_codegen::elements;
pub use peerwarp_codegen::elements::e4m3 as fp8;

#[cfg(test)]
#[path = "kinds_tests.rs"]
pub(crate) mod kinds;
