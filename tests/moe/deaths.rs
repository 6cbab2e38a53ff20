//! A rank dies after any of its stores, and the others go on without it and its experts.

use std::sync::Arc;

use peerwarp::codegen::family::{Choice, Family};
use peerwarp::codegen::sim::{Death, Options};
use peerwarp::families::moe::kernels::{Hook, IdType, Layout, MoeLayer, Quantise, ReturnDtype, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Problem};

/// Rounds of ranks with different numbers of tokens.
fn problem(shape: MoeShape) -> MoeProblem {
    let tokens =
        |seed: u32| (0..shape.ranks).map(|rank| (rank * 5 + seed * 3) % (shape.tokens + 1)).collect();
    let of =
        |seed: u32| Routing::uniform(&shape, &Vec::<u32>::from_iter::<Vec<u32>>(tokens(seed)), seed.into());
    MoeProblem::with_rounds(shape, [0, 1, 2, 3].map(of).into(), 5).unwrap()
}

/// Deaths of a rank of a large problem, evenly among its stores. Ranks of small ones die after every store.
const POINTS: u64 = 7;

#[track_caller]
fn survives(rounds: MoeRounds) {
    survives_at(Arc::new(rounds), POINTS);
}

/// Deaths of each rank, before its first store and after so many, and then a world without the rank.
#[track_caller]
fn survives_at(problem: Arc<dyn Problem>, points: u64) {
    let (title, ranks) = (problem.title(), problem.ranks());
    let whole = SimSession::new(Arc::clone(&problem)).unwrap_or_else(|e| panic!("{title}: {e}"));
    let stores = whole.run(&Options::default()).unwrap_or_else(|e| panic!("{title}: {e}")).report.stores;
    for rank in 0..ranks {
        let own = stores[rank as usize];
        for after in (0..=own).step_by((own / points).max(1) as usize) {
            let death = Some(Death { rank, after });
            let ran = whole.run_until_death(&Options { seed: after, death, ..Options::default() });
            let ran = ran.unwrap_or_else(|e| panic!("{title}, rank {rank} dies after {after}: {e}"));
            assert!(ran.verdict.ok(), "{title}, rank {rank} dies after {after}: {:?}", ran.verdict);
        }
        let without = SimSession::without(Arc::clone(&problem), 1 << rank).unwrap();
        for seed in 0..3 {
            let ran = without.run(&Options { seed, ..Options::default() });
            let ran = ran.unwrap_or_else(|e| panic!("{title}, without rank {rank}: {e}"));
            assert!(
                ran.verdict.ok() && ran.verdict.compared > 0,
                "{title}, without {rank}: {:?}",
                ran.verdict
            );
        }
    }
}

/// A death after every store.
#[track_caller]
fn survives_each(rounds: MoeRounds) {
    survives_at(Arc::new(rounds), u64::MAX);
}

#[test]
fn rows_by_token_and_by_expert() {
    let shape = MoeShape { hidden: 72, experts: 10, topk: 3, tokens: 6, ranks: 3, dtype: RowDtype::Bf16 };
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        let shape = MoeShape { dtype, ..shape };
        for layout in [Layout::RankMajor, Layout::ExpertMajor, Layout::ExpertMajor8] {
            for split in [false, true] {
                let tuning = MoeKey { layout, split, missing: !split, ..MoeKey::new(shape) }
                    .defaults()
                    .unwrap()
                    .small();
                survives(MoeRounds::new(&problem(shape), &tuning, 4).unwrap());
            }
        }
    }
}

#[test]
fn rows_with_flags_and_without_dedup() {
    let shape = MoeShape { hidden: 72, experts: 10, topk: 3, tokens: 6, ranks: 3, dtype: RowDtype::Bf16 };
    for layout in [Layout::RankMajor, Layout::ExpertMajor] {
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap().small();
        let flags = tuning.with_protocol(peerwarp::families::moe::kernels::Protocol::Flags);
        survives(MoeRounds::new(&problem(shape), &flags, 4).unwrap());
    }
}

