//! What can go wrong while ranks come together, or when one of them goes.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Why there is no world, or no longer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum FormError {
    /// Rank 0 cannot listen where the ranks are to meet.
    #[error("rank 0 cannot listen at {address}: {reason}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        reason: String,
    },
    /// Rank 0 does not answer.
    #[error("rank 0 did not answer at {address} for {waited:.1?}: {reason}")]
    NoAnswer {
        /// Where it was to listen.
        address: String,
        /// How long it was tried.
        waited: Duration,
        /// The last attempt's error.
        reason: String,
    },
    /// Some ranks did not come.
    #[error(
        "after {waited:.1?} there was nothing of rank{} {}{}{}",
        if .missing.len() == 1 { "" } else { "s" }, list(.missing), at(.place), others(.turned_away)
    )]
    Missing {
        /// Which.
        missing: Vec<u32>,
        /// Where rank 0 listens, `address:port`.
        #[serde(default)]
        place: String,
        /// How long was waited.
        waited: Duration,
        /// Others who connected: why they were turned away, and how many of them.
        turned_away: BTreeMap<String, u32>,
    },
    /// Two processes say that they are the same rank.
    #[error("two processes say that they are rank {rank}")]
    SameRank {
        /// Which.
        rank: u32,
    },
    /// Ranks that do not fit together.
    #[error(
        "{field} of rank {rank} is {value}, and {other} on rank {other_rank}: it has to be the same on all ranks"
    )]
    Mismatch {
        /// What differs.
        field: String,
        /// A rank.
        rank: u32,
        /// What it has.
        value: String,
        /// Another rank.
        other_rank: u32,
        /// What that has.
        other: String,
    },
    /// Two ranks have the same GPU.
    #[error(
        "ranks {a} and {b} both have GPU {bus_id}: every rank needs a GPU of its own, unless `share_gpus` is set"
    )]
    SameGpu {
        /// One.
        a: u32,
        /// The other.
        b: u32,
        /// Where the GPU sits.
        bus_id: String,
    },
    /// A rank's process is gone.
    #[error("rank {rank} is gone: its process ended, or closed its connection")]
    Lost {
        /// Which.
        rank: u32,
    },
    /// A rank does not come to a point to which all have to come.
    #[error("rank {rank} did not come within {waited:.1?}: it is stuck, or makes other calls than the rest")]
    Late {
        /// Which.
        rank: u32,
        /// How long was waited.
        waited: Duration,
    },
    /// Something failed on a rank that all ranks have to do together.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// Which.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// What a rank said cannot be understood.
    #[error("rank {rank} says something that makes no sense: {reason}")]
    Malformed {
        /// Which.
        rank: u32,
        /// What is wrong with it.
        reason: String,
    },
    /// The socket over which ranks of a machine pass handles cannot be had.
    #[error("the socket {path}: {reason}")]
    Socket {
        /// Its path.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A rank could not use the memory of another one, although the driver mapped it.
    #[error(
        "what rank {from} wrote to the memory of rank {to} did not arrive: wrote {wrote:#x}, found {found:#x}"
    )]
    Unreachable {
        /// The rank that wrote.
        from: u32,
        /// The rank whose memory it is.
        to: u32,
        /// What was written.
        wrote: u64,
        /// What was there instead.
        found: u64,
    },
}

fn list(ranks: &[u32]) -> String {
    ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Where rank 0 listens. A name may lead to another address on its own machine than on others.
fn at(place: &str) -> String {
    match place.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_loopback() => {
            format!(" at {place}, which other machines do not reach")
        }
        _ if place.is_empty() => String::new(),
        _ => format!(" at {place}"),
    }
}

/// How many were turned away, and why.
fn others(turned_away: &BTreeMap<String, u32>) -> String {
    let count: u64 = turned_away.values().copied().map(u64::from).sum();
    if count == 0 {
        return String::new();
    }
    let reasons: Vec<_> = turned_away.iter().map(|(why, count)| format!("{count} {why}")).collect();
    format!("; {count} other connections were turned away: {}", reasons.join(", "))
}
