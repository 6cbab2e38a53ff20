//! Problems on GPUs.

use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerwarp_codegen::ir::Const;
use peerwarp_codegen::threads;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rayon::prelude::*;
use serde::Serialize;

use super::kernels::{Numbers, end_of};
use super::memory::{Host, untouched};
use super::windows::Windows;
use crate::harness::verdict::Verdict;
use crate::harness::workload::{Contents, Problem};
use crate::runtime::gpu::DevicePtr;
use crate::runtime::handles::{Buffer, Event, Graph, Stream};
use crate::runtime::image::Images;
use crate::runtime::op::{BufferSpec, Operation, RankOp};
use crate::runtime::{Recording, RuntimeError, World};

/// What fills memory that a round need not read: NaN in every float type, and no index of anything.
pub(super) const POISON: u8 = 0xff;

/// What a run on GPUs yields.
#[derive(Clone, Debug, Serialize)]
pub struct GpuRun {
    /// Whether everything is right.
    pub ok: bool,
    /// Names of the kernels in the order of their launches in a round.
    pub variants: Vec<String>,
    /// Rounds that the host looked at, step by step.
    pub rounds: u32,
    /// How their results compare.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// The ranks of this process: what follows is in their order, and the verdict is on theirs.
    pub ranks: Vec<u32>,
    /// Their GPUs.
    pub gpus: Vec<String>,
    /// Times of the last round's launches.
    pub launches: Vec<LaunchTimes>,
    /// All rounds as a graph, launched over and over, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replayed: Option<Replayed>,
}

/// Times of a launch.
#[derive(Clone, Debug, Serialize)]
pub struct LaunchTimes {
    /// What it is called.
    pub label: String,
    /// By rank of this process, in microseconds: from the first block's start to the last one's end, waiting for other ranks
    /// included.
    pub us: Vec<f64>,
}

/// Graphs without the host in between.
#[derive(Clone, Debug, Serialize)]
pub struct Replayed {
    /// How often.
    pub replays: u32,
    /// Rounds in a graph.
    pub rounds: u32,
    /// How the results compare after some of the replays.
    pub verdict: Verdict,
    /// Time of a round in microseconds, on the slowest rank of this process.
    pub round_us: f64,
}

/// What the host has on one rank.
#[derive(Debug)]
pub(super) struct Place {
    stream: Stream,
    /// Before the first launch, and after each.
    events: Vec<Event>,
    /// By round, a buffer for each operand of the operation.
    rounds: Vec<Vec<Arc<Buffer>>>,
    operands: Arc<[BufferSpec]>,
}

impl Place {
    fn new(
        index: usize,
        rank: &RankOp,
        problem: &dyn Problem,
        windows: &Windows,
    ) -> Result<Place, RuntimeError> {
        let gpu = rank.gpu();
        let operands: Arc<[BufferSpec]> = rank.operands().into();
        let given = problem.inputs(rank.rank(), 0);
        let each = |o: &BufferSpec| of_each_round(o, &given);
        let buffer = |o: &BufferSpec, round: u32| match windows.part(&o.name, round, index) {
            Some(part) => Ok(Arc::new(part)),
            // Rows that are not there have no memory.
            None => {
                let numbers = problem.numbers(rank.rank(), round);
                Buffer::new(gpu, end_of(&o.param, &numbers)).map(Arc::new)
            }
        };
        let first = operands.iter().map(|o| buffer(o, 0)).collect::<Result<Vec<_>, _>>()?;
        let of_round = |round: u32| {
            let own = |(o, first): (&BufferSpec, &Arc<Buffer>)| match round > 0 && each(o) {
                true => buffer(o, round),
                false => Ok(Arc::clone(first)),
            };
            operands.iter().zip(&first).map(own).collect::<Result<Vec<_>, _>>()
        };
        let rounds = (0..problem.rounds()).map(of_round).collect::<Result<_, _>>()?;
        let events = (0..=rank.launches()).map(|_| Event::new(gpu)).collect::<Result<_, _>>()?;
        Ok(Place { stream: Stream::new(gpu)?, events, rounds, operands })
    }

