//! An agent: a block, or a group of a block inside a split, with its position, registers and clock.

use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use super::clock::{AgentNo, Clock};
use super::code::{Compiled, Pc, RoleCode};
use super::launch::Life;
use super::machine::Bound;
use super::shadow::DataEpoch;
use super::value::Tile;

/// Index of an agent among those that exist.
pub(super) type AgentId = u32;
/// Index of a block among those that run.
pub(super) type BlockId = u32;

/// State of one agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub who: AgentNo,
    pub time: u32,
    pub clock: Clock,
    pub rank: u32,
    pub compiled: Arc<Compiled>,
    /// Number of the kernel in the machine.
    pub kernel: usize,
    pub role: usize,
    /// Number of the launch among all of the run.
    pub launch: usize,
    pub params: Arc<[Bound]>,
    pub block: BlockId,
    /// The block's number within its role.
    pub block_in_role: u32,
    /// Group within the block, inside a split.
    pub group: Option<u32>,
    pub parent: Option<AgentId>,
    pub pc: Pc,
    pub scalars: Vec<u64>,
    pub tiles: Vec<Tile>,
    /// The epoch that each receipt was waited for with.
    pub receipts: Vec<DataEpoch>,
    /// The ranks that each receipt's wait was for, as a mask.
    pub heard: Vec<u64>,
    /// How many flags of a `WaitAll` have arrived.
    pub arrived: u64,
    /// Rank in the adversary's order; higher runs first.
    pub priority: u64,
}

/// Storage that agents leave when they end, for those that begin: thousands do in each launch.
#[derive(Debug, Default)]
pub(super) struct Storage {
    pub clock: Clock,
    pub scalars: Vec<u64>,
    pub tiles: Vec<Tile>,
    pub receipts: Vec<DataEpoch>,
    pub heard: Vec<u64>,
}

/// An agent that has ended: a place for another one.
#[derive(Debug)]
pub(super) struct Ended(Box<Agent>);

impl Ended {
    pub fn new(mut agent: Box<Agent>) -> Ended {
        agent.clock.clear();
        agent.tiles.clear();
        Ended(agent)
    }

    /// Its storage, once.
    pub fn storage(&mut self) -> Storage {
        let Agent { clock, scalars, tiles, receipts, heard, .. } = &mut *self.0;
        let (clock, scalars, tiles) = (take(clock), take(scalars), take(tiles));
        Storage { clock, scalars, tiles, receipts: take(receipts), heard: take(heard) }
    }

    /// Puts another agent into its place.
    pub fn replaced(self, agent: Agent) -> Box<Agent> {
        let Ended(mut place) = self;
        *place = agent;
        place
    }
}

impl Agent {
    /// The code it runs.
    pub fn role_code(&self) -> &RoleCode {
        &self.compiled.roles[self.role]
    }

    /// A clock that everything done so far is ordered before; what is done from now on is not.
    pub fn publish(&mut self) -> Rc<Clock> {
        self.clock.set(self.who, self.time);
        self.time += 1;
        Rc::new(self.clock.clone())
    }

    /// Ends its actions: all of them are ordered before the owner of the clock that its own was copied from.
    pub fn end_before(&self, clock: &mut Clock) {
        // The agent's own clock is joined as it is: with the time of its end in it, it would be like nobody else's.
        clock.rejoin(&self.clock);
        clock.set(self.who, self.time);
    }

    /// Its life, from now on.
    pub fn life(&self) -> Life {
        Life {
            number: self.who.number(),
            from: self.time,
            launch: self.launch,
            role: self.role,
            block: self.block_in_role,
            group: self.group,
        }
    }

    /// An agent of the same block that goes on where this one is, with what this one has published.
    pub fn fork(&self, who: AgentNo, time: u32, known: &Clock, mut storage: Storage) -> Agent {
        storage.clock.clone_from(known);
        storage.scalars.clone_from(&self.scalars);
        storage.tiles.clone_from(&self.tiles);
        storage.receipts.clone_from(&self.receipts);
        storage.heard.clone_from(&self.heard);
        Agent {
            who,
            time,
            clock: storage.clock,
            rank: self.rank,
            compiled: self.compiled.clone(),
            kernel: self.kernel,
            role: self.role,
            launch: self.launch,
            params: self.params.clone(),
            block: self.block,
            block_in_role: self.block_in_role,
            group: None,
            parent: None,
            pc: self.pc,
            scalars: storage.scalars,
            tiles: storage.tiles,
            receipts: storage.receipts,
            heard: storage.heard,
            arrived: 0,
            priority: self.priority,
        }
    }
}
