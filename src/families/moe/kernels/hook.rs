//! What may be done to rows on their way into the receiver's output.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

/// An elementwise function of rows that the receiver runs: an activation, a scaling, a quantisation.
pub type RowHook<'a> = &'a dyn Fn(Tile<f32>) -> Tile<f32>;

/// Which hook a dispatch kernel has.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Hook {
    /// None: rows are moved as they are.
    #[choice(name = "raw")]
    None,
    /// The benchmark's stand-in expert, `x * (1 + rank)`.
    Expert,
    /// The one that a family of one's own passes to [`dispatch_with`](super::dispatch_with).
    Custom,
}

/// The benchmark's stand-in expert.
pub(super) fn stand_in_expert(row: Tile<f32>) -> Tile<f32> {
    row * (rank().to_f32() + 1.0)
}
