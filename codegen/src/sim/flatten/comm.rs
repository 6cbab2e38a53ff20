//! Operations that communicate.

use super::code::{Access, AnyReg, EpochOf, Insn, TargetReg};
use super::insns::{self, CommInsn, MemoryInsn};
use super::regions::Flattener;
use crate::ir::{self, CommOp, ParcelId, Place, Target};
use crate::sim::transport::Receive;

impl Flattener<'_> {
    pub(crate) fn communication(&mut self, op: &CommOp) {
        let insn = match *op {
            CommOp::BulkCopy(ref copy) => return self.bulk_copy(copy),
            CommOp::PutMatrix(ref put) => self.put_matrix(put),
            CommOp::Put(ir::Put { parcel, buffer, index, value, mask }) => CommInsn::Put(insns::Put {
                target: self.target(self.kernel.parcels[parcel.index()].target),
                buffer,
                dtype: self.kernel.ty(value).dtype,
                index: self.reg(index),
                value: self.any(value),
                mask: mask.map(|m| self.any(m)),
                epoch: self.parcel_epoch(parcel),
            }),
            CommOp::Signal(ir::Signal { parcel, flag, index, value, order }) => {
                CommInsn::Signal(insns::Signal {
                    target: self.target(self.kernel.parcels[parcel.index()].target),
                    flag,
                    index: self.reg(index),
                    value: self.reg(value),
                    order,
                })
            }
            CommOp::Wait(ir::Wait { receipt, flag, index, from, value }) => CommInsn::Wait(insns::Wait {
                receipt,
                flag,
                index: self.reg(index),
                from: self.reg(from),
                value: self.reg(value),
                epoch: self.facts.epoch_of.get(&value).copied(),
            }),
            CommOp::WaitAll(ir::WaitAll { receipt, flag, index, count, only, per_rank, value, or_later }) => {
                CommInsn::WaitAll(insns::WaitAll {
                    receipt,
                    flag,
                    index: self.reg(index),
                    count: self.reg(count),
                    only: only.map(|m| self.reg(m)),
                    per_rank,
                    value: self.reg(value),
                    or_later,
                    epoch: self.facts.epoch_of.get(&value).copied(),
                })
            }
            CommOp::BlockSignal(ir::BlockSignal { flag, index, value, order }) => {
                let (index, value) = (self.reg(index), self.reg(value));
                CommInsn::BlockSignal(insns::BlockSignal { flag, index, value, order })
            }
            CommOp::BlockWait(ir::BlockWait { flag, index, count, from, value, per_block }) => {
                CommInsn::BlockWait(insns::BlockWait {
                    flag,
                    index: self.reg(index),
                    count: self.reg(count),
                    from: self.reg(from),
                    value: self.reg(value),
                    per_block,
                })
            }
            CommOp::ReceiveMessages(ref receive) => CommInsn::Receive(Receive::of(self, receive)),
            any!(far) => match self.far(op) {
                Some(far) => CommInsn::Far(Box::new(far)),
                None => return,
            },
            CommOp::SendMessages(ir::SendMessages {
                transport,
                buffer,
                target,
                index,
                value,
                epoch,
                count,
            }) => CommInsn::SendMessages(insns::SendMessages {
                transport,
                target: self.target(target),
                buffer,
                index: self.reg(index),
                value: self.tile(value),
                epoch: epoch.map(|e| self.reg(e)),
                count: count.map(|n| self.reg(n)),
            }),
        };
        self.emit(Insn::Comm(insn));
    }

    /// A copy is a load and a put. That a lane has it done for all of them, and when, is the printer's to hide.
    fn bulk_copy(&mut self, op: &ir::BulkCopy) {
        let ir::BulkCopy { parcel, buffer, index, source, from, len, .. } = *op;
        let tile = self.new_tile();
        let dtype = self.kernel.params[source.index()].dtype;
        let from = Access { place: Place::Param(source), index: self.reg(from), dtype };
        self.emit(Insn::Memory(MemoryInsn::LoadTile { from, len, out: tile, receipt: None }));
        let put = insns::Put {
            target: self.target(self.kernel.parcels[parcel.index()].target),
            buffer,
            dtype,
            index: self.reg(index),
            value: AnyReg::Tile(tile),
            mask: None,
            epoch: self.parcel_epoch(parcel),
        };
        self.emit(Insn::Comm(CommInsn::Put(put)));
    }

    pub(crate) fn target(&mut self, target: Target) -> TargetReg {
        match target {
            Target::Rank(v) => TargetReg::Rank(self.reg(v)),
            Target::Mask(v) => TargetReg::Mask(self.reg(v)),
        }
    }

    /// A put comes before its signal, so the signal's value is known there only if it is of the prologue.
    pub(crate) fn parcel_epoch(&mut self, parcel: ParcelId) -> Option<EpochOf> {
        let (flag, value) = *self.facts.signalled.get(&parcel)?;
        let word = *self.facts.epoch_of.get(&value)?;
        self.facts.prologue.contains(&value).then(|| EpochOf { word, flag, value: self.reg(value) })
    }
}
