//! Statements that access this rank's memory.

pub(super) mod drawn;
pub(super) mod scalar;
pub(super) mod vectors;
