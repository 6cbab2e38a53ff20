//! A run: streams, launches, blocks, and the loop that lets them act.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use super::agent::{Agent, BlockId};
use super::agents::Agents;
use super::clock::{AgentNo, Clock};
use super::launch::{Launch, Life, ProgramStep, RunningBlock, Stream};
use super::turns::{Scheduler, Task};
use crate::ir::ParamKind;
use crate::sim::exec::pairs::Ahead;
use crate::sim::far::Far;
use crate::sim::findings::{
    FindingKind,
    finding::{Collector, Findings},
};
use crate::sim::memory::{
    Block as Memory, DataEpoch, Event, Who,
    flags::next_epoch,
    global::{self, HostMemory},
    shadow::{Clash, Shadow},
    wire::Wire,
};
use crate::sim::setup::{
    Bound, Step,
    machine::{Buffer, HostStep, Machine, Outcome},
    options::Options,
    report::{Counts, Report},
};

/// A run in progress.
#[derive(Debug)]
pub(crate) struct World<'m> {
    pub machine: &'m Machine,
    pub options: &'m Options,
    pub memory: Vec<Vec<Memory>>,
    pub wires: Vec<Wire>,
    pub sched: Scheduler,
    pub streams: Vec<Stream>,
    pub agents: Agents,
    pub blocks: Vec<Option<RunningBlock>>,
    pub free_blocks: Vec<BlockId>,
    /// The epoch that each launch works in, once it has read it.
    pub epochs: Vec<Option<u32>>,
    /// The rank of each launch, and the step of its program that the launch is.
    pub launched_in: Vec<(u32, u32)>,
    /// By rank, in the order in which they began.
    pub lives: Vec<Vec<Life>>,
    /// First site of each kernel.
    pub sites: Vec<u32>,
    pub found: Collector,
    pub counts: Vec<Counts>,
    pub steps: u64,
    /// When the run is given up, in steps, unless somebody makes progress.
    pub deadline: u64,
    /// The last updates of work counters, by rank, buffer and element.
    pub draws: HashMap<(u32, usize, u64), Event>,
    /// What those have released who took tickets at a counter, by rank, buffer and index.
    pub tickets: HashMap<(u32, usize, u64), Rc<Clock>>,
    /// What one block of each pair has multiplied before the other one, by launch, role and number of the pair.
    pub pairs: HashMap<(usize, usize, u32), Ahead>,
    pub far: Far,
    /// The rank that has died.
    pub dead: Option<u32>,
    /// Stores to ranks, by the rank that did them.
    pub stores: Vec<u64>,
    max_resident: u32,
    /// Scratch of the accesses.
    pub clashes: Vec<Clash>,
}

/// How many instructions all agents together execute at most before one of them stores, sends or receives something: beyond
/// that, a loop is endless. It takes a second or two.
pub(crate) const SPIN_STEPS: u64 = 8_000_000;
/// How many more for each agent that there is.
const SPIN_STEPS_EACH: u64 = 1 << 15;

/// Every byte of the memory of a rank that is not active.
const ANYTHING: u8 = 0xff;

/// Site of what hosts do.
pub(crate) const HOST_SITE: u32 = u32::MAX >> 1;

