//! The statements of an operation: what writes it, and what is written around it.

use std::collections::HashMap;

use crate::ir::{
    BinaryOp, CommOp, ControlOp, MemoryOp, OpId, OpKind, Put, Region, SharedId, Target, ValueId, ValueOp,
    VarId, VarUse,
};
use crate::print::emit::{Emitter, Item, ops};
use crate::print::facts::{Facts, Form};
use crate::print::loader::Loaders;
use crate::print::text::{PrintError, Used, prim, type_name};

/// An emitter that writes operations of all kinds.
pub(crate) fn emitter<'f, 'k>(
    facts: &'f Facts<'k>,
    loaders: Option<&'f Loaders>,
    used: &'f mut Used,
    offsets: &'f HashMap<SharedId, u32>,
) -> Emitter<'f, 'k> {
    Emitter::new(facts, loaders, used, offsets, Emitter::item)
}

/// The tile over whose elements a value operation loops, if it is one on tiles.
fn value_tile(op: &ValueOp) -> Option<ValueId> {
    match op {
        ValueOp::Reduce { a, .. } => Some(*a),
        ValueOp::Binary { out, .. }
        | ValueOp::Unary { out, .. }
        | ValueOp::Compare { out, .. }
        | ValueOp::Select { out, .. }
        | ValueOp::Cast { out, .. }
        | ValueOp::Fma { out, .. }
        | ValueOp::Bitcast { out, .. } => Some(*out),
        // Written out where they are used, or all lanes at once.
        any!(given, spreads) | ValueOp::Scan { .. } => None,
    }
}

/// The tile over whose elements a memory operation loops, if it is one on tiles.
fn memory_tile(op: &MemoryOp) -> Option<ValueId> {
    match op {
        MemoryOp::Load { out, .. } | MemoryOp::LoadMasked { out, .. } | MemoryOp::Gather { out, .. } => {
            Some(*out)
        }
        MemoryOp::Store { value, .. } | MemoryOp::Scatter { value, .. } => Some(*value),
        // Done by one lane, or by all lanes at once.
        MemoryOp::Atomic { .. } | MemoryOp::Tally { .. } | MemoryOp::Ticket { .. } => None,
    }
}

impl Emitter<'_, '_> {
    /// Writes every operation of a region.
    pub fn region(&mut self, region: &Region) -> Result<(), PrintError> {
        for &id in &region.ops {
            self.op(id)?;
            self.fence_store(id)?;
        }
        self.flush()
    }

    /// A region in braces of its own.
    pub fn block(&mut self, region: &Region) -> Result<(), PrintError> {
        self.names.enter();
        self.region(region)?;
        self.names.leave();
        Ok(())
    }

    pub fn op(&mut self, id: OpId) -> Result<(), PrintError> {
        let f = self.f;
        let op = f.p.kernel.op(id);
        if f.barriers.before(id) && !matches!(op.kind, OpKind::Control(ControlOp::Split { .. })) {
            // Without touches of memory among them, waiting operations may as well come after the barrier.
            if self.pending_touches() {
                self.flush()?;
            }
            self.w.line(&format!("{}.sync();", self.group.name));
        }
        self.note_put(id);
        let outs = op.kind.outs();
        let unseen = |v: &ValueId| {
            matches!(self.form(*v), Form::Dead | Form::Everywhere | Form::Once | Form::Alias(_))
        };
        if outs.len() == 1 && op.kind.regions().is_empty() && unseen(&outs[0]) {
            return Ok(());
        }
        if self.takes_tile(id)? {
            if f.barriers.meets(id) {
                self.flush()?;
            }
            return Ok(());
        }
        match &op.kind {
            OpKind::Value(value) => self.value_op(id, value),
            OpKind::Memory(access) => self.timed(id, |e| e.memory_op(id, access)),
            OpKind::Matrix(matrix) => self.matrix_op(id, matrix),
            OpKind::Comm(comm) => self.timed(id, |e| e.comm_op(id, comm)),
            OpKind::Control(control) => self.control_op(id, control),
        }
    }

    fn value_op(&mut self, id: OpId, op: &ValueOp) -> Result<(), PrintError> {
        match *op {
            ValueOp::Scan { out, op: how, a, exclusive } => {
                let loc = self.f.p.kernel.op(id).loc;
                self.timed(id, |e| e.scan(out, how, a, exclusive, loc))
            }
            any!(given, by_element, spreads) | ValueOp::Reduce { .. } => {
                self.define(id, self.f.p.kernel.op(id).kind.outs()[0])
            }
        }
    }

    fn control_op(&mut self, id: OpId, op: &ControlOp) -> Result<(), PrintError> {
        match op {
            ControlOp::VarGet { out, .. } => self.define(id, *out),
            ControlOp::VarDecl { var, init } => self.declare_var(*var, *init),
            ControlOp::VarSet { var, value } => self.set_var(*var, *value),
            ControlOp::If { cond, then, otherwise, results } => {
                self.branch(id, *cond, then, otherwise, results)
            }
            ControlOp::For { var, start, end, step, body } => {
                self.counted(id, [*var, *start, *end, *step], body)
            }
            ControlOp::While { header, cond, body } => self.spin(id, header, *cond, body),
            ControlOp::Break { depth } => self.jump("break", *depth),
            ControlOp::Continue { depth } => self.jump("continue", *depth),
            ControlOp::Split { warps, body } => self.split(id, *warps, body),
        }
    }

