//! Stores to all ranks' memory at once, which the switch between the GPUs multiplies, and the fences that such accesses need.

use crate::ir::{MemoryOp, Op, OpId, OpKind, ParamId, Place, ReceiptId, ValueId};
use crate::print::emit::{Emitter, Step};
use crate::print::text::{Prim, PrintError};

impl Emitter<'_, '_> {
    /// The proxy fence behind an operation that needs one.
    pub fn fence_store(&mut self, id: OpId) -> Result<(), PrintError> {
        if self.f.fenced.contains(&id) {
            self.flush()?;
            self.used.add(Prim::MultimemFence);
            self.w.line_with("multimem_fence();", "before it is read by the pointer of all ranks");
        }
        Ok(())
    }

    /// A tile that is stored to all ranks at once.
    pub fn multicast(
        &mut self,
        id: OpId,
        buffer: ParamId,
        index: ValueId,
        value: ValueId,
    ) -> Result<(), PrintError> {
        self.used.add(Prim::MultimemStore);
        let (loc, layout) = (self.f.p.kernel.op(id).loc, self.f.layouts.of(value));
        let base = self.all_ranks(buffer);
        self.step_loop(Step::new(layout), true, loc, |me, step| {
            let address = me.address(&base, index, step)?;
            let value = me.vector(value, step)?;
            me.w.line(&format!("multimem_store({address}, bits_as<Vec<u32, 4>>({value}));"));
            Ok(())
        })?;
        self.used.add(Prim::MultimemFence);
        self.w.line_with("multimem_fence();", "before others read it by the pointers of the ranks");
        Ok(())
    }

    /// After a wait whose receipt is for reads of all ranks at once.
    pub fn before_all_ranks(&mut self, of: ReceiptId) {
        let reads = |op: &Op| {
            let OpKind::Memory(MemoryOp::Load { place: Place::All(..), receipt, .. }) = op.kind else {
                return false;
            };
            receipt == Some(of)
        };
        if self.f.p.kernel.ops.iter().any(reads) {
            self.used.add(Prim::MultimemFence);
            self.w.line_with(
                "multimem_fence();",
                "what ranks stored by their own pointers is read by that of all",
            );
        }
    }
}
