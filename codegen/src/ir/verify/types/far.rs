//! Types of operations of far channels, and what else is done to their parameters.

use super::*;

impl Check<'_, '_> {
    pub(super) fn far(&mut self, op: &CommOp) {
        match op {
            CommOp::FarPut(FarPut { peer, outbox, from, inbox, index, len, counts, counter, .. }) => {
                self.far_part(*outbox, FarPart::Outbox);
                self.far_part(*inbox, FarPart::Inbox);
                self.far_counter(*peer, *counts, *counter);
                self.scalar_index(*from);
                self.scalar_index(*index);
                self.far_message(*outbox, *inbox, *len);
            }
            CommOp::FarPublish(FarPublish { peer, counts, counter, adds, .. }) => {
                self.far_counter(*peer, *counts, *counter);
                self.operand("number of puts", *adds, U32);
            }
            CommOp::FarWait(FarWait { counts, counter, count, from, value, .. }) => {
                self.far_counter(None, *counts, *counter);
                self.operand("count", *count, U32);
                self.operand("source rank", *from, U32);
                self.operand("number of puts", *value, U32);
            }
            CommOp::FarSettle(FarSettle { outbox }) => self.far_part(*outbox, FarPart::Outbox),
            any!(puts, signals, waits, messages) => {}
        }
    }

    fn far_part(&mut self, param: ParamId, part: FarPart) {
        self.param(param, ParamKind::Far(part), ParamKind::Far(part).noun());
    }

    fn far_counter(&mut self, peer: Option<ValueId>, counts: ParamId, counter: ValueId) {
        peer.iter().for_each(|rank| self.operand("target rank", *rank, U32));
        self.far_part(counts, FarPart::Counts);
        self.scalar_index(counter);
    }

    fn far_message(&mut self, outbox: ParamId, inbox: ParamId, len: u32) {
        let (source, sink) = (self.report.param(outbox), self.report.param(inbox));
        let (outbox, inbox) = (source.name.clone(), sink.name.clone());
        if source.dtype != sink.dtype {
            let (from, to) = (source.dtype, sink.dtype);
            return self.add(Problem::FarDtype { outbox, from, inbox, to });
        }
        if len == 0 {
            return self.add(Problem::FarEmpty { outbox, inbox });
        }
        let bytes = u64::from(len) * u64::from(source.element_bytes());
        if bytes > FAR_LONGEST {
            self.add(Problem::FarLong { outbox, inbox, bytes, limit: FAR_LONGEST });
        }
    }

    /// An operation that reaches the ranks of one machine only.
    pub(super) fn near_on_far(&mut self, param: ParamId) {
        let p = self.report.param(param);
        if let Some(part) = p.kind.far() {
            self.add(Problem::NearOnFar { op: self.name, param: p.name.clone(), kind: p.kind, part });
        }
    }
}
