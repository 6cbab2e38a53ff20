//! Variants of families with a workload: right to the bit, one round after the other without a barrier, and in graphs.

use std::sync::Arc;

use peerwarp::codegen::family::FamilyError;
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::runtime::{RuntimeError, World, WorldOptions};
use serde_json::json;

use super::{gpus, jit, options, report};

/// Rounds that the host looks at, each with inputs of its own; then so many graphs of them, and two: flags end in either parity.
const ROUNDS: u32 = 3;
const REPLAYS: u32 = 51;

/// A test of one family.
pub struct Cases<'a> {
    world: &'a Arc<World>,
    done: u32,
    /// Not legal.
    refused: u32,
    /// Without room for the blocks of both ranks on one GPU.
    crowded: u32,
}

impl Cases<'_> {
    /// Runs the variant with these settings, if it is legal.
    pub fn run<F: Workload>(&mut self, settings: &str) {
        let config = match F::from_text(settings) {
            Ok(config) => config,
            Err(FamilyError::Illegal { .. }) => {
                self.refused += 1;
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let inputs = Inputs { seed: u64::from(self.done), rounds: ROUNDS, ..Inputs::default() };
        let problem = suite::of::<F>().problem(&[config.clone().into_variant()], &inputs).unwrap();
        let results = problem.expected(0, 0);
        let in_place = problem.inputs(0, 0).iter().any(|x| results.iter().any(|y| x.buffer == y.buffer));
        let session = match GpuSession::new(Arc::from(problem), self.world, &jit()) {
            Ok(session) => session,
            Err(RuntimeError::NotResidentTogether { .. }) => {
                self.crowded += 1;
                return;
            }
            Err(e) => panic!("{}: {e}", config.variant_name()),
        };
        // What replaces its input begins with what it left before, and leaves what is not part of a result.
        let mut session = if in_place { session } else { session.poisoned() };
        for replays in if in_place { [0, 0] } else { [REPLAYS, 2] } {
            let ran = session.run(replays).unwrap();
            assert!(ran.ok && ran.verdict.compared > 0, "{}: {ran:?}", config.variant_name());
            assert_eq!(ran.replayed.map_or(0, |r| r.replays), replays, "{}", config.variant_name());
        }
        self.done += 1;
    }
}

/// Runs the cases of a test in a world of two ranks.
pub fn cases(name: &str, least: u32, run: impl FnOnce(&mut Cases<'_>)) {
    cases_of(2, name, least, run);
}

/// Runs the cases of a test in a world of so many ranks, at most two.
pub fn cases_of(ranks: usize, name: &str, least: u32, run: impl FnOnce(&mut Cases<'_>)) {
    cases_with(ranks, options(), name, least, run);
}

/// The same of two ranks that play two nodes.
pub fn cases_of_nodes(name: &str, least: u32, run: impl FnOnce(&mut Cases<'_>)) {
    cases_with(2, WorldOptions { nodes: 2, ..options() }, name, least, run);
}

fn cases_with(ranks: usize, options: WorldOptions, name: &str, least: u32, run: impl FnOnce(&mut Cases<'_>)) {
    let Some((_one, gpus)) = gpus() else { return };
    let world = Arc::new(World::of_gpus(&gpus[..ranks], &options).unwrap());
    let mut cases = Cases { world: &world, done: 0, refused: 0, crowded: 0 };
    run(&mut cases);
    assert!(cases.done >= least, "{} cases of {name} are legal", cases.done);
    let Cases { done, refused, crowded, .. } = cases;
    let ranks_per_gpu = world.ranks_per_gpu();
    report(
        name,
        json!({ "cases": done, "not_legal": refused, "no_room": crowded, "ranks_per_gpu": ranks_per_gpu }),
    );
}
