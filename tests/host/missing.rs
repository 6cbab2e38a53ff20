//! Worlds that go on without ranks, as emitted text.

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};

use crate::problem::run_without;

#[track_caller]
fn run<F: Workload>(inactive: u64, settings: &str) {
    let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let inputs = Inputs { seed: 7, rounds: 3, ..Inputs::default() };
    let problem = suite::of::<F>().problem(&[config.into_variant()], &inputs);
    run_without(&*problem.unwrap_or_else(|e| panic!("{settings}: {e}")), inactive);
}

#[test]
fn collectives_without_a_rank() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256";
    run::<AllReduce>(1, &format!("{key} dtype=bf16 algorithm=one-shot senders=4 blocks=2"));
    run::<AllReduce>(2, &format!("{key} dtype=bf16 algorithm=two-shot senders=0 blocks=2 op=avg"));
    run::<AllReduce>(2, &format!("{key} dtype=f32 algorithm=two-shot senders=0 blocks=1 op=max"));
    run::<AllReduce>(4, &format!("{key} dtype=bf16 algorithm=two-shot senders=0 blocks=2 protocol=flags"));
    run::<AllReduce>(
        2,
        &format!("{key} dtype=f32 algorithm=pull-two-shot blocks=2 protocol=flags senders=0"),
    );
    run::<RegisteredAllReduce>(1, &format!("{key} dtype=fp16 shots=two blocks=2 op=min"));
    run::<AllGather>(2, &format!("{key} dtype=f32 blocks=2"));
    run::<AllGather>(1, &format!("{key} dtype=bf16 blocks=2 algorithm=pull protocol=flags"));
    run::<ReduceScatter>(4, &format!("{key} dtype=bf16 blocks=2 op=max"));
    run::<ReduceScatter>(4, &format!("{key} dtype=f32 blocks=2 op=max-nan"));
    run::<ReduceScatter>(2, &format!("{key} dtype=i32 blocks=2 op=min"));
    run::<ReduceScatter>(1, &format!("{key} dtype=fp16 blocks=2 op=avg"));
    run::<AllToAll>(1, &format!("{key} dtype=fp16 blocks=2 protocol=flags"));
    run::<Broadcast>(1, &format!("{key} dtype=f32 blocks=2 root=2"));
    run::<RaggedAllToAll>(2, "capacity=700 ranks=3 warps=2 chunk=256 dtype=f32 blocks=2");
}

#[test]
fn launches_of_any_length_without_a_rank() {
    let key = "elements=1536 ranks=3 warps=2 chunk=256 blocks=2 row=8 length";
    run::<AllReduce>(2, &format!("{key}=device dtype=bf16 algorithm=one-shot senders=0 op=avg"));
    run::<AllReduce>(4, &format!("{key}=host dtype=f32 algorithm=two-shot senders=0 protocol=flags"));
    run::<AllGather>(1, &format!("{key}=each dtype=bf16"));
    run::<ReduceScatter>(2, &format!("{key}=each dtype=f32 op=max"));
    run::<AllToAll>(1, &format!("{key}=device dtype=fp16 protocol=flags"));
    run::<Broadcast>(1, &format!("{key}=host dtype=f32 root=2"));
}

#[test]
fn two_shots_without_two_ranks_of_four() {
    let key = "elements=3000 ranks=4 warps=2 chunk=256 dtype=f32 algorithm=two-shot senders=0 blocks=1";
    run::<AllReduce>(0b0110, key);
}

#[test]
fn moe_without_a_rank() {
    let shape = MoeShape { hidden: 72, experts: 8, topk: 3, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };
    let routings = [(1, [5, 2, 3]), (2, [1, 5, 0]), (3, [4, 4, 5])];
    let routings = routings.map(|(seed, tokens)| Routing::uniform(&shape, &tokens, seed));
    let problem = MoeProblem::with_rounds(shape, routings.into(), 5).unwrap_or_else(|e| panic!("{e}"));
    for (layout, inactive) in [(Layout::RankMajor, 1), (Layout::ExpertMajor, 2), (Layout::ExpertMajor, 1)] {
        let weighted = !layout.by_expert();
        let key = MoeKey { layout, hook: Hook::Expert, weighted, missing: true, ..MoeKey::new(shape) };
        let tuning = key.defaults().unwrap_or_else(|e| panic!("{e}")).small();
        let rounds = MoeRounds::new(&problem, &tuning, 3).unwrap_or_else(|e| panic!("{e}"));
        run_without(&rounds, inactive);
    }
}
