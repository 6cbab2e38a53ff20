//! Grouped products: any counts and any plan on the simulator, planted bugs, what is refused, what is emitted.

use std::sync::Arc;

use peerwarp::codegen::elements::{decode, encode, loops};
use peerwarp::codegen::ir::{Dtype, verify};
use peerwarp::codegen::sim::Strategy as Schedule;
use peerwarp::codegen::sim::{Bindings, Compiled, Machine, Options};
use peerwarp::families::matmul::{GroupedMatmul, Order};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::plant_each;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;
use proptest::prelude::*;
use proptest::sample::select;

use super::digest::{ENTRY, excerpt};
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

/// Results of fp8 have a scale of each row and 128 columns: of one tile, or of two or four side by side.
#[test]
fn results_are_fp8_with_scales() {
    let tile = "tile_rows=64 warps=4 out=fp8";
    for rest in [
        "n=256 k=272 dtype=fp8 scales=block tile_columns=128 bias=true",
        "n=256 k=272 dtype=fp8 scales=row tile_columns=64 weighted=true activation=relu align=16",
        "n=512 k=272 dtype=fp8 scales=block tile_columns=128 activation=swiglu bias=true",
        "n=512 k=144 dtype=fp8 scales=block tile_columns=64 activation=swiglu weighted=true stride=50",
        "n=256 k=72 dtype=bf16 tile_columns=256 activation=swiglu-clamped bias=true blocks=2",
        "n=384 k=72 dtype=fp16 tile_columns=64 height=1 blocks=3 order=strided",
    ] {
        explore::<GroupedMatmul>(&format!("groups=3 rows=150 {tile} {rest}"), 4);
    }
    // Groups without rows, and defaults.
    explore::<GroupedMatmul>("groups=9 rows=5 n=128 k=64 dtype=fp8 scales=tensor out=fp8", 2);
}

/// Rows of `x` that an index names, in order of groups: some often, some never. Those of no group name rows that `x` has not.
#[test]
fn rows_that_an_index_names_are_multiplied() {
    for rest in [
        "groups=3 rows=150 n=72 k=72 gather=40 dtype=bf16 align=16",
        "groups=9 rows=5 n=24 k=72 gather=1 dtype=fp16",
        "groups=5 rows=300 n=136 k=64 gather=1000 dtype=bf16 stride=60 height=2 blocks=3 bias=true weighted=true",
        "groups=3 rows=150 n=288 k=272 gather=70 dtype=fp8 scales=tensor",
        "groups=3 rows=150 n=288 k=272 gather=70 dtype=fp8 scales=row activation=swiglu",
        "groups=3 rows=150 n=512 k=272 gather=200 dtype=fp8 scales=block activation=swiglu out=fp8",
    ] {
        explore::<GroupedMatmul>(&format!("{rest} tile_rows=64 tile_columns=64 warps=4"), 4);
    }
}

/// What one kernel makes of buffers.
fn launched<F: Family>(c: &F, inputs: &[(&str, Vec<u8>)], outputs: &[&str]) -> Vec<Vec<u8>> {
    let kernel = Arc::new(Compiled::new(verify(c.trace(32).unwrap()).unwrap()));
    let mut machine = Machine::new(1);
    machine.buffers_of(kernel.kernel()).unwrap();
    inputs.iter().for_each(|(name, bytes)| machine.write(0, name, 0, bytes).unwrap());
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let memory = machine.run(&Options::default()).unwrap().memory;
    outputs.iter().map(|name| memory.read::<u8>(0, name).unwrap().to_vec()).collect()
}