    /// `const T name = ...;`
    fn define(&mut self, id: OpId, out: ValueId) -> Result<(), PrintError> {
        self.flush_before(&self.f.p.reads(id))?;
        let e = self.compute(id)?;
        if e.is_literal() && self.f.p.name(out).is_none() {
            self.values.insert(out, e.text);
            return Ok(());
        }
        let ty = type_name(self.ty(out).dtype);
        prim::use_dtype(self.used, self.ty(out).dtype);
        let name = self.declare(out);
        self.w.line(&format!("const {ty} {name} = {};", e.plain()));
        Ok(())
    }

    fn declare_var(&mut self, var: VarId, init: ValueId) -> Result<(), PrintError> {
        self.flush_before(&[init])?;
        let e = self.scalar(init)?;
        let v = &self.f.p.kernel.vars[var.index()];
        prim::use_dtype(self.used, v.ty.dtype);
        let name = self.names.fresh(v.name.as_deref().unwrap_or("state"));
        self.w.line(&format!("{} {name} = {};", type_name(v.ty.dtype), e.plain()));
        self.vars.insert(var, name);
        Ok(())
    }

    /// An assignment; `x = x + y` as `x += y`.
    fn set_var(&mut self, var: VarId, value: ValueId) -> Result<(), PrintError> {
        // Waiting tile operations may read the variable by its name.
        self.flush()?;
        let name = self.vars[&var].clone();
        let dtype = self.ty(value).dtype;
        if self.form(value) == Form::Once
            && let Some(OpKind::Value(ValueOp::Binary { op, a, b, .. })) = self.f.p.def(value)
            && self.form(*a) == Form::Alias(var)
            && let Some(assign) = ops::compound(*op, dtype)
        {
            let e = self.scalar(*b)?;
            let text = if matches!(op, BinaryOp::Shl | BinaryOp::Shr) || e.plain() != e.text {
                e.plain()
            } else {
                &e.text
            };
            self.w.line(&format!("{name} {assign} {text};"));
            return Ok(());
        }
        let e = self.scalar(value)?;
        self.w.line(&format!("{name} = {};", e.plain()));
        Ok(())
    }

    /// Writes an access to memory that is no part of a loop over a tile.
    pub fn memory_op(&mut self, id: OpId, op: &MemoryOp) -> Result<(), PrintError> {
        let loc = self.f.p.kernel.op(id).loc;
        match *op {
            MemoryOp::Load { out, place, index, .. } => self.load_scalar(id, out, place, index),
            MemoryOp::Store { place, index, value, mask } => self.store_scalar(place, index, value, mask),
            MemoryOp::Atomic { out, op, place, index, value } => {
                self.atomic(id, out, op, place, index, value)
            }
            MemoryOp::Tally { out, place, index, mask } => self.tally(out, place, index, mask, loc),
            MemoryOp::Ticket { out, counter, index, count, order } => {
                self.ticket(id, out, (counter, index), count, order)
            }
            MemoryOp::LoadMasked { .. } | MemoryOp::Gather { .. } | MemoryOp::Scatter { .. } => {
                Err(PrintError::Misplaced { loc, op: OpKind::from(op.clone()).name() })
            }
        }
    }

    /// Writes an operation that communicates.
    pub fn comm_op(&mut self, id: OpId, op: &CommOp) -> Result<(), PrintError> {
        match op {
            CommOp::Put(op) => self.put(id, op),
            CommOp::PutMatrix(op) => self.put_matrix(id, op),
            CommOp::BulkCopy(op) => self.copy(id, op),
            CommOp::Signal(op) => self.signal(id, op),
            CommOp::Wait(op) if self.put_off(id, op.receipt) => Ok(()),
            CommOp::Wait(op) => self.wait(id, op),
            CommOp::WaitAll(op) if self.put_off(id, op.receipt) => Ok(()),
            CommOp::WaitAll(op) => self.wait_all(id, op),
            CommOp::BlockSignal(op) => self.block_signal(id, op),
            CommOp::BlockWait(_) if self.put_off_blocks(id) => Ok(()),
            CommOp::BlockWait(op) => self.block_wait(id, op),
            CommOp::SendMessages(op) => self.send_messages(id, op),
            CommOp::ReceiveMessages(op) => self.receive_messages(id, op),
            CommOp::FarPut(op) => self.far_put(id, op),
            CommOp::FarPublish(op) => self.far_publish(id, op),
            CommOp::FarWait(op) => self.far_wait(id, op),
            CommOp::FarSettle(op) => self.far_settle(id, op),
        }
    }

    /// Queues a tile operation; false when it is none, or one that is written by itself.
    pub fn takes_tile(&mut self, id: OpId) -> Result<bool, PrintError> {
        let f = self.f;
        let tile = |v: ValueId| f.p.kernel.ty(v).is_tile();
        let layout_of = match &f.p.kernel.op(id).kind {
            OpKind::Value(op) => value_tile(op),
            OpKind::Memory(op) => memory_tile(op),
            OpKind::Matrix(op) => self.matrix_tile(op),
            OpKind::Comm(op) => match op {
                CommOp::Put(Put { parcel, value, .. }) => match f.p.kernel.parcels[parcel.index()].target {
                    Target::Rank(_) => Some(*value),
                    Target::Mask(_) => None,
                },
                any!(signals, waits, messages, far) | CommOp::PutMatrix(_) | CommOp::BulkCopy(_) => None,
            },
            control @ OpKind::Control(_) => control.var_use().map(|(_, used)| match used {
                VarUse::Declare(value) | VarUse::Get(value) | VarUse::Set(value) => value,
            }),
        };
        let Some(layout_of) = layout_of.filter(|v| tile(*v)) else { return Ok(false) };
        self.queue(Item { op: id, layout: f.layouts.of(layout_of), yields: None })?;
        Ok(true)
    }
}
