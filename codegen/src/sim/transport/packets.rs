//! Sending and taking packets.

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use super::Letter;
use super::packet_state::{State, not_empty};
use crate::ir::{self, Dtype, PACKET_BYTES, ParamId, Place, Taken};
use crate::sim::exec::{Fault, comm::Sender, memory::place_name};
use crate::sim::findings::FindingKind;
use crate::sim::flatten::{Reg, code::TakenReg, insns::SendMessages, regions::Flattener};
use crate::sim::memory::{Cargo, Event, Pending, Spot, Who};
use crate::sim::schedule::{Agent, AgentId, World, turns::Task};
use crate::sim::values::Tile;

/// Of a taking of packets.
#[derive(Clone, Debug)]
pub(crate) struct TakePackets {
    pub packets: ParamId,
    pub dtype: Dtype,
    /// Elements of a tile.
    pub len: u32,
    pub tiles: Box<[TakenReg]>,
    pub mask: Reg,
    /// How many first elements' packets of each.
    pub count: Option<Reg>,
}

impl TakePackets {
    /// The rank that an agent waits for which waits for a packet.
    pub fn awaited(&self, agent: &Agent, packet: u64) -> usize {
        let each = u64::from(PACKET_BYTES / self.dtype.bytes());
        // Only tiles that are taken have an index that is in the buffer.
        let taken = |&(i, _): &(usize, &TakenReg)| agent.get(self.mask) >> i & 1 != 0;
        let holds = |(_, t): &(usize, &TakenReg)| {
            let first = agent.get(t.index) / each;
            (first..first + u64::from(self.len) / each).contains(&packet)
        };
        let tile = self.tiles.iter().enumerate().filter(taken).find(holds);
        let (_, tile) = tile.expect("an agent waits only for packets that it takes");
        agent.rank_near(agent.get(tile.from)) as usize
    }
}

impl Flattener<'_> {
    pub fn take_packets(&mut self, op: &ir::ReceiveMessages) -> TakePackets {
        let ty = self.kernel.ty(op.tiles[0].out);
        let taken =
            |t: &Taken| TakenReg { out: self.tile(t.out), index: self.reg(t.index), from: self.reg(t.from) };
        TakePackets {
            packets: op.buffer,
            dtype: ty.dtype,
            len: ty.len.unwrap_or(1),
            tiles: op.tiles.iter().map(taken).collect(),
            mask: self.reg(op.mask),
            count: op.count.map(|n| self.reg(n)),
        }
    }
}

/// Packets of a buffer.
struct Stretch {
    buffer: usize,
    /// First byte.
    at: u64,
    packets: Range<u64>,
}

