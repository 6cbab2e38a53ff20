//! Findings in words.

use super::finding::{Finding, FindingKind, Party};
use crate::ir::{
    CommOp, ControlOp, Kernel, MatrixOp, MemoryOp, OpId, OpKind, ParamId, Place, Transport, analysis::Tree,
};
use crate::sim::exec::{Fault, comm::Sender, memory::place_name};
use crate::sim::memory::{
    DataEpoch, Event, Receipt, Spot, Who,
    flags::{Flag, newer},
    shadow::{Action, Clash, ClashKind},
    wire::Signal,
};
use crate::sim::schedule::{Agent, World, launch::Life, world::HOST_SITE};
use crate::sim::setup::Step;

/// The role that a block does something as, and its number there: it may have gone on as another one.
fn acting_role(kernel: &Kernel, op: OpId, own: (usize, u32)) -> (usize, u32) {
    let now = || Tree::of(kernel).position(op)?.role;
    match kernel.goes_on(own.0) {
        Some((next, first)) if now() == Some(next) => (next, first + own.1),
        _ => own,
    }
}

impl World<'_> {
    /// Records a finding that is about no buffer.
    pub fn find(&mut self, kind: FindingKind, message: String, at: Event, other: Option<Event>) {
        let (at, other) = (self.party(at), other.map(|e| self.party(e)));
        self.found.add(Finding {
            kind,
            message,
            at,
            other,
            buffer: None,
            elements: None,
            chain: vec![],
            times: 1,
        });
    }

    /// Records a finding about elements of a buffer.
    pub fn find_at(
        &mut self,
        kind: FindingKind,
        message: String,
        at: Event,
        other: Option<Event>,
        buffer: &str,
        elements: (u64, u64),
    ) {
        let (at, other) = (self.party(at), other.map(|e| self.party(e)));
        let (buffer, elements) = (Some(buffer.into()), Some(elements));
        self.found.add(Finding { kind, message, at, other, buffer, elements, chain: vec![], times: 1 });
    }

    /// The agent that did something.
    fn life(&self, event: Event) -> Option<&Life> {
        let mut lives = self.lives[event.agent.rank()].iter().rev();
        lives.find(|l| l.number == event.agent.number() && l.from <= event.time)
    }

    /// The operation that a site stands for.
    fn operation(&self, site: u32) -> Option<(&Kernel, OpId)> {
        if site == HOST_SITE {
            return None;
        }
        let number = self.sites.partition_point(|&first| first <= site).checked_sub(1)?;
        Some((&self.machine.kernels[number].kernel, OpId(site - self.sites[number])))
    }

    /// Who did something, in words.
    pub fn party(&self, event: Event) -> Party {
        let rank = event.agent.rank() as u32;
        let Some((kernel, op)) = self.operation(event.site) else {
            let action = if event.time == 0 { "content before the run" } else { "host step" };
            return Party {
                rank,
                kernel: None,
                role: None,
                block: None,
                group: None,
                loc: None,
                epoch: None,
                action: action.into(),
            };
        };
        let life = self.life(event);
        let at = life.map(|l| acting_role(kernel, op, (l.role, l.block)));
        Party {
            rank,
            kernel: Some(kernel.name.clone()),
            role: at.map(|(role, _)| kernel.roles[role].name.clone()),
            block: at.map(|(_, block)| block),
            group: life.and_then(|l| l.group),
            loc: Some(kernel.op(op).loc),
            epoch: life.and_then(|l| self.epochs[l.launch]),
            action: describe(kernel, op),
        }
    }

    pub fn out_of_bounds(&mut self, agent: &Agent, place: Place, (from, to): (u64, u64), len: u64) -> Fault {
        let (mut from, mut to) = (from, to);
        if from > u64::from(u32::MAX) && Self::has_narrow_index(agent) {
            if from as i64 >= 0 {
                return self.wrapped_index(agent, place, from);
            }
            // Below zero: what wraps is outside of every buffer.
            (from, to) = (u64::from(from as u32), u64::from(from as u32) + to.saturating_sub(from).max(1));
        }
        let name = place_name(agent, place);
        let message = match to.saturating_sub(from) {
            1 => format!("element {from} of `{name}` does not exist: it has {len}"),
            _ => format!("elements {from}..{to} of `{name}` do not all exist: it has {len}"),
        };
        let at = agent.event(&self.sites);
        self.find_at(FindingKind::OutOfBounds, message, at, None, &name, (from, to));
        Fault
    }

    pub fn no_such_rank(&mut self, agent: &Agent, rank: u64) -> Fault {
        let message = format!("rank {} does not exist: there are {}", rank as u32, self.machine.ranks);
        self.wrong_rank(agent, message)
    }

    /// A number that no rank of the agent's node has.
    pub fn no_such_near_rank(&mut self, agent: &Agent, number: u64) -> Fault {
        let kernel = agent.compiled.kernel();
        if kernel.nodes == 1 {
            return self.no_such_rank(agent, number);
        }
        let (number, ranks) = (number as u32, kernel.ranks);
        let message = format!("rank {number} of a node does not exist: each node has {ranks}");
        self.wrong_rank(agent, message)
    }

    fn wrong_rank(&mut self, agent: &Agent, message: String) -> Fault {
        let at = agent.event(&self.sites);
        self.find(FindingKind::OutOfBounds, message, at, None);
        Fault
    }

    /// A wait for an epoch that the flag has left behind.
    pub fn missed_epoch(&mut self, agent: &Agent, flag: ParamId, index: u64, expected: u32) -> Fault {
        let name = place_name(agent, Place::Param(flag));
        let flags = self.memory[agent.rank as usize][agent.buffer(flag)].flags.as_ref();
        let now = flags.and_then(|f| f.get(index)).map(|f| (f.value, f.by));
        let seen = now.map_or(0, |n| n.0);
        let newer = if agent.compiled.kernel().counts(flag) { "" } else { "the newer " };
        let message = format!(
            "the wait expects {name}[{index}] = {expected}, but it already holds {newer}{seen}: this wait would \
             never end"
        );
        let at = agent.event(&self.sites);
        let other = now.map(|n| n.1);
        self.find_at(FindingKind::EpochConfusion, message, at, other, &name, (index, index + 1));
        Fault
    }

    /// Checks that the rank that signalled a flag is the one that it is awaited from.
    pub fn check_sender(&mut self, agent: &Agent, flag: ParamId, index: u64, from: Sender, by: Event) {
        let (awaited, sender) = match from {
            Sender::Rank(from) if by.agent.rank() as u64 != from => {
                (format!("rank {from}"), format!("rank {}", by.agent.rank()))
            }
            Sender::Block(from) if self.life(by).is_some_and(|l| u64::from(l.block) != from) => {
                (format!("block {from}"), self.name(by))
            }
            Sender::Rank(_) | Sender::Block(_) | Sender::AnyBlock => return,
        };
        let name = place_name(agent, Place::Param(flag));
        let message = format!("{name}[{index}] is awaited from {awaited}, but {sender} signalled it");
        let at = agent.event(&self.sites);
        self.find_at(FindingKind::WrongSender, message, at, Some(by), &name, (index, index + 1));
    }

    /// Checks that a signal does no harm to the one before it on the same flag, which is given by rank, buffer and index.
    pub fn check_overwritten(
        &mut self,
        old: &Flag,
        (rank, buffer, index): (usize, usize, u64),
        by: Event,
        signal: &Signal,
    ) {
        let name = self.machine.buffers[buffer].name.clone();
        let (flag, value) = (format!("{name}[{index}] of rank {rank}"), signal.value);
        let who = Who { clock: &signal.clock, event: by };
        let unordered = old.seen.iter().copied().find(|&e| !who.after(e));
        let (kind, message, other) = if value == old.value {
            let message = format!("{flag} is signalled twice with the same value {value}");
            (FindingKind::DoubledSignal, message, old.by)
        } else if newer(old.value, value) {
            let message = format!("{flag} is set back from {} to the older {value}", old.value);
            (FindingKind::EpochConfusion, message, old.by)
        } else if self.memory[rank][buffer].flags.as_ref().is_some_and(|flags| flags.grows) {
            return;
        } else if old.seen.is_empty() {
            let message = format!("{flag} = {} is overwritten by {value} before any wait saw it", old.value);
            (FindingKind::LostSignal, message, old.by)
        } else if let Some(wait) = unordered {
            let message = format!(
                "{flag} changes from {} to {value}, and nothing orders that after the wait for {0}, which could miss it",
                old.value
            );
            (FindingKind::LostSignal, message, wait)
        } else {
            return;
        };
        self.find_at(kind, message, by, Some(other), &name, (index, index + 1));
    }

    /// Checks that an addition to a count comes after the take before it.
    pub fn check_taken(
        &mut self,
        taken: Event,
        (rank, buffer, index): (usize, usize, u64),
        by: Event,
        signal: &Signal,
    ) {
        if (Who { clock: &signal.clock, event: by }).after(taken) {
            return;
        }
        let name = self.machine.buffers[buffer].name.clone();
        let message = format!(
            "nothing orders this signal of {name}[{index}] of rank {rank} after the wait that takes the count before: it could be \
             counted with that"
        );
        self.find_at(FindingKind::LostSignal, message, by, Some(taken), &name, (index, index + 1));
    }

    /// Turns what an access of an agent clashes with into findings, and empties the list.
    pub fn report_clashes(
        &mut self,
        agent: &Agent,
        place: Place,
        size: u64,
        receipt: Receipt,
        clashes: &mut Vec<Clash>,
    ) {
        if clashes.is_empty() {
            return;
        }
        let at = agent.event(&self.sites);
        let name = place_name(agent, place);
        for clash in clashes.drain(..) {
            self.report_clash(at, &name, size, receipt, clash);
        }
    }

    fn report_clash(&mut self, at: Event, name: &str, size: u64, receipt: Receipt, clash: Clash) {
        let elements = (clash.from / size, clash.to.div_ceil(size));
        let range = format!("{name}[{}..{}]", elements.0, elements.1);
        let (kind, message, other) = match clash.kind {
            ClashKind::Unwritten => {
                (FindingKind::UninitializedRead, format!("{range} is read, but was never written"), None)
            }
            ClashKind::Race { with, was } => {
                let was = match was {
                    Action::Read => "a read",
                    Action::Write => "a write",
                    Action::Atomic => "an atomic",
                };
                let message =
                    format!("nothing orders this access of {range} after {was} by {}", self.name(with));
                (FindingKind::DataRace, message, Some(with))
            }
            ClashKind::Epoch { written, epoch } => {
                let expected = receipt.epoch.epoch;
                let (kind, age) = if newer(epoch, expected) {
                    (FindingKind::EpochConfusion, "the newer")
                } else {
                    (FindingKind::StaleRead, "the older")
                };
                let message = format!(
                    "{range} is read after a wait for epoch {}, but its content is of {age} epoch {epoch}",
                    expected
                );
                (kind, message, Some(written))
            }
            ClashKind::Age { written, again } => {
                let rank = written.agent.rank();
                let launch = |step| self.launch_at(rank, step);
                let wrote = self.life(written).map_or(0, |l| self.launched_in[l.launch].1);
                let message = format!(
                    "{range} is read after a signal of rank {rank}'s launch {}, but its content is older: rank {rank} wrote it in \
                     launch {} and launched the same kernel again in launch {}",
                    launch(receipt.step),
                    launch(wrote),
                    launch(again)
                );
                (FindingKind::StaleRead, message, Some(written))
            }
        };
        self.find_at(kind, message, at, other, name, elements);
    }

    /// The number of the launch that a step of a rank's program is, from 1 on.
    pub fn launch_at(&self, rank: usize, step: u32) -> usize {
        let steps = self.machine.programs[rank].iter().take(step as usize + 1);
        steps.filter(|s| matches!(s, Step::Launch { .. })).count()
    }

    /// Short name of a party.
    fn name(&self, event: Event) -> String {
        let party = self.party(event);
        match (party.role, party.block) {
            (Some(role), Some(block)) => format!("rank {} {role} block {block}", party.rank),
            _ => format!("the host of rank {}", party.rank),
        }
    }

    /// Records a host's read of bytes of its rank's memory.
    pub fn host_read(&mut self, rank: u32, buffer: usize, from: u64, to: u64) {
        self.host_access(rank, buffer, from, to, false);
    }

    /// Records a host's write.
    pub fn host_write(&mut self, rank: u32, buffer: usize, from: u64, to: u64) {
        self.host_access(rank, buffer, from, to, true);
    }

    fn host_access(&mut self, rank: u32, buffer: usize, from: u64, to: u64, write: bool) {
        let event = self.host_event(rank);
        // The stream's clock is lent out: settling needs the rest of the world.
        let clock = self.streams[rank as usize].clock.clone();
        let who = Who { clock: &clock, event };
        self.settle(rank as usize, Spot::Bytes { buffer, from, to }, who);
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.memory[rank as usize][buffer].shadow {
            if write {
                shadow.write(from, to, who, DataEpoch::default(), &mut clashes);
            } else {
                shadow.read(from, to, who, Receipt::default(), &mut clashes);
            }
        }
        let name = self.machine.buffers[buffer].name.clone();
        for clash in clashes.drain(..) {
            self.report_clash(event, &name, 1, Receipt::default(), clash);
        }
        self.clashes = clashes;
    }
}

