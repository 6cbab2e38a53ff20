//! What was measured of a machine's links, as it is kept on disk: a device profile.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cards::Card;
use super::class::LinkClass;
use super::describe::{MOST_GPUS, Times, check_schema, malformed, named, rate, time};
use super::network::{Network, Resource, Route};
use crate::harness::bench::Limits;
use crate::input::{InputError, file};

/// Version of the format. Profiles of another one are refused.
pub const SCHEMA: u32 = 1;

/// A way to move bytes to another GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    /// Kernels store to the other GPU.
    Stores,
    /// Kernels load from the other GPU.
    Loads,
    /// Kernels let the hardware copy from shared memory.
    Bulk,
    /// The copy engine.
    Copies,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 4] = [Way::Stores, Way::Loads, Way::Bulk, Way::Copies];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Stores => "stores",
            Way::Loads => "loads",
            Way::Bulk => "bulk",
            Way::Copies => "copies",
        }
    }
}

/// GB/s, by the way that bytes are moved; none where it was not measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// See [`Way::Stores`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stores: Option<f64>,
    /// See [`Way::Loads`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loads: Option<f64>,
    /// See [`Way::Bulk`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk: Option<f64>,
    /// See [`Way::Copies`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<f64>,
}

impl Rates {
    /// By one way.
    pub fn of(&self, way: Way) -> Option<f64> {
        match way {
            Way::Stores => self.stores,
            Way::Loads => self.loads,
            Way::Bulk => self.bulk,
            Way::Copies => self.copies,
        }
    }

    /// Sets that of one way.
    pub fn set(&mut self, way: Way, gbps: Option<f64>) {
        let place = match way {
            Way::Stores => &mut self.stores,
            Way::Loads => &mut self.loads,
            Way::Bulk => &mut self.bulk,
            Way::Copies => &mut self.copies,
        };
        *place = gbps;
    }

    /// The best of what kernels do.
    pub fn by_kernels(&self) -> Option<f64> {
        [self.stores, self.loads, self.bulk].into_iter().flatten().reduce(f64::max)
    }

    /// The best of all.
    pub fn best(&self) -> Option<f64> {
        self.by_kernels().into_iter().chain(self.copies).reduce(f64::max)
    }

    fn check(&self, field: &str) -> Result<(), InputError> {
        let given = Way::ALL.into_iter().filter_map(|way| Some((way, self.of(way)?)));
        given.into_iter().try_for_each(|(way, gbps)| rate(&format!("{field}.{}", way.name()), gbps))
    }
}

/// What was measured of an ordered pair of GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The GPU that sends.
    pub from: u32,
    /// The GPU that gets it.
    pub to: u32,
    /// What joins them.
    pub class: LinkClass,
    /// Whether the first can reach the other one's memory.
    pub peer_access: bool,
    /// A packet's way, in microseconds: data and epoch in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet_us: Option<f64>,
    /// The way of a word and the flag that is stored after it, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_us: Option<f64>,
    /// GB/s while nothing else is in flight.
    pub gbps: Rates,
}

/// What was measured of a GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GpuRates {
    /// Its name, as the driver says it.
    pub name: String,
    /// GB/s that it sends to all others while no other rank sends.
    pub one_to_all: Rates,
    /// GB/s that it sends to all others while all do so.
    pub all_to_all: Rates,
}

/// A machine's links as they were measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the format: `1`.
    pub schema: u32,
    /// The driver.
    pub driver: String,
    /// Version of the program that measured.
    pub peerwarp: String,
    /// Bytes of each transfer.
    pub bytes: u64,
    /// What launches take.
    pub times: Times,
    /// What was not measured, and why: `loads: ..`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_measured: Vec<String>,
    /// GPUs, by their numbers.
    #[serde(rename = "gpu")]
    pub gpus: Vec<GpuRates>,
    /// All ordered pairs.
    #[serde(rename = "pair")]
    pub pairs: Vec<Pair>,
    /// Network cards, as the system lists them: nothing of them is measured.
    #[serde(default, rename = "card", skip_serializing_if = "Vec::is_empty")]
    pub cards: Vec<Card>,
}

impl Profile {
    /// Reads a profile that `field` names.
    ///
    /// # Errors
    /// There is no such file, or it is no profile.
    pub fn read(field: &str, path: &Path) -> Result<Profile, InputError> {
        Profile::parse(&file::text(field, path)?, &path.display().to_string())
    }

