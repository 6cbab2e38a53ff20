//! Processes that find each other: who started them, where they meet, and how they pass handles of memory.

pub(in crate::runtime) mod bootstrap;
mod channel;
pub(in crate::runtime) mod deadline;
mod form;
#[cfg(test)]
mod fuzz_tests;
pub(in crate::runtime) mod handover;
mod handshake;
mod introductions;
mod launcher;
pub(in crate::runtime) mod ledger;
pub(in crate::runtime) mod links;
pub(in crate::runtime) mod processes;
pub(in crate::runtime) mod rendezvous;
pub(in crate::runtime) mod replacing;
mod secret;
mod teams;

pub use bootstrap::{Bootstrap, BootstrapOptions};
pub use form::FormError;
pub use launcher::{Launched, MEET_VARIABLE, NODE_VARIABLE};
#[cfg(test)]
pub(crate) use rendezvous::tests::{free_address, secret};
pub use secret::{SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret};
pub use teams::{LOCAL_RANKS, Place, RANKS, Teams, TeamsError};
