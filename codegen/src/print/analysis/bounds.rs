//! The largest value that each scalar can have: one pass over a kernel, as every value is defined before it is used.

use crate::ir::{
    BinaryOp, ControlOp, Dtype, Kernel, OpId, OpKind, ValueId, ValueOp,
    analysis::{Facts, Tree},
};

/// The largest value of each scalar of an unsigned type, by its number: the largest of its type where nothing is known. What may
/// wrap is not known.
pub(crate) fn largest(kernel: &Kernel, tree: &Tree, facts: &Facts) -> Vec<u128> {
    let limits = (0..kernel.values.len() as u32).map(|v| type_most(kernel, ValueId(v))).collect();
    let mut bounds = Bounds { kernel, tree, facts, most: limits };
    for &id in tree.in_order() {
        bounds.note(id);
    }
    bounds.most
}

struct Bounds<'a> {
    kernel: &'a Kernel,
    tree: &'a Tree,
    facts: &'a Facts,
    most: Vec<u128>,
}

impl Bounds<'_> {
    fn note(&mut self, id: OpId) {
        let kind = &self.kernel.op(id).kind;
        let (out, found) = match kind {
            OpKind::Value(op) => (kind.outs()[0], self.value(id, op)),
            // The counter of a loop is the one unsigned value that a control operation bounds.
            OpKind::Control(ControlOp::For { var, end, .. }) => (*var, Some(self.of(*end).saturating_sub(1))),
            OpKind::Control(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => return,
        };
        let known = self.facts.int(out).and_then(|c| u128::try_from(c).ok());
        if let Some(most) = known.or(found.filter(|_| is_unsigned(self.kernel, out))) {
            let slot = &mut self.most[out.index()];
            *slot = most.min(*slot);
        }
    }

    fn of(&self, v: ValueId) -> u128 {
        self.most[v.index()]
    }

    fn value(&self, id: OpId, op: &ValueOp) -> Option<u128> {
        match op {
            ValueOp::Rank { .. } => Some(u128::from(self.kernel.ranks) - 1),
            ValueOp::Node { .. } => Some(u128::from(self.kernel.nodes) - 1),
            ValueOp::GroupIndex { .. } => self.groups(id).checked_sub(1),
            ValueOp::Select { a, b, .. } => Some(self.of(*a).max(self.of(*b))),
            ValueOp::Cast { a, .. } if is_unsigned(self.kernel, *a) => Some(self.of(*a)),
            ValueOp::Binary { op, a, b, .. } => self.binary(*op, *a, *b),
            any!(casts, pointwise, spreads, reductions)
            | ValueOp::Const { .. }
            | ValueOp::Active { .. }
            | ValueOp::ScalarParam { .. }
            | ValueOp::Epoch { .. } => None,
        }
    }

    fn binary(&self, op: BinaryOp, a: ValueId, b: ValueId) -> Option<u128> {
        let (x, y) = (self.of(a), self.of(b));
        let constant = self.facts.int(b).and_then(|c| u128::try_from(c).ok()).filter(|c| *c > 0);
        match op {
            BinaryOp::Add => Some(x + y),
            BinaryOp::Mul => Some(x.saturating_mul(y)),
            BinaryOp::Rem => constant.map(|c| (c - 1).min(x)),
            BinaryOp::Div => Some(x / constant.unwrap_or(1)),
            BinaryOp::Min | BinaryOp::And => Some(x.min(y)),
            BinaryOp::Max => Some(x.max(y)),
            BinaryOp::Sub | BinaryOp::Or | BinaryOp::Xor | BinaryOp::Shl | BinaryOp::Shr => None,
        }
    }

    /// How many groups run an operation.
    fn groups(&self, id: OpId) -> u128 {
        let role = self.tree.position(id).and_then(|at| at.role);
        let blocks = role.map_or(1, |role| self.kernel.role_blocks(role));
        let warps = self.tree.enclosing(id).find_map(|op| {
            let kind = &self.kernel.op(op).kind;
            if let OpKind::Control(ControlOp::Split { warps, .. }) = kind { Some(*warps) } else { None }
        });
        u128::from(blocks) * u128::from(warps.map_or(1, |warps| self.kernel.block_warps / warps))
    }
}

/// The largest value of a scalar's type.
pub(crate) fn type_most(kernel: &Kernel, v: ValueId) -> u128 {
    match kernel.ty(v).dtype {
        Dtype::Bool => 1,
        Dtype::U64 => u64::MAX.into(),
        Dtype::I32 | Dtype::U32 | Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => u32::MAX.into(),
    }
}

/// Whether a value has no sign.
pub(crate) fn is_unsigned(kernel: &Kernel, v: ValueId) -> bool {
    matches!(kernel.ty(v).dtype, Dtype::Bool | Dtype::U32 | Dtype::U64)
}
