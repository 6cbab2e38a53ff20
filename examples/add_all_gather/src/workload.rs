//! What the kernel is run on, and what must come out of it: plain Rust, nothing of the kernel in it.

use peerwarp::harness::bench::TIMING;
use peerwarp::harness::elements::{encode, mixed, round};
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Baseline, Contents, Turn, Work, Workload};

use crate::config::AddAllGather;

impl Workload for AddAllGather {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let [x, y] = self.vectors(turn).map(|vector| encode(self.dtype, &vector));
        vec![Contents::new("x", x), Contents::new("y", y)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        vec![Expected::exactly("out", self.dtype, encode(self.dtype, &self.sums(turn))).called("sum")]
    }

    fn work(&self) -> Work {
        let bytes = u64::from(self.elements) * u64::from(self.dtype.bytes());
        Work { flops: u64::from(self.elements), ..Work::all_to_all(self.ranks, bytes) }
    }

    fn baselines() -> Option<Baseline> {
        // `torch.add`, then NCCL's all_gather, launched one by one and as a CUDA graph.
        Some(Baseline { scripts: &[("nccl.py", include_str!("../baselines/nccl.py")), TIMING] })
    }
}

impl AddAllGather {
    /// The two vectors of a rank, representable in the element type.
    pub fn vectors(&self, Turn { seed, rank, round: turn }: Turn) -> [Vec<f32>; 2] {
        let number = |which: u64, i: u32| {
            let z = seed ^ which << 60 ^ u64::from(turn) << 48 ^ u64::from(rank) << 32 ^ u64::from(i);
            let z = mixed(z);
            ((z ^ z >> 31) >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        [1, 2].map(|which| round(self.dtype, (0..self.elements).map(|i| number(which, i)).collect()))
    }

    /// The sums of all ranks, `[ranks][elements]`: the same on every rank.
    pub fn sums(&self, turn: Turn) -> Vec<f32> {
        let of_rank = |rank| {
            let [x, y] = self.vectors(Turn { rank, ..turn });
            x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>()
        };
        round(self.dtype, (0..self.ranks).flat_map(of_rank).collect())
    }
}
