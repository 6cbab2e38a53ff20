//! What collectives over several nodes are run on, and what must come out.

use peerwarp_codegen::ir::Dtype;

use super::workload::{bytes, exactly, exchanged, reduced, reduction, vector};
use super::{
    AllGatherNodes, AllReduceNodes, AllToAllNodes, BroadcastNodes, Levels, ReduceScatterNodes, reference,
};
use crate::harness::verdict::Expected;
use crate::harness::workload::{Contents, Turn, Work, Workload};

/// Over several nodes with `local` ranks each: `far` bytes from each rank to those of its number on other nodes, and `near` bytes to
/// those of its node.
fn two_levels((ranks, local): (u32, u32), (far, near): (u64, u64), hops: u32) -> Work {
    let to = |from: u32| {
        let sent = |to: u32| match (to / local == from / local, to % local == from % local) {
            (true, false) => near,
            (false, true) => far,
            _ => 0,
        };
        (0..ranks).map(sent).collect()
    };
    Work { bytes: (0..ranks).map(to).collect(), hops, ..Work::default() }
}

impl Workload for AllReduceNodes {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![reduced("x", self.op, turn, (self.ranks, self.elements), self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::active_vectors(self.op, turn, (self.ranks, 0), self.elements, self.dtype);
        let local = self.local() as usize;
        let reduced = |vectors: Vec<Vec<f32>>, dtype| reference::reduction(self.op, &vectors, dtype);
        let first: Vec<Vec<f32>> = match self.levels {
            Levels::RailFirst => {
                let rail = |number| all.iter().skip(number).step_by(local).cloned().collect();
                (0..local).map(|number| reduced(rail(number), Dtype::F32)).collect()
            }
            Levels::NodeFirst => all.chunks(local).map(|node| reduced(node.to_vec(), self.dtype)).collect(),
        };
        vec![reduction("out", (self.op, self.dtype), &reduced(first, self.dtype))]
    }

    fn work(&self) -> Work {
        let (vector, local) = (bytes(self.elements, self.dtype), self.local());
        let (far, near) = match self.levels {
            Levels::RailFirst => (vector, bytes(self.elements, Dtype::F32)),
            Levels::NodeFirst => (vector.div_ceil(local.into()), (2 * vector).div_ceil(local.into())),
        };
        let hops = if self.levels == Levels::RailFirst { 2 } else { 3 };
        two_levels((self.ranks, local), (far, near), hops)
    }
}

impl Workload for AllGatherNodes {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![vector(false, turn, self.elements, self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::vectors(turn, self.ranks, self.elements, self.dtype);
        vec![exactly("out", self.dtype, &all.concat())]
    }

    fn work(&self) -> Work {
        let far = bytes(self.elements, self.dtype);
        two_levels((self.ranks, self.local()), (far, far * u64::from(self.nodes)), 2)
    }
}

impl Workload for BroadcastNodes {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        // Also the others: what they have is not to be found in the result.
        vec![vector(self.in_place, turn, self.elements, self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let turn = Turn { rank: self.root, ..turn };
        vec![exactly("out", self.dtype, &reference::vector(turn, self.elements, self.dtype))]
    }

    fn work(&self) -> Work {
        let vector = bytes(self.elements, self.dtype);
        let mut work = two_levels((self.ranks, self.local()), (vector, vector), 2);
        for (from, sent) in (0..self.ranks).zip(&mut work.bytes) {
            let (on_rail, of_node) = (from % self.local() == self.root % self.local(), from / self.local());
            for (to, bytes) in (0..self.ranks).zip(sent) {
                if !on_rail || (from != self.root && to / self.local() != of_node) {
                    *bytes = 0;
                }
            }
        }
        work
    }
}

impl Workload for ReduceScatterNodes {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![reduced("x", self.op, turn, (self.ranks, self.elements), self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let all = reference::active_vectors(self.op, turn, (self.ranks, 0), self.elements, self.dtype);
        let nodes = all.chunks(self.local() as usize);
        let nodes: Vec<_> = nodes.map(|node| reference::reduction(self.op, node, self.dtype)).collect();
        let part = reference::part(self.elements, self.ranks, turn.rank);
        let all = reference::reduction(self.op, &nodes, self.dtype);
        vec![reduction("out", (self.op, self.dtype), &all[part])]
    }

    fn work(&self) -> Work {
        let part = self.elements.div_ceil(self.ranks);
        let (far, adds) = (bytes(part, self.dtype), self.nodes * (self.local() - 1) + self.nodes - 1);
        let work = two_levels((self.ranks, self.local()), (far, far * u64::from(self.nodes)), 2);
        Work { flops: u64::from(part) * u64::from(adds), ..work }
    }
}

impl Workload for AllToAllNodes {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![vector(false, turn, self.elements, self.dtype)]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        exchanged((self.elements, self.ranks), self.dtype, turn, 0)
    }

    fn work(&self) -> Work {
        let part = bytes(self.elements.div_ceil(self.ranks), self.dtype);
        let (local, nodes) = (self.local(), self.nodes);
        two_levels((self.ranks, local), (part * u64::from(local), part * u64::from(nodes)), 2)
    }
}
