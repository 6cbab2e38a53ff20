//! Products of matrices: on simulated ranks, against plain Rust; bugs that are planted; defaults and what is refused; what is
//! emitted.

#[path = "../codegen/tests/printed/difference.rs"]
mod difference;
#[path = "../codegen/tests/printed/digest.rs"]
mod digest;
#[path = "matmul/grouped.rs"]
mod grouped;
#[path = "matmul/layer.rs"]
mod layer;
#[path = "collectives/support.rs"]
mod support;

use difference::difference;
use digest::{ENTRY, digest, excerpt};
use peerwarp::build::emit;
use peerwarp::codegen::print::EmitOptions;
use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter, Order};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::plant_each;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

use support::{config, explore};

#[test]
fn products_are_those_of_plain_rust() {
    // One element, edges in all directions, several rows of tiles in groups and the last group shorter.
    for (i, rest) in [
        "m=1 n=8 k=8",
        "m=100 n=72 k=136 tile_rows=64 tile_columns=64 warps=4",
        "m=330 n=136 k=64 tile_rows=64 tile_columns=64 group=4 blocks=3",
        "m=129 n=264 k=72 tile_rows=128 tile_columns=128 stages=3",
    ]
    .iter()
    .enumerate()
    {
        let dtype = ["bf16", "fp16"][i % 2];
        explore::<Matmul>(&format!("{rest} ranks=2 dtype={dtype}"), 1);
        explore::<Matmul>(&format!("{rest} ranks=2 dtype={dtype} bias=true activation=relu"), 1);
        explore::<Matmul>(&format!("{rest} ranks=3 dtype={dtype} activation=silu"), 1);
    }
}

/// Results have half of the columns, whatever multiplies and whatever is added before.
#[test]
fn gates_open_the_values_beside_them() {
    let tile = "tile_rows=64 tile_columns=64 warps=4";
    for activation in ["swiglu", "swiglu-clamped"] {
        let gated = format!("activation={activation}");
        explore::<Matmul>(&format!("m=130 n=160 k=72 dtype=bf16 {gated}"), 1);
        explore::<Matmul>(
            &format!("m=70 n=96 k=256 dtype=fp16 {tile} split=4 blocks=8 order=strided bias=true {gated}"),
            1,
        );
        explore::<Matmul>(&format!("m=70 n=288 k=272 dtype=fp8 scales=row {tile} bias=true {gated}"), 1);
        explore::<Matmul>(&format!("m=70 n=288 k=272 dtype=fp8 scales=block {tile} bias=true {gated}"), 1);
        explore::<AllGatherMatmul>(&format!("m=128 n=96 k=64 ranks=2 dtype=bf16 bias=true {gated}"), 1);
        explore::<MatmulReduceScatter>(&format!("m=128 n=96 k=64 ranks=2 dtype=bf16 {gated}"), 1);
    }
    refused::<Matmul>("m=64 n=48 k=64 dtype=bf16 activation=swiglu", &["n", "48", "multiple of 32"]);
}

/// Without scales, with one of all elements, and with one of each row.
#[test]
fn products_of_fp8_have_scales() {
    for (i, rest) in [
        "m=1 n=8 k=16",
        "m=100 n=72 k=144 tile_rows=64 tile_columns=64 warps=4",
        "m=330 n=136 k=64 tile_rows=64 tile_columns=64 group=4 blocks=3 order=counter",
        "m=100 n=72 k=512 tile_rows=64 tile_columns=64 warps=4 split=4 blocks=8 order=strided",
    ]
    .iter()
    .enumerate()
    {
        let shape = format!("{rest} dtype=fp8 ranks={}", 1 + i % 2);
        // The fourth seed stages products.
        explore::<Matmul>(&format!("{shape} scales=none"), 4);
        explore::<Matmul>(&format!("{shape} scales=tensor activation=relu"), 1);
        explore::<Matmul>(&format!("{shape} scales=row bias=true"), 1);
        if !rest.contains("split") {
            explore::<Matmul>(&format!("{shape} scales=block"), 4);
        }
    }
    // Whole blocks of columns and of rows of `w`, and parts of them.
    let tile = "tile_rows=64 tile_columns=64 warps=4 dtype=fp8 scales=block bias=true";
    explore::<Matmul>(&format!("m=70 n=264 k=256 {tile}"), 2);
    explore::<Matmul>(&format!("m=70 n=136 k=400 {tile}"), 2);
}