    /// Parses a profile; `origin` is its file's name for errors.
    ///
    /// # Errors
    /// It is no profile, of another version, or has values that cannot be.
    pub fn parse(text: &str, origin: &str) -> Result<Profile, InputError> {
        let what = "what `peerwarp topo --save` measured";
        check_schema(text, origin, SCHEMA, what)?;
        let profile: Profile = toml::from_str(text).map_err(|e| malformed(origin, &e, what))?;
        profile.check(origin)?;
        Ok(profile)
    }

    /// Its text.
    pub fn text(&self) -> String {
        let body = toml::to_string(self).expect("a profile of numbers and names");
        format!("# Measured by `peerwarp topo`, see docs/how-to/topo.md. Do not edit.\n\n{body}")
    }

    fn check(&self, origin: &str) -> Result<(), InputError> {
        let count = self.gpus.len();
        if !(2..=MOST_GPUS as usize).contains(&count) {
            let allowed = format!("2 to {MOST_GPUS} GPUs");
            return Err(InputError::not_allowed(format!("{origin}: gpu"), count, allowed));
        }
        let times = &self.times;
        time(&format!("{origin}: times.first_node_us"), times.first_node_us)?;
        time(&format!("{origin}: times.next_node_us"), times.next_node_us)?;
        time(&format!("{origin}: times.tail_us"), times.tail_us)?;
        for (number, gpu) in self.gpus.iter().enumerate() {
            gpu.one_to_all.check(&format!("{origin}: gpu {number}.one_to_all"))?;
            gpu.all_to_all.check(&format!("{origin}: gpu {number}.all_to_all"))?;
        }
        for (number, card) in self.cards.iter().enumerate() {
            let at = format!("{origin}: card {}", number + 1);
            named(&format!("{at}.name"), &card.name)?;
            card.gbit.map_or(Ok(()), |gbit| rate(&format!("{at}.gbit"), gbit))?;
            if card.to_gpus.len() != count {
                let allowed = format!("{count}, one for each GPU");
                return Err(InputError::not_allowed(format!("{at}.to_gpus"), card.to_gpus.len(), allowed));
            }
        }
        let mut there = vec![vec![false; count]; count];
        for (number, pair) in self.pairs.iter().enumerate() {
            let at = format!("{origin}: pair {}", number + 1);
            let ends = (pair.from as usize, pair.to as usize);
            let new = ends.0 < count && ends.1 < count && ends.0 != ends.1 && !there[ends.0][ends.1];
            if !new {
                let (shown, allowed) =
                    (format!("{} to {}", pair.from, pair.to), format!("two of {count} GPUs, once"));
                return Err(InputError::not_allowed(at, shown, allowed));
            }
            there[ends.0][ends.1] = true;
            pair.gbps.check(&format!("{at}.gbps"))?;
            pair.packet_us.map_or(Ok(()), |us| time(&format!("{at}.packet_us"), us))?;
            pair.signal_us.map_or(Ok(()), |us| time(&format!("{at}.signal_us"), us))?;
        }
        match self.pairs.len() == count * (count - 1) {
            true => Ok(()),
            false => {
                let allowed = format!("{}, all ordered pairs of {count} GPUs", count * (count - 1));
                Err(InputError::not_allowed(format!("{origin}: pair"), self.pairs.len(), allowed))
            }
        }
    }

    /// A pair.
    pub fn pair(&self, from: usize, to: usize) -> Option<&Pair> {
        self.pairs.iter().find(|p| (p.from as usize, p.to as usize) == (from, to))
    }

    /// What the parts of this machine take, for the limits of work: the best of its links, since no work is faster than these.
    ///
    /// # Errors
    /// Kernels were not measured, for want of peer access; `field` names the profile.
    pub fn limits(&self, field: &str) -> Result<Limits, InputError> {
        let rates = self.pairs.iter().filter_map(|p| p.gbps.by_kernels()).reduce(f64::max);
        let hop = self.pairs.iter().filter_map(|p| p.packet_us.or(p.signal_us)).reduce(f64::min);
        let (Some(one_peer_gbps), Some(hop_us)) = (rates, hop) else {
            let allowed = "a profile of GPUs that reach each other: kernels were not measured on these";
            return Err(InputError::not_allowed(field, "no rates of kernels", allowed));
        };
        let all = self.gpus.iter().filter_map(|g| g.all_to_all.by_kernels()).reduce(f64::max);
        let Times { first_node_us, next_node_us, tail_us } = self.times;
        let all_peers_gbps = all.unwrap_or(one_peer_gbps);
        Ok(Limits { first_node_us, next_node_us, hop_us, tail_us, one_peer_gbps, all_peers_gbps })
    }

