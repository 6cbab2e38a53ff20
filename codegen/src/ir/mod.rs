//! The intermediate representation: one closed operation enum with structured regions, in an arena.
//!
//! A [`Kernel`] is the single source of truth. Source text, simulation, resource estimates and the description of a
//! variant in words are all views of it.

#[macro_use]
mod groups;

pub mod analysis;
mod binary;
mod build;
pub mod explain;
mod far;
mod functions;
mod kernel;
pub mod mutate;
mod names;
mod op;
mod parts;
mod properties;
#[cfg(test)]
pub(crate) mod samples;
#[cfg(test)]
mod tests;
pub mod text;
mod transport;
mod types;
mod unary;
pub mod verify;
mod words;
pub(crate) use words::rank_list;

pub use binary::{BinaryOp, CompareOp, NoResult};
pub(crate) use binary::{TwoOperands, truths};
pub use build::Builder;
pub use explain::explain;
pub use far::{FAR_CHANNELS, FAR_LONGEST, FAR_MEMORY, FAR_RANKS, FAR_UNIT, FarPart, FarReach};
pub use kernel::*;
pub use names::Names;
pub use op::*;
pub use parts::Part;
pub use properties::{Access, Accessed, Effect, Member, VarUse};
pub use transport::{Traits, Transport};
pub use types::*;
pub(crate) use unary::OneOperand;
pub use unary::UnaryOp;
pub use verify::{Planted, Problem, Verified, VerifyError, VerifyErrors, verify, verify_structure};
