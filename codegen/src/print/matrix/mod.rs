//! Statements on matrices: products, moves and reductions.

pub(super) mod lane_order;
pub(super) mod lines;
pub(super) mod matrices;
pub(super) mod pieces;
pub(super) mod products;
pub(super) mod tensor;