    /// Whether so many ranks have a GPU in it each; `field` names the profile.
    ///
    /// # Errors
    /// There are more of them than were measured.
    pub fn check_ranks(&self, field: &str, ranks: usize) -> Result<(), InputError> {
        let count = self.gpus.len();
        match ranks <= count {
            true => Ok(()),
            false => Err(InputError::not_allowed(
                field,
                format!("{count} GPUs"),
                format!("a profile of {ranks} GPUs or more"),
            )),
        }
    }

    /// Whether the GPU of a rank has the name of the one that was measured; `field` names the profile.
    ///
    /// # Errors
    /// It has another one, or there is no such rank.
    pub fn check_gpu(&self, field: &str, rank: usize, name: &str) -> Result<(), InputError> {
        self.check_ranks(field, rank + 1)?;
        let known = &self.gpus[rank].name;
        match known == name {
            true => Ok(()),
            false => {
                let with = format!("rank {rank}, whose GPU is {name}");
                Err(InputError::conflict(field, known, with, "a profile of these GPUs"))
            }
        }
    }
}

/// A GPU's ways out and in: those for GPUs, and PCIe.
const PORTS: usize = 4;

impl From<&Profile> for Network {
    /// A link for each pair as wide as it was measured, and ports of each GPU: PCIe as wide as its widest pair, and what is made
    /// for GPUs as wide as what it reached with all others.
    fn from(p: &Profile) -> Network {
        let count = p.gpus.len();
        let mut resources: Vec<Resource> = (0..count)
            .flat_map(|gpu| (0..PORTS).map(move |port| (gpu, port)))
            .map(|(gpu, n)| port(p, gpu, n))
            .collect();
        let mut routes = vec![vec![None; count]; count];
        for pair in &p.pairs {
            let (from, to) = (pair.from as usize, pair.to as usize);
            let Some(gbps) = pair.gbps.best() else { continue };
            resources.push(Resource { name: format!("gpu{from} -> gpu{to}"), gbps });
            let own = usize::from(!pair.class.is_for_gpus());
            routes[from][to] = Some(Route {
                class: pair.class,
                path: vec![PORTS * from + 2 * own, resources.len() - 1, PORTS * to + 2 * own + 1],
                stops: vec![format!("gpu{from}"), format!("gpu{to}")],
                latency_us: pair.packet_us.or(pair.signal_us).unwrap_or(0.0),
                staged_gbps: (!pair.peer_access).then_some(gbps),
            });
        }
        Network {
            name: "this machine".into(),
            about: format!("{count} GPUs, as measured"),
            gpus: p.gpus.iter().map(|g| g.name.clone()).collect(),
            times: p.times,
            nodes: None,
            resources,
            routes,
        }
    }
}

/// A port of a GPU by its number: out and in of links made for GPUs, then of PCIe.
fn port(p: &Profile, gpu: usize, number: usize) -> Resource {
    let (out, for_gpus) = (number.is_multiple_of(2), number < 2);
    let own = p.pairs.iter().filter(|pair| {
        let end = if out { pair.from } else { pair.to };
        end as usize == gpu && pair.class.is_for_gpus() == for_gpus
    });
    let own: Vec<f64> = own.filter_map(|pair| pair.gbps.best()).collect();
    let widest = own.iter().copied().fold(1e-3, f64::max);
    let spread = [p.gpus[gpu].one_to_all.best(), p.gpus[gpu].all_to_all.best()].into_iter().flatten();
    // While it sent to all others, each of these got its share of that or more.
    let part = own.len() as f64 / (p.gpus.len() - 1) as f64;
    let shares = spread.map(|gbps| gbps * part).fold(widest, f64::max);
    // Links to some peers alone are each for one; all the rest share what they brought together.
    let apart = for_gpus && part < 1.0;
    let gbps = if apart { own.iter().sum::<f64>().max(widest) } else { shares };
    let (what, way) = (if for_gpus { "links" } else { "PCIe" }, if out { "out of" } else { "into" });
    Resource { name: format!("{what} {way} gpu{gpu}"), gbps }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
pub(super) mod tests;
