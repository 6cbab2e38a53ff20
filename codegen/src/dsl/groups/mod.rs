//! Roles, groups of warps, and the work that groups share.

pub(super) mod dynamic;
pub(super) mod group;
pub(super) mod tiles;
