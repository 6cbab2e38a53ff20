//! Reductions along rows and columns of matrices that a group holds.

use crate::ir::{Deinterleave, Dtype, Lines, ReduceLines, ValueId};
use crate::print::emit::{Emitter, Step, combiner};
use crate::print::text::{Prim, PrintError, prim};

impl Emitter<'_, '_> {
    /// Each lane gets, for each element that it has, what the element's row or column comes to.
    pub fn reduce_lines(
        &mut self,
        ReduceLines { out, op, lines, a }: &ReduceLines,
    ) -> Result<(), PrintError> {
        self.flush()?;
        for prim in [Prim::ReduceLines, Prim::of_reduce(*op)] {
            self.used.add(prim);
        }
        let from = self.array_of(*a)?;
        let name = self.new_array(*out);
        let (part, group) = (self.part_name(self.f.layouts.of(*out).fragments), self.group.name);
        let of = match lines {
            Lines::Rows => "RowsOf",
            Lines::Columns => "ColumnsOf",
        };
        self.w.line(&format!("reduce_lines<{}, {of}<{part}>>({group}, {from}, {name});", combiner(*op)));
        Ok(())
    }

    /// Each lane keeps what it has of every other block of columns.
    pub fn deinterleave(&mut self, Deinterleave { out, a, odd }: &Deinterleave) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(Prim::Deinterleave);
        let from = self.array_of(*a)?;
        let part = self.part_name(self.f.layouts.of(*a).fragments);
        let name = self.new_array(*out);
        self.w.line(&format!("deinterleave<{part}, {}>({from}, {name});", u32::from(*odd)));
        Ok(())
    }

    /// Registers of a matrix, as an array without values.
    fn new_array(&mut self, out: ValueId) -> String {
        let layout = self.f.layouts.of(out);
        let (name, ty) = (self.declare(out), self.vector_type(Dtype::F32, layout.per_lane));
        if layout.steps() == 1 {
            self.values.insert(out, format!("{name}[0]"));
        }
        self.w.line(&format!("{ty} {name}[{}];", layout.steps()));
        name
    }

    /// The registers of a matrix, as an array: new ones if it has none, or one that is no array.
    fn array_of(&mut self, value: ValueId) -> Result<String, PrintError> {
        let layout = self.f.layouts.of(value);
        let one = layout.steps() == 1;
        let there = self.values.get(&value).cloned();
        let there =
            there.and_then(|name| if one { name.strip_suffix("[0]").map(str::to_owned) } else { Some(name) });
        if let Some(name) = there {
            return Ok(name);
        }
        prim::use_dtype(self.used, Dtype::F32);
        let (name, ty) = (self.names.fresh("elements"), self.vector_type(Dtype::F32, layout.per_lane));
        self.w.line(&format!("{ty} {name}[{}];", layout.steps()));
        let loc = self.f.p.def_id(value).map(|id| self.f.p.kernel.op(id).loc);
        let loc = loc.expect("a verified kernel defines what it uses");
        self.step_loop(Step::new(layout), false, loc, |me, step| {
            let from = me.vector(value, step)?;
            let to = if one { format!("{name}[0]") } else { me.registers(&name, step) };
            me.w.line(&format!("{to} = {from};"));
            Ok(())
        })?;
        Ok(name)
    }
}
