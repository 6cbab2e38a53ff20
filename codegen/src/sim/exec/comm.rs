//! Puts, signals and waits, and the delivery of what is on its way.

use smallvec::{SmallVec, smallvec};

use super::interpreter::{Flow, Stop};
use super::memory::Fault;
use crate::ir::{ANY_BLOCK, Dtype, ParamId, Place, ReceiptId, SignalOrder};
use crate::sim::flatten::{
    CommInsn,
    code::{AnyReg, EpochOf, TargetReg},
    insns,
};
use crate::sim::memory::{
    Cargo, DataEpoch, Event, Pending, Receipt, Spot, Who,
    flags::{Flag, newer},
    wire::{Payload, Signal},
};
use crate::sim::schedule::{
    Agent, AgentId, World,
    turns::{Delivery, Task},
};
use crate::sim::setup::options::Death;
use crate::sim::values::value::runs;

/// A wait on one flag.
struct Awaited {
    flag: ParamId,
    index: u64,
    from: Sender,
    value: u32,
    /// Whether a later epoch does, too.
    or_later: bool,
}

/// Who is expected to signal a flag.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender {
    /// This rank.
    Rank(u64),
    /// This block of its role, on the same rank.
    Block(u64),
    /// Any block on the same rank.
    AnyBlock,
}

impl Sender {
    /// A block, by what a wait says.
    fn block(from: u64, number: u64) -> Sender {
        if from == u64::from(ANY_BLOCK) {
            Sender::AnyBlock
        } else {
            Sender::Block(from.saturating_add(number))
        }
    }
}

