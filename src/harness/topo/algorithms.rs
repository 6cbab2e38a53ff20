//! What summing over all ranks should take, by algorithm, size and world: why the ways to do it differ, and from where on.
//!
//! A rank has `bytes` bytes, and all ranks are to have the sum of all ranks' bytes. An algorithm is a list of steps; in a step
//! transfers go at once, and the next one begins when the last of them has arrived:
//!
//! ```text
//! time = launches + sum over steps (slowest of its transfers: latency + bytes at the rate that it gets) + tails
//! ```
//!
//! What ranks compute is not counted: they read and add faster than links bring.

use serde::{Deserialize, Serialize};

use super::network::{Network, NoPath, Transfer};

/// A way to sum over all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Every rank sends all it has to every other one, in one step.
    OneShot,
    /// Every rank gets its part of all vectors, sums it and sends the sum to all: two steps, one launch.
    TwoShot,
    /// Parts go round, a rank at a time: once to be summed, once as sums.
    Ring,
    /// Sums go up a binary tree and come down again.
    Tree,
    /// Two-shot in two launches: reduce-scatter, then all-gather.
    ReduceScatterThenAllGather,
    /// All ranks send all they have to rank 0, which sends the sum to all: two launches.
    ReduceThenBroadcast,
}

/// Transfers at once, and how often one after the other.
#[derive(Clone, Debug, PartialEq)]
struct Step {
    transfers: Vec<Transfer>,
    times: u32,
}

/// What an algorithm should take for one size.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Prediction {
    /// All of it, in microseconds.
    pub us: f64,
    /// Steps one after the other.
    pub steps: u32,
    /// Launches.
    pub launches: u32,
    /// The link that is busy for longest, of those that it takes.
    pub busiest: String,
    /// What crosses it.
    pub busiest_bytes: f64,
    /// Whether some of its transfers go through the host's memory, for want of peer access: no kernel does that.
    pub staged: bool,
}

impl Algorithm {
    /// All of them; of two that take as long, the first is meant.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::OneShot,
        Algorithm::TwoShot,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::ReduceScatterThenAllGather,
        Algorithm::ReduceThenBroadcast,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::OneShot => "one-shot",
            Algorithm::TwoShot => "two-shot",
            Algorithm::Ring => "ring",
            Algorithm::Tree => "tree",
            Algorithm::ReduceScatterThenAllGather => "reduce-scatter, all-gather",
            Algorithm::ReduceThenBroadcast => "reduce, broadcast",
        }
    }

    /// What it does, in words.
    pub fn words(self) -> &'static str {
        match self {
            Algorithm::OneShot => "every rank sends all to every rank: one step, and the most bytes",
            Algorithm::TwoShot => {
                "parts are summed by one rank each and sent to all: two steps, and the fewest bytes"
            }
            Algorithm::Ring => "parts go round between neighbours: the fewest bytes, and 2 (n - 1) steps",
            Algorithm::Tree => "sums go up a binary tree and come down: 2 log2(n) steps of all bytes",
            Algorithm::ReduceScatterThenAllGather => "two-shot in two launches",
            Algorithm::ReduceThenBroadcast => {
                "all bytes of all ranks go into rank 0, and out again: two launches"
            }
        }
    }

    /// Launches.
    pub fn launches(self) -> u32 {
        match self {
            Algorithm::ReduceScatterThenAllGather | Algorithm::ReduceThenBroadcast => 2,
            Algorithm::OneShot | Algorithm::TwoShot | Algorithm::Ring | Algorithm::Tree => 1,
        }
    }

    fn steps(self, world: usize, bytes: f64) -> Vec<Step> {
        let part = bytes / world as f64;
        let all_to_all = |bytes| {
            let pairs = (0..world).flat_map(|from| (0..world).map(move |to| (from, to)));
            let transfers = pairs.filter(|(from, to)| from != to);
            Step { transfers: transfers.map(|(from, to)| Transfer { from, to, bytes }).collect(), times: 1 }
        };
        match self {
            Algorithm::OneShot => vec![all_to_all(bytes)],
            Algorithm::TwoShot | Algorithm::ReduceScatterThenAllGather => {
                vec![all_to_all(part), all_to_all(part)]
            }
            Algorithm::Ring => {
                let next = (0..world).map(|from| Transfer { from, to: (from + 1) % world, bytes: part });
                vec![Step { transfers: next.collect(), times: 2 * (world as u32 - 1) }]
            }
            Algorithm::Tree => {
                let levels = (0..usize::BITS).take_while(|level| 1 << level < world);
                let up = levels.map(|level| level_up(world, 1 << level, bytes)).collect::<Vec<_>>();
                up.iter().cloned().chain(up.iter().rev().map(back)).collect()
            }
            Algorithm::ReduceThenBroadcast => {
                let transfers = (1..world).map(|from| Transfer { from, to: 0, bytes }).collect();
                let reduce = Step { transfers, times: 1 };
                vec![reduce.clone(), back(&reduce)]
            }
        }
    }
}

