//! What tuning asks of a machine.

use crate::families::moe::MoeShape;
use crate::families::moe::run::MoeTuning;
use crate::runtime::RuntimeError;

/// Times of a pair, each operation alone: medians of the slowest rank, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Alone {
    /// Dispatch.
    pub dispatch: f64,
    /// The combine that belongs to it.
    pub combine: f64,
}

/// Why there are no times.
#[derive(Debug, thiserror::Error)]
pub enum MeasureError {
    /// The pair cannot be used: it does not compile, is not resident, does not end or computes something else. The
    /// machine is as before, and others can be measured.
    #[error("{reason}")]
    Refused {
        /// Which of the two it is, if that can be told.
        variant: Option<String>,
        /// Why.
        reason: String,
    },
    /// The machine cannot be used any more.
    #[error(transparent)]
    Machine(#[from] RuntimeError),
}

/// A machine that pairs of kernels are measured on: GPUs, or a test's stand-in.
pub trait Measure {
    /// Tells which pairs will be measured next, so that they can be compiled meanwhile.
    fn prepare(&mut self, tunings: &[MoeTuning]);

    /// Tells which pairs may be measured later, the likeliest first: to be compiled where nothing else is to be done.
    fn foresee(&mut self, tunings: &[MoeTuning]);

    /// Times dispatch and combine, each alone.
    fn alone(&mut self, tuning: &MoeTuning) -> Result<Alone, MeasureError>;

    /// Whether a pair computes what it should.
    fn check(&mut self, tuning: &MoeTuning) -> Result<(), MeasureError>;

    /// Times round trips of all pairs in turn, over and over: microseconds, `[pair][iteration]`, the slowest rank's.
    fn round_trips(&mut self, tunings: &[MoeTuning]) -> Result<Vec<Vec<f64>>, MeasureError>;

    /// The least that a round trip can take on this machine; none if that is not known.
    fn limit_us(&self, shape: &MoeShape) -> Option<f64>;
}
