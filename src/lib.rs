//! Peerwarp.
#![warn(missing_docs)]

extern crate self as peerwarp;

pub use peerwarp_codegen as codegen;

pub mod catalogue;
pub mod generate;
pub mod input;
pub mod models;
pub mod moe;
pub mod npy;
pub mod reference;
pub mod request;
pub mod routing;
