//! The least that work can take on a machine, from what was measured of the machine's parts.

use serde::{Deserialize, Serialize};

use crate::harness::workload::Work;

/// What the parts of a machine take. Times in microseconds, bandwidths in GB/s of one GPU in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// A graph of one empty kernel between two events.
    pub first_node_us: f64,
    /// Each kernel more in the graph.
    pub next_node_us: f64,
    /// A packet's way to another GPU.
    pub hop_us: f64,
    /// From the last byte's arrival to the kernel's end.
    pub tail_us: f64,
    /// Stores to a single peer.
    pub one_peer_gbps: f64,
    /// Stores to all peers while all GPUs do so.
    pub all_peers_gbps: f64,
}

/// Eight H200s of one node, NVLink 4 through NVSwitch, as they were measured on 2026-11-21 (driver 580, CUDA 13.0): a graph
/// of 1 and of 2 empty kernels takes 4.4 and 5.1 us, a flag-in-data packet of 16 bytes 0.8 us one way, kernels that store to
/// all seven peers reach 343 GB/s, to one peer 360 GB/s. The tail is the lower end of an estimate, 0.5 to 1 us.
pub const H200: Limits = Limits {
    first_node_us: 4.4,
    next_node_us: 0.7,
    hop_us: 0.8,
    tail_us: 0.5,
    one_peer_gbps: 360.0,
    all_peers_gbps: 343.0,
};

/// The GPUs of [`H200`], and the most of them that were measured together.
const H200_NAME: &str = "NVIDIA H200";
const H200_RANKS: u32 = 8;

/// What limits are computed from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known {
    /// Where it was measured, in words: `NVIDIA H200s`.
    pub measured_on: String,
    /// The figures.
    #[serde(flatten)]
    pub limits: Limits,
}

impl Known {
    /// Of this machine, if it was measured, or else of machines with the same GPUs.
    ///
    /// # Errors
    /// Why this machine was not measured, where nothing is known of its GPUs either.
    pub fn of(measured: &Result<Limits, String>, gpus: &[String]) -> Result<Known, String> {
        match (measured, Limits::of(gpus.iter().map(String::as_str)), gpus.first()) {
            (Ok(limits), ..) => Ok(Known { measured_on: "this machine".into(), limits: *limits }),
            (Err(_), Some(limits), Some(gpu)) => Ok(Known { measured_on: format!("{gpu}s"), limits }),
            (Err(why), ..) => Err(why.clone()),
        }
    }
}

/// The least time of a piece of work, by what it is spent on, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// All of it.
    pub us: f64,
    /// Kernel launches, and the events around them.
    pub node_us: f64,
    /// What the family says has to happen besides, one after the other.
    pub steps_us: f64,
    /// The way to another GPU, and back.
    pub hops_us: f64,
    /// The busiest rank's bytes at the links' bandwidth.
    pub wire_us: f64,
    /// After the last byte's arrival.
    pub tail_us: f64,
}

