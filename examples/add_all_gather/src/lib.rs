//! A kernel of one's own with Peerwarp, in a crate that depends on `peerwarp` and nothing else.
//!
//! Every rank has two vectors. The kernel adds them and gives every rank all ranks' sums: an elementwise add, fused
//! with an all-gather. No sum is stored on the way, and sums travel while others are still being added.
//!
//! [`kernel`] is what runs on the GPUs, [`config`] what it is specialised for. [`workload`] says what goes in and what must
//! come out: with it `peerwarp`'s commands run, check, time, tune and trace the kernel, simulated and on GPUs.

pub mod config;
pub mod kernel;
pub mod workload;

pub use config::AddAllGather;
pub use kernel::AddArgs;
