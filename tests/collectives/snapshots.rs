//! What is emitted for a small configuration of each family: a change shows up here, line by line.

use peerwarp::build::emit;
use peerwarp::codegen::family::Target;
use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::prelude::*;

use crate::support::config;

fn emitted<F: Family>(name: &str, settings: &str) {
    emitted_for::<F>(name, settings, &["cuda:sm_90a", "hip:gfx942"]);
}

fn emitted_for<F: Family>(name: &str, settings: &str, targets: &[&str]) {
    let variant = config::<F>(settings).into_variant();
    for target in targets {
        let target: Target = target.parse().unwrap();
        let roles = emit::roles(&*variant, target).unwrap();
        insta::assert_snapshot!(format!("{name}.{}", target.backend()), roles);
    }
}

#[test]
fn cuda_and_hip() {
    // Two full tiles and a rest that is no whole packet.
    let key = "elements=2051 ranks=3 dtype=bf16";
    emitted::<AllReduce>("all_reduce_one_shot", key);
    emitted::<AllReduce>(
        "all_reduce_two_shot",
        &format!("{key} algorithm=two-shot chunk=256 warps=1 blocks=2"),
    );
    emitted::<AllReduce>("all_reduce_flags", &format!("{key} protocol=flags"));
    emitted::<AllReduce>("all_reduce_pull", &format!("{key} algorithm=pull protocol=flags"));
    emitted::<AllReduce>(
        "all_reduce_pull_two_shot",
        &format!("{key} algorithm=pull-two-shot protocol=flags chunk=256 warps=1 blocks=2"),
    );
    emitted_for::<AllReduce>(
        "all_reduce_multimem",
        &format!("{key} algorithm=multimem protocol=flags chunk=256 warps=1 blocks=2"),
        &["cuda:sm_90a"],
    );
    emitted::<RegisteredAllReduce>("registered_one_shot", &format!("{key} shots=one"));
    emitted::<RegisteredAllReduce>(
        "registered_two_shots",
        &format!("{key} shots=two chunk=256 warps=1 blocks=2"),
    );
    emitted::<AllGather>("all_gather_pull", &format!("{key} algorithm=pull protocol=flags"));
    emitted::<AllReduce>("all_reduce_norm", "elements=512 ranks=3 dtype=bf16 hook=rms-norm hidden=256");
    emitted::<ReduceScatter>("reduce_scatter", key);
    emitted::<AllGather>("all_gather", key);
    emitted::<AllToAll>("all_to_all", key);
    emitted::<RaggedAllToAll>("ragged_all_to_all", "capacity=2051 ranks=3 dtype=bf16");
    emitted::<Broadcast>("broadcast", key);
}

#[test]
fn names_are_stable_and_parse_back() {
    let config = config::<AllReduce>("elements=10007 ranks=5 dtype=bf16");
    let name = config.variant_name();
    assert_eq!(name, "all_reduce_n10007_r5_bf16_sum_noi_none_h0__oneshot_packets_w4_c1024_s0_b16");
    assert_eq!(AllReduce::parse_variant(&name).unwrap(), config);
}
