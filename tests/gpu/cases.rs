//! Variants of families with a workload: right to the bit, one round after the other without a barrier, and in graphs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use peerwarp::codegen::family::{FamilyError, Target, Variant};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::runtime::image::Images;
use peerwarp::runtime::{RuntimeError, World, WorldOptions};
use serde_json::json;

use super::{gpus, jit, options, report};

/// Rounds that the host looks at, each with inputs of its own; then so many graphs of them, and two: flags end in either parity.
const ROUNDS: u32 = 3;
const REPLAYS: u32 = 51;

/// A test of one family.
pub struct Cases<'a> {
    world: &'a Arc<World>,
    /// Instead of running them: the variants, to be compiled side by side.
    to_compile: Option<Vec<Variant>>,
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
        if let Some(variants) = &mut self.to_compile {
            return variants.push(config.into_variant());
        }
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

/// Compiles variants on all cores: later ones find the modules in the user's cache.
fn compile(variants: &[Variant], target: Target) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from).min(variants.len()) {
            scope.spawn(|| {
                let jit = jit();
                while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The session says why a kernel cannot be compiled.
                    let _ = jit.image(&**variant, target);
                }
            });
        }
    });
}

/// Runs the cases of a test in a world of two ranks.
pub fn cases(name: &str, least: u32, run: impl Fn(&mut Cases<'_>)) {
    cases_of(2, name, least, run);
}

/// Runs the cases of a test in a world of so many ranks, at most two.
pub fn cases_of(ranks: usize, name: &str, least: u32, run: impl Fn(&mut Cases<'_>)) {
    cases_with(ranks, options(), name, least, run);
}

/// The same of two ranks that play two nodes.
pub fn cases_of_nodes(name: &str, least: u32, run: impl Fn(&mut Cases<'_>)) {
    cases_with(2, WorldOptions { nodes: 2, ..options() }, name, least, run);
}

fn cases_with(ranks: usize, options: WorldOptions, name: &str, least: u32, run: impl Fn(&mut Cases<'_>)) {
    let Some((_one, gpus)) = gpus() else { return };
    let world = Arc::new(World::of_gpus(&gpus[..ranks], &options).unwrap());
    let mut ahead = Cases { world: &world, to_compile: Some(vec![]), done: 0, refused: 0, crowded: 0 };
    run(&mut ahead);
    compile(&ahead.to_compile.unwrap_or_default(), gpus[0].info().target);
    let mut cases = Cases { world: &world, to_compile: None, done: 0, refused: 0, crowded: 0 };
    run(&mut cases);
    assert!(cases.done >= least, "{} cases of {name} are legal", cases.done);
    let Cases { done, refused, crowded, .. } = cases;
    let ranks_per_gpu = world.ranks_per_gpu();
    report(
        name,
        json!({ "cases": done, "not_legal": refused, "no_room": crowded, "ranks_per_gpu": ranks_per_gpu }),
    );
}
