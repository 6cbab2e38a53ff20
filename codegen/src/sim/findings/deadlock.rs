//! Why nothing can run any more.

use std::cell::OnceCell;
use std::collections::HashSet;

use super::ahead::{Ahead, ahead};
use super::finding::{Finding, FindingKind};
use crate::ir::{ANY_BLOCK, Kernel, OpKind, ParamId, ParamKind, ValueOp};
use crate::sim::flatten::{CommInsn, Insn, insns};
use crate::sim::memory::Event;
use crate::sim::schedule::{Agent, AgentId, World, launch::Launch};
use crate::sim::setup::{Bound, Step};

/// A wait that is not satisfied.
struct Stuck {
    agent: AgentId,
    rank: usize,
    buffer: usize,
    index: u64,
    from: usize,
    /// The block of its role, where it is one of the same rank; `None` if it may be any.
    block: Option<Option<u64>>,
    /// Of a flag or an LL element; packets have none.
    value: Option<u32>,
    /// Whether a later value does, too, or the value is a count and no epoch.
    or_later: bool,
    ahead: OnceCell<Vec<Ahead>>,
}

/// Where a chain of waits leads, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cause {
    /// Every group waits for another one that waits.
    Circle,
    /// The awaited party will never signal.
    NeverSignals,
    /// The awaited party has no room to run.
    NotResident,
}

