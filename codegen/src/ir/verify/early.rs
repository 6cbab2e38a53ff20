//! Kernels that begin early: an index from memory has a bound. A launch before that gave up may have left any number there.

use std::collections::{BTreeSet, HashMap};

use super::*;

/// The loads that a number is computed from, without a bound.
type Loads = BTreeSet<OpId>;

pub(super) fn check(report: &mut Report<'_>, tree: &Tree) {
    let kernel = report.kernel;
    if !kernel.begins_early {
        return;
    }
    let mut flow =
        Flow { kernel, tree, values: HashMap::new(), vars: HashMap::new(), shared: HashMap::new() };
    // Assignments in a loop follow reads in program order.
    loop {
        let before = flow.size();
        tree.in_order().iter().for_each(|&id| flow.step(id));
        if flow.size() == before {
            break;
        }
    }
    let compared = flow.compared();
    for &id in tree.in_order() {
        for index in indices(&kernel.op(id).kind) {
            let has_bound = |load: &OpId| {
                compared.get(load).is_some_and(|all| all.iter().any(|&by| tree.dominates(by, id)))
            };
            if let Some(&load) = flow.of(index).iter().find(|&load| !has_bound(load)) {
                let from = kernel.op(load).kind.accesses().first().map(|a| report.place_name(a.place));
                let (from, at) = (from.unwrap_or_default(), kernel.op(load).loc);
                let op = kernel.op(id);
                report.add(op.loc, Problem::EarlyIndex { op: op.kind.name(), from, at });
            }
        }
    }
}

/// The numbers that say which elements an operation accesses.
fn indices(kind: &OpKind) -> Vec<ValueId> {
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
    let accessed = kind.accesses().into_iter().filter_map(|a| a.index);
    accessed.chain(rows).chain(tiles).collect()
}

struct Flow<'k> {
    kernel: &'k Kernel,
    tree: &'k Tree,
    values: HashMap<ValueId, Loads>,
    vars: HashMap<VarId, Loads>,
    shared: HashMap<SharedId, Loads>,
}

impl Flow<'_> {
    fn size(&self) -> usize {
        let all = self.values.values().chain(self.vars.values()).chain(self.shared.values());
        all.map(Loads::len).sum()
    }

    fn of(&self, v: ValueId) -> Loads {
        self.values.get(&v).cloned().unwrap_or_default()
    }

    fn add(&mut self, v: ValueId, loads: Loads) {
        let ty = self.kernel.ty(v);
        if !loads.is_empty() && ty.dtype.is_int() {
            self.values.entry(v).or_default().extend(loads);
        }
    }

    fn step(&mut self, id: OpId) {
        match &self.kernel.op(id).kind {
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
                // A number that is compared before it is kept has a bound.
                let compared = self.compared();
                let bounded = |load: &OpId| {
                    compared.get(load).is_some_and(|all| all.iter().any(|&by| self.tree.dominates(by, id)))
                };
                let kept: Loads = self.of(*value).into_iter().filter(|load| !bounded(load)).collect();
                self.shared.entry(*s).or_default().extend(kept);
            }
            OpKind::Control(ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value }) => {
                let loads = self.of(*value);
                self.vars.entry(*var).or_default().extend(loads);
            }
            OpKind::Control(ControlOp::VarGet { out, var }) => {
                let loads = self.vars.get(var).cloned().unwrap_or_default();
                self.add(*out, loads);
            }
            OpKind::Control(ControlOp::For { var, start, end, .. }) => {
                let loads = both(self.of(*start), self.of(*end));
                self.add(*var, loads);
            }
            OpKind::Control(ControlOp::If { results, .. }) => {
                for &(out, then, otherwise) in results {
                    let loads = both(self.of(then), self.of(otherwise));
                    self.add(out, loads);
                }
            }
            OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {}
        }
    }

    fn value(&mut self, op: &ValueOp) {
        let (out, loads) = match *op {
            ValueOp::Binary { op, out, a, b } => {
                let (x, y) = (self.of(a), self.of(b));
                let loads = match op {
                    // The smaller one is the bound.
                    BinaryOp::Min | BinaryOp::And if x.is_empty() || y.is_empty() => return,
                    BinaryOp::Rem => y,
                    BinaryOp::Div | BinaryOp::Shr => x,
                    any!(sums, extremes, bits) | BinaryOp::Shl => both(x, y),
                };
                (out, loads)
            }
            ValueOp::Unary { op, .. } if op.counts() => return,
            ValueOp::Select { out, a, b, .. } => (out, both(self.of(a), self.of(b))),
            ValueOp::Unary { out, a, .. }
            | ValueOp::Cast { out, a }
            | ValueOp::Bitcast { out, a }
            | ValueOp::Splat { out, a }
            | ValueOp::Reduce { out, a, .. }
            | ValueOp::Scan { out, a, .. } => (out, self.of(a)),
            any!(given) | ValueOp::Compare { .. } | ValueOp::Fma { .. } | ValueOp::Arange { .. } => return,
        };
        self.add(out, loads);
    }

    /// The comparisons that look at what a load has read.
    fn compared(&self) -> HashMap<OpId, Vec<OpId>> {
        let mut compared: HashMap<OpId, Vec<OpId>> = HashMap::new();
        for &id in self.tree.in_order() {
            if let OpKind::Value(ValueOp::Compare { a, b, .. }) = self.kernel.op(id).kind {
                for load in both(self.of(a), self.of(b)) {
                    compared.entry(load).or_default().push(id);
                }
            }
        }
        compared
    }
}

fn both(mut all: Loads, more: Loads) -> Loads {
    all.extend(more);
    all
}
