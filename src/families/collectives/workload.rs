//! What collectives are run on, and what must come out.

use peerwarp_codegen::ir::Dtype;

use super::{Algorithm, AllReduce, reference};
use crate::harness::elements::encode;
use crate::harness::verdict::Expected;
use crate::harness::workload::{Contents, Turn, Work, Workload};

fn contents(buffer: &str, dtype: Dtype, values: &[f32]) -> Contents {
    Contents::new(buffer, encode(dtype, values))
}

fn exactly(buffer: &str, dtype: Dtype, values: &[f32]) -> Expected {
    Expected::exactly(buffer, dtype, encode(dtype, values))
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
        let (vector, ranks) = (u64::from(self.elements) * u64::from(self.dtype.bytes()), u64::from(self.ranks));
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
