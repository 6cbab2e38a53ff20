//! What is measured of a machine's links, and in which order: every ordered pair by itself, one to all, all to all.

use super::cards::Card;
use super::class::LinkClass;
use super::describe::Times;
use super::profile::{GpuRates, Pair, Profile, Rates, SCHEMA, Way};
use crate::harness::bench::Limits;
use crate::runtime::RuntimeError;
use crate::runtime::gpu::PeerLink;

/// Why loads from peers are not measured.
pub const NO_LOADS: &str = "loads: kernels cannot load from a peer yet";

/// Why kernels are not measured where some GPUs have no peer access.
const NO_WORLD: &str =
    "stores, bulk, latency: kernels need GPUs that all reach each other, and some of these do not";

/// Not measured, but the lower end of an estimate.
const TAIL_US: f64 = 0.5;

/// What is known of a GPU without measuring.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// Its name, as the driver says it.
    pub name: String,
    /// Where its PCIe device stands among the others, and the memory node that it is next to; none where the system does not say.
    pub place: Option<Place>,
    /// NVLinks of its kind with an NVSwitch, and the GB/s that each is sold for; none where that is not known.
    pub nvlinks: Option<(u32, f64)>,
    /// The GB/s that an xGMI link to another device of its board is sold for.
    pub xgmi_gbps: Option<f64>,
}

/// Where a PCIe device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Bridges from the root to it.
    pub bridges: Vec<String>,
    /// The memory node, a socket usually; none on machines with one.
    pub node: Option<u32>,
}

/// A packet's and a signal's way, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// Data and epoch in one word.
    pub packet_us: f64,
    /// A word, and a flag that is stored after it.
    pub signal_us: f64,
}

/// What measures: GPUs, or a test's stand-in.
pub trait Probe {
    /// GPUs, in the order of their numbers.
    fn gpus(&self) -> Vec<Facts>;
    /// Network cards.
    fn cards(&self) -> Vec<Card>;
    /// The driver, in its own words.
    fn driver(&self) -> String;
    /// Whether the first of two GPUs reaches the other one's memory.
    ///
    /// # Errors
    /// The driver's.
    fn peer_access(&self, from: usize, to: usize) -> Result<bool, RuntimeError>;
    /// What joins two GPUs, as far as the driver says.
    ///
    /// # Errors
    /// The driver's.
    fn link(&self, from: usize, to: usize) -> Result<PeerLink, RuntimeError>;
    /// Whether kernels can be measured: all GPUs reach each other.
    fn has_kernels(&self) -> bool;
    /// Graphs of one empty kernel and of another one more, in microseconds.
    ///
    /// # Errors
    /// The driver's; there are no kernels.
    fn launches_us(&mut self) -> Result<(f64, f64), RuntimeError>;
    /// How long words take from one GPU to another.
    ///
    /// # Errors
    /// The driver's; there are no kernels.
    fn latency(&mut self, from: usize, to: usize) -> Result<Latency, RuntimeError>;
    /// GB/s that each GPU sends while as many bytes go over each of these pairs; 0 of those that send nothing.
    ///
    /// # Errors
    /// The driver's; there are no kernels.
    fn gbps(&mut self, way: Way, pairs: &[(usize, usize)]) -> Result<Vec<f64>, RuntimeError>;
}

/// How many measurements there are of so many GPUs, for progress.
pub fn steps(gpus: usize) -> u64 {
    let pairs = gpus * (gpus - 1);
    (pairs + gpus + 1) as u64
}

/// Measures all of it; `each` is called after each measurement.
///
/// # Errors
/// As of [`Probe`].
pub fn measure(probe: &mut dyn Probe, bytes: u64, each: &mut dyn FnMut()) -> Result<Profile, RuntimeError> {
    let facts = probe.gpus();
    let (count, kernels) = (facts.len(), probe.has_kernels());
    let all = all_pairs(count);
    let (first_node_us, next_node_us) = if kernels { probe.launches_us()? } else { (0.0, 0.0) };
    let mut pairs = vec![];
    for &(from, to) in &all {
        let latency = if kernels { Some(probe.latency(from, to)?) } else { None };
        pairs.push(Pair {
            from: from as u32,
            to: to as u32,
            // Named when all rates are known.
            class: LinkClass::Unknown,
            peer_access: probe.peer_access(from, to)?,
            packet_us: latency.map(|l| l.packet_us),
            signal_us: latency.map(|l| l.signal_us),
            gbps: rates(probe, &[(from, to)])?.swap_remove(from),
        });
        each();
    }
    let mut gpus = vec![];
    for (gpu, facts) in facts.iter().enumerate() {
        let own: Vec<(usize, usize)> = all.iter().copied().filter(|(from, _)| *from == gpu).collect();
        let one_to_all = rates(probe, &own)?.swap_remove(gpu);
        gpus.push(GpuRates { name: facts.name.clone(), one_to_all, all_to_all: Rates::default() });
        each();
    }
    for (gpu, all_to_all) in gpus.iter_mut().zip(rates(probe, &all)?) {
        gpu.all_to_all = all_to_all;
    }
    each();
    let links = all.iter().map(|&(from, to)| probe.link(from, to)).collect::<Result<Vec<_>, _>>()?;
    for (at, &(from, to)) in all.iter().enumerate() {
        // A GPU that has NVLink to some peers alone has no switch.
        let own = all.iter().zip(&links).filter(|((gpu, _), _)| *gpu == from);
        let to_all = own.map(|(_, link)| *link).all(|link| link == PeerLink::NvLink);
        pairs[at].class = class((links[at], to_all), &pairs[at], &gpus, (&facts[from], &facts[to]));
    }
    let not_measured = std::iter::once(NO_LOADS).chain((!kernels).then_some(NO_WORLD));
    Ok(Profile {
        schema: SCHEMA,
        driver: probe.driver(),
        peerwarp: env!("CARGO_PKG_VERSION").into(),
        bytes,
        times: Times { first_node_us, next_node_us, tail_us: if kernels { TAIL_US } else { 0.0 } },
        not_measured: not_measured.map(str::to_owned).collect(),
        gpus,
        pairs,
        cards: probe.cards(),
    })
}

