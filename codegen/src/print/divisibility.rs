//! How many low bits of each integer are known to be zero: what decides how wide a memory access may be.

use crate::ir::{BinaryOp, Const, Kernel, OpKind, ValueId};

/// More zero bits than any access needs; what zero itself has.
const ALL: u32 = 32;

/// Known trailing zero bits of every value.
#[derive(Debug)]
pub(super) struct Divisibility {
    zeros: Vec<u32>,
}

impl Divisibility {
    /// Analyses a kernel. Starts from "divisible by everything" and weakens until nothing changes, so that a variable
    /// that is only ever advanced by a multiple keeps that multiple around a loop.
    pub fn new(kernel: &Kernel) -> Divisibility {
        let mut d = Divisibility { zeros: vec![ALL; kernel.values.len()] };
        let mut vars = vec![ALL; kernel.vars.len()];
        loop {
            let before = (d.zeros.clone(), vars.clone());
            for op in &kernel.ops {
                d.transfer(kernel, &op.kind, &mut vars);
            }
            if before == (d.zeros.clone(), vars.clone()) {
                return d;
            }
        }
    }

    /// The largest power of two that is known to divide `v`, at most `limit` (a power of two).
    pub fn divisor(&self, v: ValueId, limit: u32) -> u32 {
        (1u32 << self.zeros[v.index()].min(31)).min(limit)
    }

    fn of(&self, v: ValueId) -> u32 {
        self.zeros[v.index()]
    }

    fn lower(&mut self, v: ValueId, to: u32) {
        let slot = &mut self.zeros[v.index()];
        *slot = (*slot).min(to);
    }

    fn transfer(&mut self, kernel: &Kernel, kind: &OpKind, vars: &mut [u32]) {
        match *kind {
            OpKind::Const { out, value } => {
                let zeros = match value {
                    Const::I32(0) | Const::U32(0) | Const::U64(0) => ALL,
                    Const::I32(v) => v.trailing_zeros(),
                    Const::U32(v) => v.trailing_zeros(),
                    Const::U64(v) => v.trailing_zeros().min(ALL),
                    Const::Bool(_) | Const::F32(_) => 0,
                };
                self.lower(out, zeros);
            }
            OpKind::Binary { out, op, a, b } => {
                let zeros = self.binary(kernel, op, a, b);
                self.lower(out, zeros);
            }
            OpKind::Select { out, a, b, .. } => self.lower(out, self.of(a).min(self.of(b))),
            OpKind::Cast { out, a } => {
                // Integers wrap or extend: neither touches low bits.
                let ints = kernel.ty(a).dtype.is_int() && kernel.ty(out).dtype.is_int();
                self.lower(out, if ints { self.of(a) } else { 0 });
            }
            OpKind::For { var, start, step, .. } => self.lower(var, self.of(start).min(self.of(step))),
            OpKind::If { ref results, .. } => {
                for &(out, a, b) in results {
                    self.lower(out, self.of(a).min(self.of(b)));
                }
            }
            OpKind::VarDecl { var, init: value } | OpKind::VarSet { var, value } => {
                vars[var.index()] = vars[var.index()].min(self.of(value));
            }
            OpKind::VarGet { out, var } => self.lower(out, vars[var.index()]),
            OpKind::Rank { .. }
            | OpKind::ScalarParam { .. }
            | OpKind::Epoch { .. }
            | OpKind::GroupIndex { .. }
            | OpKind::Unary { .. }
            | OpKind::Compare { .. }
            | OpKind::Fma { .. }
            | OpKind::Bitcast { .. }
            | OpKind::Splat { .. }
            | OpKind::Arange { .. }
            | OpKind::Reduce { .. }
            | OpKind::Scan { .. }
            | OpKind::Load { .. }
            | OpKind::LoadMasked { .. }
            | OpKind::Gather { .. }
            | OpKind::Store { .. }
            | OpKind::Scatter { .. }
            | OpKind::Atomic { .. }
            | OpKind::Put { .. }
            | OpKind::Signal { .. }
            | OpKind::Wait { .. }
            | OpKind::WaitAll { .. }
            | OpKind::While { .. }
            | OpKind::Break { .. }
            | OpKind::Continue { .. }
            | OpKind::Split { .. } => {
                for out in kind.outs() {
                    self.lower(out, 0);
                }
            }
        }
    }

    fn binary(&self, kernel: &Kernel, op: BinaryOp, a: ValueId, b: ValueId) -> u32 {
        if !kernel.ty(a).dtype.is_int() {
            return 0;
        }
        let (x, y) = (self.of(a), self.of(b));
        match op {
            BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max => x.min(y),
            BinaryOp::Mul => (x + y).min(ALL),
            BinaryOp::And => x.max(y),
            BinaryOp::Or | BinaryOp::Xor => x.min(y),
            // The remainder differs from `a` by a multiple of `b`.
            BinaryOp::Rem => x.min(y),
            BinaryOp::Shl => match constant(kernel, b) {
                Some(by) => (x + by).min(ALL),
                None => x,
            },
            BinaryOp::Shr => match constant(kernel, b) {
                Some(by) => x.saturating_sub(by),
                None => 0,
            },
            BinaryOp::Div => 0,
        }
    }
}

/// The value of a small integer constant.
fn constant(kernel: &Kernel, v: ValueId) -> Option<u32> {
    kernel.ops.iter().find_map(|op| match op.kind {
        OpKind::Const { out, value } if out == v => match value {
            Const::U32(v) => Some(v),
            Const::I32(v) => u32::try_from(v).ok(),
            Const::U64(v) => u32::try_from(v).ok(),
            Const::Bool(_) | Const::F32(_) => None,
        },
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::{Builder, Dtype, Loc, Type};

    const U32: Type = Type::scalar(Dtype::U32);

    #[test]
    fn multiples_survive_arithmetic_loops_and_variables() {
        let loc = Loc::caller();
        let mut b = Builder::new("k", 2, 32, 4, loc);
        let c = |b: &mut Builder, v| b.constant(Const::U32(v), loc);
        let (zero, four, twelve, row) = (c(&mut b, 0), c(&mut b, 4), c(&mut b, 12), c(&mut b, 2880));
        let index = b.emit(U32, loc, |out| OpKind::GroupIndex { out });
        let bin = |b: &mut Builder, op, x, y| b.emit(U32, loc, |out| OpKind::Binary { out, op, a: x, b: y });
        let start = bin(&mut b, BinaryOp::Mul, index, row);
        let at = bin(&mut b, BinaryOp::Add, start, twelve);
        let var = b.var(U32, loc);
        b.push(OpKind::VarDecl { var, init: zero }, loc);
        b.begin();
        let counter = b.kernel.add_value(U32, None);
        let now = b.emit(U32, loc, |out| OpKind::VarGet { out, var });
        let next = bin(&mut b, BinaryOp::Add, now, twelve);
        b.push(OpKind::VarSet { var, value: next }, loc);
        let shifted = bin(&mut b, BinaryOp::Shl, index, four);
        let quotient = bin(&mut b, BinaryOp::Div, start, four);
        let body = b.end();
        b.push(OpKind::For { var: counter, start: zero, end: row, step: four, body }, loc);
        let k = b.finish();
        let d = Divisibility::new(&k);
        let zeros = |v: ValueId| d.of(v);
        assert_eq!([index, start, at, now, counter].map(zeros), [0, 6, 2, 2, 2]);
        assert_eq!([shifted, quotient].map(zeros), [4, 0]);
        assert_eq!((d.divisor(at, 16), d.divisor(start, 16), d.divisor(zero, 16)), (4, 16, 16));
    }
}
