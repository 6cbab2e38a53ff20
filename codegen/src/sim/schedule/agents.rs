//! The agents that exist. Thousands begin at once, and most of them have nothing to do: until one runs for the first time, it is a
//! few words, and it takes its registers and its clock from one that has ended, which are in the caches still.

use super::agent::{Agent, AgentId, Ended};
use super::clock::AgentNo;
use crate::sim::flatten::Pc;

/// An agent that has not run yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unborn {
    pub who: AgentNo,
    pub time: u32,
    pub priority: u64,
    pub body: Body,
}

/// What it will run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Body {
    /// A role, in one of the role's blocks.
    Block { role: usize, block_in_role: u32 },
    /// A group of a split, from an instruction on. It begins with what its parent holds, which waits until the group has ended.
    Group { parent: AgentId, group: u32, first: Pc },
}

/// The agents with numbers.
#[derive(Debug)]
enum Slot {
    /// None, or an agent that runs now.
    Empty,
    Unborn(Unborn),
    Agent(Box<Agent>),
}

/// Who runs next, out of its slot.
pub(crate) enum Next {
    Unborn(Unborn),
    Agent(Box<Agent>),
}

/// Agents by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Agents {
    slots: Vec<Slot>,
    free: Vec<AgentId>,
    ended: Vec<Ended>,
}

impl Agents {
    /// One that has run and does not run now.
    pub fn get(&self, id: AgentId) -> Option<&Agent> {
        match &self.slots[id as usize] {
            Slot::Agent(agent) => Some(agent),
            Slot::Unborn(_) | Slot::Empty => None,
        }
    }

    /// As [`Agents::get`].
    pub fn get_mut(&mut self, id: AgentId) -> Option<&mut Agent> {
        match &mut self.slots[id as usize] {
            Slot::Agent(agent) => Some(agent),
            Slot::Unborn(_) | Slot::Empty => None,
        }
    }

    /// Gives one that is to begin a number.
    pub fn add(&mut self, unborn: Unborn) -> AgentId {
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = Slot::Unborn(unborn);
            return id;
        }
        self.slots.push(Slot::Unborn(unborn));
        self.slots.len() as AgentId - 1
    }

    /// Takes one out, to run. Its number stays its own.
    pub fn take(&mut self, id: AgentId) -> Option<Next> {
        match std::mem::replace(&mut self.slots[id as usize], Slot::Empty) {
            Slot::Agent(agent) => Some(Next::Agent(agent)),
            Slot::Unborn(unborn) => Some(Next::Unborn(unborn)),
            Slot::Empty => None,
        }
    }

    /// Puts one back that has run.
    pub fn put_back(&mut self, id: AgentId, agent: Box<Agent>) {
        self.slots[id as usize] = Slot::Agent(agent);
    }

    /// Gives the number of one that has ended to others.
    pub fn free(&mut self, id: AgentId) {
        self.free.push(id);
    }

    /// Keeps what is left of one that has ended.
    pub fn bury(&mut self, agent: Box<Agent>) {
        self.ended.push(Ended::new(agent));
    }

    /// What is left of the one that ended last.
    pub fn ended(&mut self) -> Option<Ended> {
        self.ended.pop()
    }

    /// How many numbers there are.
    pub fn len(&self) -> usize {
        self.slots.len()
    }
}
