//! What a run did, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;

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
}

impl Counts {
    pub(crate) fn new(ranks: usize) -> Counts {
        let links = || vec![vec![0; ranks]; ranks];
        Counts { bytes: links(), signals: links(), ..Counts::default() }
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
}
