//! Waits for counters and for local completion.

use super::{CounterAt, FarWait, Waited};
use crate::ir::ParamId;
use crate::sim::exec::comm::Sender;
use crate::sim::exec::memory::Fault;
use crate::sim::findings::finding::FindingKind;
use crate::sim::memory::shadow::{Event, Receipt, Who};
use crate::sim::schedule::agent::{Agent, AgentId};
use crate::sim::schedule::world::World;

impl World<'_> {
    pub(super) fn far_wait(&mut self, id: AgentId, agent: &mut Agent, wait: &FarWait) -> Result<bool, Fault> {
        let FarWait { receipt, counts, counter, count, from, value, reach } = *wait;
        let (first, count, from) = (agent.get(counter), agent.get(count), agent.get(from));
        let value = agent.get(value);
        let ranks = u64::from(self.machine.ranks);
        let step = u64::from(reach.of(agent.compiled.kernel()).0);
        let last = from.saturating_add(count.saturating_sub(1).saturating_mul(step));
        if last >= ranks {
            return Err(self.no_such_rank(agent, last));
        }
        while agent.arrived < count {
            if reach.others && from + agent.arrived * step == u64::from(agent.rank) {
                agent.arrived += 1;
                continue;
            }
            let index = first.saturating_add(agent.arrived * step);
            let at = self.far_counter(agent, counts, agent.rank as usize, index)?;
            let counter = self.far.counters.entry(at).or_default();
            if counter.arrived < counter.taken + value {
                counter.waiting.push(id);
                return Ok(false);
            }
            agent.arrived += 1;
        }
        agent.arrived = 0;
        let at = |i: u64| (agent.rank as usize, agent.buffer(counts), first + i * step);
        let own = u64::from(agent.rank);
        let meant = (0..count).filter(|i| !reach.others || from + i * step != own);
        let all: Vec<(u64, CounterAt)> = meant.map(|i| (from + i * step, at(i))).collect();
        let mut taken = vec![];
        for (from, at) in all {
            taken.push((at, self.far_take(agent, at, value)));
            let sender = self.far.counters.get(&at).and_then(|c| c.turns.last()).map(|turn| turn.first);
            if let Some(by) = sender.filter(|_| value > 0) {
                self.check_sender(agent, counts, at.2, Sender::Rank(from), by);
            }
        }
        self.far.waits.push(Waited { taken });
        agent.receipts[receipt.index()] = Receipt { far: self.far.waits.len() as u32, ..Receipt::default() };
        let told = &mut self.counts[agent.kernel];
        told.waits += 1;
        told.flags_waited += count;
        self.progress();
        Ok(true)
    }

    /// Takes from a counter. The group then knows what came before the turns that are over. Returns what all waits have taken.
    fn far_take(&mut self, agent: &mut Agent, at: CounterAt, value: u64) -> u64 {
        let event = agent.event(&self.sites);
        let Some(counter) = self.far.counters.get_mut(&at).filter(|_| value > 0) else {
            return self.far.counters.get(&at).map_or(0, |counter| counter.taken);
        };
        let before = counter.taken;
        let taken = before + value;
        counter.taken = taken;
        let who = Who { clock: &agent.clock, event };
        let beside = counter.last.filter(|(wait, _)| !who.after(*wait)).map(|(wait, _)| wait);
        counter.last = Some((event, agent.launch));
        let mut beyond = None;
        for turn in &mut counter.turns {
            if before < turn.end && turn.end <= taken {
                agent.clock.join(&turn.clock);
                turn.covered.push(event);
                beyond = (turn.data && turn.end < taken).then_some((turn.end - before, turn.first));
            }
        }
        let name = self.far_name(at);
        if let Some((left, first)) = beyond {
            let message = format!(
                "the wait takes {value} from {name}, and only {left} of them are of the launch that it takes from: the others are of \
                 the next one"
            );
            self.far_mismatch(at, message, event, Some(first));
        }
        if let Some(wait) = beside {
            let message = format!("nothing orders this wait for {name} after another one: both take from it");
            let buffer = self.machine.buffers[at.1].name.clone();
            self.find_at(FindingKind::DataRace, message, event, Some(wait), &buffer, (at.2, at.2 + 1));
        }
        taken
    }

    pub(super) fn far_mismatch(
        &mut self,
        at: CounterAt,
        message: String,
        event: Event,
        other: Option<Event>,
    ) {
        let buffer = self.machine.buffers[at.1].name.clone();
        self.find_at(FindingKind::CountMismatch, message, event, other, &buffer, (at.2, at.2 + 1));
    }

    /// Waits until the puts from an outbox that come before are locally complete.
    pub(super) fn far_settle(&mut self, id: AgentId, agent: &Agent, outbox: ParamId) -> bool {
        let event = agent.event(&self.sites);
        let who = Who { clock: &agent.clock, event };
        let Some(puts) = self.far.outboxes.get(&(agent.rank as usize, agent.buffer(outbox))) else {
            return true;
        };
        let meant: Vec<usize> =
            puts.iter().copied().filter(|&put| who.after(self.far.puts[put].by)).collect();
        if meant.iter().any(|&put| !self.far.puts[put].is_complete()) {
            self.far.settling.push(id);
            return false;
        }
        let told = &mut self.counts[agent.kernel];
        for put in meant {
            let put = &mut self.far.puts[put];
            put.settled.push(event);
            told.far[agent.rank as usize][put.target.rank].settles = true;
        }
        told.waits += 1;
        self.progress();
        true
    }
}
