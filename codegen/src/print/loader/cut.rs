//! A kernel with loaders, cut in two: what the loader of a block runs, and what all its other warps do.

use std::collections::{HashMap, HashSet};

use super::drawn;
use super::join::joined;
use super::plan::{Heard, Tails};
use crate::ir::{
    CommOp, Const, ControlOp, Dot, Kernel, MatrixOp, MemoryOp, OpId, OpKind, ReceiptId, Region, Rows,
    ValueId, VarId, VarUse, Wait, WaitAll, analysis::target, mutate::constant,
};
use crate::print::analysis::Program;
use crate::print::facts::Side;

/// One side's part of a kernel in which `roles` have loaders, which draw `drawn` for the others. The multiplying warps leave waits to
/// those if `leaves`: they see what the loader had waited for when it told them of a piece.
pub(crate) fn part(
    p: &Program,
    roles: &[usize],
    drawn: &HashSet<OpId>,
    (side, leaves): (Side, bool),
) -> Kernel {
    let kernel = p.kernel;
    let mut part = kernel.clone();
    let zero = constant(&mut part, Const::U32(0));
    for &role in roles {
        let waits = Waits::of(kernel, &kernel.roles[role].body);
        let body = std::mem::take(&mut part.roles[role].body);
        let tails = Tails::of(kernel, &body);
        let heard = Heard::of(kernel, &body, &tails);
        let mut cut = Cut { side, zero, waits, heard, leaves, drawn, last: tails.last, idle: HashSet::new() };
        let mut body = cut.region(&mut part, body);
        // Without a variable that nothing reads others may be read no more.
        loop {
            let idle = idle(&part, &body);
            if idle.is_empty() {
                break;
            }
            cut.idle = idle;
            body = cut.region(&mut part, body);
        }
        // A thread of its own adds up the pieces of one product in tensor memory, and has to hear where it ends.
        let joins = leaves && side == Side::Loads;
        part.roles[role].body = if joins { joined(&mut part, p, body) } else { body };
    }
    part
}

/// What the waits of a role are for.
#[derive(Debug)]
struct Waits {
    /// Receipts with which operands of products are brought.
    brought: HashSet<ReceiptId>,
    /// Receipts with which anything else is read.
    read: HashSet<ReceiptId>,
    /// Whether the role tells other ranks anything, which comes after what it has waited for.
    signals: bool,
}

impl Waits {
    fn of(kernel: &Kernel, body: &Region) -> Waits {
        let (mut brought, mut read, mut signals) = (HashSet::new(), HashSet::new(), false);
        kernel.walk(body, &mut |_, op| {
            match &op.kind {
                OpKind::Matrix(MatrixOp::Dot(dot)) => {
                    brought.extend([&dot.a, &dot.b].map(|rows| rows.receipt))
                }
                OpKind::Matrix(MatrixOp::LoadMatrix(load)) => read.extend([load.at.receipt]),
                OpKind::Matrix(MatrixOp::LoadRow(load)) => read.extend([load.receipt]),
                OpKind::Matrix(
                    MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) | MatrixOp::StoreMatrix(_),
                )
                | OpKind::Value(_)
                | OpKind::Memory(_)
                | OpKind::Comm(_)
                | OpKind::Control(_) => {}
            }
            signals |= op.kind.release().is_some();
        });
        let some = |all: HashSet<Option<ReceiptId>>| all.into_iter().flatten().collect();
        Waits { brought: some(brought), read: some(read), signals }
    }

    /// Whether a side waits: for what it reads, for what is never read, and which side signals for everything.
    fn is_for(&self, side: Side, receipt: ReceiptId) -> bool {
        let (brought, read) = (self.brought.contains(&receipt), self.read.contains(&receipt));
        match side {
            Side::Loads => brought || !read,
            Side::Multiplies => read || !brought || self.signals,
        }
    }
}

/// Leaves one side's operations of a kernel.
struct Cut<'a> {
    side: Side,
    /// A value that is 0.
    zero: ValueId,
    waits: Waits,
    /// What the role reads that other blocks of the rank write.
    heard: Heard,
    /// Whether the multiplying warps leave waits to the loader.
    leaves: bool,
    /// What the loader draws for the others.
    drawn: &'a HashSet<OpId>,
    /// Whether a block is the last one, which the loader does not know.
    last: HashSet<ValueId>,
    /// Variables that the side has no use for.
    idle: HashSet<VarId>,
}

