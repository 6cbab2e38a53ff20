//! How tiles and matrices lie: over lanes, in memory, in shared memory.

pub(super) mod splats;
pub(super) mod spread;
