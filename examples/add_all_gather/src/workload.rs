//! What goes in and what must come out, in plain Rust.

use peerwarp::harness::elements::{encode, round};
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};

use crate::config::AddAllGather;

impl Workload for AddAllGather {
    fn inputs(&self, Turn { seed, rank, round }: Turn) -> Vec<Contents> {
        let [x, y] = self.vectors(seed, rank, round).map(|v| encode(self.dtype, &v));
        vec![Contents::new("x", x), Contents::new("y", y)]
    }

    fn expected(&self, Turn { seed, round, .. }: Turn) -> Vec<Expected> {
        let sums = encode(self.dtype, &self.sums(seed, round));
        vec![Expected::exactly("out", self.dtype, sums).called("sum")]
    }

    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, u64::from(self.elements) * u64::from(self.dtype.bytes()))
    }
}

impl AddAllGather {
    /// The two vectors of a rank in one turn, representable in the element type.
    pub fn vectors(&self, seed: u64, rank: u32, turn: u32) -> [Vec<f32>; 2] {
        let number = |which: u64, i: u32| {
            let mut z = seed ^ which << 60 ^ u64::from(turn) << 48 ^ u64::from(rank) << 32 ^ u64::from(i);
            // The finaliser of splitmix64.
            for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb_u64)] {
                z = (z ^ z >> shift).wrapping_mul(factor);
            }
            ((z ^ z >> 31) >> 40) as f32 / (1 << 22) as f32 - 2.0
        };
        [1, 2].map(|which| {
            let vector: Vec<f32> = (0..self.elements).map(|i| number(which, i)).collect();
            round(self.dtype, &vector)
        })
    }

    /// What every rank must have after a turn: plain Rust, nothing of the kernel in it.
    pub fn sums(&self, seed: u64, turn: u32) -> Vec<f32> {
        let of_rank = |rank| {
            let [x, y] = self.vectors(seed, rank, turn);
            x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>()
        };
        round(self.dtype, &(0..self.ranks).flat_map(of_rank).collect::<Vec<f32>>())
    }
}
