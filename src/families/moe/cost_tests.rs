use super::super::kernels::{Hook, Protocol};
use super::super::run::MoeTuning;
use super::super::workload::MoeSuite;
use super::*;
use crate::families::moe::RowDtype;
use crate::families::moe::kernels::Layout;
use crate::harness::tune::{Candidate, Key, KeyValue, Tuned, space};
use crate::harness::workload::Suite as _;

const SHAPE: MoeShape =
    MoeShape { hidden: 7168, experts: 256, topk: 8, tokens: 128, ranks: 8, dtype: RowDtype::Bf16 };

/// What a pair takes, or can take at least: dispatch, and combine.
struct Pair {
    dispatch: f64,
    combine: f64,
}

fn variants(tuning: &MoeTuning) -> [Variant; 2] {
    [tuning.dispatch().into_variant(), tuning.combine().into_variant()]
}

fn times(model: &Model, tuning: &MoeTuning) -> Pair {
    let times = model.times(&variants(tuning));
    Pair { dispatch: times[0], combine: times[1] }
}

fn least(model: &Model, tuning: &MoeTuning) -> Pair {
    let least = model.least(&variants(tuning));
    Pair { dispatch: least[0], combine: least[1] }
}

fn best(model: &Model, from: &Candidate) -> Candidate {
    space::best(model, &MoeSuite.components(), from)
}

fn defaults(shape: MoeShape) -> MoeTuning {
    MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap()
}

#[test]
fn rows_are_those_of_uniform_routing() {
    let model = Model::new(SHAPE);
    // 5.28 of 8 ranks, as a look at random tokens shows.
    assert!((model.rows(true) / 128.0 - 5.28).abs() < 0.05, "{}", model.rows(true));
    assert_eq!(model.rows(false), 1024.0);
    // As the reference table of the limits has it.
    assert!((model.wire_us(true, 14336) - 24.8).abs() < 0.3);
    // All experts on one rank: elsewhere there is none.
    let one = Model::new(MoeShape { experts: 8, topk: 8, ranks: 2, ..SHAPE });
    assert_eq!(one.rows(true), 256.0);
}

#[test]
fn more_to_send_takes_longer_and_nothing_is_faster_than_its_limit() {
    let mut last = 0.0;
    for tokens in [1, 8, 64, 128, 4096] {
        let shape = MoeShape { tokens, ..SHAPE };
        let (model, tuning) = (Model::new(shape), defaults(shape));
        let (times, least_us) = (times(&model, &tuning), least(&model, &tuning));
        assert!(times.dispatch > last, "{tokens} tokens: {} us", times.dispatch);
        assert!(times.dispatch > least_us.dispatch && times.combine > least_us.combine);
        last = times.dispatch;
        let plain = tuning.with_dedup(false);
        assert!(least(&model, &plain).dispatch >= least_us.dispatch);
    }
}

#[test]
fn what_it_would_take_is_at_least_as_good_by_its_own_measure() {
    for tokens in [1, 128] {
        let shape = MoeShape { tokens, ..SHAPE };
        let (model, from) = (Model::new(shape), Candidate::new(variants(&defaults(shape))));
        let found = best(&model, &from);
        MoeSuite.components().check(found.variants()).unwrap();
        let sum = |c: &Candidate| model.times(c.variants()).iter().sum::<f64>();
        assert!(sum(&found) <= sum(&from));
        // And nothing around it is better.
        assert_eq!(best(&model, &found), found);
    }
}

#[test]
fn registers_limit_what_is_in_flight() {
    let model = Model::new(SHAPE);
    let mut tuning = defaults(SHAPE);
    (tuning.plan.combine.warps, tuning.plan.combine.vectors) = (16, 8);
    assert!(!model.fits(&variants(&tuning))[1]);
    tuning.plan.combine.warps = 8;
    assert!(model.fits(&variants(&tuning))[1]);
}

/// A pair by token, with values for the fields that model terms are about.
fn by_token(shape: MoeShape, protocol: Protocol) -> MoeTuning {
    MoeTuning::defaults_with(&shape, Hook::None, Layout::RankMajor).unwrap().with_protocol(protocol)
}

