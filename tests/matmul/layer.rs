//! Whole layers: any routing and any plan on the simulator, planted bugs, what is refused, what is emitted.

use peerwarp::codegen::sim::Strategy as Schedule;
use peerwarp::families::moe::kernels::MoeLayer;
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::plant_each;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;
use proptest::prelude::*;
use proptest::sample::select;

use super::support::{config, explore, run};
use super::{pinned, refused};

/// Few blocks, so that each has several tiles.
const FEW: &str = "warps=4 tile_rows=64 tile_columns=64 stages=2 blocks=3";

#[test]
fn layers_are_those_of_plain_rust() {
    for (i, rest) in [
        "hidden=8 inter=16 experts=1 topk=1 tokens=1 ranks=1",
        "hidden=72 inter=48 experts=10 topk=4 tokens=37 ranks=1 lag=1",
        // One rank has an expert less than the others.
        "hidden=72 inter=48 experts=5 topk=3 tokens=20 ranks=3 lag=2",
        "hidden=136 inter=80 experts=4 topk=2 tokens=90 ranks=2 bias=true activation=swiglu-clamped",
        // More ranks than experts.
        "hidden=40 inter=32 experts=3 topk=2 tokens=9 ranks=4 activation=relu bias=true",
    ]
    .iter()
    .enumerate()
    {
        explore::<MoeLayer>(&format!("{rest} dtype={} {FEW}", ["bf16", "fp16"][i % 2]), 4);
    }
    explore::<MoeLayer>("hidden=64 inter=32 experts=4 topk=2 tokens=8 ranks=2 dtype=bf16", 1);
}

/// Scales go with rows, and those between the products are made with them; a block makes as many tiles as have scales together.
#[test]
fn layers_of_fp8_are_those_of_plain_rust() {
    for rest in [
        "hidden=128 inter=128 experts=5 topk=2 tokens=20 ranks=1",
        "hidden=256 inter=256 experts=4 topk=3 tokens=40 ranks=2 bias=true activation=swiglu-clamped",
        "hidden=384 inter=128 experts=3 topk=2 tokens=30 ranks=3 activation=relu",
    ] {
        let few = if rest.ends_with("relu") { FEW.replace("columns=64", "columns=128") } else { FEW.into() };
        explore::<MoeLayer>(&format!("{few} {rest} dtype=fp8"), 2);
    }
}