    /// The buffer of an operand in a round; none if it is the operation's own.
    pub fn operand(&self, name: &str, round: usize) -> Option<&Buffer> {
        let at = self.operands.iter().position(|o| o.name == name)?;
        Some(&self.rounds[round][at])
    }

    fn addresses(&self, round: usize) -> Vec<DevicePtr> {
        self.rounds[round].iter().map(|buffer| buffer.ptr()).collect()
    }

    /// Buffers that kernels write.
    fn outputs(&self, round: usize) -> impl Iterator<Item = (&BufferSpec, &Buffer)> {
        let all = self.operands.iter().zip(&self.rounds[round]);
        all.filter(|(o, _)| o.binding.writes()).map(|(o, buffer)| (o, &**buffer))
    }
}

/// One for each round, if rounds have buffers of their own.
fn windows(op: &Operation, problem: &dyn Problem) -> Result<Windows, RuntimeError> {
    let operands = op.ranks().first().map_or(&[][..], RankOp::operands);
    let given = problem.inputs(0, 0);
    Windows::new(op.world(), operands, |o| if of_each_round(o, &given) { problem.rounds() } else { 1 })
}

/// Whether each round has a buffer of its own for an operand. What the host writes between launches is one for all rounds: it is
/// large at times.
fn of_each_round(operand: &BufferSpec, given: &[Contents]) -> bool {
    operand.binding.writes() || given.iter().any(|c| c.buffer == operand.name)
}

/// A problem on the GPUs of a world.
#[derive(Debug)]
pub struct GpuSession {
    // Graphs, streams and modules go before the memory that they use.
    places: Vec<Place>,
    op: Operation,
    problem: Arc<dyn Problem>,
    poisoned: bool,
    delays: Option<u64>,
}

impl GpuSession {
    /// Allocates and loads everything. All processes of the world do so.
    ///
    /// # Errors
    /// As of [`Operation::new`].
    pub fn new(
        problem: Arc<dyn Problem>,
        world: &Arc<World>,
        images: &dyn Images,
    ) -> Result<GpuSession, RuntimeError> {
        let op = Operation::new(world, problem.launches(), images)?;
        let windows = windows(&op, &*problem)?;
        let places = op.ranks().iter().enumerate();
        let places = places.map(|(index, rank)| Place::new(index, rank, &*problem, &windows));
        let places = world.agree(threads::pool().map_err(Into::into).and_then(|()| places.collect()))?;
        Ok(GpuSession { places, op, problem, poisoned: false, delays: None })
    }

    /// The same with all memory that a round need not read filled with NaNs before it, and looked at after it.
    #[must_use]
    pub fn poisoned(mut self) -> GpuSession {
        self.poisoned = true;
        self
    }

