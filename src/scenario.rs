//! Running kernels: what a family has to say for `run` and `check` to work on it.
//!
//! A [`Scenario`] turns the inputs of the command line into a simulated world, and judges what comes out of it.
//! MoE dispatch and combine use it just as a stranger's family does.

use std::fmt;

use peerwarp_codegen::family::{Family, FamilyError, Variant};
use peerwarp_codegen::ir::VerifyErrors;
use peerwarp_codegen::sim::{Findings, Machine, Memory, Options, Report, SimError};
use serde::Serialize;

use crate::input::InputError;
use crate::request::from_family;
use crate::routing::Source;

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

impl From<VerifyErrors> for ScenarioError {
    fn from(errors: VerifyErrors) -> ScenarioError {
        ScenarioError::Kernel(errors.to_string())
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

/// How a result compares with the reference's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Elements compared.
    pub compared: u64,
    /// Elements out of tolerance.
    pub wrong: u64,
    /// Largest absolute difference.
    pub max_abs_err: f64,
    /// Largest relative difference, of elements that are not all but zero.
    pub max_rel_err: f64,
    /// The first element out of tolerance, in words.
    pub first_wrong: Option<String>,
}

impl Verdict {
    /// Whether all is within tolerance.
    pub fn ok(&self) -> bool {
        self.wrong == 0
    }

    /// Compares two lists of numbers. An element is right if it differs by at most `abs + rel * |expected|`; two NaNs
    /// agree. `place` says where an element is, for messages.
    pub fn compare(
        &mut self,
        found: impl IntoIterator<Item = f64>,
        expected: impl IntoIterator<Item = f64>,
        (abs, rel): (f64, f64),
        place: impl Fn(usize) -> String,
    ) {
        let (mut found, mut expected) = (found.into_iter(), expected.into_iter());
        for i in 0.. {
            let (f, e) = match (found.next(), expected.next()) {
                (None, None) => return,
                (f, e) => (f.unwrap_or(f64::NAN), e.unwrap_or(f64::NAN)),
            };
            self.compared += 1;
            if f == e || f.is_nan() && e.is_nan() {
                continue;
            }
            let off = (f - e).abs();
            let off = if off.is_nan() { f64::INFINITY } else { off };
            self.max_abs_err = self.max_abs_err.max(off);
            if e.abs() > abs {
                self.max_rel_err = self.max_rel_err.max(off / e.abs());
            }
            // False for a NaN on either side.
            let within = off <= abs + rel * e.abs();
            if !within {
                self.wrong += 1;
                self.first_wrong.get_or_insert_with(|| format!("{}: {f} where {e} is right", place(i)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(found: &[f64], expected: &[f64], tolerance: (f64, f64)) -> Verdict {
        let mut verdict = Verdict::default();
        let all = |list: &[f64]| list.to_vec();
        verdict.compare(all(found), all(expected), tolerance, |i| format!("element {i}"));
        verdict
    }

    #[test]
    fn elements_within_tolerance_are_right() {
        let v = compare(&[1.0, 2.1, 0.0, f64::NAN], &[1.0, 2.0, 0.001, f64::NAN], (0.01, 0.05));
        assert!(v.ok(), "{v:?}");
        assert_eq!(v.compared, 4);
        assert!((v.max_abs_err - 0.1).abs() < 1e-9 && (v.max_rel_err - 0.05).abs() < 1e-9, "{v:?}");
    }

    #[test]
    fn elements_out_of_tolerance_are_counted_and_the_first_is_told() {
        let v = compare(&[1.0, 2.2, 7.0], &[1.0, 2.0, 1.0], (0.0, 0.05));
        assert_eq!((v.ok(), v.wrong), (false, 2));
        assert_eq!(v.first_wrong.as_deref(), Some("element 1: 2.2 where 2 is right"));
        assert_eq!((v.max_abs_err, v.max_rel_err), (6.0, 6.0));
    }

    #[test]
    fn missing_elements_and_nans_are_wrong() {
        assert_eq!(compare(&[1.0], &[1.0, 2.0], (9.0, 9.0)).wrong, 1);
        assert_eq!(compare(&[1.0, 2.0], &[1.0], (9.0, 9.0)).wrong, 1);
        let v = compare(&[f64::NAN, f64::INFINITY], &[0.0, 1.0], (9.0, 9.0));
        assert_eq!((v.wrong, v.max_abs_err), (2, f64::INFINITY));
    }
}
