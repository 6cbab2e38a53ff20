//! What conditions tell of numbers from memory, where an operation runs.

use super::*;

/// Ways in which a number has a bound.
pub(super) type Sides = u8;
const ABOVE: Sides = 1;
const BELOW: Sides = 2;
pub(super) const BOTH: Sides = ABOVE | BELOW;

/// A number, and how many elements there are, where it is an index as it stands.
#[derive(Clone, Copy)]
pub(super) struct Index {
    pub value: ValueId,
    pub len: u64,
}

impl Flow<'_> {
    /// Whether the conditions under which an operation runs bound what a load has read.
    pub(super) fn is_bounded(&self, load: OpId, at: OpId, index: Option<Index>) -> bool {
        let sides = self.conditions(at).into_iter();
        sides.fold(0, |sides, (cond, holds)| sides | self.sides(cond, holds, load, index)) == BOTH
    }

    /// The conditions under which an operation does something, each with whether it holds then.
    fn conditions(&self, at: OpId) -> Vec<(ValueId, bool)> {
        let mut all: Vec<(ValueId, bool)> =
            masks(&self.kernel.op(at).kind).into_iter().map(|mask| (mask, true)).collect();
        for op in std::iter::once(at).chain(self.tree.enclosing(at)) {
            let Some(position) = self.tree.position(op) else { continue };
            let siblings = match position.parent {
                Some((parent, region)) => {
                    let kind = &self.kernel.op(parent).kind;
                    all.extend(enclosing(kind, region));
                    kind.regions().get(region).copied()
                }
                None => position.role.map(|role| &self.kernel.roles[role].body),
            };
            let before = siblings.into_iter().flat_map(|region| &region.ops[..position.index]);
            all.extend(before.filter_map(|&id| self.went_past(id)));
        }
        all
    }

    /// What holds behind an `If` one of whose arms leaves a loop.
    fn went_past(&self, id: OpId) -> Option<(ValueId, bool)> {
        let OpKind::Control(ControlOp::If { cond, then, otherwise, .. }) = &self.kernel.op(id).kind else {
            return None;
        };
        let leaves = |region: &Region| {
            region.ops.last().is_some_and(|&last| {
                let kind = &self.kernel.op(last).kind;
                matches!(kind, OpKind::Control(ControlOp::Break { .. } | ControlOp::Continue { .. }))
            })
        };
        match (leaves(then), leaves(otherwise)) {
            (true, false) => Some((*cond, false)),
            (false, true) => Some((*cond, true)),
            (true, true) | (false, false) => None,
        }
    }

    /// Which sides of a load a condition bounds where it holds, or where it does not.
    pub(super) fn sides(&self, cond: ValueId, holds: bool, load: OpId, index: Option<Index>) -> Sides {
        let sides = |cond, holds| self.sides(cond, holds, load, index);
        let Some(&by) = self.defs.get(&cond) else { return 0 };
        match &self.kernel.op(by).kind {
            OpKind::Value(ValueOp::Compare { op, a, b, .. }) => {
                self.compared(*op, (*a, *b), holds, load, index)
            }
            OpKind::Value(ValueOp::Unary { op: UnaryOp::Not, a, .. }) => sides(*a, !holds),
            OpKind::Value(ValueOp::Splat { a, .. }) => sides(*a, holds),
            OpKind::Value(ValueOp::Binary { op: BinaryOp::And, a, b, .. }) if holds => {
                sides(*a, true) | sides(*b, true)
            }
            OpKind::Value(ValueOp::Binary { op: BinaryOp::Or, a, b, .. }) if !holds => {
                sides(*a, false) | sides(*b, false)
            }
            OpKind::Value(ValueOp::Binary { op: BinaryOp::And | BinaryOp::Or, a, b, .. }) => {
                sides(*a, holds) & sides(*b, holds)
            }
            // One of both arms gave the truth value; one that cannot have tells nothing.
            OpKind::Control(ControlOp::If { cond: which, results, .. }) => {
                let arms = results.iter().filter(|r| r.0 == cond).flat_map(|r| [(true, r.1), (false, r.2)]);
                let may =
                    |&(_, value): &(bool, ValueId)| self.truth(value).is_none_or(|truth| truth == holds);
                arms.filter(may)
                    .fold(BOTH, |all, (arm, value)| all & (sides(*which, arm) | sides(value, holds)))
            }
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => 0,
        }
    }

    fn compared(
        &self,
        op: CompareOp,
        (a, b): (ValueId, ValueId),
        holds: bool,
        load: OpId,
        index: Option<Index>,
    ) -> Sides {
        let (x, y) = (self.of(a), self.of(b));
        // The other operand is a bound if it has one itself.
        let (number, bound, op) = match (x.contains(&load) && y.is_empty(), y.contains(&load) && x.is_empty())
        {
            (true, _) => (a, b, op),
            (_, true) => (b, a, turned(op)),
            (false, false) => return 0,
        };
        let op = if holds { op } else { opposite(op) };
        let most = match op {
            CompareOp::Lt => 0,
            CompareOp::Le | CompareOp::Eq => 1,
            CompareOp::Gt | CompareOp::Ge => return if self.is_signed(number) { BELOW } else { 0 },
            CompareOp::Ne => return 0,
        };
        if index.is_some_and(|index| {
            let most = self.int(bound).map(|n| n + most);
            self.same(number) == self.same(index.value) && most.is_some_and(|most| most > index.len.into())
        }) {
            return 0;
        }
        if op == CompareOp::Eq || !self.is_signed(number) { BOTH } else { ABOVE }
    }

    /// What an index is computed from, if it is cut to more elements than there are.
    pub(super) fn cut_beyond(&self, index: Index) -> Option<Loads> {
        let by = self.defs.get(&self.same(index.value))?;
        let OpKind::Value(ValueOp::Binary { op, a, b, .. }) = &self.kernel.op(*by).kind else { return None };
        let most = match op {
            BinaryOp::Min | BinaryOp::And => 1,
            BinaryOp::Rem => 0,
            any!(sums, shifts) | BinaryOp::Div | BinaryOp::Max | BinaryOp::Or | BinaryOp::Xor => return None,
        };
        let cut = |number: ValueId, by: ValueId| {
            let beyond = self.int(by)? + most > index.len.into();
            Some(self.of(number)).filter(|loads| beyond && !loads.is_empty())
        };
        cut(*a, *b).or_else(|| cut(*b, *a).filter(|_| *op != BinaryOp::Rem))
    }

    /// A float below zero becomes the index 0.
    fn is_signed(&self, v: ValueId) -> bool {
        self.kernel.ty(v).dtype == Dtype::I32
    }

    fn truth(&self, v: ValueId) -> Option<bool> {
        match self.facts.constant(v)? {
            Const::Bool(truth) => Some(truth),
            Const::I32(_) | Const::U32(_) | Const::U64(_) | Const::F32(_) => None,
        }
    }

    /// A constant, or what all elements of a tile are.
    fn int(&self, v: ValueId) -> Option<i128> {
        self.facts.int(v).or_else(|| self.facts.int(self.same(v)))
    }

    /// What a value is a copy of.
    fn same(&self, v: ValueId) -> ValueId {
        if let Some(&by) = self.defs.get(&v)
            && let OpKind::Value(ValueOp::Cast { a, .. } | ValueOp::Splat { a, .. }) = self.kernel.op(by).kind
        {
            return self.same(a);
        }
        v
    }
}

