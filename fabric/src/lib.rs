//! Carries Peerwarp's puts between machines.
//!
//! A kernel that sends to a far rank writes 16-byte [commands](Command) into a [`Ring`] in host memory. The [`Proxy`] of its
//! GPU, one thread, takes them and posts puts to libfabric. On the other side the peer's proxy counts the puts that arrive,
//! and stores the count where the peer's kernel polls it ([`Words`]).
//!
//! ```text
//!  kernel ── Command ──► Ring ──► Proxy ══ put ══► Proxy ── count ──► Words ◄── kernel polls
//!     ▲                             │
//!     └──────── delivered ──────────┘
//! ```
//!
//! # What a put promises
//!
//! - Puts are unordered. A put's bytes arrive in any order, and are complete when the count has grown.
//! - A count says how many puts of one source have arrived on one channel, not which. Conclude nothing from a part of them.
//! - `delivered` of a ring is a prefix of its commands. An outbox may be written again when the commands that read it are
//!   delivered. An inbox may be written again when its owner has given credit, by a put of its own.
//! - [`Op::Flush`] orders: puts of later commands start when those of earlier commands are delivered. Without it, a put that
//!   is counted says nothing about one that is not.
//! - A put to the own rank is a copy by the proxy, counted and delivered as the others are. Its two places are the same or
//!   share no byte.
//! - The network does not report a dead peer. Every wait is bounded, and names the peer, the channel and the put. Proxies of
//!   idle ranks send each other pulses, so that each rank names a dead peer by itself.
//!
//! # Setting up
//!
//! Open an [`Endpoint`], make a [`Station`] of it, exchange [cards](Station::card) over an authenticated connection, collect
//! them in a [`Book`], and start the [`Proxy`]. All ranks agree that they have finished, by means of their own, before one of
//! them [closes](Proxy::close) its proxy: acknowledging other ranks' puts takes a running one.
//!
//! # Limits
//!
//! 64 channels, 1024 ranks, host memory, one network card for each proxy, puts of 16 bytes to 256 MiB in steps of 16.
//!
//! # What was tested
//!
//! **No network card was used.** Tests run the providers `tcp` and `shm` on one host. They prove the protocol and the code,
//! and no figures. The providers `efa`, `verbs` and `cxi` are chosen by their documented interface and have not been run.
//!
//! libfabric is loaded at run time: the package is `libfabric1` on Debian and Ubuntu, `libfabric` on RHEL.
#![warn(missing_docs)]

mod book;
mod carrier;
mod command;
mod endpoint;
mod error;
mod fault;
mod library;
mod memory;
mod provider;
mod proxy;
mod ring;
#[allow(non_camel_case_types, reason = "C's names")]
mod sys;
#[cfg(test)]
mod sys_tests;
mod words;

pub use book::{Book, BookError, Channel, Station};
pub use command::{CHANNELS, Command, CommandError, Immediate, LONGEST, Op, PutName, RANKS, UNIT};
pub use endpoint::{Endpoint, EndpointOptions, Event, Peer, Posted, Put, Region, Target};
pub use error::FabricError;
pub use fault::{Fault, FaultKind, Status};
pub use library::{LIBRARY_VARIABLE, library_version};
pub use memory::Memory;
pub use provider::{PROVIDER_VARIABLE, Provider};
pub use proxy::{CloseError, Proxy, ProxyOptions, StartError, Summary};
pub use ring::{Ring, RingError};
pub use words::{WaitError, Words};
