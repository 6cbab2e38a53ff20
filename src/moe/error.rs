//! What can be wrong with an MoE problem.

use thiserror::Error;

/// Why a problem cannot be run.
#[derive(Debug, Error, Clone, PartialEq)]
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