/// What holds in a region of an operation.
fn enclosing(kind: &OpKind, region: usize) -> Option<(ValueId, bool)> {
    match kind {
        OpKind::Control(ControlOp::If { cond, .. }) => Some((*cond, region == 0)),
        OpKind::Control(ControlOp::While { cond, .. }) => (region == 1).then_some((*cond, true)),
        OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {
            None
        }
    }
}

/// The masks of an operation: it does nothing where one does not hold.
fn masks(kind: &OpKind) -> Option<ValueId> {
    match *kind {
        OpKind::Memory(
            MemoryOp::LoadMasked { mask, .. } | MemoryOp::Gather { mask, .. } | MemoryOp::Tally { mask, .. },
        ) => Some(mask),
        OpKind::Comm(CommOp::ReceiveMessages(ReceiveMessages { transport, mask, .. }))
            if !transport.traits().takes =>
        {
            Some(mask)
        }
        OpKind::Memory(MemoryOp::Store { mask, .. } | MemoryOp::Scatter { mask, .. })
        | OpKind::Comm(CommOp::Put(Put { mask, .. })) => mask,
        OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Control(_) => {
            None
        }
    }
}

/// The comparison of exchanged operands.
fn turned(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Gt,
        CompareOp::Le => CompareOp::Ge,
        CompareOp::Gt => CompareOp::Lt,
        CompareOp::Ge => CompareOp::Le,
        CompareOp::Eq | CompareOp::Ne => op,
    }
}

/// The comparison that holds where this one does not.
fn opposite(op: CompareOp) -> CompareOp {
    match op {
        CompareOp::Lt => CompareOp::Ge,
        CompareOp::Le => CompareOp::Gt,
        CompareOp::Gt => CompareOp::Le,
        CompareOp::Ge => CompareOp::Lt,
        CompareOp::Eq => CompareOp::Ne,
        CompareOp::Ne => CompareOp::Eq,
    }
}
