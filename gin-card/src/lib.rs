//! A network card for tests: NCCL's GIN kernels run between processes of one host, without a network.
//!
//! NCCL's proxy backend of GIN hands the puts of a kernel to a plug-in, which `NCCL_RMA_PLUGIN` names. This library is such
//! a plug-in, of interface 14 to 16. It moves bytes through memory that both processes map, and it misbehaves on demand, so
//! that a kernel meets everything a network may do.
//!
//! ```text
//!  kernel ─ GFD ─► NCCL's proxy ─ iput ─► Outgoing ══ Ring ══► Incoming ─► window of the peer
//!                       ▲                    │                     └─────► its signal, after its own bytes
//!                       └──── test: read ────┘
//! ```
//!
//! # What a put promises
//!
//! - It is complete for [`test`](abi::Ends::test) when its source has been read. Nothing is said about its arrival.
//! - Its own signal follows its own bytes. Weak puts are unordered against each other.
//! - A strong signal follows all earlier puts of its context, source and target. So does a signal without bytes, because NCCL
//!   splits a put with a signal in a window in two.
//! - A get is refused: Peerwarp's kernels have none.
//!
//! # Misbehaviour
//!
//! Variables of the receiving process; [`Settings`] has their bounds. A misspelt one is refused by name.
//!
//! | variable | effect |
//! |---|---|
//! | `PEERWARP_GIN_DELAY_US` | each put lands so many microseconds after it is seen |
//! | `PEERWARP_GIN_REORDER_SEED` | each put is late by a random time more, and lands in a step of its own |
//! | `PEERWARP_GIN_SPREAD_US` | the most that this random time may be, 200 by default |
//! | `PEERWARP_GIN_DROP_PUT` | of each source, the put of this number, from 1, never lands, nor does what has to follow it |
//! | `PEERWARP_GIN_PATIENCE_MS` | how long connecting and closing wait for a peer, 30000 by default |
//!
//! # What was run
//!
//! GIN kernels of `tests/gpu` on two H200s as two nodes, 28 November 2026: driver 580.159.04, NCCL 2.32.3, 32 rows of 2 KiB a round to the
//! other rank, every word compared. `bench/results/gin-on-two-h200.json` has the numbers.
//!
//! | rows are counted | manners | rounds | us a round | result |
//! |---|---|---|---|---|
//! | each by itself | none; 20 us late; reordered | 100,000 each | 379; 410; 376 | right |
//! | in a batch with a strong end | none; reordered | 100,000 each | 267; 297 | right |
//! | in a batch with a weak end | none; reordered | 2000 each | 292; 1060 | right; wrong, as it has to be |
//! | each, one signal for two banks | none; reordered | 2000 each | 376; 1068 | right; wrong, as it has to be |
//! | each | one put is lost | 100 | | both ranks' waits end within two seconds, a row short |
//! | each | the other process leaves | 500 | | the wait ends within two seconds |
//!
//! Of the last two the plug-in's own words, which name the put and the rank, did not reach standard error.
//!
//! # Limits
//!
//! 64 ranks of one host and one user, in one namespace of processes. GPU memory needs a driver that takes CUDA 13.
//! Shared memory has no name in a file system, so that nothing is left behind when a process is killed.
#![warn(missing_docs)]

pub mod abi;
mod collective;
mod cuda;
mod error;
mod incoming;
mod journal;
mod manners;
mod outgoing;
mod plugin;
mod region;
mod registry;
mod requests;
mod ring;
mod segment;

pub use error::CardError;
pub use manners::{Manners, Reorder, Settings};
pub use plugin::{ncclRmaPlugin_v14, ncclRmaPlugin_v15, ncclRmaPlugin_v16};
