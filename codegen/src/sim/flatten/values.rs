//! Operations that compute values from values, and those that access memory.

use super::code::{AnyReg, Insn};
use super::insns::{AllLoad, Gather, MemoryInsn, PeerForm, PeerLoad, Scatter, TileInsn};
use super::regions::Flattener;
use crate::ir::{MemoryOp, ParamId, Place, ReceiptId, Type, ValueId, ValueOp};

impl Flattener<'_> {
    pub(crate) fn value(&mut self, op: &ValueOp) {
        let insn = match *op {
            ValueOp::Const { out, value } => return self.preset(out, value),
            ValueOp::Rank { out } => Insn::Rank { out: self.reg(out) },
            ValueOp::Node { out } => Insn::Node { out: self.reg(out) },
            ValueOp::Active { out } => Insn::Active { out: self.reg(out) },
            ValueOp::ScalarParam { out, param } => Insn::ScalarParam { out: self.reg(out), param },
            ValueOp::Epoch { out, word, advance } => Insn::Epoch { out: self.reg(out), word, advance },
            ValueOp::GroupIndex { out } => Insn::GroupIndex { out: self.reg(out), team: self.team },
            ValueOp::Binary { out, op, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a), self.any(b)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a), AnyReg::Tile(b)) => {
                        Insn::Tile(TileInsn::Binary { op, dtype, out, a, b })
                    }
                    _ => Insn::Binary { op, dtype, out: self.reg(out), a: self.reg(a), b: self.reg(b) },
                }
            }
            ValueOp::Unary { out, op, a } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a)) => Insn::Tile(TileInsn::Unary { op, dtype, out, a }),
                    _ => Insn::Unary { op, dtype, out: self.reg(out), a: self.reg(a) },
                }
            }
            ValueOp::Compare { out, op, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                match (self.any(out), self.any(a), self.any(b)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a), AnyReg::Tile(b)) => {
                        Insn::Tile(TileInsn::Compare { op, dtype, out, a, b })
                    }
                    _ => Insn::Compare { op, dtype, out: self.reg(out), a: self.reg(a), b: self.reg(b) },
                }
            }
            ValueOp::Select { out, cond, a, b } => {
                let dtype = self.kernel.ty(a).dtype;
                if self.kernel.ty(out).is_tile() {
                    let (out, cond, a, b) = (self.tile(out), self.tile(cond), self.tile(a), self.tile(b));
                    Insn::Tile(TileInsn::Select { dtype, out, cond, a, b })
                } else {
                    Insn::Select { out: self.reg(out), cond: self.reg(cond), a: self.reg(a), b: self.reg(b) }
                }
            }
            ValueOp::Cast { out, a } => {
                let (from, to) = (self.kernel.ty(a).dtype, self.kernel.ty(out).dtype);
                match (self.any(out), self.any(a)) {
                    (AnyReg::Tile(out), AnyReg::Tile(a)) => Insn::Tile(TileInsn::Cast { from, to, out, a }),
                    _ => Insn::Cast { from, to, out: self.reg(out), a: self.reg(a) },
                }
            }
            ValueOp::Fma { out, a, b, c } => {
                if self.kernel.ty(out).is_tile() {
                    let (out, a, b, c) = (self.tile(out), self.tile(a), self.tile(b), self.tile(c));
                    Insn::Tile(TileInsn::Fma { out, a, b, c })
                } else {
                    Insn::Fma { out: self.reg(out), a: self.reg(a), b: self.reg(b), c: self.reg(c) }
                }
            }
            ValueOp::Bitcast { out, a } => {
                let (out, a) = (self.any(out), self.any(a));
                return self.copy(out, a);
            }
            ValueOp::Splat { out, a } => {
                let ty = self.kernel.ty(out);
                let len = ty.len.unwrap_or(1);
                Insn::Tile(TileInsn::Splat { dtype: ty.dtype, len, out: self.tile(out), a: self.reg(a) })
            }
            ValueOp::Arange { out } => Insn::Tile(TileInsn::Arange {
                len: self.kernel.ty(out).len.unwrap_or(1),
                out: self.tile(out),
            }),
            ValueOp::Reduce { out, op, a } => Insn::Tile(TileInsn::Reduce {
                op,
                dtype: self.kernel.ty(a).dtype,
                out: self.reg(out),
                a: self.tile(a),
            }),
            ValueOp::Scan { out, op, a, exclusive } => {
                let dtype = self.kernel.ty(a).dtype;
                Insn::Tile(TileInsn::Scan { op, dtype, exclusive, out: self.tile(out), a: self.tile(a) })
            }
        };
        self.emit(insn);
    }

    pub(crate) fn memory(&mut self, op: &MemoryOp) {
        let insn = match *op {
            MemoryOp::Load { out, place: Place::Peer(window, rank), index, receipt } => {
                let index = self.reg(index);
                let form = match (self.any(out), self.kernel.ty(out).len) {
                    (AnyReg::Tile(out), Some(len)) => PeerForm::Tile { out, index, len },
                    _ => PeerForm::One { out: self.reg(out), index },
                };
                self.peer((window, rank), out, form, receipt)
            }
            MemoryOp::LoadMasked { out, place: Place::Peer(window, rank), index, mask, other, receipt } => {
                let (mask, other) = (self.tile(mask), self.tile(other));
                let form = PeerForm::Masked { out: self.tile(out), index: self.reg(index), mask, other };
                self.peer((window, rank), out, form, receipt)
            }
            MemoryOp::Gather { out, place: Place::Peer(window, rank), index, mask, other, receipt } => {
                let (mask, other) = (self.tile(mask), self.tile(other));
                let form = PeerForm::Gather { out: self.tile(out), index: self.tile(index), mask, other };
                self.peer((window, rank), out, form, receipt)
            }
            MemoryOp::Load { out, place: Place::All(window, op), index, receipt } => {
                let Type { dtype, len, .. } = self.kernel.ty(out);
                let (out, index, len) = (self.tile(out), self.reg(index), len.unwrap_or(1));
                MemoryInsn::All(AllLoad { window, op, dtype, out, index, len, receipt })
            }
            MemoryOp::Load { out, place, index, receipt } => {
                let from = self.access(place, index, out);
                match (self.any(out), self.kernel.ty(out).len) {
                    (AnyReg::Tile(out), Some(len)) => MemoryInsn::LoadTile { from, len, out, receipt },
                    _ => MemoryInsn::Load { from, out: self.reg(out), receipt },
                }
            }
            MemoryOp::LoadMasked { out, place, index, mask, other, receipt } => MemoryInsn::LoadMasked {
                from: self.access(place, index, out),
                out: self.tile(out),
                mask: self.tile(mask),
                other: self.tile(other),
                receipt,
            },
            MemoryOp::Gather { out, place, index, mask, other, receipt } => MemoryInsn::Gather(Gather {
                place,
                dtype: self.kernel.ty(out).dtype,
                out: self.tile(out),
                index: self.tile(index),
                mask: self.tile(mask),
                other: self.tile(other),
                receipt,
            }),
            MemoryOp::Store { place, index, value, mask } => MemoryInsn::Store {
                to: self.access(place, index, value),
                value: self.any(value),
                mask: mask.map(|m| self.any(m)),
            },
            MemoryOp::Scatter { place, index, value, mask, adds } => MemoryInsn::Scatter(Scatter {
                place,
                dtype: self.kernel.ty(value).dtype,
                index: self.tile(index),
                value: self.tile(value),
                mask: mask.map(|m| self.tile(m)),
                adds,
            }),
            MemoryOp::Tally { out, place, index, mask } => MemoryInsn::Tally {
                place,
                out: self.tile(out),
                index: self.tile(index),
                mask: self.tile(mask),
            },
            MemoryOp::Ticket { out, counter, index, count, order } => MemoryInsn::Ticket {
                counter,
                out: self.reg(out),
                index: self.reg(index),
                count: self.reg(count),
                order,
            },
            MemoryOp::Atomic { out, op, place, index, value } => MemoryInsn::Atomic {
                op,
                on: self.access(place, index, value),
                out: self.reg(out),
                value: self.reg(value),
            },
        };
        self.emit(Insn::Memory(insn));
    }
    /// A load from a rank's window.
    fn peer(
        &mut self,
        (window, rank): (ParamId, ValueId),
        out: ValueId,
        form: PeerForm,
        receipt: Option<ReceiptId>,
    ) -> MemoryInsn {
        let dtype = self.kernel.ty(out).dtype;
        MemoryInsn::Peer(PeerLoad { window, rank: self.reg(rank), dtype, form, receipt })
    }
}
