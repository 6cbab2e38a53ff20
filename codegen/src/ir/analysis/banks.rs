//! Banks: the number of launches after which a kernel uses the same memory again.

use std::collections::HashMap;

use super::super::*;
use super::{Facts, Tree};

/// The largest number of banks. A larger remainder is of a hash or another number.
const MOST: u64 = 64;

/// Number of launches after which a kernel uses the same bank again, from 1 to 64. It is the largest remainder that the
/// kernel takes of a number of launches: of an epoch, or of a number that it loads, adds to and stores again.
pub fn banks(kernel: &Kernel) -> u32 {
    let tree = Tree::of(kernel);
    let facts = Facts::of(kernel, &tree);
    let flow = |roots: Vec<ValueId>| Flow::from(kernel, &tree, &facts, roots);
    let mut roots = vec![];
    let mut loads: HashMap<ParamId, Vec<ValueId>> = HashMap::new();
    for &id in tree.in_order() {
        match &kernel.op(id).kind {
            OpKind::Value(ValueOp::Epoch { out, .. }) => roots.push(*out),
            OpKind::Memory(
                MemoryOp::Load { out, place: Place::Param(p), .. }
                | MemoryOp::Atomic { out, place: Place::Param(p), .. },
            ) if kernel.params[p.index()].kind != ParamKind::Counters => {
                loads.entry(*p).or_default().push(*out)
            }
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => {}
        }
    }
    for (param, loaded) in loads {
        let counts = flow(loaded.clone()).counts;
        let is_counter = tree.in_order().iter().any(|&id| match &kernel.op(id).kind {
            OpKind::Memory(MemoryOp::Store { place: Place::Param(p), value, .. }) => {
                *p == param && counts.contains_key(value)
            }
            OpKind::Memory(MemoryOp::Atomic { place: Place::Param(p), op: ReduceOp::Sum, .. }) => *p == param,
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => false,
        });
        if is_counter {
            roots.extend(loaded);
        }
    }
    flow(roots).most as u32
}

/// Values and variables that count launches.
struct Flow<'k> {
    facts: &'k Facts,
    /// Values that grow by one in so many launches.
    counts: HashMap<ValueId, u64>,
    vars: HashMap<VarId, u64>,
    most: u64,
}

impl<'k> Flow<'k> {
    fn from(kernel: &Kernel, tree: &Tree, facts: &'k Facts, roots: Vec<ValueId>) -> Flow<'k> {
        let counts = roots.into_iter().map(|v| (v, 1)).collect();
        let mut flow = Flow { facts, counts, vars: HashMap::new(), most: 1 };
        // Assignments in a loop follow reads in program order.
        loop {
            let before = (flow.counts.len(), flow.vars.len());
            tree.in_order().iter().for_each(|&id| flow.step(&kernel.op(id).kind));
            if (flow.counts.len(), flow.vars.len()) == before {
                return flow;
            }
        }
    }

    fn step(&mut self, kind: &OpKind) {
        match kind {
            OpKind::Value(ValueOp::Binary { op, out, a, b }) => self.binary(*op, *out, *a, *b),
            OpKind::Value(ValueOp::Cast { out, a } | ValueOp::Splat { out, a, .. }) => self.pass(*a, *out),
            OpKind::Value(ValueOp::Select { out, a, b, .. }) => {
                self.pass(*a, *out);
                self.pass(*b, *out);
            }
            OpKind::Control(ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value }) => {
                if let Some(&launches) = self.counts.get(value) {
                    self.vars.insert(*var, launches);
                }
            }
            OpKind::Control(ControlOp::VarGet { out, var }) => {
                if let Some(&launches) = self.vars.get(var) {
                    self.counts.insert(*out, launches);
                }
            }
            OpKind::Control(ControlOp::If { results, .. }) => {
                for &(out, then, otherwise) in results {
                    self.pass(then, out);
                    self.pass(otherwise, out);
                }
            }
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => {}
        }
    }

    fn pass(&mut self, from: ValueId, to: ValueId) {
        if let Some(&launches) = self.counts.get(&from) {
            self.counts.insert(to, launches);
        }
    }

    fn binary(&mut self, op: BinaryOp, out: ValueId, a: ValueId, b: ValueId) {
        let number = |v: ValueId| self.facts.int(v).and_then(|n| u64::try_from(n).ok()).filter(|n| *n > 0);
        match (op, self.counts.get(&a).copied(), number(b)) {
            (BinaryOp::Div, Some(launches), Some(n)) => {
                self.counts.insert(out, launches.saturating_mul(n));
            }
            (BinaryOp::Shr, Some(launches), Some(n)) if n < 32 => {
                self.counts.insert(out, launches.saturating_mul(1 << n));
            }
            (BinaryOp::Rem, Some(launches), Some(n)) => self.comes_round(launches.saturating_mul(n)),
            (BinaryOp::Add | BinaryOp::Sub, ..) => {
                self.pass(a, out);
                self.pass(b, out);
            }
            (BinaryOp::And, ..) => {
                for (counted, mask) in [(a, b), (b, a)] {
                    if let (Some(&launches), Some(mask)) = (self.counts.get(&counted), number(mask))
                        && (mask + 1).is_power_of_two()
                    {
                        self.comes_round(launches.saturating_mul(mask + 1));
                    }
                }
            }
            _ => {}
        }
    }

    /// Notes a remainder.
    fn comes_round(&mut self, launches: u64) {
        if launches <= MOST {
            self.most = self.most.max(launches);
        }
    }
}
