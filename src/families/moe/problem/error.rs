//! What can be wrong with an MoE problem.

use peerwarp_codegen::family::FamilyError;
use peerwarp_codegen::ir::VerifyErrors;
use peerwarp_codegen::sim::SimError;
use peerwarp_codegen::threads::ThreadsRefused;
use thiserror::Error;

/// Why a problem cannot be run.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum MoeError {
    /// A value outside what is allowed.
    #[error("{field} = {value}: {allowed}")]
    Invalid {
        /// The field, as it is called in the command line and in the types.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        allowed: String,
    },
    /// A configuration that is not legal, or whose kernel cannot be traced.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// A kernel that is not well-formed.
    #[error("a kernel is not well-formed: {}", first(.0))]
    Verify(#[from] VerifyErrors),
    /// The system starts no thread.
    #[error(transparent)]
    Threads(#[from] ThreadsRefused),
    /// A machine that cannot be put together.
    #[error(transparent)]
    Sim(#[from] SimError),
}

impl MoeError {
    /// An [`MoeError::Invalid`].
    pub(crate) fn invalid(
        field: &'static str,
        value: impl std::fmt::Display,
        allowed: impl Into<String>,
    ) -> MoeError {
        MoeError::Invalid { field, value: value.to_string(), allowed: allowed.into() }
    }
}

fn first(errors: &VerifyErrors) -> String {
    let rest = errors.len().saturating_sub(1);
    let first = errors.first().map(ToString::to_string).unwrap_or_default();
    if rest == 0 { first } else { format!("{first} (and {rest} more)") }
}
