//! What a launch moves through the network cards of a GPU, and what that takes on a machine.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::Serialize;

use super::steps::Teller;
use super::*;
use crate::device::{FarMoved, FarPath};
use crate::ir::analysis::{Def, fold};

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
pub(super) fn far_use(
    kernel: &Kernel,
    facts: &Facts,
    (tree, defs): (&Tree, &DefUse),
    teller: &Teller<'_>,
) -> Option<FarUse> {
    kernel.far_channel()?;
    let is_far = |id: &&OpId| matches!(kernel.op(**id).kind, OpKind::Comm(any!(far)));
    let holds =
        tree.in_order().iter().filter(is_far).flat_map(|&id| tree.enclosing(id).chain([id])).collect();
    let tally = Tally { kernel, facts, defs, teller, holds, known: RefCell::default(), work: Cell::new(0) };
    Some(FarUse { moved: tally.ranks(), path: None })
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

/// Evaluations up to which a condition is decided for each rank, group and round by itself.
const WORK: u64 = 1 << 23;

/// What differs between runs of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Input {
    Node,
    Rank,
    Group,
    /// The counter of a loop.
    Counter(ValueId),
}

/// A number for an input, or none yet and whether a condition asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Is(u64),
    Open { asked: bool },
}

const OPEN: Number = Number::Open { asked: false };

/// How often a region runs.
#[derive(Clone, Copy)]
struct Runs {
    /// The groups that run it. With a number for the group, it stands for that one of them.
    groups: u64,
    /// Runs of all groups, or of the one; none for any number.
    times: Option<u64>,
}

/// Adds up the puts of regions. Conditions hold for some ranks, groups and rounds: an input gets its numbers one by one where a condition
/// depends on it, and else no number.
struct Tally<'a, 'k> {
    kernel: &'k Kernel,
    facts: &'a Facts,
    defs: &'a DefUse,
    teller: &'a Teller<'k>,
    /// The far operations, and what holds them.
    holds: BTreeSet<OpId>,
    known: RefCell<BTreeMap<Input, Number>>,
    work: Cell<u64>,
}

impl Tally<'_, '_> {
    /// The most that a rank moves.
    fn ranks(&self) -> Option<FarMoved> {
        let (nodes, ranks) = (self.kernel.nodes.into(), self.kernel.ranks.into());
        self.for_each(Input::Node, 0..nodes, most, |_| {
            self.for_each(Input::Rank, 0..ranks, most, |_| {
                let role = |(number, role): (usize, &Role)| self.role(role, self.kernel.role_blocks(number));
                let mut roles = self.kernel.roles.iter().enumerate().map(role);
                roles.try_fold(FarMoved::default(), |all, role| Some(sum(all, role?)))
            })
        })
    }

    fn role(&self, role: &Role, blocks: u32) -> Option<FarMoved> {
        let groups = blocks.into();
        self.for_each(Input::Group, 0..groups, sum, |one| {
            let times = Some(if one { 1 } else { groups });
            self.region(&role.body, Runs { groups, times })
        })
    }

    /// What something moves without a number for an input, or if a condition asks for it, with each one. `act` gets whether it has one.
    fn for_each(
        &self,
        input: Input,
        numbers: impl Iterator<Item = u64>,
        both: fn(FarMoved, FarMoved) -> FarMoved,
        act: impl Fn(bool) -> Option<FarMoved>,
    ) -> Option<FarMoved> {
        let set = |number| self.known.borrow_mut().insert(input, number);
        set(OPEN);
        let mut moved = act(false);
        // A number for an input further out is chosen first.
        let asked = |number: &&Number| **number == Number::Open { asked: true };
        let asked =
            (self.known.borrow()[&input] != OPEN).then(|| self.known.borrow().values().filter(asked).count());
        if asked == Some(1) && self.work.get() < WORK {
            let each = { numbers }.try_fold(FarMoved::default(), |all, number| {
                set(Number::Is(number));
                let one = act(true)?;
                // Without an end to it, the bound holds that takes each condition both ways.
                (self.work.get() < WORK).then(|| both(all, one))
            });
            moved = each.or(moved);
        }
        self.known.borrow_mut().remove(&input);
        moved
    }

    /// What a region moves; none if it puts and may run any number of times.
    fn region(&self, region: &Region, runs: Runs) -> Option<FarMoved> {
        let far = region.ops.iter().filter(|id| self.holds.contains(id));
        far.map(|&id| self.op(&self.kernel.op(id).kind, runs))
            .try_fold(FarMoved::default(), |all, op| Some(sum(all, op?)))
    }

