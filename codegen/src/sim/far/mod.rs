//! Far channels: puts through a network card that act by themselves, and counters that their arrival adds to.
//!
//! A put is a flight. It reads its outbox in pieces at any time until it is locally complete, and its pieces land in any order. A put that
//! counts itself adds to its counter after its own bytes; a publish adds behind the puts of its group. Nothing else orders flights, neither
//! with each other nor with the end of a launch.
//!
//! Flights have no place in the vector clocks. What a group may conclude is decided by what it waited for instead: a store to an outbox
//! needs a settling of the put before it, and a read of an inbox a wait for all puts that the source puts for that counter in its launch.
//! Such puts are a *turn* of the counter. Findings follow whether or not the schedule makes a mistake bite.

mod check;
mod flight;
mod issue;
mod wait;

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::ir::{self, CommOp, FarReach, ParamId, Place, ReceiptId};
use crate::sim::exec::memory::Fault;
use crate::sim::flatten::code::Reg;
use crate::sim::flatten::regions::Flattener;
use crate::sim::memory::runs::Runs;
use crate::sim::memory::shadow::{Event, Who};
use crate::sim::schedule::agent::{Agent, AgentId};
use crate::sim::schedule::clock::{AgentNo, Clock};
use crate::sim::schedule::world::World;

/// What a far channel does.
#[derive(Clone, Debug)]
pub(crate) enum FarInsn {
    Put(FarPut),
    Publish { peer: Option<Reg>, counts: ParamId, counter: Reg, adds: Reg, reach: FarReach },
    Wait(FarWait),
    Settle { outbox: ParamId },
}

/// Of a put.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarPut {
    pub peer: Option<Reg>,
    pub outbox: ParamId,
    pub from: Reg,
    pub inbox: ParamId,
    pub index: Reg,
    pub len: u32,
    pub counts: ParamId,
    pub counter: Reg,
    pub counted: bool,
    pub reach: FarReach,
}

/// Of a wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FarWait {
    pub receipt: ReceiptId,
    pub counts: ParamId,
    pub counter: Reg,
    pub count: Reg,
    pub from: Reg,
    pub value: Reg,
    pub reach: FarReach,
}

impl Flattener<'_> {
    /// The instruction of a far operation.
    pub fn far(&mut self, op: &CommOp) -> Option<FarInsn> {
        Some(match *op {
            CommOp::FarPut(ir::FarPut {
                peer,
                outbox,
                from,
                inbox,
                index,
                len,
                counts,
                counter,
                counted,
                reach,
            }) => FarInsn::Put(FarPut {
                peer: peer.map(|p| self.reg(p)),
                outbox,
                from: self.reg(from),
                inbox,
                index: self.reg(index),
                len,
                counts,
                counter: self.reg(counter),
                counted,
                reach,
            }),
            CommOp::FarPublish(ir::FarPublish { peer, counts, counter, adds, reach }) => FarInsn::Publish {
                peer: peer.map(|p| self.reg(p)),
                counts,
                counter: self.reg(counter),
                adds: self.reg(adds),
                reach,
            },
            CommOp::FarWait(ir::FarWait { receipt, counts, counter, count, from, value, reach }) => {
                FarInsn::Wait(FarWait {
                    receipt,
                    counts,
                    counter: self.reg(counter),
                    count: self.reg(count),
                    from: self.reg(from),
                    value: self.reg(value),
                    reach,
                })
            }
            CommOp::FarSettle(ir::FarSettle { outbox }) => FarInsn::Settle { outbox },
            any!(puts, signals, waits, messages) => return None,
        })
    }
}

/// A counter: the rank it is on, the buffer, and its index there.
type CounterAt = (usize, usize, u64);

/// A stretch of a buffer of a rank, in bytes.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    rank: usize,
    buffer: usize,
    at: u64,
}

/// A put, from its issue on.
#[derive(Debug)]
struct Put {
    by: Event,
    launch: usize,
    source: Stretch,
    target: Stretch,
    bytes: u64,
    counter: CounterAt,
    /// Number of its turn of the counter.
    turn: usize,
    counted: bool,
    /// Whether it counts itself or a publish of its group stands behind it.
    published: bool,
    /// Pieces that are not read, from and to, and those that are, with what was there.
    unread: Vec<(u64, u64)>,
    read: Vec<(u64, Vec<u8>)>,
    /// Who knows that it has been read.
    settled: Vec<Event>,
    /// Bytes of the source that are written again.
    rewritten: u64,
}

impl Put {
    fn is_complete(&self) -> bool {
        self.unread.is_empty()
    }

    fn has_arrived(&self) -> bool {
        self.unread.is_empty() && self.read.is_empty()
    }
}

