//! Kernels that begin early: an index, or a rank to send to, that comes from memory has a bound. A launch before that gave up may
//! have left any number there.

mod guards;

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::ir::analysis::target;
use guards::{BOTH, Index};

/// The loads that a number is computed from, without a bound.
type Loads = BTreeSet<OpId>;

pub(super) fn check(report: &mut Report<'_>, tree: &Tree, facts: &Facts) {
    let kernel = report.kernel;
    if !kernel.begins_early {
        return;
    }
    let mut flow = Flow::new(kernel, tree, facts);
    // Assignments in a loop follow reads in program order.
    loop {
        let before = flow.size();
        tree.in_order().iter().for_each(|&id| flow.step(id));
        if flow.size() == before {
            break;
        }
    }
    for &id in tree.in_order() {
        for (value, len) in numbers(kernel, &kernel.op(id).kind) {
            let index = len.map(|len| Index { value, len });
            let loads = index.and_then(|index| flow.cut_beyond(index)).unwrap_or_else(|| flow.of(value));
            if let Some(&load) = loads.iter().find(|&&load| !flow.is_bounded(load, id, index)) {
                let from = kernel.op(load).kind.accesses().first().map(|a| report.place_name(a.place));
                let (from, at) = (from.unwrap_or_default(), kernel.op(load).loc);
                let op = kernel.op(id);
                let what =
                    if target(kernel, &op.kind) == Some(value) { "the ranks to send to" } else { "an index" };
                report.add(op.loc, Problem::EarlyIndex { op: op.kind.name(), what, from, at });
            }
        }
    }
}

/// The numbers that say which elements an operation accesses and of which rank. Those that alone are an element, or a rank, have
/// how many there are beside them.
fn numbers(kernel: &Kernel, kind: &OpKind) -> Vec<(ValueId, Option<u64>)> {
    let rows = match kind {
        OpKind::Matrix(MatrixOp::Dot(Dot { a, b, .. })) => vec![a.row, b.row],
        OpKind::Matrix(
            MatrixOp::LoadMatrix(LoadMatrix { at: rows, .. })
            | MatrixOp::StoreMatrix(StoreMatrix { to: rows, .. }),
        )
        | OpKind::Comm(CommOp::PutMatrix(PutMatrix { to: rows, .. })) => vec![rows.row],
        OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Value(_) | OpKind::Memory(_) | OpKind::Control(_) => {
            vec![]
        }
    };
    let tiles: Vec<ValueId> = match kind {
        OpKind::Comm(CommOp::ReceiveMessages(ReceiveMessages { tiles, .. })) => {
            tiles.iter().map(|t| t.index).collect()
        }
        OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Value(_) | OpKind::Memory(_) | OpKind::Control(_) => {
            vec![]
        }
    };
    let len = |place: Place| match place {
        Place::Param(p) | Place::Peer(p, _) | Place::All(p, _) => kernel.params[p.index()].len,
        Place::Shared(s) => kernel.shared[s.index()].len.into(),
    };
    let ranks = Some(kernel.ranks.into());
    let accesses = kind.accesses();
    let accessed = accesses.iter().filter_map(|a| Some((a.index?, Some(len(a.place)))));
    let peers = accesses.iter().filter_map(|a| Some((a.place.rank()?, ranks)));
    let is_rank = |v: &ValueId| kernel.ty(*v).dtype == Dtype::U32;
    let targets = target(kernel, kind).map(|v| (v, ranks.filter(|_| is_rank(&v))));
    let others = rows.into_iter().chain(tiles).map(|v| (v, None));
    accessed.chain(peers).chain(targets).chain(others).collect()
}

struct Flow<'k> {
    kernel: &'k Kernel,
    tree: &'k Tree,
    facts: &'k Facts,
    defs: HashMap<ValueId, OpId>,
    values: HashMap<ValueId, Loads>,
    vars: HashMap<VarId, Loads>,
    shared: HashMap<SharedId, Loads>,
}

