//! Runs the kernel on simulated ranks, on inputs of its own, and compares with plain Rust.

use std::sync::Arc;

use peerwarp::codegen::ir::{ParamKind, verify};
use peerwarp::codegen::sim::{Bindings, Compiled, Machine, Memory};
use peerwarp::harness::elements::{decode, encode, round};
use peerwarp::harness::scenario::{Inputs, Prepared, Scenario, ScenarioError};
use peerwarp::harness::verdict::Verdict;
use peerwarp::prelude::*;

use crate::config::AddAllGather;

impl Scenario for AddAllGather {
    fn prepare(&self, inputs: &Inputs) -> Result<Prepared, ScenarioError> {
        let kernel = Arc::new(Compiled::new(verify(self.trace(32)?)?));
        let mut machine = Machine::new(self.ranks);
        machine.buffers_of(kernel.kernel())?;
        let rounds = u64::from(inputs.rounds);
        machine.buffer("results", ParamKind::Local, self.dtype, rounds * u64::from(self.gathered()))?;
        let bytes = u64::from(self.gathered()) * u64::from(self.dtype.bytes());
        for rank in 0..self.ranks {
            for turn in 0..inputs.rounds {
                let [x, y] = self.vectors(inputs.seed, rank, turn).map(|v| encode(self.dtype, &v));
                machine.host(rank, "fill", move |memory| {
                    memory.write("x", 0, &x)?;
                    Ok(memory.write("y", 0, &y)?)
                })?;
                machine.launch(rank, &kernel, &Bindings::new())?;
                machine.host(rank, "keep", move |memory| {
                    let out = memory.read::<u8>("out", 0..bytes)?;
                    Ok(memory.write("results", u64::from(turn) * bytes, &out)?)
                })?;
            }
        }
        let (config, inputs) = (self.clone(), inputs.clone());
        let sums = vec![u64::from(self.elements); self.ranks as usize];
        Ok(Prepared::new(machine, move |memory| config.judge(memory, &inputs)).column("sums", sums))
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
    pub fn expected(&self, seed: u64, turn: u32) -> Vec<f32> {
        let of_rank = |rank| {
            let [x, y] = self.vectors(seed, rank, turn);
            x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<f32>>()
        };
        round(self.dtype, &(0..self.ranks).flat_map(of_rank).collect::<Vec<f32>>())
    }

    fn judge(&self, memory: &Memory, inputs: &Inputs) -> Verdict {
        let mut verdict = Verdict::default();
        let expected: Vec<f32> =
            (0..inputs.rounds).flat_map(|turn| self.expected(inputs.seed, turn)).collect();
        for rank in 0..self.ranks {
            let found = decode(self.dtype, memory.read(rank, "results").unwrap_or(&[]));
            let place = |i: usize| {
                let (turn, i) = (i / self.gathered() as usize, i % self.gathered() as usize);
                let (src, i) = (i / self.elements as usize, i % self.elements as usize);
                format!("rank {rank}, turn {turn}, sum {i} of rank {src}")
            };
            let wide = |v: &f32| f64::from(*v);
            verdict.compare(found.iter().map(wide), expected.iter().map(wide), (0.0, 0.0), place);
        }
        verdict
    }
}
