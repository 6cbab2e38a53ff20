use super::super::describe::Description;
use super::super::network::{Network, Transfer};
use super::*;

/// A described machine that answers as GPUs would: each rate a little under what the model says, by the way.
pub(in crate::harness::topo) struct Described {
    pub network: Network,
    /// What is left of a rate, by the number of pairs in flight.
    pub loss: f64,
    /// Whether kernels can be measured.
    pub kernels: bool,
    /// Every question, in order.
    pub asked: Vec<String>,
}

impl Described {
    pub fn new(name: &str) -> Described {
        let network = Network::from(&Description::named("--machine", name).unwrap());
        let kernels = network.pairs().all(|(a, b)| network.route(a, b).unwrap().staged_gbps.is_none());
        Described { network, loss: 0.97, kernels, asked: vec![] }
    }
}

impl Probe for Described {
    fn gpus(&self) -> Vec<Facts> {
        // As `pcie-pairs` has them: four under each switch, each switch at a socket of its own.
        let place = |gpu: usize| Place {
            bridges: vec![format!("pci{}", gpu / 4), format!("port{}", gpu / 4)],
            node: Some((gpu / 4) as u32),
        };
        let facts = |(gpu, name): (usize, &String)| Facts {
            name: name.clone(),
            place: Some(place(gpu)),
            nvlinks: name.contains("H200").then_some((18, 25.0)),
            xgmi_gbps: name.contains("MI300X").then_some(64.0),
        };
        self.network.gpus.iter().enumerate().map(facts).collect()
    }

    fn cards(&self) -> Vec<Card> {
        let gpus = self.network.gpus.len();
        let to_gpus = (0..gpus).map(|gpu| if gpu == 0 { LinkClass::PcieSwitch } else { LinkClass::Sockets });
        let (name, layer) = ("mlx5_0".into(), "InfiniBand".into());
        vec![Card { name, gbit: Some(400.0), layer, is_active: true, to_gpus: to_gpus.collect() }]
    }

    fn driver(&self) -> String {
        "a description".into()
    }

    fn peer_access(&self, from: usize, to: usize) -> Result<bool, RuntimeError> {
        Ok(self.network.route(from, to).unwrap().staged_gbps.is_none())
    }

    fn link(&self, from: usize, to: usize) -> Result<PeerLink, RuntimeError> {
        Ok(match self.network.route(from, to).unwrap().class {
            LinkClass::NvLink(_) | LinkClass::NvSwitch(_) => PeerLink::NvLink,
            LinkClass::Xgmi(_) => PeerLink::Xgmi,
            _ => PeerLink::Pcie,
        })
    }

    fn has_kernels(&self) -> bool {
        self.kernels
    }

    fn launches_us(&mut self) -> Result<(f64, f64), RuntimeError> {
        self.asked.push("launches".into());
        Ok((4.4, 0.7))
    }

    fn latency(&mut self, from: usize, to: usize) -> Result<Latency, RuntimeError> {
        self.asked.push(format!("latency {from} {to}"));
        let packet_us = self.network.route(from, to).unwrap().latency_us;
        Ok(Latency { packet_us, signal_us: packet_us + 0.6 })
    }

    fn gbps(&mut self, way: Way, pairs: &[(usize, usize)]) -> Result<Vec<f64>, RuntimeError> {
        self.asked.push(format!("{} {}", way.name(), pairs.len()));
        let transfers: Vec<Transfer> =
            pairs.iter().map(|&(from, to)| Transfer { from, to, bytes: 1e9 }).collect();
        let ends = self.network.ends(&transfers).unwrap();
        let part = if way == Way::Bulk { 0.9 * self.loss } else { self.loss };
        let rate = |gpu: usize| {
            let own = || pairs.iter().zip(&ends).filter(|((from, _), _)| *from == gpu);
            let last = own().map(|(_, end)| *end).fold(0.0, f64::max);
            if last > 0.0 { part * own().count() as f64 * 1e6 / last } else { 0.0 }
        };
        Ok((0..self.network.gpus.len()).map(rate).collect())
    }
}

pub(in crate::harness::topo) fn measured(name: &str) -> Profile {
    measure(&mut Described::new(name), 64 << 20, &mut || ()).unwrap()
}

/// Classes are worked out from rates as `nvidia-smi` and the description have them.
#[test]
fn links_are_named_by_what_they_bring() {
    let classes = |name: &str, to: [usize; 3]| {
        let profile = measured(name);
        to.map(|to| profile.pair(0, to).unwrap().class.to_string())
    };
    assert_eq!(classes("h200-nvswitch-8", [1, 4, 7]), ["NVS18", "NVS18", "NVS18"]);
    assert_eq!(classes("dgx-1-cube-mesh", [1, 4, 7]), ["NV2", "NV1", "NV2"]);
    assert_eq!(classes("mi300x-xgmi-8", [1, 4, 7]), ["XG1", "XG1", "XG1"]);
    let pairs = classes("pcie-pairs", [1, 2, 4]);
    assert_eq!((pairs[1].as_str(), pairs[2].as_str()), ("PIX", "SYS"));
    assert!(pairs[0].starts_with("NV"), "{pairs:?}");
}