impl World<'_> {
    pub fn communicate(&mut self, id: AgentId, agent: &mut Agent, insn: &CommInsn) -> Flow {
        let done = match insn {
            CommInsn::Put(insn) => self.put(agent, insn).map(|()| true),
            CommInsn::PutMatrix(insn) => self.put_matrix(agent, insn).map(|()| true),
            CommInsn::Signal(insn) => self.signal(agent, insn).map(|()| true),
            &CommInsn::Wait(insns::Wait { receipt, flag, index, from, value, epoch }) => {
                let rank = match self.near(agent, agent.get(from)) {
                    Ok(rank) => rank,
                    Err(fault) => return fault.into(),
                };
                let awaited = Awaited {
                    flag,
                    index: agent.get(index),
                    from: Sender::Rank(rank),
                    value: agent.get(value) as u32,
                    or_later: false,
                };
                agent.arrived_from = u32::MAX;
                self.wait(id, agent, &awaited)
                    .map(|arrived| arrived && self.received(agent, receipt, &awaited, epoch, &[rank]))
            }
            CommInsn::WaitAll(insn) => self.wait_all(id, agent, insn),
            CommInsn::BlockSignal(insn) => self.block_signal(agent, insn).map(|()| true),
            CommInsn::BlockWait(insn) => self.block_wait(id, agent, insn),
            CommInsn::SendMessages(insn) => self.send_messages(agent, insn).map(|()| true),
            CommInsn::Receive(insn) => self.receive(id, agent, insn),
            CommInsn::Far(insn) => self.far(id, agent, insn),
        };
        match done {
            Ok(true) => Flow::Next,
            Ok(false) => Flow::Stop(Stop::Waiting),
            Err(fault) => fault.into(),
        }
    }

    /// The target ranks, in order.
    pub fn targets(&mut self, agent: &Agent, target: TargetReg) -> Result<SmallVec<[usize; 8]>, Fault> {
        let list: SmallVec<[u64; 8]> = match target {
            TargetReg::Rank(r) => smallvec![agent.get(r)],
            TargetReg::Mask(m) => (0..64).filter(|bit| agent.get(m) >> bit & 1 != 0).collect(),
        };
        let mut ranks = SmallVec::new();
        for number in list {
            let rank = self.near(agent, number)? as usize;
            if self.machine.is_active(rank) {
                ranks.push(rank);
            }
        }
        Ok(ranks)
    }

    /// The rank with a number among those of the agent's machine.
    pub fn near(&mut self, agent: &Agent, number: u64) -> Result<u64, Fault> {
        match number < u64::from(agent.compiled.kernel().ranks) {
            true => Ok(agent.rank_near(number)),
            false => Err(self.no_such_near_rank(agent, number)),
        }
    }

    /// The epoch that a put belongs to.
    pub(crate) fn data_epoch(agent: &Agent, epoch: Option<EpochOf>) -> DataEpoch {
        let again = agent.step.again;
        epoch.map_or(DataEpoch { again, ..DataEpoch::default() }, |e| DataEpoch {
            word: agent.buffer(e.word) as u16 + 1,
            flag: agent.buffer(e.flag) as u16 + 1,
            epoch: agent.get(e.value) as u32,
            again,
        })
    }

    fn put(&mut self, agent: &mut Agent, insn: &insns::Put) -> Result<(), Fault> {
        let insns::Put { target, buffer: param, dtype, index, value, mask, epoch } = *insn;
        let size = u64::from(dtype.bytes());
        let (payload, parts) = put_parts(agent, dtype, value, mask);
        let base = agent.get(index);
        let elements: u64 = parts.iter().map(|p| (p.1 - p.0) as u64).sum();
        let (buffer, place) = (agent.buffer(param), Place::Param(param));
        let len = agent.compiled.kernel().params[param.index()].len;
        for &(a, b) in &parts {
            let (from, to) = (base.saturating_add(a as u64), base.saturating_add(b as u64));
            if to > len {
                return Err(self.out_of_bounds(agent, place, (from, to), len));
            }
        }
        let data_epoch = Self::data_epoch(agent, epoch);
        for rank in self.targets(agent, target)? {
            let counts = &mut self.counts[agent.kernel];
            counts.puts += 1;
            counts.bytes[agent.rank as usize][rank] += elements * size;
            if parts.is_empty() {
                continue;
            }
            for &(a, b) in &parts {
                let (from, to) = ((base + a as u64) * size, (base + b as u64) * size);
                self.note_put(agent, place, rank, (from, to), size, data_epoch);
            }
            let event = self.stored(agent);
            let cargo = Cargo::Data { buffer, at: base * size, payload: payload.clone() };
            let span = payload.span();
            let spot = Spot::Bytes { buffer, from: base * size, to: base * size + span };
            self.send(agent, rank, Pending { by: event, spot, cargo });
        }
        Ok(())
    }

    /// Records a put in the shadow of the target rank.
    pub(crate) fn note_put(
        &mut self,
        agent: &Agent,
        place: Place,
        rank: usize,
        (from, to): (u64, u64),
        size: u64,
        data_epoch: DataEpoch,
    ) {
        let Place::Param(param) = place else { return };
        let event = self.stored(agent);
        let mut clashes = std::mem::take(&mut self.clashes);
        if let Some(shadow) = &mut self.memory[rank][agent.buffer(param)].shadow {
            shadow.write(from, to, Who { clock: &agent.clock, event }, data_epoch, &mut clashes);
        }
        self.report_clashes(agent, place, size, Receipt::default(), &mut clashes);
        self.clashes = clashes;
    }

    fn signal(&mut self, agent: &mut Agent, insn: &insns::Signal) -> Result<(), Fault> {
        let insns::Signal { target, flag, index, value, order } = *insn;
        let (index, value) = (agent.get(index), agent.get(value) as u32);
        self.flag_exists(agent, flag, index)?;
        let targets = self.targets(agent, target)?;
        self.signal_ranks(agent, &targets, (flag, index), value, order);
        Ok(())
    }

    /// A signal of a flag that exists on ranks that exist.
    fn signal_ranks(
        &mut self,
        agent: &mut Agent,
        targets: &[usize],
        (flag, index): (ParamId, u64),
        value: u32,
        order: SignalOrder,
    ) {
        if targets.is_empty() {
            return;
        }
        let buffer = agent.buffer(flag);
        let by = agent.event(&self.sites);
        let step = agent.step.number;
        let adds = agent.compiled.kernel().counts(flag);
        let signal =
            Signal { value, step, clock: agent.publish(), release: order == SignalOrder::Release, adds };
        for &rank in targets {
            self.counts[agent.kernel].signals[agent.rank as usize][rank] += 1;
            let cargo = Cargo::Flag { buffer, index, signal: signal.clone() };
            let spot = Spot::Flag { buffer, index };
            self.send(agent, rank, Pending { by, spot, cargo });
        }
    }

    /// A signal to the blocks of the same rank: a release as any other, which becomes visible as late.
    fn block_signal(&mut self, agent: &mut Agent, insn: &insns::BlockSignal) -> Result<(), Fault> {
        let insns::BlockSignal { flag, index, value, order } = *insn;
        let (index, value) = (agent.get(index), agent.get(value) as u32);
        self.flag_exists(agent, flag, index)?;
        let own = [agent.rank as usize];
        self.signal_ranks(agent, &own, (flag, index), value, order);
        Ok(())
    }

    fn flag_exists(&mut self, agent: &Agent, flag: ParamId, index: u64) -> Result<(), Fault> {
        let len = agent.compiled.kernel().params[flag.index()].len;
        if index < len {
            return Ok(());
        }
        Err(self.out_of_bounds(agent, Place::Param(flag), (index, index.saturating_add(1)), len))
    }

    fn block_wait(&mut self, id: AgentId, agent: &mut Agent, insn: &insns::BlockWait) -> Result<bool, Fault> {
        let insns::BlockWait { flag, index, count, from, value, per_block } = *insn;
        let (first, count, value) = (agent.get(index), agent.get(count), agent.get(value) as u32);
        while agent.arrived < count {
            let index = first.saturating_add(agent.arrived);
            let from = Sender::block(agent.get(from), agent.arrived / u64::from(per_block.max(1)));
            if !self.wait(id, agent, &Awaited { flag, index, from, value, or_later: false })? {
                return Ok(false);
            }
            agent.arrived += 1;
        }
        agent.arrived = 0;
        let counts = &mut self.counts[agent.kernel];
        counts.waits += 1;
        counts.flags_waited += count;
        self.progress();
        Ok(true)
    }

    /// Puts a store on its way. Stores to the same place that are ordered before it arrive first.
    pub fn send(&mut self, agent: &Agent, rank: usize, pending: Pending) {
        self.progress();
        if self.dead == Some(agent.rank) {
            return;
        }
        let stores = &mut self.stores[agent.rank as usize];
        *stores += 1;
        if self.options.death == Some(Death { rank: agent.rank, after: *stores }) {
            self.dead = Some(agent.rank);
        }
        self.settle(rank, pending.spot, Who { clock: &agent.clock, event: pending.by });
        self.wires[rank].push(pending);
        if self.wires[rank].len() > self.options.max_delayed {
            self.deliver(rank, 0);
        }
    }

    /// Makes visible what is ordered before somebody, of the stores on their way to a place.
    pub fn settle(&mut self, rank: usize, spot: Spot, who: Who<'_>) {
        for p in self.wires[rank].take_to(&spot, |e| who.after(e)) {
            self.arrive(rank, p);
        }
    }

    /// As [`World::settle`], for an agent that is about to read its own rank's memory.
    pub fn settle_own(&mut self, agent: &Agent, spot: Spot) {
        let event = agent.event(&self.sites);
        self.settle(agent.rank as usize, spot, Who { clock: &agent.clock, event });
    }

    /// Makes the `at`-th store on its way to a rank visible. A release brings along what is ordered before it.
    fn deliver(&mut self, rank: usize, at: usize) {
        let Some(p) = self.wires[rank].take(at) else { return };
        if let Cargo::Flag { signal, .. } = &p.cargo
            && signal.release
        {
            for earlier in self.wires[rank].take_ordered(&signal.clock) {
                self.arrive(rank, earlier);
            }
        }
        self.arrive(rank, p);
    }

    fn arrive(&mut self, rank: usize, p: Pending) {
        match p.cargo {
            Cargo::Data { buffer, at, payload } => {
                payload.apply(&mut self.memory[rank][buffer].bytes_mut()[at as usize..]);
            }
            Cargo::Messages { buffer, letter } => self.messages_arrive(rank, buffer, letter, p.by),
            Cargo::Flag { buffer, index, signal } => self.set_flag(rank, buffer, index, p.by, &signal),
        }
    }

    fn set_flag(&mut self, rank: usize, buffer: usize, index: u64, by: Event, signal: &Signal) {
        let Some(flags) = &mut self.memory[rank][buffer].flags else { return };
        let released = signal.release.then(|| signal.clock.clone());
        let (old, taken, waiters) = if signal.adds {
            let (taken, waiters) = flags.add(index, signal, by, released);
            (None, taken, waiters)
        } else {
            let (old, waiters) = flags.set(index, Flag::of(signal, by, released));
            (old, None, waiters)
        };
        for id in waiters {
            if let Some(agent) = self.agents.get(id) {
                self.sched.ready(Task::Agent(id), agent.priority);
            }
        }
        if let Some(old) = old {
            self.check_overwritten(&old, (rank, buffer, index), by, signal);
        }
        if let Some(taken) = taken {
            self.check_taken(taken, (rank, buffer, index), by, signal);
        }
    }

    /// Makes some store on its way visible, where there is one. Returns whether there was.
    pub fn deliver_one(&mut self) -> bool {
        let ranks = self.wires.len();
        if self.wires.iter().all(|w| w.is_empty()) {
            return false;
        }
        let mut rank = self.sched.below(ranks);
        while self.wires[rank].is_empty() {
            rank = (rank + 1) % ranks;
        }
        let n = self.wires[rank].len();
        let at = match self.sched.delivery {
            Delivery::Random { .. } => self.sched.below(n),
            Delivery::Newest { .. } => n - 1,
            Delivery::Held => {
                let start = self.sched.below(n);
                self.wires[rank].flag_from(start).unwrap_or(start)
            }
        };
        self.deliver(rank, at);
        true
    }

    /// Makes a store visible now and then, as the scheduler says.
    pub fn deliver_by_chance(&mut self) {
        match self.sched.delivery {
            Delivery::Random { one_in } | Delivery::Newest { one_in } => {
                if self.sched.chance(one_in) {
                    self.deliver_one();
                }
            }
            Delivery::Held => {}
        }
    }

    /// Makes all stores on their way to a rank visible.
    pub fn deliver_all(&mut self, rank: usize) {
        for p in self.wires[rank].take_all() {
            self.arrive(rank, p);
        }
    }

    /// Whether a flag has the value; else registers the agent as waiting for it.
    fn wait(&mut self, id: AgentId, agent: &mut Agent, w: &Awaited) -> Result<bool, Fault> {
        self.flag_exists(agent, w.flag, w.index)?;
        if let Sender::Rank(from) = w.from
            && !self.machine.is_active(from as usize)
        {
            return Ok(true);
        }
        let (rank, buffer) = (agent.rank as usize, agent.buffer(w.flag));
        let event = agent.event(&self.sites);
        let Some(flags) = &mut self.memory[rank][buffer].flags else { return Ok(true) };
        let seen = flags.value(w.index);
        let counts = agent.compiled.kernel().counts(w.flag);
        let later = if counts { seen > w.value } else { newer(seen, w.value) };
        if seen != w.value && !(later && w.or_later) {
            if later {
                return Err(self.missed_epoch(agent, w.flag, w.index, w.value));
            }
            flags.wait(w.index, id);
            return Ok(false);
        }
        let mut senders = vec![];
        let mut step = 0;
        if let Some(flag) = flags.get_mut(w.index) {
            flag.seen.push(event);
            senders.push(flag.by);
            senders.append(&mut flag.others);
            step = if later { 0 } else { flag.step };
            if let Some(released) = &flag.released {
                agent.clock.join(released);
            }
            if counts {
                flag.take(event);
            }
        }
        agent.arrived_from = agent.arrived_from.min(step);
        for by in senders {
            self.check_sender(agent, w.flag, w.index, w.from, by);
        }
        Ok(true)
    }

    fn wait_all(&mut self, id: AgentId, agent: &mut Agent, insn: &insns::WaitAll) -> Result<bool, Fault> {
        let insns::WaitAll { receipt, flag, index, count, only, per_rank, value, or_later, epoch } = *insn;
        let (first, count, value) = (agent.get(index), agent.get(count), agent.get(value) as u32);
        let only = only.map(|m| agent.get(m));
        let chosen = |i: u64| only.is_none_or(|mask| mask >> i.min(63) & 1 != 0);
        if agent.arrived == 0 {
            agent.arrived_from = u32::MAX;
        }
        while agent.arrived < count {
            if !chosen(agent.arrived) {
                agent.arrived += 1;
                continue;
            }
            let index = first.saturating_add(agent.arrived);
            let from = Sender::Rank(agent.awaited_rank(index, per_rank));
            if !self.wait(id, agent, &Awaited { flag, index, from, value, or_later })? {
                return Ok(false);
            }
            agent.arrived += 1;
        }
        agent.arrived = 0;
        let sender = |i| agent.awaited_rank(first.saturating_add(i), per_rank);
        let from: Vec<u64> = (0..count).filter(|&i| chosen(i)).map(sender).collect();
        let all = Awaited { flag, index: first, from: Sender::Rank(0), value, or_later };
        Ok(self.received(agent, receipt, &all, epoch, &from))
    }

    /// Notes a satisfied wait, with the rank that signals each of its flags.
    fn received(
        &mut self,
        agent: &mut Agent,
        receipt: ReceiptId,
        awaited: &Awaited,
        epoch: Option<ParamId>,
        from: &[u64],
    ) -> bool {
        let counts = &mut self.counts[agent.kernel];
        counts.waits += 1;
        counts.flags_waited += from.len() as u64;
        self.progress();
        let word = epoch.map_or(0, |w| agent.buffer(w) as u16 + 1);
        let flag = agent.buffer(awaited.flag) as u16 + 1;
        let epoch = DataEpoch { word, flag, epoch: awaited.value, again: 0 };
        let first = agent.first_near();
        let heard = from.iter().fold(0, |mask, rank| mask | 1 << (rank - u64::from(first)));
        agent.receipts[receipt.index()] = Receipt { epoch, heard, first, step: agent.arrived_from, far: 0 };
        true
    }
}

/// What a put sends, and the runs of elements that it writes.
fn put_parts(
    agent: &Agent,
    dtype: Dtype,
    value: AnyReg,
    mask: Option<AnyReg>,
) -> (Payload, SmallVec<[(usize, usize); 1]>) {
    let size = dtype.bytes() as u8;
    match (value, mask) {
        (AnyReg::Scalar(v), Some(AnyReg::Scalar(m))) if agent.get(m) == 0 => {
            (Payload::Word(agent.get(v), 0), smallvec![])
        }
        (AnyReg::Scalar(v), _) => (Payload::Word(agent.get(v), size), smallvec![(0, 1)]),
        (AnyReg::Tile(v), Some(AnyReg::Tile(m))) => {
            let parts = runs(agent.tile(m)).collect();
            let masked = Box::new((agent.tile(v).clone(), agent.tile(m).clone()));
            (Payload::Masked(masked, size), parts)
        }
        (AnyReg::Tile(v), _) => {
            let tile = agent.tile(v).clone();
            let elements = tile.bytes() / size as usize;
            (Payload::Tile(tile), smallvec![(0, elements)])
        }
    }
}
