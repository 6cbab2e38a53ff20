//! What to simulate and how: the machine, its options, many seeds, and what a run did in numbers.

pub(super) mod error;
pub(super) mod explore;
pub(super) mod machine;
pub(super) mod names;
pub(super) mod options;
pub(super) mod report;

pub(super) use machine::{Bound, Step};