/// Two neighbouring blocks have tiles one below the other, of which the last may have no rows.
#[test]
fn pairs_of_blocks_multiply_by_the_same() {
    let key = "dtype=bf16 pair=true order=strided";
    explore::<Matmul>(&format!("m=300 n=136 k=72 tile_columns=64 blocks=2 group=2 {key} bias=true"), 4);
    explore::<Matmul>("m=40 n=24 k=64 dtype=fp8 scales=block pair=true tile_rows=128 order=strided", 4);
    explore::<Matmul>(&format!("m=700 n=72 k=64 tile_rows=256 tile_columns=64 blocks=4 group=4 {key}"), 1);
    let groups = "groups=3 n=72 k=64 tile_rows=128 tile_columns=64 blocks=4 height=2";
    explore::<GroupedMatmul>(&format!("{groups} rows=500 {key} weighted=true"), 4);
    explore::<GroupedMatmul>(&format!("{groups} rows=300 gather=90 {key}"), 2);
    for (rest, words) in [
        ("tile_rows=64", ["tile_rows", "64", "128 or 256 with pair = true"]),
        ("group=1", ["group", "1", "an even number with pair = true"]),
        ("blocks=3", ["blocks", "3", "an even number with pair = true"]),
        ("split=2", ["split", "2", "1 with pair = true"]),
    ] {
        refused::<Matmul>(&format!("m=512 n=128 k=256 {key} {rest}"), &words);
    }
    let fp8 = "m=512 n=128 k=256 dtype=fp8 pair=true tile_rows=128";
    refused::<Matmul>(&format!("{fp8} scales=mx order=strided"), &["scales", "mx", "with pair = true"]);
    refused::<Matmul>(&format!("{fp8} order=counter"), &["order", "counter", "strided with pair = true"]);
    let scaled = "scales=block out=fp8 order=strided";
    refused::<Matmul>(
        &format!("{fp8} {scaled}"),
        &["out", "fp8", "wide with pair = true and scales = block"],
    );
    let groups = "groups=3 n=72 k=64 rows=300 tile_rows=128 height=1";
    refused::<GroupedMatmul>(&format!("{groups} {key}"), &["height", "1", "an even number"]);
}

/// The same behind rows and sums of other ranks: neighbouring blocks have tiles of one rank's rows.
#[test]
fn pairs_of_blocks_wait_for_ranks() {
    let key = "dtype=bf16 tile_rows=128 tile_columns=64 pair=true";
    let gathers = format!("n=72 k=64 {key} chunk=512 send_blocks=2 blocks=4");
    explore::<AllGatherMatmul>(&format!("m=512 ranks=2 {gathers} bias=true gathered=true"), 4);
    explore::<AllGatherMatmul>(&format!("m=256 ranks=2 {gathers} together=true"), 2);
    explore::<AllGatherMatmul>(&format!("m=768 ranks=3 {gathers} together=false phases=true"), 1);
    // Three rows of tiles, of which the last has no rows in a pair.
    let scatters = format!("n=72 k=64 {key} blocks=4");
    explore::<MatmulReduceScatter>(&format!("m=600 ranks=2 {scatters} bias=true algorithm=push"), 4);
    explore::<MatmulReduceScatter>(&format!("m=600 ranks=2 {scatters} algorithm=pull early=true"), 2);
    explore::<MatmulReduceScatter>(&format!("m=390 ranks=3 {scatters} algorithm=pull"), 1);
    for (rest, words) in [
        ("m=512 beside=true", ["beside", "true", "false with pair = true"]),
        ("m=512 split=2 blocks=2", ["split", "2", "1 with pair = true"]),
        ("m=512 abreast=true", ["abreast", "true", "false with pair = true"]),
        ("m=512 send_blocks=1", ["send_blocks", "1", "an even number with pair = true"]),
        ("m=512 order=counter", ["order", "counter", "strided with pair = true"]),
        ("m=1280 together=false", ["m", "1280", "a multiple of 512 with pair = true"]),
        ("m=384 together=true", ["m", "384", "a multiple of 256 with pair = true"]),
    ] {
        refused::<AllGatherMatmul>(&format!("n=64 k=128 ranks=2 {key} chunk=512 {rest}"), &words);
    }
    for (rest, words) in [
        ("split=2", ["split", "2", "1 with pair = true"]),
        ("abreast=true", ["abreast", "true", "false with pair = true"]),
        ("lead=1", ["lead", "1", "0 with pair = true"]),
    ] {
        refused::<MatmulReduceScatter>(&format!("m=512 n=64 k=128 ranks=2 {key} {rest}"), &words);
    }
    // Rules switch off what pairs cannot have, and pair blocks where they would have switched it on.
    let shape = "n=7168 k=2048 ranks=2 dtype=bf16";
    let [lead, abreast] =
        [false, true].map(|few| format!("m={} {shape} split=1", if few { 512 } else { 16384 }));
    let of = |settings: &str| config::<MatmulReduceScatter>(settings);
    assert!(of(&lead).lead() == 1 && of(&format!("{lead} pair=true")).lead() == 0);
    assert!(of(&abreast).abreast() && !of(&format!("{abreast} tile_rows=128 pair=true")).abreast());
    let of = |settings: &str| config::<AllGatherMatmul>(settings);
    let few = "m=512 n=1024 k=2048 ranks=2 dtype=bf16 split=1 send_blocks=2 together=false tile_rows=128";
    assert!(of(few).abreast() && !of(&format!("{few} pair=true")).abreast());
}

