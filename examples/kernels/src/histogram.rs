//! A histogram of the numbers of all ranks.

use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// Numbers that a block counts at once.
const CHUNK: u32 = 2048;

/// A variant of the histogram.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "histogram", kernel = histogram, args = HistogramArgs, warps = 8)]
pub struct Histogram {
    /// Numbers of each rank.
    #[key(short = "n", range = 1..=33554432)]
    pub numbers: u32,
    /// Bins.
    #[key(short = "k", range = 1..=8192)]
    pub bins: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Blocks that count.
    #[tune(short = "b", shrinks, values = [1, 4, 16, 64, 128], default = |key| if key.numbers > 262144 { 128 } else { 16 })]
    pub blocks: u32,
}

impl Legal for Histogram {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`histogram`].
#[derive(KernelArgs)]
#[args(config = Histogram)]
pub struct HistogramArgs {
    /// This rank's numbers. Those that are no bin's are not counted.
    #[input]
    #[len(|c| c.numbers.into())]
    pub x: Ptr<u32>,
    /// How many of all ranks' numbers are in each bin.
    #[output]
    #[len(|c| c.bins.into())]
    pub out: Ptr<u32>,
    /// What each block has counted, `[block][bin]`.
    #[len(|c| u64::from(c.blocks) * u64::from(c.bins))]
    pub counted: Ptr<u32>,
    /// Blocks that have counted.
    #[len(|_| 1)]
    pub done: Counters,
    /// Each rank's counts.
    #[channel(|c| ChannelShape::new(Transport::Flags, c.ranks, Slots::BySender(1)))]
    #[len(|c| c.bins)]
    pub counts: Channel<u32>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Counts the numbers of all ranks by bin, in shared memory first.
#[kernel]
pub fn histogram(c: &Histogram, a: &HistogramArgs) {
    let counts = a.counts.open(a.epoch.begin());
    role("count", c.blocks, |b| {
        let bins = shared::<u32>("bins", c.bins);
        bins.store(0, splat(0u32, c.bins));
        for t in b.tiles(c.numbers, CHUNK) {
            let number = a.x.load(t.at(), t.len());
            bins.scatter_add(number, splat(1u32, CHUNK), t.mask() & number.lt(c.bins));
        }
        a.counted.store(b.index() * c.bins, bins.load(0, c.bins));
        b.last(a.done.counter(0), || {
            let mut sum = var(splat(0u32, c.bins));
            for block in 0..c.blocks.val() {
                sum += a.counted.load(block * c.bins, c.bins);
            }
            let message = counts.to(Peers::all()).slot(0);
            message.put(0, sum.get());
            message.done();
        });
    });
    role("sum", 1, |_| {
        let mut sum = var(splat(0u32, c.bins));
        for from in 0..c.ranks.val() {
            sum += counts.from(from).slot(0).load(0, c.bins);
        }
        a.out.store(0, sum.get());
    });
    counts.credits();
}

impl Histogram {
    /// Numbers of a rank, a few of which are in no bin.
    fn numbers(&self, turn: Turn) -> Vec<u32> {
        let words = crate::numbers(Dtype::F32, self.numbers as usize, turn);
        let bin = |word: &[u8]| u32::from_le_bytes([word[0], word[1], word[2], word[3]]) >> 16;
        words.chunks(4).map(|word| bin(word) % (self.bins + self.bins.div_ceil(16))).collect()
    }
}

impl Workload for Histogram {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::of("x", &self.numbers(turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let mut counts = vec![0u32; self.bins as usize];
        for number in (0..self.ranks).flat_map(|rank| self.numbers(Turn { rank, ..turn })) {
            counts.get_mut(number as usize).into_iter().for_each(|count| *count += 1);
        }
        let bytes = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
        vec![Expected::exactly("out", Dtype::U32, bytes)]
    }

    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, u64::from(self.bins) * 4)
    }
}