#[test]
fn rounds_in_one_launch() {
    let shape = MoeShape { hidden: 200, experts: 8, topk: 2, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    for missing in [false, true] {
        let config = RoundTrip { missing, ..RoundTrip::defaults(&shape).unwrap() }.small();
        survives(MoeRounds::in_one_launch(&problem(shape), &config, 4).unwrap());
    }
}

/// A small shape of each layout, and a round in one launch.
#[test]
fn deaths_after_every_store() {
    let shape = MoeShape { hidden: 8, experts: 4, topk: 2, tokens: 2, ranks: 3, dtype: RowDtype::Bf16 };
    let problem = problem(shape);
    for layout in <Layout as Choice>::ALL {
        let tuning =
            MoeKey { layout: *layout, missing: true, ..MoeKey::new(shape) }.defaults().unwrap().small();
        survives_each(MoeRounds::new(&problem, &tuning, 3).unwrap());
    }
    let config = RoundTrip { missing: true, ..RoundTrip::defaults(&shape).unwrap() }.small();
    survives_each(MoeRounds::in_one_launch(&problem, &config, 3).unwrap());
}

#[test]
fn rows_that_come_back_quantised() {
    let shape = MoeShape { hidden: 160, experts: 7, topk: 3, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };
    for combine_dtype in [ReturnDtype::Fp8, ReturnDtype::Fp8Token, ReturnDtype::Nvfp4] {
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let key = MoeKey { layout, combine_dtype, missing: true, ..MoeKey::new(shape) };
            survives(MoeRounds::new(&problem(shape), &key.defaults().unwrap().small(), 3).unwrap());
        }
    }
}

/// Replicas on other ranks do not take a dead rank's rows: the table alone decides where a token goes.
#[test]
fn experts_in_slots() {
    let shape = MoeShape { hidden: 72, experts: 10, topk: 3, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };
    for (expert_slots, replicas) in [(3, 1), (5, 2)] {
        for (layout, split) in [(Layout::RankMajor, false), (Layout::ExpertMajor, true)] {
            let key = MoeKey { layout, split, missing: true, expert_load: true, ..MoeKey::new(shape) };
            let key = MoeKey { expert_slots, replicas, ids: IdType::I64, ..key };
            survives(MoeRounds::new(&problem(shape), &key.defaults().unwrap().small(), 3).unwrap());
        }
    }
    let shape = MoeShape { hidden: 200, ..shape };
    let config =
        RoundTrip { expert_slots: 4, replicas: 2, missing: true, ..RoundTrip::defaults(&shape).unwrap() };
    survives(MoeRounds::in_one_launch(&problem(shape), &config.small(), 3).unwrap());
}

/// Rows that dispatch quantises, to fp8 of gfx942 and to other formats with scales.
#[test]
fn rows_that_dispatch_quantises() {
    for dtype in [RowDtype::Fp8Fnuz, RowDtype::Mxfp8, RowDtype::Nvfp4, RowDtype::Int8] {
        let shape = MoeShape { hidden: 256, experts: 7, topk: 2, tokens: 4, ranks: 3, dtype };
        for (layout, quantise) in [(Layout::RankMajor, Quantise::Bf16), (Layout::ExpertMajor, Quantise::None)]
        {
            let key = MoeKey { layout, quantise, ..MoeKey::new(shape) };
            survives(MoeRounds::new(&problem(shape), &key.defaults().unwrap().small(), 3).unwrap());
        }
    }
}

#[test]
fn whole_layers() {
    let few = "ranks=3 warps=4 tile_rows=64 tile_columns=64 stages=2 blocks=2";
    for settings in [
        "hidden=40 inter=32 experts=5 topk=3 tokens=6 dtype=bf16",
        "hidden=128 inter=128 experts=4 topk=2 tokens=4 dtype=fp8 bias=true",
    ] {
        let config = MoeLayer::from_text(&format!("{settings} {few}")).unwrap();
        let inputs = Inputs { seed: 3, rounds: 3, ..Inputs::default() };
        let problem = suite::of::<MoeLayer>().problem(&[config.into_variant()], &inputs).unwrap();
        survives_at(Arc::from(problem), POINTS);
    }
}
