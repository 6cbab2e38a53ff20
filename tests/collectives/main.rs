//! Collectives: on simulated ranks, against plain Rust; bugs that are planted; defaults; what is emitted.

mod defaults;
mod mutations;
mod simulate;
mod snapshots;
mod support;