/// The first product of experts feeds the second one as it is. Here the second one's weights are ones on the diagonal, so that it has the
/// first one's result again, which is the wide one but for what fp8 loses.
#[test]
fn a_result_of_fp8_is_what_the_next_product_takes() {
    const ROWS: usize = 70;
    const HIDDEN: usize = 256;
    let floats = |values: &[f32]| encode(Dtype::F32, values);
    let drawn = |n: usize, seed: u64| loops::floats(&loops::small_whole(seed, n as u32));
    let scales = |n: usize| floats(&(0..n).map(|i| (1 + i * 7 % 16) as f32 / 16.0).collect::<Vec<_>>());
    let counts: Vec<u8> = [40u32, 30].iter().flat_map(|n| n.to_le_bytes()).collect();
    let key = "groups=2 rows=70 n=512 k=128 dtype=fp8 scales=block activation=swiglu";
    let inputs = [
        ("x", encode(Dtype::Fp8, &drawn(ROWS * 128, 1))),
        ("counts", counts.clone()),
        ("w", encode(Dtype::Fp8, &drawn(2 * 512 * 128, 2))),
        ("x_scales", scales(ROWS)),
        ("w_scales", scales(2 * 4)),
    ];
    let wide = launched(&config::<GroupedMatmul>(key), &inputs, &["out"]).remove(0);
    let first = config::<GroupedMatmul>(&format!("{key} out=fp8"));
    let [out, of_out] = launched(&first, &inputs, &["out", "out_scales"]).try_into().unwrap();

    let diagonal = |i: usize| if i / HIDDEN % HIDDEN == i % HIDDEN { 1.0 } else { 0.0 };
    let w: Vec<f32> = (0..2 * HIDDEN * HIDDEN).map(diagonal).collect();
    let inputs = [
        ("x", out),
        ("counts", counts),
        ("w", encode(Dtype::Fp8, &w)),
        ("x_scales", of_out.clone()),
        ("w_scales", floats(&[1.0; 2 * 4])),
    ];
    let second = config::<GroupedMatmul>("groups=2 rows=70 n=256 k=256 dtype=fp8 scales=block");
    let again = decode(Dtype::Bf16, &launched(&second, &inputs, &["out"]).remove(0));
    let (wide, of_out) = (decode(Dtype::Bf16, &wide), decode(Dtype::F32, &of_out));
    for (i, (again, wide)) in again.iter().zip(&wide).enumerate() {
        let scale = of_out[i % HIDDEN / 128 * ROWS + i / HIDDEN];
        let most = wide.abs() / 14.0 + scale / 512.0;
        assert!((again - wide).abs() <= most, "{i}: {again} of {wide}, scale {scale}");
    }
    assert!(of_out.iter().any(|scale| *scale != of_out[0]), "rows have scales of their own");
}

/// A key and a plan.
fn settings() -> impl Strategy<Value = String> {
    let key = (1u32..=9, 1u32..=300, 1u32..=25, 1u32..=20, select(vec![1u32, 2, 7, 16, 128]));
    let rest = vec![
        "",
        "bias=true",
        "activation=swiglu",
        "stride",
        "gather=37",
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
    let shape = "groups=4 rows=200 n=136 k=8 align=2 dtype=bf16 height=2 blocks=3";
    let quantised = shape.replace("n=136", "n=256").replace("align=2", "out=fp8");
    let gathered =
        shape.replace("align=2 dtype=bf16", "gather=90 dtype=fp8 scales=block").replace("k=8", "k=144");
    for (shape, order) in
        [(shape, "strided"), (shape, "counter"), (&quantised, "strided"), (&gathered, "strided")]
    {
        let tile = "tile_rows=64 tile_columns=64 warps=4";
        let config = config::<GroupedMatmul>(&format!("{shape} {tile} order={order}"));
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
        (c.tile_rows, c.warps(), c.blocks())
    };
    assert_eq!(of("groups=32 rows=256 n=4096 k=7168"), (64, 4, 132));
    assert_eq!(of("groups=32 rows=32768 n=7168 k=2048"), (128, 8, 132));
    // Groups of 48 random rows seldom have more than 64, those of 64 often do, and one group has all rows.
    assert_eq!(of("groups=16 rows=768 n=7168 k=2048"), (64, 4, 132));
    assert_eq!(of("groups=16 rows=1024 n=7168 k=2048"), (128, 8, 132));
    assert_eq!(of("groups=1 rows=64 n=65536 k=2048"), (64, 4, 264));
    assert_eq!(of("groups=16 rows=16 n=8 k=8"), (64, 4, 16));
    // Tiles of the scales of a result.
    let quantised = |key: &str| {
        let c = config::<GroupedMatmul>(&format!("{key} out=fp8"));
        (c.tile_columns, c.blocks())
    };
    let few = "groups=2 rows=64 n=4096 k=7168";
    assert_eq!(quantised(&format!("{few} dtype=fp8 scales=block")), (128, 64));
    assert_eq!(quantised(&format!("{few} dtype=fp8 scales=block activation=swiglu")), (128, 32));
    assert_eq!(quantised(&format!("{few} dtype=bf16 activation=swiglu")), (256, 32));
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
        &format!("groups=2 rows=8 n=64 k=64 gather=2000000 {key}"),
        &["gather", "2000000", "from 0 to 1048576"],
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
    let quantised = "groups=2 rows=8 k=64 dtype=fp8 out=fp8";
    refused::<GroupedMatmul>(&format!("{quantised} n=192"), &["n", "192", "multiple of 128"]);
    refused::<GroupedMatmul>(
        &format!("{quantised} n=384 activation=swiglu"),
        &["n", "384", "multiple of 256"],
    );
    refused::<GroupedMatmul>(
        "groups=2 rows=8 n=256 k=64 dtype=bf16 out=fp8 tile_columns=256 warps=4",
        &["tile_columns", "256", "at most 128"],
    );
    refused::<GroupedMatmul>(
        "groups=2 rows=1048576 n=1048576 k=64 dtype=bf16 out=fp8",
        &["out", "fp8", "counted in 32 bits"],
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
    insta::assert_snapshot!("grouped_matmul.sm_90a", excerpt(&hopper, &[ENTRY]));
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
