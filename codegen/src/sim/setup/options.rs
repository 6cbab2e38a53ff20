//! How to run.

use serde::{Deserialize, Serialize};

use crate::sim::exec::ring::Mistake;

/// How the next agent is chosen and how long peer stores stay invisible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// Anybody who can run may be next; peer stores become visible at random times, in any order.
    #[default]
    Random,
    /// Seeks bad cases: a seed starves a rank, a role, a block or the agents that its random priorities name (with a few points
    /// where priorities change), and holds peer stores back as long as allowed, or delivers the newest first.
    Adversarial,
}

/// The end of a rank in the middle of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Death {
    /// The rank.
    pub rank: u32,
    /// How many stores to ranks it does before, signals among them. They arrive as they would.
    pub after: u64,
}

/// Options of a run. The same machine with the same options runs the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of every choice.
    pub seed: u64,
    /// How choices are made.
    pub strategy: Strategy,
    /// Check accesses: races, uninitialised and stale reads. Bounds, flags and deadlocks are always checked.
    pub race_checks: bool,
    /// How many blocks a rank can run at once (at least 1); `None` for as many as a launch has.
    pub resident_blocks: Option<u32>,
    /// Instructions after which a run is given up.
    pub max_steps: u64,
    /// Different findings to collect before counting only.
    pub max_findings: usize,
    /// Whether products are staged as printers do it, piece by piece, with loads that land late; `None` for one seed in four, since it
    /// takes longer.
    pub staged: Option<bool>,
    /// A mistake that printers could make with what runs by itself.
    pub mistake: Option<Mistake>,
    /// A rank that dies. The others go on as far as they come: what they wait for after that is no finding.
    pub death: Option<Death>,
    /// Peer stores that may be invisible at once on one rank; the oldest becomes visible beyond that.
    pub max_delayed: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            strategy: Strategy::Random,
            race_checks: true,
            resident_blocks: None,
            max_steps: 4_000_000_000,
            max_findings: 32,
            staged: None,
            mistake: None,
            death: None,
            max_delayed: 1024,
        }
    }
}

impl Options {
    /// The same with another seed.
    pub fn with_seed(&self, seed: u64) -> Options {
        Options { seed, ..self.clone() }
    }

    /// The same with another strategy.
    pub fn with_strategy(&self, strategy: Strategy) -> Options {
        Options { strategy, ..self.clone() }
    }
}
