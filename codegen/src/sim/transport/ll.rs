//! Sending and reading LL elements.

use bytemuck::Pod;

use super::Letter;
use super::ll_state::Sent;
use crate::ir::{self, Dtype, ParamId, Place};
use crate::sim::exec::{Fault, comm::Sender, memory::place_name};
use crate::sim::findings::FindingKind;
use crate::sim::flatten::{Reg, code::TileReg, insns::SendMessages, regions::Flattener};
use crate::sim::memory::{Block, Cargo, Event, Pending, Spot, Who, flags::newer};
use crate::sim::schedule::{Agent, AgentId, World, turns::Task};
use crate::sim::values::Tile;

/// Bytes of an LL word, epoch included.
const BYTES: u64 = 8;

/// How elements lie in an LL buffer.
#[derive(Clone, Copy)]
struct Words {
    /// Elements of a word.
    each: u64,
    /// Bytes of an element.
    size: usize,
}

impl Words {
    fn of(dtype: Dtype) -> Words {
        Words { each: dtype.per_ll_word().unwrap_or(1).into(), size: dtype.bytes() as usize }
    }

    /// The byte where an element begins.
    fn at(self, index: u64) -> usize {
        (index / self.each * BYTES + index % self.each * self.size as u64) as usize
    }

    /// Elements of a type of this size where the mask holds, else zeros.
    fn read<T: Pod>(self, memory: &Block, index: &[u32], mask: &[u8], out: &mut Tile) {
        let memory = memory.view::<T>();
        for (i, element) in out.fresh::<T>(index.len()).iter_mut().enumerate() {
            let at = || self.at(index[i].into()) / self.size;
            *element = if mask[i] == 0 { T::zeroed() } else { memory[at()] };
        }
    }

    /// The byte where the epoch of an element's word begins.
    fn epoch(self, index: u64) -> usize {
        (index / self.each * BYTES + BYTES / 2) as usize
    }
}

/// Of a reading of LL elements.
#[derive(Clone, Debug)]
pub(crate) struct ReadLl {
    pub ll: ParamId,
    pub out: TileReg,
    pub index: TileReg,
    pub from: TileReg,
    pub mask: TileReg,
    pub epoch: Option<Reg>,
}

impl ReadLl {
    /// The rank that an agent waits for which waits for an element.
    pub fn awaited(&self, agent: &Agent, index: u64) -> usize {
        let at = agent.tile(self.index).view::<u32>().iter().position(|&i| u64::from(i) == index);
        let from =
            agent.tile(self.from).view::<u32>()[at.expect("an agent waits only for elements that it reads")];
        agent.rank_near(from.into()) as usize
    }
}

impl Flattener<'_> {
    pub fn read_ll(&mut self, op: &ir::ReceiveMessages) -> ReadLl {
        let tile = &op.tiles[0];
        ReadLl {
            ll: op.buffer,
            out: self.tile(tile.out),
            index: self.tile(tile.index),
            from: self.tile(tile.from),
            mask: self.tile(op.mask),
            epoch: op.epoch.map(|e| self.reg(e)),
        }
    }
}