#[test]
fn rows_that_arrive_in_place_cost_their_receivers_no_move() {
    let model = Model::new(SHAPE);
    let mut tuning = by_token(SHAPE, Protocol::Flags);
    (tuning.plan.dispatch.recv_blocks, tuning.plan.dispatch.chunk) = (1, 128);
    let narrow = tuning.clone();
    tuning.plan.dispatch.group_warps = tuning.plan.dispatch.warps;
    assert_eq!(model.take(&narrow.dispatch(), 128.0), model.take(&tuning.dispatch(), 128.0));
    // 1024 slots and those 5.28 rows a token in 16 warps, a look at each.
    assert_close(model.take(&tuning.dispatch(), 128.0), (1024.0 + model.rows(true)) / 16.0 * COSTS.look_us);
    // A hook looks into rows, so that they are moved.
    let hooked = narrow.with_hook(Hook::Expert);
    assert!(model.take(&hooked.dispatch(), 128.0) > 2.0 * model.take(&tuning.dispatch(), 128.0));
}

#[test]
fn packets_by_token_are_stored_once_and_not_for_every_entry() {
    // One rank gets all of a token's entries.
    let shape = MoeShape { experts: 8, topk: 8, ranks: 2, ..SHAPE };
    let model = Model::new(shape);
    let token = by_token(shape, Protocol::Packets);
    let expert = token.clone().with_layout(Layout::ExpertMajor);
    let turns = Fields(&token.dispatch()).turns(256.0, shape.row_bytes(), "recv_blocks");
    let apart = model.take(&expert.dispatch(), 128.0) - model.take(&token.dispatch(), 128.0);
    // Four entries a row there.
    assert_close(apart, turns * 3.0 * COSTS.load_us);
}

#[test]
fn the_index_is_beside_the_rows_and_waits_for_all_records() {
    let one = MoeShape { tokens: 1, ..SHAPE };
    let model = Model::new(one);
    let packets = by_token(one, Protocol::Packets);
    // Of one token it is what takes longest: the rows may take as long as they like until they take longer.
    let mut slower = packets.clone();
    slower.plan.dispatch.vectors = if packets.plan.dispatch.vectors == 1 { 2 } else { 1 };
    assert_close(model.dispatch(&packets.dispatch()), model.dispatch(&slower.dispatch()));
    let index = model.index(&packets.dispatch());
    assert_close(index, COSTS.bases_us + 3.0 * COSTS.look_us);
    // Of many it is what ends first.
    let model = Model::new(SHAPE);
    let mut tuning = by_token(SHAPE, Protocol::Packets);
    let before = model.dispatch(&tuning.dispatch());
    tuning.plan.dispatch.recv_blocks = 2;
    assert!(model.dispatch(&tuning.dispatch()) > before + 1.0);
    // More entries than the warps of its block look at in one turn take another one.
    let mut many = tuning.dispatch();
    (many.tokens, many.chunk, many.warps) = (4096, 32, 2);
    // So many records have other rules.
    (many.count, many.bases) = (Some(tuning.dispatch().count()), Some(tuning.dispatch().bases()));
    assert_close(model.index(&many), COSTS.bases_us + 1024.0 * 3.0 * COSTS.look_us);
}

#[test]
fn by_token_nothing_is_summed_where_rows_are_sent_back() {
    let shape = MoeShape { experts: 8, topk: 8, ranks: 2, tokens: 1024, ..SHAPE };
    let model = Model::new(shape);
    let mut token = by_token(shape, Protocol::Flags);
    // So few that send that the link is not what they wait for.
    token.plan.combine.send_blocks = 1;
    let expert = token.clone().with_layout(Layout::ExpertMajor);
    let turns = Fields(&token.combine()).turns(2048.0, 14336, "send_blocks");
    // Three rows are in flight at once, of the four that each of two ranks has.
    let loads = 4.0 / 3.0 * Fields(&expert.combine()).local_us(&COSTS);
    assert_close(model.combine(&expert.combine()) - model.combine(&token.combine()), turns * loads);
}

