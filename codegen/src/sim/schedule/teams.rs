//! Blocks and their groups: how they begin, take turns and end.

use smallvec::SmallVec;

use super::agent::{Agent, AgentId, Ended, Storage};
use super::agents::{Body, Next, Unborn};
use super::clock::{AgentNo, Clock};
use super::launch::{Life, RunningBlock};
use super::turns::Task;
use super::world::{World, insert};
use crate::sim::exec::interpreter::Stop;
use crate::sim::flatten::{Insn, Pc};
use crate::sim::memory::Receipt;
use crate::sim::values::Tile;

impl World<'_> {
    /// Starts what runs a role's body in one of its blocks.
    pub(crate) fn start_team(&mut self, rank: u32, role: usize, block_in_role: u32) {
        let Some(launch) = &self.streams[rank as usize].launch else { return };
        let code = &self.machine.kernels[launch.kernel].roles[role];
        let who = AgentNo::new(rank, 1 + code.first_agent + block_in_role * code.max_groups);
        let (time, number) = (launch.start.get(who) + 1, launch.number);
        let priority = self.sched.priority(rank, Some((role, block_in_role)));
        let life = Life {
            number: who.number(),
            from: time,
            launch: number,
            role,
            block: block_in_role,
            group: None,
        };
        self.add_agent(Unborn { who, time, priority, body: Body::Block { role, block_in_role } }, life);
    }

    fn add_agent(&mut self, unborn: Unborn, life: Life) {
        self.lives[unborn.who.rank()].push(life);
        let priority = unborn.priority;
        let id = self.agents.add(unborn);
        self.sched.ready(Task::Agent(id), priority);
    }

    /// Makes an agent that can run.
    fn born(&mut self, unborn: Unborn) -> Option<Box<Agent>> {
        let Unborn { who, time, priority, body } = unborn;
        let mut agent = match body {
            Body::Block { role, block_in_role } => self.first_of_block(who, role, block_in_role)?,
            Body::Group { parent, group, first } => {
                let place = self.agents.ended();
                let parent_agent = self.agents.get(parent)?;
                let known = self.blocks[parent_agent.block as usize].as_ref()?.known.as_ref()?;
                let mut child = parent_agent.fork(known, place);
                (child.who, child.parent, child.group, child.pc) = (who, Some(parent), Some(group), first);
                child
            }
        };
        (agent.time, agent.priority) = (time, priority);
        Some(agent)
    }

    /// What begins to run a role in a block of the rank's launch.
    fn first_of_block(&mut self, who: AgentNo, role: usize, block_in_role: u32) -> Option<Box<Agent>> {
        let rank = who.rank() as u32;
        let launch = self.streams[who.rank()].launch.as_ref()?;
        let compiled = self.machine.kernels[launch.kernel].clone();
        let code = &compiled.roles[role];
        let shared = compiled.kernel.shared.iter().map(|s| (0..s.copies).map(|_| None).collect());
        let block = RunningBlock { shared: shared.collect(), groups: 0, known: None, ended: SmallVec::new() };
        let mut place = self.agents.ended();
        let storage = place.as_mut().map(Ended::storage).unwrap_or_default();
        let Storage { mut scalars, mut tiles, mut receipts } = storage;
        scalars.clone_from(&code.scalars);
        tiles.resize(code.tiles.count as usize, Tile::default());
        receipts.clear();
        receipts.resize(compiled.kernel.receipts.len(), Receipt::default());
        let agent = Agent {
            who,
            time: 0,
            clock: Clock::clone(&launch.start),
            rank,
            kernel: launch.kernel,
            role,
            launch: launch.number,
            step: launch.step,
            params: launch.params.clone(),
            block: insert(&mut self.blocks, &mut self.free_blocks, block),
            block_in_role,
            group: None,
            parent: None,
            pc: 0,
            scalars,
            tiles,
            receipts,
            arrived: 0,
            arrived_from: u32::MAX,
            staging: None,
            priority: 0,
            compiled,
        };
        Some(match place {
            Some(ended) => ended.replaced(agent),
            None => Box::new(agent),
        })
    }

    pub(crate) fn run_agent(&mut self, id: AgentId) {
        let next = self.agents.take(id).and_then(|next| match next {
            Next::Agent(agent) => Some(agent),
            Next::Unborn(unborn) => self.born(unborn),
        });
        let Some(mut agent) = next else { return };
        let stretch = self.sched.stretch();
        if self.sched.change_point() {
            agent.priority = self.sched.demoted();
        }
        let before = self.steps;
        let stop = self.execute(id, &mut agent, stretch);
        self.counts[agent.kernel].steps += self.steps - before;
        match stop {
            Stop::Stretch => {
                self.sched.ready(Task::Agent(id), agent.priority);
                self.agents.put_back(id, agent);
            }
            Stop::Waiting | Stop::Fault => self.agents.put_back(id, agent),
            Stop::Split { groups, body } => self.split(id, agent, groups, body),
            Stop::Join => {
                self.join(id, &agent);
                self.agents.bury(agent);
            }
            Stop::End => {
                self.end_block(id, &agent);
                self.agents.bury(agent);
            }
        }
    }

    fn split(&mut self, id: AgentId, mut agent: Box<Agent>, groups: u32, body: Pc) {
        let known = agent.publish();
        for group in 0..groups {
            let who = AgentNo::new(agent.rank, agent.who.number() as u32 + group);
            let time = if group == 0 { agent.time } else { known.get(who) + 1 };
            let priority = self.sched.priority(agent.rank, Some((agent.role, agent.block_in_role)));
            let life = Life { number: who.number(), from: time, group: Some(group), ..agent.life() };
            let body = Body::Group { parent: id, group, first: body };
            self.add_agent(Unborn { who, time, priority, body }, life);
        }
        if let Some(block) = &mut self.blocks[agent.block as usize] {
            (block.groups, block.known) = (groups, Some(known));
        }
        self.agents.put_back(id, agent);
    }

    fn join(&mut self, id: AgentId, group: &Agent) {
        self.agents.free(id);
        let Some(block) = &mut self.blocks[group.block as usize] else { return };
        block.ended.push((group.who, group.time));
        block.groups -= 1;
        if block.groups > 0 && !group.clock.has_grown() {
            return;
        }
        let Some(parent_id) = group.parent else { return };
        let Some(parent) = self.agents.get_mut(parent_id) else { return };
        parent.clock.rejoin(&group.clock);
        if block.groups > 0 {
            return;
        }
        block.known = None;
        // The first group has had the block's own number.
        let own = block.ended.iter().find(|e| e.0 == parent.who).map_or(parent.time, |e| e.1);
        parent.time = own + 1;
        // Most blocks are done then, and no agent asks them what they know.
        if !matches!(parent.role_code().code[parent.pc as usize], Insn::End) {
            block.ended.drain(..).for_each(|(who, time)| parent.clock.set(who, time));
        }
        self.lives[parent.who.rank()].push(parent.life());
        self.sched.ready(Task::Agent(parent_id), parent.priority);
    }

    fn end_block(&mut self, id: AgentId, agent: &Agent) {
        self.progress();
        self.agents.free(id);
        let block = self.blocks[agent.block as usize].take();
        self.free_blocks.push(agent.block);
        if let Some(launch) = &mut self.streams[agent.rank as usize].launch {
            block.into_iter().flat_map(|b| b.ended).for_each(|(who, time)| launch.end.set(who, time));
            agent.end_before(&mut launch.end);
            let first = agent.compiled.kernel.first_block(agent.role, agent.near());
            launch.ends(first + agent.block_in_role);
        }
        self.start_blocks(agent.rank);
    }
}
