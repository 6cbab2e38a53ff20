//! Mutation runs over the shipped kernels: of all bugs of one change, those that nothing finds are none, and each is
//! explained in `bench/results/mutations.md`.

use peerwarp::codegen::family::{Operation, Variant};
use peerwarp::codegen::ir::mutate::every;
use peerwarp::families::moe::kernels::{Bases, Hook, Layout, Protocol, RoundTrip, Then};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::workload::MoeSuite;
use peerwarp::families::moe::{MoeKey, MoeShape, RowDtype};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each, plant_each_in};
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

const SHAPE: MoeShape =
    MoeShape { hidden: 16, experts: 6, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };

/// Changes that change nothing: role, operation and change.
const EQUIVALENT: [(&str, &str, &str); 10] = [
    // All records of a rank say how many tokens it has.
    ("recv", "gather of rec_n", "index + 1"),
    ("recv", "read_ll of ll_n", "index + 1"),
    ("index", "gather of rec_n", "index + 1"),
    ("entries", "read_ll of ll_n", "index + 1"),
    // The number after the last one is of a slot that no token has.
    ("recv", "for", "end + 1"),
    ("send", "for", "end + 1"),
    // No bit is set after those of a token's entries.
    ("expert", "for", "end + 1"),
    // The flag after the last rank's is not in the mask of those that are waited for.
    ("recv", "wait_all of return_flag", "count + 1"),
    // And with one instead of zero: ten numbers are drawn, in any order.
    ("send", "atomic_and of next_send", "value + 1"),
    // As many as that, or more, but always an even number.
    ("recv", "atomic_and of next_row", "value + 1"),
];

fn launches(tuning: &MoeTuning) -> Vec<Variant> {
    let dispatch = tuning.dispatch_launches().into_iter().map(Family::into_variant);
    dispatch.chain(tuning.combine_launches().into_iter().map(Family::into_variant)).collect()
}

/// All protocols and layouts, apart and in one launch, with a record for each token and two blocks of two groups.
///
/// With each goes how many changes change nothing.
fn cases() -> Vec<(&'static str, Vec<Variant>, usize)> {
    let mut tuning = MoeTuning::defaults_with(&SHAPE, Hook::None, Layout::ExpertMajor).unwrap().small();
    tuning.plan.dispatch.chunk = 1;
    let [flags, packets] = [Protocol::Flags, Protocol::Packets].map(|p| tuning.clone().with_protocol(p));
    let mut by_token = tuning.with_layout(Layout::RankMajor);
    by_token.plan.dispatch.send_blocks = 4;
    let [flags_by_token, packets_by_token] =
        [Protocol::Flags, Protocol::Packets].map(|p| by_token.clone().with_protocol(p));
    let mut bulk = by_token;
    bulk.plan.combine.batch = 2;
    let bulk = bulk.with_protocol(Protocol::Bulk);
    let plain = flags.clone().with_dedup(false).with_split(true);
    // So many rows that blocks which have sent receive.
    let two = MoeShape { tokens: 16, ranks: 2, ..SHAPE };
    let joining = MoeTuning::defaults_with(&two, Hook::None, Layout::ExpertMajor).unwrap().small();
    let joining = joining.with_protocol(Protocol::Flags).dispatch().into_variant();
    // So many entries that senders count them.
    let many = MoeShape { experts: 36, topk: 32, tokens: 5, ..SHAPE };
    let mut counted = MoeTuning::defaults_with(&many, Hook::None, Layout::ExpertMajor).unwrap().small();
    counted.plan.dispatch.chunk = 8;
    let counted = counted.with_protocol(Protocol::Packets).dispatch();
    assert!(!counted.receivers_count());
    vec![
        ("expert-major, blocks that have sent receive", vec![joining], 4),
        ("expert-major, flags", launches(&flags), 3),
        ("expert-major, packets", launches(&packets), 1),
        ("expert-major, packets that senders count", vec![counted.into_variant()], 1),
        ("expert-major, flags, split, without dedup", launches(&plain), 3),
        ("rank-major, flags", launches(&flags_by_token), 2),
        ("rank-major, packets", launches(&packets_by_token), 2),
        ("rank-major, bulk", launches(&bulk), 3),
        ("round trip", vec![RoundTrip::defaults(&SHAPE).unwrap().small().into_variant()], 0),
    ]
}