    fn op(&self, op: &OpKind, runs: Runs) -> Option<FarMoved> {
        let nothing = Some(FarMoved::default());
        match op {
            OpKind::Comm(CommOp::FarPut(FarPut { peer, inbox, len, reach, .. })) => {
                let puts = runs.times?.saturating_mul(self.others(*peer, *reach));
                let each = u64::from(*len) * u64::from(self.kernel.params[inbox.index()].element_bytes());
                Some(FarMoved { puts, bytes: puts.saturating_mul(each), ..FarMoved::default() })
            }
            // Behind puts it is a part of the last one.
            OpKind::Comm(CommOp::FarPublish(FarPublish { peer, counts, reach, .. }))
                if !self.kernel.far_is_put(*counts) =>
            {
                let credits = runs.times?.saturating_mul(self.others(*peer, *reach));
                Some(FarMoved { credits, ..FarMoved::default() })
            }
            OpKind::Comm(CommOp::FarSettle(_)) => Some(FarMoved { settles: true, ..FarMoved::default() }),
            OpKind::Control(control) => self.control(control, runs),
            OpKind::Comm(_) | OpKind::Value(_) | OpKind::Memory(_) | OpKind::Matrix(_) => nothing,
        }
    }

    fn control(&self, op: &ControlOp, runs: Runs) -> Option<FarMoved> {
        match op {
            ControlOp::If { cond, then, otherwise, .. } => match self.value(*cond) {
                Some(Const::Bool(true)) => self.region(then, runs),
                Some(_) => self.region(otherwise, runs),
                None => Some(most(self.region(then, runs)?, self.region(otherwise, runs)?)),
            },
            ControlOp::For { var, start, end, step, body } => {
                let Runs { groups, times } = runs;
                let by = self.int(*step).filter(|step| *step > 0);
                // Rounds that are dealt to the groups are counted once for all of them.
                let shared = by == Some(groups)
                    && self.teller.is_group_index(*start)
                    && !matches!(self.known.borrow().get(&Input::Group), Some(Number::Is(_)));
                let (first, by, times) = match shared {
                    true => (0, Some(1), times.map(|times| times.div_ceil(groups.max(1)))),
                    false => (self.int(*start).unwrap_or(0), by, times),
                };
                let rounds = self.most(*end).zip(by).map(|(end, by)| (first..end).step_by(by as usize));
                let all = rounds.clone().map(|rounds| rounds.count() as u64);
                self.for_each(Input::Counter(*var), rounds.into_iter().flatten(), sum, |one| {
                    let rounds = if one { Some(1) } else { all };
                    let times = times.zip(rounds).map(|(times, rounds)| times.saturating_mul(rounds));
                    self.region(body, Runs { groups, times })
                })
            }
            ControlOp::While { header, body, .. } => {
                let any = Runs { times: None, ..runs };
                Some(sum(self.region(header, any)?, self.region(body, any)?))
            }
            ControlOp::Split { warps, body } => {
                let each = u64::from(self.kernel.block_warps / warps);
                // Its groups have numbers of their own: no condition on these is decided.
                let group = self.known.borrow_mut().remove(&Input::Group);
                let times = runs.times.map(|times| times.saturating_mul(each));
                let moved = self.region(body, Runs { groups: runs.groups * each, times });
                self.known.borrow_mut().extend(group.map(|group| (Input::Group, group)));
                moved
            }
            any!(exits, variables) => Some(FarMoved::default()),
        }
    }

    /// A value with the inputs' numbers. Of an input that has none it asks for one.
    fn value(&self, v: ValueId) -> Option<Const> {
        if let Some(constant) = self.facts.constant(v) {
            return Some(constant);
        }
        self.work.set(self.work.get() + 1);
        let input = match self.defs.def(v) {
            Def::Counter(_) => Input::Counter(v),
            Def::Nothing => return None,
            Def::Op(id) => {
                let kind = &self.kernel.op(id).kind;
                let inputs = [
                    (matches!(kind, OpKind::Value(ValueOp::Rank { .. })), Input::Rank),
                    (matches!(kind, OpKind::Value(ValueOp::Node { .. })), Input::Node),
                    (matches!(kind, OpKind::Value(ValueOp::GroupIndex { .. })), Input::Group),
                ];
                match inputs.into_iter().find(|(is, _)| *is) {
                    Some((_, input)) => input,
                    None => return fold(kind, self.kernel.ty(v), &|v| self.value(v)),
                }
            }
        };
        match self.known.borrow_mut().get_mut(&input)? {
            Number::Is(number) => Const::U64(*number).cast(self.kernel.ty(v).dtype),
            open => {
                *open = Number::Open { asked: true };
                None
            }
        }
    }

    fn int(&self, v: ValueId) -> Option<u64> {
        self.value(v)?.as_int().and_then(|n| u64::try_from(n).ok())
    }

    /// The most that a value is, as far as it is chosen from known numbers.
    fn most(&self, v: ValueId) -> Option<u64> {
        if let Some(n) = self.int(v) {
            return Some(n);
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
