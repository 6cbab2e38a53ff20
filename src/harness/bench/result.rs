//! What a benchmark yields.

use serde::{Deserialize, Serialize};

use super::limit::Limit;
use super::peers::{Peer, PeerTiming};
use super::stats::Stats;
use super::wire::Wire;
use crate::families::moe::MoeShape;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Dispatch alone.
    Dispatch,
    /// The combine that belongs to it, alone.
    Combine,
    /// Dispatch and combine, in a graph of this one round.
    RoundTrip,
    /// Dispatch and combine, a part of a graph of many rounds.
    RoundTripOfMany,
    /// A round in one launch, in a graph of this one.
    FusedRoundTrip,
    /// A round in one launch, a part of a graph of many rounds.
    FusedRoundTripOfMany,
}

impl What {
    /// All of them, in the order in which they are reported.
    pub const ALL: [What; 6] = [
        What::Dispatch,
        What::Combine,
        What::RoundTrip,
        What::RoundTripOfMany,
        What::FusedRoundTrip,
        What::FusedRoundTripOfMany,
    ];

    /// Whether it is a part of a graph of many rounds.
    pub fn is_of_many(self) -> bool {
        matches!(self, What::RoundTripOfMany | What::FusedRoundTripOfMany)
    }

    /// As people say it; `rounds` is how many a graph of many has.
    pub fn words(self, rounds: u32) -> String {
        match self {
            What::Dispatch => "dispatch".into(),
            What::Combine => "combine".into(),
            What::RoundTrip => "round trip".into(),
            What::RoundTripOfMany => format!("one of {rounds} round trips"),
            What::FusedRoundTrip => "fused round trip".into(),
            What::FusedRoundTripOfMany => format!("one of {rounds} fused round trips"),
        }
    }
}

/// What was timed, on which machine, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bench {
    /// The machine.
    pub machine: Machine,
    /// How times were taken.
    pub method: Method,
    /// A graph of a kernel that does nothing, timed in the same way: the floor under all times.
    pub floor_us: Stats,
    /// The problems.
    pub cases: Vec<CaseTimes>,
    /// Other libraries on the same GPUs, if they were asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<Peer>,
}

impl Bench {
    /// What peers take for an operation of a case, by its number.
    pub fn peer_times(&self, case: usize, what: What) -> impl Iterator<Item = (&Peer, &PeerTiming)> {
        let of = move |t: &&PeerTiming| (t.case, t.what) == (case, what);
        self.peers.iter().filter_map(move |p| Some((p, p.times.iter().find(of)?)))
    }
}

/// The machine that was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Names of the ranks' GPUs.
    pub gpus: Vec<String>,
    /// The driver.
    pub driver: String,
    /// How memory is shared.
    pub sharing: String,
    /// Version of this program.
    pub peerwarp: String,
}

/// How times were taken.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Method {
    /// Iterations that count; a few before them do not.
    pub iterations: u32,
    /// Rounds of the graph of many.
    pub rounds: u32,
    /// Whether 256 MiB were written before each iteration, so that no input is in a cache.
    pub l2_flushed: bool,
    /// Where routing comes from.
    pub routing: String,
    /// Seed of routing and inputs.
    pub seed: u64,
    /// Whether every problem was run and compared with the reference, bit for bit, before it was timed.
    pub checked: bool,
    /// Whether every rank was a process of its own; if not, one process had all of them.
    #[serde(default)]
    pub process_per_rank: bool,
    /// Whether multiprocessors were shared, as with `WorldOptions::share_multiprocessors`.
    #[serde(default)]
    pub multiprocessors_shared: bool,
}

/// One problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaseTimes {
    /// Its shape.
    pub shape: MoeShape,
    /// Tokens of each rank.
    pub tokens_per_rank: Vec<u32>,
    /// Names of the kernels in the order of their launches in a round.
    pub variants: Vec<String>,
    /// What goes over the links.
    pub wire: Wire,
    /// The times.
    pub times: Vec<Timing>,
}

impl CaseTimes {
    /// The time of an operation.
    pub fn time(&self, what: What) -> Option<&Timing> {
        self.times.iter().find(|t| t.what == what)
    }
}

/// The time of one operation. A value is an iteration's: the slowest rank's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Of what.
    pub what: What,
    /// The time.
    pub us: Stats,
    /// How far the fastest rank is from the slowest, in the median.
    pub rank_spread_us: f64,
    /// The busiest rank's bytes, in the direction that has more of them, over the median.
    pub gbps: f64,
    /// The least that it can take; none on a machine of which nothing is known.
    pub limit: Option<Limit>,
}

impl Timing {
    /// The median over the limit: 1 is as fast as the machine allows.
    pub fn over_limit(&self) -> Option<f64> {
        self.limit.map(|limit| self.us.median / limit.us)
    }
}
