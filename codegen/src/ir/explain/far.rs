//! What a launch moves through the network cards of a GPU, and what that takes on a machine.

use std::fmt;

use serde::Serialize;

use super::steps::Teller;
use super::*;
use crate::device::{FarMoved, FarPath};
use crate::ir::analysis::Def;

/// What a launch moves through the network cards of the rank that moves most.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FarUse {
    /// The most that it moves; none where a loop has any number of rounds.
    pub moved: Option<FarMoved>,
    /// The way of a described machine; none where no machine is described.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<FarPath>,
}

/// The use of a kernel that has far channels.
pub(super) fn far_use(kernel: &Kernel, facts: &Facts, defs: &DefUse, teller: &Teller<'_>) -> Option<FarUse> {
    kernel.far_channel()?;
    let tally = Tally { kernel, facts, defs, teller };
    let moved = kernel.roles.iter().enumerate().try_fold(FarMoved::default(), |all, (number, role)| {
        let groups = kernel.role_blocks(number).into();
        Some(sum(all, tally.region(&role.body, groups, Some(groups))?))
    });
    Some(FarUse { moved, path: None })
}

fn sum(a: FarMoved, b: FarMoved) -> FarMoved {
    FarMoved {
        puts: a.puts.saturating_add(b.puts),
        bytes: a.bytes.saturating_add(b.bytes),
        credits: a.credits.saturating_add(b.credits),
        settles: a.settles || b.settles,
    }
}

/// The larger of each.
fn most(a: FarMoved, b: FarMoved) -> FarMoved {
    FarMoved {
        puts: a.puts.max(b.puts),
        bytes: a.bytes.max(b.bytes),
        credits: a.credits.max(b.credits),
        settles: a.settles || b.settles,
    }
}

/// Adds up the puts of regions.
struct Tally<'a, 'k> {
    kernel: &'k Kernel,
    facts: &'a Facts,
    defs: &'a DefUse,
    teller: &'a Teller<'k>,
}

impl Tally<'_, '_> {
    /// Of a region that all of these groups together run so many times; none if it puts and may run any number of times.
    fn region(&self, region: &Region, groups: u64, times: Option<u64>) -> Option<FarMoved> {
        let add = |all, &id: &OpId| Some(sum(all, self.op(&self.kernel.op(id).kind, groups, times)?));
        region.ops.iter().try_fold(FarMoved::default(), add)
    }

    fn op(&self, op: &OpKind, groups: u64, times: Option<u64>) -> Option<FarMoved> {
        let nothing = Some(FarMoved::default());
        match op {
            OpKind::Comm(CommOp::FarPut(FarPut { peer, inbox, len, reach, .. })) => {
                let puts = times?.saturating_mul(self.others(*peer, *reach));
                let each = u64::from(*len) * u64::from(self.kernel.params[inbox.index()].element_bytes());
                Some(FarMoved { puts, bytes: puts.saturating_mul(each), ..FarMoved::default() })
            }
            // Behind puts it is a part of the last one.
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, counts, reach, .. }))
                if !self.kernel.far_is_put(*counts) =>
            {
                let credits = times?.saturating_mul(self.others(*peer, *reach));
                Some(FarMoved { credits, ..FarMoved::default() })
            }
            OpKind::Comm(CommOp::FarSettle(_)) => Some(FarMoved { settles: true, ..FarMoved::default() }),
            OpKind::Control(control) => self.control(control, groups, times),
            OpKind::Comm(_) | OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) => nothing,
        }
    }

    fn control(&self, op: &ControlOp, groups: u64, times: Option<u64>) -> Option<FarMoved> {
        match op {
            ControlOp::If { then, otherwise, .. } => {
                let both = [then, otherwise].map(|region| self.region(region, groups, times));
                Some(most(both[0]?, both[1]?))
            }
            ControlOp::For { start, end, step, body, .. } => {
                let int = |v: &ValueId| self.facts.int(*v).and_then(|n| u64::try_from(n).ok());
                // Rounds that are dealt to the groups are counted once for all of them.
                let dealt = int(step) == Some(groups) && self.teller.is_group_index(*start);
                let (first, times) = match dealt {
                    true => (0, times.map(|times| times / groups.max(1))),
                    false => (int(start).unwrap_or(0), times),
                };
                let by = if dealt { Some(1) } else { int(step).filter(|step| *step > 0) };
                let rounds = self.most(*end).zip(by).map(|(end, by)| end.saturating_sub(first).div_ceil(by));
                let times = times.zip(rounds).map(|(times, rounds)| times.saturating_mul(rounds));
                self.region(body, groups, times)
            }
            ControlOp::While { header, body, .. } => {
                Some(sum(self.region(header, groups, None)?, self.region(body, groups, None)?))
            }
            ControlOp::Split { warps, body } => {
                let each = u64::from(self.kernel.block_warps / warps);
                self.region(body, groups * each, times.map(|times| times.saturating_mul(each)))
            }
            any!(exits, variables) => Some(FarMoved::default()),
        }
    }

    /// The most that a value is, as far as it is chosen from known numbers.
    fn most(&self, v: ValueId) -> Option<u64> {
        if let Some(n) = self.facts.int(v) {
            return u64::try_from(n).ok();
        }
        let Def::Op(id) = self.defs.def(v) else { return None };
        match &self.kernel.op(id).kind {
            OpKind::Value(ValueOp::Select { a, b, .. }) => Some(self.most(*a)?.max(self.most(*b)?)),
            OpKind::Value(ValueOp::Binary { op: BinaryOp::Min, a, b, .. }) => {
                self.most(*a).into_iter().chain(self.most(*b)).min()
            }
            OpKind::Value(_)
            | OpKind::Memory(_)
            | OpKind::Matrix(_)
            | OpKind::Comm(_)
            | OpKind::Control(_) => None,
        }
    }

    /// The other ranks that a put goes to, at most.
    fn others(&self, peer: Option<ValueId>, reach: FarReach) -> u64 {
        let (_, ranks) = reach.of(self.kernel);
        peer.map_or(ranks.saturating_sub(1).into(), |_| 1)
    }
}

impl Explain {
    /// With the times of a machine's network cards.
    #[must_use]
    pub fn with_far_path(mut self, path: &FarPath) -> Explain {
        if let Some(far) = &mut self.far {
            far.path = Some(*path);
        }
        self
    }
}

impl fmt::Display for FarUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(moved) = &self.moved else {
            return write!(f, "Network cards move as many messages as its loops put.");
        };
        write!(
            f,
            "Network cards move at most {} a launch, in {}, and {}.",
            words::bytes(moved.bytes),
            text::count(moved.puts, "message"),
            text::count(moved.credits, "credit"),
        )?;
        let Some(path) = &self.path else { return Ok(()) };
        let card = path.card_us(moved);
        write!(
            f,
            " As much keeps them ({:.1} GB/s, {:.2} puts a us) busy for {card:.1} us:",
            path.gbps, path.puts_per_us
        )?;
        write!(f, " the last message is counted after {:.1} us", path.arrive_us(moved))?;
        if moved.settles {
            write!(f, " and locally complete after {:.1} us", path.settle_us(moved))?;
        }
        if moved.credits > 0 {
            write!(f, "; a credit takes {:.1} us", path.credit_us())?;
        }
        write!(f, ". Such a launch takes {:.1} us or more.", path.launch_us(moved))
    }
}
