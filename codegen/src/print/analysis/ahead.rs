//! Looks: first loads of packets that go out before LL elements say whether the packets are wanted.
//!
//! Reading the LL elements and then loading the packets would take two trips to memory, one after the other. With a look the two trips
//! overlap. A look that finds a packet empty is followed by polling. A look that finds a whole packet is the taking's load. A look
//! without a taking is forgotten. The index of the packets is computed before the look if it does not depend on what is read.
//!
//! A look must find either the empty place or the very packet that the taking would find. The packet before it in the same place must
//! therefore be taken, and the place emptied, before the look. The sender of the taking's packet sends after that earlier taking, by
//! the order of signals and waits. So a look crosses no operation by which this group hears of another group's taking (a wait, a
//! ticket), lets the sender know of its own (a signal, a ticket), or takes packets of the same buffer. LL elements order nothing. A
//! kernel must therefore order takings of one place by other groups with a wait or a ticket. The simulator reports the others.

use std::collections::HashMap;

use crate::ir::{
    BinaryOp, CommOp, ControlOp, Kernel, MemoryOp, OpId, OpKind, PACKET_BYTES, ParamId, ReceiveMessages,
    Region, Transport, ValueId, ValueOp,
    analysis::{Def, DefUse, Tree},
    mutate::move_before,
};

/// Packets at most that a lane looks at before a read: each is four registers meanwhile.
const MOST: u32 = 4;

/// By the reads of LL elements, the takings whose packets are looked at before.
pub(crate) type Ahead = HashMap<OpId, Vec<OpId>>;

/// Moves what such takings need before the reads.
pub(crate) fn hoist(mut kernel: Kernel) -> Kernel {
    for id in Search::new(&kernel).takings() {
        let Some((read, moved)) = Search::new(&kernel).reads_before(id) else { continue };
        moved.into_iter().for_each(|op| move_before(&mut kernel, op, read));
    }
    kernel
}

/// Finds them in a kernel in which that has been done.
pub(crate) fn find(kernel: &Kernel) -> Ahead {
    let search = Search::new(kernel);
    let mut ahead: HashMap<OpId, (u32, Vec<OpId>)> = HashMap::new();
    for id in search.takings() {
        let Some((read, moved)) = search.reads_before(id) else { continue };
        let (packets, takings) = ahead.entry(read).or_default();
        let more = search.packets(id);
        if moved.is_empty() && *packets + more <= MOST {
            *packets += more;
            takings.push(id);
        }
    }
    ahead.into_iter().map(|(read, (_, takings))| (read, takings)).collect()
}

struct Search<'k> {
    kernel: &'k Kernel,
    tree: Tree,
    defs: DefUse,
}

impl<'k> Search<'k> {
    fn new(kernel: &'k Kernel) -> Search<'k> {
        let tree = Tree::of(kernel);
        let defs = DefUse::of(kernel, &tree);
        Search { kernel, tree, defs }
    }

    fn takings(&self) -> Vec<OpId> {
        self.tree.in_order().iter().copied().filter(|&id| self.taking(id).is_some()).collect()
    }

    fn taking(&self, id: OpId) -> Option<&'k ReceiveMessages> {
        self.receive(id, Transport::Packets)
    }

