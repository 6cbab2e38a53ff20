//! From a variant to source text and binaries: emitting, folders of emitted files, compilers, and packs.

pub(crate) mod digest;
pub mod emit;
pub(crate) mod library;
pub mod pack;
pub(crate) mod replace;
mod steps;
pub mod toolchain;
pub mod tree;
mod workplace;
