//! One operation of a step in a loop over a tile.

use crate::ir::{BinaryOp, CommOp, Dtype, MemoryOp, OpKind, Place, Put, ReduceOp, ValueId, ValueOp, VarUse};
use crate::print::emit::{Emitter, Item, Step, ops};
use crate::print::facts::Form;
use crate::print::text::{Expr, Prec, Prim, PrintError};

impl Emitter<'_, '_> {
    /// Writes one operation of a step.
    pub fn item(
        &mut self,
        item: &Item,
        step: &mut Step,
        partials: &[(ValueId, String, ReduceOp)],
    ) -> Result<(), PrintError> {
        if let Some((out, value)) = item.yields {
            let name = self.values[&out].clone();
            return self.assign_element(&name, value, step);
        }
        let f = self.f;
        let op = f.p.kernel.op(item.op);
        let whole = step.layout.per_lane > 1;
        match &op.kind {
            OpKind::Memory(memory) => self.memory_step(item, memory, whole, step),
            OpKind::Matrix(matrix) => self.matrix_step(op.loc, matrix, step),
            OpKind::Comm(CommOp::Put(Put { parcel, buffer, index, value, mask })) => {
                let base = self.put_base(*parcel, *buffer)?;
                self.store_all(&base, Place::Param(*buffer), *index, *value, *mask, step)
            }
            OpKind::Value(ValueOp::Reduce { out, a, op: reduce }) => {
                let partial =
                    partials.iter().find(|p| p.0 == *out).expect("declared before the loop").1.clone();
                let e = self.element(*a, step)?;
                let dtype = self.ty(*a).dtype;
                if step.layout.is_single() && dtype != Dtype::F32 {
                    self.w.line(&format!("{partial} = {};", e.plain()));
                } else {
                    self.accumulate(&partial, *reduce, dtype, &e);
                }
                Ok(())
            }
            kind @ (OpKind::Value(_) | OpKind::Control(_) | OpKind::Comm(_)) => match kind.var_use() {
                Some((var, VarUse::Declare(value) | VarUse::Set(value))) => {
                    let name = self.vars[&var].clone();
                    self.assign_element(&name, value, step)
                }
                Some((_, VarUse::Get(_))) | None => {
                    let e = self.element_of_op(item, step)?;
                    self.keep_element(kind.outs()[0], e, step);
                    Ok(())
                }
            },
        }
    }

