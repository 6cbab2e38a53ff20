//! What can go wrong before puts flow. [`Fault`](crate::Fault) has what goes wrong afterwards.

/// Why the engine cannot do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FabricError {
    /// The library is absent, or the loader refuses it.
    #[error(
        "libfabric cannot be loaded as {names}: install the package `libfabric1` on Debian and Ubuntu, `libfabric` on RHEL, \
         or name its file in PEERWARP_LIBFABRIC ({reason})"
    )]
    NotInstalled {
        /// Names that were tried.
        names: String,
        /// The loader's words.
        reason: String,
    },
    /// The library lacks a function.
    #[error("libfabric lacks the call `{call}`: install version 1.17 up to 2.x")]
    MissingCall {
        /// The function.
        call: &'static str,
    },
    /// The bindings do not fit the library.
    #[error(
        "libfabric is of version {major}.{minor}, and 1.17 up to 2.x are supported: install another version"
    )]
    Version {
        /// Major version of the library.
        major: u32,
        /// Minor version of the library.
        minor: u32,
    },
    /// A provider's name is unknown or refused.
    #[error("FI_PROVIDER is `{given}`, and {allowed} are allowed{}", why(.reason))]
    Provider {
        /// The name.
        given: String,
        /// Names that are allowed.
        allowed: String,
        /// Why a known name is refused, or nothing.
        reason: &'static str,
    },
    /// No provider can carry puts.
    #[error("libfabric {version} has no provider for {wanted}: it offers {offered}")]
    NoProvider {
        /// Version of the library.
        version: String,
        /// What was looked for.
        wanted: String,
        /// Providers and domains that can carry puts.
        offered: String,
    },
    /// A provider's immediates are too short.
    #[error("provider {provider} carries {bytes} bytes beside a put, and a channel and a rank need {needed}")]
    ShortImmediate {
        /// The provider.
        provider: String,
        /// Bytes of an immediate.
        bytes: usize,
        /// Bytes that are needed.
        needed: usize,
    },
    /// A call of libfabric failed.
    #[error("`{call}` of libfabric failed: {reason}")]
    Call {
        /// The call.
        call: &'static str,
        /// The library's words and number.
        reason: String,
    },
    /// Memory cannot be had or used.
    #[error("{bytes} bytes of memory for {what}: {allowed}")]
    Memory {
        /// What they are for.
        what: &'static str,
        /// Bytes that were asked for.
        bytes: usize,
        /// What is allowed.
        allowed: &'static str,
    },
    /// A number is out of range.
    #[error("{field} is {value}, and {allowed} are allowed")]
    Range {
        /// What the number is.
        field: &'static str,
        /// Its value.
        value: u64,
        /// Values that are allowed.
        allowed: String,
    },
    /// The system starts no thread.
    #[error("the proxy's thread cannot be started: {reason}")]
    Thread {
        /// The system's words.
        reason: String,
    },
    /// The proxy cannot run on a core.
    #[error("the proxy cannot be pinned to core {core}: {reason}")]
    Core {
        /// The core.
        core: usize,
        /// The system's words.
        reason: String,
    },
}

fn why(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(": {reason}") }
}

/// An error unless a number is below a limit.
pub(crate) fn below(field: &'static str, value: u64, limit: u64) -> Result<(), FabricError> {
    match value < limit {
        true => Ok(()),
        false => Err(FabricError::Range { field, value, allowed: format!("values below {limit}") }),
    }
}