/// Measures the parts that limits are made of, in few steps: launches, the first GPU with each other one, all to all.
///
/// # Errors
/// As of [`Probe`]; there are fewer than two GPUs.
pub fn measure_limits(probe: &mut dyn Probe) -> Result<Limits, RuntimeError> {
    let count = probe.gpus().len();
    if count < 2 {
        return Err(RuntimeError::invalid("gpus", count, "2 or more, which have links"));
    }
    let (first_node_us, next_node_us) = probe.launches_us()?;
    let (mut hop_us, mut one_peer_gbps) = (f64::INFINITY, 0.0);
    for to in 1..count {
        hop_us = probe.latency(0, to)?.packet_us.min(hop_us);
        one_peer_gbps = by_kernels(probe, &[(0, to)])?.max(one_peer_gbps);
    }
    let all_peers_gbps = by_kernels(probe, &all_pairs(count))?;
    Ok(Limits { first_node_us, next_node_us, hop_us, tail_us: TAIL_US, one_peer_gbps, all_peers_gbps })
}

/// The most GB/s that a GPU sends by kernels.
fn by_kernels(probe: &mut dyn Probe, pairs: &[(usize, usize)]) -> Result<f64, RuntimeError> {
    let mut most = 0.0;
    for way in [Way::Stores, Way::Bulk] {
        most = probe.gbps(way, pairs)?.into_iter().fold(most, f64::max);
    }
    Ok(most)
}

/// All ordered pairs.
fn all_pairs(count: usize) -> Vec<(usize, usize)> {
    let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
    pairs.filter(|(from, to)| from != to).collect()
}

/// What each GPU sends, by all ways that can be measured.
fn rates(probe: &mut dyn Probe, pairs: &[(usize, usize)]) -> Result<Vec<Rates>, RuntimeError> {
    let mut all = vec![Rates::default(); probe.gpus().len()];
    let ways: &[Way] =
        if probe.has_kernels() { &[Way::Stores, Way::Bulk, Way::Copies] } else { &[Way::Copies] };
    for &way in ways {
        for (rates, gbps) in all.iter_mut().zip(probe.gbps(way, pairs)?) {
            rates.set(way, Some(gbps).filter(|gbps| *gbps > 0.0));
        }
    }
    Ok(all)
}

/// GB/s that a link is sold for where the table of devices does not say it: NVLink since its second generation, and xGMI
/// between two GPUs.
const NVLINK: f64 = 25.0;
const XGMI: f64 = 64.0;

/// Names what joins a pair: the driver says whether it is NVLink, and the rate how many there are. Links are shared by all
/// peers, as behind an NVSwitch, if sending to all brings no more than sending to one; then all of the GPU's links are.
fn class(
    (link, to_all): (PeerLink, bool),
    pair: &Pair,
    gpus: &[GpuRates],
    (a, b): (&Facts, &Facts),
) -> LinkClass {
    let gbps = pair.gbps.best().unwrap_or_default();
    let least = |each: f64| ((gbps / each).ceil() as u32).clamp(1, 64);
    let (all, each) = a.nvlinks.unwrap_or((64, NVLINK));
    match link {
        PeerLink::NvLink => {
            let spread = gpus[pair.from as usize].one_to_all.best().unwrap_or_default();
            match to_all && gpus.len() > 2 && spread < 1.2 * gbps {
                true if a.nvlinks.is_some() => LinkClass::NvSwitch(all),
                true => LinkClass::NvSwitch(least(each)),
                false => LinkClass::NvLink(least(each).min(all)),
            }
        }
        PeerLink::Xgmi => LinkClass::Xgmi(least(a.xgmi_gbps.unwrap_or(XGMI))),
        PeerLink::Pcie | PeerLink::Unknown => match (&a.place, &b.place) {
            (Some(a), Some(b)) => pcie(a, b),
            _ => LinkClass::Unknown,
        },
    }
}

/// What is between two PCIe devices.
pub(super) fn pcie(a: &Place, b: &Place) -> LinkClass {
    // The first is the root complex, the second one of its ports.
    let common = a.bridges.iter().zip(&b.bridges).take_while(|(a, b)| a == b).count();
    match (a.node, b.node) {
        _ if common >= 2 => LinkClass::PcieSwitch,
        (Some(a), Some(b)) if a != b => LinkClass::Sockets,
        _ => LinkClass::PcieHost,
    }
}

#[cfg(test)]
#[path = "measure_tests.rs"]
pub(super) mod tests;