    fn memory_step(
        &mut self,
        item: &Item,
        op: &MemoryOp,
        whole: bool,
        step: &mut Step,
    ) -> Result<(), PrintError> {
        match *op {
            MemoryOp::Load { out, place, index, .. } if whole => {
                let early = self.f.forms.is_for_branches(&self.f.p, out);
                let e = self.load_vector(place, index, self.ty(out).dtype, early, step)?;
                let ty = self.vector_type(self.ty(out).dtype, step.layout.per_lane);
                self.keep(out, &ty, &e, step, false);
            }
            MemoryOp::Load { out, place, index, .. } => {
                let base = self.base(place)?;
                let e = self.cell(&base, index, step)?;
                self.keep_element(out, e, step);
            }
            MemoryOp::LoadMasked { out, place, index, mask, .. }
                if whole && self.f.p.loads_by_vectors(item.op) =>
            {
                let ty = self.vector_type(self.ty(out).dtype, step.layout.per_lane);
                let e = self.load_masked_vector(place, index, mask, &ty, self.ty(out).dtype, step)?;
                self.keep(out, &ty, &e, step, false);
            }
            MemoryOp::LoadMasked { out, place, index, mask, other, .. } => {
                let base = self.base(place)?;
                let cell = self.cell(&base, index, step)?;
                let e = self.masked(mask, cell, other, step)?;
                self.keep_element(out, e, step);
            }
            MemoryOp::Gather { out, place, index, mask, other, .. } => {
                let at = self.element(index, step)?;
                let cell = Expr::index(&self.base(place)?, &at);
                let e = self.masked(mask, cell, other, step)?;
                self.keep_element(out, e, step);
            }
            MemoryOp::Store { place, index, value, mask, .. } => {
                let base = self.base(place)?;
                self.store_all(&base, place, index, value, mask, step)?;
            }
            MemoryOp::Scatter { place, index, value, mask, adds } => {
                let at = self.element(index, step)?;
                let base = self.base(place)?;
                let e = self.element(value, step)?;
                let condition = self.condition(mask, step)?;
                let does = if adds {
                    self.used.add(Prim::AtomicSum);
                    let scope = if place.shared().is_some() { "_shared" } else { "" };
                    Expr::call(&format!("fetch_sum{scope}"), [&Expr::offset(&base, &at), &e]).text
                } else {
                    format!("{} = {}", Expr::index(&base, &at).text, e.plain())
                };
                self.w.line(&format!("{condition}{does};"));
            }
            MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } => {
                let loc = self.f.p.kernel.op(item.op).loc;
                return Err(PrintError::Misplaced { loc, op: OpKind::from(op.clone()).name() });
            }
        }
        Ok(())
    }

    /// The element that an arithmetic operation computes, though the value has a name.
    fn element_of_op(&mut self, item: &Item, step: &mut Step) -> Result<Expr, PrintError> {
        let out = self.f.p.kernel.op(item.op).kind.outs()[0];
        let kept = step.kept.remove(&out);
        let name = self.values.remove(&out);
        let e = self.element(out, step);
        if let Some(kept) = kept {
            step.kept.insert(out, kept);
        }
        if let Some(name) = name {
            self.values.insert(out, name);
        }
        e
    }

    fn masked(
        &mut self,
        mask: ValueId,
        cell: Expr,
        other: ValueId,
        step: &mut Step,
    ) -> Result<Expr, PrintError> {
        if self.always(mask) {
            return Ok(cell);
        }
        let (mask, other) = (self.element(mask, step)?, self.element(other, step)?);
        Ok(Expr::ternary(&mask, &cell, &other))
    }

    /// `name[step][j] = value`, or `+=` and the like where that says the same.
    fn assign_element(&mut self, name: &str, value: ValueId, step: &mut Step) -> Result<(), PrintError> {
        let dtype = self.ty(value).dtype;
        let place = self.register_element(name, step);
        if self.form(value) == Form::Once
            && let Some(OpKind::Value(ValueOp::Binary { op, a, b, .. })) = self.f.p.def(value)
            && let Some(assign) = ops::compound(*op, dtype)
            && !matches!(op, BinaryOp::Shl | BinaryOp::Shr)
            && self.element(*a, step)? == place
        {
            let e = self.element(*b, step)?;
            self.w.line(&format!("{} {assign} {};", place.text, e.text));
            return Ok(());
        }
        let e = self.element(value, step)?;
        self.w.line(&format!("{} = {};", place.text, e.plain()));
        Ok(())
    }

    fn accumulate(&mut self, partial: &str, op: ReduceOp, dtype: Dtype, e: &Expr) {
        let line = match (op, dtype) {
            (ReduceOp::Sum, Dtype::I32) => {
                self.used.add(Prim::Wrapping);
                format!("{partial} = wrap_add({partial}, {});", e.text)
            }
            (ReduceOp::Sum, _) => format!("{partial} += {};", e.text),
            (ReduceOp::And, Dtype::Bool) => format!("{partial} = {partial} && {};", parenthesised(e)),
            (ReduceOp::Or, Dtype::Bool) => format!("{partial} = {partial} || {};", parenthesised(e)),
            (ReduceOp::And, _) => format!("{partial} &= {};", e.text),
            (ReduceOp::Or, _) => format!("{partial} |= {};", e.text),
            (ReduceOp::Min, _) => format!("{partial} = min_of({partial}, {});", e.text),
            (ReduceOp::Max, _) => format!("{partial} = max_of({partial}, {});", e.text),
        };
        self.w.line(&line);
    }
}

fn parenthesised(e: &Expr) -> String {
    if e.prec < Prec::Unary { format!("({})", e.text) } else { e.text.clone() }
}