#[test]
fn blocks_send_no_more_than_an_sm_stores() {
    let model = Model::new(SHAPE);
    let mut tuning = by_token(SHAPE, Protocol::Packets);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.vectors) = (16, 8);
    let sending = |blocks: u32| {
        let mut dispatch = tuning.clone();
        dispatch.plan.dispatch.send_blocks = blocks;
        model.dispatch(&dispatch.dispatch())
    };
    // 676 rows of 14 KiB at 40 GB/s, by one block or by two.
    let stored = model.rows(true) * 14336.0 / 40e3;
    assert_close(sending(1) - sending(2), stored / 2.0 - COSTS.block_us);
    // Of many it is the link that is waited for.
    assert!(sending(64) < sending(16) + 1.0);
}

#[test]
fn what_it_would_take_has_the_layout_that_was_asked_for() {
    for tokens in [1, 128] {
        let shape = MoeShape { tokens, ..SHAPE };
        let from = Candidate::new(variants(
            &MoeTuning::defaults_with(&shape, Hook::None, Layout::RankMajor).unwrap(),
        ));
        let found = best(&Model::new(shape), &from);
        MoeSuite.components().check(found.variants()).unwrap();
        assert_eq!(Key::of("moe", found.variants()), Key::of("moe", from.variants()));
    }
}

#[test]
fn steps_change_what_both_have_to_agree_on_in_both() {
    let shape = MoeShape { hidden: 1024, experts: 32, topk: 4, tokens: 32, ranks: 2, dtype: RowDtype::Bf16 };
    for layout in [Layout::ExpertMajor, Layout::RankMajor] {
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
        let from = Candidate::new(variants(&tuning));
        let (steps, illegal) = space::steps(&MoeSuite.components(), &from);
        assert!(steps.len() >= 20 && illegal > 0, "{}", steps.len());
        for step in &steps {
            MoeSuite.components().check(step.to.variants()).unwrap();
            assert_eq!(Key::of("moe", step.to.variants()), Key::of("moe", from.variants()));
        }
        // Rows by token go once to each rank.
        let dedup = steps.iter().filter(|s| s.to.variants().iter().any(|v| !is_dedup(v)));
        let dedup: Vec<_> = dedup.map(|s| s.changed.clone()).collect();
        assert_eq!(dedup, if layout == Layout::ExpertMajor { vec![vec![0, 1]] } else { vec![] });
    }
}

fn is_dedup(variant: &Variant) -> bool {
    dispatch(variant).is_none_or(|d| d.dedup) && combine(variant).is_none_or(|c| c.dedup)
}

#[test]
fn keys_have_what_only_one_of_the_two_is_for_by_its_name() {
    let key = |dtype| Key::of("moe", &variants(&defaults(MoeShape { dtype, ..SHAPE })));
    let name = |name: &str| Some(KeyValue::Name(name.to_owned()));
    let bf16 = key(RowDtype::Bf16).fields;
    assert_eq!((bf16.get("dtype").cloned(), bf16.get("hook").cloned()), (name("bf16"), name("raw")));
    let fp8 = key(RowDtype::Fp8).fields;
    assert_eq!(fp8.get("dtype"), None);
    let dtypes = ["moe_dispatch.dtype", "moe_combine.dtype"].map(|field| fp8.get(field).cloned());
    assert_eq!(dtypes, [name("fp8"), name("bf16")]);
}

/// A change that alters the kernels' time counts their revision up: the table is to be made anew, or to say that it is earlier.
#[test]
fn records_of_the_embedded_table_can_be_used() {
    let tuned = Tuned::builtin("NVIDIA H200", "cuda:sm_90a".parse().unwrap()).unwrap();
    let records = &tuned.table().records;
    assert!(records.iter().any(|record| record.suite == MoeSuite.name()));
    for record in records {
        record.winner(&MoeSuite).unwrap_or_else(|e| panic!("generated/tuned/h200.toml: {e}"));
    }
    assert_eq!(Tuned::named("h200", &[&MoeSuite]).unwrap(), tuned);
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-3 * b.abs(), "{a} is not {b}");
}
