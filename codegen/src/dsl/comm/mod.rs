//! Communication: parcels, signals, waits, counts, and messages that need no flag.

pub(super) mod block_flags;
pub(super) mod counts;
pub(super) mod ll;
pub(super) mod messages;
pub(super) mod packets;
pub(super) mod protocol;
pub(super) mod signal;

pub(super) use protocol::{Arrived, Parcel, Peers};

/// The parameters of each transport of messages.
pub(super) mod transports {
    pub use super::ll::{AnyLl, Ll};
    pub use super::packets::{AnyPackets, Packets};
}