#[test]
fn places_in_the_tree_of_pcie_name_what_is_between() {
    let at =
        |path: &str, node: Option<u32>| Place { bridges: path.split('/').map(str::to_owned).collect(), node };
    let a = at("pci0/port1/switch/down1", Some(0));
    for (b, class) in [
        (at("pci0/port1/switch/down2", Some(0)), LinkClass::PcieSwitch),
        (at("pci0/port2", Some(0)), LinkClass::PcieHost),
        (at("pci7/port1", Some(0)), LinkClass::PcieHost),
        (at("pci7/port1", Some(1)), LinkClass::Sockets),
        (at("pci7/port1", None), LinkClass::PcieHost),
    ] {
        assert_eq!(pcie(&a, &b), class, "{b:?}");
    }
}

#[test]
fn every_pair_and_pattern_is_measured_once() {
    let mut probe = Described::new("h200-nvswitch-8");
    let mut ticks = 0;
    let profile = measure(&mut probe, 1 << 20, &mut || ticks += 1).unwrap();
    assert_eq!(ticks, steps(8));
    let count = |what: &str| probe.asked.iter().filter(|asked| *asked == what).count();
    assert_eq!(
        ["launches", "stores 1", "bulk 1", "copies 1", "stores 7", "stores 56", "copies 56"].map(count),
        [1, 56, 56, 56, 8, 1, 1]
    );
    assert_eq!((0..8).map(|to| count(&format!("latency 3 {to}"))).sum::<usize>(), 7);
    let pair = profile.pair(2, 5).unwrap();
    let near =
        |got: Option<f64>, want: f64| assert!((got.unwrap() - want).abs() < 0.2, "{got:?} is not {want}");
    near(pair.gbps.stores, 0.97 * 360.0);
    near(pair.gbps.bulk, 0.9 * 0.97 * 360.0);
    assert_eq!((pair.gbps.loads, pair.packet_us, pair.signal_us), (None, Some(0.8), Some(0.8 + 0.6)));
    near(profile.gpus[7].all_to_all.copies, 0.97 * 360.0);
    assert_eq!(profile.not_measured, [NO_LOADS]);
    assert_eq!((profile.times.first_node_us, profile.times.next_node_us, profile.bytes), (4.4, 0.7, 1 << 20));
}

/// On a machine whose GPUs are alike, few measurements give the limits that all of them give.
#[test]
fn limits_need_few_measurements() {
    for name in ["h200-nvswitch-8", "mi300x-xgmi-8"] {
        let mut probe = Described::new(name);
        let limits = measure_limits(&mut probe).unwrap();
        assert_eq!(limits, measured(name).limits("profile").unwrap(), "{name}");
        // Launches; a way and two rates of each of seven peers; two rates of all to all.
        assert_eq!(probe.asked.len(), 1 + 7 * 3 + 2, "{name}: {:?}", probe.asked);
        assert!(probe.asked.iter().all(|asked| !asked.starts_with("copies")), "{:?}", probe.asked);
    }
    let mut one = Described::new("h200-nvswitch-8");
    one.network.gpus.truncate(1);
    let error = measure_limits(&mut one).unwrap_err().to_string();
    assert!(error.contains("gpus = 1") && error.contains("2 or more"), "{error}");
}

#[test]
fn without_peer_access_copies_are_measured_and_kernels_are_not() {
    let mut probe = Described::new("dgx-1-cube-mesh");
    let profile = measure(&mut probe, 1 << 20, &mut || ()).unwrap();
    assert!(probe.asked.iter().all(|asked| asked.starts_with("copies")), "{:?}", probe.asked);
    assert_eq!(profile.not_measured, [NO_LOADS, NO_WORLD]);
    let pair = profile.pair(0, 2).unwrap();
    assert!(!pair.peer_access && pair.gbps.stores.is_none() && pair.gbps.copies.is_some());
    assert!(profile.pair(0, 1).unwrap().peer_access);
}

/// What a machine's profile predicts is what the machine was.
#[test]
fn a_measured_machine_is_the_described_one_but_for_what_was_lost() {
    for name in super::super::builtin() {
        let (described, profile) = (Described::new(name).network, measured(name));
        let network = Network::from(&profile);
        for (from, to) in network.pairs() {
            let (got, want) = (network.gbps(from, to).unwrap(), 0.97 * described.gbps(from, to).unwrap());
            assert!((got / want - 1.0).abs() < 0.01, "{name}: {from} to {to}: {got} is not {want}");
            let (got, want) = (network.route(from, to).unwrap(), described.route(from, to).unwrap());
            assert_eq!(got.staged_gbps.is_some(), want.staged_gbps.is_some());
        }
        // Ports bind what a GPU sends at once.
        let sent = |n: &Network| super::super::patterns(n).unwrap().one_to_all[0];
        assert!((sent(&network) / sent(&described) - 0.97).abs() < 0.05, "{name}: {}", sent(&network));
    }
}
