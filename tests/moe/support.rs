//! What the tests of MoE kernels share.

use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::moe_run::{Errors, MoeSim, MoeTuning};

/// A shape in bf16.
pub fn shape(hidden: u32, experts: u32, topk: u32, tokens: u32, ranks: u32) -> MoeShape {
    MoeShape { hidden, experts, topk, tokens, ranks, dtype: RowDtype::Bf16 }
}

/// Small kernels for a shape.
pub fn small(shape: &MoeShape) -> MoeTuning {
    MoeTuning::defaults(shape).unwrap().small()
}

/// The four ways to run: deduplicated or plain, one launch an operation or two.
pub fn modes(tuning: &MoeTuning) -> [MoeTuning; 4] {
    [(true, false), (true, true), (false, false), (false, true)]
        .map(|(dedup, split)| tuning.clone().with_dedup(dedup).with_split(split))
}

/// Runs rounds of a problem under a schedule of each kind; all must be clean and right in every bit.
pub fn run(problem: &MoeProblem, tuning: &MoeTuning, rounds: u32) -> Errors {
    run_sim(&MoeSim::new(problem, tuning, rounds).unwrap_or_else(|e| panic!("{e}")), problem.seed)
}

/// As [`run`].
pub fn run_sim(sim: &MoeSim, seed: u64) -> Errors {
    let mut errors = Errors::default();
    for strategy in [Strategy::Random, Strategy::Adversarial] {
        let run = sim.run(&Options::default().with_seed(seed).with_strategy(strategy));
        if let Some(findings) = &run.findings {
            panic!("{:?}, {strategy:?}: {findings}", sim.variants());
        }
        errors = run.errors.unwrap_or_default();
        assert!(run.ok, "{:?}, {strategy:?}: {errors:?}", sim.variants());
    }
    errors
}

/// Runs three rounds with the given ids in all four modes.
pub fn run_ids(shape: &MoeShape, ids: Vec<Vec<i32>>) {
    let problem = MoeProblem::new(*shape, Routing::with_weights(shape, ids, 5), 5).unwrap();
    for tuning in modes(&small(shape)) {
        run(&problem, &tuning, 3);
    }
}
