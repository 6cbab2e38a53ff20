//! Peerwarp.
#![warn(missing_docs)]

extern crate self as peerwarp;

pub use peerwarp_codegen as codegen;

pub mod moe;
pub mod reference;
