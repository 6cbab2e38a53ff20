//! What is emitted for a small configuration of each family: a change shows up here, line by line. Algorithms with steps that
//! others show, and text for HIP, stand here by their digest.

#[path = "../../codegen/tests/printed/difference.rs"]
mod difference;
#[path = "../../codegen/tests/printed/digest.rs"]
mod digest;

use difference::difference;
use digest::{ENTRY, digest, excerpt};
use peerwarp::build::emit;
use peerwarp::codegen::print::{EmitOptions, FarEngine, Source};
use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::prelude::*;

use crate::support::config;

const OPTIONS: EmitOptions = EmitOptions { timeline: None, lines: false, far: FarEngine::Ring };

fn emitted<F: Family>(settings: &str, target: &str) -> Source {
    let variant = config::<F>(settings).into_variant();
    emit::source_with("peerwarp", &*variant, target.parse().unwrap(), &OPTIONS).unwrap()
}

/// A configuration for both targets: a digest of each, and the roles for CUDA.
fn pinned<F: Family>(digests: &mut String, name: &str, settings: &str) -> [Source; 2] {
    let sources = ["cuda:sm_90a", "hip:gfx942"].map(|target| emitted::<F>(settings, target));
    let [cuda, hip] = [0, 1].map(|at| digest(&sources[at]));
    *digests += &format!("{name} cuda:sm_90a {cuda} hip:gfx942 {hip}\n");
    sources
}

fn shown<F: Family>(digests: &mut String, name: &str, settings: &str) -> [Source; 2] {
    let sources = pinned::<F>(digests, name, settings);
    let roles = sources[0].roles();
    // All but one have the entry and the credits of `all_reduce_one_shot`.
    let parts = roles.split("\n\n// ").filter_map(|part| part.split_once(": blocks")).map(|(name, _)| name);
    let ready: Vec<&str> = parts.filter(|name| name.ends_with("_ready")).collect();
    let shown = match name {
        "all_reduce_one_shot" => roles.to_owned(),
        _ => excerpt(roles, &[&ready[..], &[ENTRY]].concat()),
    };
    insta::assert_snapshot!(format!("{name}.cuda"), shown);
    sources
}

#[test]
fn cuda_and_hip() {
    // Two full tiles and a rest that is no whole packet.
    let key = "elements=2051 ranks=3 dtype=bf16";
    let small = "chunk=256 warps=1 blocks=2";
    let all = &mut String::new();
    let [cuda, hip] = shown::<AllReduce>(all, "all_reduce_one_shot", key);
    insta::assert_snapshot!("all_reduce_one_shot.hip", difference(cuda.roles(), hip.roles()));
    shown::<AllReduce>(all, "all_reduce_two_shot", &format!("{key} algorithm=two-shot {small}"));
    pinned::<AllReduce>(all, "all_reduce_flags", &format!("{key} protocol=flags"));
    pinned::<AllReduce>(all, "all_reduce_pull", &format!("{key} algorithm=pull protocol=flags"));
    let pull = format!("{key} algorithm=pull-two-shot protocol=flags {small}");
    pinned::<AllReduce>(all, "all_reduce_pull_two_shot", &pull);
    let multimem = format!("{key} algorithm=multimem protocol=flags {small}");
    insta::assert_snapshot!(
        "all_reduce_multimem.cuda",
        excerpt(emitted::<AllReduce>(&multimem, "cuda:sm_90a").roles(), &[ENTRY])
    );
    pinned::<RegisteredAllReduce>(all, "registered_one_shot", &format!("{key} shots=one"));
    shown::<RegisteredAllReduce>(all, "registered_two_shots", &format!("{key} shots=two {small}"));
    pinned::<AllGather>(all, "all_gather_pull", &format!("{key} algorithm=pull protocol=flags"));
    shown::<AllReduce>(all, "all_reduce_norm", "elements=512 ranks=3 dtype=bf16 hook=rms-norm hidden=256");
    let norm = "elements=512 ranks=3 dtype=bf16 hook=rms-norm hidden=256";
    for (name, form) in [
        ("fp8_tensor", "quantise=fp8-tensor weights=f32 plus_one=true"),
        ("fp8_token", "quantise=fp8-token normalised=true"),
        ("nvfp4", "quantise=nvfp4 scale_layout=128x4"),
    ] {
        pinned::<AllReduce>(all, &format!("all_reduce_norm_{name}"), &format!("{norm} {form}"));
    }
    shown::<ReduceScatter>(all, "reduce_scatter", key);
    shown::<AllGather>(all, "all_gather", key);
    pinned::<AllToAll>(all, "all_to_all", key);
    shown::<RaggedAllToAll>(all, "ragged_all_to_all", "capacity=2051 ranks=3 dtype=bf16");
    shown::<Broadcast>(all, "broadcast", key);
    let key = "elements=6144 ranks=3 dtype=bf16 row=8 length";
    pinned::<AllReduce>(all, "all_reduce_of_any_length", &format!("{key}=device"));
    pinned::<ReduceScatter>(all, "reduce_scatter_of_each", &format!("{key}=each"));
    pinned::<AllGather>(all, "all_gather_of_each", &format!("{key}=each"));
    pinned::<AllToAll>(all, "all_to_all_of_any_length", &format!("{key}=host"));
    pinned::<Broadcast>(all, "broadcast_of_any_length", &format!("{key}=host"));
    insta::assert_snapshot!("digests", all);
}

#[test]
fn names_are_stable_and_parse_back() {
    let config = config::<AllReduce>("elements=10007 ranks=5 dtype=bf16");
    let name = config.variant_name();
    assert_eq!(name, "all_reduce_n10007_r5_bf16_sum_noi_none_h0__oneshot_packets_w4_c1024_s0_b16");
    assert_eq!(AllReduce::parse_variant(&name).unwrap(), config);
}