impl World<'_> {
    /// Called when nothing can run and nothing is on its way: either all is done, or there is a deadlock.
    pub fn check_end(&mut self) {
        let done = (0..).zip(self.streams.iter().zip(&self.machine.programs));
        let done =
            done.filter(|(rank, _)| self.machine.is_active(*rank)).all(|(_, (s, p))| s.step == p.len());
        if self.dead.is_some() {
            // What it was to send is waited for, or left behind.
        } else if done {
            self.check_left_over();
        } else if !self.explain_far_deadlock() {
            self.explain_deadlock();
        }
    }

    /// All agents that wait for a flag or a packet.
    fn stuck(&self) -> Vec<Stuck> {
        let mut all = vec![];
        for (rank, buffers) in self.memory.iter().enumerate() {
            for (buffer, memory) in buffers.iter().enumerate() {
                let flags = memory.flags.iter().flat_map(|f| f.waiting());
                let messages = memory.messages.iter().flat_map(|m| m.waiting());
                for (index, id) in flags.chain(messages) {
                    let Some(agent) = self.agents.get(id) else { continue };
                    let (from, value) = self.awaited(agent, index);
                    let insn = &agent.role_code().code[agent.pc as usize];
                    let or_later =
                        matches!(insn, Insn::Comm(CommInsn::WaitAll(insns::WaitAll { or_later: true, .. })))
                            || self.machine.buffers[buffer].kind == ParamKind::Counts;
                    let (block, ahead) = (awaited_block(agent, index), OnceCell::new());
                    all.push(Stuck { agent: id, rank, buffer, index, from, block, value, or_later, ahead });
                }
            }
        }
        all
    }

    /// The rank, and of a flag the value, that a waiting agent waits for.
    fn awaited(&self, agent: &Agent, index: u64) -> (usize, Option<u32>) {
        let Insn::Comm(insn) = &agent.role_code().code[agent.pc as usize] else {
            return (agent.rank as usize, None);
        };
        match insn {
            CommInsn::Wait(insns::Wait { from, value, .. }) => {
                (agent.rank_near(agent.get(*from)) as usize, Some(agent.get(*value) as u32))
            }
            CommInsn::WaitAll(insns::WaitAll { per_rank, value, .. }) => {
                (agent.awaited_rank(index, *per_rank) as usize, Some(agent.get(*value) as u32))
            }
            CommInsn::Receive(receive) => receive.awaited(agent, index),
            CommInsn::BlockWait(insns::BlockWait { value, .. }) => {
                (agent.rank as usize, Some(agent.get(*value) as u32))
            }
            // These do not wait.
            CommInsn::Put(_)
            | CommInsn::PutMatrix(_)
            | CommInsn::Signal(_)
            | CommInsn::BlockSignal(_)
            | CommInsn::SendMessages(_)
            // `explain_far_deadlock` tells of these.
            | CommInsn::Far(_) => (agent.rank as usize, None),
        }
    }

    fn explain_deadlock(&mut self) {
        let mut stuck = self.stuck();
        // Earlier launches first: they wait for the first of the signals.
        stuck.sort_by_key(|s| self.step_of(s));
        // The chain with the most telling end explains the others. Of chains to a missing signal the shortest is the wait for it.
        let chains = stuck.iter().take(256).map(|s| self.chain(s, &stuck));
        let tells = |(cause, lines): &(Cause, Vec<String>)| {
            let length = if *cause == Cause::NeverSignals { lines.len() } else { 0 };
            (*cause, std::cmp::Reverse(length))
        };
        let best =
            chains.zip(&stuck).fold(None, |best: Option<((Cause, Vec<String>), &Stuck)>, next| match best {
                Some(best) if tells(&best.0) >= tells(&next.0) => Some(best),
                _ => Some(next),
            });
        let Some(((cause, mut chain), start)) = best else {
            unreachable!("an agent that cannot run waits for a flag, or for groups or blocks that do");
        };
        chain.extend(self.stray_signal(start));
        let at = self.party(self.event_of(start));
        let (kind, why) = match cause {
            Cause::Circle => (FindingKind::Deadlock, "every group waits for another one that waits"),
            Cause::NeverSignals => (FindingKind::Deadlock, "the awaited signal will never come"),
            Cause::NotResident => {
                (FindingKind::NotResident, "the awaited block has no room to run until this one is done")
            }
        };
        let waiting = stuck.len();
        let message = format!("nothing can run any more, {waiting} wait: {why}");
        let buffer = Some(self.machine.buffers[start.buffer].name.to_string());
        let elements = Some((start.index, start.index + 1));
        self.found.add(Finding { kind, message, at, other: None, buffer, elements, chain, times: 1 });
    }

    /// Follows who waits for whom from a wait on, in words, and returns where that leads.
    fn chain(&self, start: &Stuck, all: &[Stuck]) -> (Cause, Vec<String>) {
        let (mut lines, mut visited, mut at) = (vec![], HashSet::new(), start);
        loop {
            if !visited.insert(at.agent) {
                lines.push("which closes the circle".into());
                return (Cause::Circle, lines);
            }
            lines.push(self.wait_line(at));
            match self.awaited_party(at, all, &visited) {
                Ok(next) => at = next,
                Err((cause, line)) => {
                    lines.push(line);
                    return (cause, lines);
                }
            }
        }
    }

    /// The step of its rank's program that a wait belongs to.
    fn step_of(&self, s: &Stuck) -> u32 {
        self.agents.get(s.agent).map_or(u32::MAX, |agent| agent.step.number)
    }

    /// The launch of the awaited rank that works in the awaited epoch and signals the buffer, if it is over.
    fn over(&self, s: &Stuck) -> Option<u32> {
        let (value, now) = (s.value.filter(|_| !s.or_later)?, self.streams.get(s.from)?.step as u32);
        let is_it = |&(launch, &(rank, step)): &(usize, &(u32, u32))| {
            let Some(Step::Launch { kernel, params }) =
                self.machine.programs[s.from].get(step as usize).filter(|_| rank as usize == s.from)
            else {
                return false;
            };
            let is_bound = |p: ParamId| matches!(params[p.index()], Bound::Buffer(b) if b == s.buffer);
            self.epochs[launch] == Some(value)
                && step < now
                && !signalling_roles(&self.machine.kernels[*kernel].kernel, rank, is_bound).is_empty()
        };
        let working = self.launched_in.iter().enumerate().rev().find(|(_, l)| l.0 as usize == s.from)?;
        // Launches that share an epoch may signal in turn.
        if self.epochs[working.0] == Some(value) {
            return None;
        }
        self.launched_in.iter().enumerate().rev().find(is_it).map(|(_, l)| l.1)
    }

    /// The wait, as an event.
    fn event_of(&self, s: &Stuck) -> Event {
        self.agents.get(s.agent).expect("waiting agents exist").event(&self.sites)
    }

    fn wait_line(&self, s: &Stuck) -> String {
        let flag = &self.machine.buffers[s.buffer].name;
        let Some(value) = s.value else {
            let party = self.party(self.event_of(s));
            return format!("{party}: waits for packet {} of {flag} from rank {}", s.index, s.from);
        };
        let memory = &self.memory[s.rank][s.buffer];
        let epoch = memory.messages.as_ref().map_or(0, |m| m.epoch(s.index));
        let holds = memory.flags.as_ref().map_or(epoch, |f| f.value(s.index));
        let party = self.party(self.event_of(s));
        let from = match s.block {
            None => format!("rank {}", s.from),
            Some(None) => "some block of its rank".to_owned(),
            Some(Some(block)) => format!("block {block} of its rank"),
        };
        format!("{party}: waits for {flag}[{}] = {} from {from} (it holds {holds})", s.index, value)
    }

    /// Another wait that the awaited signal depends on, or why it will not come.
    fn awaited_party<'s>(
        &self,
        s: &Stuck,
        all: &'s [Stuck],
        visited: &HashSet<AgentId>,
    ) -> Result<&'s Stuck, (Cause, String)> {
        let (rank, flag) = (s.from, &self.machine.buffers[s.buffer].name);
        let Some(launch) = self.streams.get(rank).and_then(|stream| stream.launch.as_ref()) else {
            let line = format!("rank {rank} has finished its program and never signalled that");
            return Err((Cause::NeverSignals, line));
        };
        if let Some(step) = self.over(s) {
            let value = s.value.unwrap_or_default();
            let line = format!(
                "launch {} of rank {rank}, in epoch {value}, is over and never signalled that",
                self.launch_at(rank, step)
            );
            return Err((Cause::NeverSignals, line));
        }
        let compiled = &self.machine.kernels[launch.kernel];
        let roles = signalling_roles(&compiled.kernel, rank as u32, |p| launch.is_bound(p, s.buffer));
        if roles.is_empty() && !self.signalled_later(rank, s.buffer) {
            let line = format!(
                "nothing that rank {rank} runs signals {flag}: `{}` does not, and no launch after it does",
                compiled.kernel.name
            );
            return Err((Cause::NeverSignals, line));
        }
        // Those that will go on as one of them count, too.
        let is_or_becomes = |role: usize| {
            roles.contains(&role)
                || compiled.kernel.goes_on(role).is_some_and(|(next, _)| roles.contains(&next))
        };
        let unstarted = (launch.next_block..launch.blocks).flat_map(|b| compiled.roles_of(rank as u32, b));
        let unstarted: Vec<usize> = unstarted.filter(|r| is_or_becomes(*r)).collect();
        if let Some(&role) = unstarted.first() {
            let line = format!(
                "rank {rank} runs at most {} blocks at once, all of them wait, and {} of the {} blocks of role {} \
                 have not started: this launch needs room for all its {} blocks",
                launch.running,
                unstarted.iter().filter(|&&r| r == role).count(),
                compiled.kernel.roles[role].blocks,
                compiled.kernel.roles[role].name,
                launch.blocks
            );
            return Err((Cause::NotResident, line));
        }
        let of_rank = || all.iter().filter(|o| o.rank == rank);
        let value = s.value.filter(|_| !s.or_later);
        let able = |o: &&Stuck| self.ahead(o, s.buffer).any(|a| a.may_be(s.rank, s.index, value));
        let is_new = |o: &&Stuck| !visited.contains(&o.agent);
        let next = of_rank().filter(is_new).find(able).or_else(|| of_rank().find(able));
        // A later launch begins when all of this one have what they wait for.
        let later = || self.later_launch_may(s, launch, &roles).then(of_rank);
        if let Some(next) = next.or_else(|| later()?.min_by_key(|o| !is_new(o))) {
            return Ok(next);
        }
        // A role that signals something else of the buffer later is not the one that has left this out.
        let role_of = |o: &Stuck| self.agents.get(o.agent).map(|a| a.role);
        let goes_on = |role: usize| {
            of_rank().any(|o| role_of(o) == Some(role) && self.ahead(o, s.buffer).next().is_some())
        };
        let past: Vec<usize> = roles.iter().copied().filter(|&role| !goes_on(role)).collect();
        let past = if past.is_empty() { roles } else { past };
        let waits = of_rank().any(|o| role_of(o).is_some_and(|role| past.contains(&role)));
        let names: Vec<&str> = past.iter().map(|&r| &*compiled.kernel.roles[r].name).collect();
        let state = if waits { "waits past its last signal" } else { "has finished" };
        let line = format!(
            "role {} of rank {rank}, which signals {flag}, {state} without signalling that",
            names.join(" or ")
        );
        Err((Cause::NeverSignals, line))
    }

    /// What a waiting agent can still signal of a buffer.
    fn ahead<'s>(&self, s: &'s Stuck, buffer: usize) -> impl Iterator<Item = &'s Ahead> {
        let all = s.ahead.get_or_init(|| self.agents.get(s.agent).map(ahead).unwrap_or_default());
        all.iter().filter(move |a| a.buffer == buffer)
    }

    /// Whether the awaited signal may be one of a launch that comes after a rank's present one.
    fn later_launch_may(&self, s: &Stuck, launch: &Launch, roles: &[usize]) -> bool {
        let later = self.signalled_later(s.from, s.buffer);
        if roles.is_empty() || s.or_later || !later {
            return later;
        }
        match s.value {
            // Only launches that share the epoch come in question.
            Some(value) if self.epochs[launch.number] == Some(value) => {
                self.shared_epoch_signals(s.from, s.buffer)
            }
            Some(_) => true,
            None => launch.step.number < self.step_of(s),
        }
    }

    /// The kernels that a rank launches after the present one, and whether each signals a buffer.
    fn later(&self, rank: usize, buffer: usize) -> impl Iterator<Item = (&Kernel, bool)> {
        let later = self.machine.programs[rank].iter().skip(self.streams[rank].step + 1);
        later.filter_map(move |step| match step {
            Step::Launch { kernel, params } => {
                let is_bound = |p: ParamId| matches!(params[p.index()], Bound::Buffer(b) if b == buffer);
                let kernel = &self.machine.kernels[*kernel].kernel;
                Some((kernel, !signalling_roles(kernel, rank as u32, is_bound).is_empty()))
            }
            Step::Host { .. } => None,
        })
    }

    /// Whether a launch that comes after the present one of a rank signals a buffer.
    fn signalled_later(&self, rank: usize, buffer: usize) -> bool {
        self.later(rank, buffer).any(|(_, signals)| signals)
    }

    /// The same of a launch that works in the epoch of the present one.
    fn shared_epoch_signals(&self, rank: usize, buffer: usize) -> bool {
        let advances = |kernel: &Kernel| {
            kernel.ops.iter().any(|op| matches!(op.kind, OpKind::Value(ValueOp::Epoch { advance: true, .. })))
        };
        self.later(rank, buffer).take_while(|(kernel, _)| !advances(kernel)).any(|(_, signals)| signals)
    }

    /// A signal with the awaited value that went elsewhere in the same array.
    fn stray_signal(&self, s: &Stuck) -> Option<String> {
        let flags = self.memory[s.rank][s.buffer].flags.as_ref()?;
        let strays = flags.unseen().filter(|(_, f)| Some(f.value) == s.value && f.by.agent.rank() == s.from);
        let (index, flag) = strays.min_by_key(|(index, _)| index.abs_diff(s.index))?;
        let name = &self.machine.buffers[s.buffer].name;
        let by = self.party(flag.by);
        let value = flag.value;
        Some(format!("note: {name}[{index}] = {value} was signalled and no group has waited for it, by {by}"))
    }
}

/// The block that a waiting agent waits for, if it waits for one of its own rank, and for none in particular if it may be any.
fn awaited_block(agent: &Agent, index: u64) -> Option<Option<u64>> {
    let Insn::Comm(CommInsn::BlockWait(wait)) = &agent.role_code().code[agent.pc as usize] else {
        return None;
    };
    let nth = index.saturating_sub(agent.get(wait.index));
    let from = agent.get(wait.from);
    Some((from != u64::from(ANY_BLOCK)).then(|| from + nth / u64::from(wait.per_block.max(1))))
}

/// The roles of a kernel that signal a parameter.
fn signalling_roles(kernel: &Kernel, rank: u32, is_it: impl Fn(ParamId) -> bool) -> Vec<usize> {
    let signals = |role: usize| {
        let mut found = false;
        kernel.walk(&kernel.roles[role].body, &mut |_, op| {
            let mut sent = op.kind.accesses().into_iter().filter(|a| a.access.is_awaited());
            found |= sent.any(|a| a.place.param().is_some_and(&is_it));
        });
        found
    };
    let rank = kernel.near(rank);
    (0..kernel.roles.len()).filter(|&r| kernel.roles[r].is_on(rank) && signals(r)).collect()
}
