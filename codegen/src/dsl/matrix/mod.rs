//! Matrices in memory and as tiles of two dimensions, with and without their element type.

pub(super) mod any;
pub(super) mod typed;
pub(super) mod window;
