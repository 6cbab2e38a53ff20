//! Nodes alike, and the network cards between them, as a description has them.

use peerwarp_codegen::device::{FarMoved, FarPath};
use serde::{Deserialize, Serialize};

use super::describe::{named, rate, time};
use crate::input::InputError;

/// The most ranks of a world, each with a GPU.
const MOST_RANKS: u32 = 1024;

/// The most cards of a rail in a node.
const MOST_CARDS: u32 = 16;

/// Bytes of a put for which times are listed.
const SIZES: [u64; 5] = [8, 8 << 10, 64 << 10, 1 << 20, 64 << 20];

/// Nodes like the machine that is described, and what joins them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nodes {
    /// How many there are, this one among them.
    pub count: u32,
    /// Rails: networks that each join cards of all nodes. GPUs are dealt to them in order, as many to each.
    pub rails: u32,
    /// The network cards.
    pub nic: Nic,
}

/// A network card.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// What it is called.
    pub name: String,
    /// How many a node has on each rail.
    #[serde(default = "one")]
    pub per_rail: u32,
    /// GB/s that arrive through one, in each direction.
    pub gbps: f64,
    /// Microseconds from the command of a put until its bytes stand at the target, beside the time of the bytes.
    pub put_us: f64,
    /// Microseconds from the arrival of a put until a kernel sees it counted: the hop of a proxy, if there is one.
    pub count_us: f64,
    /// Puts a microsecond that one takes, whatever their size.
    pub puts_per_us: f64,
}

fn one() -> u32 {
    1
}

impl Nodes {
    /// Whether all of it can be, for nodes of so many GPUs; `origin` is the file's name for errors.
    pub(super) fn check(&self, origin: &str, gpus: u32) -> Result<(), InputError> {
        let refused = |field: &str, value: u32, allowed: String| {
            Err(InputError::not_allowed(format!("{origin}: nodes.{field}"), value, allowed))
        };
        let most = MOST_RANKS / gpus;
        if !(2..=most).contains(&self.count) {
            return refused("count", self.count, format!("2 to {most}: {MOST_RANKS} GPUs in all at most"));
        }
        if self.rails == 0 || !gpus.is_multiple_of(self.rails) {
            return refused("rails", self.rails, format!("a number that divides the {gpus} GPUs of a node"));
        }
        let (nic, at) = (&self.nic, |field: &str| format!("{origin}: nodes.nic.{field}"));
        named(&at("name"), &nic.name)?;
        if !(1..=MOST_CARDS).contains(&nic.per_rail) {
            return refused("nic.per_rail", nic.per_rail, format!("1 to {MOST_CARDS}"));
        }
        rate(&at("gbps"), nic.gbps)?;
        time(&at("put_us"), nic.put_us)?;
        time(&at("count_us"), nic.count_us)?;
        match nic.puts_per_us.is_finite() && (1e-3..=1e6).contains(&nic.puts_per_us) {
            true => Ok(()),
            false => {
                let allowed = "0.001 to 1000000 puts a microsecond";
                Err(InputError::not_allowed(at("puts_per_us"), nic.puts_per_us, allowed))
            }
        }
    }

    /// Cards for each GPU of nodes of so many: less than one where GPUs share them.
    pub fn cards_a_gpu(&self, gpus: u32) -> f64 {
        f64::from(self.rails * self.nic.per_rail) / f64::from(gpus)
    }

    /// The way to other nodes of one GPU that has the cards of its rail to itself.
    pub fn path_alone(&self) -> FarPath {
        self.path_of(f64::from(self.nic.per_rail))
    }

    /// The way to other nodes of each GPU while all GPUs of the node put.
    pub fn path(&self, gpus: u32) -> FarPath {
        self.path_of(self.cards_a_gpu(gpus))
    }

    fn path_of(&self, cards: f64) -> FarPath {
        let Nic { gbps, put_us, count_us, puts_per_us, .. } = self.nic;
        FarPath { gbps: gbps * cards, put_us, count_us, puts_per_us: puts_per_us * cards }
    }
}

/// What puts between nodes should take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Between {
    /// As described.
    #[serde(flatten)]
    pub nodes: Nodes,
    /// GPUs of a node.
    pub gpus: u32,
    /// Microseconds of a credit.
    pub credit_us: f64,
    /// By bytes of a put.
    pub puts: Vec<PutTimes>,
}

/// What one put takes, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PutTimes {
    /// Its bytes.
    pub bytes: u64,
    /// Until it is counted, if one GPU puts.
    pub arrive_us: f64,
    /// Until it is locally complete, if one GPU puts.
    pub settle_us: f64,
    /// Until it is counted, if all GPUs of a node put as much.
    pub all_arrive_us: f64,
}

impl Between {
    /// Of nodes of so many GPUs.
    pub(super) fn new(nodes: &Nodes, gpus: u32) -> Between {
        let (alone, all) = (nodes.path_alone(), nodes.path(gpus));
        let times = |bytes| {
            let moved = FarMoved { puts: 1, bytes, ..FarMoved::default() };
            PutTimes {
                bytes,
                arrive_us: alone.arrive_us(&moved),
                settle_us: alone.settle_us(&moved),
                all_arrive_us: all.arrive_us(&moved),
            }
        };
        let puts = SIZES.map(times).to_vec();
        Between { nodes: nodes.clone(), gpus, credit_us: alone.credit_us(), puts }
    }
}

#[cfg(test)]
#[path = "nodes_tests.rs"]
mod tests;
