//! What goes wrong while puts flow: in words for the host, and in one 64-bit word for kernels.

use std::fmt;
use std::time::Duration;

use crate::command::{CommandError, Immediate, PutName};

/// Why a proxy gave up on a put, a ring or its endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// A peer completed no put for as long as the budget allows.
    #[error("{put} was not delivered within {budget:?}, nor was any other: rank {} does not answer", .put.peer)]
    Late {
        /// The oldest put to that peer.
        put: PutName,
        /// How long the proxy waited.
        budget: Duration,
    },
    /// A peer's proxy does not answer, while no put is under way to it.
    #[error("rank {rank} does not answer: its proxy took in nothing for {budget:?}")]
    Silent {
        /// The peer.
        rank: u16,
        /// How long the proxy waited.
        budget: Duration,
    },
    /// The provider reports an error for a put.
    #[error("{put} failed: {reason}; rank {} cannot be reached any more", .put.peer)]
    Failed {
        /// The put.
        put: PutName,
        /// The provider's words.
        reason: String,
    },
    /// A kernel wrote a command that makes no sense.
    #[error("{put} is refused: {reason}; the ring is closed")]
    Command {
        /// The command. Peer and channel are as the kernel wrote them.
        put: PutName,
        /// What is wrong with it.
        reason: CommandError,
    },
    /// The endpoint is gone: its network card was removed or failed.
    #[error("the endpoint of this rank is gone: {reason}{}", oldest(.put))]
    Endpoint {
        /// The oldest put that was not delivered.
        put: Option<PutName>,
        /// What happened to it.
        reason: String,
    },
    /// A put arrived that no rank of the world can have sent.
    #[error("a put arrived on channel {} from rank {}, and the world has {channels} channels and {ranks} ranks", .immediate.channel, .immediate.source)]
    Arrival {
        /// What it carried.
        immediate: Immediate,
        /// Channels of the world.
        channels: u8,
        /// Ranks of the world.
        ranks: u16,
    },
    /// The proxy's thread ended before it was closed.
    #[error("the proxy's thread ended by itself")]
    Ended,
}

fn oldest(put: &Option<PutName>) -> String {
    put.map_or_else(String::new, |put| format!("; {put} was not delivered"))
}

/// What kind of fault a status word stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FaultKind {
    /// [`Fault::Late`]
    Late = 1,
    /// [`Fault::Failed`]
    Failed = 2,
    /// [`Fault::Command`]
    Command = 3,
    /// [`Fault::Endpoint`]
    Endpoint = 4,
    /// [`Fault::Arrival`]
    Arrival = 5,
    /// [`Fault::Ended`]
    Ended = 6,
    /// [`Fault::Silent`]
    Silent = 7,
}

/// A fault as kernels see it: one 64-bit word, 0 while all is well.
///
/// | bytes | holds |
/// |---|---|
/// | 0 | kind, 1 to 7 |
/// | 1 | channel, 255 if the fault names no put |
/// | 2 and 3 | the peer's rank |
/// | 4 | ring |
/// | 5 to 7 | number of the put, modulo 2^24 |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What happened.
    pub kind: FaultKind,
    /// The put that it happened to; of its number 24 bits. Of [`FaultKind::Silent`] and [`FaultKind::Arrival`] the peer counts,
    /// and the channel of the latter.
    pub put: Option<PutName>,
}

const NO_CHANNEL: u8 = 255;

impl Fault {
    /// The fault in a word.
    pub fn status(&self) -> Status {
        let (kind, put) = match self {
            Fault::Late { put, .. } => (FaultKind::Late, Some(*put)),
            Fault::Failed { put, .. } => (FaultKind::Failed, Some(*put)),
            Fault::Command { put, .. } => (FaultKind::Command, Some(*put)),
            Fault::Endpoint { put, .. } => (FaultKind::Endpoint, *put),
            Fault::Arrival { immediate: Immediate { channel, source }, .. } => {
                (FaultKind::Arrival, Some(PutName { peer: *source, channel: *channel, ring: 0, number: 0 }))
            }
            Fault::Silent { rank, .. } => {
                (FaultKind::Silent, Some(PutName { peer: *rank, channel: 0, ring: 0, number: 0 }))
            }
            Fault::Ended => (FaultKind::Ended, None),
        };
        Status { kind, put: put.map(|put| PutName { number: put.number & 0xff_ffff, ..put }) }
    }
}

impl Status {
    /// The word.
    pub fn encode(self) -> u64 {
        let put = self.put.unwrap_or(PutName { peer: 0, channel: NO_CHANNEL, ring: 0, number: 0 });
        self.kind as u64
            | u64::from(put.channel) << 8
            | u64::from(put.peer) << 16
            | u64::from(put.ring) << 32
            | put.number << 40
    }

    /// Reads the word; none while all is well, and of words that are no status.
    pub fn decode(word: u64) -> Option<Status> {
        let kind = match word as u8 {
            1 => FaultKind::Late,
            2 => FaultKind::Failed,
            3 => FaultKind::Command,
            4 => FaultKind::Endpoint,
            5 => FaultKind::Arrival,
            6 => FaultKind::Ended,
            7 => FaultKind::Silent,
            _ => return None,
        };
        let channel = (word >> 8) as u8;
        let put =
            PutName { peer: (word >> 16) as u16, channel, ring: (word >> 32) as u8, number: word >> 40 };
        Some(Status { kind, put: (channel != NO_CHANNEL).then_some(put) })
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let put = || self.put.map_or_else(|| "no put".into(), |put| put.to_string());
        match self.kind {
            FaultKind::Late => write!(f, "{} was not delivered in time", put()),
            FaultKind::Failed => write!(f, "{} failed", put()),
            FaultKind::Command => write!(f, "{} is refused", put()),
            FaultKind::Endpoint => write!(f, "the endpoint is gone; the oldest put under way: {}", put()),
            FaultKind::Arrival => match self.put {
                Some(put) => write!(f, "a put arrived from rank {} on channel {}", put.peer, put.channel),
                None => f.write_str("a put arrived from an unknown rank"),
            },
            FaultKind::Silent => match self.put {
                Some(put) => write!(f, "rank {} does not answer", put.peer),
                None => f.write_str("a rank does not answer"),
            },
            FaultKind::Ended => f.write_str("the proxy's thread ended by itself"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn status_words_survive(peer: u16, channel in 0u8..64, ring: u8, number in 0u64..1 << 24, some: bool) {
            use FaultKind::*;
            for kind in [Late, Failed, Command, Endpoint, Arrival, Ended, Silent] {
                let put = some.then_some(PutName { peer, channel, ring, number });
                let status = Status { kind, put };
                prop_assert_ne!(status.encode(), 0);
                prop_assert_eq!(Status::decode(status.encode()), Some(status));
            }
        }

        #[test]
        fn no_word_panics(word: u64) {
            if let Some(status) = Status::decode(word) {
                prop_assert!(!status.to_string().is_empty());
            }
        }
    }

    #[test]
    fn a_fault_says_peer_channel_and_put() {
        let put = PutName { peer: 3, channel: 7, ring: 1, number: (5 << 24) + 2 };
        let fault = Fault::Late { put, budget: Duration::from_millis(250) };
        assert_eq!(
            fault.to_string(),
            "put 83886082 of ring 1 to rank 3 on channel 7 was not delivered within 250ms, nor was any other: rank 3 does not answer"
        );
        let status = Status::decode(fault.status().encode()).unwrap();
        assert_eq!(status.to_string(), "put 2 of ring 1 to rank 3 on channel 7 was not delivered in time");
        assert_eq!(Status::decode(0), None);
    }
}
