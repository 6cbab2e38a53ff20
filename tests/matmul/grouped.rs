//! Grouped products: any counts and any plan on the simulator, planted bugs, what is refused, what is emitted.

use peerwarp::codegen::sim::Strategy as Schedule;
use peerwarp::families::matmul::{GroupedMatmul, Order};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::plant_each;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;
use proptest::prelude::*;
use proptest::sample::select;

use super::support::{config, explore, run};
use super::{difference, pinned, refused};

/// Five rounds have counts of each routing, seeds begin with another one.
#[test]
fn products_of_groups_are_those_of_plain_rust() {
    for (i, rest) in [
        "groups=1 rows=1 n=8 k=8",
        // Groups without rows, and fewer rows than groups.
        "groups=9 rows=5 n=24 k=72",
        "groups=5 rows=300 n=136 k=64 tile_columns=64 height=2 blocks=3",
        "groups=3 rows=330 n=72 k=136 align=16 tile_rows=64 tile_columns=64 warps=4",
        "groups=4 rows=520 n=136 k=72 tile_rows=64 tile_columns=64 warps=4 height=1 blocks=7 order=counter",
        // Gaps that leave no rows.
        "groups=7 rows=40 n=16 k=8 align=128",
    ]
    .iter()
    .enumerate()
    {
        explore::<GroupedMatmul>(&format!("{rest} dtype={}", ["bf16", "fp16"][i % 2]), 4);
    }
    explore::<GroupedMatmul>("groups=3 rows=100 n=24 k=40 ranks=2 dtype=bf16", 2);
}

/// Each group has its own scales, bias, and room.
#[test]
fn groups_have_scales_biases_and_weights() {
    let tile = "tile_rows=64 tile_columns=64 warps=4";
    for rest in [
        "scales=none",
        "scales=tensor bias=true",
        "scales=row weighted=true",
        "scales=block",
        "scales=row bias=true activation=swiglu weighted=true",
        "scales=block bias=true activation=swiglu",
    ] {
        let shape = format!("groups=3 rows=150 n=288 k=272 dtype=fp8 {tile}");
        explore::<GroupedMatmul>(&format!("{shape} {rest}"), 4);
        explore::<GroupedMatmul>(&format!("{shape} stride=50 {rest}"), 2);
    }
    let shape = "groups=5 rows=300 n=160 k=72 dtype=bf16";
    explore::<GroupedMatmul>(&format!("{shape} bias=true activation=swiglu-clamped weighted=true"), 4);
    explore::<GroupedMatmul>(&format!("{shape} stride=60 activation=relu tile_columns=128 height=2"), 4);
}

