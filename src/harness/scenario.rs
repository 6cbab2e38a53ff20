//! Running kernels: what a family has to say for `run` and `check` to work on it.
//!
//! A [`Scenario`] turns the inputs of the command line into a simulated world, and judges what comes out of it.
//! MoE dispatch and combine use it just as a stranger's family does.

use std::fmt;

use peerwarp_codegen::family::{Family, FamilyError, Variant};
use peerwarp_codegen::sim::{Findings, Machine, Memory, Options, Report, SimError};

use super::verdict::Verdict;
use crate::families::moe::routing::Source;
use crate::input::InputError;
use crate::input::from_family;

/// What kernels are run on. Each scenario takes of it what it has a use for.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Where MoE routing comes from.
    pub routing: Source,
    /// How many tokens each rank has; up to the scenario if not given.
    pub tokens_per_rank: Option<Vec<u32>>,
    /// Decides everything that is random about the inputs.
    pub seed: u64,
    /// How many times to go through it, one launch after the other.
    pub rounds: u32,
    /// Whether the seed shall vary sizes that are not given, down to nothing at all on some ranks.
    pub ragged: bool,
}

impl Default for Inputs {
    fn default() -> Inputs {
        Inputs { routing: Source::Uniform, tokens_per_rank: None, seed: 0, rounds: 2, ragged: false }
    }
}

/// Why there is nothing to run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The inputs cannot be used.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The kernel is wrong, or cannot be put on the simulator.
    #[error("{0}")]
    Kernel(String),
}

impl From<FamilyError> for ScenarioError {
    fn from(error: FamilyError) -> ScenarioError {
        match error {
            FamilyError::Trace(e) => ScenarioError::Kernel(e.to_string()),
            other => ScenarioError::Input(from_family(other)),
        }
    }
}

impl From<SimError> for ScenarioError {
    fn from(error: SimError) -> ScenarioError {
        ScenarioError::Kernel(error.to_string())
    }
}

/// A family whose variants can be run on the simulator, with inputs of their own and a reference to compare with.
pub trait Scenario: Family {
    /// A world that runs this variant on `inputs`, and what tells whether the outcome is right.
    fn prepare(&self, inputs: &Inputs) -> Result<Prepared, ScenarioError>;
}

/// A scenario for variants whatever their type; of several families if they only make sense together.
pub trait DynScenario: fmt::Debug + Send + Sync {
    /// Names of the families that it runs.
    fn families(&self) -> Vec<&'static str>;
    /// As [`Scenario::prepare`], for one variant of some of the families.
    fn prepare(&self, variants: &[Variant], inputs: &Inputs) -> Result<Prepared, ScenarioError>;
}

/// The scenario of a family that has its own.
pub fn of<F: Scenario>() -> &'static dyn DynScenario {
    &const { Of::<F>(std::marker::PhantomData) }
}

/// The scenario of a family that has a workload.
pub fn of_workload<F: super::workload::Workload>() -> &'static dyn DynScenario {
    &const { OfWorkload::<F>(std::marker::PhantomData) }
}

struct OfWorkload<F>(std::marker::PhantomData<fn() -> F>);

impl<F: Family> fmt::Debug for OfWorkload<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "workload of {}", F::NAME)
    }
}

impl<F: super::workload::Workload> DynScenario for OfWorkload<F> {
    fn families(&self) -> Vec<&'static str> {
        vec![F::NAME]
    }

    fn prepare(&self, variants: &[Variant], inputs: &Inputs) -> Result<Prepared, ScenarioError> {
        let own = super::workload::Inputs { seed: inputs.seed, rounds: inputs.rounds, ..Default::default() };
        let kernel = |e: super::workload::WorkloadError| match e {
            super::workload::WorkloadError::Input(e) => ScenarioError::Input(e),
            other => ScenarioError::Kernel(other.to_string()),
        };
        let problem = super::suite::of::<F>().problem(variants, &own).map_err(kernel)?;
        let session = super::session::SimSession::new(problem.into()).map_err(kernel)?;
        Ok(Prepared::from_fn(move |options| {
            let super::session::Ran { report, verdict } = session.run(options)?;
            Ok(Ran { report, verdict })
        }))
    }
}

struct Of<F>(std::marker::PhantomData<fn() -> F>);

impl<F: Scenario> fmt::Debug for Of<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scenario of {}", F::NAME)
    }
}

impl<F: Scenario> DynScenario for Of<F> {
    fn families(&self) -> Vec<&'static str> {
        vec![F::NAME]
    }

    fn prepare(&self, variants: &[Variant], inputs: &Inputs) -> Result<Prepared, ScenarioError> {
        let all: Vec<&F> = variants.iter().filter_map(|v| v.as_any().downcast_ref()).collect();
        match all[..] {
            [config] => config.prepare(inputs),
            [a, b, ..] => {
                let (a, b) = (a.variant_name(), b.variant_name());
                Err(InputError::conflict("VARIANT", b, a, "one variant of a family at a time").into())
            }
            [] => Err(InputError::missing("variant", format!("one of {}", F::NAME)).into()),
        }
    }
}

type Run = dyn Fn(&Options) -> Result<Ran, Box<Findings>> + Send + Sync;

/// Something to run, any number of times, each from the start.
pub struct Prepared {
    run: Box<Run>,
    /// Columns of numbers, one a rank: what a rank sends, say.
    pub per_rank: Vec<(String, Vec<u64>)>,
    /// Whatever else is worth knowing, by name.
    pub facts: Vec<(String, serde_json::Value)>,
}

impl fmt::Debug for Prepared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prepared").field("per_rank", &self.per_rank).field("facts", &self.facts).finish()
    }
}

/// A run without findings of the checker.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What it did, in numbers.
    pub report: Report,
    /// Whether the result is right.
    pub verdict: Verdict,
}

impl Prepared {
    /// Runs a machine, and lets `judge` look at the memory that it leaves behind.
    pub fn new(machine: Machine, judge: impl Fn(&Memory) -> Verdict + Send + Sync + 'static) -> Prepared {
        Prepared::from_fn(move |options| {
            let outcome = machine.run(options)?;
            Ok(Ran { verdict: judge(&outcome.memory), report: outcome.report })
        })
    }

    /// Runs `run`, which runs the simulator.
    pub fn from_fn(run: impl Fn(&Options) -> Result<Ran, Box<Findings>> + Send + Sync + 'static) -> Prepared {
        Prepared { run: Box::new(run), per_rank: vec![], facts: vec![] }
    }

    /// With a column of numbers, one a rank.
    #[must_use]
    pub fn column(mut self, name: &str, values: Vec<u64>) -> Prepared {
        self.per_rank.push((name.to_owned(), values));
        self
    }

    /// With a fact.
    #[must_use]
    pub fn fact(mut self, name: &str, value: impl Into<serde_json::Value>) -> Prepared {
        self.facts.push((name.to_owned(), value.into()));
        self
    }

    /// Runs it under one schedule.
    pub fn run(&self, options: &Options) -> Result<Ran, Box<Findings>> {
        (self.run)(options)
    }
}
