//! What collectives are run on, and what must come out.

use peerwarp_codegen::ir::Dtype;

use super::{Algorithm, AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter, reference};
use crate::harness::elements::encode;
use crate::harness::verdict::Expected;
use crate::harness::workload::{Contents, Turn, Work, Workload};

fn contents(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    Contents::new(buffer, encode(dtype, values))
}

fn exactly(buffer: &str, dtype: Dtype, values: &[f32]) -> Expected {
    Expected::exactly(buffer, dtype, encode(dtype, values))
}

fn bytes(elements: u32, dtype: Dtype) -> u64 {
    u64::from(elements) * u64::from(dtype.bytes())
}

/// Each rank's part of a vector, from every other rank to it.
fn parts(elements: u32, ranks: u32, dtype: Dtype) -> Work {
    let part = |rank| bytes(reference::part(elements, ranks, rank).len() as u32, dtype);
    let to = |from: u32| (0..ranks).map(|to| if from == to { 0 } else { part(to) }).collect();
    Work { bytes: (0..ranks).map(to).collect(), hops: 1, ..Work::default() }
}

impl Workload for AllReduce {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let buffer = if self.in_place { "out" } else { "x" };
        vec![contents(buffer, self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::vectors(turn, self.ranks, self.elements, self.dtype);
        vec![exactly("out", self.dtype, &reference::reduction(self.op, &all, self.dtype))]
    }

    fn work(&self) -> Work {
        let (vector, ranks) = (bytes(self.elements, self.dtype), u64::from(self.ranks));
        let least = Work::all_to_all(self.ranks, (2 * vector).div_ceil(ranks));
        let flops = u64::from(self.elements) * (ranks - 1);
        match self.algorithm {
            Algorithm::OneShot => {
                Work { least: Some(least.bytes), flops, ..Work::all_to_all(self.ranks, vector) }
            }
            Algorithm::TwoShot => Work { hops: 2, flops: flops / ranks, ..least },
        }
    }
}

impl Workload for ReduceScatter {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let buffer = if self.in_place { "out" } else { "x" };
        vec![contents(buffer, self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::vectors(turn, self.ranks, self.elements, self.dtype);
        let mut result = reference::reduction(self.op, &all, self.dtype);
        let part = reference::part(self.elements, self.ranks, turn.rank);
        if !self.in_place {
            return vec![exactly("out", self.dtype, &result[part])];
        }
        // The other parts stay as they were.
        let mut vector = reference::vector(turn, self.elements, self.dtype);
        vector[part.clone()].swap_with_slice(&mut result[part]);
        vec![exactly("out", self.dtype, &vector)]
    }

    fn work(&self) -> Work {
        let flops = u64::from(self.elements.div_ceil(self.ranks)) * u64::from(self.ranks - 1);
        Work { flops, ..parts(self.elements, self.ranks, self.dtype) }
    }
}

impl Workload for AllGather {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let vector = contents("x", self.dtype, &reference::vector(turn, self.elements, self.dtype));
        if !self.in_place {
            return vec![vector];
        }
        let at = u64::from(turn.rank) * vector.bytes.len() as u64;
        vec![Contents { buffer: "out".into(), at, ..vector }]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::vectors(turn, self.ranks, self.elements, self.dtype);
        vec![exactly("out", self.dtype, &all.concat())]
    }

    fn work(&self) -> Work {
        Work::all_to_all(self.ranks, bytes(self.elements, self.dtype))
    }
}

impl Workload for AllToAll {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let buffer = if self.in_place { "out" } else { "x" };
        vec![contents(buffer, self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let own = reference::part(self.elements, self.ranks, turn.rank);
        let row = bytes(self.elements.div_ceil(self.ranks), self.dtype);
        let from = |rank: u32| {
            let vector = reference::vector(Turn { rank, ..turn }, self.elements, self.dtype);
            let expected = exactly("out", self.dtype, &vector[own.clone()]);
            Expected { at: u64::from(rank) * row, ..expected }.called(&format!("part from rank {rank}"))
        };
        (0..self.ranks).map(from).filter(|part| !part.bytes.is_empty()).collect()
    }

    fn work(&self) -> Work {
        parts(self.elements, self.ranks, self.dtype)
    }
}

impl Workload for Broadcast {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        // Also the others: what they have is not to be found in the result.
        let buffer = if self.in_place { "out" } else { "x" };
        vec![contents(buffer, self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let turn = Turn { rank: self.root, ..turn };
        vec![exactly("out", self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn work(&self) -> Work {
        let vector = bytes(self.elements, self.dtype);
        let to = |from: u32| {
            let sent = |to: u32| if from == self.root && to != from { vector } else { 0 };
            (0..self.ranks).map(sent).collect()
        };
        Work { bytes: (0..self.ranks).map(to).collect(), hops: 1, ..Work::default() }
    }
}
