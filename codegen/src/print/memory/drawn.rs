//! Draws of numbers from work counters in a role with a loader: the loader draws, all other warps take them from it.

use crate::ir::{OpId, ValueId};
use crate::print::emit::Emitter;
use crate::print::facts::Side;
use crate::print::loader::Ring;
use crate::print::text::Prim;

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
        let draws = self.loaders.is_some_and(|loaders| loaders.draws(id));
        if draws {
            let (number, drawn) = (self.declare(out), &self.drawn);
            let call = format!("draw_for_all(loader, {drawn}, [&] {{ return {call}; }})");
            self.w.line(&format!("const u32 {number} = {call};"));
        }
        draws
    }

    /// Writes how the multiplying warps get a number that the loader draws, if it is one.
    pub fn takes_drawn(&mut self, id: OpId, out: ValueId) -> bool {
        let takes =
            self.f.side == Some(Side::Multiplies) && self.loaders.is_some_and(|loaders| loaders.draws(id));
        if takes {
            let number = self.declare(out);
            self.w.line_with(&format!("const u32 {number} = take_drawn({});", self.drawn), "by the loader");
        }
        takes
    }
}