    fn receive(&self, id: OpId, transport: Transport) -> Option<&'k ReceiveMessages> {
        let OpKind::Comm(CommOp::ReceiveMessages(op)) = &self.kernel.op(id).kind else { return None };
        Some(op).filter(|op| op.transport == transport)
    }

    /// The first read that a taking can be looked at before, and what has to be moved there for it, in order.
    fn reads_before(&self, id: OpId) -> Option<(OpId, Vec<OpId>)> {
        let taking = self.taking(id)?;
        if taking.count.is_some() || self.packets(id) > MOST || self.constant(taking.mask).is_none() {
            return None;
        }
        // A branch that decides whether it is taken stands beside the read.
        let beside = match self.tree.position(id)?.parent {
            Some((holder, _)) if self.is_branch(holder) => {
                let arm = self.before(id)?;
                (self.behind_last_stop(arm, taking.buffer).len() == arm.len()).then_some(holder)?
            }
            _ => id,
        };
        let is_read = |op: &&OpId| self.receive(**op, Transport::Ll).is_some();
        let crossed = self.behind_last_stop(self.before(beside)?, taking.buffer);
        crossed.iter().filter(is_read).find_map(|&read| {
            let mut moved = vec![];
            let needed = taking.tiles.iter().all(|tile| self.needs(tile.index, read, &mut moved));
            needed.then_some((read, moved))
        })
    }

    /// The operations that stand before one in its region.
    fn before(&self, id: OpId) -> Option<&'k [OpId]> {
        self.region_of(id)?.ops.get(..self.tree.position(id)?.index)
    }

    /// Of consecutive operations, those behind the last one that a look at packets of this buffer must not cross.
    fn behind_last_stop(&self, ops: &'k [OpId], packets: ParamId) -> &'k [OpId] {
        let first = ops.iter().rposition(|&op| self.stops(op, packets)).map_or(0, |last| last + 1);
        &ops[first..]
    }

    /// Whether a look at packets of this buffer must not cross an operation, or one inside of it.
    fn stops(&self, id: OpId, packets: ParamId) -> bool {
        let kind = &self.kernel.op(id).kind;
        let itself = match kind {
            OpKind::Comm(CommOp::ReceiveMessages(other)) => other.buffer == packets,
            OpKind::Comm(any!(signals, waits, far)) | OpKind::Memory(MemoryOp::Ticket { .. }) => true,
            OpKind::Comm(any!(puts) | CommOp::SendMessages(_))
            | OpKind::Memory(any!(loads, stores) | MemoryOp::Atomic { .. } | MemoryOp::Tally { .. })
            | OpKind::Value(_)
            | OpKind::Matrix(_)
            | OpKind::Control(_) => false,
        };
        itself || kind.regions().into_iter().flat_map(|region| &region.ops).any(|&op| self.stops(op, packets))
    }

    /// Whether a value can be had before an operation; what defines it and comes later so far is added.
    fn needs(&self, value: ValueId, before: OpId, moved: &mut Vec<OpId>) -> bool {
        let id = match self.defs.def(value) {
            Def::Nothing => return false,
            Def::Counter(of) => return self.tree.enclosing(before).any(|op| op == of),
            Def::Op(id) => id,
        };
        let in_prologue = self.tree.position(id).is_some_and(|at| at.role.is_none());
        if in_prologue || moved.contains(&id) || self.tree.dominates(id, before) {
            return true;
        }
        let kind = &self.kernel.op(id).kind;
        let OpKind::Value(op) = kind else { return false };
        if self.kernel.ty(value).is_tile() || !self.may_run_anywhere(op) {
            return false;
        }
        let all = kind.operands().into_iter().all(|operand| self.needs(operand, before, moved));
        moved.extend(all.then_some(id));
        all
    }

    /// Whether it computes a scalar without fail.
    fn may_run_anywhere(&self, op: &ValueOp) -> bool {
        match op {
            ValueOp::Binary { op: BinaryOp::Div | BinaryOp::Rem, b, .. } => self.constant(*b).is_some(),
            ValueOp::Epoch { .. } | ValueOp::Reduce { .. } | ValueOp::Scan { .. } => false,
            any!(by_element, spreads)
            | ValueOp::Const { .. }
            | ValueOp::Rank { .. }
            | ValueOp::Node { .. }
            | ValueOp::Active { .. }
            | ValueOp::ScalarParam { .. }
            | ValueOp::GroupIndex { .. } => true,
        }
    }

    fn constant(&self, value: ValueId) -> Option<OpId> {
        let Def::Op(id) = self.defs.def(value) else { return None };
        matches!(self.kernel.op(id).kind, OpKind::Value(ValueOp::Const { .. })).then_some(id)
    }

    fn is_branch(&self, id: OpId) -> bool {
        matches!(self.kernel.op(id).kind, OpKind::Control(ControlOp::If { .. }))
    }

    fn region_of(&self, id: OpId) -> Option<&'k Region> {
        let position = self.tree.position(id)?;
        match (position.parent, position.role) {
            (Some((holder, n)), _) => self.kernel.op(holder).kind.regions().get(n).copied(),
            (None, role) => Some(&self.kernel.roles[role?].body),
        }
    }

    /// Packets of a taking that a lane has.
    fn packets(&self, id: OpId) -> u32 {
        let Some(taking) = self.taking(id) else { return 0 };
        let warps = |op| {
            let kind = &self.kernel.op(op).kind;
            if let OpKind::Control(ControlOp::Split { warps, .. }) = kind { Some(*warps) } else { None }
        };
        let split = self.tree.enclosing(id).find_map(warps);
        let of_role = || self.tree.position(id).and_then(|p| p.role).map(|r| self.kernel.role_warps(r));
        let lanes = split.or_else(of_role).unwrap_or(self.kernel.block_warps) * self.kernel.warp_size;
        let each = |value: ValueId| {
            let ty = self.kernel.ty(value);
            (ty.len.unwrap_or(1) * ty.dtype.bytes()).div_ceil(PACKET_BYTES * lanes)
        };
        taking.tiles.iter().map(|tile| each(tile.out)).sum()
    }
}
