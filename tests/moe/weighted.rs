//! Rank-major rows that combine weights.

use peerwarp::codegen::family::Family;
use peerwarp::families::moe::kernels::{Combine, Hook, Layout, Protocol};
use peerwarp::families::moe::run::{MoeTuning, Round};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing};

use crate::support::{run, shape};

fn weighted(shape: &MoeShape) -> MoeTuning {
    MoeTuning::defaults(shape).unwrap().small().with_weighted(true)
}

#[test]
fn combine_weights_rank_major_rows_as_the_reference_does() {
    // Two ranks sum their own rows where they lie; three and five receive all of them.
    for (ranks, counts) in [(2, &[5, 3][..]), (3, &[5, 0, 3]), (5, &[1, 5, 0, 2, 4])] {
        let shape = shape(272, 7, 3, 5, ranks);
        let problem = MoeProblem::uniform(shape, counts, 3).unwrap();
        for protocol in [Protocol::Flags, Protocol::Packets] {
            run(&problem, &weighted(&shape).with_protocol(protocol), 2);
        }
        run(&problem, &weighted(&shape).with_split(true).with_hook(Hook::Expert), 2);
    }
}

#[test]
fn weights_are_applied_once_on_either_side() {
    let shape = shape(64, 4, 2, 2, 2);
    // Token 0 has both experts on rank 0, token 1 one on each; ids 4 and -1 are no experts.
    let ids = vec![vec![0, 1, 1, 2], vec![4, 3, -1, -1]];
    let weights = vec![vec![0.5, 0.25, 0.25, 1.0], vec![9.0, 0.25, 9.0, 9.0]];
    let problem = MoeProblem::new(shape, Routing { ids, weights }, 1).unwrap();
    let out = |tuning: &MoeTuning| Round::new(&problem, tuning.semantics(), 0).out;
    let plain = MoeTuning::defaults(&shape).unwrap().small();
    // Weights of powers of two lose nothing, in whichever order rows are rounded, where a token has one row a rank.
    run(&problem, &weighted(&shape), 1);
    let (rank_major, by_expert) =
        (out(&weighted(&shape)), out(&plain.clone().with_layout(Layout::ExpertMajor)));
    assert_eq!(rank_major[1], by_expert[1]);
    // A hook makes the experts' rows without weights: combine alone applies them.
    let hooked = plain.with_hook(Hook::Expert);
    assert_eq!(out(&hooked.clone().with_weighted(true)), rank_major);
    assert_ne!(out(&hooked), rank_major);
}

#[test]
fn a_variant_that_weights_has_a_name_of_its_own_and_the_other_one_keeps_its() {
    let shape = shape(64, 4, 2, 2, 2);
    let (plain, weighted) = (MoeTuning::defaults(&shape).unwrap().small(), weighted(&shape));
    let name = weighted.combine().variant_name();
    assert_eq!(name.replace("_weighted", ""), plain.combine().variant_name());
    assert_eq!(Combine::parse_variant(&name).unwrap(), weighted.combine());
    let refused = weighted.with_layout(Layout::ExpertMajor).check(&shape).unwrap_err().to_string();
    assert!(refused.contains("`weighted` = true") && refused.contains("in any case"), "{refused}");
}

#[test]
fn weights_that_are_no_numbers_are_refused() {
    let shape = shape(64, 4, 2, 2, 2);
    let with = |ids: Vec<i32>, weights: Vec<f32>| {
        let routing = Routing { ids: vec![ids, vec![]], weights: vec![weights, vec![]] };
        MoeProblem::new(shape, routing, 1).map(|_| ()).map_err(|e| e.to_string())
    };
    let refused = with(vec![0, 1, 2, 3], vec![0.5, 0.5, 0.5, f32::NAN]).unwrap_err();
    assert_eq!(refused, "weights = NaN: must be a number; it is not for entry 1 of token 1 on rank 0");
    // A masked entry has no weight.
    with(vec![0, 1, 2, -1], vec![0.5, 0.5, 0.5, f32::NAN]).unwrap();
}
