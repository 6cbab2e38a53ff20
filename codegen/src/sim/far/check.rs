//! What must hold when an inbox is read, when an outbox is written, and when launches and runs end.

use super::{CounterAt, FarInsn, FarWait, Put};
use crate::ir::{FarPart, ParamKind, Place};
use crate::sim::exec::memory::place_name;
use crate::sim::findings::finding::FindingKind;
use crate::sim::flatten::code::Insn;
use crate::sim::flatten::insns::CommInsn;
use crate::sim::memory::shadow::{Event, Receipt, Who};
use crate::sim::schedule::agent::{Agent, AgentId};
use crate::sim::schedule::world::World;

/// A bad read: its kind, what it is, the put, and the bytes.
type Bad = (FindingKind, String, Event, (u64, u64));

impl World<'_> {
    /// Checks a read of bytes of an inbox; returns whether something is wrong.
    pub fn far_read(
        &mut self,
        agent: &Agent,
        place: Place,
        (from, to): (u64, u64),
        size: u64,
        receipt: Receipt,
    ) -> bool {
        let Some(waited) = receipt.far.checked_sub(1) else { return false };
        let Some(buffer) = far_buffer(agent, place, FarPart::Inbox) else { return false };
        let rank = agent.rank as usize;
        let Some(runs) = self.far.inboxes.get(&(rank, buffer)) else { return false };
        let puts: Vec<(u64, u64, usize)> =
            runs.within(from..to).map(|part| (part.range.start, part.range.end, *part.state)).collect();
        let event = agent.event(&self.sites);
        let bad = puts.into_iter().find_map(|(from, to, put)| {
            let (kind, message) = self.far_judge(waited as usize, put, event)?;
            Some((kind, message, self.far.puts[put].by, (from, to)))
        });
        let Some((kind, message, by, (from, to))): Option<Bad> = bad else { return false };
        let name = place_name(agent, place);
        let (first, end) = (from / size, to.div_ceil(size));
        let message = format!("{name}[{first}..{end}] is read {message}");
        self.find_at(kind, message, event, Some(by), &name, (first, end));
        true
    }

    /// What is wrong with a read of what a put brings, after a wait.
    fn far_judge(&mut self, waited: usize, put: usize, event: Event) -> Option<(FindingKind, String)> {
        let far = &mut self.far;
        let put = &far.puts[put];
        let source = put.source.rank;
        let Some(taken) = far.waits[waited].taken_of(put.counter) else {
            let message = format!(
                "after a wait for another counter: rank {source} put it, and nothing says that it has arrived"
            );
            return Some((FindingKind::DataRace, message));
        };
        if !put.published {
            let message = format!(
                "after a wait for what rank {source} published, and no publish of the putting group stands behind this put: a publish is \
                 ordered behind its own group's earlier puts only"
            );
            return Some((FindingKind::StrongOrder, message));
        }
        let counter = far.counters.get_mut(&put.counter)?;
        let turns = &counter.turns;
        let end = turns[put.turn].end;
        if taken < end {
            let (of, n) = (end - turns[put.turn].start, taken.saturating_sub(turns[put.turn].start));
            let message = format!(
                "after a wait for {n} of the {of} puts of rank {source} in this launch: puts arrive in any order, so that none of them may \
                 be this one; wait for all"
            );
            return Some((FindingKind::PrefixAssumed, message));
        }
        let newest = turns.iter().rposition(|turn| turn.data && turn.start < turn.end && turn.end <= taken);
        if newest.is_some_and(|newest| newest > put.turn) {
            let message =
                format!("after a wait for a launch of rank {source} in which it is not put: it is older");
            return Some((FindingKind::StaleRead, message));
        }
        if !far.over.contains(&put.launch) {
            counter.turns[put.turn].read.push(event);
        }
        None
    }

    /// A read that took a turn for complete, to which this adds.
    pub(super) fn far_prefix(&mut self, at: CounterAt, read: Event, by: Event) {
        let name = self.far_name(at);
        let message = format!(
            "this read is after a wait for a part of the puts counted in {name} in this launch: puts arrive in any order, so that this one \
             may not be among them; wait for all"
        );
        let buffer = self.machine.buffers[at.1].name.clone();
        self.find_at(FindingKind::PrefixAssumed, message, read, Some(by), &buffer, (at.2, at.2 + 1));
    }

    /// Checks a write of bytes of an outbox: nothing may still read them.
    pub fn far_write(&mut self, agent: &Agent, place: Place, (from, to): (u64, u64), size: u64) {
        if self.far.outboxes.is_empty() {
            return;
        }
        let Some(buffer) = far_buffer(agent, place, FarPart::Outbox) else { return };
        let event = agent.event(&self.sites);
        let who = Who { clock: &agent.clock, event };
        let key = (agent.rank as usize, buffer);
        let (puts, far) = (&self.far.puts, self.far.outboxes.get(&key));
        let meets = |put: usize| {
            let source = puts[put].source.at;
            source < to && from < source + puts[put].bytes
        };
        let is_settled = |put: usize| puts[put].settled.iter().any(|e| who.after(*e));
        let unsettled = far.into_iter().flatten().copied().find(|&put| {
            // Of one that is not ordered with the write, the shadow tells.
            meets(put) && !is_settled(put) && who.after(puts[put].by)
        });
        let found = unsettled.map(|put| {
            let put = &puts[put];
            let first = put.source.at.max(from);
            let range = (first / size, to.min(put.source.at + put.bytes).div_ceil(size));
            (put.by, put.launch == agent.launch, put.target.rank, range)
        });
        let puts = &mut self.far.puts;
        if let Some(list) = self.far.outboxes.get_mut(&key) {
            // What is written again as a whole is of no interest any more.
            list.retain(|&put| {
                let Put { source, bytes, rewritten, .. } = &mut puts[put];
                *rewritten += to.min(source.at + *bytes).saturating_sub(from.max(source.at));
                *rewritten < *bytes
            });
        }
        let Some((by, same, rank, range)) = found else { return };
        let name = place_name(agent, place);
        let of = format!("{name}[{}..{}]", range.0, range.1);
        let (kind, message) = match same {
            true => (
                FindingKind::OutboxReused,
                format!(
                    "{of} is written while the put of it to rank {rank} may still read it: settle the channel before"
                ),
            ),
            false => (
                FindingKind::UnflushedEnd,
                format!(
                    "{of} is written while the put of it to rank {rank} by an earlier launch may still read it: the end of a kernel \
                     completes no put; settle the channel"
                ),
            ),
        };
        self.find_at(kind, message, event, Some(by), &name, range);
    }

    /// At the end of a rank's launch: batches are published, and waits take all or nothing of what a launch puts.
    pub fn check_far_launch(&mut self, rank: u32, launch: usize) {
        if self.far.puts.is_empty() && self.far.counters.is_empty() {
            return;
        }
        self.far.over.insert(launch);
        let mut left: Vec<usize> = vec![];
        self.far.unpublished.retain(|(_, of, _), puts| {
            let keeps = *of != launch;
            left.extend(puts.iter().filter(|_| !keeps));
            keeps
        });
        left.sort_unstable();
        for put in left {
            let (by, at) = (self.far.puts[put].by, self.far.puts[put].counter);
            let name = self.far_name(at);
            let message = format!(
                "this put is part of a batch that is counted in {name}, and no publish of its group comes after it in this launch: a \
                 publish is ordered behind its own group's earlier puts only"
            );
            let buffer = self.machine.buffers[at.1].name.clone();
            self.find_at(FindingKind::StrongOrder, message, by, None, &buffer, (at.2, at.2 + 1));
        }
        let far = &self.far;
        let mut partly = vec![];
        for (at, counter) in &far.counters {
            let inside = |turn: &&super::Turn| turn.start < counter.taken && counter.taken < turn.end;
            let Some(turn) = counter.turns.iter().find(inside) else { continue };
            let concerns = at.0 == rank as usize || turn.first.agent.rank() == rank as usize;
            let Some((wait, of)) = counter.last else { continue };
            if concerns && far.over.contains(&turn.launch) && far.over.contains(&of) {
                let (n, all) = (counter.taken - turn.start, turn.end - turn.start);
                partly.push((*at, wait, turn.first, n, all));
            }
        }
        for (at, wait, first, n, all) in partly {
            let (name, source) = (self.far_name(at), first.agent.rank());
            let message = format!(
                "the waits for {name} take {n} puts of rank {source} in a launch in which it puts {all}: wait for all of them"
            );
            self.far_mismatch(at, message, wait, Some(first));
        }
    }

    /// At the end of a run: no put is left that nothing waited for.
    pub fn check_far_left(&mut self) {
        let left = self.far.counters.iter().filter_map(|(at, counter)| {
            let turn = counter.turns.iter().find(|turn| counter.taken < turn.end)?;
            Some((*at, turn.first, turn.end - counter.taken.max(turn.start)))
        });
        for (at, first, n) in left.collect::<Vec<_>>() {
            let message =
                format!("{n} of the puts counted in {} from here on are never waited for", self.far_name(at));
            self.far_mismatch(at, message, first, None);
        }
    }

    /// Whether something waits for a counter that will not grow any more; reports the earliest.
    pub fn explain_far_deadlock(&mut self) -> bool {
        let waits = self.far.counters.iter().flat_map(|(at, counter)| {
            counter.waiting.iter().map(|&id| (*at, id, counter.arrived - counter.taken))
        });
        let step = |id: AgentId| self.agents.get(id).map_or(u32::MAX, |agent| agent.step.number);
        let Some((at, id, there)) = waits.min_by_key(|&(_, id, there)| (step(id), there == 0)) else {
            return false;
        };
        let Some(agent) = self.agents.get(id) else { return false };
        let (event, insn) = (agent.event(&self.sites), &agent.role_code().code[agent.pc as usize]);
        let Insn::Comm(CommInsn::Far(insn)) = insn else { return false };
        let FarInsn::Wait(FarWait { from, counter, value, .. }) = **insn else { return false };
        let (value, from) = (agent.get(value), agent.get(from) + at.2 - agent.get(counter));
        let name = self.far_name(at);
        let unpublished = self.far.unpublished.iter().filter(|((_, _, counter), _)| *counter == at);
        if let Some(put) = unpublished.flat_map(|(_, puts)| puts).min().copied() {
            let message = format!(
                "nothing can run any more, as {name} is waited for and this put is part of a batch without an end: no publish of its group \
                 comes after it"
            );
            let (by, buffer) = (self.far.puts[put].by, self.machine.buffers[at.1].name.clone());
            self.find_at(FindingKind::StrongOrder, message, by, Some(event), &buffer, (at.2, at.2 + 1));
            return true;
        }
        if there > 0 {
            let message = format!(
                "nothing can run any more: this waits for {value} puts of rank {from} in {name}, and {there} are put there"
            );
            self.far_mismatch(at, message, event, None);
        } else {
            let message = format!(
                "nothing can run any more: this waits for {value} puts of rank {from} in {name}, and none of them is put there"
            );
            let buffer = self.machine.buffers[at.1].name.clone();
            self.find_at(FindingKind::Deadlock, message, event, None, &buffer, (at.2, at.2 + 1));
        }
        true
    }
}

/// The buffer behind a place, if it is a part of a far channel.
fn far_buffer(agent: &Agent, place: Place, part: FarPart) -> Option<usize> {
    let Place::Param(param) = place else { return None };
    let kind = agent.compiled.kernel().params[param.index()].kind;
    (kind == ParamKind::Far(part)).then(|| agent.buffer(param))
}
