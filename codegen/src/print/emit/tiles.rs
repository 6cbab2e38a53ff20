//! Tile operations: neighbours in program order that share a layout become one loop over each lane's registers.
//!
//! Within a loop, operations are put in phases: vector accesses in even phases, element by element work in odd ones,
//! each as early as its operands and the memory and variables that it touches allow.

use std::collections::{HashMap, HashSet};

use super::Emitter;
use crate::ir::{
    Access, Accessed, CommOp, ControlOp, Dtype, MemoryOp, OpId, OpKind, Place, ReduceOp, ValueId, ValueOp,
    VarId, VarUse,
};
use crate::print::facts::{Form, effects::may_meet};
use crate::print::layout::{Layout, wide};
use crate::print::text::{Prim, PrintError, prim, type_name};

/// Most 32-bit registers a lane spends on holding loaded tiles, so that all loads are in flight before the first use.
const BATCH_WORDS: u32 = 64;

/// A tile operation that waits to be written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Item {
    pub op: OpId,
    pub layout: Layout,
    /// What an arm of an `if` (the operation) yields: the result, and the arm's value for it.
    pub yields: Option<(ValueId, ValueId)>,
}

/// Where a tile that a loop computes is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Kept {
    /// One element at a time.
    Element(String),
    /// A lane's elements of one step.
    Step(String),
}

/// State of the loop being written.
#[derive(Debug)]
pub(crate) struct Step {
    pub layout: Layout,
    pub kept: HashMap<ValueId, Kept>,
    /// Whether it is one step of all lanes, which needs neither a loop nor a scope.
    pub flat: bool,
    /// Whether addresses begin at the lane's first element of the tile.
    pub from_lane: bool,
    /// Whether the element index of the step was asked for.
    pub uses_at: bool,
    /// Whether registers were indexed by step, which needs a loop that unrolls for good.
    pub indexes: bool,
}

impl Step {
    /// One whose addresses begin at the lane's first element.
    pub fn from_lane(layout: Layout) -> Step {
        Step { from_lane: true, ..Step::new(layout) }
    }

    /// A loop that keeps nothing yet.
    pub fn new(layout: Layout) -> Step {
        Step { layout, kept: HashMap::new(), flat: false, from_lane: false, uses_at: false, indexes: false }
    }
}

impl Emitter<'_, '_> {
    /// Queues what an arm yields.
    pub fn yield_tile(&mut self, id: OpId, out: ValueId, value: ValueId) -> Result<(), PrintError> {
        self.queue(Item { op: id, layout: self.f.layouts.of(out), yields: Some((out, value)) })
    }

    pub fn queue(&mut self, item: Item) -> Result<(), PrintError> {
        if self.pending.first().is_some_and(|first| first.layout != item.layout) {
            self.flush()?;
        }
        self.flush_before(&self.reads(&item))?;
        if let OpKind::Control(ControlOp::VarDecl { var, .. }) = self.f.p.kernel.op(item.op).kind
            && item.yields.is_none()
        {
            let v = &self.f.p.kernel.vars[var.index()];
            let name = self.names.fresh(v.name.as_deref().unwrap_or("state"));
            self.declare_registers(&name, v.ty.dtype, item.layout);
            self.vars.insert(var, name);
        }
        self.pending.push(item);
        Ok(())
    }

    /// Writes the waiting operations if one of these values needs a reduction among them.
    pub fn flush_before(&mut self, reads: &[ValueId]) -> Result<(), PrintError> {
        let reduced: HashSet<ValueId> =
            self.pending.iter().filter_map(|i| self.out(i)).filter(|v| !self.ty(*v).is_tile()).collect();
        if !reduced.is_empty() && self.expanded(reads).iter().any(|v| reduced.contains(v)) {
            self.flush()?;
        }
        Ok(())
    }

    /// Writes the waiting operations.
    pub fn flush(&mut self) -> Result<(), PrintError> {
        let items = std::mem::take(&mut self.pending);
        if items.is_empty() {
            return Ok(());
        }
        match self.loads_first(&items) {
            Some((loads, rest)) => {
                self.fused(&loads)?;
                self.fused(&rest)
            }
            None => self.fused(&items),
        }
    }

    /// Whether a waiting tile operation touches memory.
    pub fn pending_touches(&self) -> bool {
        let kind = |op: OpId| &self.f.p.kernel.op(op).kind;
        self.pending.iter().any(|i| i.yields.is_none() && !kind(i.op).accesses().is_empty())
    }

