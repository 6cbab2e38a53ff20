//! Kernels on GPUs: devices, compiled modules, worlds of ranks, and memory that they share.
//!
//! Nothing here needs CUDA or ROCm to build. Their libraries are loaded when they are first asked for, and an error says
//! what to install where they are not.

mod args;
mod backends;
pub mod cache;
pub(crate) mod copies;
pub mod cuda;
mod error;
mod far;
mod fault;
pub mod gpu;
mod greetings;
pub mod handles;
pub mod hip;
pub mod image;
#[cfg(test)]
pub(crate) mod mock;
mod module;
mod nccl;
pub mod net;
pub mod op;
mod packs;
mod reach;
mod recording;
pub mod registry;
mod remedy;
pub mod status;
#[cfg(test)]
mod stub_tests;
mod symmetric;
mod tenants;
mod timeline;
mod world;

pub use args::{KernelArgs, Slot};
pub use backends::gpus;
/// The crate whose slices and streams launches take.
pub use cudarc;
pub use error::RuntimeError;
pub use net::{
    Bootstrap, BootstrapOptions, FormError, Launched, MEET_VARIABLE, NODE_VARIABLE, Place,
    SECRET_FILE_VARIABLE, SECRET_VARIABLE, Secret, Teams, TeamsError,
};
pub use packs::{PackImages, SelectError};
pub(crate) use reach::{for_ranks, together};
pub use recording::{Event, Recording, TimelineError, Warp};
pub use symmetric::{Member, Symmetric};
pub(crate) use timeline::Recorder;
pub use world::{FORM_TIMEOUT, WAIT_BUDGET, World, WorldOptions};
