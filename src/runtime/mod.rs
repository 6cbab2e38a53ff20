//! Kernels on GPUs: devices, compiled modules, worlds of ranks, and MoE dispatch and combine for host programs.
//!
//! Nothing here needs CUDA or ROCm to build. Their libraries are loaded when they are first asked for, and an error says
//! what to install where they are not.

mod args;
pub mod cache;
mod clocks;
pub mod cuda;
mod error;
mod form;
pub mod gpu;
pub mod handles;
mod handover;
pub mod hip;
pub mod image;
mod launcher;
mod links;
#[cfg(test)]
pub(crate) mod mock;
mod moe;
mod plan;
mod processes;
mod registry;
mod rendezvous;
pub mod status;
mod symmetric;
mod timeline;
mod world;

pub use args::{KernelArgs, Slot};
pub use clocks::Clocks;
pub use error::RuntimeError;
pub use form::FormError;
pub use launcher::{Launched, MEET_VARIABLE};
pub use moe::{MoeAllToAll, MoeRank, Returning, Routed, Sending, Tokens};
pub use registry::{MoeKey, NoVariant, PackImages, Registry, Selected};
#[cfg(test)]
pub(crate) use rendezvous::tests::free_address;
pub use symmetric::{Member, Symmetric};
pub use world::{FORM_TIMEOUT, WAIT_BUDGET, World, WorldOptions};