    /// Launches graphs on each rank from a thread of its own, with pauses drawn from this seed, so that each rank is ahead of
    /// the others at times.
    pub fn delay(&mut self, seed: u64) {
        self.delays = Some(seed);
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many rounds had gone before. Before the first run, on all
    /// ranks.
    ///
    /// # Errors
    /// The driver's.
    pub fn start_after(&mut self, epoch: u32) -> Result<(), RuntimeError> {
        self.op.ranks().iter().try_for_each(|rank| rank.start_after(epoch))
    }

    /// The problem.
    pub fn problem(&self) -> &Arc<dyn Problem> {
        &self.problem
    }

    /// The operation that it runs.
    pub fn operation(&self) -> &Operation {
        &self.op
    }

    /// Runs every round once, with the host looking at every step; then, if `replays` is not 0 and the host writes nothing in
    /// between, all of them as a graph that often.
    ///
    /// # Errors
    /// A wait expired, or a driver's call failed, on any rank.
    pub fn run(&mut self, replays: u32) -> Result<GpuRun, RuntimeError> {
        let ran = self.run_here(replays);
        // Memory that others may still write to is not given up before they are done.
        self.op.world().agree(ran)
    }

    fn run_here(&mut self, replays: u32) -> Result<GpuRun, RuntimeError> {
        let mut verdict = Verdict::default();
        for round in 0..self.problem.rounds() {
            self.round(round, &mut verdict)?;
        }
        let launches = self.times()?;
        let alone = replays > 0 && !self.problem.host_writes();
        let replayed = alone.then(|| self.replay(replays)).transpose()?;
        let name = |rank: &RankOp| format!("{} ({})", rank.gpu().info().name, rank.gpu().info().bus_id);
        Ok(GpuRun {
            ok: verdict.ok() && replayed.as_ref().is_none_or(|r| r.verdict.ok()),
            variants: self.problem.variants(),
            rounds: self.problem.rounds(),
            verdict,
            ranks: self.op.ranks().iter().map(RankOp::rank).collect(),
            gpus: self.op.ranks().iter().map(name).collect(),
            launches,
            replayed,
        })
    }

    /// One round with the host in between.
    fn round(&mut self, number: u32, verdict: &mut Verdict) -> Result<(), RuntimeError> {
        let round = number as usize;
        if self.poisoned {
            self.poison(round..round + 1, true)?;
        }
        self.load(number)?;
        let launches = self.problem.launches().len();
        let host_steps = self.problem.has_host_steps();
        for launch in 0..launches {
            let world = Arc::clone(self.op.world());
            let all = self.places.iter().zip(self.op.ranks_mut());
            for (place, rank) in all.filter(|(_, rank)| world.is_active(rank.rank())) {
                let stream = place.stream.raw();
                if launch == 0 || host_steps {
                    place.events[launch].record(stream)?;
                }
                pass(rank, &self.problem.numbers(rank.rank(), number))?;
                // SAFETY: the buffers are of this GPU, as large as the specs demand, and live as long as the stream.
                unsafe { rank.launch_raw(launch, &place.addresses(round), stream)? };
                place.events[launch + 1].record(stream)?;
            }
            if host_steps {
                self.finish()?;
                self.after_launch(launch, number, verdict);
            }
        }
        self.finish()?;
        self.compare(number, false, verdict)
    }

    /// Writes what a round reads.
    fn load(&self, number: u32) -> Result<(), RuntimeError> {
        let loaded = self.places.par_iter().zip(self.op.ranks().par_iter()).map(|(place, rank)| {
            let mut host = Host { place, round: number as usize, rank, poisoned: self.poisoned };
            let inputs = self.problem.inputs(rank.rank(), number);
            inputs.iter().try_for_each(|contents| contents.write(&mut host))
        });
        let loaded: Result<(), String> = loaded.collect();
        loaded.map_err(|e| RuntimeError::invalid("inputs", e, "what fits the buffers"))
    }

    /// The host's steps after a launch, on all ranks at once: references are a lot to compute and to read.
    fn after_launch(&self, launch: usize, number: u32, verdict: &mut Verdict) {
        let found = self.places.par_iter().zip(self.op.ranks().par_iter()).map(|(place, rank)| {
            if !self.op.world().is_active(rank.rank()) {
                return None;
            }
            let mut host = Host { place, round: number as usize, rank, poisoned: self.poisoned };
            let done = self.problem.after_launch(launch, number, &mut host);
            done.err().map(|e| format!("round {number}, rank {}: {e}", rank.rank()))
        });
        let found: Vec<Option<String>> = found.collect();
        found.into_iter().flatten().for_each(|wrong| verdict.wrong(wrong));
    }

    /// Compares the results of a round, all of them or those of operands alone.
    fn compare(&self, number: u32, operands: bool, verdict: &mut Verdict) -> Result<(), RuntimeError> {
        let compared = self.places.par_iter().zip(self.op.ranks().par_iter()).map(|(place, rank)| {
            let mut verdict = Verdict::default();
            let mut host = Host { place, round: number as usize, rank, poisoned: self.poisoned };
            let compared = self.compare_rank(&mut host, (number, operands), &mut verdict);
            compared.unwrap_or_else(|e| verdict.wrong(format!("round {number}, rank {}: {e}", rank.rank())));
            verdict
        });
        let compared: Vec<Verdict> = compared.collect();
        compared.into_iter().for_each(|one| verdict.merge(one));
        Ok(())
    }

    /// All rounds, after graphs of them. Of results that are no operands the operation has one for all rounds: that of the last one.
    fn compare_replayed(&self, verdict: &mut Verdict) -> Result<(), RuntimeError> {
        let rounds = self.problem.rounds();
        (0..rounds).try_for_each(|round| self.compare(round, round + 1 < rounds, verdict))
    }

    fn compare_rank(
        &self,
        host: &mut Host<'_>,
        (number, operands): (u32, bool),
        verdict: &mut Verdict,
    ) -> Result<(), String> {
        use crate::harness::workload::RankMemory as _;
        let rank = host.rank.rank();
        let expected = self.problem.expected(rank, number);
        let place = host.place;
        let is_operand = |name: &str| place.operands.iter().any(|o| o.name == name);
        for one in expected.iter().filter(|one| !operands || is_operand(&one.buffer)) {
            let found = host.read(&one.buffer, one.at, one.bytes.len())?;
            self.problem.compare(rank, number, one, &found, verdict);
        }
        // Without a reference the bytes of results are unknown.
        if !self.poisoned || expected.is_empty() {
            return Ok(());
        }
        place.outputs(host.round).try_for_each(|(output, buffer)| {
            let of = expected.iter().filter(|e| e.buffer == output.name);
            let written: Vec<Range<usize>> =
                of.map(|e| e.at as usize..e.at as usize + e.bytes.len()).collect();
            let all: Vec<u8> = buffer.read(0, buffer.bytes() as usize).map_err(|e| e.to_string())?;
            untouched(&output.name, &all, &written)
        })
    }

    /// Fills what rounds need not read; with their inputs, which are then to be loaded, or without.
    fn poison(&self, rounds: Range<usize>, inputs: bool) -> Result<(), RuntimeError> {
        let fill = || {
            for (place, rank) in self.places.iter().zip(self.op.ranks()) {
                let stream = place.stream.raw();
                rank.fill_payload(POISON, stream)?;
                for round in &place.rounds[rounds.clone()] {
                    let filled = place.operands.iter().zip(round);
                    let filled = filled.filter(|(o, _)| inputs || o.binding.writes());
                    filled.into_iter().try_for_each(|(_, buffer)| buffer.fill(POISON, stream))?;
                }
            }
            self.finish()
        };
        // No rank sends to memory that is still being filled.
        self.op.world().agree(fill())
    }

    /// Times of each launch of the last round, on the ranks of this process.
    fn times(&self) -> Result<Vec<LaunchTimes>, RuntimeError> {
        let of = |(number, launch): (usize, &crate::runtime::op::LaunchSpec)| {
            let micros = |p: &Place| Ok(us(p.events[number + 1].since(&p.events[number])?));
            let us = self.places.iter().map(micros).collect::<Result<_, RuntimeError>>()?;
            Ok(LaunchTimes { label: launch.label.clone(), us })
        };
        self.problem.launches().iter().enumerate().map(of).collect()
    }

    fn replay(&mut self, replays: u32) -> Result<Replayed, RuntimeError> {
        let graphs = self.capture()?;
        let mut verdict = Verdict::default();
        let rounds = self.problem.rounds();
        if self.poisoned {
            self.poison(0..rounds as usize, false)?;
        }
        let (mut done, mut round_us) = (0, 0.0);
        // Results are looked at after the first, an odd number of replays, and the last.
        for stop in [1, 3, replays].into_iter().filter(|&stop| stop <= replays) {
            if stop <= done {
                continue;
            }
            let slowest = self.replay_times(&graphs, stop - done)?;
            round_us = us(slowest) / (f64::from(stop - done) * f64::from(rounds));
            done = stop;
            self.compare_replayed(&mut verdict)?;
        }
        Ok(Replayed { replays: done, rounds, verdict, round_us })
    }

    /// Launches graphs so often, with outputs poisoned before: the time of the slowest rank.
    fn replay_times(&self, graphs: &[Graph], times: u32) -> Result<Duration, RuntimeError> {
        for place in &self.places {
            let stream = place.stream.raw();
            for round in 0..place.rounds.len() {
                place.outputs(round).try_for_each(|(_, buffer)| buffer.fill(POISON, stream))?;
            }
            place.events[0].record(stream)?;
        }
        let launched = self.launch_graphs(graphs, times);
        let recorded = self.places.iter().try_for_each(|place| place.events[1].record(place.stream.raw()));
        // Also after an error: nothing may run any more when graphs go.
        self.finish()?;
        launched.and(recorded)?;
        let time = |p: &Place| p.events[1].since(&p.events[0]);
        let times = self.places.iter().map(time).collect::<Result<Vec<_>, RuntimeError>>()?;
        Ok(times.into_iter().max().unwrap_or_default())
    }

    /// The places and graphs of the ranks that are active.
    fn active<'a>(&'a self, graphs: &'a [Graph]) -> impl Iterator<Item = (&'a Place, &'a Graph)> {
        let all = self.op.ranks().iter().zip(self.places.iter().zip(graphs));
        all.filter(|(rank, _)| self.op.world().is_active(rank.rank())).map(|(_, one)| one)
    }

