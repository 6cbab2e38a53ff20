//! Runs of collectives on the simulator.

use std::sync::Arc;

use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::harness::session::{Ran, SimSession};
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::prelude::*;

/// Rounds back to back, so that every half of an inbox is used again.
pub const ROUNDS: u32 = 5;

/// A configuration from settings: `elements=10 ranks=2`.
#[track_caller]
pub fn config<F: Family>(settings: &str) -> F {
    F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"))
}

/// Runs a configuration under one schedule; its results are right.
#[track_caller]
pub fn run<F: Workload>(config: &F, seed: u64, strategy: Strategy) -> Ran {
    let inputs = Inputs { seed, rounds: ROUNDS, ..Inputs::default() };
    let problem = suite::of::<F>().problem(&[config.clone().into_variant()], &inputs);
    let session = SimSession::new(Arc::from(problem.unwrap_or_else(|e| panic!("{config:?}: {e}"))));
    let session = session.unwrap_or_else(|e| panic!("{config:?}: {e}"));
    let ran = session.run(&Options { seed, strategy, ..Options::default() });
    let ran = ran.unwrap_or_else(|findings| panic!("{config:?}, seed {seed}: {findings}"));
    assert!(ran.verdict.ok() && ran.verdict.compared > 0, "{config:?}, seed {seed}: {:?}", ran.verdict);
    ran
}

/// Explores schedules of both kinds.
#[track_caller]
pub fn explore<F: Workload>(settings: &str, seeds: u64) {
    let config = config::<F>(settings);
    for seed in 0..seeds {
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            run(&config, seed, strategy);
        }
    }
}