/// Tiles of scales that rows and columns fill, and parts of them; groups begin with a tile.
#[test]
fn products_of_mxfp8_and_nvfp4_have_scales_of_blocks() {
    let mx = "dtype=fp8 scales=mx";
    // The fourth seed stages products.
    explore::<Matmul>(&format!("m=130 n=264 k=384 {mx} ranks=2 bias=true blocks=2"), 4);
    explore::<Matmul>(&format!("m=9 n=160 k=128 {mx} activation=swiglu"), 1);
    let groups = format!("groups=3 rows=600 n=128 k=256 {mx} blocks=2");
    explore::<GroupedMatmul>(&format!("{groups} align=128 weighted=true"), 2);
    explore::<GroupedMatmul>(&format!("{groups} stride=128 activation=silu"), 1);
    // Four warps have whole rows of a tile each.
    explore::<Matmul>(&format!("m=130 n=256 k=384 {mx} out=fp8 bias=true blocks=2"), 4);
    explore::<Matmul>(&format!("m=9 n=256 k=128 {mx} out=fp8 activation=swiglu"), 1);
    explore::<GroupedMatmul>(&format!("{groups} align=128 weighted=true out=fp8"), 2);
    let nv = "dtype=u32 scales=nvfp4";
    explore::<Matmul>(&format!("m=130 n=128 k=512 {nv} out=fp8"), 1);
    explore::<Matmul>(&format!("m=130 n=264 k=512 {nv} ranks=2 bias=true blocks=2"), 4);
    explore::<GroupedMatmul>(&format!("groups=3 rows=600 n=128 k=256 {nv} align=128 activation=relu"), 2);
    for (rest, words) in [
        ("k=384 dtype=u32", ["k", "384", "a multiple of 256 with scales = nvfp4"]),
        ("k=256 dtype=u32 split=2", ["split", "2", "1 with scales = nvfp4"]),
        ("k=256 dtype=fp8", ["scales", "nvfp4", "words of e2m1 (u32) those of nvfp4"]),
    ] {
        refused::<Matmul>(&format!("m=64 n=128 {rest} scales=nvfp4"), &words);
    }
    refused::<Matmul>("m=64 n=128 k=256 dtype=u32 scales=row", &["scales", "row", "nvfp4 with dtype = u32"]);
    for (rest, words) in [
        ("k=144", ["k", "144", "a multiple of 128 with scales = mx"]),
        ("k=128 tile_rows=64", ["tile_rows", "64", "128 with scales = mx"]),
        ("k=128 tile_columns=64", ["tile_columns", "64", "128 with scales = mx"]),
        ("k=256 split=2", ["split", "2", "1 with scales = mx"]),
        ("k=128 out=fp8 warps=8", ["warps", "8", "at most 4 with out = fp8"]),
    ] {
        refused::<Matmul>(&format!("m=64 n=128 {rest} {mx}"), &words);
    }
    for (rest, words) in [
        ("n=128", ["align", "1", "a multiple of 128"]),
        ("n=128 stride=64", ["stride", "64", "a multiple of 128"]),
        ("n=64 align=128", ["n", "64", "a multiple of 128"]),
        ("n=128 align=128 gather=64", ["gather", "64", "0 with such scales"]),
    ] {
        refused::<GroupedMatmul>(&format!("groups=2 rows=512 k=128 {rest} {mx}"), &words);
    }
}

/// Scales of a result are of 128 columns, which one tile has, or two or four side by side.
#[test]
fn results_of_fp8_have_scales() {
    let tile = "tile_rows=64 warps=4";
    for rest in [
        "m=1 n=128 k=16 dtype=fp8",
        "m=130 n=384 k=272 dtype=fp8 scales=block tile_columns=128 bias=true",
        "m=130 n=256 k=272 dtype=fp8 scales=block tile_columns=64 group=2 blocks=3 order=counter",
        "m=70 n=512 k=144 dtype=fp8 scales=row tile_columns=128 activation=swiglu bias=true",
        "m=70 n=512 k=72 dtype=fp16 tile_columns=64 activation=swiglu-clamped order=strided",
        "m=70 n=256 k=256 dtype=bf16 tile_columns=128 split=4 blocks=8 order=strided activation=silu",
    ] {
        explore::<Matmul>(&format!("{rest} {tile} ranks=2 out=fp8"), 2);
    }
    refused::<Matmul>("m=64 n=192 k=64 dtype=bf16 out=fp8", &["n", "192", "multiple of 128"]);
    refused::<Matmul>(
        "m=64 n=256 k=256 dtype=bf16 out=fp8 tile_columns=64 split=2 order=strided",
        &["split", "2", "tiles of 64 columns"],
    );
}

/// The scale of another row, of another block, or of the other operand.
#[test]
fn every_wrong_scale_is_found() {
    for rest in ["n=136 scales=row", "n=136 scales=block", "n=384 out=fp8"] {
        let shape = format!("m=130 k=272 dtype=fp8 {rest}");
        let config = config::<Matmul>(&format!("{shape} tile_rows=64 tile_columns=64 warps=4 blocks=2"));
        let inputs = Inputs { seed: 0, rounds: 2, ..Inputs::default() };
        let exploration = Exploration { inputs, seeds: 3, resident_blocks: None };
        let run = plant_each(suite::of::<Matmul>(), &[config.into_variant()], &exploration);
        let run = run.unwrap_or_else(|e| panic!("{e}"));
        assert!(run.planted > 10 && run.survivors.is_empty(), "{run}");
    }
}

