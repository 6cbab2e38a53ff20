//! Loads from all ranks' memory at once and stores to it, which the switch between the GPUs reduces and multiplies.

use std::collections::HashSet;

use crate::{
    family::Target,
    ir::{
        CommOp, Dtype, Kernel, MemoryOp, Op, OpId, OpKind, ParamId, Place, Put, ReceiptId, ReduceOp, ValueId,
        Wait, WaitAll,
    },
};

use crate::print::{
    PrintError,
    analysis::program::Program,
    emit::{emitter::Emitter, tiles::Step},
    text::prim::Prim,
};

/// Whether a target has instructions for it.
fn has_multimem(target: Target) -> bool {
    match target {
        Target::Cuda(arch) => arch.capability() >= 90,
        Target::Hip(_) => false,
    }
}

/// Refuses a kernel that reaches all ranks at once, for a target that cannot.
pub(crate) fn check(kernel: &Kernel, target: Target) -> Result<(), PrintError> {
    if has_multimem(target) {
        return Ok(());
    }
    let Some(param) = kernel.multicast().into_iter().next() else { return Ok(()) };
    let buffer = kernel.params[param.index()].name.clone();
    Err(PrintError::NoMultimem { kernel: kernel.variant.clone(), buffer, target })
}

/// The stores by the pointer of one rank that come after a wait and before a read of all ranks at once, which that wait's receipt is
/// for. The wait has a proxy fence behind it; these stores need one of their own.
pub(crate) fn fenced_stores(p: &Program) -> HashSet<OpId> {
    let mut fenced = HashSet::new();
    for &load in p.ops() {
        let OpKind::Memory(MemoryOp::Load { place: Place::All(param, _), receipt, .. }) =
            p.kernel.op(load).kind
        else {
            continue;
        };
        let wait =
            p.ops().iter().copied().find(|&id| receipt.is_some() && receipt_of(p.kernel, id) == receipt);
        // What another group of the rank stores comes between by way of a later wait for it.
        let heard =
            p.ops().iter().any(|&id| hears(p.kernel, id) && Some(id) != wait && between(p, wait, id, load));
        let stores = |id: &OpId| {
            let multicast = sixteen(p.kernel, *id).is_some();
            let accesses = p.kernel.op(*id).kind.accesses();
            !multicast && accesses.iter().any(|a| a.access.stores() && a.place.param() == Some(param))
        };
        let stores = p.ops().iter().copied().filter(stores);
        fenced.extend(stores.filter(|&store| heard || between(p, wait, store, load)));
    }
    fenced
}

/// The receipt that a wait makes.
fn receipt_of(kernel: &Kernel, id: OpId) -> Option<ReceiptId> {
    match kernel.op(id).kind {
        OpKind::Comm(CommOp::Wait(Wait { receipt, .. }) | CommOp::WaitAll(WaitAll { receipt, .. })) => {
            Some(receipt)
        }
        OpKind::Comm(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Value(_) | OpKind::Control(_) => {
            None
        }
    }
}

/// Whether an operation orders what another group did before what comes after it.
fn hears(kernel: &Kernel, id: OpId) -> bool {
    let block = matches!(
        kernel.op(id).kind,
        OpKind::Comm(CommOp::BlockWait(_)) | OpKind::Memory(MemoryOp::Ticket { .. })
    );
    block || receipt_of(kernel, id).is_some()
}

/// Whether an operation of a role may run after a wait, which stands before a load, and before that load.
fn between(p: &Program, wait: Option<OpId>, id: OpId, load: OpId) -> bool {
    let [at, end] = [id, load].map(|op| p.position(op));
    if at.role != end.role {
        return false;
    }
    let Some(wait) = wait else { return true };
    let again = |l: &OpId| {
        p.kernel.op(*l).kind.is_loop() && p.inside(id, *l) && p.inside(load, *l) && !p.inside(wait, *l)
    };
    at.order > p.position(wait).order && (at.order < end.order || p.ops().iter().any(again))
}

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

/// The tile that an operation reads of all ranks at once or puts to them, whose lanes have 16 bytes each.
pub(crate) fn sixteen(kernel: &Kernel, id: OpId) -> Option<ValueId> {
    match kernel.op(id).kind {
        OpKind::Memory(MemoryOp::Load { out, place: Place::All(..), .. }) => Some(out),
        OpKind::Comm(CommOp::Put(Put { parcel, value, .. })) => {
            kernel.parcels[parcel.index()].multicast.then_some(value)
        }
        OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) | OpKind::Value(_) | OpKind::Control(_) => {
            None
        }
    }
}
