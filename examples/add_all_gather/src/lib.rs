//! A kernel of one's own with Peerwarp, in a crate that depends on `peerwarp` and nothing else.
//!
//! Every rank has two vectors. The kernel adds them and gives every rank everybody's sums: an elementwise add, fused
//! with an all-gather. No sum is stored on the way, and sums travel while others are still being added.
//!
//! [`kernel`] is what runs on the GPUs, [`config`] what it is specialised for, [`workload`] lets `peerwarp`'s
//! commands run and check it.

pub mod baselines;
pub mod config;
pub mod kernel;
pub mod workload;

pub use config::AddAllGather;
