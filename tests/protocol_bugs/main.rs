//! Protocol bugs, planted one at a time in the shipped kernels: the checker must find each and name its kind, the role
//! and the line. The kernels as they are must be clean and right under every schedule that is tried.

mod bugs;
mod plant;

use std::sync::Arc;

use peerwarp::codegen::ir::Planted;
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::SimSession;
use rayon::prelude::*;

use bugs::{
    bugs_by_token, bugs_in_bulk, bugs_in_one_launch, bugs_with_counts, bugs_with_flags, bugs_with_packets,
};
use plant::Bug;

/// Three ranks with up to three tokens; rank 1 has none in the first round and some in the others; there are masked,
/// repeated and own experts.
fn problem() -> MoeProblem {
    let shape = MoeShape { hidden: 16, experts: 6, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };
    let first = vec![vec![0, 2, 4, 5, 3, 3], vec![], vec![1, 2, 0, 5]];
    let second = vec![vec![0, 1, -1, 2], vec![3, 0, 1, 2, 2, 9], vec![4, 5]];
    let rounds = [first, second].map(|ids| Routing::with_weights(&shape, ids, 1));
    MoeProblem::with_rounds(shape, rounds.into(), 1).unwrap()
}

/// Three ranks whose few tokens have so many entries that their senders count them, where rows come as packets.
fn problem_of_many() -> MoeProblem {
    let shape = MoeShape { hidden: 16, experts: 36, topk: 32, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };
    MoeProblem::uniform(shape, &[5, 0, 3], 3).unwrap()
}

/// As packets, by expert.
fn tuning_of_many(problem: &MoeProblem) -> MoeTuning {
    let tuning = MoeTuning::defaults_with(&problem.shape, Hook::None, Layout::ExpertMajor).unwrap().small();
    let mut tuning = tuning.with_protocol(Protocol::Packets);
    tuning.plan.dispatch.chunk = 8;
    assert!(!tuning.dispatch().receivers_count());
    tuning
}

/// A record for each token, and two blocks of two groups for each role.
fn tuning(problem: &MoeProblem, protocol: Protocol) -> MoeTuning {
    let mut tuning =
        MoeTuning::defaults_with(&problem.shape, Hook::None, Layout::ExpertMajor).unwrap().small();
    tuning.plan.dispatch.chunk = 1;
    tuning.with_protocol(protocol)
}

/// The same with rows by token, and so many groups that each sends parts of rows to one rank, where they are packets.
fn by_token(problem: &MoeProblem, protocol: Protocol) -> MoeTuning {
    let mut tuning = tuning(problem, protocol).with_layout(Layout::RankMajor);
    tuning.plan.dispatch.send_blocks = 4;
    tuning
}

fn in_bulk(mut tuning: MoeTuning) -> MoeTuning {
    tuning.plan.combine.batch = 2;
    tuning.with_protocol(Protocol::Bulk)
}

fn fused(problem: &MoeProblem) -> RoundTrip {
    RoundTrip::defaults(&problem.shape).unwrap().small()
}

/// A problem with a bug in it.
fn planted(bug: &Bug, problem: &MoeProblem) -> SimSession {
    let rounds = match bug.kernel {
        "round_trip" => MoeRounds::in_one_launch(problem, &fused(problem), 3),
        _ if problem.shape.topk > 2 => MoeRounds::new(problem, &tuning_of_many(problem), 3),
        _ => {
            let mut tuning = match bug.layout.by_expert() {
                true => tuning(problem, bug.protocol),
                false => by_token(problem, bug.protocol),
            };
            if bug.protocol == Protocol::Bulk {
                tuning = in_bulk(tuning);
            }
            MoeRounds::new(problem, &tuning, 3)
        }
    };
    SimSession::planted(Arc::new(rounds.unwrap()), &mut |kernel: &mut Planted| bug.plant(kernel)).unwrap()
}

#[test]
fn every_planted_bug_is_found_and_named() {
    let (few, many) = (problem(), problem_of_many());
    let mut missed = vec![];
    let all = [bugs_with_flags(), bugs_with_packets(), bugs_by_token(), bugs_in_bulk(), bugs_in_one_launch()];
    let all = all.into_iter().flatten().map(|bug| (bug, &few));
    for (bug, problem) in all.chain(bugs_with_counts().into_iter().map(|bug| (bug, &many))) {
        let sim = planted(&bug, problem);
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            let options = bug.options().with_strategy(strategy);
            let runs = (0..16).map(|seed| sim.run(&options.with_seed(seed)).err());
            let found: Vec<_> = runs.flatten().collect();
            if !found.iter().any(|findings| bug.is_named_by(findings)) {
                let said = found.first().map_or("nothing".into(), ToString::to_string);
                missed.push(format!(
                    "{}, {strategy:?}, not {} at line {}: {said}",
                    bug.name,
                    bug.kind,
                    bug.line()
                ));
            }
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n\n"));
}

#[test]
fn the_kernels_as_they_are_are_clean_over_thousands_of_schedules() {
    let problem = problem();
    let plain = tuning(&problem, Protocol::Flags).with_dedup(false).with_split(true);
    let [flags, packets] = [Protocol::Flags, Protocol::Packets].map(|p| tuning(&problem, p));
    let [flags_by_token, packets_by_token] =
        [Protocol::Flags, Protocol::Packets].map(|protocol| by_token(&problem, protocol));
    let mut batches = flags.clone();
    batches.plan.combine.batch = 2;
    let bulk = in_bulk(flags_by_token.clone());
    let apart = [flags, packets, plain, flags_by_token, packets_by_token, batches, bulk];
    let apart = apart.map(|tuning| MoeRounds::new(&problem, &tuning, 3).unwrap());
    let in_one = MoeRounds::in_one_launch(&problem, &fused(&problem), 3).unwrap();
    let many = problem_of_many();
    let many = MoeRounds::new(&many, &tuning_of_many(&many), 3).unwrap();
    for (rounds, seeds) in
        apart.into_iter().chain([in_one]).map(|rounds| (rounds, 1000u64)).chain([(many, 100)])
    {
        let sim = SimSession::new(Arc::new(rounds)).unwrap();
        (0..seeds).into_par_iter().for_each(|seed| {
            let strategy = if seed % 2 == 0 { Strategy::Random } else { Strategy::Adversarial };
            let ran = sim.run(&Options::default().with_seed(seed).with_strategy(strategy));
            let ran = ran.unwrap_or_else(|findings| panic!("seed {seed}, {strategy:?}: {findings}"));
            assert!(ran.verdict.ok(), "seed {seed}, {strategy:?}: {:?}", ran.verdict);
        });
    }
}
