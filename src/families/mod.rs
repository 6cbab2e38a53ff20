//! The families of kernels that come with Peerwarp, a folder each.

pub mod moe;