    fn launch_graphs(&self, graphs: &[Graph], times: u32) -> Result<(), RuntimeError> {
        // SAFETY: the session has all that was captured, and waits for graphs before it goes.
        let launch = |place: &Place, graph: &Graph| unsafe { graph.launch(place.stream.raw()) };
        let Some(seed) = self.delays else {
            let mut all = (0..times).flat_map(|_| self.active(graphs));
            return all.try_for_each(|(place, graph)| launch(place, graph));
        };
        let on_rank = |(number, (place, graph)): (u64, (&Place, &Graph))| {
            let mut pauses = StdRng::seed_from_u64(seed ^ number << 32);
            (0..times).try_for_each(|_| {
                pause(&mut pauses);
                launch(place, graph)
            })
        };
        std::thread::scope(|scope| {
            let ranks = (0..).zip(self.active(graphs));
            let started = ranks.map(|rank| threads::spawn_scoped(scope, move || on_rank(rank)));
            let started = started.collect::<Result<Vec<_>, _>>()?;
            started.into_iter().try_for_each(|t| t.join().unwrap_or_else(|panic| resume_unwind(panic)))
        })
    }

    /// Launches all rounds as a graph, `times` times without the host in between, and waits. Then reads what the last launches
    /// recorded, kernel by kernel and rank by rank: nothing unless images have a timeline. Inputs are those that
    /// [`GpuSession::run`] has loaded, which comes first.
    ///
    /// # Errors
    /// A wait expired, or a driver's call failed.
    pub fn record(&mut self, times: u32) -> Result<Vec<Recording>, RuntimeError> {
        let graphs = self.capture()?;
        let launched = self.launch_graphs(&graphs, times);
        // Also after an error: nothing may run any more when graphs go.
        self.finish()?;
        launched?;
        let by_rank = self.op.ranks().iter().map(RankOp::recordings).collect::<Result<Vec<_>, _>>()?;
        let kernels = by_rank.first().map_or(0, Vec::len);
        let of_kernel = |k: usize| by_rank.iter().map(move |all| all[k].clone());
        Ok((0..kernels).flat_map(of_kernel).collect())
    }

