//! Numbers of work counters in a role with a loader. The loader draws them, as it is the first one to need them; all other warps take
//! them from it, through shared memory. So both go through the same tiles, and leave the loop together.

use super::{cut::Side, plan::Ring};
use crate::{
    ir::{Kernel, MemoryOp, OpId, OpKind, ParamKind, Region, ValueId},
    print::{analysis::program::Program, emit::emitter::Emitter, text::prim::Prim},
};

/// Bytes of the two mbarriers and the number, in whole 16 bytes.
pub(crate) const BYTES: u32 = 32;

/// Whether an operation is an update of a work counter.
pub(crate) fn draws(kernel: &Kernel, op: &MemoryOp) -> bool {
    let MemoryOp::Atomic { place, .. } = op else { return false };
    place.param().is_some_and(|id| kernel.params[id.index()].kind == ParamKind::Counters)
}

/// The updates of work counters in a region whose numbers anything is made of.
pub(crate) fn of(p: &Program, region: &Region) -> Vec<OpId> {
    let mut found = vec![];
    p.kernel.walk(region, &mut |id, op| {
        let OpKind::Memory(memory) = &op.kind else { return };
        let used = op.kind.outs().iter().any(|v| !p.users(*v).is_empty());
        found.extend((used && draws(p.kernel, memory)).then_some(id));
    });
    found
}

impl Emitter<'_, '_> {
    /// Declares what the numbers go through, if a ring's loader draws any.
    pub fn declare_drawn(&mut self, ring: &Ring) {
        if !ring.draws {
            return;
        }
        self.used.add(Prim::Drawn);
        self.drawn = self.names.fresh("drawn");
        let line = format!("Drawn {}(shared_array<u64>({}));", self.drawn, ring.end());
        self.w.line_with(&line, "what the loader draws, behind the ring");
    }

    /// Writes how a loader draws a number for all others, if it does.
    pub fn draws_for_others(&mut self, id: OpId, out: ValueId, call: &str) -> bool {
        let draws = self.f.side.is_some_and(|(_, loaders)| loaders.draws(id));
        if draws {
            let (number, drawn) = (self.declare(out), &self.drawn);
            let call = format!("draw_for_all(loader, {drawn}, [&] {{ return {call}; }})");
            self.w.line(&format!("const u32 {number} = {call};"));
        }
        draws
    }

    /// Writes how those who multiply get a number that the loader draws, if it is one.
    pub fn takes_drawn(&mut self, id: OpId, out: ValueId) -> bool {
        let takes = self.f.side.is_some_and(|(side, loaders)| side == Side::Multiplies && loaders.draws(id));
        if takes {
            let number = self.declare(out);
            self.w.line_with(&format!("const u32 {number} = take_drawn({});", self.drawn), "by the loader");
        }
        takes
    }
}
