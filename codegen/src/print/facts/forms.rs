//! Which values get a name of their own in emitted source, and which are written where they are used.

use crate::ir::{
    CommOp, ControlOp, Effect, MemoryOp, OpId, OpKind, Put, SendMessages, Target, ValueId, ValueOp, VarId,
    VarUse,
};
use crate::print::analysis::{Program, VectorMask};
use crate::print::layout::{Layouts, wide};

/// How a value appears in emitted source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// It is never read and has no effect: not at all.
    Dead,
    /// Written out wherever it is used: constants, the rank, scalar parameters, splats, aranges.
    Everywhere,
    /// Written out at its one use.
    Once,
    /// Reads a variable without an assignment before the use: the variable's name.
    Alias(VarId),
    /// A variable of its own.
    Named,
}

/// The form of every value.
#[derive(Debug)]
pub(crate) struct Forms {
    forms: Vec<Form>,
}

impl Forms {
    /// Decides for all values.
    pub fn new(p: &Program, layouts: &Layouts) -> Forms {
        let mut f = Forms { forms: vec![Form::Named; p.kernel.values.len()] };
        let defined = |v: &ValueId| p.def(*v).is_some();
        let values: Vec<ValueId> = (0..p.kernel.values.len() as u32).map(ValueId).filter(defined).collect();
        for &v in values.iter().rev() {
            f.forms[v.index()] = f.first_choice(p, layouts, v);
        }
        for &v in &values {
            if let Some((var, VarUse::Get(_))) = p.def(v).and_then(OpKind::var_use)
                && f.of(v) == Form::Named
                && p.name(v).is_none_or(|name| Some(name) == p.kernel.vars[var.index()].name.as_deref())
                && f.can_alias(p, v, var)
            {
                f.forms[v.index()] = Form::Alias(var);
            }
        }
        f
    }

    /// The form of a value.
    pub fn of(&self, v: ValueId) -> Form {
        self.forms[v.index()]
    }

    /// Whether a value is used in branches only that come after it: its author wants it to be on its way before.
    pub fn is_for_branches(&self, p: &Program, v: ValueId) -> bool {
        let Some(def) = p.def_id(v) else { return false };
        let readers = self.readers(p, v);
        let in_branch = |reader: &OpId| match p.ancestor_beside(*reader, def) {
            Some(beside) => {
                let kind = &p.kernel.op(beside).kind;
                beside != *reader && matches!(kind, OpKind::Control(ControlOp::If { .. }))
            }
            None => false,
        };
        !readers.is_empty() && readers.iter().all(in_branch)
    }

    /// Whether an element of a tile is worked out from scalars and the number of the lane alone, so that each lane has one.
    pub fn is_of_lane(&self, p: &Program, v: ValueId) -> bool {
        if !p.kernel.ty(v).is_tile() {
            return true;
        }
        let written_out = matches!(self.of(v), Form::Once | Form::Everywhere);
        let all = |op: OpId| p.reads(op).into_iter().all(|v| self.is_of_lane(p, v));
        written_out
            && p.def(v).is_some_and(|kind| matches!(kind, OpKind::Value(_)))
            && p.def_id(v).is_some_and(all)
    }

    /// The operations in whose text a value ends up: its users, or theirs where those are written out themselves.
    pub fn readers(&self, p: &Program, v: ValueId) -> Vec<OpId> {
        let mut found = vec![];
        for &user in p.users(v) {
            let outs = p.kernel.op(user).kind.outs();
            match outs.as_slice() {
                [out] if p.constant(*out).is_some() => {}
                [out] if matches!(self.of(*out), Form::Once | Form::Everywhere) => {
                    found.extend(self.readers(p, *out));
                }
                [out] if self.of(*out) == Form::Dead => {}
                _ => found.push(user),
            }
        }
        found
    }

    /// Users come after definitions in the arena, so their forms are known when this runs backwards over it.
    fn first_choice(&self, p: &Program, layouts: &Layouts, v: ValueId) -> Form {
        let kind = p.def(v).expect("only defined values are asked for");
        let named = p.name(v).is_some();
        let acts = |kind: &OpKind| kind.effect() == Effect::Acts;
        let read = |o: &ValueId| self.of(*o) != Form::Dead && p.constant(*o).is_none();
        let live =
            |u: &&OpId| p.kernel.op(**u).kind.outs().first().is_none_or(read) || acts(&p.kernel.op(**u).kind);
        let reads = |u: &&OpId| !p.leaves_out(**u, v);
        let users: Vec<OpId> = p.users(v).iter().filter(live).filter(reads).copied().collect();
        if users.is_empty() && !acts(kind) {
            return Form::Dead;
        }
        if p.constant(v).is_some() {
            return Form::Everywhere;
        }
        if let OpKind::Value(op) = kind
            && is_everywhere(p, op, v)
        {
            return Form::Everywhere;
        }
        if p.same_as(v).is_some_and(|of| !named || p.name(of).is_some() || p.constant(of).is_some()) {
            return Form::Everywhere;
        }
        match users.as_slice() {
            [user] if !named && is_expression(kind) && self.fits(p, layouts, v, *user) => {
                let times = p.reads(*user).iter().filter(|&&r| r == v).count();
                if times == 1 { Form::Once } else { Form::Named }
            }
            _ => Form::Named,
        }
    }

