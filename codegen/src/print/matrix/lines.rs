//! Reductions along rows and columns of matrices that a group holds.

use std::collections::HashSet;

use crate::ir::{Dtype, Lines, MatrixOp, OpKind, ReduceLines, ValueId};

use super::matrices::Fragments;
use crate::print::{
    PrintError,
    emit::{
        emitter::Emitter,
        ops,
        tiles::{Step, combiner},
    },
    facts::kernel::Facts,
    text::prim::Prim,
};

/// How many warps have parts of a line, one after the other.
fn parts(fragments: Fragments, lines: Lines) -> u32 {
    match lines {
        Lines::Rows => fragments.across,
        Lines::Columns => fragments.down,
    }
}

/// Whether warps meet in a reduction: where several have parts of a line.
pub(crate) fn meets(f: &Facts, reduce: &ReduceLines) -> bool {
    f.layouts.of(reduce.a).fragments.is_some_and(|fragments| parts(fragments, reduce.lines) > 1)
}

/// Bytes of shared memory by way of which warps hand each other their parts of lines, beside a block's arrays: each kind of reduction
/// has its own.
pub(crate) fn shared_bytes(f: &Facts) -> u64 {
    let kernel = f.p.kernel;
    let mut kinds = HashSet::new();
    for &id in f.p.ops() {
        let OpKind::Matrix(MatrixOp::ReduceLines(reduce)) = &kernel.op(id).kind else { continue };
        let lanes = f.p.lanes(id);
        if let Some(fragments) = f.layouts.of(reduce.a).fragments.filter(|_| meets(f, reduce)) {
            kinds.insert((reduce.op, reduce.lines, fragments, lanes));
        }
    }
    let bytes = |(_, lines, fragments, lanes): (_, Lines, Fragments, u32)| {
        let all = if lines == Lines::Rows { fragments.rows } else { fragments.columns };
        let groups = (kernel.block_threads() / lanes).max(1);
        u64::from(groups * parts(fragments, lines) * all * Dtype::F32.bytes())
    };
    kinds.into_iter().map(bytes).sum()
}

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
        let layout = self.f.layouts.of(*out);
        let from = self.array_of(*a)?;
        let (name, ty) = (self.declare(*out), self.vector_type(Dtype::F32, layout.per_lane));
        if layout.steps() == 1 {
            self.values.insert(*out, format!("{name}[0]"));
        }
        self.w.line(&format!("{ty} {name}[{}];", layout.steps()));
        let (part, group) = (self.part_name(layout.fragments), self.group.name);
        let of = match lines {
            Lines::Rows => "RowsOf",
            Lines::Columns => "ColumnsOf",
        };
        self.w.line(&format!("reduce_lines<{}, {of}<{part}>>({group}, {from}, {name});", combiner(*op)));
        Ok(())
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
        ops::use_dtype(self.used, Dtype::F32);
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