#[test]
fn gathered_rows_are_multiplied_as_they_arrive() {
    for (i, rest) in [
        "m=2 n=8 k=8 ranks=2",
        "m=320 n=72 k=136 ranks=2 tile_rows=64 chunk=512",
        "m=99 n=40 k=72 ranks=3 tile_rows=64 chunk=512 send_blocks=2",
        "m=1040 n=8 k=64 ranks=8 tile_rows=64 send_blocks=1 blocks=2",
        // Tiles of one place beside each other.
        "m=390 n=136 k=72 ranks=3 tile_rows=64 tile_columns=64 chunk=512 group=2 blocks=4 abreast=true",
        // All rows to one rank after the other.
        "m=390 n=136 k=72 ranks=3 tile_rows=64 tile_columns=64 chunk=512 blocks=4 together=false phases=true",
        "m=1040 n=8 k=64 ranks=8 tile_rows=64 send_blocks=2 blocks=3 together=false phases=true sent=1",
        // What becomes of sums.
        "m=140 n=72 k=40 ranks=2 tile_rows=64 chunk=512 bias=true activation=relu",
        "m=99 n=40 k=24 ranks=3 tile_rows=64 chunk=512 bias=true activation=silu",
    ]
    .iter()
    .enumerate()
    {
        let dtype = ["bf16", "fp16"][i % 2];
        // The fourth seed stages products.
        let seeds = if rest.contains("ranks=3") { 4 } else { 2 };
        for gathered in [false, true] {
            explore::<AllGatherMatmul>(&format!("{rest} dtype={dtype} gathered={gathered}"), seeds);
        }
    }
}

/// Rows that are gathered are written once, by the blocks that have them, and each change of one row, flag, rank or epoch is noticed.
#[test]
fn every_bug_of_one_change_in_gathering_is_found() {
    let shape = "m=195 n=8 k=16 ranks=3 dtype=bf16 gathered=true tile_rows=64 tile_columns=64 chunk=512";
    let config = config::<AllGatherMatmul>(&format!(
        "{shape} together=false abreast=false send_blocks=2 sent=1 blocks=4"
    ));
    let inputs = Inputs { seed: 0, rounds: 3, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 3, resident_blocks: None };
    let run = plant_each(suite::of::<AllGatherMatmul>(), &[config.into_variant()], &exploration);
    let run = run.unwrap_or_else(|e| panic!("{e}"));
    assert!(run.planted > 20 && run.survivors.is_empty(), "{run}");
}

#[test]
fn parts_of_all_ranks_are_added_up() {
    for (i, rest) in [
        "m=2 n=8 k=8 ranks=2",
        // Rows of a rank that end within a tile, whose other rows are the next rank's.
        "m=320 n=72 k=136 ranks=2 tile_rows=64 tile_columns=64 blocks=5",
        "m=99 n=40 k=72 ranks=3 blocks=2",
        "m=390 n=136 k=64 ranks=3 tile_rows=64 tile_columns=64 group=2 blocks=7",
        "m=1040 n=8 k=64 ranks=8 tile_rows=64 blocks=2",
        // What becomes of sums.
        "m=140 n=72 k=40 ranks=2 tile_rows=64 blocks=3 bias=true activation=relu",
        "m=99 n=40 k=24 ranks=3 blocks=2 bias=true activation=silu",
    ]
    .iter()
    .enumerate()
    {
        let dtype = ["bf16", "fp16"][i % 2];
        let pull = "algorithm=pull early=true";
        for (how, seeds) in [
            (&format!("{pull} lead=1")[..], 2),
            (&format!("{pull} lead=0 abreast=true"), 1),
            ("algorithm=push early=false", 1),
            ("algorithm=push early=false lead=0 abreast=true", 1),
        ] {
            explore::<MatmulReduceScatter>(&format!("{rest} dtype={dtype} {how}"), seeds);
        }
    }
}

#[test]
fn sums_over_parts_of_the_columns_are_added_up() {
    for (i, rest) in [
        "m=100 n=72 k=256 ranks=2 split=4 blocks=8",
        // The parts of a tile are in the hands of the last block and the first ones.
        "m=330 n=136 k=128 ranks=2 split=2 blocks=3",
        "m=63 n=8 k=448 ranks=3 split=7 blocks=4",
    ]
    .iter()
    .enumerate()
    {
        let tile = "tile_rows=64 tile_columns=64 warps=4";
        let shape = format!("{rest} {tile} dtype={}", ["bf16", "fp16"][i % 2]);
        explore::<Matmul>(&format!("{shape} bias=true"), 2);
        let shape = shape.replace("m=100", "m=102");
        for together in [true, false] {
            explore::<AllGatherMatmul>(&format!("{shape} chunk=512 send_blocks=2 together={together}"), 2);
        }
        for how in ["pull early=true", "push"] {
            explore::<MatmulReduceScatter>(&format!("{shape} algorithm={how}"), 2);
        }
    }
}