    /// Whether a waiting tile operation writes memory.
    pub fn pending_writes(&self) -> bool {
        self.pending.iter().any(|i| {
            let kind = &self.f.p.kernel.op(i.op).kind;
            matches!(
                kind,
                OpKind::Memory(MemoryOp::Store { .. } | MemoryOp::Scatter { .. })
                    | OpKind::Comm(CommOp::Put(_))
            )
        })
    }

    /// Declares the registers of a whole tile.
    pub fn declare_registers(&mut self, name: &str, dtype: Dtype, layout: Layout) {
        prim::use_dtype(self.used, dtype);
        let ty = self.vector_type(dtype, layout.per_lane);
        let steps = layout.steps();
        let count = if steps > 1 { format!("[{steps}]") } else { String::new() };
        self.w.line(&format!("{ty} {name}{count};"));
    }

    /// The type of a lane's elements of one step.
    pub fn vector_type(&mut self, dtype: Dtype, per_lane: u32) -> String {
        prim::use_dtype(self.used, dtype);
        if per_lane == 1 {
            return type_name(dtype).into();
        }
        self.used.add(Prim::Vec);
        format!("Vec<{}, {per_lane}>", type_name(dtype))
    }

    /// The values that an item reads.
    fn reads(&self, item: &Item) -> Vec<ValueId> {
        match item.yields {
            Some((_, value)) => vec![value],
            None => self.f.p.reads(item.op),
        }
    }

    /// The value that an item defines.
    fn out(&self, item: &Item) -> Option<ValueId> {
        match item.yields {
            Some(_) => None,
            None => self.f.p.kernel.op(item.op).kind.outs().first().copied(),
        }
    }

    /// `values`, and what is read where they are written out.
    fn expanded(&self, values: &[ValueId]) -> Vec<ValueId> {
        let mut all = values.to_vec();
        let mut at = 0;
        while at < all.len() {
            let v = all[at];
            at += 1;
            if matches!(self.form(v), Form::Once | Form::Everywhere)
                && let Some(id) = self.f.p.def_id(v)
            {
                all.extend(self.f.p.reads(id));
            }
        }
        all
    }

