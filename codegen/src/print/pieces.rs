//! What a loader and the other warps of its block do: pieces of matrices are brought, multiplied and given back.

use crate::ir::{DOT_COLUMNS, Dot, OpId, ValueId};

use super::{
    PrintError,
    emitter::Emitter,
    loader::{Loaders, Side},
    prim::Prim,
};

impl Emitter<'_, '_> {
    /// Declares the ring of a role with a loader.
    pub fn declare_ring(&mut self, role: usize) {
        let Some(ring) = self.f.side.and_then(|(_, loaders)| loaders.ring(role)) else { return };
        self.used.add(Prim::Ring);
        self.ring = self.names.fresh("ring");
        let room = &self.shared[&ring.room];
        self.w.line_with(
            &format!("{} {}({room});", ring.text(), self.ring),
            "and its barriers behind the room",
        );
    }

    /// Lets warps of a role beside one that multiplies give registers to those who do.
    pub fn give_registers(&mut self, loaders: &Loaders) {
        if loaders.crew.registers.is_some() {
            self.used.add(Prim::Registers);
            self.w.line_with("give_registers();", "with the loader's warpgroup");
        }
    }

    /// Lets a loader give registers to the others.
    pub fn share_registers(&mut self) {
        let Some((side, loaders)) = self.f.side else { return };
        if loaders.crew.registers.is_none() {
            return;
        }
        self.used.add(Prim::Registers);
        match side {
            Side::Loads => {
                self.w.line_with("give_registers();", "as a whole warpgroup, of which one warp goes on");
                self.w.line("if (loader.warp != 0) return;");
            }
            Side::Multiplies => self.w.line_with("take_registers();", "the loader's"),
        }
    }

    /// The loader's part of a product.
    pub fn bring(&mut self, id: OpId, dot: &Dot, loaders: &Loaders) -> Result<(), PrintError> {
        let Dot { out, a, b, from, count, .. } = dot;
        let (left, right) = (self.matrix_name(a.place), self.matrix_name(b.place));
        let place = self.place(self.f.p.kernel.op(id).loc);
        self.w.gap();
        self.w.comment(&format!("Bring rows of {left} and rows of {right} ({place})"));
        let (rows, columns) = self.ty(*out).shape().expect("products are matrices");
        let boxes = [(a, rows), (b, columns)].map(|(of, rows)| {
            let param = of.place.param().expect("operands of a loader are parameters");
            format!("args.{}", loaders.boxes(param, rows))
        });
        let (a, b, from) = (self.scalar(a.row)?, self.scalar(b.row)?, self.scalar(*from)?);
        let ring = &self.ring;
        let pieces = self.pieces(*count);
        self.w.line(&format!(
            "bring_pieces(loader, {ring}, {}, {}, {}, {}, {}, {pieces});",
            boxes[0],
            a.plain(),
            boxes[1],
            b.plain(),
            from.plain()
        ));
        Ok(())
    }

    /// The others' part of a product.
    pub fn dot_of_pieces(&mut self, id: OpId, dot: &Dot) -> Result<(), PrintError> {
        let Dot { out, acc, a, b, count, .. } = dot;
        let layout = self.f.layouts.of(*out);
        let (left, right) = (self.matrix_name(a.place), self.matrix_name(b.place));
        let place = self.place(self.f.p.kernel.op(id).loc);
        self.w.gap();
        self.w.comment(&format!(
            "Multiply rows of {left} with rows of {right}, which the loader brings ({place})"
        ));
        let name = self.sums(id, *out, *acc, layout)?;
        let (ring, parts, pieces) = (&self.ring, self.part_name(layout.fragments), self.pieces(*count));
        self.w.line(&format!("dot_of_pieces<{parts}>(block, {ring}, {pieces}, {name});"));
        Ok(())
    }

    /// How many pieces a loader brings of so many columns.
    fn pieces(&self, columns: ValueId) -> i128 {
        let columns = self.f.p.int(columns).expect("a loader knows how many columns there are");
        (columns + i128::from(DOT_COLUMNS) - 1) / i128::from(DOT_COLUMNS)
    }
}
