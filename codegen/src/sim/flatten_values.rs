//! Operations that compute values from values.

use super::code::{AnyReg, Insn};
use super::flatten::Flattener;
use crate::ir::OpKind;

impl Flattener<'_> {
    pub(super) fn value(&mut self, kind: &OpKind) {
        let insn = match *kind {
            OpKind::Rank { out } => Insn::Rank { out: self.reg(out) },
            OpKind::ScalarParam { out, param } => Insn::ScalarParam { out: self.reg(out), param },
            OpKind::Epoch { out, word, advance } => Insn::Epoch { out: self.reg(out), word, advance },
            OpKind::GroupIndex { out } => Insn::GroupIndex { out: self.reg(out) },
            OpKind::Binary { out, op, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a), self.any(b)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a), AnyReg::Tile(b)) => {
                        Insn::BinaryTile { op, dtype, out, a, b }
                    }
                    _ => Insn::Binary { op, dtype, out: self.reg(out), a: self.reg(a), b: self.reg(b) },
                }
            }
            OpKind::Unary { out, op, a } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a)) => Insn::UnaryTile { op, dtype, out, a },
                    _ => Insn::Unary { op, dtype, out: self.reg(out), a: self.reg(a) },
                }
            }
            OpKind::Compare { out, op, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a), self.any(b)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a), AnyReg::Tile(b)) => {
                        Insn::CompareTile { op, dtype, out, a, b }
                    }
                    _ => Insn::Compare { op, dtype, out: self.reg(out), a: self.reg(a), b: self.reg(b) },
                }
            }
            OpKind::Select { out, cond, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                if self.kernel.ty(out).is_tile() {
                    let (out, cond, a, b) = (self.tile(out), self.tile(cond), self.tile(a), self.tile(b));
                    Insn::SelectTile { dtype, out, cond, a, b }
                } else {
                    Insn::Select { out: self.reg(out), cond: self.reg(cond), a: self.reg(a), b: self.reg(b) }
                }
            }
            OpKind::Cast { out, a } => {
                let (from, to) = (self.kernel.ty(a).dtype, self.kernel.ty(out).dtype);
                match (self.any(out), self.any(a)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a)) => Insn::CastTile { from, to, out, a },
                    _ => Insn::Cast { from, to, out: self.reg(out), a: self.reg(a) },
                }
            }
            OpKind::Fma { out, a, b, c } => {
                if self.kernel.ty(out).is_tile() {
                    let (out, a, b, c) = (self.tile(out), self.tile(a), self.tile(b), self.tile(c));
                    Insn::FmaTile { out, a, b, c }
                } else {
                    Insn::Fma { out: self.reg(out), a: self.reg(a), b: self.reg(b), c: self.reg(c) }
                }
            }
            OpKind::Bitcast { out, a } => {
                let (out, a) = (self.any(out), self.any(a));
                return self.copy(out, a);
            }
            OpKind::Splat { out, a } => {
                let ty = self.kernel.ty(out);
                let len = ty.len.unwrap_or(1);
                Insn::Splat { dtype: ty.dtype, len, out: self.tile(out), a: self.reg(a) }
            }
            OpKind::Arange { out } => {
                Insn::Arange { len: self.kernel.ty(out).len.unwrap_or(1), out: self.tile(out) }
            }
            OpKind::Reduce { out, op, a } => {
                Insn::Reduce { op, dtype: self.kernel.ty(a).dtype, out: self.reg(out), a: self.tile(a) }
            }
            OpKind::Scan { out, op, a, exclusive } => {
                let dtype = self.kernel.ty(a).dtype;
                Insn::Scan { op, dtype, exclusive, out: self.tile(out), a: self.tile(a) }
            }
            _ => unreachable!("called for values"),
        };
        self.emit(insn);
    }
}
