//! What a suite says of how its kernels are tuned.

use std::fmt;

use peerwarp_codegen::family::Variant;

/// Which parts of a round are tuned, each by a family of its own.
#[derive(Clone, Copy, Debug, Default)]
pub struct Components {
    /// Whether variants of several components go together: an error says why not. Without, each is legal by itself.
    pub together: Option<fn(&[Variant]) -> Result<(), String>>,
}

/// What kernels should take, without running them: good enough to rank candidates and to leave out hopeless ones. Times in
/// microseconds, one for each component.
pub trait CostModel: fmt::Debug + Send + Sync {
    /// What each component takes.
    fn times(&self, components: &[Variant]) -> Vec<f64>;
    /// What no kernel with these fields can take less than.
    fn least(&self, components: &[Variant]) -> Vec<f64>;
    /// Whether the registers of each hold what its lanes have in flight.
    fn fits(&self, components: &[Variant]) -> Vec<bool>;
}
