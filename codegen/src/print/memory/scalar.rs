//! Memory operations on scalars, and the tile operations that need the whole group at once.

use crate::ir::{Dtype, Loc, OpId, ParamKind, Place, ReduceOp, ValueId};
use crate::print::emit::{Emitter, Step, combiner};
use crate::print::text::{Expr, Prec, Prim, PrintError, prim, type_name};

impl Emitter<'_, '_> {
    /// One element of a buffer.
    pub fn cell_at(&mut self, base: &Expr, index: ValueId) -> Result<Expr, PrintError> {
        let index = self.scalar(index)?;
        Ok(Expr::index(base, &index))
    }

    /// A load of one element.
    pub fn load_scalar(
        &mut self,
        id: OpId,
        out: ValueId,
        place: Place,
        index: ValueId,
    ) -> Result<(), PrintError> {
        // A load may pass waiting loads, but no waiting store.
        if self.pending_writes() {
            self.flush()?;
        }
        self.flush_before(&self.f.p.reads(id))?;
        prim::use_dtype(self.used, self.ty(out).dtype);
        let base = self.base(place)?;
        let cell = self.cell_at(&base, index)?;
        let name = self.declare(out);
        self.w.line(&format!("const {} {name} = {};", type_name(self.ty(out).dtype), cell.text));
        Ok(())
    }

    /// A store of one element, by one lane.
    pub fn store_scalar(
        &mut self,
        place: Place,
        index: ValueId,
        value: ValueId,
        mask: Option<ValueId>,
    ) -> Result<(), PrintError> {
        self.flush()?;
        let base = self.base(place)?;
        let cell = self.cell_at(&base, index)?;
        let e = self.scalar(value)?;
        let first = format!("{} == 0", self.lane());
        let test = match mask {
            None => first,
            Some(m) => {
                let first = Expr::binary("==", Prec::Equality, &Expr::atom(self.lane()), &Expr::atom("0"));
                Expr::binary("&&", Prec::And, &first, &self.scalar(m)?).text
            }
        };
        self.w.line(&format!("if ({test}) {} = {};", cell.text, e.plain()));
        Ok(())
    }

    /// An update of one element, by one lane.
    pub fn atomic(
        &mut self,
        id: OpId,
        out: ValueId,
        how: ReduceOp,
        place: Place,
        index: ValueId,
        value: ValueId,
    ) -> Result<(), PrintError> {
        self.flush()?;
        if self.takes_drawn(id, out) {
            return Ok(());
        }
        let loc = self.f.p.kernel.op(id).loc;
        let dtype = self.ty(value).dtype;
        let (name, ok) = match how {
            ReduceOp::Sum => ("fetch_sum", dtype.is_arithmetic()),
            ReduceOp::Min => ("fetch_min", dtype.is_int()),
            ReduceOp::Max => ("fetch_max", dtype.is_int()),
            ReduceOp::And => ("fetch_and", dtype.is_int()),
            ReduceOp::Or => ("fetch_or", dtype.is_int()),
        };
        if !ok {
            return Err(PrintError::Dtype { loc, what: "this atomic", dtype });
        }
        self.used.add(Prim::of_atomic(how));
        let scope = if matches!(place, Place::Shared(_)) { "_shared" } else { "" };
        let base = self.base(place)?;
        let index = self.scalar(index)?;
        let address = Expr::offset(&base, &index);
        let operand = self.scalar(value)?;
        let call = Expr::call(&format!("{name}{scope}"), [&address, &operand]).text;
        if self.draws_for_others(id, out, &call) {
            return Ok(());
        }
        if self.f.p.users(out).is_empty() {
            let line = format!("if ({} == 0) {call};", self.lane());
            if let (Place::Param(p), ReduceOp::And) = (place, how)
                && self.f.p.kernel.params[p.index()].kind == ParamKind::Counters
            {
                self.w.line_with(&line, "for the next launch: every group has heard of the end");
            } else {
                self.w.line(&line);
            }
            return Ok(());
        }
        self.used.add(Prim::Once);
        let result = self.declare(out);
        let ty = type_name(dtype);
        self.w.line(&format!("const {ty} {result} = once({}, [&] {{ return {call}; }});", self.group.name));
        Ok(())
    }