    /// Splits a group into loads (with what they need) and the rest, when that lets all loads start before the first
    /// store: compilers cannot know that the two don't overlap.
    fn loads_first(&self, items: &[Item]) -> Option<(Vec<Item>, Vec<Item>)> {
        let kind = |i: &Item| &self.f.p.kernel.op(i.op).kind;
        let reads = |i: &Item| {
            matches!(
                kind(i),
                OpKind::Memory(MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } | MemoryOp::Gather { .. })
            ) && i.yields.is_none()
        };
        let writes = |i: &Item| {
            matches!(
                kind(i),
                OpKind::Memory(MemoryOp::Store { .. } | MemoryOp::Scatter { .. })
                    | OpKind::Comm(CommOp::Put(_))
            )
        };
        if items[0].layout.steps() == 1 || !items.iter().any(reads) || !items.iter().any(writes) {
            return None;
        }
        let mut first: Vec<bool> = items.iter().map(reads).collect();
        for i in (0..items.len()).rev().filter(|&i| first[i]).collect::<Vec<_>>() {
            self.close_over(items, i, &mut first);
        }
        let late_before = |i: usize| (0..i).filter(|&j| !first[j]);
        let blocked = (0..items.len())
            .any(|i| first[i] && late_before(i).any(|j| self.touches_same(&items[j], &items[i])));
        let (early, late): (Vec<_>, Vec<_>) = (0..items.len()).partition(|&i| first[i]);
        let take = |ixs: Vec<usize>| -> Vec<Item> { ixs.into_iter().map(|i| items[i]).collect() };
        let (early, late) = (take(early), take(late));
        let needed: Vec<ValueId> = late.iter().flat_map(|i| self.expanded(&self.reads(i))).collect();
        let words: u32 = early
            .iter()
            .filter_map(|i| self.out(i))
            .filter(|v| needed.contains(v))
            .map(|v| items[0].layout.words(self.ty(v).dtype))
            .sum();
        (!blocked && words <= BATCH_WORDS).then_some((early, late))
    }

    fn close_over(&self, items: &[Item], of: usize, first: &mut [bool]) {
        let needs = self.expanded(&self.reads(&items[of]));
        for j in 0..of {
            if !first[j] && self.out(&items[j]).is_some_and(|o| needs.contains(&o)) {
                first[j] = true;
                self.close_over(items, j, first);
            }
        }
    }

    /// Memory and variables that an item reads and writes.
    fn effects(&self, item: &Item) -> (Vec<Place>, Vec<Place>, Vec<VarId>, Vec<VarId>) {
        let kind = &self.f.p.kernel.op(item.op).kind;
        let mut vars: Vec<VarId> = vec![];
        for v in self.expanded(&self.reads(item)) {
            if let (Form::Alias(var), _) = (self.form(v), ()) {
                vars.push(var);
            }
        }
        if item.yields.is_some() {
            return (vec![], vec![], vars, vec![]);
        }
        let mut assigned = vec![];
        match kind.var_use() {
            Some((var, VarUse::Get(_))) => vars.push(var),
            Some((var, VarUse::Declare(_) | VarUse::Set(_))) => assigned.push(var),
            None => {}
        }
        let (read, written): (Vec<Accessed>, _) =
            kind.accesses().into_iter().partition(|a| a.access == Access::Load);
        let places = |accesses: Vec<Accessed>| accesses.into_iter().map(|a| a.place).collect();
        (places(read), places(written), vars, assigned)
    }

    /// Whether the order of two items matters because of memory or variables.
    fn touches_same(&self, a: &Item, b: &Item) -> bool {
        fn meet<T: PartialEq>(a: &[T], b: &[T]) -> bool {
            a.iter().any(|x| b.contains(x))
        }
        let ((ar, aw, avr, avw), (br, bw, bvr, bvw)) = (self.effects(a), self.effects(b));
        let met = |a: &[Place], b: &[Place]| a.iter().any(|x| b.iter().any(|y| may_meet(*x, *y)));
        met(&aw, &br)
            || met(&ar, &bw)
            || met(&aw, &bw)
            || meet(&avw, &bvr)
            || meet(&avr, &bvw)
            || meet(&avw, &bvw)
    }

    /// Whether an item is one vector access.
    fn is_vector(&self, item: &Item) -> bool {
        let vector = wide(&self.f.p, item.op).is_some()
            || matches!(self.f.p.kernel.op(item.op).kind, OpKind::Matrix(_));
        vector && item.layout.per_lane > 1 && item.yields.is_none()
    }

    fn phases(&self, items: &[Item]) -> Vec<usize> {
        let mut phases: Vec<usize> = vec![];
        for (i, item) in items.iter().enumerate() {
            let parity = usize::from(!self.is_vector(item));
            let needs = self.expanded(&self.reads(item));
            let mut phase = parity;
            for j in 0..i {
                let data = self.out(&items[j]).is_some_and(|o| needs.contains(&o));
                if data || self.touches_same(&items[j], item) {
                    let same_kind = phases[j] % 2 == parity;
                    phase = phase.max(if same_kind { phases[j] } else { phases[j] + 1 });
                }
            }
            phases.push(phase);
        }
        phases
    }

    /// Writes one loop over the steps of a tile.
    fn fused(&mut self, items: &[Item]) -> Result<(), PrintError> {
        let layout = items[0].layout;
        let members: HashSet<OpId> = items.iter().map(|i| i.op).collect();
        let phases = self.phases(items);
        let mut step = Step::new(layout);
        let mut partials: Vec<(ValueId, String, ReduceOp)> = vec![];
        let mut per_step: Vec<(ValueId, usize)> = vec![];
        for (i, item) in items.iter().enumerate() {
            let Some(out) = self.out(item) else { continue };
            if let OpKind::Value(ValueOp::Reduce { op, a, .. }) = self.f.p.kernel.op(item.op).kind {
                let partial = self.declare_partial(out, a, op);
                partials.push((out, partial, op));
                continue;
            }
            let readers = self.f.forms.readers(&self.f.p, out);
            if !readers.iter().all(|r| members.contains(r)) {
                let name = self.declare(out);
                self.declare_registers(&name, self.ty(out).dtype, layout);
                continue;
            }
            let by_element = |r: &OpId| {
                let at = items.iter().position(|x| x.op == *r).expect("all readers are members");
                phases[at] == phases[i] && !self.is_vector(&items[at])
            };
            let single = layout.per_lane == 1 || (!self.is_vector(item) && readers.iter().all(by_element));
            if !single && !self.is_vector(item) {
                per_step.push((out, phases[i]));
            }
            let keep = if single { Kept::Element } else { Kept::Step };
            step.kept.insert(out, keep(String::new()));
        }
        let loc = self.f.p.kernel.op(items[0].op).loc;
        self.step_loop(step, true, loc, |e, step| {
            let mut order: Vec<usize> = (0..items.len()).collect();
            order.sort_by_key(|&i| phases[i]);
            for run in order.chunk_by(|&a, &b| phases[a] == phases[b]) {
                let phase = phases[run[0]];
                for (v, _) in per_step.iter().filter(|p| p.1 == phase) {
                    let ty = e.vector_type(e.ty(*v).dtype, layout.per_lane);
                    let name = e.declare_local(*v, step);
                    e.w.line(&format!("{ty} {name};"));
                }
                let looped = phase % 2 == 1 && layout.per_lane > 1;
                if looped {
                    e.names.enter();
                    e.w.directive("#pragma unroll");
                    let j = &e.f.own.j;
                    e.w.line(&format!("for (u32 {j} = 0; {j} < {}; ++{j}) {{", layout.per_lane));
                    e.w.deeper();
                }
                for &i in run {
                    (e.write_step)(e, &items[i], step, &partials)?;
                }
                if looped {
                    e.w.shallower();
                    e.w.line("}");
                    e.names.leave();
                }
            }
            Ok(())
        })?;
        for (out, partial, op) in partials {
            self.finish_partial(out, &partial, op);
        }
        Ok(())
    }

    /// A name for what one step keeps.
    pub fn declare_local(&mut self, v: ValueId, step: &mut Step) -> String {
        let name = self.declare(v);
        self.values.remove(&v);
        if let Some(Kept::Element(n) | Kept::Step(n)) = step.kept.get_mut(&v) {
            n.clone_from(&name);
        }
        name
    }

    fn declare_partial(&mut self, out: ValueId, of: ValueId, op: ReduceOp) -> String {
        let dtype = self.ty(out).dtype;
        let want = self.f.p.name(of).map_or("partial".into(), |of| format!("lane_{of}"));
        let name = self.names.fresh(&want);
        if !is_vote(op, dtype) {
            self.used.add(Prim::of_reduce(op));
        }
        let ty = type_name(dtype);
        let none = match (op, dtype) {
            (ReduceOp::And, Dtype::Bool) => "true".into(),
            (ReduceOp::Or, Dtype::Bool) => "false".into(),
            (ReduceOp::Sum | ReduceOp::Or, _) => "0".into(),
            _ => format!("{}::none<{ty}>()", combiner(op)),
        };
        self.w.line(&format!("{ty} {name} = {none};"));
        name
    }

    /// Whether the group is a warp of a GPU that has an instruction for it.
    fn has_warp_or(&self) -> bool {
        self.f.target.backend() == "cuda" && self.group.lanes == self.f.p.kernel.warp_size
    }

    fn finish_partial(&mut self, out: ValueId, partial: &str, op: ReduceOp) {
        let dtype = self.ty(out).dtype;
        let ty = type_name(dtype);
        let name = self.declare(out);
        let group = self.group.name;
        let of_group = if is_vote(op, dtype) {
            format!("{group}.{}({partial})", if op == ReduceOp::And { "all" } else { "any" })
        } else if op == ReduceOp::Or && dtype == Dtype::U32 && self.has_warp_or() {
            self.used.add(Prim::WarpOr);
            format!("warp_or({partial})")
        } else {
            self.used.add(Prim::Reduce);
            format!("group_reduce<{}>({group}, {partial})", combiner(op))
        };
        self.w.line(&format!("const {ty} {name} = {of_group};"));
    }
}

/// Whether a reduction asks whether something holds in all lanes or in any, which groups answer in one meeting.
fn is_vote(op: ReduceOp, dtype: Dtype) -> bool {
    dtype == Dtype::Bool && matches!(op, ReduceOp::And | ReduceOp::Or)
}

/// The combiner's name in emitted source.
pub(crate) fn combiner(op: ReduceOp) -> &'static str {
    match op {
        ReduceOp::Sum => "Sum",
        ReduceOp::Min => "Min",
        ReduceOp::Max => "Max",
        ReduceOp::And => "And",
        ReduceOp::Or => "Or",
    }
}
