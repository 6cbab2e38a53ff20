//! An all-gather in a ring: each rank sends to the next one only, and passes on what the one before it has sent.

use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// A variant of the ring.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "ring_gather", kernel = ring_gather, args = RingGatherArgs, warps = warps)]
pub struct RingGather {
    /// Elements of each rank's vector.
    #[key(short = "n", range = 1..=67108864)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::F32, Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8, 16], default = 8)]
    pub warps: u32,
    /// Elements of a message.
    #[tune(short = "c", values = [256, 1024, 2048, 4096, 8192], default = |key| if key.elements > 65536 { 8192 } else { 256 })]
    pub chunk: u32,
    /// Blocks of each role.
    #[tune(short = "b", shrinks, values = [1, 4, 16, 32, 64], default = |key| if key.elements > 65536 { 64 } else { 16 })]
    pub blocks: u32,
}

impl Legal for RingGather {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = || "as many as 32 bits number on all ranks together".to_owned();
        let all = self.elements.checked_mul(self.ranks);
        Illegal::unless(all.is_some(), "elements", self.elements, allowed)
    }
}

impl RingGather {
    fn messages(&self) -> u32 {
        self.elements.div_ceil(self.chunk)
    }

    /// Each rank sends its own messages, and those of all ranks but the last two of the ring.
    fn channel(&self) -> ChannelShape {
        ChannelShape::new(Transport::Flags, self.ranks, Slots::Shared((self.ranks - 1) * self.messages()))
    }
}

/// Parameters of [`ring_gather`].
#[derive(KernelArgs)]
#[args(config = RingGather)]
pub struct RingGatherArgs {
    /// This rank's vector.
    #[input]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub x: AnyPtr,
    /// All ranks' vectors, `[rank][element]`.
    #[output]
    #[len(|c| u64::from(c.elements) * u64::from(c.ranks))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// What the rank before sends, `[step][message]`.
    #[channel(|c| c.channel())]
    #[len(|c| c.chunk)]
    #[dtype(|c| c.dtype)]
    pub passed: AnyChannel,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Gathers the vectors of all ranks on each of them, over the links of a ring.
#[kernel]
pub fn ring_gather(c: &RingGather, a: &RingGatherArgs) {
    let passed = a.passed.open(a.epoch.begin());
    let next = (rank() + 1) % c.ranks;
    let before = (rank() + (c.ranks - 1)) % c.ranks;
    role("send", c.blocks, |b| {
        for t in b.tiles(c.elements, c.chunk) {
            let own = a.x.load(t.at(), t.len());
            let message = passed.to(Peers::rank(next)).slot(t.number());
            message.put(t.local(), own);
            message.done();
            a.out.store(rank() * c.elements + t.at(), own);
        }
    });
    // Blocks of their own forward messages while others still send.
    role("pass", c.blocks, |b| {
        for t in b.tiles(c.elements, c.chunk) {
            for step in 1..c.ranks.val() {
                let got =
                    passed.from(before).slot((step - 1) * c.messages() + t.number()).load(t.local(), t.len());
                if step < c.ranks - 1 {
                    let message = passed.to(Peers::rank(next)).slot(step * c.messages() + t.number());
                    message.put(t.local(), got);
                    message.done();
                }
                let source = (rank() + (c.ranks - step)) % c.ranks;
                a.out.store(source * c.elements + t.at(), got);
            }
        }
    });
    passed.credits();
}

impl Workload for RingGather {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", crate::numbers(self.dtype, self.elements as usize, turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let of = |rank| crate::numbers(self.dtype, self.elements as usize, Turn { rank, ..turn });
        vec![Expected::exactly("out", self.dtype, (0..self.ranks).flat_map(of).collect())]
    }

    fn work(&self) -> Work {
        let bytes = u64::from(self.elements) * u64::from(self.dtype.bytes()) * u64::from(self.ranks - 1);
        let to = |from: u32| {
            (0..self.ranks).map(|to| if to == (from + 1) % self.ranks { bytes } else { 0 }).collect()
        };
        Work { bytes: (0..self.ranks).map(to).collect(), hops: self.ranks - 1, ..Work::default() }
    }
}
