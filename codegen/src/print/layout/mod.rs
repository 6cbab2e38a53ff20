//! How tiles and matrices lie: over lanes, in memory, in shared memory.

pub(super) mod fragments;
pub(super) mod lane_order;
pub(super) mod shared;
pub(super) mod spread;

pub(super) use fragments::{Fragments, Moved};
pub(super) use spread::{Layout, Layouts, WIDEST, wide};
