//! Questions about a kernel as it stands: bounds and reach of indices, its waits, what comes before what.

pub(super) mod ahead;
pub(super) mod bounds;
pub(super) mod describe;
pub(super) mod gin;
pub(super) mod linear;
pub(super) mod multimem;
pub(super) mod program;
pub(super) mod reach;
pub(super) mod signals;
pub(super) mod waits;

pub(super) use program::{Program, VectorMask};
pub(super) use reach::Reach;
pub(super) use waits::{WaitSite, Waits};
