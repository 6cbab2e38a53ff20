//! Problems on the simulator.

use std::sync::Arc;

use peerwarp_codegen::ir::{Dtype, ParamKind, Planted, Verified};
use peerwarp_codegen::sim::{Compiled, Findings, Machine, Memory, Options, Report, SimError};
use peerwarp_codegen::threads;
use rayon::prelude::*;

use super::kernels::{Kernels, declare};
use crate::harness::verdict::{Expected, Verdict};
use crate::harness::workload::{Contents, Problem, RankMemory, WorkloadError};

/// A run without findings of the checker.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What it did, in numbers.
    pub report: Report,
    /// Whether the result is right.
    pub verdict: Verdict,
}

/// A problem with its expected results, which sessions share.
#[derive(Clone, Debug)]
pub(crate) struct Answered {
    problem: Arc<dyn Problem>,
    /// By round and rank.
    expected: Arc<Vec<Vec<Vec<Expected>>>>,
}

impl Answered {
    pub(crate) fn new(problem: Arc<dyn Problem>) -> Answered {
        let round = |round| (0..problem.ranks()).map(|rank| problem.expected(rank, round)).collect();
        let expected = Arc::new((0..problem.rounds()).into_par_iter().map(round).collect());
        Answered { problem, expected }
    }

    /// The same in a world that goes on without some ranks, a mask of them, with results as far as they are known.
    pub(crate) fn without(problem: Arc<dyn Problem>, inactive: u64) -> Answered {
        if let Some(problem) = problem.without(inactive) {
            return Answered::new(problem);
        }
        let unknown = vec![vec![]; problem.ranks() as usize];
        Answered { expected: Arc::new(vec![unknown; problem.rounds() as usize]), problem }
    }
}

/// A problem on simulated ranks: run any number of times, each from the start.
#[derive(Debug)]
pub struct SimSession {
    of: Answered,
    machine: Machine,
    /// The same launches with drawn row counts. Results are not compared there.
    fewer_rows: Option<Machine>,
    kernels: Kernels,
}

impl SimSession {
    /// Traces and compiles the kernels, and puts all rounds on the ranks.
    ///
    /// # Errors
    /// A kernel cannot be traced, does not verify, or launches disagree on a buffer.
    pub fn new(problem: Arc<dyn Problem>) -> Result<SimSession, WorkloadError> {
        threads::pool()?;
        SimSession::build(Answered::new(problem), None, &mut |kernel| Compiled::new(kernel))
    }

    /// As [`SimSession::new`]. Where parameters have `#[rows(n, ..)]` and the problem does not set `n`, each run repeats the
    /// launches with an `n` that `seed` draws for each rank and round, 0 and the most included. Results are not compared there.
    ///
    /// # Errors
    /// As there.
    pub fn with_fewer_rows(problem: Arc<dyn Problem>, seed: u64) -> Result<SimSession, WorkloadError> {
        threads::pool()?;
        SimSession::build(Answered::new(problem), Some(seed), &mut |kernel| Compiled::new(kernel))
    }

    /// As [`SimSession::new`], in a world that goes on without some ranks, a mask of them.
    ///
    /// # Errors
    /// As there, or no rank would be left.
    pub fn without(problem: Arc<dyn Problem>, inactive: u64) -> Result<SimSession, WorkloadError> {
        threads::pool()?;
        let of = Answered::without(problem, inactive);
        SimSession::build(of, None, &mut |kernel| Compiled::new(kernel))?.deactivated(inactive)
    }

