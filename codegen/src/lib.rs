//! From a kernel function to IR, and from IR to checked CUDA and HIP source text. No CUDA and no I/O in here.
#![forbid(unsafe_code)]
#![warn(missing_docs)]
// A new operation, type or device does not compile until every consumer says what it does with it.
#![cfg_attr(not(test), warn(clippy::wildcard_enum_match_arm))]

extern crate self as peerwarp_codegen;

// Its patterns are for all that follow.
#[macro_use]
pub mod ir;

#[doc(hidden)]
pub mod __private;
pub mod bf16;
pub mod device;
pub mod dsl;
pub mod elements;
pub mod family;
pub mod fp8;
mod info;
pub mod print;
pub mod sim;
pub mod threads;

pub use info::KernelInfo;
pub use peerwarp_macros::kernel;