    /// Lets the world go on without a rank after all rounds have run; then they run without it, and, if the host writes nothing in between,
    /// `replays` times as the graphs that were captured before. Yields how results compare, and how long the world took to go on.
    ///
    /// # Errors
    /// As of [`GpuSession::run`] and [`World::deactivate`]; or what comes out without the rank is not known.
    pub fn run_without(&mut self, rank: u32, replays: u32) -> Result<(Verdict, Duration), RuntimeError> {
        let (mut verdict, graphs) = self.run_before(replays > 0)?;
        let world = Arc::clone(self.op.world());
        let begun = Instant::now();
        world.deactivate(rank)?;
        let took = begun.elapsed();
        verdict.merge(self.run_after(&graphs, replays)?);
        Ok((verdict, took))
    }

    /// Runs all rounds, and once more as graphs if those are wanted and the host writes nothing in between.
    ///
    /// # Errors
    /// As of [`GpuSession::run`].
    pub fn run_before(&mut self, graphs: bool) -> Result<(Verdict, Vec<Graph>), RuntimeError> {
        let mut verdict = Verdict::default();
        (0..self.problem.rounds()).try_for_each(|round| self.round(round, &mut verdict))?;
        if !graphs || self.problem.host_writes() {
            return Ok((verdict, vec![]));
        }
        let graphs = self.capture()?;
        self.replay_times(&graphs, 1)?;
        Ok((verdict, graphs))
    }

