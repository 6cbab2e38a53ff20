//! All that is said of a machine: what joins its GPUs, what transfers should take and what they took.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;

use super::algorithms::{self, Algorithm, Prediction, Range};
use super::class::LinkClass;
use super::network::Network;
use super::nodes::Between;
use super::notes::notes;
use super::predict::{Copies, Patterns, patterns};
use super::profile::{Pair, Profile, Way};
use crate::harness::html;

/// Version of the JSON form.
pub const SCHEMA: u32 = 1;

/// Sizes for which times are listed, in bytes.
const SIZES: [u64; 6] = [1 << 10, 32 << 10, 256 << 10, 2 << 20, 64 << 20, 1 << 30];

/// What joins an ordered pair of GPUs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Link {
    /// The GPU that sends.
    pub from: usize,
    /// The GPU that gets it.
    pub to: usize,
    /// What joins them; none if there is no path.
    pub class: Option<LinkClass>,
    /// Where it passes, both ends included.
    pub stops: Vec<String>,
    /// Whether copies go through the host's memory, for want of peer access.
    pub staged: bool,
    /// GB/s by itself, as the model of the machine says.
    pub gbps: Option<f64>,
    /// A packet's way, in microseconds, as the model says.
    pub latency_us: Option<f64>,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Pair>,
}

/// Ways to sum over all ranks of a world.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WorldSums {
    /// Ranks: the first GPUs.
    pub world: usize,
    /// The fastest way, by bytes of each rank.
    pub fastest: Vec<Range>,
    /// What each way takes.
    pub times: Vec<SumTimes>,
}

/// What a way to sum takes, by size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SumTimes {
    /// The way.
    pub algorithm: Algorithm,
    /// By bytes of each rank.
    pub by_bytes: BTreeMap<u64, Prediction>,
}

/// A machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Topo {
    /// `1`.
    pub schema: u32,
    /// What it is called.
    pub machine: String,
    /// What it is, in one line.
    pub about: String,
    /// Names of its GPUs.
    pub gpus: Vec<String>,
    /// All ordered pairs.
    pub links: Vec<Link>,
    /// What each GPU sends if it alone sends to all, and if all do; none if some have no path.
    pub patterns: Option<Patterns>,
    /// Ways to sum over all ranks, by world; none if some GPUs have no path.
    pub sums: Vec<WorldSums>,
    /// Copies from one GPU, if they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
    /// What puts to other nodes take, if some are described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<Between>,
    /// What is odd about it.
    pub notes: Vec<String>,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Profile>,
}

/// A page with drawings and tables, one file that needs nothing else.
pub fn html(topo: &Topo) -> String {
    let title = format!("peerwarp topo: {}", topo.machine);
    html::report(&title, &json!({ "topo": topo, "tables": topo.tables() }))
}

impl Topo {
    /// Of a machine, and what was measured of it.
    pub fn new(network: &Network, measured: Option<Profile>) -> Topo {
        let link = |(from, to)| {
            let route = network.route(from, to).ok();
            Link {
                from,
                to,
                class: route.map(|r| r.class),
                stops: route.map_or_else(Vec::new, |r| r.stops.clone()),
                staged: route.is_some_and(|r| r.staged_gbps.is_some()),
                gbps: network.gbps(from, to).ok(),
                latency_us: route.map(|r| r.latency_us),
                measured: measured.as_ref().and_then(|p| p.pair(from, to)).copied(),
            }
        };
        let patterns = patterns(network).ok();
        let sums =
            algorithms::worlds(network.gpus.len()).into_iter().filter_map(|world| sums(network, world));
        let mut notes = notes(network, patterns.as_ref());
        // What is odd about the machine itself is not in its description.
        let here = measured.as_ref().map(Network::from).filter(|here| here.name != network.name);
        notes.extend(
            here.into_iter().flat_map(|here| self::notes(&here, self::patterns(&here).ok().as_ref())),
        );
        notes.extend(
            measured.iter().flat_map(|p| p.not_measured.iter().map(|what| format!("not measured: {what}"))),
        );
        Topo {
            schema: SCHEMA,
            machine: network.name.clone(),
            about: network.about.clone(),
            gpus: network.gpus.clone(),
            links: network.pairs().map(link).collect(),
            sums: sums.collect(),
            patterns,
            copies: None,
            nodes: network.nodes.as_ref().map(|nodes| Between::new(nodes, network.gpus.len() as u32)),
            notes,
            measured,
        }
    }

    /// What joins two GPUs.
    fn link(&self, from: usize, to: usize) -> Option<&Link> {
        self.links.iter().find(|link| (link.from, link.to) == (from, to))
    }

    /// Matrices, from row to column: what joins GPUs, and what they get, by the model and as it was measured.
    pub fn tables(&self) -> Vec<Table> {
        let number = |x: Option<f64>| x.map_or_else(|| "-".to_owned(), short);
        let class = |link: &Link| {
            let mark = if link.staged { "*" } else { "" };
            link.class.map_or_else(|| "-".to_owned(), |class| format!("{class}{mark}"))
        };
        let mut tables = vec![self.table("Links", &class)];
        tables.push(self.table("GB/s by the model", &|link| number(link.gbps)));
        tables.push(self.table("Latency by the model, us", &|link| number(link.latency_us)));
        let Some(profile) = &self.measured else { return tables };
        // The model of a machine that was only measured says no more than what follows.
        if self.machine == Network::from(profile).name {
            tables.truncate(1);
        }
        for way in Way::ALL.into_iter().filter(|way| profile.pairs.iter().any(|p| p.gbps.of(*way).is_some()))
        {
            let title = format!("GB/s measured, {}", way.name());
            tables.push(self.table(&title, &|link| number(link.measured.and_then(|p| p.gbps.of(way)))));
        }
        if profile.pairs.iter().any(|p| p.packet_us.is_some()) {
            let packet = |link: &Link| number(link.measured.and_then(|p| p.packet_us));
            let signal = |link: &Link| number(link.measured.and_then(|p| p.signal_us));
            tables.push(self.table("Latency measured, us: a packet", &packet));
            tables.push(self.table("Latency measured, us: a word and its flag", &signal));
        }
        tables
    }

    fn table(&self, title: &str, cell: &dyn Fn(&Link) -> String) -> Table {
        let count = self.gpus.len();
        let cell = |from: usize, to: usize| self.link(from, to).map_or_else(String::new, cell);
        let row = |from: usize| (0..count).map(|to| cell(from, to)).collect();
        Table { title: title.into(), rows: (0..count).map(row).collect() }
    }
}

/// A matrix in words, from row to column; the diagonal is empty.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// `[from][to]`.
    pub rows: Vec<Vec<String>>,
}

/// A rate or a time in three digits or so.
fn short(x: f64) -> String {
    match x {
        x if x >= 100.0 => format!("{x:.0}"),
        x if x >= 10.0 => format!("{x:.1}"),
        x => format!("{x:.2}"),
    }
}

fn sums(network: &Network, world: usize) -> Option<WorldSums> {
    let times = Algorithm::ALL.into_iter().map(|algorithm| {
        let predict = |bytes| Some((bytes, algorithms::predict(network, algorithm, world, bytes).ok()?));
        Some(SumTimes { algorithm, by_bytes: SIZES.into_iter().map(predict).collect::<Option<_>>()? })
    });
    Some(WorldSums {
        world,
        fastest: algorithms::fastest(network, world).ok()?,
        times: times.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
