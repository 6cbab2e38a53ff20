//! The loop over a tile's steps, and a tile's elements in it.

use super::{Emitter, Kept, Step, ops};
use crate::ir::{Const, ControlOp, Loc, OpKind, ValueId, ValueOp};
use crate::print::facts::Form;
use crate::print::layout::Layout;
use crate::print::text::{Expr, Prec, Prim, PrintError, prim, type_name};

/// Steps up to which a loop that may be unrolled in part is unrolled as a whole.
const UNROLL_ALL: u32 = 8;

impl Emitter<'_, '_> {
    /// Writes a loop over steps around what `body` writes. With `guarded`, lanes beyond the tile's end skip it: they
    /// hold nothing that may be looked at, so only what all lanes must take part in goes without.
    pub fn step_loop(
        &mut self,
        mut step: Step,
        guarded: bool,
        loc: Loc,
        body: impl FnOnce(&mut Self, &mut Step) -> Result<(), PrintError>,
    ) -> Result<(), PrintError> {
        let l = step.layout;
        let (steps, full) = (l.steps(), l.full_steps());
        let guarded = guarded && full < steps;
        if steps == 1 && !guarded {
            step.flat = true;
            return body(self, &mut step);
        }
        let outer = std::mem::take(&mut self.w);
        self.w = outer.nested();
        self.w.deeper();
        if steps > 1 && guarded {
            self.w.deeper();
        }
        self.names.enter();
        body(self, &mut step)?;
        self.names.leave();
        let text = std::mem::replace(&mut self.w, outer).finish();
        let place = self.place(loc);
        let lane = self.lane();
        let at = &self.f.own.at;
        if steps > 1 {
            let all = step.indexes || steps <= UNROLL_ALL;
            self.w.directive(if all { "#pragma unroll" } else { "#pragma unroll 4" });
            let s = &self.f.own.step;
            self.w.line_with(&format!("for (u32 {s} = 0; {s} < {steps}; ++{s}) {{"), &place);
            self.w.deeper();
            if step.uses_at || guarded {
                self.w.line(&format!(
                    "const u32 {at} = {};",
                    at_expression(l, &format!("{s} * {} + {lane}", l.lanes))
                ));
            }
            if guarded {
                let test = format!("if ({s} < {full} || {at} < {}) {{", l.len);
                self.w.line_with(&test, "the last step is partial");
            }
            self.w.append(&text);
            if guarded {
                self.w.line("}");
            }
            self.w.shallower();
            self.w.line("}");
            return Ok(());
        }
        if l.per_lane == 1 {
            self.w.line_with(&format!("if ({lane} < {}) {{", l.len), &place);
        } else {
            let first = at_expression(l, &lane);
            self.w.line_with(&format!("if (const u32 {at} = {first}; {at} < {}) {{", l.len), &place);
        }
        self.w.append(&text);
        self.w.line("}");
        Ok(())
    }

    /// The index of a lane's first element of the step.
    pub fn at(&self, step: &mut Step) -> Expr {
        let lane = Expr::atom(self.lane());
        match step.layout.per_lane {
            1 if step.layout.steps() == 1 => lane,
            n if step.flat => Expr::binary("*", Prec::Product, &lane, &Expr::atom(n.to_string())),
            _ => {
                step.uses_at = true;
                Expr::atom(self.f.own.at.clone())
            }
        }
    }

    /// The index of element `j` of the step.
    pub fn element_at(&self, step: &mut Step) -> Expr {
        let at = self.at(step);
        if step.layout.per_lane == 1 {
            at
        } else {
            Expr::binary("+", Prec::Sum, &at, &Expr::atom(self.f.own.j.clone()))
        }
    }

    /// A lane's elements of one step in registers of this name.
    pub fn registers(&self, name: &str, step: &mut Step) -> String {
        if step.layout.steps() > 1 {
            step.indexes = true;
            format!("{name}[{}]", self.f.own.step)
        } else {
            name.into()
        }
    }

    pub fn register_element(&self, name: &str, step: &mut Step) -> Expr {
        let r = self.registers(name, step);
        Expr::atom(if step.layout.per_lane > 1 { format!("{r}[{}]", self.f.own.j) } else { r })
    }