/// Some blocks have several tiles, some one and some none, in all rounds; and the fourth seed stages products.
#[test]
fn tiles_are_drawn_by_free_blocks() {
    for (rest, blocks) in [("m=300 n=136 k=136 ranks=2", 7), ("m=195 n=8 k=72 ranks=3", 4)] {
        let tile = format!("tile_rows=64 tile_columns=64 warps=4 order=counter blocks={blocks}");
        let shape = format!("{rest} {tile} dtype=bf16");
        explore::<Matmul>(&format!("{shape} activation=relu"), 4);
        for together in [true, false] {
            explore::<AllGatherMatmul>(&format!("{shape} chunk=512 send_blocks=2 together={together}"), 4);
        }
        for how in ["pull early=true lead=1", "push"] {
            explore::<MatmulReduceScatter>(&format!("{shape} algorithm={how}"), 4);
        }
    }
}

/// Numbers that are passed over, drawn twice or left for the next launch.
#[test]
fn every_bug_of_one_change_in_drawing_is_found() {
    let shape =
        "m=195 n=72 k=8 ranks=2 dtype=bf16 tile_rows=64 tile_columns=64 warps=4 blocks=3 order=counter";
    let config = config::<Matmul>(shape);
    let inputs = Inputs { seed: 0, rounds: 3, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 3, resident_blocks: None };
    let run = plant_each(suite::of::<Matmul>(), &[config.into_variant()], &exploration);
    let run = run.unwrap_or_else(|e| panic!("{e}"));
    assert!(run.planted > 5 && run.survivors.is_empty(), "{run}");
}

/// Every row, slot, flag, rank and epoch that is off by one, each by itself.
#[test]
fn every_bug_of_one_change_in_adding_up_is_found() {
    // With tiles abreast a block of several of them waits for an own one before it is where others may still read; so each has one there.
    for (algorithm, blocks) in [
        ("pull early=true lead=1", 2),
        ("pull early=true abreast=false", 2),
        ("pull early=true abreast=true", 12),
        ("push abreast=false", 2),
        ("push abreast=true", 12),
        ("push abreast=false split=2", 2),
    ] {
        let k = if algorithm.contains("split") { 128 } else { 8 };
        let shape = format!("m=195 n=72 k={k} ranks=3 dtype=bf16 tile_rows=64 tile_columns=64");
        let config = config::<MatmulReduceScatter>(&format!("{shape} blocks={blocks} algorithm={algorithm}"));
        let inputs = Inputs { seed: 0, rounds: 4, ..Inputs::default() };
        let exploration = Exploration { inputs, seeds: 4, resident_blocks: None };
        let suite = suite::of::<MatmulReduceScatter>();
        let run = plant_each(suite, &[config.into_variant()], &exploration);
        let mut run = run.unwrap_or_else(|e| panic!("{e}"));
        // With own tiles in between, the one behind the last is this rank's own first one, which comes out the same again.
        run.leave_out(|s| algorithm.contains("lead=1") && s.mutant.to_string().ends_with("for: end + 1"));
        assert!(run.planted > 20 && run.survivors.is_empty(), "{algorithm}: {run}");
    }
}

#[test]
fn defaults_are_legal_for_all_shapes() {
    for (m, n, k) in
        [(1, 8, 8), (64, 7168, 4096), (512, 14336, 8192), (8192, 1792, 4096), (8192, 8192, 28672)]
    {
        for dtype in ["bf16", "fp16"] {
            let shape = format!("n={n} k={k} dtype={dtype}");
            let alone = config::<Matmul>(&format!("m={m} {shape} ranks=2"));
            let gathered = config::<AllGatherMatmul>(&format!("m={} {shape} ranks=8", m.max(2) * 8));
            let scattered = config::<MatmulReduceScatter>(&format!("m={} {shape} ranks=8", m.max(2) * 8));
            let of =
                |warp_size| [alone.trace(warp_size), gathered.trace(warp_size), scattered.trace(warp_size)];
            for kernel in [32, 64].into_iter().flat_map(of) {
                drop(kernel.unwrap_or_else(|e| panic!("m={m} {shape}: {e}")));
            }
        }
    }
}

