//! What the tests of MoE kernels share.

use std::sync::Arc;

use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::verdict::Verdict;

/// A shape in bf16.
pub fn shape(hidden: u32, experts: u32, topk: u32, tokens: u32, ranks: u32) -> MoeShape {
    MoeShape { hidden, experts, topk, tokens, ranks, dtype: RowDtype::Bf16 }
}

/// Small kernels for a shape.
pub fn small(shape: &MoeShape) -> MoeTuning {
    MoeTuning::defaults_with(shape, Hook::None, Layout::ExpertMajor).unwrap().small()
}

/// The ways to run: deduplicated or plain, one launch an operation or two, rows with flags or, where a row is a whole number
/// of them, as packets, and rows by expert or by token.
pub fn modes(tuning: &MoeTuning) -> Vec<MoeTuning> {
    use Layout::{ExpertMajor, RankMajor};
    use Protocol::{Flags, Packets};
    let modes = [
        (true, false, Flags, ExpertMajor),
        (true, true, Flags, ExpertMajor),
        (false, false, Flags, ExpertMajor),
        (false, true, Flags, ExpertMajor),
        (true, false, Packets, ExpertMajor),
        (true, true, Packets, ExpertMajor),
        (false, false, Packets, ExpertMajor),
        (true, false, Flags, RankMajor),
        (true, true, Packets, RankMajor),
    ];
    let tuned = |(dedup, split, protocol, layout)| {
        let tuning = tuning.clone().with_dedup(dedup).with_split(split);
        tuning.with_protocol(protocol).with_layout(layout)
    };
    modes.map(tuned).into_iter().filter(|t| t.check(&t.key.shape).is_ok()).collect()
}

/// Rounds of dispatch, expert and combine on simulated ranks.
pub fn apart(problem: &MoeProblem, tuning: &MoeTuning, rounds: u32) -> SimSession {
    let rounds = MoeRounds::new(problem, tuning, rounds).unwrap_or_else(|e| panic!("{e}"));
    SimSession::new(Arc::new(rounds)).unwrap_or_else(|e| panic!("{e}"))
}

/// Rounds in one launch each.
pub fn in_one_launch(problem: &MoeProblem, config: &RoundTrip, rounds: u32) -> SimSession {
    let rounds = MoeRounds::in_one_launch(problem, config, rounds).unwrap_or_else(|e| panic!("{e}"));
    SimSession::new(Arc::new(rounds)).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs rounds of a problem under a schedule of each kind; all must be clean and right in every bit.
pub fn run(problem: &MoeProblem, tuning: &MoeTuning, rounds: u32) -> Verdict {
    run_sim(&apart(problem, tuning, rounds), problem.seed)
}

/// As [`run`].
pub fn run_sim(sim: &SimSession, seed: u64) -> Verdict {
    let mut verdict = Verdict::default();
    for strategy in [Strategy::Random, Strategy::Adversarial] {
        let variants = sim.problem().variants();
        match sim.run(&Options::default().with_seed(seed).with_strategy(strategy)) {
            Err(findings) => panic!("{variants:?}, {strategy:?}: {findings}"),
            Ok(ran) => verdict = ran.verdict,
        }
        assert!(verdict.ok(), "{variants:?}, {strategy:?}: {verdict:?}");
    }
    verdict
}

/// As [`run`], each round in one launch, where a row is a whole number of packets.
pub fn run_fused(problem: &MoeProblem, rounds: u32) {
    let config = RoundTrip::defaults(&problem.shape).map(RoundTrip::small);
    if let Ok(config) = config.inspect_err(|e| assert!(e.to_string().contains("packets of 16 bytes"), "{e}"))
    {
        run_sim(&in_one_launch(problem, &config, rounds), problem.seed);
    }
}

/// Runs three rounds with the given ids in all modes, and in one launch.
pub fn run_ids(shape: &MoeShape, ids: Vec<Vec<i32>>) {
    let problem = MoeProblem::new(*shape, Routing::with_weights(shape, ids, 5), 5).unwrap();
    for tuning in modes(&small(shape)) {
        run(&problem, &tuning, 3);
    }
    run_fused(&problem, 3);
}