    /// One element of a tile.
    pub fn element(&mut self, v: ValueId, step: &mut Step) -> Result<Expr, PrintError> {
        match step.kept.get(&v) {
            Some(Kept::Element(name)) => return Ok(Expr::atom(name.clone())),
            Some(Kept::Step(name)) => return Ok(Expr::atom(format!("{name}[{}]", self.f.own.j))),
            None => {}
        }
        if let Some(name) = self.values.get(&v).cloned() {
            return Ok(self.register_element(&name, step));
        }
        if let Form::Alias(var) = self.form(v) {
            let name = self.vars[&var].clone();
            return Ok(self.register_element(&name, step));
        }
        let f = self.f;
        let id = f.p.def_id(v).expect("a verified kernel defines what it uses");
        let op = f.p.kernel.op(id);
        match op.kind {
            OpKind::Value(ValueOp::Splat { a, .. }) => self.scalar(a),
            OpKind::Value(ValueOp::Arange { .. }) => Ok(self.element_at(step)),
            OpKind::Control(ControlOp::VarGet { var, .. }) => {
                let name = self.vars[&var].clone();
                Ok(self.register_element(&name, step))
            }
            OpKind::Value(ref value) => {
                let mut used = std::mem::take(self.used);
                let e = ops::expression(&f.p, &mut used, value, op.loc, &mut |u, operand| {
                    std::mem::swap(u, self.used);
                    let e = self.element(operand, step);
                    std::mem::swap(u, self.used);
                    e
                });
                *self.used = used;
                e
            }
            OpKind::Control(_) | OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => {
                Err(PrintError::Misplaced { loc: op.loc, op: op.kind.name() })
            }
        }
    }

    /// A lane's elements of one step, as a vector.
    pub fn vector(&mut self, v: ValueId, step: &mut Step) -> Result<String, PrintError> {
        let e = step.layout.per_lane;
        if let Some(Kept::Step(name) | Kept::Element(name)) = step.kept.get(&v) {
            return Ok(name.clone());
        }
        if let Some(name) = self.values.get(&v).cloned() {
            return Ok(self.registers(&name, step));
        }
        if let Form::Alias(var) = self.form(v) {
            let name = self.vars[&var].clone();
            return Ok(self.registers(&name, step));
        }
        match self.f.p.def(v) {
            _ if e == 1 => Ok(self.element(v, step)?.text),
            Some(OpKind::Value(ValueOp::Splat { a, .. })) => {
                self.used.add(Prim::Fill);
                Ok(format!("fill<{e}>({})", self.scalar(*a)?.text))
            }
            Some(OpKind::Value(ValueOp::Arange { .. })) => {
                self.used.add(Prim::Iota);
                Ok(format!("iota<{e}>({})", self.at(step).text))
            }
            // What else is read as a vector has registers, which were looked for above.
            _ => Ok(self.element(v, step)?.text),
        }
    }

    /// Whether a mask is all true.
    pub fn always(&self, mask: ValueId) -> bool {
        let Some(OpKind::Value(ValueOp::Splat { a, .. })) = self.f.p.def(mask) else { return false };
        self.f.p.constant(*a) == Some(Const::Bool(true))
    }

    pub fn keep_element(&mut self, out: ValueId, e: Expr, step: &mut Step) {
        prim::use_dtype(self.used, self.ty(out).dtype);
        let ty = type_name(self.ty(out).dtype);
        self.keep(out, ty, e.plain(), step, step.layout.per_lane > 1);
    }

    /// Stores what was computed where the loop keeps it.
    pub fn keep(&mut self, out: ValueId, ty: &str, text: &str, step: &mut Step, element: bool) {
        let j = if element { format!("[{}]", self.f.own.j) } else { String::new() };
        match step.kept.get(&out).cloned() {
            Some(Kept::Step(name)) if element => self.w.line(&format!("{name}{j} = {text};")),
            Some(_) => {
                let name = self.declare_local(out, step);
                self.w.line(&format!("const {ty} {name} = {text};"));
            }
            None => {
                let name = self.values[&out].clone();
                let place = self.registers(&name, step);
                self.w.line(&format!("{place}{j} = {text};"));
            }
        }
    }
}

/// The index of a lane's first element, from the number of its vector.
fn at_expression(l: Layout, vector: &str) -> String {
    match l.per_lane {
        1 => vector.into(),
        e if vector.contains(' ') => format!("({vector}) * {e}"),
        e => format!("{vector} * {e}"),
    }
}
