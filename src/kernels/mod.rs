//! The kernels that Peerwarp ships, written in its DSL.

pub mod clock;
pub mod moe;