    /// Runs all rounds in a world that goes on without ranks, then `replays` times as graphs that were captured before, if there are any.
    ///
    /// # Errors
    /// As of [`GpuSession::run`]; or what comes out without the ranks is not known.
    pub fn run_after(&mut self, graphs: &[Graph], replays: u32) -> Result<Verdict, RuntimeError> {
        let (mut verdict, rounds) = (Verdict::default(), self.problem.rounds());
        self.problem = self.problem.without(self.op.world().inactive()).ok_or_else(|| {
            let allowed = "one whose results are known without a rank";
            RuntimeError::invalid("problem", self.problem.short_title(), allowed)
        })?;
        (0..rounds).try_for_each(|round| self.round(round, &mut verdict))?;
        if !graphs.is_empty() {
            self.replay_times(graphs, replays)?;
            self.compare_replayed(&mut verdict)?;
        }
        Ok(verdict)
    }

    /// All rounds of each rank as a graph.
    fn capture(&mut self) -> Result<Vec<Graph>, RuntimeError> {
        let problem = &self.problem;
        let capture = |(place, rank): (&Place, &mut RankOp)| {
            place.stream.capture(|| {
                for round in 0..place.rounds.len() {
                    let addresses = place.addresses(round);
                    pass(rank, &problem.numbers(rank.rank(), round as u32))?;
                    for launch in 0..rank.launches() {
                        // SAFETY: the buffers are of this GPU, as large as the specs demand, and live as long as the stream.
                        unsafe { rank.launch_raw(launch, &addresses, place.stream.raw())? };
                    }
                }
                Ok(())
            })
        };
        self.places.iter().zip(self.op.ranks_mut()).map(capture).collect()
    }

    /// Waits until everything on all ranks of this process has ended.
    fn finish(&self) -> Result<(), RuntimeError> {
        self.op.world().finish_all(self.places.iter().map(|p| p.stream.raw()))
    }
}

/// Sets the numbers that launches take by value.
pub(crate) fn pass(rank: &mut RankOp, numbers: &Numbers) -> Result<(), RuntimeError> {
    numbers.iter().try_for_each(|(name, value)| match *value {
        Const::I32(value) => rank.set_scalar(name, value),
        Const::U32(value) => rank.set_scalar(name, value),
        Const::U64(value) => rank.set_scalar(name, value),
        Const::F32(bits) => rank.set_scalar(name, f32::from_bits(bits)),
        Const::Bool(value) => Err(RuntimeError::invalid(name, value, "a number")),
    })
}

/// One launch in 16 comes up to 1 ms late. The thread spins, as shorter sleeps are not to be had.
fn pause(random: &mut StdRng) {
    if random.random_ratio(1, 16) {
        let until = Instant::now() + Duration::from_micros(random.random_range(1..1000));
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}

fn us(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
