//! Experts that a table places in slots of ranks: tables change from round to round, and as soon as dispatch is over.

use std::sync::Arc;

use peerwarp::codegen::ir::Planted;
use peerwarp::codegen::ir::mutate::{Access, Mutation, Operand, Site, Slot, mutate};
use peerwarp::codegen::sim::Options;
use peerwarp::families::moe::kernels::{Bases, Count, Hook, IdType, Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning, Round};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing};
use peerwarp::harness::session::SimSession;

use crate::support::{in_one_launch, modes, run, run_sim, shape, small};

/// Rounds of ranks with different numbers of tokens.
fn problem(shape: MoeShape) -> MoeProblem {
    let tokens = |round| (0..shape.ranks).map(move |rank| (rank * 5 + round * 3) % (shape.tokens + 1));
    let of = |round: u32| Routing::uniform(&shape, &tokens(round).collect::<Vec<_>>(), round.into());
    MoeProblem::with_rounds(shape, [0, 1, 2].map(of).into(), 7).unwrap()
}

fn placed(tuning: &MoeTuning, (slots, replicas): (u32, u32)) -> MoeTuning {
    tuning.clone().with_placement(slots, replicas).unwrap()
}

#[test]
fn entries_go_where_the_table_says_in_all_modes() {
    // Fewer slots than experts, as many, and more; ranks whose own rows stay in place.
    for (shape, slots) in
        [(shape(72, 10, 3, 5, 3), (3, 1)), (shape(72, 10, 3, 5, 2), (5, 1)), (shape(72, 7, 2, 6, 4), (4, 3))]
    {
        for tuning in modes(&small(&shape)) {
            run(&problem(shape), &placed(&tuning, slots), 3);
        }
    }
}

#[test]
fn layouts_hooks_and_weights() {
    let shape = shape(264, 9, 3, 5, 3);
    for layout in [Layout::ExpertMajor8, Layout::ExpertStrided, Layout::RankMajor] {
        let tuning = placed(&small(&shape).with_layout(layout), (4, 2)).with_hook(Hook::Expert);
        run(&problem(shape), &tuning.with_weighted(!layout.by_expert()), 3);
    }
    let few = placed(&small(&shape), (4, 2)).with_max_rows(6);
    run(&problem(shape), &few, 3);
}

#[test]
fn senders_that_count_and_bases_in_memory() {
    let shape = shape(64, 40, 8, 20, 3);
    for (count, bases) in [(Count::Receiver, Bases::Shared), (Count::Sender, Bases::Memory)] {
        for layout in [Layout::ExpertMajor, Layout::RankMajor] {
            let mut tuning = placed(&small(&shape).with_layout(layout), (15, 4));
            tuning.plan.dispatch.chunk = 2;
            (tuning.plan.dispatch.count, tuning.plan.dispatch.bases) = (Some(count), Some(bases));
            run(&problem(shape), &tuning.with_protocol(Protocol::Packets), 3);
        }
    }
}

#[test]
fn entries_without_a_slot_are_missing() {
    let shape = shape(72, 10, 3, 5, 3);
    for tuning in modes(&small(&shape)) {
        let tuning = placed(&tuning, (3, 2)).with_missing(true);
        run(&problem(shape), &tuning, 3);
        // There are some.
        let round = Round::new(&problem(shape), tuning.semantics(), 0);
        assert!(round.routing.ids.concat().contains(&-2), "{:?}", round.routing.ids);
    }
}

#[test]
fn round_trips_in_one_launch() {
    for shape in [shape(200, 8, 2, 5, 4), shape(200, 7, 3, 6, 2)] {
        for (slots, replicas) in [(2, 1), (4, 3)] {
            let config = RoundTrip {
                expert_slots: slots,
                replicas,
                missing: true,
                expert_load: true,
                ids: [IdType::I32, IdType::I64][replicas as usize % 2],
                ..RoundTrip::defaults(&shape).unwrap()
            };
            run_sim(&in_one_launch(&problem(shape), &config.small(), 3), 3);
        }
    }
}

#[test]
fn ids_of_64_bits_are_read_as_they_are() {
    // -1, the first number of no expert, and what is an expert in 32 bits alone.
    let shape = shape(72, 6, 3, 3, 2);
    let ids = vec![vec![0, -1, 5, 6, 2, 2, i32::MIN, i32::MAX, 1], vec![4, 3, 0]];
    let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 5), 5).unwrap();
    for tuning in modes(&small(&shape)) {
        let tuning = tuning.with_ids(IdType::I64);
        run(&problem, &tuning, 3);
        run(&problem, &placed(&tuning, (4, 2)), 3);
    }
}

#[test]
fn entries_of_experts_are_counted_wherever_these_are() {
    let shape = shape(72, 10, 3, 5, 3);
    for tuning in modes(&small(&shape)) {
        let tuning = tuning.with_expert_load(true);
        run(&problem(shape), &tuning, 3);
        run(&problem(shape), &placed(&tuning, (3, 2)), 3);
    }
    let mut tuning = small(&shape).with_expert_load(true).with_protocol(Protocol::Flags);
    (tuning.plan.dispatch.count, tuning.plan.dispatch.bases) = (Some(Count::Sender), Some(Bases::Memory));
    run(&problem(shape), &tuning, 3);
}

/// How many of some schedules find what is planted wherever a role accesses a buffer.
fn found(rounds: MoeRounds, mutation: &Mutation) -> usize {
    let mut planted = 0;
    let sim = SimSession::planted(Arc::new(rounds), &mut |kernel: &mut Planted| {
        if let Ok(bad) = mutate(kernel, mutation) {
            (*kernel, planted) = (bad, planted + 1);
        }
    });
    assert_eq!(planted, 1, "{mutation:?}");
    let sim = sim.unwrap();
    let is_found = |seed| !sim.run(&Options::default().with_seed(seed)).is_ok_and(|ran| ran.verdict.ok());
    (0..8).filter(|&seed| is_found(seed)).count()
}

/// A role reads the first element of a buffer instead.
fn first_of(role: &str, buffer: &str) -> Mutation {
    Mutation::Replace {
        site: Site::new(role, Access::Load, buffer),
        slot: Slot::Index,
        with: Operand::Number(0),
    }
}

#[test]
fn a_role_that_reads_the_table_otherwise_is_found() {
    let shape = shape(72, 10, 3, 5, 3);
    for protocol in [Protocol::Flags, Protocol::Packets] {
        let tuning = placed(&small(&shape), (5, 3)).with_protocol(protocol);
        // As if the table changed before dispatch has sent: rows go to other slots than records say, or to other replicas; and a
        // combine that sums what another route brings.
        for (role, buffer) in
            [("send", "place"), ("route", "place"), ("send", "replicas"), ("recv", "routed")]
        {
            let rounds = MoeRounds::new(&problem(shape), &tuning, 3).unwrap();
            assert_eq!(found(rounds, &first_of(role, buffer)), 8, "{role} reads {buffer}, {protocol:?}");
        }
    }
    let shape = MoeShape { hidden: 200, ..shape };
    let config = RoundTrip { expert_slots: 5, replicas: 3, ..RoundTrip::defaults(&shape).unwrap() }.small();
    for (role, buffer) in [("recv", "place"), ("recv", "replicas"), ("route", "replicas")] {
        let rounds = MoeRounds::in_one_launch(&problem(shape), &config, 3).unwrap();
        assert_eq!(found(rounds, &first_of(role, buffer)), 8, "{role} reads {buffer}");
    }
}
