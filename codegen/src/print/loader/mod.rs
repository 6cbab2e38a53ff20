//! Loaders: which roles have one, and the two parts of their kernels.

pub(super) mod cut;
pub(super) mod drawn;
mod join;
pub(super) mod plan;

pub(super) use plan::{Crew, Loaders, Obstacle, Ring};
