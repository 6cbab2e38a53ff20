//! Mutation runs over the shipped kernels: of all bugs of one change, at least 95 in 100 are found. What is not found is
//! explained in `bench/results`.

use peerwarp::codegen::family::Variant;
use peerwarp::families::moe::kernels::{Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::workload::MoeSuite;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each};
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

const SHAPE: MoeShape =
    MoeShape { hidden: 16, experts: 6, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };

fn launches(tuning: &MoeTuning) -> Vec<Variant> {
    let dispatch = tuning.dispatch_launches().into_iter().map(Family::into_variant);
    dispatch.chain(tuning.combine_launches().into_iter().map(Family::into_variant)).collect()
}

/// All protocols and layouts, apart and in one launch, with a record for each token and two blocks of two groups.
fn cases() -> Vec<(&'static str, Vec<Variant>)> {
    let mut tuning = MoeTuning::defaults(&SHAPE).unwrap().small();
    tuning.dispatch.chunk = 1;
    let [flags, packets] = [Protocol::Flags, Protocol::Packets].map(|p| tuning.clone().with_protocol(p));
    let mut by_token = tuning.with_layout(Layout::RankMajor);
    by_token.dispatch.send_blocks = 4;
    let [flags_by_token, packets_by_token] =
        [Protocol::Flags, Protocol::Packets].map(|p| by_token.clone().with_protocol(p));
    let mut bulk = by_token;
    bulk.combine.batch = 2;
    let bulk = bulk.with_protocol(Protocol::Bulk);
    let plain = flags.clone().with_dedup(false).with_split(true);
    vec![
        ("expert-major, flags", launches(&flags)),
        ("expert-major, packets", launches(&packets)),
        ("expert-major, flags, split, without dedup", launches(&plain)),
        ("rank-major, flags", launches(&flags_by_token)),
        ("rank-major, packets", launches(&packets_by_token)),
        ("rank-major, bulk", launches(&bulk)),
        ("round trip", vec![RoundTrip::defaults(&SHAPE).unwrap().small().into_variant()]),
    ]
}

fn planted(variants: &[Variant], seeds: u64, nth: usize) -> MutationRun {
    let inputs = Inputs { seed: 0, rounds: 4, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds, resident_blocks: None };
    plant_each(&MoeSuite, variants, &exploration, nth).unwrap_or_else(|e| panic!("{e}"))
}

/// A few of each case, to see that a run works and that hardly anything gets through.
#[test]
fn most_bugs_are_found() {
    let mut all = MutationRun::default();
    for (_, variants) in cases() {
        all.merge(planted(&variants, 4, 97));
    }
    assert!(all.planted > 20 && all.share() >= 0.9, "{all:#?}");
}

/// `cargo test --release --test mutations -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes"]
fn every_bug_of_one_change() {
    let mut all = MutationRun::default();
    for (name, variants) in cases() {
        let run = planted(&variants, 48, 1);
        println!("{name}: {} of {} found", run.planted - run.survivors.len(), run.planted);
        for survivor in &run.survivors {
            println!("  {}: {}", survivor.kernel, survivor.mutant);
        }
        all.merge(run);
    }
    println!("{:.1} % of {}; first found by {:?}", 100.0 * all.share(), all.planted, all.found);
    assert!(all.share() >= 0.95);
}
