//! The tracer: open regions, values, mistakes, and the checks of a whole kernel.

pub(super) mod check;
pub(super) mod error;
pub(super) mod fold;
pub mod rt;
pub(super) mod scope;
pub(super) mod tracer;
pub(super) mod values;

pub(super) use error::TraceError;
pub(super) use fold::Pure;
pub(super) use scope::{ScopeId, Thing};
pub(super) use tracer::{Made, Nameable, Trace};
