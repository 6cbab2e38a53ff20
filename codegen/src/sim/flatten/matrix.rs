//! Operations on matrices to instructions.

use super::code::{Access, Insn};
use super::insns::{self, CommInsn, MatrixInsn, RowsReg};
use super::regions::Flattener;
use crate::ir::{
    Deinterleave, Dot, LoadMatrix, LoadRow, MatrixOp, PutMatrix, ReduceLines, Rows, StoreMatrix, ValueId,
};

impl Flattener<'_> {
    pub(crate) fn matrix(&mut self, op: &MatrixOp) {
        let insn = match *op {
            MatrixOp::Dot(ref dot) => self.dot(dot),
            MatrixOp::LoadMatrix(LoadMatrix { out, ref at, column }) => {
                let (shape, at, column) = (self.shape(out), self.rows(at), self.reg(column));
                MatrixInsn::Load { at, column, shape, out: self.tile(out) }
            }
            MatrixOp::LoadRow(LoadRow { out, lines, place, index, receipt, list }) => {
                let from = Access { place, index: self.reg(index), dtype: self.kernel.ty(out).dtype };
                let list = list.map(|list| (list.param, self.reg(list.first)));
                MatrixInsn::Row { from, lines, shape: self.shape(out), out: self.tile(out), receipt, list }
            }
            MatrixOp::ReduceLines(ReduceLines { out, op, lines, a }) => {
                MatrixInsn::Lines { op, lines, shape: self.shape(a), out: self.tile(out), a: self.tile(a) }
            }
            MatrixOp::Deinterleave(Deinterleave { out, a, odd }) => {
                let columns = self.shape(a).1;
                MatrixInsn::Deinterleave { columns, odd, out: self.tile(out), a: self.tile(a) }
            }
            MatrixOp::StoreMatrix(StoreMatrix { ref to, column, value }) => {
                let (shape, to, column) = (self.shape(value), self.rows(to), self.reg(column));
                MatrixInsn::Store { to, column, shape, value: self.tile(value) }
            }
        };
        self.emit(Insn::Matrix(insn));
    }

    pub(crate) fn put_matrix(&mut self, put: &PutMatrix) -> CommInsn {
        let PutMatrix { parcel, to, column, value } = put;
        CommInsn::PutMatrix(Box::new(insns::PutMatrix {
            target: self.target(self.kernel.parcels[parcel.index()].target),
            to: self.rows(to),
            column: self.reg(*column),
            shape: self.shape(*value),
            value: self.tile(*value),
            epoch: self.parcel_epoch(*parcel),
        }))
    }

    fn dot(&mut self, Dot { out, acc, a, b, from, count, stages, room, paired }: &Dot) -> MatrixInsn {
        let of = a.place.param().expect("the verifier lets rows be of parameters");
        MatrixInsn::Dot(Box::new(insns::Dot {
            dtype: self.kernel.params[of.index()].dtype,
            acc: acc.map(|acc| self.tile(acc)),
            a: self.rows(a),
            b: self.rows(b),
            from: self.reg(*from),
            count: self.reg(*count),
            shape: self.shape(*out),
            stages: *stages,
            room: *room,
            paired: *paired,
            out: self.tile(*out),
        }))
    }

    fn rows(&mut self, rows: &Rows) -> RowsReg {
        let (row, end) = (self.reg(rows.row), rows.end.map(|end| self.reg(end)));
        let rank = rows.place.rank().map(|rank| self.reg(rank));
        RowsReg {
            place: rows.place,
            rank,
            row,
            end,
            loose: rows.loose,
            receipt: rows.receipt,
            list: rows.list,
            scales: rows.scales,
        }
    }

    fn shape(&self, matrix: ValueId) -> (u32, u32) {
        self.kernel.ty(matrix).shape().expect("the verifier tells matrices from vectors")
    }
}
