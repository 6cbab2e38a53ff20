//! Mutation runs: how many of the bugs that a kernel could have the checks find. Each bug of one change is planted into the
//! kernels of a problem, by itself, and schedules are explored as `check` does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use peerwarp_codegen::family::Variant;
use peerwarp_codegen::ir::mutate::{Mutant, every, mutate};
use peerwarp_codegen::ir::{Kernel, OpKind, Planted, ValueOp, verify};
use peerwarp_codegen::sim::Options;
use peerwarp_codegen::threads;
use rayon::prelude::*;

use super::check::{Exploration, schedule};
use super::session::{Answered, SimSession};
use super::workload::{Inputs, Problem, Suite, WorkloadError};

/// A bug that nothing found.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// The kernel.
    pub kernel: String,
    /// The bug.
    pub mutant: Mutant,
}

/// What a mutation run showed.
#[derive(Clone, Debug, Default)]
pub struct MutationRun {
    /// How many bugs were planted.
    pub planted: usize,
    /// How many were found first by what: `refused` by the verifier, a kind of finding, or a wrong `result`.
    pub found: BTreeMap<String, usize>,
    /// How many of them change nothing that could be found.
    pub equivalent: usize,
    /// Those that nothing found, in the order of the kernels' operations.
    pub survivors: Vec<Survivor>,
}

impl MutationRun {
    /// The share that was found, of those that change something.
    pub fn share(&self) -> f64 {
        let bugs = self.planted - self.equivalent;
        (bugs - self.survivors.len()) as f64 / bugs.max(1) as f64
    }

    /// Leaves survivors out that change nothing.
    pub fn leave_out(&mut self, is_equivalent: impl Fn(&Survivor) -> bool) {
        let before = self.survivors.len();
        self.survivors.retain(|s| !is_equivalent(s));
        self.equivalent += before - self.survivors.len();
    }

    /// Adds what another run showed.
    pub fn merge(&mut self, other: MutationRun) {
        self.planted += other.planted;
        self.equivalent += other.equivalent;
        for (kind, times) in other.found {
            *self.found.entry(kind).or_default() += times;
        }
        self.survivors.extend(other.survivors);
    }
}

impl fmt::Display for MutationRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (planted, same) = (self.planted, self.equivalent);
        let found = planted - same - self.survivors.len();
        write!(f, "{planted} planted, {found} found ({:.1} %), {same} change nothing", 100.0 * self.share())?;
        let mut first: Vec<String> = self.found.iter().map(|(kind, n)| format!("{n} {kind}")).collect();
        first.sort();
        write!(f, "; first by {}", first.join(", "))?;
        for Survivor { kernel, mutant } in &self.survivors {
            write!(f, "\n  not found: {kernel}, {mutant}")?;
        }
        Ok(())
    }
}

/// Plants every bug into the kernels of variants, on all cores.
///
/// # Errors
/// The variants do not go together, the inputs are not for them, or something is wrong with the kernels as they are.
pub fn plant_each(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
) -> Result<MutationRun, WorkloadError> {
    plant_each_in(suite, variants, exploration, |_| true)
}