impl<'m> World<'m> {
    pub fn new(machine: &'m Machine, options: &'m Options) -> World<'m> {
        let ranks = machine.ranks as usize;
        let agents = 1 + machine.kernels.iter().map(|k| k.agents).max().unwrap_or(0) as usize;
        let clock = Clock::new(ranks, agents);
        let mut sched = Scheduler::new(options.strategy, options.seed, machine.ranks);
        let streams: Vec<Stream> = (0..machine.ranks)
            .map(|rank| Stream {
                who: AgentNo::new(rank, 0),
                time: 1,
                clock: clock.clone(),
                step: 0,
                program: ProgramStep::all(&machine.programs[rank as usize]),
                launch: None,
                advanced: vec![],
                priority: sched.priority(rank, None),
            })
            .collect();
        let mut next_site = 0;
        let sites = machine.kernels.iter().map(|k| {
            let first = next_site;
            next_site += k.kernel.ops.len() as u32;
            first
        });
        let mut world = World {
            sites: sites.collect(),
            machine,
            options,
            memory: global::initial(machine, options.race_checks),
            wires: (0..ranks).map(|_| Wire::default()).collect(),
            sched,
            streams,
            agents: Agents::default(),
            blocks: vec![],
            free_blocks: vec![],
            epochs: vec![],
            launched_in: vec![],
            lives: vec![vec![]; ranks],
            found: Collector::new(options.max_findings),
            counts: machine.kernels.iter().map(|_| Counts::new(ranks)).collect(),
            steps: 0,
            deadline: SPIN_STEPS.min(options.max_steps),
            draws: HashMap::new(),
            tickets: HashMap::new(),
            pairs: HashMap::new(),
            far: Far::default(),
            dead: options.death.filter(|death| death.after == 0).map(|death| death.rank),
            stores: vec![0; ranks],
            max_resident: 0,
            clashes: vec![],
        };
        world.write_inputs();
        world
    }

    /// Writes what the machine has as first content, as the ranks' hosts at time 0.
    fn write_inputs(&mut self) {
        let machine = self.machine;
        // The others share fresh memory once a rank has left.
        let fresh =
            |b: &Buffer| machine.inactive != 0 && matches!(b.kind, ParamKind::Symmetric | ParamKind::Window);
        for (at, buffer) in machine.buffers.iter().enumerate().filter(|(_, b)| b.zeroed || fresh(b)) {
            for rank in 0..machine.ranks {
                self.setup_write(rank, at, 0, buffer.bytes);
                if fresh(buffer) && !machine.is_active(rank as usize) {
                    self.memory[rank as usize][at].bytes_mut().fill(ANYTHING);
                }
            }
        }
        for input in &machine.inputs {
            let (from, to) = (input.at, input.at + input.bytes.len() as u64);
            self.setup_write(input.rank, input.buffer, from, to);
            let memory = self.memory[input.rank as usize][input.buffer].bytes_mut();
            memory[from as usize..to as usize].copy_from_slice(&input.bytes);
        }
    }

    fn setup_write(&mut self, rank: u32, buffer: usize, from: u64, to: u64) {
        let stream = &self.streams[rank as usize];
        let event = Event { agent: stream.who, time: 0, site: HOST_SITE };
        if let Some(shadow) = &mut self.memory[rank as usize][buffer].shadow {
            let who = Who { clock: &stream.clock, event };
            shadow.write(from, to, who, DataEpoch::default(), &mut self.clashes);
        }
    }

    /// Runs to the end, or to the first finding that ends the run.
    pub fn run(mut self) -> Result<Outcome, Box<Findings>> {
        for rank in 0..self.machine.ranks {
            if self.machine.is_active(rank as usize) {
                self.stream_ready(rank);
            }
        }
        while !self.found.ended() {
            self.deliver_by_chance();
            self.fly_by_chance();
            match self.sched.pick() {
                // A rank that is dead does nothing any more.
                Some(task) if self.is_dead(task) => {}
                Some(Task::Agent(agent)) => self.run_agent(agent),
                Some(Task::Stream(rank)) => self.run_stream(rank),
                None if self.deliver_one() || self.fly_one() => {}
                None => break,
            }
        }
        if !self.found.ended() {
            self.check_end();
        }
        let report = self.report();
        if self.found.list.is_empty() {
            for rank in 0..self.wires.len() {
                self.deliver_all(rank);
            }
            return Ok(Outcome {
                report,
                memory: global::Memory::new(self.memory, self.machine.names.clone()),
            });
        }
        Err(Box::new(Findings::new(self.options.seed, self.found, report)))
    }

    fn report(&self) -> Report {
        let mut report = Report {
            steps: self.steps,
            picks: self.sched.picks(),
            max_resident_blocks: self.max_resident,
            stores: self.stores.clone(),
            steps_done: self.streams.iter().map(|stream| stream.step as u32).collect(),
            ..Report::default()
        };
        for (kernel, counts) in self.machine.kernels.iter().zip(&self.counts) {
            report.add(&kernel.kernel.name, counts);
        }
        report
    }

    fn stream_ready(&mut self, rank: u32) {
        let stream = &self.streams[rank as usize];
        if stream.step < self.machine.programs[rank as usize].len() {
            self.sched.ready(Task::Stream(rank), stream.priority);
        }
    }

    fn run_stream(&mut self, rank: u32) {
        let machine = self.machine;
        let step = self.streams[rank as usize].step;
        match &machine.programs[rank as usize][step] {
            Step::Launch { kernel, params } => self.start_launch(rank, *kernel, params.clone()),
            Step::Host { label, run } => self.run_host(rank, label, run),
        }
    }

    fn run_host(&mut self, rank: u32, label: &str, run: &HostStep) {
        if let Err(why) = run(&mut HostMemory::new(self, rank)) {
            let message = format!("host step `{label}` of rank {rank}: {why}");
            let at = self.host_event(rank);
            self.find(FindingKind::HostFailed, message, at, None);
        }
        self.end_step(rank);
    }

    /// Whether a task is of the rank that has died.
    fn is_dead(&self, task: Task) -> bool {
        let Some(dead) = self.dead else { return false };
        match task {
            Task::Agent(id) => self.agents.get(id).is_some_and(|agent| agent.rank == dead),
            Task::Stream(rank) => rank == dead,
        }
    }

    /// The active ranks of an agent's machine, as a mask.
    pub fn active(&self, agent: &Agent) -> u64 {
        let near = agent.compiled.kernel().ranks;
        !self.machine.inactive & (u64::MAX >> (64 - near.clamp(1, 64)))
    }

    /// Somebody has done something that others may have waited for.
    pub fn progress(&mut self) {
        self.deadline = (self.steps + self.spin_steps()).min(self.options.max_steps);
    }

    /// See [`SPIN_STEPS`].
    pub fn spin_steps(&self) -> u64 {
        SPIN_STEPS + SPIN_STEPS_EACH * self.agents.len() as u64
    }

    fn end_step(&mut self, rank: u32) {
        self.progress();
        self.streams[rank as usize].step += 1;
        self.stream_ready(rank);
    }

    fn start_launch(&mut self, rank: u32, kernel: usize, params: Arc<[Bound]>) {
        let compiled = &self.machine.kernels[kernel];
        let near = compiled.kernel.near(rank);
        self.counts[kernel].launches += 1;
        self.epochs.push(None);
        let step = self.streams[rank as usize].step as u32;
        self.launched_in.push((rank, step));
        let stream = &mut self.streams[rank as usize];
        stream.clock.set(stream.who, stream.time);
        stream.time += 1;
        stream.launch = Some(Launch {
            kernel,
            step: stream.program[stream.step],
            params,
            number: self.epochs.len() - 1,
            start: Rc::new(stream.clock.clone()),
            end: stream.clock.clone(),
            next_block: 0,
            running: 0,
            left: HashMap::new(),
            blocks: compiled.kernel.blocks_of(near),
            teams: compiled.kernel.roles.iter().filter(|role| role.is_on(near)).map(|role| role.blocks).sum(),
            begun: vec![],
        });
        self.start_blocks(rank);
    }

    /// Starts as many blocks as there is room for, or ends the launch when all are done.
    pub(crate) fn start_blocks(&mut self, rank: u32) {
        let room = self.options.resident_blocks.unwrap_or(u32::MAX).max(1);
        while let Some(launch) = &mut self.streams[rank as usize].launch {
            if launch.next_block == launch.blocks {
                if launch.running == 0 {
                    self.end_launch(rank);
                }
                return;
            }
            if launch.running >= room {
                return;
            }
            let block = launch.next_block;
            launch.next_block += 1;
            launch.running += 1;
            self.max_resident = self.max_resident.max(launch.running);
            let compiled = self.machine.kernels[launch.kernel].clone();
            let (role, number) = compiled.role_of(rank, block);
            let beside = &compiled.roles[role].companions;
            if !beside.is_empty() {
                launch.left.insert(block, 1 + beside.len() as u32);
            }
            self.start_team(rank, role, number);
            for &role in beside {
                self.start_team(rank, role, number);
            }
        }
    }

    fn end_launch(&mut self, rank: u32) {
        self.check_counters(rank);
        let Some(launch) = self.streams[rank as usize].launch.take() else { return };
        self.check_far_launch(rank, launch.number);
        let stream = &mut self.streams[rank as usize];
        stream.clock.join(&launch.end);
        stream.advanced = launch.begun.iter().map(|begun| begun.0).collect();
        self.end_step(rank);
    }

    /// The epoch that an agent's launch works in, read from the word. The last block to begin advances the word.
    pub fn read_epoch(&mut self, agent: &Agent, word: usize, advance: bool) -> u32 {
        let stream = &self.streams[agent.rank as usize];
        if agent.compiled.kernel.begins_early && stream.advanced.contains(&word) {
            let name = &self.machine.buffers[word].name;
            let message = format!(
                "this launch begins its epoch before the launch before it is over, and that one advances `{name}`, too: \
                 another launch has to stand between them"
            );
            self.find(FindingKind::EarlyEpoch, message, agent.event(&self.sites), None);
        }
        let held = &mut self.memory[agent.rank as usize][word].view_mut::<u32>()[0];
        let epoch = next_epoch(*held);
        self.epochs[agent.launch] = Some(epoch);
        if advance
            && let Some(launch) = &mut self.streams[agent.rank as usize].launch
            && launch.begins(word) == launch.teams
        {
            *held = epoch;
        }
        epoch
    }

    /// What a rank's host does now, as an event.
    pub fn host_event(&self, rank: u32) -> Event {
        let stream = &self.streams[rank as usize];
        Event { agent: stream.who, time: stream.time, site: HOST_SITE }
    }

    /// A shared array as an agent sees it; it comes into being at its first use.
    pub fn shared(&mut self, agent: &Agent, array: usize) -> &mut Memory {
        let s = &agent.compiled.kernel.shared[array];
        let copy = if s.copies == 1 { 0 } else { agent.group.unwrap_or(0) as usize };
        let bytes = u64::from(s.len) * u64::from(s.dtype.bytes());
        let checked = self.options.race_checks;
        let block = self.blocks[agent.block as usize].as_mut().expect("the agent's block runs");
        block.shared[array][copy].get_or_insert_with(|| {
            let mut memory = Memory::new(ParamKind::Local, bytes, false);
            memory.shadow = checked.then(|| Shadow::new(bytes));
            memory
        })
    }
}

/// Puts something into a list with holes.
pub(crate) fn insert<T>(list: &mut Vec<Option<T>>, free: &mut Vec<u32>, item: T) -> u32 {
    if let Some(at) = free.pop() {
        list[at as usize] = Some(item);
        return at;
    }
    list.push(Some(item));
    list.len() as u32 - 1
}