impl World<'_> {
    pub fn send_ll(&mut self, agent: &mut Agent, insn: &SendMessages) -> Result<(), Fault> {
        let SendMessages { target, buffer: ll, index, value, epoch, count, .. } = *insn;
        let (mut data, first) = (agent.tile(value).clone(), agent.get(index));
        let param = &agent.compiled.kernel().params[ll.index()];
        let (len, dtype, words) = (param.len, param.dtype, Words::of(param.dtype));
        let whole = data.bytes() / words.size;
        // Words are whole: with a last element, its neighbour travels.
        let some = |n: u64| n.min(whole as u64).next_multiple_of(words.each) as usize;
        let sent = count.map_or(whole, |n| some(agent.get(n)));
        if sent == 0 {
            return Ok(());
        }
        if sent < whole {
            let tile = std::mem::take(&mut data);
            let bytes = sent * words.size;
            data.fresh::<u8>(bytes).copy_from_slice(&tile.view()[..bytes]);
        }
        let end = first.saturating_add(sent as u64);
        if end > len {
            return Err(self.out_of_bounds(agent, Place::Param(ll), (first, end), len));
        }
        let (by, buffer) = (agent.event(&self.sites), agent.buffer(ll));
        for rank in self.targets(agent, target)? {
            let counts = &mut self.counts[agent.kernel];
            counts.puts += 1;
            counts.bytes[agent.rank as usize][rank] += (end - first) / words.each * BYTES;
            self.supersede(agent, ll, rank, (first, end), by);
            let sent = Sent {
                epoch: epoch.map_or(0, |e| agent.get(e) as u32),
                by,
                readers: vec![],
                superseded: None,
            };
            let letter = Letter::Ll { first, dtype, data: data.clone(), sent };
            let cargo = Cargo::Messages { buffer, letter };
            let [from, to] = [first, end].map(|at| at * BYTES / words.each);
            let spot = Spot::Bytes { buffer, from, to };
            self.send(agent, rank, Pending { by, spot, cargo });
        }
        Ok(())
    }

    /// What is sent over must have been read by all who read of it, and the sender must know.
    fn supersede(&mut self, agent: &Agent, ll: ParamId, rank: usize, elements: (u64, u64), by: Event) {
        let Some(array) = self.memory[rank][agent.buffer(ll)].ll() else { return };
        let who = Who { clock: &agent.clock, event: by };
        let mut unordered = None;
        for old in array.within(elements.0..elements.1) {
            let old = &mut array.sent[old as usize];
            unordered = unordered.or(old.readers.iter().copied().find(|&e| !who.after(e)));
            old.superseded = Some(by);
        }
        if let Some(reader) = unordered {
            self.sent_too_early(agent, ll, rank, elements, by, reader);
        }
    }

    fn sent_too_early(
        &mut self,
        agent: &Agent,
        ll: ParamId,
        rank: usize,
        elements: (u64, u64),
        by: Event,
        reader: Event,
    ) {
        let name = place_name(agent, Place::Param(ll));
        let message = format!(
            "nothing orders this sending to {name}[{}..{}] of rank {rank} after a reading of what was sent there before",
            elements.0, elements.1
        );
        self.find_at(FindingKind::LostPacket, message, by, Some(reader), &name, elements);
    }

    /// Elements arrive with their epochs.
    pub fn ll_arrive(
        &mut self,
        rank: usize,
        buffer: usize,
        (first, dtype, data): (u64, Dtype, &Tile),
        sent: Sent,
    ) {
        let words = Words::of(dtype);
        let memory = &mut self.memory[rank][buffer];
        for (i, element) in (first..).zip(data.view::<u8>().chunks_exact(words.size)) {
            let (at, epoch) = (words.at(i), words.epoch(i));
            memory.bytes_mut()[at..at + words.size].copy_from_slice(element);
            memory.bytes_mut()[epoch..epoch + 4].copy_from_slice(&sent.epoch.to_le_bytes());
        }
        let Some(array) = memory.ll() else { return };
        for id in array.arrive(first..first + (data.bytes() / words.size) as u64, sent) {
            if let Some(agent) = self.agents.get(id) {
                self.sched.ready(Task::Agent(id), agent.priority);
            }
        }
    }

    /// Reads elements once all of them have the epoch; else registers the agent as waiting for the first that has not.
    pub fn read_ll(&mut self, id: AgentId, agent: &mut Agent, insn: &ReadLl) -> Result<bool, Fault> {
        let ReadLl { ll, out, index, from, mask, epoch } = *insn;
        let (rank, expected) = (agent.rank as usize, epoch.map_or(0, |e| agent.get(e) as u32));
        let param = &agent.compiled.kernel().params[ll.index()];
        let (len, words) = (param.len, Words::of(param.dtype));
        self.check_indices(agent, Place::Param(ll), agent.tile(index), Some(agent.tile(mask)))?;
        let [index, from, mask] = [index, from, mask].map(|tile| agent.tile(tile).clone());
        let (index, from, mask) = (index.view::<u32>(), from.view::<u32>(), mask.view::<u8>());
        let buffer = agent.buffer(ll);
        // Each thing that was sent once, and who is believed to have sent it.
        let mut found: Vec<(u32, u64, u32)> = vec![];
        // Most elements have what the one before has.
        let mut last = (0..0, 0);
        for i in (0..index.len()).filter(|&i| mask[i] != 0) {
            let at = u64::from(index[i]);
            if at >= len {
                return Err(self.out_of_bounds(agent, Place::Param(ll), (at, at + 1), len));
            }
            let from = self.near(agent, from[i].into())? as u32;
            if !self.machine.is_active(from as usize) {
                continue;
            }
            if last.0.contains(&at) && found.last().is_some_and(|f| (f.0, f.2) == (last.1, from)) {
                continue;
            }
            let Some(array) = self.memory[rank][buffer].ll() else { return Ok(true) };
            let run = array.run_at(at);
            last = run.clone().unwrap_or_default();
            match run.map(|run| run.1) {
                Some(sent) if array.sent[sent as usize].epoch == expected => {
                    if !found.iter().any(|f| (f.0, f.2) == (sent, from)) {
                        found.push((sent, at, from));
                    }
                }
                Some(sent) if newer(array.sent[sent as usize].epoch, expected) => {
                    let newer = array.sent[sent as usize].clone();
                    return Err(self.missed_ll(agent, ll, at, expected, &newer));
                }
                _ => {
                    array.wait(at, id);
                    return Ok(false);
                }
            }
        }
        for (sent, at, from) in found {
            self.note_reading(agent, ll, sent, at, from);
        }
        let (memory, out) = (&self.memory[rank][buffer], &mut agent.tiles[out as usize]);
        match words.size {
            2 => words.read::<u16>(memory, index, mask, out),
            _ => words.read::<u32>(memory, index, mask, out),
        }
        self.counts[agent.kernel].waits += 1;
        self.progress();
        Ok(true)
    }

    fn note_reading(&mut self, agent: &Agent, ll: ParamId, sent: u32, at: u64, from: u32) {
        let event = agent.event(&self.sites);
        let Some(array) = self.memory[agent.rank as usize][agent.buffer(ll)].ll() else {
            return;
        };
        array.read(sent, event);
        let Sent { by, superseded, .. } = array.sent[sent as usize];
        if let Some(next) = superseded {
            self.sent_too_early(agent, ll, agent.rank as usize, (at, at + 1), next, event);
        }
        if by.agent.rank() as u32 != from {
            self.check_sender(agent, ll, at, Sender::Rank(from.into()), by);
        }
    }

    fn missed_ll(&mut self, agent: &Agent, ll: ParamId, index: u64, expected: u32, newer: &Sent) -> Fault {
        let name = place_name(agent, Place::Param(ll));
        let message = format!(
            "the read expects {name}[{index}] with epoch {expected}, but it already has the newer {}: this read would never \
             end",
            newer.epoch
        );
        let at = agent.event(&self.sites);
        self.find_at(FindingKind::EpochConfusion, message, at, Some(newer.by), &name, (index, index + 1));
        Fault
    }
}