impl Limits {
    /// Of the machine with these GPUs; none if nothing is known of it. A profile of `peerwarp topo` says it of any machine.
    pub fn of<'a>(gpus: impl IntoIterator<Item = &'a str>) -> Option<Limits> {
        let mut count = 0;
        let all = gpus.into_iter().inspect(|_| count += 1).all(|name| name == H200_NAME);
        (all && (1..=H200_RANKS).contains(&count)).then_some(H200)
    }

    /// Time of `bytes` on the links of a rank among `ranks`.
    pub fn wire_us(&self, ranks: u32, bytes: u64) -> f64 {
        let gbps = if ranks == 2 { self.one_peer_gbps } else { self.all_peers_gbps };
        bytes as f64 / gbps / 1e3
    }

    /// The least time of work in a graph of so many rounds of it; none if the work is not known. A round is taken as one
    /// kernel, for it needs no more than that.
    pub fn of_work(&self, work: &Work, rounds: u32) -> Option<Limit> {
        let ranks = work.bytes.len() as u32;
        if ranks == 0 {
            return None;
        }
        let nodes = rounds.max(1);
        let node_us = (self.first_node_us + self.next_node_us * f64::from(nodes - 1)) / f64::from(nodes);
        let steps_us: f64 = work.steps.iter().map(|(_, us)| us).sum();
        let hops_us = f64::from(work.hops) * self.hop_us;
        let (wire_us, tail_us) = (self.wire_us(ranks, work.least_busiest()), self.tail_us);
        let us = node_us + steps_us + hops_us + wire_us + tail_us;
        Some(Limit { us, node_us, steps_us, hops_us, wire_us, tail_us })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, want: f64, within: f64) {
        assert!((got - want).abs() <= within, "{got} is not {want}");
    }

    /// Work of ranks that each send so much to the next one, and a step besides.
    fn ring(ranks: usize, bytes: u64, step: Option<f64>) -> Work {
        let row =
            |from: usize| (0..ranks).map(|to| if to == (from + 1) % ranks { bytes } else { 0 }).collect();
        let steps = step.map(|us| ("routing".to_owned(), us)).into_iter().collect();
        Work { bytes: (0..ranks).map(row).collect(), hops: 1, steps, ..Work::default() }
    }

    #[test]
    fn parts_add_up() {
        let us = |work: &Work, rounds| H200.of_work(work, rounds).unwrap().us;
        let (stepped, mut plain) = (ring(8, 3_430_000, Some(0.5)), ring(8, 1_715_000, None));
        near(us(&stepped, 1), 4.4 + 0.5 + 0.8 + 10.0 + 0.5, 1e-9);
        near(us(&plain, 1), 4.4 + 0.8 + 5.0 + 0.5, 1e-9);
        let round = stepped.then(&plain);
        near(us(&round, 1), 4.4 + 0.5 + 1.6 + 15.0 + 0.5, 1e-9);
        near(us(&round, 10), (4.4 + 9.0 * 0.7) / 10.0 + 0.5 + 1.6 + 15.0 + 0.5, 1e-9);
        // Kernels may send more than they have to: the limit is that of the least.
        plain.least = Some(ring(8, 343_000, None).bytes);
        near(us(&plain, 1), 4.4 + 0.8 + 1.0 + 0.5, 1e-9);
        let two = H200.of_work(&ring(2, 3_430_000, None), 1).unwrap();
        near(two.wire_us, 3_430.0 / 360.0, 1e-9);
        // Directions work at once: what goes out of one rank comes into another.
        let (mut there, mut back) = (ring(8, 0, None), ring(8, 0, None));
        (there.bytes[0][1], back.bytes[1][0]) = (3_430_000, 3_430_000);
        near(H200.of_work(&there.then(&back), 1).unwrap().wire_us, 10.0, 1e-9);
    }

    #[test]
    fn work_that_is_not_known_has_no_limit() {
        assert_eq!(H200.of_work(&Work::default(), 1), None);
        // A family that says nothing makes the whole round unknown.
        assert_eq!(H200.of_work(&ring(2, 1, None).then(&Work::default()), 1), None);
    }

    #[test]
    fn what_was_measured_here_comes_first() {
        let names = |name: &str| vec![name.to_owned(); 2];
        let measured = Limits { one_peer_gbps: 47.0, ..H200 };
        let known = Known::of(&Ok(measured), &names(H200_NAME)).unwrap();
        assert_eq!((known.measured_on.as_str(), known.limits), ("this machine", measured));
        let why = || Err("no peer access".to_owned());
        let known = Known::of(&why(), &names(H200_NAME)).unwrap();
        assert_eq!((known.measured_on.as_str(), known.limits), ("NVIDIA H200s", H200));
        let unknown = Err("no peer access".to_owned());
        assert_eq!(Known::of(&why(), &names("another")), unknown);
        assert_eq!(Known::of(&why(), &[]), unknown);
    }

    #[test]
    fn other_machines_are_not_known() {
        assert_eq!(Limits::of(["NVIDIA H200"; 2]), Some(H200));
        assert_eq!(Limits::of(["NVIDIA H200"; 1]), Some(H200), "it has launches and no links");
        assert_eq!(Limits::of([]), None);
        assert_eq!(Limits::of(["NVIDIA H200"; 9]), None);
        assert_eq!(Limits::of(["NVIDIA H200", "NVIDIA H100"]), None);
        assert_eq!(Limits::of(["NVIDIA H200 NVL"; 2]), None);
    }
}
