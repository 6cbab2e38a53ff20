//! A rank dies after any of its stores, and the others go on without it and its experts.

use std::sync::Arc;

use peerwarp::codegen::sim::{Death, Options};
use peerwarp::families::moe::kernels::{Hook, Layout, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::workload::Problem;

/// Rounds of ranks with different numbers of tokens.
fn problem(shape: MoeShape) -> MoeProblem {
    let tokens =
        |seed: u32| (0..shape.ranks).map(|rank| (rank * 5 + seed * 3) % (shape.tokens + 1)).collect();
    let of =
        |seed: u32| Routing::uniform(&shape, &Vec::<u32>::from_iter::<Vec<u32>>(tokens(seed)), seed.into());
    MoeProblem::with_rounds(shape, [0, 1, 2, 3].map(of).into(), 5).unwrap()
}

/// Every death that a stride of stores comes to, then a world without each rank.
#[track_caller]
fn survives(rounds: MoeRounds) {
    let (title, ranks) = (rounds.title(), rounds.ranks());
    let problem: Arc<dyn Problem> = Arc::new(rounds);
    let whole = SimSession::new(Arc::clone(&problem)).unwrap();
    let stores = whole.run(&Options::default()).unwrap_or_else(|e| panic!("{title}: {e}")).report.stores;
    for rank in 0..ranks {
        let own = stores[rank as usize];
        for after in (0..=own).step_by((own / 7).max(1) as usize) {
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
