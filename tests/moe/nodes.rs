//! Rounds over several nodes: tokens along rails, the launches of one node on each, and sums on their way home.

use peerwarp::codegen::family::Operation;
use peerwarp::families::moe::kernels::{Hook, Layout, Quantise};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::workload::Problem;

use crate::support::{run, shape};

/// What is asked for on so many nodes.
fn on(nodes: u32, shape: MoeShape) -> MoeKey {
    MoeKey { nodes, ..MoeKey::new(shape) }
}

fn small(key: &MoeKey) -> MoeTuning {
    key.defaults().unwrap_or_else(|e| panic!("{e}")).small()
}

/// Three rounds, whose routings have these tokens and then others.
fn problem(shape: MoeShape, tokens: &[u32]) -> MoeProblem {
    let turned: Vec<u32> = tokens.iter().rev().copied().collect();
    let rounds = [(1, tokens), (2, &turned[..]), (3, tokens)];
    let rounds = rounds.map(|(seed, tokens)| Routing::uniform(&shape, tokens, seed));
    MoeProblem::with_rounds(shape, rounds.into(), 3).unwrap()
}

#[test]
fn all_layouts_are_right_on_two_and_more_nodes() {
    for (ranks, nodes) in [(4, 2), (3, 3), (8, 4)] {
        let shape = shape(72, 24, 4, 5, ranks);
        let tokens: Vec<u32> = (0..ranks).map(|rank| (5 + 3 * rank) % 6).collect();
        for layout in [Layout::RankMajor, Layout::ExpertMajor, Layout::ExpertMajor8, Layout::ExpertStrided] {
            run(&problem(shape, &tokens), &small(&MoeKey { layout, ..on(nodes, shape) }), 3);
        }
    }
}

#[test]
fn all_formats_are_right() {
    let all = RowDtype::NAMED.iter().copied().chain([RowDtype::Bytes { row: 36, scales: 8 }]);
    for dtype in all {
        let shape = MoeShape { dtype, ..shape(256, 8, 2, 3, 4) };
        run(&problem(shape, &[3, 0, 2, 1]), &small(&on(2, shape)), 3);
    }
}

#[test]
fn what_one_node_can_do_several_can() {
    let shape = MoeShape { dtype: RowDtype::Fp8, ..shape(256, 8, 3, 4, 4) };
    let key = on(2, shape);
    for key in [
        MoeKey { hook: Hook::Expert, layout: Layout::ExpertMajor, ..key },
        MoeKey { hook: Hook::Expert, weighted: true, ..key },
        MoeKey { quantise: Quantise::Bf16, ..key },
        MoeKey { layout: Layout::ExpertStrided, max_rows: 2, ..key },
        MoeKey { layout: Layout::ExpertMajor, max_rows: 5, ..key },
        MoeKey { split: true, ..key },
        MoeKey { split: true, layout: Layout::ExpertMajor, hook: Hook::Expert, ..key },
    ] {
        run(&problem(shape, &[4, 1, 0, 3]), &small(&key), 3);
    }
    let plain = small(&key).with_dedup(false);
    run(&problem(shape, &[4, 1, 0, 3]), &plain, 3);
}

#[test]
fn tokens_may_have_no_expert_or_all_on_one_node() {
    let shape = shape(64, 8, 2, 3, 4);
    // Experts 0 to 3 are the first node's. Tokens of no expert, of one node, of both, and of one expert twice.
    let ids = vec![vec![-1, 8, 0, 3], vec![4, 7, 1, 6, 5, 5], vec![], vec![2, 2]];
    let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 1), 1).unwrap();
    for layout in [Layout::RankMajor, Layout::ExpertMajor] {
        run(&problem, &small(&MoeKey { layout, ..on(2, shape) }), 3);
    }
}

/// Each token goes to another node once, however many experts it has there.
#[test]
fn a_row_goes_once_to_a_node() {
    let shape = shape(64, 8, 2, 3, 4);
    let ids = vec![vec![4, 5, 4, 6, 0, 7], vec![0, 1], vec![4, 5], vec![0, 3]];
    let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 1), 1).unwrap();
    let rounds = MoeRounds::new(&problem, &small(&on(2, shape)), 1).unwrap();
    let facts = rounds.facts();
    let (_, rows) = facts.iter().find(|(name, _)| name == "rows to other nodes").unwrap();
    assert_eq!(rows, "4, one for each token and node");
}

#[test]
fn what_does_not_go_together_is_refused_by_name() {
    let said = |key: MoeKey| key.defaults().unwrap_err().to_string();
    let of = |ranks, experts| MoeShape { ranks, ..shape(64, experts, 2, 3, 4) };
    for (key, words) in [
        (on(3, of(4, 8)), "`ranks` = 4 is not allowed: it must be a multiple of the 3 nodes"),
        (on(2, of(4, 10)), "`experts` = 10 is not allowed: it must be a multiple of the 4 ranks"),
        (
            on(2, of(256, 256)),
            "`ranks` = 256 is not allowed: it must be a multiple of the 2 nodes, which have at most 64 ranks each",
        ),
        (on(65, of(65, 65)), "nodes"),
    ] {
        assert!(said(key).contains(words), "{}", said(key));
    }
    let tuning = small(&on(2, of(4, 8)));
    let parts = tuning.components();
    assert_eq!(MoeTuning::of_components(&parts).as_ref(), Some(&tuning));
    // Without one of the launches between nodes there is no operation.
    assert_eq!(MoeTuning::of_components(&parts[..3]), None);
    let other = small(&on(2, of(8, 8))).components();
    let mixed = [&parts[..2], &other[2..]].concat();
    assert_eq!(MoeTuning::of_components(&mixed), None);
}
