//! What the simulator does of each transport.

mod ll;
mod ll_state;
mod packet_state;
mod packets;

use std::ops::Range;

use crate::ir::{self, Dtype, Transport};
use crate::sim::exec::Fault;
use crate::sim::flatten::{code::TileReg, insns::SendMessages, regions::Flattener};
use crate::sim::memory::{Block, Event};
use crate::sim::schedule::{Agent, AgentId, World};
use crate::sim::values::Tile;

use ll::ReadLl;
use ll_state::{LlArray, Sent};
use packet_state::PacketArray;
use packets::TakePackets;

/// A receive, in registers.
#[derive(Clone, Debug)]
pub(crate) enum Receive {
    Packets(TakePackets),
    Ll(ReadLl),
}

/// One rank's instance of a buffer of messages.
#[derive(Debug)]
pub(crate) enum Messages {
    Packets(PacketArray),
    Ll(LlArray),
}

/// Messages on their way.
#[derive(Debug)]
pub(crate) enum Letter {
    /// Packets, from a byte on, each of which arrives at once.
    Packets { at: u64, data: Tile },
    /// LL elements.
    Ll { first: u64, dtype: Dtype, data: Tile, sent: Sent },
}

impl Messages {
    pub fn new(transport: Transport) -> Messages {
        match transport {
            Transport::Packets => Messages::Packets(PacketArray::default()),
            Transport::Ll => Messages::Ll(LlArray::default()),
        }
    }

    /// The agents that wait, each with the message that it lacks.
    pub fn waiting(&self) -> Vec<(u64, AgentId)> {
        match self {
            Messages::Packets(packets) => packets.waiting().collect(),
            Messages::Ll(ll) => ll.waiting().collect(),
        }
    }

    /// The epoch that a message has.
    pub fn epoch(&self, index: u64) -> u32 {
        match self {
            Messages::Packets(_) => 0,
            Messages::Ll(ll) => ll.epoch(index),
        }
    }

    /// What was sent and has to be taken.
    pub fn untaken(&self) -> Vec<(Range<u64>, Event)> {
        match self {
            Messages::Packets(packets) => packets.untaken().collect(),
            Messages::Ll(_) => vec![],
        }
    }
}

impl Block {
    /// Only of a packet buffer.
    fn packets(&mut self) -> Option<&mut PacketArray> {
        if let Some(Messages::Packets(packets)) = &mut self.messages { Some(packets) } else { None }
    }

    /// Only of an LL buffer.
    fn ll(&mut self) -> Option<&mut LlArray> {
        if let Some(Messages::Ll(ll)) = &mut self.messages { Some(ll) } else { None }
    }
}

impl Receive {
    pub fn of(flattener: &mut Flattener<'_>, op: &ir::ReceiveMessages) -> Receive {
        match op.transport {
            Transport::Packets => Receive::Packets(flattener.take_packets(op)),
            Transport::Ll => Receive::Ll(flattener.read_ll(op)),
        }
    }

    /// See [`Insn::tiles`](crate::sim::flatten::code::Insn::tiles).
    pub fn tiles(&mut self, visit: &mut dyn FnMut(&mut TileReg)) {
        match self {
            Receive::Packets(TakePackets { tiles, .. }) => tiles.iter_mut().for_each(|t| visit(&mut t.out)),
            Receive::Ll(ReadLl { out, index, from, mask, .. }) => {
                [index, from, mask, out].into_iter().for_each(visit);
            }
        }
    }

    /// The rank that a waiting agent waits for, and the epoch, where messages have one.
    pub fn awaited(&self, agent: &Agent, index: u64) -> (usize, Option<u32>) {
        match self {
            Receive::Packets(take) => (take.awaited(agent, index), None),
            Receive::Ll(read) => (read.awaited(agent, index), read.epoch.map(|e| agent.get(e) as u32)),
        }
    }
}

impl World<'_> {
    pub fn send_messages(&mut self, agent: &mut Agent, insn: &SendMessages) -> Result<(), Fault> {
        match insn.transport {
            Transport::Packets => self.send_packets(agent, insn),
            Transport::Ll => self.send_ll(agent, insn),
        }
    }

    pub fn receive(&mut self, id: AgentId, agent: &mut Agent, insn: &Receive) -> Result<bool, Fault> {
        match insn {
            Receive::Packets(insn) => self.take_packets(id, agent, insn),
            Receive::Ll(insn) => self.read_ll(id, agent, insn),
        }
    }

    pub fn messages_arrive(&mut self, rank: usize, buffer: usize, letter: Letter, by: Event) {
        match letter {
            Letter::Packets { at, data } => self.packets_arrive(rank, buffer, at, data, by),
            Letter::Ll { first, dtype, data, sent } => {
                self.ll_arrive(rank, buffer, (first, dtype, &data), sent);
            }
        }
    }
}
