//! Plain implementations of what the kernels compute: loops over tokens, experts and ranks, nothing clever.
//!
//! They share no code with the kernels or the simulator, so that agreement means something.

mod combine;
mod dispatch;

pub use combine::{by_owner, in_order, of_owner, returned, stand_in_expert, weighted_rows};
pub use dispatch::{Entry, Grouped, Tokens, dispatch};