/// Ranks that are `distance` apart meet.
fn level_up(world: usize, distance: usize, bytes: f64) -> Step {
    let senders = (distance..world).step_by(2 * distance);
    Step { transfers: senders.map(|from| Transfer { from, to: from - distance, bytes }).collect(), times: 1 }
}

/// The same the other way round.
fn back(step: &Step) -> Step {
    let back = |t: &Transfer| Transfer { from: t.to, to: t.from, bytes: t.bytes };
    Step { transfers: step.transfers.iter().map(back).collect(), times: step.times }
}

/// What an algorithm should take on the first `world` GPUs.
///
/// # Errors
/// Two GPUs that it joins have no path.
pub fn predict(
    network: &Network,
    algorithm: Algorithm,
    world: usize,
    bytes: u64,
) -> Result<Prediction, NoPath> {
    let steps = algorithm.steps(world, bytes as f64);
    let (t, launches) = (&network.times, algorithm.launches());
    let later = f64::from(launches - 1);
    let mut us = t.first_node_us + later * t.next_node_us + f64::from(launches) * t.tail_us;
    let mut crossing = vec![0.0; network.resources.len()];
    let mut staged = false;
    for step in &steps {
        let slowest = network.ends(&step.transfers)?.into_iter().fold(0.0, f64::max);
        us += f64::from(step.times) * slowest;
        for transfer in &step.transfers {
            let route = network.route(transfer.from, transfer.to)?;
            staged |= route.staged_gbps.is_some();
            route.path.iter().for_each(|&r| crossing[r] += f64::from(step.times) * transfer.bytes);
        }
    }
    let busy = |r: usize| crossing[r] / network.resources[r].gbps;
    // Of several that are as busy, the first.
    let busiest = (0..crossing.len()).rev().max_by(|&a, &b| busy(a).total_cmp(&busy(b))).unwrap_or_default();
    Ok(Prediction {
        us,
        steps: steps.iter().map(|s| s.times).sum(),
        launches,
        busiest: network.resources.get(busiest).map_or_else(String::new, |r| r.name.clone()),
        busiest_bytes: crossing.get(busiest).copied().unwrap_or_default(),
        staged,
    })
}

/// Sizes for which an algorithm is the fastest.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// From so many bytes on.
    pub from: u64,
    /// Up to so many; none of the last one.
    pub up_to: Option<u64>,
}

/// The smallest and the largest size that is looked at.
pub const SIZES: (u64, u64) = (1 << 10, 1 << 30);

/// Which algorithm is the fastest, by size. The ends of ranges are right to a hundredth.
///
/// # Errors
/// Two of the GPUs have no path.
pub fn fastest(network: &Network, world: usize) -> Result<Vec<Range>, NoPath> {
    let mut ranges: Vec<Range> = vec![];
    let mut at = SIZES.0;
    let mut now = best(network, world, at)?;
    ranges.push(Range { algorithm: now, from: at, up_to: None });
    while at < SIZES.1 {
        let (mut low, mut high) = (at, at * 2);
        at = high;
        // Where the one that is the fastest at the lower end stops to be it; then on from there.
        while best(network, world, high)? != now {
            while high - low > (low / 128).max(1) {
                let middle = low.midpoint(high);
                match best(network, world, middle)? == now {
                    true => low = middle,
                    false => high = middle,
                }
            }
            now = best(network, world, high)?;
            let last = ranges.len() - 1;
            ranges[last].up_to = Some(low);
            ranges.push(Range { algorithm: now, from: high, up_to: None });
            (low, high) = (high, at);
        }
    }
    Ok(ranges)
}

/// The fastest for one size. Kernels come before what needs the host.
fn best(network: &Network, world: usize, bytes: u64) -> Result<Algorithm, NoPath> {
    let mut found: Option<(bool, f64, Algorithm)> = None;
    for algorithm in Algorithm::ALL {
        let p = predict(network, algorithm, world, bytes)?;
        let better = |&(staged, us, _): &(bool, f64, Algorithm)| (p.staged, p.us - us) < (staged, -1e-9);
        if found.as_ref().is_none_or(better) {
            found = Some((p.staged, p.us, algorithm));
        }
    }
    Ok(found.map_or(Algorithm::OneShot, |(.., algorithm)| algorithm))
}

/// Worlds worth looking at: powers of two, and all GPUs.
pub fn worlds(gpus: usize) -> Vec<usize> {
    let powers = (1..7).map(|power| 1 << power).take_while(|&world| world < gpus);
    powers.chain([gpus]).collect()
}

#[cfg(test)]
#[path = "algorithms_tests.rs"]
mod tests;