/// The same in some of the kernels.
///
/// # Errors
/// As of [`plant_each`].
pub fn plant_each_in(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    plants_in: impl Fn(&Kernel) -> bool,
) -> Result<MutationRun, WorkloadError> {
    threads::pool()?;
    let Exploration { inputs, seeds, .. } = exploration;
    let seeded = |seed| {
        let problem: Arc<dyn Problem> = suite.problem(variants, &Inputs { seed, ..inputs.clone() })?.into();
        let inactive = 1 << (seed % u64::from(problem.ranks().max(1)));
        let without = LazyLock::new(of_others(Arc::clone(&problem), inactive));
        Ok(Seeded { seed, problem: Answered::new(problem), inactive, without })
    };
    let all: Result<Vec<Seeded>, WorkloadError> =
        (inputs.seed..inputs.seed + seeds.max(&1)).map(seeded).collect();
    let all = all?;
    let mut kernels: Vec<Kernel> = vec![];
    let clean = all[0].session(&mut |kernel| kernels.push(Kernel::clone(kernel)))?;
    let ran = clean.run(&schedule(inputs.seed)).map_err(|e| WorkloadError::Kernel(e.to_string()))?;
    let explored = &all[..*seeds as usize];
    // A loop that counts to 2^32 is found by how long it takes.
    let max_steps = 20 * ran.report.steps + 100_000;
    let planted = kernels.iter().enumerate().filter(|(_, kernel)| plants_in(kernel));
    let bugs: Vec<(usize, Mutant)> =
        planted.flat_map(|(n, kernel)| every(kernel).into_iter().map(move |m| (n, m))).collect();
    let outcome = |(n, mutant): (usize, Mutant)| {
        // Some changes are none: a signal without puts cannot go before them.
        let Ok(planted) = mutate(&kernels[n], &mutant.mutation) else { return Ok(MutationRun::default()) };
        let mut run = MutationRun { planted: 1, ..MutationRun::default() };
        match finds(explored, n, &planted, max_steps, goes_on(&kernels[n]))? {
            Some(kind) => drop(run.found.insert(kind, 1)),
            None => run.survivors.push(Survivor { kernel: kernels[n].name.clone(), mutant }),
        }
        Ok(run)
    };
    let all: Result<Vec<MutationRun>, WorkloadError> = bugs.into_par_iter().map(outcome).collect();
    Ok(all?.into_iter().fold(MutationRun::default(), |mut sum, run| {
        sum.merge(run);
        sum
    }))
}

/// Whether a kernel does something else in a world that goes on without a rank.
fn goes_on(kernel: &Kernel) -> bool {
    let asks = kernel.ops.iter().any(|op| matches!(op.kind, OpKind::Value(ValueOp::Active { .. })));
    asks && kernel.ranks > 1 && kernel.nodes == 1
}

/// The problem of a seed.
struct Seeded {
    seed: u64,
    problem: Answered,
    /// The rank of this seed, as a mask, and the problem without it.
    inactive: u64,
    without: LazyLock<Answered, Box<dyn FnOnce() -> Answered + Send>>,
}

fn of_others(problem: Arc<dyn Problem>, inactive: u64) -> Box<dyn FnOnce() -> Answered + Send> {
    Box::new(move || Answered::without(problem, inactive))
}

impl Seeded {
    fn session(&self, plant: &mut dyn FnMut(&mut Planted)) -> Result<SimSession, WorkloadError> {
        SimSession::planted_with_fewer_rows(self.problem.clone(), Some(self.seed), plant)
    }

    fn session_without(&self, plant: &mut dyn FnMut(&mut Planted)) -> Result<SimSession, WorkloadError> {
        SimSession::planted_without(Answered::clone(&self.without), self.inactive, plant)
    }
}

/// What finds a bug in the `n`-th kernel first.
fn finds(
    explored: &[Seeded],
    n: usize,
    planted: &Planted,
    max_steps: u64,
    goes_on: bool,
) -> Result<Option<String>, WorkloadError> {
    if verify(Kernel::clone(planted)).is_err() {
        return Ok(Some("refused".into()));
    }
    let whole = explored.iter().map(|one| (one, false));
    let without = explored.iter().filter(|_| goes_on).map(|one| (one, true));
    for (one, is_without) in whole.chain(without) {
        let mut at = 0;
        let mut plant = |kernel: &mut Planted| {
            if at == n {
                *kernel = planted.clone();
            }
            at += 1;
        };
        let session = if is_without { one.session_without(&mut plant)? } else { one.session(&mut plant)? };
        match session.run(&Options { max_steps, ..schedule(one.seed) }) {
            Err(findings) => return Ok(Some(findings.list[0].kind.name().into())),
            Ok(ran) if !ran.verdict.ok() => return Ok(Some("result".into())),
            Ok(_) => {}
        }
    }
    Ok(None)
}
