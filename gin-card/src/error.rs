//! What can go wrong.

use std::time::Duration;

use crate::abi;

/// Why the card cannot do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// A variable's value is not allowed.
    #[error("{name} is `{value}`, and {allowed} are allowed")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// A variable is set that does nothing.
    #[error("{name} is no setting of the card: {known} are")]
    UnknownVariable {
        /// The variable.
        name: String,
        /// All variables of the card.
        known: String,
    },
    /// A variable is set that does nothing without another one.
    #[error("{name} is set, and does nothing without {needed}: set both, or neither")]
    Alone {
        /// The variable.
        name: &'static str,
        /// The one that it needs.
        needed: &'static str,
    },
    /// An argument is a null pointer.
    #[error("{argument} of `{call}` is null")]
    Null {
        /// The call.
        call: &'static str,
        /// The argument.
        argument: &'static str,
    },
    /// A handle names no object.
    #[error("{handle:#x} is no {what} of this card, or it is closed")]
    Handle {
        /// What it should be.
        what: &'static str,
        /// Its value.
        handle: usize,
    },
    /// A number is out of range.
    #[error("{field} is {value}, and {allowed} are allowed")]
    Range {
        /// What the number is.
        field: &'static str,
        /// Its value.
        value: i64,
        /// Allowed values.
        allowed: String,
    },
    /// Bytes lie outside of a region.
    #[error("bytes {offset} to {offset} + {bytes} lie outside of region {region}, which has {length} bytes")]
    Outside {
        /// The region's number.
        region: u64,
        /// Where they begin.
        offset: u64,
        /// How many they are.
        bytes: u64,
        /// Bytes of the region.
        length: u64,
    },
    /// A signal cannot be where it is asked for.
    #[error(
        "a signal at byte {offset} of region {region}: regions registered for signals and multiples of 8 are allowed"
    )]
    Signal {
        /// The region's number.
        region: u64,
        /// The signal's place.
        offset: u64,
    },
    /// A region of GPU memory, where there is no GPU.
    #[error("a region of GPU memory is registered, and `connect` saw no current CUDA context")]
    NoGpu,
    /// A call is not offered.
    #[error("`{call}` is not offered: {instead}")]
    NotOffered {
        /// The call.
        call: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// A call of the system failed.
    #[error("`{call}` of the system failed: {reason}")]
    System {
        /// The call.
        call: &'static str,
        /// The system's words.
        reason: String,
    },
    /// A call of CUDA failed.
    #[error("`{call}` of CUDA failed: {reason}")]
    Cuda {
        /// The call.
        call: &'static str,
        /// CUDA's words.
        reason: String,
    },
    /// A peer's handle leads to no card.
    #[error("the handle of rank {rank} leads to no card: {reason}")]
    NoCard {
        /// The rank.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// A peer does not answer.
    #[error("rank {rank}, process {process}, does not {what} in {patience:?}")]
    Silent {
        /// The rank.
        rank: usize,
        /// Its process.
        process: u32,
        /// The step that is awaited.
        what: &'static str,
        /// How long it was awaited.
        patience: Duration,
    },
    /// A peer's process ended before it closed its side.
    #[error("rank {rank}, process {process}, ended without closing")]
    Ended {
        /// The rank.
        rank: usize,
        /// Its process.
        process: u32,
    },
    /// The library is wrong.
    #[error("a fault of the card itself: {reason}")]
    Internal {
        /// What happened.
        reason: String,
    },
}

impl CardError {
    /// The status that NCCL gets for this error.
    pub fn status(&self) -> abi::Status {
        match self {
            CardError::Variable { .. }
            | CardError::UnknownVariable { .. }
            | CardError::Alone { .. }
            | CardError::Null { .. }
            | CardError::Handle { .. }
            | CardError::Range { .. }
            | CardError::Outside { .. }
            | CardError::Signal { .. } => abi::INVALID_ARGUMENT,
            CardError::NoGpu | CardError::NotOffered { .. } => abi::INVALID_USAGE,
            CardError::System { .. } => abi::SYSTEM_ERROR,
            CardError::Cuda { .. } => abi::UNHANDLED_CUDA_ERROR,
            CardError::NoCard { .. } | CardError::Silent { .. } | CardError::Ended { .. } => {
                abi::REMOTE_ERROR
            }
            CardError::Internal { .. } => abi::INTERNAL_ERROR,
        }
    }
}

/// Names a call of the system in an error.
pub(crate) fn system(call: &'static str) -> impl Fn(rustix::io::Errno) -> CardError {
    move |reason| CardError::System { call, reason: reason.to_string() }
}
