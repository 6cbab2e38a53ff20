//! Collectives: on simulated ranks, against plain Rust; bugs that are planted; defaults; what is emitted.

mod cli;
mod deaths;
mod defaults;
mod docs;
mod mutations;
mod simulate;
mod snapshots;
mod support;
