//! Peerwarp.
#![warn(missing_docs)]

extern crate self as peerwarp;

pub use peerwarp_codegen as codegen;
pub use peerwarp_macros::include_pack;

pub mod bench;
pub mod catalogue;
pub mod cli;
pub mod emit;
pub mod generate;
pub mod input;
pub mod kernels;
pub mod models;
pub mod moe;
pub mod moe_run;
mod moe_scenario;
pub mod npy;
pub mod pack;
pub mod reference;
mod replace;
pub mod request;
pub mod routing;
pub mod runtime;
pub mod scenario;
pub mod toolchain;
pub mod trace;
pub mod tune;

/// Everything a crate with kernels of its own needs: `use peerwarp::prelude::*;`.
pub mod prelude {
    pub use peerwarp_codegen::dsl::prelude::*;
    pub use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
    pub use peerwarp_codegen::ir::Dtype;
    pub use peerwarp_codegen::kernel;
}

/// The code of the guide, compiled and run by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide.md")]
struct Guide;

/// The code of the page about GPUs, compiled by `cargo test`.
#[cfg(doctest)]
#[doc = include_str!("../docs/runtime.md")]
struct Gpus;
