//! Experts that a table places, and ids of 64 bits, as emitted text.

use peerwarp::families::moe::kernels::{Hook, IdType, Layout, RoundTrip};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};

use crate::problem::{run, run_without};

const SHAPE: MoeShape =
    MoeShape { hidden: 72, experts: 8, topk: 3, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };

/// Rounds with other numbers of tokens in each, whose tables differ too.
fn problem(shape: MoeShape) -> MoeProblem {
    let routings = [(1, [5, 2, 3]), (2, [1, 5, 0]), (3, [4, 4, 5])];
    let routings = routings.map(|(seed, tokens)| Routing::uniform(&shape, &tokens, seed));
    MoeProblem::with_rounds(shape, routings.into(), 5).unwrap_or_else(|e| panic!("{e}"))
}

fn rounds(key: MoeKey) -> MoeRounds {
    let tuning = key.defaults().unwrap_or_else(|e| panic!("{e}")).small();
    MoeRounds::new(&problem(key.shape), &tuning, 3).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn dispatch_and_combine() {
    for (layout, expert_slots, replicas, ids) in [
        (Layout::RankMajor, 3, 1, IdType::I32),
        (Layout::RankMajor, 5, 4, IdType::I64),
        (Layout::ExpertMajor, 2, 2, IdType::I64),
        (Layout::ExpertMajor8, 4, 3, IdType::I32),
        (Layout::ExpertMajor, 0, 1, IdType::I64),
    ] {
        let expert_load = replicas != 2;
        let placed = MoeKey { expert_slots, replicas, expert_load, ids, ..MoeKey::new(SHAPE) };
        let weighted = !layout.by_expert();
        run(&rounds(MoeKey { layout, hook: Hook::Expert, weighted, missing: true, ..placed }));
    }
}

#[test]
fn halves_without_a_rank() {
    let placed = MoeKey { expert_slots: 4, replicas: 2, missing: true, split: true, ..MoeKey::new(SHAPE) };
    run_without(&rounds(MoeKey { layout: Layout::ExpertMajor, hook: Hook::Expert, ..placed }), 2);
}

#[test]
fn round_trips_in_one_launch() {
    let shape = MoeShape { hidden: 200, ..SHAPE };
    for (expert_slots, replicas, ids) in [(3, 1, IdType::I64), (4, 3, IdType::I32)] {
        let config = RoundTrip::defaults(&shape).unwrap_or_else(|e| panic!("{e}"));
        let config =
            RoundTrip { expert_slots, replicas, ids, expert_load: true, missing: true, ..config }.small();
        let rounds = MoeRounds::in_one_launch(&problem(shape), &config, 3);
        run(&rounds.unwrap_or_else(|e| panic!("{e}")));
    }
}