    /// A prefix reduction: step by step, with what came before carried along.
    pub fn scan(
        &mut self,
        out: ValueId,
        how: ReduceOp,
        a: ValueId,
        exclusive: bool,
        loc: Loc,
    ) -> Result<(), PrintError> {
        self.flush()?;
        let dtype = self.ty(out).dtype;
        if !dtype.is_arithmetic() {
            return Err(PrintError::Dtype { loc, what: "a scan", dtype });
        }
        for prim in [Prim::Scan, Prim::of_reduce(how), Prim::Vec] {
            self.used.add(prim);
        }
        let layout = self.f.layouts.of(out);
        let (e, ty, combine) = (layout.per_lane, type_name(dtype), combiner(how));
        let name = self.declare(out);
        self.declare_registers(&name, dtype, layout);
        let carry = self.names.fresh("carry");
        self.w.line(&format!("{ty} {carry} = {combine}::none<{ty}>();"));
        let step = Step::new(layout);
        let group = self.group.name;
        self.step_loop(step, false, loc, |me, step| {
            let whole = layout.len == layout.full_steps() * layout.lanes * e;
            let values = me.names.fresh("values");
            me.w.line(&format!("Vec<{ty}, {e}> {values};"));
            me.each_element(e, |me, j| {
                let element = me.element(a, step)?;
                let text = if whole {
                    element.plain().to_string()
                } else {
                    // Lanes beyond the end take part with the neutral value.
                    let end = Expr::atom(layout.len.to_string());
                    let inside = Expr::binary("<", Prec::Relation, &me.at(step), &end);
                    Expr::ternary(&inside, &element, &Expr::atom(format!("{combine}::none<{ty}>()"))).text
                };
                me.w.line(&format!("{values}[{j}] = {text};"));
                Ok(())
            })?;
            let result = me.names.fresh("scanned");
            me.w.line(&format!(
                "const Vec<{ty}, {e}> {result} = group_scan<{combine}, {exclusive}>({group}, {values}, {carry});"
            ));
            let target = me.registers_of(out, step);
            me.w.line(&if e == 1 { format!("{target} = {result}[0];") } else { format!("{target} = {result};") });
            Ok(())
        })
    }

    /// Counting in order: step by step, a lane's element each.
    pub fn tally(
        &mut self,
        out: ValueId,
        place: Place,
        index: ValueId,
        mask: ValueId,
        loc: Loc,
    ) -> Result<(), PrintError> {
        self.flush()?;
        self.used.add(Prim::Tally);
        let layout = self.f.layouts.of(out);
        let read = !self.f.p.users(out).is_empty();
        let name = if read { self.declare(out) } else { String::new() };
        if read && !layout.is_single() {
            self.declare_registers(&name, Dtype::U32, layout);
        }
        let warps = layout.len.min(layout.lanes).div_ceil(self.f.p.kernel.warp_size);
        let (base, group) = (self.base(place)?.text, self.group.name);
        self.step_loop(Step::new(layout), false, loc, |me, step| {
            let (mut bin, mut counted) = (me.element(index, step)?, me.element(mask, step)?);
            if layout.len != layout.full_steps() * layout.lanes {
                // Lanes beyond the end take part without counting.
                let end = Expr::atom(layout.len.to_string());
                let inside = Expr::binary("<", Prec::Relation, &me.at(step), &end);
                bin = Expr::ternary(&inside, &bin, &Expr::atom("0u"));
                counted = Expr::binary("&&", Prec::And, &inside, &counted);
            }
            let target = match (read, layout.is_single()) {
                (false, _) => String::new(),
                (true, true) => format!("const u32 {name} = "),
                (true, false) => format!("{} = ", me.registers_of(out, step)),
            };
            me.w.line(&format!(
                "{target}group_tally({group}, {base}, {warps}, {}, {});",
                bin.plain(),
                counted.plain()
            ));
            Ok(())
        })
    }

    /// Writes something for each of a lane's elements of a step.
    pub fn each_element(
        &mut self,
        per_lane: u32,
        body: impl FnOnce(&mut Self, &str) -> Result<(), PrintError>,
    ) -> Result<(), PrintError> {
        if per_lane == 1 {
            return body(self, "0");
        }
        self.w.directive("#pragma unroll");
        let j = &self.f.own.j;
        self.w.line(&format!("for (u32 {j} = 0; {j} < {per_lane}; ++{j}) {{"));
        self.w.deeper();
        body(self, j)?;
        self.w.shallower();
        self.w.line("}");
        Ok(())
    }

    /// The registers of a value's elements of one step.
    fn registers_of(&self, v: ValueId, step: &mut Step) -> String {
        let name = self.values[&v].clone();
        self.registers(&name, step)
    }
}
