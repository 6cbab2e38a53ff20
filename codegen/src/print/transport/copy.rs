//! Copies from this rank's memory to others': in bulk where the target can, else by lanes.

use crate::ir::{BulkCopy, CommOp, OpId, OpKind, PACKET_BYTES, ParamId, ParcelId, Target as To, ValueId};
use crate::print::emit::Emitter;
use crate::print::text::{Expr, Prim, PrintError};

impl Emitter<'_, '_> {
    /// A copy to a rank or to a set of ranks.
    pub fn copy(&mut self, id: OpId, op: &BulkCopy) -> Result<(), PrintError> {
        self.flush()?;
        let BulkCopy { parcel, buffer, index, source, from, len, room } = *op;
        let bytes = self.aligned(id, source, [index, from], len)?;
        let from = Expr::offset(&self.own(source), &self.scalar(from)?);
        self.w.gap();
        let (name, place) =
            (&self.f.p.kernel.params[source.index()].name, self.place(self.f.p.kernel.op(id).loc));
        let to = self.f.p.kernel.parcels[parcel.index()].target;
        if !self.f.target.copies_in_bulk() {
            self.w.comment(&format!("Copy {name} ({place})"));
            return self.copy_by_lanes(id, to, buffer, index, &from, bytes);
        }
        self.w.comment(&format!("Copy {name} in bulk, by way of shared memory ({place})"));
        self.used.add(Prim::Stage);
        let (group, room) = (self.group.name, self.shared[&room].clone());
        self.w.line(&format!("stage<{bytes}>({group}, {room}, {});", from.plain()));
        match to {
            To::Rank(rank) => {
                self.used.add(Prim::CopyBulk);
                let there = Expr::index(&self.arg(buffer), &self.scalar(rank)?);
                let to = Expr::offset(&there, &self.scalar(index)?);
                self.w.line(&format!("copy_bulk<{bytes}>({group}, {}, {room});", to.plain()));
            }
            To::Mask(set) => {
                self.used.add(Prim::CopyBulkRanks);
                let (index, set) = (self.scalar(index)?, self.scalar(set)?);
                self.w.line(&format!(
                    "copy_bulk_ranks<{bytes}>({group}, args, {}, {}, {}, {room});",
                    self.arg(buffer).text,
                    index.plain(),
                    set.plain()
                ));
            }
        }
        Ok(())
    }

    /// Waits for the copies of a parcel that is about to be signalled; if that is without data, for all that its group may have begun.
    pub fn await_copies(&mut self, id: OpId, parcel: ParcelId) {
        let p = &self.f.p;
        let (bare, role) = (p.kernel.parcels[parcel.index()].bare, p.position(id).role);
        let copies = |copy: &OpId| matches!(p.kernel.op(*copy).kind, OpKind::Comm(CommOp::BulkCopy(BulkCopy { parcel: of, .. })) if of == parcel || bare && p.position(*copy).role == role);
        if self.f.target.copies_in_bulk() && p.ops().iter().any(copies) {
            self.used.add(Prim::BulkDone);
            self.w.line("bulk_done();");
        }
    }

    fn copy_by_lanes(
        &mut self,
        id: OpId,
        to: To,
        buffer: ParamId,
        index: ValueId,
        from: &Expr,
        bytes: u32,
    ) -> Result<(), PrintError> {
        self.used.add(Prim::CopyVectors);
        let group = self.group.name;
        match to {
            To::Rank(rank) => {
                let there = Expr::index(&self.arg(buffer), &self.scalar(rank)?);
                let to = Expr::offset(&there, &self.scalar(index)?);
                self.w.line(&format!("copy_vectors<{bytes}>({group}, {}, {});", to.plain(), from.plain()));
                Ok(())
            }
            To::Mask(set) => {
                let loc = self.f.p.kernel.op(id).loc;
                self.for_each_rank(loc, set, buffer, None, |me, base| {
                    let to = Expr::offset(base, &me.scalar(index)?);
                    me.w.line(&format!("copy_vectors<{bytes}>({group}, {}, {});", to.plain(), from.plain()));
                    Ok(())
                })
            }
        }
    }

    /// The bytes of a copy, which begins and ends at multiples of 16 bytes.
    fn aligned(&self, id: OpId, source: ParamId, indices: [ValueId; 2], len: u32) -> Result<u32, PrintError> {
        let p = &self.f.p;
        let element = p.kernel.params[source.index()].element_bytes();
        let unit = PACKET_BYTES / element;
        let whole = len.is_multiple_of(unit) && indices.iter().all(|&i| p.divisor(i, unit) >= unit);
        match whole {
            true => Ok(len * element),
            false => Err(PrintError::CopyAlignment { loc: p.kernel.op(id).loc, len, unit }),
        }
    }
}