impl Cut<'_> {
    fn region(&self, kernel: &mut Kernel, region: Region) -> Region {
        Region { ops: region.ops.into_iter().filter(|&id| self.op(kernel, id)).collect() }
    }

    /// Cuts an operation; false when nothing of it is left.
    fn op(&self, kernel: &mut Kernel, id: OpId) -> bool {
        let mut kind = kernel.op(id).kind.clone();
        let stays = match &mut kind {
            OpKind::Value(_) => {
                let tile = kind.outs().iter().any(|v| kernel.ty(*v).is_tile());
                self.side == Side::Multiplies || !tile
            }
            OpKind::Comm(CommOp::Wait(Wait { receipt, .. }) | CommOp::WaitAll(WaitAll { receipt, .. })) => {
                self.waits.is_for(self.side, *receipt)
            }
            OpKind::Comm(CommOp::BlockWait(_)) => match self.side {
                Side::Loads => self.heard.by_loader,
                Side::Multiplies => !(self.leaves && self.heard.by_loader && self.heard.left.contains(&id)),
            },
            OpKind::Comm(_) => self.side == Side::Multiplies,
            OpKind::Matrix(MatrixOp::Dot(dot)) => {
                self.product(dot);
                true
            }
            OpKind::Matrix(_) => self.side == Side::Multiplies,
            OpKind::Memory(op) if drawn::draws(kernel, op) => {
                self.side == Side::Loads || self.drawn.contains(&id)
            }
            // What the loader loads of scalars are inputs, or what it has waited for: its tails are gone.
            OpKind::Memory(MemoryOp::Load { out, .. }) => {
                self.side == Side::Multiplies || !kernel.ty(*out).is_tile()
            }
            OpKind::Memory(_) => self.side == Side::Multiplies,
            OpKind::Control(ControlOp::If { cond, .. })
                if self.side == Side::Loads && self.last.contains(cond) =>
            {
                false
            }
            OpKind::Control(ControlOp::If { then, otherwise, results, .. }) => {
                *then = self.region(kernel, std::mem::take(then));
                *otherwise = self.region(kernel, std::mem::take(otherwise));
                if self.side == Side::Loads {
                    results.retain(|r| !kernel.ty(r.0).is_tile());
                }
                !results.is_empty() || acts(kernel, then) || acts(kernel, otherwise)
            }
            OpKind::Control(ControlOp::For { body, .. }) => {
                *body = self.region(kernel, std::mem::take(body));
                acts(kernel, body)
            }
            OpKind::Control(ControlOp::While { header, body, .. }) => {
                *header = self.region(kernel, std::mem::take(header));
                *body = self.region(kernel, std::mem::take(body));
                acts(kernel, body)
            }
            OpKind::Control(any!(variables)) => {
                let of = kernel.op(id).kind.var_use();
                of.is_none_or(|(var, _)| !self.idle.contains(&var))
            }
            OpKind::Control(_) => true,
        };
        if self.side == Side::Multiplies
            && let Some(dot) = one_product(kernel, &kind)
        {
            kind = MatrixOp::Dot(dot).into();
        }
        kernel.ops[id.index()].kind = kind;
        stays
    }

    /// The loader knows nothing of sums, and the multiplying warps nothing of where operands are.
    fn product(&self, dot: &mut Dot) {
        for rows in [&mut dot.a, &mut dot.b].into_iter().filter(|rows| rows.loose) {
            (rows.end, rows.loose) = (None, false);
        }
        match self.side {
            Side::Loads => dot.acc = None,
            Side::Multiplies => {
                dot.from = self.zero;
                for rows in [&mut dot.a, &mut dot.b] {
                    *rows = Rows { row: self.zero, end: None, receipt: None, list: None, ..*rows };
                }
            }
        }
    }
}

/// The product that both branches of an `If` make, if they make nothing else: the loader brings the operands of either.
fn one_product(kernel: &mut Kernel, kind: &OpKind) -> Option<Dot> {
    let OpKind::Control(ControlOp::If { then, otherwise, results, .. }) = kind else { return None };
    let [(out, first, second)] = results[..] else { return None };
    let product = |region: &Region| {
        let all = region.ops.iter().map(|op| &kernel.op(*op).kind);
        let mut acts = all.filter(|kind| !matches!(kind, OpKind::Value(_)));
        match (acts.next(), acts.next()) {
            (Some(OpKind::Matrix(MatrixOp::Dot(dot))), None) => Some(dot.clone()),
            _ => None,
        }
    };
    let (one, other) = (product(then)?, product(otherwise)?);
    let of = |dot: &Dot| dot.a.place.param().map(|p| kernel.params[p.index()].dtype);
    let constants = kernel.constants();
    let count = |dot: &Dot| constants[dot.count.index()];
    let alike =
        Dot { out: second, a: Rows { place: other.a.place, ..one.a }, count: other.count, ..one.clone() };
    let same = one.out == first && other == alike && of(&one) == of(&other) && count(&one) == count(&other);
    let count = count(&one).filter(|_| same && one.acc.is_none())?;
    Some(Dot { out, count: constant(kernel, count), ..one })
}

/// Whether a region does anything but compute, sets a variable, or ends a turn of a loop around it.
fn acts(kernel: &Kernel, region: &Region) -> bool {
    let mut found = false;
    kernel.walk(region, &mut |_, op| {
        found |= match &op.kind {
            OpKind::Value(_) | OpKind::Memory(MemoryOp::Load { .. }) => false,
            OpKind::Control(op) => match op {
                any!(exits) | ControlOp::VarSet { .. } => true,
                any!(branches) | ControlOp::VarDecl { .. } | ControlOp::VarGet { .. } => false,
            },
            OpKind::Memory(_) | OpKind::Matrix(_) | OpKind::Comm(_) => true,
        };
    });
    found
}

/// The variables of a region that only say what they are set to next themselves, or what other such variables are.
fn idle(kernel: &Kernel, region: &Region) -> HashSet<VarId> {
    let (mut open, mut makers, mut sets) = (vec![], HashMap::new(), HashMap::<_, Vec<_>>::new());
    kernel.walk(region, &mut |_, op| {
        makers.extend(op.kind.outs().into_iter().map(|v| (v, &op.kind)));
        match (op.kind.var_use(), &op.kind) {
            (Some((var, VarUse::Declare(value) | VarUse::Set(value))), _) => {
                sets.entry(var).or_default().push(value);
            }
            (Some((_, VarUse::Get(_))), _)
            | (None, OpKind::Value(_) | OpKind::Memory(MemoryOp::Load { .. })) => {}
            (None, kind) => open.extend(kind.operands().into_iter().chain(target(kernel, kind))),
        }
    });
    let mut seen = HashSet::new();
    while let Some(v) = open.pop() {
        let Some(kind) = makers.get(&v).filter(|_| seen.insert(v)) else { continue };
        match kind.var_use() {
            Some((var, _)) => open.extend(sets.remove(&var).into_iter().flatten()),
            None => open.extend(kind.operands()),
        }
    }
    sets.into_keys().collect()
}
