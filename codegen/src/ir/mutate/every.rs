//! All bugs of one change that a kernel can have: what a mutation run plants, one at a time.

use std::collections::HashMap;
use std::fmt;

use super::super::analysis::{Def, DefUse, Position, Tree};
use super::super::*;
use super::site::subject;
use super::{Access, Change, Mutation, Operand, Site, Slot};

/// A bug, and where it is planted.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The author's line.
    pub loc: Loc,
    /// The role; none for what stands before the roles.
    pub role: Option<String>,
    /// The operation: `signal of row_flag`.
    pub op: String,
    /// What is done to it: `index + 1`.
    pub change: String,
    /// The same for [`mutate`](super::mutate()).
    pub mutation: Mutation,
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = self.role.as_deref().unwrap_or("before the roles");
        write!(f, "{}, {role}, {}: {}", self.loc, self.op, self.change)
    }
}

/// Every signal, wait, sending and taking of a kernel left out or sent elsewhere; every release (tickets too) relaxed, and every signal put first; every
/// index, epoch, awaited rank, count, integer that is stored or sent, and end of a loop off by one, both ways; every use of a
/// parity fixed; every epoch word kept.
pub fn every(kernel: &Kernel) -> Vec<Mutant> {
    let tree = Tree::of(kernel);
    let uses = DefUse::of(kernel, &tree);
    let mut all = Every { kernel, tree: &tree, uses, list: vec![], seen: HashMap::new() };
    tree.in_order().iter().for_each(|&id| all.operation(id));
    all.list
}

struct Every<'k> {
    kernel: &'k Kernel,
    tree: &'k Tree,
    uses: DefUse,
    list: Vec<Mutant>,
    /// How many operations of an address there were so far.
    seen: HashMap<(String, String, String), usize>,
}

