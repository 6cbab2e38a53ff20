//! Constants and divisibility of all values, in one forward pass repeated until variables settle.

use super::super::*;
use super::{Tree, fold::fold};

/// Powers of two above this are of no use to anybody: it is the largest alignment of an address.
const MAX_SHIFT: u32 = 63;

/// What is known about values before a kernel runs.
#[derive(Debug)]
pub struct Facts {
    constants: Vec<Option<Const>>,
    /// How many low bits of the value (of every element, for a tile) are zero.
    zeros: Vec<u32>,
}

impl Facts {
    /// Derives them.
    pub fn of(kernel: &Kernel, tree: &Tree) -> Facts {
        let mut this =
            Facts { constants: vec![None; kernel.values.len()], zeros: vec![0; kernel.values.len()] };
        // A variable starts divisible by anything; every assignment takes away what it doesn't share. Assignments in a
        // loop follow reads in program order, so the pass repeats until nothing changes.
        let mut vars = vec![MAX_SHIFT; kernel.vars.len()];
        loop {
            let before = vars.clone();
            for &id in tree.in_order() {
                this.step(kernel, &kernel.op(id).kind, &mut vars);
            }
            if vars == before {
                return this;
            }
        }
    }

    /// The value's constant, also when arithmetic on constants gives it. Scalars of integer type and truth values only,
    /// apart from literals.
    pub fn constant(&self, v: ValueId) -> Option<Const> {
        self.constants[v.index()]
    }

    /// The value of an integer constant.
    pub fn int(&self, v: ValueId) -> Option<i128> {
        self.constant(v)?.as_int()
    }

    /// The largest power of two known to divide the value (every element of a tile), wrapping included. For zero it is
    /// 2^63.
    pub fn multiple_of(&self, v: ValueId) -> u64 {
        1 << self.zeros[v.index()]
    }

    fn step(&mut self, kernel: &Kernel, kind: &OpKind, vars: &mut [u32]) {
        match kind {
            OpKind::Control(op) => self.control(op, vars),
            OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => {
                for out in kind.outs() {
                    let ty = kernel.ty(out);
                    let constant = fold(kind, ty, &|v| self.constants[v.index()]);
                    self.constants[out.index()] = constant;
                    self.zeros[out.index()] = match constant.and_then(Const::as_int) {
                        Some(v) => v.trailing_zeros().min(MAX_SHIFT),
                        None if ty.dtype.is_int() => self.computed(kernel, kind),
                        None => 0,
                    };
                }
            }
        }
    }

    fn control(&mut self, op: &ControlOp, vars: &mut [u32]) {
        match op {
            ControlOp::VarDecl { var, init: value } | ControlOp::VarSet { var, value } => {
                vars[var.index()] = vars[var.index()].min(self.zero_bits(*value));
            }
            ControlOp::VarGet { out, var } => self.zeros[out.index()] = vars[var.index()],
            ControlOp::For { var, start, step, .. } => {
                self.zeros[var.index()] = self.zero_bits(*start).min(self.zero_bits(*step));
            }
            ControlOp::If { results, .. } => {
                for &(out, then, otherwise) in results {
                    self.zeros[out.index()] = self.zero_bits(then).min(self.zero_bits(otherwise));
                }
            }
            any!(exits) | ControlOp::While { .. } | ControlOp::Split { .. } => {}
        }
    }

    fn zero_bits(&self, v: ValueId) -> u32 {
        self.zeros[v.index()]
    }

    /// Zero low bits of an operation's integer result. Arithmetic wraps at a power of two, which keeps them.
    fn computed(&self, kernel: &Kernel, kind: &OpKind) -> u32 {
        let z = |v: &ValueId| self.zero_bits(*v);
        let OpKind::Value(op) = kind else { return 0 };
        match op {
            ValueOp::Binary { op, a, b, .. } => self.binary(*op, *a, *b),
            ValueOp::Unary { op, a, .. } if op.keeps_zeros() => z(a),
            ValueOp::Select { a, b, .. } => z(a).min(z(b)),
            ValueOp::Cast { a, .. } if kernel.ty(*a).dtype.is_int() => z(a),
            ValueOp::Splat { a, .. } | ValueOp::Reduce { a, .. } | ValueOp::Bitcast { a, .. } => z(a),
            ValueOp::Scan { a, exclusive: false, .. } => z(a),
            // An exclusive scan starts from the operation's identity, which only for these two is zero.
            ValueOp::Scan { a, op, exclusive: true, .. } => match op {
                ReduceOp::Sum | ReduceOp::Or => z(a),
                ReduceOp::Min | ReduceOp::Max | ReduceOp::And => 0,
            },
            any!(given)
            | ValueOp::Unary { .. }
            | ValueOp::Compare { .. }
            | ValueOp::Cast { .. }
            | ValueOp::Fma { .. }
            | ValueOp::Arange { .. } => 0,
        }
    }

    fn binary(&self, op: BinaryOp, a: ValueId, b: ValueId) -> u32 {
        let (x, y) = (self.zero_bits(a), self.zero_bits(b));
        let amount = self.int(b).and_then(|v| u32::try_from(v).ok());
        match op {
            BinaryOp::Add
            | BinaryOp::Sub
            | BinaryOp::Min
            | BinaryOp::Max
            | BinaryOp::Or
            | BinaryOp::Xor
            | BinaryOp::Rem => x.min(y),
            BinaryOp::Mul => (x + y).min(MAX_SHIFT),
            BinaryOp::And => x.max(y),
            BinaryOp::Shl => (x + amount.unwrap_or(0)).min(MAX_SHIFT),
            BinaryOp::Shr => x.saturating_sub(amount.unwrap_or(x)),
            BinaryOp::Div => match amount {
                Some(n) if n.is_power_of_two() => x.saturating_sub(n.trailing_zeros()),
                _ => 0,
            },
        }
    }
}
