//! Plain implementations of what the kernels compute: loops over tokens, experts and ranks, nothing clever.
//!
//! They share no code with the kernels or the simulator, so that agreement means something.

mod combine;
mod dispatch;
mod elements;
mod fp8;

pub use combine::{by_owner, in_order, of_owner, stand_in_expert};
pub use dispatch::{Entry, Grouped, Tokens, dispatch};
pub use elements::{decode, encode, round};
pub use fp8::{E4M3_MAX, dequantise, e4m3_from_f32, e4m3_to_f32, quantise};