impl Every<'_> {
    fn role(&self, id: OpId) -> Option<String> {
        self.tree.position(id).and_then(|p| p.role).map(|r| self.kernel.roles[r].name.clone())
    }

    fn operation(&mut self, id: OpId) {
        let role = self.role(id);
        let kind = &self.kernel.op(id).kind;
        let subject = subject(self.kernel, kind);
        if let (Some((access, buffer)), Some(role)) = (subject, &role) {
            let seen = self.seen.entry((role.clone(), access.to_string(), buffer.into())).or_default();
            let site = Site::new(role, access, buffer).nth(*seen);
            *seen += 1;
            self.whole(id, &site);
        }
        for (operand, what, step) in self.operands(kind) {
            for by in [step, -step] {
                let change = format!("{what} {} {step}", if by < 0 { '-' } else { '+' });
                let mutation = Mutation::At { op: id, operand, change: Change::By(by) };
                self.add(id, change, mutation);
            }
        }
        if let OpKind::Value(ValueOp::Epoch { word, advance: true, .. }) = kind {
            let word = self.kernel.params[word.index()].name.clone();
            self.add(id, "the word is kept".into(), Mutation::KeepEpoch(word));
        }
        if let OpKind::Value(ValueOp::Binary { out, op: BinaryOp::And, a, b }) = kind
            && self.is_parity(*a, *b)
        {
            self.parity(*out);
        }
    }

    /// What is done to a whole operation.
    fn whole(&mut self, id: OpId, site: &Site) {
        let can_go = self.kernel.op(id).kind.outs().is_empty();
        let with_data =
            self.kernel.op(id).kind.signal().is_some_and(|s| !self.kernel.parcels[s.parcel.index()].bare);
        let (releases, has_target) = (self.kernel.op(id).kind.release().is_some(), self.target(id).is_some());
        let comes_after_something = self.comes_after_something(id);
        let mut add = |change: &str, mutation| self.add(id, change.into(), mutation);
        if matches!(site.access, Access::Signal | Access::Put | Access::Send | Access::Wait | Access::Settle)
            && can_go
        {
            add("left out", Mutation::Drop(site.clone()));
        }
        if releases {
            add("relaxed", Mutation::Relax(site.clone()));
        }
        if site.access == Access::Signal {
            if with_data {
                add("before its puts", Mutation::SignalFirst(site.clone()));
            } else if comes_after_something {
                add("before what came before", Mutation::SignalFirst(site.clone()));
            }
        }
        if has_target && matches!(site.access, Access::Signal | Access::Put | Access::Send) {
            // Rank 0, also as a mask.
            let mask = matches!(self.target(id), Some(Target::Mask(_)));
            let with = Operand::Number(mask.into());
            let to_0 = Mutation::Replace { site: site.clone(), slot: Slot::Target, with };
            self.add(id, "to rank 0".into(), to_0);
        }
    }

    /// Whether something that accesses memory, communicates or decides what runs stands before an operation in its region.
    fn comes_after_something(&self, id: OpId) -> bool {
        let place = |o: OpId| self.tree.position(o);
        let Some(home) = place(id) else { return false };
        let before = |p: &Position| (p.role, p.parent) == (home.role, home.parent) && p.index < home.index;
        self.tree.in_order().iter().any(|&o| {
            let kind = &self.kernel.op(o).kind;
            place(o).is_some_and(|p| before(&p))
                && (kind.effect() == Effect::Acts || !kind.accesses().is_empty())
        })
    }

    fn target(&self, id: OpId) -> Option<Target> {
        let kind = &self.kernel.op(id).kind;
        let of_parcel = kind.member().map(|(parcel, _)| self.kernel.parcels[parcel.index()].target);
        let OpKind::Comm(op) = kind else { return None };
        match op {
            CommOp::SendMessages(SendMessages { target, .. }) => Some(*target),
            any!(puts, signals, waits, far) | CommOp::ReceiveMessages(_) => of_parcel,
        }
    }

    /// Numbers of the operands to change, with what they are, and by how much: packets begin at whole packets.
    fn operands(&self, kind: &OpKind) -> Vec<(usize, &'static str, i64)> {
        // What is taken is whole messages; what stays has an element at a time.
        let unit = |transport: &Transport, p: &ParamId| match transport.traits().takes {
            true => i64::from(transport.unit(self.kernel.params[p.index()].dtype)),
            false => 1,
        };
        let counts = |v: &ValueId| self.kernel.ty(*v).dtype.is_int() && !self.kernel.ty(*v).is_tile();
        let (index, from) = ((0, "index", 1), (1, "awaited rank", 1));
        match kind {
            OpKind::Memory(MemoryOp::Store { value, .. } | MemoryOp::Atomic { value, .. })
            | OpKind::Comm(CommOp::Put(Put { value, .. }))
                if counts(value) =>
            {
                vec![index, (1, "value", 1)]
            }
            OpKind::Memory(MemoryOp::Ticket { .. }) => vec![index, (1, "count", 1)],
            OpKind::Memory(op) if op.accessed().place.rank().is_some() => {
                vec![(0, "rank", 1), (1, "index", 1)]
            }
            // The accumulator is no number.
            OpKind::Matrix(MatrixOp::Dot(Dot { acc, a, b, .. })) => {
                let of_peer = |rows: &Rows| usize::from(rows.place.rank().is_some());
                let first = usize::from(acc.is_some()) + of_peer(a);
                let second = first + 1 + usize::from(a.end.is_some()) + of_peer(b);
                let count = second + 2 + usize::from(b.end.is_some());
                vec![(first, "row", 1), (second, "row", 1), (count, "count", 8)]
            }
            OpKind::Matrix(
                MatrixOp::LoadMatrix(LoadMatrix { at: rows, .. })
                | MatrixOp::StoreMatrix(StoreMatrix { to: rows, .. }),
            )
            | OpKind::Comm(CommOp::PutMatrix(PutMatrix { to: rows, .. })) => {
                let rank = rows.place.rank().map(|_| (0, "rank", 1));
                let row = usize::from(rank.is_some());
                let end = rows.end.map(|_| (row + 1, "end", 1));
                let column = (row + 1 + usize::from(end.is_some()), "column", 8);
                rank.into_iter().chain([(row, "row", 1)]).chain(end).chain([column]).collect()
            }
            OpKind::Matrix(MatrixOp::LoadRow(LoadRow { list: Some(_), .. })) => {
                vec![index, (1, "element of the list", 1)]
            }
            OpKind::Matrix(MatrixOp::LoadRow(_)) => vec![index],
            // Its operand is no number.
            OpKind::Matrix(MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_)) => vec![],
            OpKind::Memory(_) | OpKind::Comm(CommOp::Put(_)) => vec![index],
            OpKind::Comm(CommOp::BulkCopy(_)) => vec![index, (1, "source", 1)],
            OpKind::Comm(CommOp::Signal(Signal { flag, .. })) if self.kernel.counts(*flag) => {
                vec![index, (1, "amount", 1), (1, "amount", -1)]
            }
            OpKind::Comm(CommOp::Wait(Wait { flag, .. })) if self.kernel.counts(*flag) => {
                vec![index, from, (2, "count", 1), (2, "count", -1)]
            }
            OpKind::Comm(CommOp::Signal(_) | CommOp::BlockSignal(_)) => vec![index, (1, "epoch", 1)],
            OpKind::Comm(CommOp::BlockWait(_)) => {
                vec![index, (1, "count", 1), (2, "awaited block", 1), (3, "epoch", 1)]
            }
            OpKind::Comm(CommOp::Wait(_)) => vec![index, from, (2, "epoch", 1)],
            OpKind::Comm(CommOp::WaitAll(_)) => vec![index, (1, "count", 1), (2, "epoch", 1)],
            OpKind::Comm(CommOp::FarPut(FarPut { peer, .. })) => {
                let at = usize::from(peer.is_some());
                let peer = peer.map(|_| (0, "peer", 1));
                let rest = [(at, "source", 1), (at + 1, "index", 1), (at + 2, "counter", 1)];
                peer.into_iter().chain(rest).collect()
            }
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, .. })) => {
                let at = usize::from(peer.is_some());
                let peer = peer.map(|_| (0, "peer", 1));
                peer.into_iter().chain([(at, "counter", 1), (at + 1, "puts", 1)]).collect()
            }
            OpKind::Comm(CommOp::FarWait(_)) => {
                vec![(0, "counter", 1), (1, "count", 1), (2, "awaited rank", 1), (3, "puts", 1)]
            }
            OpKind::Comm(CommOp::FarSettle(_)) => vec![],
            OpKind::Comm(CommOp::SendMessages(SendMessages { transport, buffer, epoch, count, .. })) => {
                let unit = unit(transport, buffer);
                // Without an epoch a value is a float.
                let count = count.iter().map(|_| (2 + epoch.iter().len(), "count", unit));
                let epoch = epoch.iter().flat_map(|_| [(1, "value", 1), (2, "epoch", 1)]);
                std::iter::once((0, "index", unit)).chain(epoch).chain(count).collect()
            }
            OpKind::Comm(CommOp::ReceiveMessages(op)) => {
                let ReceiveMessages { transport, buffer, tiles, epoch, count, .. } = op;
                let unit = unit(transport, buffer);
                let of_tile = |i: usize| [(1 + 2 * i, "index", unit), (2 + 2 * i, "awaited rank", 1)];
                let end = 1 + 2 * tiles.len();
                let count = count.iter().map(|_| (end + epoch.iter().len(), "count", unit));
                let epoch = epoch.iter().map(|_| (end, "epoch", 1));
                (0..tiles.len()).flat_map(of_tile).chain(epoch).chain(count).collect()
            }
            OpKind::Control(ControlOp::For { .. }) => vec![(1, "end", 1)],
            // Whether a number that is drawn is one of the loop's.
            OpKind::Value(ValueOp::Compare { op: CompareOp::Ge, a, .. }) if self.is_drawn(*a) => {
                vec![(1, "count", 1)]
            }
            OpKind::Value(_) | OpKind::Control(_) => vec![],
        }
    }

    fn defining(&self, v: ValueId) -> Option<&OpKind> {
        match self.uses.def(v) {
            Def::Op(op) => Some(&self.kernel.op(op).kind),
            Def::Nothing | Def::Counter(_) => None,
        }
    }

    fn is_drawn(&self, v: ValueId) -> bool {
        match self.defining(v) {
            Some(OpKind::Memory(MemoryOp::Atomic { place: Place::Param(p), .. })) => {
                self.kernel.params[p.index()].kind == ParamKind::Counters
            }
            _ => false,
        }
    }

    fn is_parity(&self, a: ValueId, b: ValueId) -> bool {
        let one = OpKind::Value(ValueOp::Const { out: b, value: Const::U32(1) });
        self.defining(b) == Some(&one)
            && matches!(self.defining(a), Some(OpKind::Value(ValueOp::Epoch { .. })))
    }

    /// Each use of a parity, fixed.
    fn parity(&mut self, parity: ValueId) {
        for op in self.uses.uses(parity).to_vec() {
            let operands = self.kernel.op(op).kind.operands();
            for operand in (0..operands.len()).filter(|&i| operands[i] == parity) {
                for fixed in [0, 1] {
                    let mutation = Mutation::At { op, operand, change: Change::To(fixed) };
                    self.add(op, format!("parity {fixed}"), mutation);
                }
            }
        }
    }

    fn add(&mut self, id: OpId, change: String, mutation: Mutation) {
        let role = self.role(id);
        let op = self.kernel.op(id);
        let op_text = match subject(self.kernel, &op.kind) {
            Some((_, buffer)) => format!("{} of {buffer}", op.kind.name()),
            None => op.kind.name().into(),
        };
        self.list.push(Mutant { loc: op.loc, role, op: op_text, change, mutation });
    }
}