/// A key and a plan.
fn settings() -> impl Strategy<Value = String> {
    let key = (1u32..=4, 1u32..=9, 1u32..=4, 1u32..=40, 1u32..=12, 1u32..=5);
    let dtype = select(vec!["bf16", "fp8"]);
    let rest = select(vec!["", "bias=true", "activation=none", "activation=swiglu-clamped bias=true"]);
    let tile = select::<(u32, u32, u32)>(vec![(64, 64, 4), (64, 128, 8), (128, 64, 4), (128, 128, 8)]);
    let plan = (2u32..=3, select(vec![1u32, 2, 8, 64]), 1u32..=2, 1u32..=5);
    (key, dtype, rest, tile, plan).prop_map(|(key, dtype, rest, (tile_rows, columns, warps), plan)| {
        let (ranks, experts, topk, tokens, hidden, inter) = key;
        let (stages, lag, moving, blocks) = plan;
        let [hidden, inter] =
            if dtype == "fp8" { [128 * hidden.div_ceil(4), 128] } else { [8 * hidden, 16 * inter] };
        let shape = format!("hidden={hidden} inter={inter} ranks={ranks} tokens={tokens}");
        let key = format!("{shape} experts={experts} topk={} dtype={dtype} {rest}", topk.min(experts));
        let tile = format!("tile_rows={tile_rows} warps={warps} tile_columns={columns} stages={stages}");
        format!("{key} {tile} lag={lag} move_warps={moving} blocks={blocks}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_of_any_layer_is_right(settings in settings(), seed in 0u64..1000) {
        run(&config::<MoeLayer>(&settings), seed, Schedule::Adversarial);
    }
}

/// Of what is off by one, the few that are not found change nothing: a loop's end inside its last step, a wait that another one implies.
#[test]
fn nearly_every_bug_of_one_change_in_a_layer_is_found() {
    let shape = "hidden=8 inter=80 experts=3 topk=2 tokens=20 ranks=2 dtype=bf16 activation=relu";
    let tile = "warps=4 tile_rows=64 tile_columns=64 stages=2 blocks=2";
    let config = config::<MoeLayer>(&format!("{shape} {tile} lag=1"));
    let inputs = Inputs { seed: 0, rounds: 4, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 3, resident_blocks: None };
    let run = plant_each(suite::of::<MoeLayer>(), &[config.into_variant()], &exploration);
    let run = run.unwrap_or_else(|e| panic!("{e}"));
    assert!(run.planted > 380 && run.survivors.len() <= run.planted / 40, "{run}");
}

#[test]
fn defaults_are_legal_for_the_models_of_the_catalogue() {
    let of = |key: &str| {
        let c = config::<MoeLayer>(&format!("{key} dtype=bf16"));
        for warp_size in [32, 64] {
            drop(c.trace(warp_size).unwrap_or_else(|e| panic!("{key}: {e}")));
        }
        (c.tile_rows, c.tile_columns, c.lag, c.blocks)
    };
    assert_eq!(of("hidden=7168 inter=2048 experts=256 topk=8 tokens=8 ranks=2"), (64, 128, 32, 261));
    assert_eq!(of("hidden=7168 inter=2048 experts=256 topk=8 tokens=4096 ranks=8"), (128, 256, 4, 126));
    assert_eq!(of("hidden=2048 inter=768 experts=128 topk=8 tokens=128 ranks=4"), (64, 128, 64, 261));
    assert_eq!(of("hidden=2880 inter=2880 experts=128 topk=4 tokens=512 ranks=1"), (64, 128, 32, 261));
}

#[test]
fn layers_that_cannot_be_are_refused_by_name() {
    let key = "experts=8 topk=2 tokens=8 ranks=2 dtype=bf16";
    refused::<MoeLayer>(&format!("hidden=60 inter=32 {key}"), &["hidden", "60", "multiple of 8"]);
    refused::<MoeLayer>(&format!("hidden=64 inter=40 {key}"), &["inter", "40", "multiple of 16"]);
    let fp8 = key.replace("bf16", "fp8");
    refused::<MoeLayer>(&format!("hidden=64 inter=128 {fp8}"), &["hidden", "64", "multiple of 128"]);
    refused::<MoeLayer>(&format!("hidden=128 inter=96 {fp8}"), &["inter", "96", "multiple of 128"]);
    refused::<MoeLayer>(
        &format!("hidden=128 inter=128 tile_columns=256 {fp8}"),
        &["tile_columns", "256", "128 with dtype = fp8"],
    );
    refused::<MoeLayer>(
        &format!("hidden=64 inter=32 {}", key.replace("topk=2", "topk=9")),
        &["topk", "9", "at most"],
    );
    refused::<MoeLayer>(
        &format!("hidden=64 inter=32 {key} blocks=262"),
        &["blocks", "262", "at most 261", "resident together, 264"],
    );
    refused::<MoeLayer>(
        "hidden=65536 inter=65536 experts=65535 topk=32 tokens=65536 ranks=64 dtype=bf16",
        &["tokens", "65536", "31 bits"],
    );
    refused::<MoeLayer>(
        "hidden=65536 inter=16 experts=65535 topk=32 tokens=65536 ranks=64 dtype=bf16 tile_columns=64 tile_rows=64 warps=4",
        &["tokens", "65536", "31 bits"],
    );
    refused::<MoeLayer>(
        "hidden=65536 inter=65536 experts=65535 topk=1 tokens=1 ranks=1 dtype=bf16",
        &["experts", "65535", "32 bits"],
    );
}

/// A loader brings both products' operands as the blocks tell it, the weights before.
#[test]
fn loaders_wait_for_rows_and_not_with_weights() {
    let all = &mut String::new();
    let key = "hidden=7168 inter=2048 experts=256 topk=8 tokens=128 ranks=8 dtype=bf16";
    let hopper = pinned::<MoeLayer>(all, key, "cuda:sm_90a");
    let (_, loader) = hopper.split_once("// multiply: the loader").expect("it has a loader");
    let (loader, others) = loader.split_once("// multiply: the other warps").expect("and others");
    assert_eq!(loader.matches("bring_right_ahead(").count(), 2, "{loader}");
    assert_eq!(loader.matches("wait_for_blocks(").count(), 3, "{loader}");
    assert_eq!(others.matches("dot_of_pieces<").count(), 2, "{others}");
    // The other warps see what the loader has waited for as they have a piece.
    assert_eq!(
        others.split("// move").next().map(|text| text.matches("wait_for_blocks(").count()),
        Some(1),
        "{others}"
    );
    pinned::<MoeLayer>(all, key, "hip:gfx942");
    let hopper = pinned::<MoeLayer>(all, &key.replace("bf16", "fp8"), "cuda:sm_90a");
    let (_, loader) = hopper.split_once("// multiply: the loader").expect("it has a loader");
    let (loader, others) = loader.split_once("// multiply: the other warps").expect("and others");
    assert_eq!(loader.matches("wait_for_blocks(").count(), 3, "{loader}");
    let waits = others.split("// move").next().map(|text| text.matches("wait_for_blocks(").count());
    assert_eq!(waits, Some(1), "{others}");
    insta::assert_snapshot!("layer_digests", all);
}
