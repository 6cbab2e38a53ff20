//! Collectives on simulated ranks, against plain Rust.

mod simulate;
mod support;