    /// As [`SimSession::new`], with bugs planted into its kernels by `plant`.
    #[doc(hidden)]
    pub fn planted(
        problem: Arc<dyn Problem>,
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<SimSession, WorkloadError> {
        threads::pool()?;
        SimSession::planted_with_fewer_rows(Answered::new(problem), None, plant)
    }

    /// As [`SimSession::planted`]; with a seed, as [`SimSession::with_fewer_rows`].
    pub(crate) fn planted_with_fewer_rows(
        of: Answered,
        rows_seed: Option<u64>,
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<SimSession, WorkloadError> {
        SimSession::build(of, rows_seed, &mut |kernel| {
            let mut kernel = Planted::from(kernel);
            plant(&mut kernel);
            Compiled::planted(kernel)
        })
    }

    /// As [`SimSession::planted`], of an answer without some ranks, a mask of them.
    pub(crate) fn planted_without(
        of: Answered,
        inactive: u64,
        plant: &mut dyn FnMut(&mut Planted),
    ) -> Result<SimSession, WorkloadError> {
        let session = SimSession::planted_with_fewer_rows(of, None, plant)?;
        session.deactivated(inactive)
    }

    fn deactivated(mut self, inactive: u64) -> Result<SimSession, WorkloadError> {
        let mut ranks = (0..self.machine.ranks()).filter(|rank| inactive >> rank & 1 != 0);
        ranks.try_for_each(|rank| self.machine.deactivate(rank))?;
        Ok(self)
    }

    fn build(
        of: Answered,
        rows_seed: Option<u64>,
        compile: &mut dyn FnMut(Verified) -> Compiled,
    ) -> Result<SimSession, WorkloadError> {
        let kernels = Kernels::new(of.problem.launches(), compile)?;
        let machine = machine(&of, &kernels, None)?;
        let draws = |seed: &u64| !kernels.drawn_rows(&of.problem.numbers(0, 0), *seed, (0, 0)).is_empty();
        let seed = rows_seed.filter(draws);
        let fewer_rows = seed.map(|seed| self::machine(&of, &kernels, Some(seed))).transpose()?;
        Ok(SimSession { of, machine, fewer_rows, kernels })
    }

    /// The problem.
    pub fn problem(&self) -> &Arc<dyn Problem> {
        &self.of.problem
    }

    /// The simulated machine with its programs.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Lets all kernels begin in the epochs after `epoch`, as if so many rounds had gone before.
    ///
    /// # Errors
    /// There is no such epoch.
    pub fn start_after(&mut self, epoch: u32) -> Result<(), WorkloadError> {
        let fewer_rows = self.fewer_rows.iter_mut();
        let mut machines = std::iter::once(&mut self.machine).chain(fewer_rows);
        machines.try_for_each(|machine| self.kernels.start_after(machine, epoch))
    }

    /// Runs it under one schedule.
    ///
    /// # Errors
    /// What the checker found.
    pub fn run(&self, options: &Options) -> Result<Ran, Box<Findings>> {
        let outcome = self.machine.run(options)?;
        if let Some(fewer_rows) = &self.fewer_rows {
            fewer_rows.run(options)?;
        }
        let done = vec![self.of.problem.rounds(); self.of.problem.ranks() as usize];
        Ok(Ran { verdict: self.verdict(&outcome.memory, &done), report: outcome.report })
    }

    /// Runs it until a rank dies and the others come no further: what they finished is compared.
    ///
    /// # Errors
    /// What the checker found.
    pub fn run_until_death(&self, options: &Options) -> Result<Ran, Box<Findings>> {
        let outcome = self.machine.run(options)?;
        let of_round = self.machine.steps(0) as u32 / self.of.problem.rounds();
        let done: Vec<u32> = outcome.report.steps_done.iter().map(|steps| steps / of_round).collect();
        Ok(Ran { verdict: self.verdict(&outcome.memory, &done), report: outcome.report })
    }

    /// How the results that a run left behind compare, of the rounds that each rank has done.
    fn verdict(&self, memory: &Memory, done: &[u32]) -> Verdict {
        let Answered { problem, expected } = &self.of;
        let turns: Vec<(u32, u32)> = (0..problem.rounds())
            .flat_map(|round| (0..problem.ranks()).map(move |rank| (round, rank)))
            .filter(|(round, rank)| *round < done[*rank as usize])
            .collect();
        let of_turn = |(round, rank): (u32, u32)| {
            let mut verdict = Verdict::default();
            for (which, expected) in expected[round as usize][rank as usize].iter().enumerate() {
                let kept = memory.read::<u8>(rank, &kept(round, which)).unwrap_or_default();
                let found = &kept[..expected.bytes.len().min(kept.len())];
                problem.compare(rank, round, expected, found, &mut verdict);
            }
            verdict
        };
        let all: Vec<Verdict> = turns.into_par_iter().map(of_turn).collect();
        all.into_iter().fold(Verdict::default(), |mut sum, verdict| {
            sum.merge(verdict);
            sum
        })
    }
}

/// Name of the buffer that keeps a result of a round, which the next round overwrites.
fn kept(round: u32, which: usize) -> String {
    format!("result_{which}_of_round_{round}")
}

/// Room for the results of each round: the most that any rank has of each.
fn keep_results(machine: &mut Machine, expected: &[Vec<Vec<Expected>>]) -> Result<(), SimError> {
    for (round, of_ranks) in (0..).zip(expected) {
        let mut sizes: Vec<u64> = vec![];
        for of_rank in of_ranks {
            for (which, expected) in of_rank.iter().enumerate() {
                sizes.resize(sizes.len().max(which + 1), 0);
                sizes[which] = sizes[which].max(expected.bytes.len() as u64);
            }
        }
        for (which, bytes) in sizes.into_iter().enumerate() {
            machine.buffer(&kept(round, which), ParamKind::Local, Dtype::Fp8, bytes.max(1))?;
        }
    }
    Ok(())
}

/// All rounds on all ranks, with rows drawn from a seed or those of the problem.
fn machine(of: &Answered, kernels: &Kernels, rows_seed: Option<u64>) -> Result<Machine, WorkloadError> {
    let problem = &of.problem;
    let mut machine = kernels.machine(problem.ranks());
    declare(&mut machine, &problem.buffers()?)?;
    if rows_seed.is_none() {
        keep_results(&mut machine, &of.expected)?;
    }
    for rank in 0..problem.ranks() {
        for round in 0..problem.rounds() {
            add_round(&mut machine, of, kernels, (rank, round), rows_seed)?;
        }
    }
    Ok(machine)
}

fn add_round(
    machine: &mut Machine,
    Answered { problem, expected }: &Answered,
    kernels: &Kernels,
    (rank, round): (u32, u32),
    rows_seed: Option<u64>,
) -> Result<(), SimError> {
    let inputs = Arc::clone(problem);
    let mut numbers = problem.numbers(rank, round);
    if let Some(seed) = rows_seed {
        numbers.extend(kernels.drawn_rows(&numbers, seed, (rank, round)));
    }
    let ends = kernels.ends(&numbers);
    machine.host(rank, "inputs", move |memory| {
        ends.iter().try_for_each(|(name, bytes)| memory.end(name, *bytes)).map_err(|e| e.to_string())?;
        let write = |contents: Contents| match rows_seed {
            None => contents.write(memory),
            Some(_) => contents.up_to_end(memory)?.write(memory),
        };
        inputs.inputs(rank, round).into_iter().try_for_each(write)
    })?;
    for (number, (kernel, bindings)) in kernels.passing(&numbers).enumerate() {
        machine.launch(rank, kernel, &bindings)?;
        if problem.has_host_steps() {
            let host = Arc::clone(problem);
            machine.host(rank, "host", move |memory| host.after_launch(number, round, memory))?;
        }
    }
    if rows_seed.is_some() {
        return Ok(());
    }
    let expected = Arc::clone(expected);
    machine.host(rank, "results", move |memory| {
        expected[round as usize][rank as usize].iter().enumerate().try_for_each(|(which, expected)| {
            let Expected { buffer, at, bytes, .. } = expected;
            let found = RankMemory::read(memory, buffer, *at, bytes.len())?;
            RankMemory::write(memory, &kept(round, which), 0, &found)
        })
    })
}