/// Of what was measured on H200s.
#[test]
fn defaults_of_few_rows_are_those_that_were_fastest() {
    let gathered = |m: u32| {
        let c = config::<AllGatherMatmul>(&format!("m={m} n=7168 k=4096 ranks=2 dtype=bf16"));
        (c.together(), c.tile_columns, c.stages, c.split, c.send_blocks)
    };
    assert_eq!(
        [64, 128, 256, 512].map(gathered),
        [(true, 64, 12, 1, 16), (true, 64, 8, 1, 16), (false, 128, 6, 1, 16), (false, 128, 6, 1, 16)]
    );
    // Two tiles a block hide that others' rows take 24 us; or `w` would be read from memory twice; or there are more turns.
    let columns =
        |shape: &str| config::<AllGatherMatmul>(&format!("{shape} ranks=2 dtype=bf16")).tile_columns;
    let shapes = ["m=2048 n=1792 k=4096", "m=256 n=14336 k=8192", "m=2048 n=7168 k=4096"];
    assert_eq!(shapes.map(columns), [128, 256, 256]);
    let alone = |shape: &str| {
        let c = config::<Matmul>(&format!("{shape} ranks=2 dtype=bf16"));
        (c.tile_columns, c.stages, c.split, c.blocks())
    };
    let shapes = ["m=64 n=1792 k=4096", "m=256 n=4096 k=7168", "m=512 n=4096 k=7168", "m=8192 n=7168 k=4096"];
    let fastest = [(64, 12, 4, 112), (128, 6, 2, 128), (128, 6, 1, 128), (256, 4, 1, 132)];
    assert_eq!(shapes.map(alone), fastest);
    let scattered = |m: u32| {
        let c = config::<MatmulReduceScatter>(&format!("m={m} n=4096 k=7168 ranks=2 dtype=bf16"));
        (c.tile_columns, c.stages, c.split, c.blocks())
    };
    assert_eq!([128, 256, 512].map(scattered), [(128, 8, 2, 128), (128, 6, 2, 128), (128, 6, 1, 128)]);
    let lead =
        |k: u32| config::<MatmulReduceScatter>(&format!("m=8192 n=4096 k={k} ranks=2 dtype=bf16")).lead();
    assert_eq!([1792, 3584, 7168].map(lead), [1, 0, 0]);
}

/// What is not given goes by what is.
#[test]
fn defaults_go_with_what_is_given() {
    for m in [256, 8192] {
        let shape = format!("m={m} n=7168 k=4096 ranks=2 dtype=bf16");
        let alone = config::<Matmul>(&shape);
        assert_eq!((alone.order, alone.split), (Order::Counter, 1));
        let split = Matmul { order: Order::Strided, split: 2, ..alone };
        assert_eq!(config::<Matmul>(&format!("{shape} split=2")), split);
        // What warps beside send goes by way of shared memory, of which stages leave 35 KiB.
        let apart = config::<AllGatherMatmul>(&shape);
        let beside = AllGatherMatmul { beside: Some(true), ..apart };
        let asked = format!("{shape} beside=true");
        assert_eq!(config::<AllGatherMatmul>(&asked), beside);
        assert_eq!((apart.chunk(), beside.chunk()), (32768, 16384));
        assert!(
            pinned::<AllGatherMatmul>(&mut String::new(), &asked, "cuda:sm_90a")
                .contains("copy_bulk_ranks<32768>")
        );
    }
}

/// Tuning searches tiles, stages, order, parts and senders. Rules choose the rest, unless somebody sets it, and names leave it out.
#[test]
fn tuning_has_few_knobs_and_rules_choose_the_rest() {
    fn knobs<F: Family>() -> Vec<&'static str> {
        F::tune_fields().iter().filter(|f| !f.by_rule).map(|f| f.name).collect()
    }
    let tile = ["tile_rows", "tile_columns", "stages", "order", "split"];
    assert_eq!(knobs::<Matmul>(), tile);
    assert_eq!(knobs::<MatmulReduceScatter>(), tile);
    assert_eq!(knobs::<AllGatherMatmul>(), [&tile[..], &["send_blocks"]].concat());
    assert_eq!(knobs::<GroupedMatmul>(), tile[..4]);
    let shape = "m=8192 n=4096 k=4096 ranks=2 dtype=bf16";
    let by_rule = config::<AllGatherMatmul>(shape);
    assert_eq!((by_rule.warps(), by_rule.chunk(), by_rule.blocks()), (8, 32768, 128));
    // The name that a table had when all of them were knobs.
    let key = "all_gather_matmul_m8192_n4096_k4096_r2_bf16_noga";
    let tuned =
        format!("{key}__w8_tr128_tc256_s4_g16_bycounter_noab_sp1_notg_c16384_sr2_noph_nobs_sb4_bl120");
    let read = AllGatherMatmul::parse_variant(&tuned).unwrap();
    assert_eq!((read.chunk, read.blocks, read.variant_name()), (Some(16384), Some(120), tuned));
    assert_eq!(by_rule.variant_name(), format!("{key}__tr128_tc256_s4_sp1_sb4"));
    let pushed =
        "matmul_reduce_scatter_m512_n4096_k4096_r2_bf16__pull_noe_ld0_w8_tr128_tc128_s6_g16_noab_sp1_bl128";
    assert_eq!(MatmulReduceScatter::parse_variant(pushed).unwrap().variant_name(), pushed);
    let grouped = "grouped_matmul_e32_m256_n4096_k7168_bf16__w4_tr64_tc256_s5_h8_bycounter_bl120";
    let read = GroupedMatmul::parse_variant(grouped).unwrap();
    assert_eq!((read.warps(), read.height(), read.blocks()), (4, 8, 120));
    assert_eq!(read.variant_name(), grouped);
    // Blocks follow a tile that somebody sets.
    let blocks = |tile: &str| {
        config::<GroupedMatmul>(&format!("groups=2 rows=128 n=256 k=64 dtype=bf16 tile_rows=64 {tile}"))
            .blocks()
    };
    assert_eq!([blocks("tile_columns=64"), blocks("tile_columns=256")], [8, 2]);
    assert_eq!(
        config::<Matmul>("m=512 n=512 k=64 ranks=1 dtype=bf16 tile_rows=64 tile_columns=64").blocks(),
        64
    );
    refused::<Matmul>(
        &format!("{shape} blocks=0"),
        &["blocks", "0", "auto or a whole number from 1 to 1024"],
    );
}

