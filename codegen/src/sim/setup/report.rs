//! What a run did, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::device::{FarMoved, FarPath};

/// Counts of one kernel over all ranks and launches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Launches.
    pub launches: u64,
    /// Instructions executed (an operation is one, whatever the tile's size).
    pub steps: u64,
    /// Puts, each target rank counted.
    pub puts: u64,
    /// Waits satisfied, a `wait_all` once.
    pub waits: u64,
    /// Flags that satisfied waits consumed.
    pub flags_waited: u64,
    /// Bytes put, or read from a window, `[source][destination]`; the diagonal is what a rank puts to itself and reads of its
    /// own.
    pub bytes: Vec<Vec<u64>>,
    /// Flags signalled, `[source][destination]`.
    pub signals: Vec<Vec<u64>>,
    /// What network cards move, `[source][destination]`: parts of `bytes`, and puts and credits.
    #[serde(skip_serializing_if = "moves_nothing")]
    pub far: Vec<Vec<FarMoved>>,
}

fn moves_nothing(far: &[Vec<FarMoved>]) -> bool {
    far.iter().flatten().all(|moved| *moved == FarMoved::default())
}

impl Counts {
    pub(crate) fn new(ranks: usize) -> Counts {
        let links = || vec![vec![0; ranks]; ranks];
        let far = vec![vec![FarMoved::default(); ranks]; ranks];
        Counts { bytes: links(), signals: links(), far, ..Counts::default() }
    }

    /// The most that the cards of a rank send or receive in a launch, each field by itself.
    fn far_of_a_launch(&self) -> FarMoved {
        let ranks = self.far.len();
        let launches = (self.launches / (ranks as u64).max(1)).max(1);
        let mut most = FarMoved::default();
        for rank in 0..ranks {
            let others = || (0..ranks).filter(|other| *other != rank);
            for all in [
                others().map(|to| self.far[rank][to]).collect::<Vec<_>>(),
                others().map(|from| self.far[from][rank]).collect(),
            ] {
                let of = |field: fn(&FarMoved) -> u64| all.iter().map(field).sum::<u64>().div_ceil(launches);
                most.puts = most.puts.max(of(|moved| moved.puts));
                most.bytes = most.bytes.max(of(|moved| moved.bytes));
                most.credits = most.credits.max(of(|moved| moved.credits));
                most.settles |= all.iter().any(|moved| moved.settles);
            }
        }
        most
    }

    /// Bytes that leave their rank.
    pub fn bytes_on_wire(&self) -> u64 {
        let all: u64 = self.bytes.iter().flatten().sum();
        all - self.bytes.iter().enumerate().map(|(i, row)| row[i]).sum::<u64>()
    }
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Instructions executed by all agents.
    pub steps: u64,
    /// Times that the scheduler picked somebody.
    pub picks: u64,
    /// Most blocks that were resident on one rank at once.
    pub max_resident_blocks: u32,
    /// Stores to ranks, signals among them, by the rank that did them.
    #[serde(skip)]
    pub stores: Vec<u64>,
    /// Steps of its program that each rank came to the end of.
    #[serde(skip)]
    pub steps_done: Vec<u32>,
    /// Counts by kernel.
    pub kernels: BTreeMap<String, Counts>,
}

impl Counts {
    fn add(&mut self, other: &Counts) {
        self.launches += other.launches;
        self.steps += other.steps;
        self.puts += other.puts;
        self.waits += other.waits;
        self.flags_waited += other.flags_waited;
        let links = |mine: &mut Vec<Vec<u64>>, theirs: &Vec<Vec<u64>>| {
            for (a, b) in mine.iter_mut().flatten().zip(theirs.iter().flatten()) {
                *a += b;
            }
        };
        links(&mut self.bytes, &other.bytes);
        links(&mut self.signals, &other.signals);
        for (a, b) in self.far.iter_mut().flatten().zip(other.far.iter().flatten()) {
            let settles = a.settles || b.settles;
            *a = FarMoved {
                puts: a.puts + b.puts,
                bytes: a.bytes + b.bytes,
                credits: a.credits + b.credits,
                settles,
            };
        }
    }
}

impl Report {
    /// Adds counts of a kernel; several variants of one kernel are counted together.
    pub(crate) fn add(&mut self, kernel: &str, counts: &Counts) {
        let entry = self.kernels.entry(kernel.into());
        entry.or_insert_with(|| Counts::new(counts.bytes.len())).add(counts);
    }

    /// Bytes that left their rank, over all kernels.
    pub fn bytes_on_wire(&self) -> u64 {
        self.kernels.values().map(Counts::bytes_on_wire).sum()
    }

    /// Bytes put from one rank to another, over all kernels.
    pub fn link_bytes(&self, from: u32, to: u32) -> u64 {
        self.kernels.values().map(|k| k.bytes[from as usize][to as usize]).sum()
    }

    /// Flags signalled from one rank to another, over all kernels.
    pub fn link_signals(&self, from: u32, to: u32) -> u64 {
        self.kernels.values().map(|k| k.signals[from as usize][to as usize]).sum()
    }

    /// Puts and credits of network cards, those of a rank to itself left out.
    pub fn far_puts(&self) -> u64 {
        let of = |far: &Vec<Vec<FarMoved>>| -> u64 {
            let all = far
                .iter()
                .enumerate()
                .flat_map(|(from, row)| row.iter().enumerate().map(move |to| (from, to)));
            all.filter(|(from, (to, _))| from != to).map(|(_, (_, moved))| moved.puts + moved.credits).sum()
        };
        self.kernels.values().map(|kernel| of(&kernel.far)).sum()
    }

    /// Microseconds that network cards add to one launch of each kernel, one after the other, at least: bytes and messages of the busiest
    /// rank, the last arrival, local completion and credits. Near ranks and the work of blocks are not counted.
    pub fn far_us(&self, path: &FarPath) -> f64 {
        self.kernels.values().map(|kernel| path.launch_us(&kernel.far_of_a_launch())).sum()
    }
}
