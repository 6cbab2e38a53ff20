//! An agent: a block, or a group of a block inside a split, with its position, registers and clock.

use std::mem::take;
use std::rc::Rc;
use std::sync::Arc;

use super::clock::{AgentNo, Clock};
use super::launch::{Life, ProgramStep};
use crate::sim::exec::staging::Staging;
use crate::sim::flatten::{
    Pc,
    code::{Compiled, RoleCode},
};
use crate::sim::memory::Receipt;
use crate::sim::setup::Bound;
use crate::sim::values::Tile;

/// Index of an agent among those that exist.
pub(crate) type AgentId = u32;
/// Index of a block among those that run.
pub(crate) type BlockId = u32;

/// State of one agent.
#[derive(Clone, Debug)]
pub(crate) struct Agent {
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
    /// The step of the rank's program that launched it.
    pub step: ProgramStep,
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
    pub receipts: Vec<Receipt>,
    /// How many flags of a `WaitAll` have arrived.
    pub arrived: u64,
    /// The earliest step that signalled one of them; see [`Receipt::step`].
    pub arrived_from: u32,
    /// Its products, where these are staged.
    pub staging: Option<Box<Staging>>,
    /// Rank in the adversary's order; higher runs first.
    pub priority: u64,
}

/// Storage that agents leave when they end, for those that begin: thousands do in each launch.
#[derive(Debug, Default)]
pub(crate) struct Storage {
    pub scalars: Vec<u64>,
    pub tiles: Vec<Tile>,
    pub receipts: Vec<Receipt>,
}

/// An agent that has ended: a place for another one.
#[derive(Debug)]
pub(crate) struct Ended(Box<Agent>);

impl Ended {
    pub fn new(mut agent: Box<Agent>) -> Ended {
        agent.clock.clear();
        agent.tiles.iter_mut().for_each(Tile::clear);
        agent.staging = None;
        Ended(agent)
    }

    /// Its storage, once.
    pub fn storage(&mut self) -> Storage {
        let Agent { scalars, tiles, receipts, .. } = &mut *self.0;
        Storage { scalars: take(scalars), tiles: take(tiles), receipts: take(receipts) }
    }

    /// Puts another agent into its place.
    pub fn replaced(self, agent: Agent) -> Box<Agent> {
        let Ended(mut place) = self;
        *place = agent;
        place
    }
}

impl Agent {
    /// Its rank's number among those of its machine.
    pub fn near(&self) -> u32 {
        self.compiled.kernel().near(self.rank)
    }

    /// The number of its machine.
    pub fn node(&self) -> u32 {
        self.rank / self.compiled.kernel().ranks.max(1)
    }

    /// The first rank of its machine.
    pub fn first_near(&self) -> u32 {
        self.rank - self.near()
    }

    /// The rank that a number of its machine's ranks stands for.
    pub fn rank_near(&self, number: u64) -> u64 {
        number.saturating_add(self.first_near().into())
    }

    /// The rank that signals a flag of a `WaitAll`.
    pub fn awaited_rank(&self, index: u64, per_rank: u32) -> u64 {
        self.rank_near(index / u64::from(per_rank.max(1)) % u64::from(self.compiled.kernel().ranks.max(1)))
    }

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
        // The agent's own clock is joined as it is: with the time of its end in it, it would be like no other.
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

    /// An agent of the same block with the same registers, which knows what is given; in the place of one that has ended, if there is
    /// one.
    pub fn fork(&self, known: &Clock, place: Option<Ended>) -> Box<Agent> {
        let mut child = match place {
            Some(Ended(mut place)) => {
                place.become_like(self);
                place
            }
            None => Box::new(self.clone()),
        };
        child.clock = known.clone();
        child.arrived = 0;
        child.staging = None;
        child
    }

    /// Takes over everything but the clock. Most of what is shared is the same already, and is not counted anew.
    fn become_like(&mut self, other: &Agent) {
        let Agent { who, time, clock: _, rank, compiled, kernel, role, launch, params, .. } = other;
        let Agent { block, block_in_role, group, parent, pc, scalars, tiles, receipts, .. } = other;
        let Agent { step, arrived, arrived_from, priority, staging: _, .. } = other;
        if !Arc::ptr_eq(&self.compiled, compiled) {
            self.compiled = compiled.clone();
        }
        if !Arc::ptr_eq(&self.params, params) {
            self.params = params.clone();
        }
        (self.who, self.time, self.rank, self.kernel, self.role) = (*who, *time, *rank, *kernel, *role);
        (self.launch, self.block, self.block_in_role) = (*launch, *block, *block_in_role);
        (self.group, self.parent, self.pc, self.arrived) = (*group, *parent, *pc, *arrived);
        (self.step, self.arrived_from, self.priority) = (*step, *arrived_from, *priority);
        self.scalars.clone_from(scalars);
        self.tiles.resize_with(tiles.len(), Tile::default);
        self.tiles.iter_mut().zip(tiles).for_each(|(mine, theirs)| mine.become_like(theirs));
        self.receipts.clone_from(receipts);
    }
}