impl World<'_> {
    pub fn send_packets(&mut self, agent: &mut Agent, insn: &SendMessages) -> Result<(), Fault> {
        let SendMessages { target, buffer: packets, index, value, count, .. } = *insn;
        let dtype = agent.compiled.kernel().params[packets.index()].dtype;
        let mut tile = agent.tile(value).clone();
        let size = agent.compiled.kernel().packet_bytes() as usize;
        let bytes = moved(agent, tile.bytes() as u64, count, dtype);
        if bytes == 0 {
            return Ok(());
        }
        if bytes < tile.bytes() as u64 {
            let whole = std::mem::take(&mut tile);
            tile.fresh::<u8>(bytes as usize).copy_from_slice(&whole.view()[..bytes as usize]);
        }
        let stretch = self.stretch(agent, packets, dtype, agent.get(index), bytes)?;
        // Packets hold bytes: nothing else that is known of the tile goes with them.
        tile.forget_exact();
        if looks_empty(&tile, size) {
            let mut data = Tile::default();
            not_empty(data.fresh_copy::<u8>(&tile), size);
            tile = data;
        }
        let by = agent.event(&self.sites);
        for rank in self.targets(agent, target)? {
            let counts = &mut self.counts[agent.kernel];
            counts.puts += 1;
            counts.bytes[agent.rank as usize][rank] += bytes;
            self.check_empty(agent, packets, rank, &stretch, by);
            let Some(array) = self.memory[rank][stretch.buffer].packets() else { continue };
            array.set(stretch.packets.clone(), State::Sent(by));
            let (buffer, at) = (stretch.buffer, stretch.at);
            let letter = Letter::Packets { at, data: tile.clone() };
            let cargo = Cargo::Messages { buffer, letter };
            let spot = Spot::Bytes { buffer, from: at, to: at + bytes };
            self.send(agent, rank, Pending { by, spot, cargo });
        }
        Ok(())
    }

    /// Packets must be empty, and the sender must know.
    fn check_empty(&mut self, agent: &Agent, packets: ParamId, rank: usize, stretch: &Stretch, by: Event) {
        let Some(array) = self.memory[rank][stretch.buffer].packets() else { return };
        let who = Who { clock: &agent.clock, event: by };
        let bad = array.within(stretch.packets.clone()).find_map(|run| match *run.state {
            State::Sent(e) | State::Full(e, _) => Some((run.range, e, true)),
            State::Taken(e) => (!who.after(e)).then_some((run.range, e, false)),
        });
        let Some((range, e, untaken)) = bad else { return };
        let elements = self.elements(agent, packets, &range);
        let name = place_name(agent, Place::Param(packets));
        let which = format!("{name}[{}..{}] of rank {rank}", elements.0, elements.1);
        let message = match untaken {
            true => format!("{which} is sent again before anybody took what was sent before"),
            false => format!("nothing orders this send to {which} after the taking that emptied it"),
        };
        self.find_at(FindingKind::LostPacket, message, by, Some(e), &name, elements);
    }

    /// The elements that packets hold.
    fn elements(&self, agent: &Agent, packets: ParamId, range: &Range<u64>) -> (u64, u64) {
        let dtype = agent.compiled.kernel().params[packets.index()].dtype;
        let each = u64::from(PACKET_BYTES / dtype.bytes());
        (range.start * each, range.end * each)
    }

    fn stretch(
        &mut self,
        agent: &Agent,
        packets: ParamId,
        dtype: Dtype,
        index: u64,
        bytes: u64,
    ) -> Result<Stretch, Fault> {
        let (size, packet) = (u64::from(dtype.bytes()), u64::from(PACKET_BYTES));
        let len = agent.compiled.kernel().params[packets.index()].len;
        let end = index.saturating_add(bytes / size);
        if end > len {
            return Err(self.out_of_bounds(agent, Place::Param(packets), (index, end), len));
        }
        let at = index * size;
        if !at.is_multiple_of(packet) {
            let name = place_name(agent, Place::Param(packets));
            let message =
                format!("element {index} of `{name}` is not the first of a packet of {packet} bytes");
            let event = agent.event(&self.sites);
            self.find_at(FindingKind::OutOfBounds, message, event, None, &name, (index, end));
            return Err(Fault);
        }
        let range = at / packet..(at + bytes) / packet;
        Ok(Stretch { buffer: agent.buffer(packets), at, packets: range })
    }

    /// Fills packets and wakes the agents that wait for them.
    pub fn packets_arrive(&mut self, rank: usize, buffer: usize, at: u64, data: Tile, by: Event) {
        let Some(array) = self.memory[rank][buffer].packets() else { return };
        let packet = u64::from(PACKET_BYTES);
        let range = at / packet..(at + data.bytes() as u64) / packet;
        array.set(range.clone(), State::Full(by, data));
        for id in array.wake(range) {
            if let Some(agent) = self.agents.get(id) {
                self.sched.ready(Task::Agent(id), agent.priority);
            }
        }
    }

    /// Takes tiles once all of them have arrived; else registers the agent as waiting for the first that has not.
    pub fn take_packets(
        &mut self,
        id: AgentId,
        agent: &mut Agent,
        insn: &TakePackets,
    ) -> Result<bool, Fault> {
        let TakePackets { packets, dtype, len, ref tiles, mask, count } = *insn;
        let (mask, rank) = (agent.get(mask), agent.rank as usize);
        let whole = u64::from(len) * u64::from(dtype.bytes());
        let bytes = moved(agent, whole, count, dtype);
        let mut mask = if bytes == 0 { 0 } else { mask };
        let mut found: SmallVec<[(usize, Stretch); 4]> = smallvec![];
        for (i, tile) in tiles.iter().enumerate() {
            if mask >> i & 1 == 0 {
                continue;
            }
            let stretch = self.stretch(agent, packets, dtype, agent.get(tile.index), bytes)?;
            let from = self.near(agent, agent.get(tile.from))?;
            if !self.machine.is_active(from as usize) {
                mask &= !(1 << i);
                continue;
            }
            let Some(array) = self.memory[rank][stretch.buffer].packets() else { return Ok(true) };
            if let Some(missing) = array.missing(stretch.packets.clone()) {
                array.wait(missing, id);
                return Ok(false);
            }
            found.push((i, stretch));
        }
        for (i, stretch) in &found {
            self.take(agent, packets, &tiles[*i], stretch, (bytes, whole));
        }
        for (i, tile) in tiles.iter().enumerate().filter(|(i, _)| mask >> i & 1 == 0) {
            debug_assert!(found.iter().all(|f| f.0 != i));
            agent.tiles[tile.out as usize].fresh::<u8>(whole as usize).fill(0);
        }
        self.counts[agent.kernel].waits += 1;
        self.progress();
        Ok(true)
    }

    /// Nothing orders a taking after the one before it: without that order, its loads may still find what was there before.
    fn taken_unordered(
        &mut self,
        agent: &Agent,
        packets: ParamId,
        range: &Range<u64>,
        at: Event,
        before: Event,
    ) {
        let elements = self.elements(agent, packets, range);
        let name = place_name(agent, Place::Param(packets));
        let message = format!(
            "nothing orders this taking of {name}[{}..{}] of rank {} after the taking before it",
            elements.0, elements.1, agent.rank
        );
        self.find_at(FindingKind::LostPacket, message, at, Some(before), &name, elements);
    }

    /// Takes the first `bytes` of a tile of `whole` bytes; the others are zero.
    fn take(
        &mut self,
        agent: &mut Agent,
        packets: ParamId,
        tile: &TakenReg,
        stretch: &Stretch,
        (bytes, whole): (u64, u64),
    ) {
        let event = agent.event(&self.sites);
        let from = agent.rank_near(agent.get(tile.from));
        let Some(array) = self.memory[agent.rank as usize][stretch.buffer].packets() else { return };
        let out = &mut agent.tiles[tile.out as usize];
        match array.whole(stretch.packets.clone()) {
            // What was sent as one is taken as one: the data need not move.
            Some(data) if bytes == whole => *out = data.clone(),
            _ => array.copy(stretch.packets.clone(), out.fresh(whole as usize)),
        }
        let stranger = array.within(stretch.packets.clone()).find_map(|run| match *run.state {
            State::Full(by, _) if by.agent.rank() as u64 != from => Some((run.range, by)),
            State::Full(..) | State::Sent(_) | State::Taken(_) => None,
        });
        let before = array.take(stretch.packets.clone(), event);
        let who = Who { clock: &agent.clock, event };
        if let Some((range, by)) = before.into_iter().find(|(_, by)| !who.after(*by)) {
            self.taken_unordered(agent, packets, &range, event, by);
        }
        if let Some((range, by)) = stranger {
            let (first, _) = self.elements(agent, packets, &range);
            self.check_sender(agent, packets, first, Sender::Rank(from), by);
        }
    }
}

/// Whether the data of any packet ends in the word that stands for an empty one.
fn looks_empty(data: &Tile, packet_bytes: usize) -> bool {
    // Without a way out of the loop, so that it vectorises: hardly any does.
    fn any<const WORDS: usize>(data: &[u32]) -> bool {
        data.as_chunks::<WORDS>().0.iter().fold(false, |any, packet| any | (packet[WORDS - 1] == u32::MAX))
    }
    match packet_bytes {
        8 => any::<2>(data.view()),
        _ => any::<4>(data.view()),
    }
}

/// Bytes that move of a tile of `whole`: packets that hold any of `count` first elements.
fn moved(agent: &Agent, whole: u64, count: Option<Reg>, dtype: Dtype) -> u64 {
    let all = |n: Reg| agent.get(n).saturating_mul(dtype.bytes().into());
    count.map_or(whole, all).min(whole).next_multiple_of(PACKET_BYTES.into())
}
