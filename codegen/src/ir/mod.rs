//! The intermediate representation: one closed operation enum with structured regions, in an arena.
//!
//! A [`Kernel`] is the single source of truth. Source text, simulation, resource estimates and the description of a
//! variant in words are all views of it.

mod build;
mod kernel;
mod op;
mod types;

pub use build::Builder;
pub use kernel::*;
pub use op::*;
pub use types::*;