fn planted(variants: &[Variant]) -> MutationRun {
    let inputs = Inputs { seed: 0, rounds: 4, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 48, resident_blocks: None };
    let mut run = plant_each(&MoeSuite, variants, &exploration).unwrap_or_else(|e| panic!("{e}"));
    run.leave_out(|s| {
        let role = s.mutant.role.as_deref().unwrap_or_default();
        EQUIVALENT.contains(&(role, &s.mutant.op, &s.mutant.change))
    });
    run
}

/// Bases in memory: also a block that does not wait for them, and one that signals before they are there.
#[test]
fn every_bug_of_bases_in_memory_is_found() {
    for (layout, protocol) in
        [(Layout::ExpertMajor8, Protocol::Flags), (Layout::RankMajor, Protocol::Packets)]
    {
        let tuning = MoeTuning::defaults_with(&SHAPE, Hook::None, layout).unwrap().small();
        let mut dispatch = tuning.with_protocol(protocol).dispatch();
        (dispatch.bases, dispatch.chunk) = (Some(Bases::Memory), 1);
        // Else the block that reads the last record waits for bases too.
        dispatch.after_index = Some(Then::Leave);
        let waits = every(&dispatch.trace(32).unwrap()).into_iter();
        let waits: Vec<String> = waits.map(|m| m.to_string()).filter(|m| m.contains("of based")).collect();
        assert!(waits.iter().any(|m| m.contains("wait") && m.contains("left out")), "{waits:#?}");
        let mut run = planted(&[dispatch.into_variant()]);
        // The bases' block has waited for all records. As these come with flags, which order rounds, packets that come back need
        // no second bank.
        run.leave_out(|s| {
            let of_index = s.mutant.role.as_deref() == Some("index") && s.mutant.op == "wait_all of rec_flag";
            of_index || (s.kernel == "combine" && s.mutant.change.starts_with("parity"))
        });
        println!("{layout:?}, {protocol:?}: {run}");
        assert!(run.planted > 50 && run.survivors.is_empty(), "{layout:?}, {protocol:?}: {run}");
    }
}

/// What goes between nodes: two lanes, and tokens of both, one and no node.
#[test]
fn every_bug_between_nodes_is_found() {
    let shape = MoeShape { experts: 8, tokens: 6, ranks: 4, ..SHAPE };
    let key = MoeKey { nodes: 2, hook: Hook::Expert, weighted: true, ..MoeKey::new(shape) };
    let tuning = key.defaults().unwrap().small();
    let inputs = Inputs { seed: 0, rounds: 4, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 48, resident_blocks: None };
    let run = plant_each_in(&MoeSuite, &tuning.launches(), &exploration, |kernel| kernel.nodes > 1);
    let mut run = run.unwrap_or_else(|e| panic!("{e}"));
    // Of one bank, nothing depends on which launch it is.
    run.leave_out(|s| s.mutant.op == "epoch");
    println!("between nodes: {run}");
    assert_eq!(run.equivalent, 2);
    assert!(run.planted > 150 && run.survivors.is_empty(), "{run}");
}

/// `cargo test --test mutations -- --nocapture` prints what found how many.
#[test]
fn every_bug_of_one_change_is_found() {
    let mut all = MutationRun::default();
    for (name, variants, equivalent) in cases() {
        let run = planted(&variants);
        println!("{name}: {run}");
        assert_eq!(run.equivalent, equivalent, "{name}");
        all.merge(run);
    }
    println!("all: {all}");
    assert!(all.planted > 1000 && all.survivors.is_empty(), "{all}");
}
