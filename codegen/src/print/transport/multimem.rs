//! Loads from all ranks' memory at once and stores to it, which the switch between the GPUs reduces and multiplies.

use crate::{
    ir::{Dtype, MemoryOp, Op, OpId, OpKind, ParamId, Place, ReceiptId, ReduceOp, ValueId},
    print::{
        PrintError,
        emit::{emitter::Emitter, tiles::Step},
        text::prim::Prim,
    },
};

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

    /// A lane's 16 bytes of a tile that the switch reduces.
    pub fn load_reduced(
        &mut self,
        place: Place,
        how: ReduceOp,
        index: ValueId,
        dtype: Dtype,
        step: &mut Step,
    ) -> Result<String, PrintError> {
        let prim = match dtype {
            Dtype::Fp16 => Prim::MultimemFp16,
            Dtype::Bf16 => Prim::MultimemBf16,
            Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 | Dtype::Fp8 => Prim::MultimemF32,
        };
        self.used.add(prim);
        let base = self.base(place)?;
        let address = self.address(&base, index, step)?;
        let ty = self.vector_type(dtype, step.layout.per_lane);
        Ok(format!("bits_as<{ty}>(multimem_{}_{}({address}))", how.name(), dtype.name()))
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