/// What an operation does, in words.
pub(crate) fn describe(kernel: &Kernel, op: OpId) -> String {
    let param = |p: ParamId| format!("`{}`", kernel.params[p.index()].name);
    let place = |p: Place| match p {
        Place::Param(p) => param(p),
        Place::Shared(s) => format!("shared `{}`", kernel.shared[s.index()].name),
        Place::Peer(p, _) => format!("a rank's {}", param(p)),
        Place::All(p, _) => format!("all ranks' {}", param(p)),
    };
    let kind = &kernel.op(op).kind;
    let message = |transport: Transport, does: &str| format!("{does} {}", transport.traits().label);
    let verb = match kind {
        OpKind::Memory(op) => match op {
            MemoryOp::Load { .. } | MemoryOp::LoadMasked { .. } => "load of",
            MemoryOp::Gather { .. } => "gather from",
            MemoryOp::Store { .. } => "store to",
            MemoryOp::Scatter { adds: true, .. } => "additions to",
            MemoryOp::Scatter { .. } => "scatter to",
            MemoryOp::Atomic { .. } => "atomic on",
            MemoryOp::Tally { .. } => "tally on",
            MemoryOp::Ticket { .. } => "ticket of",
        },
        OpKind::Matrix(op) => match op {
            MatrixOp::Dot(_) => "dot of",
            MatrixOp::LoadMatrix(_) | MatrixOp::LoadRow(_) => "load of",
            MatrixOp::StoreMatrix(_) => "store to",
            MatrixOp::ReduceLines(_) | MatrixOp::Deinterleave(_) => return "arithmetic".into(),
        },
        OpKind::Comm(op) => match op {
            CommOp::Put(_) | CommOp::PutMatrix(_) => "put to",
            CommOp::BulkCopy(_) => "copy of",
            any!(signals) => "signal of",
            CommOp::FarPut(_) => "far put of",
            CommOp::FarPublish(_) => "far publish of",
            CommOp::FarSettle(_) => "settling of",
            any!(waits) | CommOp::FarWait(_) => "wait on",
            CommOp::SendMessages(op) => &message(op.transport, "sending"),
            CommOp::ReceiveMessages(op) => &message(op.transport, op.transport.traits().receiving),
        },
        OpKind::Value(_) => return "arithmetic".into(),
        OpKind::Control(any!(branches, exits)) => return "control flow".into(),
        OpKind::Control(any!(variables)) => return "variable".into(),
    };
    let and = if matches!(kind, OpKind::Comm(_)) { " to " } else { " and " };
    let places: Vec<String> = kind.accesses().iter().map(|a| place(a.place)).collect();
    format!("{verb} {}", places.join(and))
}
