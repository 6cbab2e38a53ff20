//! Memory of the ranks: bytes, what happened to them, stores on their way, and flags with who waits for them.

pub(super) mod flags;
pub(super) mod global;
pub(super) mod pages;
pub(super) mod places;
pub(super) mod runs;
pub(super) mod shadow;
pub(super) mod waiters;
pub(super) mod wire;

pub(super) use global::Block;
pub(super) use shadow::{DataEpoch, Event, Receipt, Who};
pub(super) use wire::{Cargo, Pending, Spot};
