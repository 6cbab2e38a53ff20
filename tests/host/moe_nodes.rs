//! MoE over several nodes as emitted text.

use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};

use crate::problem::run;

/// Three rounds, in which ranks have this many tokens, and then others.
fn rounds(shape: MoeShape, nodes: u32, (layout, split): (Layout, bool), tokens: &[u32]) -> MoeRounds {
    let (hook, weighted) = (Hook::Expert, !layout.by_expert());
    let key = MoeKey { nodes, layout, hook, weighted, split, ..MoeKey::new(shape) };
    let tuning = key.defaults().unwrap_or_else(|e| panic!("{e}")).small();
    let turned: Vec<u32> = tokens.iter().rev().copied().collect();
    let of = |(seed, tokens)| Routing::uniform(&shape, tokens, seed);
    let routings = [(1, tokens), (2, &turned[..]), (3, tokens)].map(of);
    let problem = MoeProblem::with_rounds(shape, routings.into(), 5).unwrap_or_else(|e| panic!("{e}"));
    MoeRounds::new(&problem, &tuning, 3).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn rows_by_expert_over_two_nodes() {
    let shape = MoeShape { hidden: 72, experts: 8, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    run(&rounds(shape, 2, (Layout::ExpertMajor, false), &[5, 0, 3, 1]));
}

#[test]
fn rows_by_token_with_scales_over_three_nodes_in_halves() {
    let shape = MoeShape { hidden: 136, experts: 6, topk: 2, tokens: 6, ranks: 3, dtype: RowDtype::Fp8 };
    run(&rounds(shape, 3, (Layout::RankMajor, true), &[6, 2, 0]));
}