    /// Whether the text of `v` can stand in that of its only user.
    fn fits(&self, p: &Program, layouts: &Layouts, v: ValueId, user: OpId) -> bool {
        let def = p.def_id(v).expect("only defined values are asked for");
        let kind = &p.kernel.op(user).kind;
        // What an arm yields, and what a loop tests, is read at the end of the region that defines it.
        let yielded = kind.reads_inside() && p.owner(def) == Some(user);
        if !yielded && !p.same_region(def, user) {
            return false;
        }
        // Not once for each of the ranks that something goes to.
        if goes_to_several(p, kind) && !p.kernel.ty(v).is_tile() {
            return false;
        }
        let passed_on = |out: ValueId| matches!(p.users(out), [next] if p.same_region(*next, def));
        if let OpKind::Value(ValueOp::Splat { out, .. }) = kind {
            return passed_on(*out);
        }
        if let [out] = kind.outs()[..]
            && p.same_as(out) == Some(v)
            && self.of(out) == Form::Everywhere
        {
            return passed_on(out);
        }
        !p.kernel.ty(v).is_tile() || reads_by_element(p, layouts, user)
    }

    /// Whether nothing assigns `var` between reading it as `v` and the places where the text of `v` ends up.
    fn can_alias(&self, p: &Program, v: ValueId, var: VarId) -> bool {
        let get = p.def_id(v).expect("a VarGet defines it");
        let from = p.position(get).index;
        let writes = p.var_writes(var);
        let at = |op: OpId| p.position(op).index;
        self.readers(p, v).into_iter().all(|reader| {
            // A reader outside of the region is an arm's `If` or a header's `While`, at the region's end.
            let Some(top) = p.ancestor_beside(reader, get) else {
                return writes.iter().all(|&w| p.ancestor_beside(w, get).is_none_or(|a| at(a) < from));
            };
            let repeated = top != reader || p.kernel.op(top).kind.is_loop();
            writes.iter().all(|&w| match p.ancestor_beside(w, get) {
                None => true,
                Some(a) if a == top => w == top || !repeated,
                Some(a) => !(from < at(a) && at(a) < at(top)),
            })
        })
    }
}

/// Whether an operation sends a tile to a set of ranks.
fn goes_to_several(p: &Program, kind: &OpKind) -> bool {
    let OpKind::Comm(op) = kind else { return false };
    let target = match op {
        CommOp::Put(Put { parcel, .. }) => p.kernel.parcels[parcel.index()].target,
        CommOp::SendMessages(SendMessages { target, .. }) => *target,
        any!(signals, waits, far)
        | CommOp::ReceiveMessages(_)
        | CommOp::PutMatrix(_)
        | CommOp::BulkCopy(_) => return false,
    };
    matches!(target, Target::Mask(_))
}

/// Whether a value is so short that it is written out wherever it is used.
fn is_everywhere(p: &Program, op: &ValueOp, v: ValueId) -> bool {
    match op {
        ValueOp::Const { .. } | ValueOp::Splat { .. } | ValueOp::Arange { .. } => true,
        ValueOp::Rank { .. } | ValueOp::Node { .. } | ValueOp::ScalarParam { .. } => p.name(v).is_none(),
        // Accesses by vectors ask for no element of it.
        ValueOp::Compare { .. } => {
            matches!(p.vector_mask(v), Some(VectorMask::First(_)))
                && p.users(v).iter().all(|&user| wide(p, user).is_some())
        }
        // A block's index is a member that splits see too.
        ValueOp::GroupIndex { .. } => {
            p.name(v).is_none() && p.def_id(v).is_some_and(|def| p.split(def).is_none())
        }
        any!(casts, reductions)
        | ValueOp::Active { .. }
        | ValueOp::Epoch { .. }
        | ValueOp::Binary { .. }
        | ValueOp::Unary { .. }
        | ValueOp::Select { .. }
        | ValueOp::Fma { .. } => false,
    }
}

/// Whether an operation is arithmetic on its operands, lane by lane.
pub(crate) fn is_expression(kind: &OpKind) -> bool {
    let OpKind::Value(op) = kind else { return false };
    match op {
        any!(by_element) | ValueOp::GroupIndex { .. } => true,
        any!(spreads, reductions)
        | ValueOp::Const { .. }
        | ValueOp::Rank { .. }
        | ValueOp::Node { .. }
        | ValueOp::Active { .. }
        | ValueOp::ScalarParam { .. }
        | ValueOp::Epoch { .. } => false,
    }
}

/// Whether an operation reads its tiles one element after the other, so that an operand can be an expression.
pub(crate) fn reads_by_element(p: &Program, layouts: &Layouts, op: OpId) -> bool {
    let by_element = |value: ValueId, mask: Option<ValueId>| {
        mask.is_some_and(|m| p.vector_mask(m).is_none()) || layouts.of(value).per_lane == 1
    };
    match &p.kernel.op(op).kind {
        OpKind::Value(op) => match op {
            ValueOp::Scan { .. } => false,
            any!(given, by_element, spreads) | ValueOp::Reduce { .. } => true,
        },
        OpKind::Memory(op) => match op {
            MemoryOp::Store { value, mask, .. } => by_element(*value, *mask),
            MemoryOp::Tally { .. } => false,
            any!(loads) | MemoryOp::Scatter { .. } | MemoryOp::Atomic { .. } | MemoryOp::Ticket { .. } => {
                true
            }
        },
        OpKind::Comm(op) => match op {
            CommOp::Put(Put { parcel, value, mask, .. }) => {
                let one_rank = matches!(p.kernel.parcels[parcel.index()].target, Target::Rank(_));
                one_rank && by_element(*value, *mask)
            }
            CommOp::SendMessages(_) | CommOp::PutMatrix(_) => false,
            any!(signals, waits, far) | CommOp::ReceiveMessages(_) | CommOp::BulkCopy(_) => true,
        },
        // Whole vectors at a time.
        OpKind::Matrix(_) => false,
        OpKind::Control(any!(branches, exits, variables)) => true,
    }
}
