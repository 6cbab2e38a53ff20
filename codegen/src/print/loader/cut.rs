//! A kernel with loaders, cut in two: what the loader of a block runs, and what all its other warps do.

use std::collections::HashSet;

use super::{drawn, plan::Tails};
use crate::ir::{
    CommOp, Const, ControlOp, Dot, Kernel, MatrixOp, OpId, OpKind, ReceiptId, Region, ValueId, Wait, WaitAll,
    mutate::constant,
};
use crate::print::facts::Side;

/// One side's part of a kernel in which `roles` have loaders, which draw `drawn` for the others.
pub(crate) fn part(kernel: &Kernel, roles: &[usize], drawn: &HashSet<OpId>, side: Side) -> Kernel {
    let mut part = kernel.clone();
    let zero = constant(&mut part, Const::U32(0));
    for &role in roles {
        let waits = Waits::of(kernel, &kernel.roles[role].body);
        let body = std::mem::take(&mut part.roles[role].body);
        let last = Tails::of(kernel, &body).last;
        part.roles[role].body = Cut { side, zero, waits, drawn, last }.region(&mut part, body);
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
                OpKind::Matrix(MatrixOp::ReduceLines(_) | MatrixOp::StoreMatrix(_))
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

    /// Whether a side waits: for what it reads, for what nobody reads, and who signals for everything.
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
    /// What the loader draws for the others.
    drawn: &'a HashSet<OpId>,
    /// Whether a block is the last one, which the loader does not know.
    last: HashSet<ValueId>,
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
            OpKind::Comm(_) => self.side == Side::Multiplies,
            OpKind::Matrix(MatrixOp::Dot(dot)) => {
                self.product(dot);
                true
            }
            OpKind::Matrix(_) => self.side == Side::Multiplies,
            OpKind::Memory(op) if drawn::draws(kernel, op) => {
                self.side == Side::Loads || self.drawn.contains(&id)
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
            OpKind::Control(_) => true,
        };
        kernel.ops[id.index()].kind = kind;
        stays
    }

    /// The loader knows nothing of sums, and those who multiply nothing of where operands are.
    fn product(&self, dot: &mut Dot) {
        match self.side {
            Side::Loads => dot.acc = None,
            Side::Multiplies => {
                dot.from = self.zero;
                for rows in [&mut dot.a, &mut dot.b] {
                    (rows.row, rows.receipt) = (self.zero, None);
                }
            }
        }
    }
}

/// Whether a region does anything but compute, or ends a turn of a loop around it.
fn acts(kernel: &Kernel, region: &Region) -> bool {
    let mut found = false;
    kernel.walk(region, &mut |_, op| {
        let ends = matches!(op.kind, OpKind::Control(ControlOp::Break { .. } | ControlOp::Continue { .. }));
        found |= ends || !matches!(op.kind, OpKind::Value(_) | OpKind::Control(_));
    });
    found
}
