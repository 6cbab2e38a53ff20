//! The kernels that Peerwarp ships, written in its DSL.

pub mod moe;
