//! What tuning asks of a machine.

use peerwarp_codegen::family::Variant;

use super::CostModel;
use super::components::Candidate;
use super::key::Key;
use crate::harness::bench::Limits;
use crate::harness::workload::{Given, Suite};
use crate::runtime::RuntimeError;

/// What is to be tuned: the variants that are taken without tuning say for which key.
#[derive(Clone, Debug)]
pub struct Task {
    /// The suite.
    pub suite: &'static dyn Suite,
    /// The defaults, one for each component in the order of the suite's families.
    pub defaults: Candidate,
    /// What is known to be good for the key, if anything is: where a search starts beside the defaults.
    pub start: Option<Candidate>,
    /// What was given of the suite's own options.
    pub given: Given,
    /// What the parts of the machine take, if its links were measured.
    pub limits: Option<Limits>,
}

impl Task {
    /// For the key of these variants.
    pub fn new(suite: &'static dyn Suite, defaults: impl Into<Vec<Variant>>, given: Given) -> Task {
        Task { suite, defaults: Candidate::new(defaults), start: None, given, limits: None }
    }

    /// For a machine whose links were measured.
    #[must_use]
    pub fn on(self, limits: Option<Limits>) -> Task {
        Task { limits, ..self }
    }

    /// With these variants to start from.
    #[must_use]
    pub fn from(self, start: impl Into<Vec<Variant>>) -> Task {
        Task { start: Some(Candidate::new(start)), ..self }
    }

    /// What its kernels should take on that machine, or else on those that the suite knows.
    pub fn cost_model(&self) -> Option<Box<dyn CostModel>> {
        let variants = self.defaults.variants();
        match &self.limits {
            Some(limits) => self.suite.cost_model_on(variants, limits),
            None => self.suite.cost_model(variants),
        }
    }

    /// What its record is of.
    pub fn key(&self) -> Key {
        Key::of(self.suite.name(), self.defaults.variants())
    }
}

/// Why there are no times.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The candidate cannot be used: it does not compile, is not resident, does not end or computes something else. The
    /// machine is as before, and others can be measured.
    #[error("{reason}")]
    Refused {
        /// Which of its variants it is, if that can be told.
        variant: Option<String>,
        /// Why.
        reason: String,
    },
    /// The machine cannot be used any more.
    #[error(transparent)]
    Machine(#[from] RuntimeError),
}

/// A machine that candidates are measured on: GPUs, or a test's stand-in.
pub trait Measure {
    /// Says what all candidates from now on are for, until the next call.
    fn start(&mut self, task: &Task);

    /// Says which candidates will be measured next, so that they can be compiled meanwhile; they may be of the next task.
    fn prepare(&mut self, candidates: &[Candidate]);

    /// Says which candidates may be measured later, the likeliest first: to be compiled where nothing else is to be done.
    fn precompile(&mut self, candidates: &[Candidate]);

    /// Times each component by itself: medians of the slowest rank, in microseconds.
    fn components(&mut self, candidate: &Candidate) -> Result<Vec<f64>, MeasureError>;

    /// Whether a candidate computes what it should.
    fn check(&mut self, candidate: &Candidate) -> Result<(), MeasureError>;

    /// Times rounds of all candidates in turn, over and over: microseconds, `[candidate][iteration]`, the slowest rank's.
    fn rounds(&mut self, candidates: &[Candidate]) -> Result<Vec<Vec<f64>>, MeasureError>;

    /// Names of the components' times, in their order. After a candidate was measured.
    fn metrics(&self) -> Vec<String>;

    /// The least that a round can take on this machine; none if that is not known.
    fn limit_us(&self) -> Option<f64>;
}
