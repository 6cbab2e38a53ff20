//! Kernels of one's own, each in a file: configuration, parameters, kernel, and what it is compared with.
//!
//! | family | what it does |
//! |---|---|
//! | [`far_gather`] | every rank's row on every rank, put by a network card: ranks may be on several machines |
//! | [`histogram`] | how many of all ranks' numbers fall into each bin |
//! | [`kv_push`] | pages of a KV cache, from the pool of one rank into that of another |
//! | [`matmul_gelu`] | a product with a bias, GELU and the largest element of each row, on one GPU |
//! | [`ring_gather`] | every rank's vector on every rank, passed from neighbour to neighbour |
//! | [`ulysses`] | the transpose of sequence parallelism: from parts of the tokens to parts of the heads |
//!
//! `peerwarp pack` compiles them, and a Python program calls them by the names of their parameters.

pub mod far_gather;
pub mod histogram;
pub mod kv_push;
pub mod matmul_gelu;
pub mod ring_gather;
pub mod ulysses;

use peerwarp::harness::elements::{encode, mixed};
use peerwarp::harness::workload::Turn;
use peerwarp::prelude::Dtype;

pub use far_gather::FarGather;
pub use histogram::Histogram;
pub use kv_push::KvPush;
pub use matmul_gelu::MatmulGelu;
pub use ring_gather::RingGather;
pub use ulysses::Ulysses;

/// Bytes of `count` elements of a rank, which every type holds exactly.
fn numbers(dtype: Dtype, count: usize, turn: Turn) -> Vec<u8> {
    let first = turn.seed ^ u64::from(turn.rank) << 40 ^ u64::from(turn.round) << 48;
    let values: Vec<f32> = (0..count as u64).map(|i| (mixed(first ^ i) % 255) as f32 - 127.0).collect();
    encode(dtype, &values)
}