impl<'k> Flow<'k> {
    fn new(kernel: &'k Kernel, tree: &'k Tree, facts: &'k Facts) -> Flow<'k> {
        let outs = |&id: &OpId| kernel.op(id).kind.outs().into_iter().map(move |out| (out, id));
        let defs = tree.in_order().iter().flat_map(outs).collect();
        let (values, vars, shared) = (HashMap::new(), HashMap::new(), HashMap::new());
        Flow { kernel, tree, facts, defs, values, vars, shared }
    }

    fn size(&self) -> usize {
        let all = self.values.values().chain(self.vars.values()).chain(self.shared.values());
        all.map(Loads::len).sum()
    }

    fn of(&self, v: ValueId) -> Loads {
        self.values.get(&v).cloned().unwrap_or_default()
    }

    fn add(&mut self, v: ValueId, loads: Loads) {
        if !loads.is_empty() {
            self.values.entry(v).or_default().extend(loads);
        }
    }

    /// Those that nothing bounds where an operation runs.
    fn unbounded(&self, loads: Loads, at: OpId) -> Loads {
        loads.into_iter().filter(|&load| !self.is_bounded(load, at, None)).collect()
    }

    fn step(&mut self, id: OpId) {
        let kind = &self.kernel.op(id).kind;
        match kind {
            OpKind::Value(op) => self.value(op),
            OpKind::Memory(
                MemoryOp::Load { out, place, .. }
                | MemoryOp::LoadMasked { out, place, .. }
                | MemoryOp::Gather { out, place, .. }
                | MemoryOp::Atomic { out, place, .. },
            ) => {
                let loads = match place {
                    Place::Shared(s) => self.shared.get(s).cloned().unwrap_or_default(),
                    Place::Param(_) | Place::Peer(..) | Place::All(..) => Loads::from([id]),
                };
                self.add(*out, loads);
            }
            OpKind::Memory(
                MemoryOp::Store { place: Place::Shared(s), value, .. }
                | MemoryOp::Scatter { place: Place::Shared(s), value, .. },
            ) => {
                // A number that has a bound where it is kept has one where it is read.
                let kept = self.unbounded(self.of(*value), id);
                self.shared.entry(*s).or_default().extend(kept);
            }
            OpKind::Matrix(MatrixOp::Dot(_) | MatrixOp::LoadMatrix(_) | MatrixOp::LoadRow(_)) => {
                kind.outs().into_iter().for_each(|out| self.add(out, Loads::from([id])));
            }
            OpKind::Matrix(
                MatrixOp::ReduceLines(ReduceLines { out, a, .. })
                | MatrixOp::Deinterleave(Deinterleave { out, a, .. }),
            ) => self.add(*out, self.of(*a)),
            OpKind::Control(ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value }) => {
                let mut loads = self.unbounded(self.of(*value), id);
                if self.counts(*value, *var) {
                    loads.extend(self.rounds(id));
                }
                self.vars.entry(*var).or_default().extend(loads);
            }
            OpKind::Control(ControlOp::VarGet { out, var }) => {
                let loads = self.vars.get(var).cloned().unwrap_or_default();
                self.add(*out, loads);
            }
            OpKind::Control(ControlOp::For { var, start, end, .. }) => {
                let loads = both(self.of(*start), self.of(*end));
                self.add(*var, self.unbounded(loads, id));
            }
            OpKind::Control(ControlOp::If { cond, results, .. }) => {
                for &(out, then, otherwise) in results {
                    let loads = self.chosen(*cond, then, otherwise);
                    self.add(out, loads);
                }
            }
            OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {}
        }
    }

    /// What a choice is computed from: each operand has the bounds that the condition gives it.
    fn chosen(&self, cond: ValueId, then: ValueId, otherwise: ValueId) -> Loads {
        let arm = |value: ValueId, holds: bool| -> Loads {
            let loads = self.of(value).into_iter();
            loads.filter(|&load| self.sides(cond, holds, load, None) != BOTH).collect()
        };
        both(arm(then, true), arm(otherwise, false))
    }

