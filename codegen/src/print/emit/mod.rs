//! The emitter: scalars, and tile operations that wait to be one loop. All that writes statements builds on it.

pub(super) mod emitter;
pub(super) mod ops;
pub(super) mod steps;
pub(super) mod tiles;

pub(super) use emitter::{Emitter, Group, LoopLabels, PutOff};
pub(super) use tiles::{Item, Kept, Step, combiner};