/// A key and a plan.
fn settings() -> impl Strategy<Value = String> {
    let key = (1u32..=9, 1u32..=300, 1u32..=25, 1u32..=20, select(vec![1u32, 2, 7, 16, 128]));
    let rest = vec![
        "",
        "bias=true",
        "activation=swiglu",
        "stride",
        "activation=swiglu-clamped bias=true weighted=true",
    ];
    let tiles = vec![(64, 64, 4), (64, 256, 4), (64, 128, 8), (128, 64, 4), (128, 256, 8), (256, 128, 8)];
    let tile = select::<(u32, u32, u32)>(tiles);
    let plan = (2u32..=3, select(vec![1u32, 2, 4, 16]), any::<bool>(), 1u32..=9);
    (key, select(rest), tile, plan).prop_map(|(key, rest, (tile_rows, columns, warps), plan)| {
        let ((groups, rows, n, k, align), (stages, height, drawn, blocks)) = (key, plan);
        let order = if drawn { "counter" } else { "strided" };
        // Gates and values are whole pairs of blocks.
        let n = if rest.contains("swiglu") { 32 * n.div_ceil(4) } else { 8 * n };
        let rest = match rest {
            "stride" => format!("stride={}", rows / groups),
            rest => format!("align={align} {rest}"),
        };
        let key = format!("groups={groups} rows={rows} n={n} k={} {rest} dtype=bf16", 8 * k);
        let tile = format!("tile_rows={tile_rows} warps={warps} tile_columns={columns} stages={stages}");
        format!("{key} {tile} height={height} order={order} blocks={blocks}")
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_plan_of_any_key_is_right(settings in settings(), seed in 0u64..1000) {
        run(&config::<GroupedMatmul>(&settings), seed, Schedule::Adversarial);
    }
}

/// Each row, column, group and bound that is off by one.
#[test]
fn every_bug_of_one_change_in_grouping_is_found() {
    for order in ["strided", "counter"] {
        let shape = "groups=4 rows=200 n=136 k=8 align=2 dtype=bf16 tile_rows=64 tile_columns=64 warps=4";
        let config = config::<GroupedMatmul>(&format!("{shape} height=2 blocks=3 order={order}"));
        let inputs = Inputs { seed: 0, rounds: 4, ..Inputs::default() };
        let exploration = Exploration { inputs, seeds: 4, resident_blocks: None };
        let run = plant_each(suite::of::<GroupedMatmul>(), &[config.into_variant()], &exploration);
        let run = run.unwrap_or_else(|e| panic!("{e}"));
        assert!(run.planted > 5 && run.survivors.is_empty(), "{order}: {run}");
    }
}

#[test]
fn defaults_are_legal_and_those_of_the_rows_of_a_group() {
    let of = |key: &str| {
        let c = config::<GroupedMatmul>(&format!("{key} dtype=bf16"));
        for warp_size in [32, 64] {
            drop(c.trace(warp_size).unwrap_or_else(|e| panic!("{key}: {e}")));
        }
        assert_eq!(c.order, Order::Counter);
        (c.tile_rows, c.warps, c.blocks)
    };
    assert_eq!(of("groups=32 rows=256 n=4096 k=7168"), (64, 4, 132));
    assert_eq!(of("groups=32 rows=32768 n=7168 k=2048"), (128, 8, 132));
    // Groups of 48 random rows seldom have more than 64, those of 64 often do, and one group has all rows.
    assert_eq!(of("groups=16 rows=768 n=7168 k=2048"), (64, 4, 132));
    assert_eq!(of("groups=16 rows=1024 n=7168 k=2048"), (128, 8, 132));
    assert_eq!(of("groups=1 rows=64 n=65536 k=2048"), (64, 4, 132));
    assert_eq!(of("groups=16 rows=16 n=8 k=8"), (64, 4, 16));
    assert_eq!(of("groups=1024 rows=1048576 n=1048576 k=1048576"), (128, 8, 132));
}

#[test]
fn what_cannot_be_grouped_is_refused_by_name() {
    let key = "dtype=bf16";
    refused::<GroupedMatmul>(&format!("groups=0 rows=8 n=8 k=8 {key}"), &["groups", "0", "from 1 to 1024"]);
    refused::<GroupedMatmul>(&format!("groups=2 rows=8 n=60 k=8 {key}"), &["n", "60", "multiple of 8"]);
    refused::<GroupedMatmul>(&format!("groups=2 rows=8 n=64 k=100 {key}"), &["k", "100", "multiple of 8"]);
    refused::<GroupedMatmul>("groups=2 rows=8 n=64 k=64 dtype=f32", &["dtype", "f32", "bf16"]);
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=8 n=64 k=64 align=512 {key}"),
        &["align", "512", "from 1 to 256"],
    );
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=9 n=64 k=64 stride=5 {key}"),
        &["stride", "5", "at most 4"],
    );
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=8 n=64 k=64 stride=4 align=2 {key}"),
        &["align", "2", "1 with a stride"],
    );
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=8 n=64 k=64 scales=row {key}"),
        &["scales", "row", "none with dtype = bf16"],
    );
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=8 n=48 k=64 activation=swiglu {key}"),
        &["n", "48", "multiple of 32"],
    );
    refused::<GroupedMatmul>(
        "groups=1024 rows=8 n=1048576 k=1048576 dtype=fp8 scales=block",
        &["scales", "block", "counted in 32 bits"],
    );
    refused::<GroupedMatmul>(
        &format!("groups=2 rows=8 n=64 k=64 warps=4 tile_rows=256 tile_columns=256 {key}"),
        &["warps", "4", "at least 16"],
    );
}

#[test]
fn emitted_roles() {
    let all = &mut String::new();
    let key = "groups=32 rows=32768 n=4096 k=7168 dtype=bf16 tile_rows=128 tile_columns=256 stages=4";
    let hopper = pinned::<GroupedMatmul>(all, key, "cuda:sm_90a");
    insta::assert_snapshot!("grouped_matmul.sm_90a", hopper);
    let small = key.replace("columns=256 stages=4", "columns=128 stages=2 align=16 order=counter");
    let amd = pinned::<GroupedMatmul>(all, &small, "hip:gfx942");
    // All that multiplies, beside what multiplies there.
    let (_, multiplies) = hopper.split_once("// multiply: the other warps").expect("it has a loader");
    let (_, of_amd) = amd.split_once("// multiply:").expect("it has a role");
    insta::assert_snapshot!("grouped_matmul.gfx942", difference(multiplies, of_amd));
    let drawn = pinned::<GroupedMatmul>(all, &small, "cuda:sm_90a");
    // Either side of a loader's role goes from group to group.
    assert_eq!(drawn.matches("= args.counts[group").count(), hopper.matches("= args.counts[group").count());
    insta::assert_snapshot!("grouped_digests", all);
}