#[track_caller]
fn refused<F: Family>(settings: &str, words: &[&str]) {
    let said = F::from_text(settings).expect_err("it is refused").to_string();
    assert!(words.iter().all(|w| said.contains(w)), "{said}");
}

/// A rank's rows are up to 2^39 elements: also where they are no whole number of pieces.
#[test]
fn the_largest_matrices_are_gathered() {
    for key in ["m=1048576 k=1048576", "m=1048574 k=1048568", "m=1048576 k=1048576 beside=true chunk=512"] {
        for gathered in [false, true].into_iter().filter(|gathered| !gathered || !key.contains("beside")) {
            let key = format!("{key} n=1048576 ranks=2 dtype=bf16 gathered={gathered}");
            AllGatherMatmul::from_text(&key).unwrap().trace(32).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_multiplied_is_refused_by_name() {
    let key = "ranks=2 dtype=bf16";
    refused::<Matmul>(&format!("m=64 n=60 k=64 {key}"), &["n", "60", "multiple of 8"]);
    refused::<Matmul>(&format!("m=64 n=64 k=100 {key}"), &["k", "100", "multiple of 8"]);
    refused::<Matmul>("m=64 n=64 k=64 ranks=2 dtype=f32", &["dtype", "f32", "bf16"]);
    let fp8 = "m=64 n=64 k=128 dtype=fp8";
    refused::<Matmul>("m=64 n=64 k=24 dtype=fp8", &["k", "24", "multiple of 16"]);
    refused::<Matmul>(&format!("{fp8} tile_columns=256"), &["tile_columns", "256", "at most 128"]);
    refused::<Matmul>(&format!("{fp8} split=2"), &["split", "2", "divides 1"]);
    refused::<Matmul>(
        "m=64 n=64 k=256 dtype=fp8 scales=block split=2",
        &["split", "2", "1 with scales = block"],
    );
    refused::<Matmul>("m=64 n=64 k=64 dtype=bf16 scales=row", &["scales", "row", "none with dtype = bf16"]);
    refused::<Matmul>(
        "m=1048576 n=64 k=1048576 dtype=fp8 scales=block",
        &["scales", "block", "counted in 32 bits"],
    );
    refused::<Matmul>(
        &format!("m=64 n=64 k=64 {key} warps=4 tile_rows=256 tile_columns=256"),
        &["warps", "4", "at least 16"],
    );
    refused::<Matmul>(
        &format!("m=64 n=64 k=64 {key} warps=8 tile_rows=128 tile_columns=256 stages=6"),
        &["stages", "6", "at most 4"],
    );
    refused::<Matmul>(&format!("m=64 n=64 k=192 {key} split=2"), &["split", "2", "divides 3"]);
    refused::<Matmul>(
        &format!("m=64 n=64 k=256 {key} split=2 order=counter"),
        &["order", "counter", "strided with split = 2"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=64 {key} order=drawn"),
        &["order", "drawn", "strided or counter"],
    );
    refused::<MatmulReduceScatter>(
        &format!("m=64 n=64 k=256 {key} split=4 order=counter"),
        &["order", "counter", "strided with split = 4"],
    );
    refused::<MatmulReduceScatter>(&format!("m=64 n=64 k=72 {key} split=2"), &["split", "2", "1", "k = 72"]);
    refused::<AllGatherMatmul>(&format!("m=65 n=64 k=64 {key}"), &["m", "65", "multiple of 2"]);
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=64 {key} beside=true chunk=512 blocks=2 send_blocks=4"),
        &["send_blocks", "4", "at most 2"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=64 {key} gathered=true beside=true chunk=512"),
        &["beside", "true", "false with gathered = true"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=66 n=64 k=64 {key} beside=true chunk=512"),
        &["beside", "false with chunk = 512"],
    );
    refused::<AllGatherMatmul>(
        &format!(
            "m=512 n=4096 k=4096 {key} tile_rows=128 tile_columns=256 warps=8 stages=4 beside=true chunk=32768"
        ),
        &["chunk", "32768", "at most 16384 with beside = true", "beside 4 stages"],
    );
    // A rule looks at what stages leave, which do not fit.
    refused::<AllGatherMatmul>(
        &format!("m=512 n=4096 k=4096 {key} tile_rows=128 tile_columns=256 stages=6 beside=true"),
        &["stages", "6", "at most 4"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=72 {key} tile_rows=64 chunk=4096"),
        &["chunk", "4096", "divides 4608"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=64 {key} together=true abreast=true"),
        &["abreast", "true", "false with together = true"],
    );
    refused::<AllGatherMatmul>(
        &format!("m=64 n=64 k=64 {key} together=true abreast=false phases=true"),
        &["phases", "true", "false with together = true"],
    );
    refused::<MatmulReduceScatter>(
        &format!("m=64 n=64 k=64 {key} lead=1 abreast=true"),
        &["abreast", "true", "false with lead = 1"],
    );
    refused::<MatmulReduceScatter>(&format!("m=65 n=64 k=64 {key}"), &["m", "65", "multiple of 2"]);
    refused::<MatmulReduceScatter>(&format!("m=64 n=64 k=36 {key}"), &["k", "36", "multiple of 8"]);
    refused::<MatmulReduceScatter>(&format!("m=64 n=60 k=64 {key}"), &["n", "60", "multiple of 8"]);
    refused::<MatmulReduceScatter>("m=64 n=64 k=64 ranks=2 dtype=f32", &["dtype", "f32", "bf16"]);
    refused::<MatmulReduceScatter>(
        &format!("m=256 n=64 k=64 {key} warps=8 tile_rows=128 tile_columns=256 stages=6"),
        &["stages", "6", "at most 4"],
    );
    refused::<MatmulReduceScatter>(
        &format!("m=1048576 n=1048576 k=64 {key} tile_columns=128"),
        &["m", "1048576", "at most 524032"],
    );
}

/// A kernel as it is emitted, with its digest.
fn pinned<F: Family>(digests: &mut String, settings: &str, target: &str) -> String {
    let variant = config::<F>(settings).into_variant();
    let options = EmitOptions { lines: false, ..EmitOptions::default() };
    let source = emit::source_with("peerwarp", &*variant, target.parse().unwrap(), &options);
    let source = source.unwrap_or_else(|e| panic!("{e}"));
    *digests += &format!("{} {target} {settings}: {}\n", F::NAME, digest(&source));
    source.roles().to_owned()
}

/// Each family, and what is another one but for a detail as it differs from that. `digests` holds what is not shown.
#[test]
fn emitted_roles() {
    let all = &mut String::new();
    let shape = "m=8192 n=7168 k=4096 ranks=2 dtype=bf16";
    let tuned = "tile_rows=128 tile_columns=256 stages=3";
    let plain = pinned::<Matmul>(all, &format!("{shape} {tuned}"), "cuda:sm_90a");
    insta::assert_snapshot!("matmul.cuda", plain);
    // Tiles that are drawn: by a loader for all, and by the warps that multiply.
    let of_hip = format!("{shape} tile_columns=64 bias=true activation=silu");
    let of_hip = pinned::<Matmul>(all, &of_hip, "hip:gfx942");
    insta::assert_snapshot!("matmul.hip", of_hip);
    let drawn = format!("{shape} tile_columns=64 order=counter");
    for (target, other) in [("cuda:sm_90a", &plain), ("hip:gfx942", &of_hip)] {
        let drawn = pinned::<Matmul>(all, &drawn, target);
        insta::assert_snapshot!(
            format!("matmul_of_drawn_tiles.{}", target.split_once(':').unwrap().0),
            difference(other, &drawn)
        );
    }
    let gathering = format!("{shape} {tuned} blocks=116");
    let plain = pinned::<AllGatherMatmul>(all, &gathering, "cuda:sm_90a");
    insta::assert_snapshot!("all_gather_matmul.cuda", excerpt(&plain, &[ENTRY]));
    let gathered = pinned::<AllGatherMatmul>(all, &format!("{gathering} gathered=true"), "cuda:sm_90a");
    insta::assert_snapshot!("all_gather_matmul_and_gathered.cuda", difference(&plain, &gathered));
    let adding = "m=8192 n=4096 k=7168 ranks=2 dtype=bf16 tile_rows=128 tile_columns=128 stages=3";
    let [hopper, ampere, amd] = ["cuda:sm_90a", "cuda:sm_80", "hip:gfx942"]
        .map(|target| pinned::<MatmulReduceScatter>(all, adding, target));
    insta::assert_snapshot!("matmul_reduce_scatter.sm_90a", excerpt(&hopper, &[ENTRY]));
    insta::assert_snapshot!("matmul_reduce_scatter.sm_80", difference(&hopper, &ampere));
    insta::assert_snapshot!("matmul_reduce_scatter.gfx942", difference(&ampere, &amd));
    for few in
        ["m=128 tile_columns=128 stages=6 split=2", "m=512 tile_columns=256 stages=4 split=2 together=false"]
    {
        let few = format!("{few} n=7168 k=4096 ranks=2 dtype=bf16 blocks=112");
        pinned::<AllGatherMatmul>(all, &few, "cuda:sm_90a");
    }
    pinned::<MatmulReduceScatter>(all, "m=256 n=4096 k=7168 ranks=2 dtype=bf16", "cuda:sm_90a");
    insta::assert_snapshot!("digests", all);
}
