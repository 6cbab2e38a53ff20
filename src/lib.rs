//! Peerwarp: kernels that span several GPUs, written once in typed Rust, checked on a CPU, emitted as CUDA and HIP.
//!
//! From the bottom up: [`build`] makes source and binaries of kernels, [`runtime`] runs them on GPUs, [`harness`] runs,
//! checks, times, tunes and traces any family, [`families`] has the kernels that come with Peerwarp, and [`cli`] is the
//! command line, for any crate's families. [`models`] is a table of published models.
#![warn(missing_docs)]

extern crate self as peerwarp;

pub use peerwarp_codegen as codegen;
pub use peerwarp_macros::include_pack;

pub mod build;
pub mod cli;
pub mod families;
pub mod harness;
pub mod input;
pub mod models;
pub mod runtime;

/// Everything a crate with kernels of its own needs: `use peerwarp::prelude::*;`.
pub mod prelude {
    pub use peerwarp_codegen::dsl::prelude::*;
    pub use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
    pub use peerwarp_codegen::ir::Dtype;
    pub use peerwarp_codegen::kernel;
}

/// The code of the guide, compiled and run by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../docs/tutorial/guide.md")]
struct Guide;

/// The code of the page about several machines, compiled by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../docs/how-to/nodes.md")]
struct Nodes;

/// The code of the page about GPUs, compiled by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../docs/how-to/runtime.md")]
struct Gpus;