    fn value(&mut self, op: &ValueOp) {
        let (out, loads) = match *op {
            ValueOp::Binary { op, out, a, b } => {
                let (x, y) = (self.of(a), self.of(b));
                let loads = match op {
                    // The smaller one is the bound. A truth value is compared with nothing.
                    BinaryOp::Min | BinaryOp::And
                        if (x.is_empty() || y.is_empty()) && self.kernel.ty(out).dtype != Dtype::Bool =>
                    {
                        return;
                    }
                    BinaryOp::Rem => y,
                    BinaryOp::Div | BinaryOp::Shr => x,
                    any!(sums, extremes, bits) | BinaryOp::Shl => both(x, y),
                };
                (out, loads)
            }
            ValueOp::Unary { op, .. } if op.counts() => return,
            ValueOp::Select { out, cond, a, b } => (out, self.chosen(cond, a, b)),
            // A truth value is 0 or 1.
            ValueOp::Cast { a, .. } if self.kernel.ty(a).dtype == Dtype::Bool => return,
            ValueOp::Unary { out, a, .. }
            | ValueOp::Cast { out, a }
            | ValueOp::Bitcast { out, a }
            | ValueOp::Splat { out, a }
            | ValueOp::Reduce { out, a, .. }
            | ValueOp::Scan { out, a, .. } => (out, self.of(a)),
            ValueOp::Compare { out, a, b, .. } => (out, both(self.of(a), self.of(b))),
            ValueOp::Fma { out, a, b, c } => (out, both(both(self.of(a), self.of(b)), self.of(c))),
            any!(given) | ValueOp::Arange { .. } => return,
        };
        self.add(out, loads);
    }

    /// Whether what a variable is set to is computed from itself.
    fn counts(&self, value: ValueId, var: VarId) -> bool {
        let (mut open, mut seen) = (vec![value], BTreeSet::new());
        while let Some(v) = open.pop() {
            let Some(&by) = self.defs.get(&v).filter(|_| seen.insert(v)) else { continue };
            match &self.kernel.op(by).kind {
                OpKind::Control(ControlOp::VarGet { var: read, .. }) if *read == var => return true,
                kind @ OpKind::Value(_) => open.extend(kind.operands()),
                OpKind::Control(ControlOp::If { results, .. }) => {
                    open.extend(results.iter().filter(|r| r.0 == v).flat_map(|r| [r.1, r.2]));
                }
                OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {}
            }
        }
        false
    }

    /// The loads that say how often the loops around an operation go round.
    fn rounds(&self, at: OpId) -> Loads {
        let mut loads = Loads::new();
        for id in self.tree.enclosing(at) {
            match &self.kernel.op(id).kind {
                OpKind::Control(ControlOp::For { start, end, .. }) => {
                    loads.extend(self.unbounded(both(self.of(*start), self.of(*end)), id));
                }
                OpKind::Control(ControlOp::While { cond, .. }) => {
                    loads.extend(self.of(*cond));
                    loads.extend(self.leaves(id));
                }
                OpKind::Value(_)
                | OpKind::Memory(_)
                | OpKind::Matrix(_)
                | OpKind::Comm(_)
                | OpKind::Control(_) => {}
            }
        }
        loads
    }

    /// The loads that say when a loop is left from within.
    fn leaves(&self, of: OpId) -> Loads {
        let mut loads = Loads::new();
        for &id in self.tree.in_order() {
            if let OpKind::Control(ControlOp::Break { depth }) = self.kernel.op(id).kind
                && self.tree.target_loop(self.kernel, id, depth) == Some(of)
            {
                for around in self.tree.enclosing(id).take_while(|&around| around != of) {
                    if let OpKind::Control(ControlOp::If { cond, .. }) = self.kernel.op(around).kind {
                        loads.extend(self.of(cond));
                    }
                }
            }
        }
        loads
    }
}

fn both(mut all: Loads, more: Loads) -> Loads {
    all.extend(more);
    all
}