/// An addition to a counter behind puts.
#[derive(Debug)]
struct Publish {
    counter: CounterAt,
    adds: u64,
    behind: Vec<usize>,
}

/// What is on its way.
#[derive(Clone, Copy, Debug)]
enum Flight {
    Put(usize),
    Publish(usize),
}

/// What a source adds to a counter in one launch. `start` and `end` count from the beginning of the run.
#[derive(Debug)]
struct Turn {
    launch: usize,
    first: Event,
    start: u64,
    end: u64,
    /// Whether data is put in it; else it is a credit.
    data: bool,
    /// What is ordered before its puts.
    clock: Clock,
    /// The waits that took it to its end.
    covered: Vec<Event>,
    /// Reads that took it for complete.
    read: Vec<Event>,
}

/// A counter.
#[derive(Debug, Default)]
struct Counter {
    arrived: u64,
    taken: u64,
    turns: Vec<Turn>,
    waiting: Vec<AgentId>,
    /// The last wait that took anything, and its launch.
    last: Option<(Event, usize)>,
}

/// A wait that is over: its counters in order, and what all waits together had taken of each.
#[derive(Debug)]
struct Waited {
    taken: Vec<(CounterAt, u64)>,
}

impl Waited {
    fn taken_of(&self, counter: CounterAt) -> Option<u64> {
        let at = self.taken.binary_search_by_key(&counter, |(counter, _)| *counter).ok()?;
        Some(self.taken[at].1)
    }
}

/// All that far channels do in a run.
#[derive(Debug, Default)]
pub(crate) struct Far {
    puts: Vec<Put>,
    publishes: Vec<Publish>,
    flights: Vec<Flight>,
    /// Puts of a group that no publish stands behind yet, by their group, launch and counter.
    unpublished: HashMap<(AgentNo, usize, CounterAt), Vec<usize>>,
    /// The last put to each byte, by rank and buffer.
    inboxes: HashMap<(usize, usize), Runs<usize>>,
    /// Puts whose source has not been written again, by rank and buffer.
    outboxes: HashMap<(usize, usize), Vec<usize>>,
    counters: BTreeMap<CounterAt, Counter>,
    waits: Vec<Waited>,
    settling: Vec<AgentId>,
    /// Launches that are over.
    over: HashSet<usize>,
}

impl World<'_> {
    /// Runs an instruction of a far channel; false while it waits.
    pub fn far(&mut self, id: AgentId, agent: &mut Agent, insn: &FarInsn) -> Result<bool, Fault> {
        match *insn {
            FarInsn::Put(ref put) => self.far_put(agent, put).map(|()| true),
            FarInsn::Publish { peer, counts, counter, adds, reach } => {
                self.far_publish(agent, (peer, counts, counter), (adds, reach)).map(|()| true)
            }
            FarInsn::Wait(ref wait) => self.far_wait(id, agent, wait),
            FarInsn::Settle { outbox } => Ok(self.far_settle(id, agent, outbox)),
        }
    }

    /// Whether a group knows that a turn is over.
    fn far_covered(turn: &Turn, who: Who<'_>) -> bool {
        turn.covered.iter().any(|e| who.after(*e))
    }

    /// The name of a counter, for messages.
    fn far_name(&self, counter: CounterAt) -> String {
        format!("{}[{}] of rank {}", self.machine.buffers[counter.1].name, counter.2, counter.0)
    }

    /// A counter that exists.
    fn far_counter(
        &mut self,
        agent: &Agent,
        counts: ParamId,
        rank: usize,
        index: u64,
    ) -> Result<CounterAt, Fault> {
        let len = agent.compiled.kernel().params[counts.index()].len;
        if index < len {
            return Ok((rank, agent.buffer(counts), index));
        }
        Err(self.out_of_bounds(agent, Place::Param(counts), (index, index.saturating_add(1)), len))
    }

    /// The ranks that a put or publish goes to.
    fn far_peers(&mut self, agent: &Agent, peer: Option<Reg>, reach: FarReach) -> Result<Vec<usize>, Fault> {
        let ranks = u64::from(self.machine.ranks);
        match peer.map(|p| agent.get(p)) {
            None => {
                let (step, count) = reach.of(agent.compiled.kernel());
                let first = if reach.rail { agent.near() } else { 0 };
                let all = (0..count).map(|i| first + i * step);
                let meant = all.filter(|rank| !reach.others || *rank != agent.rank);
                Ok(meant.map(|rank| rank as usize).collect())
            }
            Some(rank) if rank < ranks => Ok(vec![rank as usize]),
            Some(rank) => Err(self.no_such_rank(agent, rank)),
        }
    }
}
