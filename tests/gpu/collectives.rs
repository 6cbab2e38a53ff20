//! Collectives: every algorithm, protocol and type, one after the other without a barrier, and in graphs.

use std::sync::Arc;

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter,
};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::runtime::{RuntimeError, World};
use serde_json::json;

use super::{gpus, jit, options, report, two};

/// Rounds that the host looks at, each with inputs of its own; then so many graphs of them, and two: flags end in either parity.
const ROUNDS: u32 = 3;
const REPLAYS: u32 = 51;

const DTYPES: [&str; 3] = ["f32", "bf16", "fp16"];

/// One element, no whole vector of 16 bytes, and chunks with a rest for each block.
const LENGTHS: [u32; 3] = [1, 1003, 65_539];

/// A test of one family.
struct Cases<'a> {
    world: &'a Arc<World>,
    done: u32,
    /// Not legal.
    refused: u32,
    /// Without room for the blocks of both ranks on one GPU.
    crowded: u32,
}

impl Cases<'_> {
    /// Runs the variant with these settings, if it is legal.
    fn run<F: Workload>(&mut self, settings: &[(&str, &str)]) {
        let Ok(config) = F::from_settings(settings) else {
            self.refused += 1;
            return;
        };
        let inputs = Inputs { seed: u64::from(self.done), rounds: ROUNDS, ..Inputs::default() };
        let problem = suite::of::<F>().problem(&[config.clone().into_variant()], &inputs).unwrap();
        let session = match GpuSession::new(Arc::from(problem), self.world, &jit()) {
            Ok(session) => session,
            Err(RuntimeError::NotResidentTogether { .. }) => {
                self.crowded += 1;
                return;
            }
            Err(e) => panic!("{}: {e}", config.variant_name()),
        };
        // What replaces its input begins with what it left before, and leaves what is not part of a result.
        let in_place = settings.contains(&("in_place", "true"));
        let mut session = if in_place { session } else { session.poisoned() };
        for replays in if in_place { [0, 0] } else { [REPLAYS, 2] } {
            let ran = session.run(replays).unwrap();
            assert!(ran.ok && ran.verdict.compared > 0, "{}: {ran:?}", config.variant_name());
            assert_eq!(ran.replayed.map_or(0, |r| r.replays), replays, "{}", config.variant_name());
        }
        self.done += 1;
    }

    /// With every choice of these fields' values, for each of these types and each length.
    fn every<F: Workload>(&mut self, length: &str, dtypes: &[&str], fields: &[(&str, &[&str])]) {
        let lengths = LENGTHS.map(|n| n.to_string());
        let lengths = lengths.each_ref().map(String::as_str);
        let all = [&[("ranks", &["2"][..]), ("dtype", dtypes), (length, &lengths)][..], fields].concat();
        let choices = all.iter().fold(vec![vec![]], |choices, (name, values)| {
            let with = |value| choices.iter().map(move |c| [&c[..], &[(*name, value)]].concat());
            values.iter().flat_map(|value| with(*value)).collect()
        });
        choices.iter().for_each(|settings| self.run::<F>(settings));
    }
}

/// Runs the cases of a test in a world of two ranks.
fn cases(name: &str, least: u32, run: impl FnOnce(&mut Cases<'_>)) {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
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

const PROTOCOLS: (&str, &[&str]) = ("protocol", &["packets", "flags"]);
const IN_PLACE: (&str, &[&str]) = ("in_place", &["false", "true"]);

#[test]
fn all_reduces_are_right_to_the_bit() {
    cases("all_reduce", 66, |cases| {
        let algorithms = ("algorithm", &["one-shot", "two-shot", "pull", "pull-two-shot"][..]);
        cases.every::<AllReduce>("elements", &DTYPES, &[algorithms, PROTOCOLS]);
        cases.every::<AllReduce>("elements", &["bf16"], &[("op", &["max", "min"]), IN_PLACE]);
    });
}

#[test]
fn all_gathers_are_right_to_the_bit() {
    cases("all_gather", 30, |cases| {
        cases.every::<AllGather>("elements", &DTYPES, &[("algorithm", &["push", "pull"]), PROTOCOLS]);
        cases.every::<AllGather>("elements", &["fp16"], &[PROTOCOLS, IN_PLACE]);
    });
}

#[test]
fn reduce_scatters_are_right_to_the_bit() {
    cases("reduce_scatter", 24, |cases| {
        cases.every::<ReduceScatter>("elements", &DTYPES, &[PROTOCOLS]);
        cases.every::<ReduceScatter>("elements", &["f32"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn all_to_alls_are_right_to_the_bit() {
    cases("all_to_all", 24, |cases| {
        cases.every::<AllToAll>("elements", &DTYPES, &[PROTOCOLS]);
        cases.every::<AllToAll>("elements", &["bf16"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn ragged_all_to_alls_are_right_to_the_bit() {
    cases("ragged_all_to_all", 24, |cases| {
        cases.every::<RaggedAllToAll>("capacity", &DTYPES, &[PROTOCOLS]);
        cases.every::<RaggedAllToAll>("capacity", &["f32"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn broadcasts_are_right_to_the_bit() {
    cases("broadcast", 30, |cases| {
        cases.every::<Broadcast>("elements", &DTYPES, &[PROTOCOLS, ("root", &["0", "1"])]);
        cases.every::<Broadcast>("elements", &["fp16"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}
