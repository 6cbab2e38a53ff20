//! Products of matrices: by warps and by warpgroups, with a loader and without, rows that are gathered, and parts that are added up.

use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter};
use peerwarp::families::moe::kernels::MoeLayer;

use super::cases::cases;

#[test]
fn products_are_right_to_the_bit() {
    cases("matmul", 26, |cases| {
        for dtype in ["bf16", "fp16"] {
            for rest in [
                "m=1 n=8 k=8",
                "m=100 n=72 k=136 bias=true activation=relu",
                "m=333 n=200 k=520",
                "m=256 n=264 k=512 blocks=2",
                // Fewer pieces than stages, tiles of each width, and shapes that warps multiply.
                "m=300 n=520 k=72 tile_columns=64 stages=6 blocks=4",
                "m=300 n=520 k=200 tile_columns=128 stages=2 blocks=4",
                "m=300 n=520 k=264 tile_columns=256 stages=3 blocks=4",
                "m=300 n=264 k=136 warps=4 tile_rows=128 tile_columns=64",
                "m=200 n=264 k=136 warps=8 tile_rows=64 tile_columns=128",
                // Blocks that share the columns of tiles, in turn and not.
                "m=200 n=520 k=512 tile_columns=128 split=4 stages=4 blocks=9",
                // Tiles that a loader draws, with fewer pieces than stages as well, and tiles that all warps draw.
                "m=333 n=1032 k=200 tile_columns=64 stages=2 blocks=5 order=counter",
                "m=333 n=1032 k=72 tile_columns=128 stages=6 blocks=7 bias=true order=counter",
                "m=300 n=264 k=136 warps=4 tile_rows=128 tile_columns=64 blocks=3 order=counter",
            ] {
                cases.run::<Matmul>(&format!("{rest} ranks=2 dtype={dtype}"));
            }
        }
    });
}

#[test]
fn products_of_fp8_are_right_to_the_bit() {
    let rest = [
        "m=1 n=8 k=16",
        "m=100 n=72 k=144 bias=true activation=relu",
        "m=333 n=200 k=528",
        "m=256 n=264 k=1024 blocks=2",
        // Fewer pieces than stages, tiles of each width, and shapes that warps multiply.
        "m=300 n=520 k=144 tile_columns=64 stages=6 blocks=4",
        "m=300 n=520 k=400 tile_columns=128 stages=2 blocks=4",
        "m=300 n=264 k=272 warps=4 tile_rows=128 tile_columns=64",
        // Blocks that share the columns of tiles, and tiles that a loader draws.
        "m=200 n=520 k=1024 tile_columns=128 split=4 stages=4 blocks=9",
        "m=333 n=1032 k=400 tile_columns=64 stages=2 blocks=5 order=counter",
    ];
    cases("matmul of fp8", 35, |cases| {
        for scales in ["none", "tensor", "row", "block"] {
            for rest in rest {
                cases.run::<Matmul>(&format!("{rest} ranks=2 dtype=fp8 scales={scales}"));
            }
        }
    });
}

/// By a loader that brings rows one by one, and by warps; the last ones of a list end within a tile.
#[test]
fn gathered_rows_of_groups_are_right_to_the_bit() {
    cases("grouped_matmul, gathered", 9, |cases| {
        for rest in [
            "groups=1 rows=1 n=8 k=16 gather=3 dtype=bf16",
            "groups=9 rows=333 n=200 k=520 gather=64 dtype=bf16",
            "groups=5 rows=1500 n=520 k=264 gather=3000 dtype=fp16 tile_columns=256 stages=3 height=2",
            "groups=3 rows=700 n=520 k=72 gather=90 dtype=bf16 tile_columns=128 stages=6 align=128",
            "groups=4 rows=300 n=264 k=136 gather=90 dtype=bf16 warps=4 tile_rows=128 tile_columns=64",
            "groups=64 rows=4096 n=136 k=208 gather=999 dtype=fp8 scales=row tile_columns=64 order=counter",
            "groups=9 rows=700 n=264 k=1040 gather=200 dtype=fp8 scales=block",
            "groups=9 rows=700 n=512 k=1040 gather=200 dtype=fp8 scales=block activation=swiglu out=fp8",
            "groups=4 rows=90 n=264 k=400 gather=90 dtype=fp8 scales=block warps=4 tile_rows=128 tile_columns=64",
        ] {
            cases.run::<GroupedMatmul>(&format!("{rest} ranks=2"));
        }
    });
}

/// Scales of one tile, and of two and four side by side, by warpgroups and by warps, of which each has a part of a row.
#[test]
fn results_of_fp8_are_right_to_the_bit() {
    let rest = [
        "n=512 k=400 dtype=fp8 scales=block bias=true",
        "n=1024 k=3584 dtype=fp8 scales=block stages=6 blocks=5",
        "n=512 k=272 dtype=fp8 scales=row tile_columns=64 order=counter",
        "n=512 k=272 dtype=fp8 scales=row tile_rows=64 tile_columns=128 warps=8",
        "n=384 k=136 dtype=bf16 activation=relu",
    ];
    // Gates are the target's own to the last bit.
    let gated = [
        "n=512 k=400 dtype=fp8 scales=block activation=swiglu",
        "n=512 k=400 dtype=fp8 scales=block activation=swiglu-clamped tile_columns=64",
        "n=1024 k=136 dtype=bf16 activation=swiglu",
    ];
    cases("results of fp8", 16, |cases| {
        for rest in rest.iter().chain(&gated) {
            cases.run::<Matmul>(&format!("m=333 {rest} ranks=2 out=fp8"));
            cases.run::<GroupedMatmul>(&format!("groups=5 rows=700 {rest} ranks=2 out=fp8"));
        }
    });
}

#[test]
fn whole_layers_are_right() {
    cases("moe_layer", 8, |cases| {
        for rest in [
            "hidden=64 inter=32 experts=4 topk=2 tokens=8 dtype=bf16",
            "hidden=72 inter=48 experts=5 topk=3 tokens=40 dtype=fp16 bias=true activation=swiglu-clamped",
            "hidden=136 inter=80 experts=9 topk=4 tokens=300 dtype=bf16 tile_columns=64 lag=1 activation=relu",
            "hidden=512 inter=256 experts=32 topk=8 tokens=256 dtype=bf16",
            "hidden=512 inter=256 experts=8 topk=2 tokens=1024 dtype=bf16 move_warps=3",
            "hidden=512 inter=256 experts=32 topk=8 tokens=256 dtype=fp8",
            "hidden=384 inter=128 experts=5 topk=2 tokens=300 dtype=fp8 bias=true tile_rows=128 warps=8 activation=relu",
            "hidden=256 inter=128 experts=64 topk=8 tokens=128 dtype=bf16 warps=8 tile_rows=128 tile_columns=128",
        ] {
            cases.run::<MoeLayer>(&format!("{rest} ranks=2"));
        }
    });
}

#[test]
fn rows_of_groups_are_right_to_the_bit() {
    cases("grouped_matmul", 14, |cases| {
        for dtype in ["bf16", "fp16"] {
            for rest in [
                "groups=1 rows=1 n=8 k=8",
                "groups=9 rows=333 n=200 k=520",
                "groups=32 rows=100 n=264 k=136 align=8 order=counter blocks=5",
                "groups=5 rows=1500 n=520 k=264 tile_columns=256 stages=3 height=2",
                "groups=3 rows=700 n=520 k=72 tile_columns=128 stages=6 align=128",
                "groups=4 rows=300 n=264 k=136 warps=4 tile_rows=128 tile_columns=64",
                "groups=64 rows=4096 n=136 k=200 tile_columns=64 order=counter",
            ] {
                cases.run::<GroupedMatmul>(&format!("{rest} ranks=2 dtype={dtype}"));
            }
        }
    });
}

#[test]
fn gathered_rows_are_right_to_the_bit() {
    cases("all_gather_matmul", 34, |cases| {
        for dtype in ["bf16", "fp16"] {
            for rest in [
                "m=2 n=8 k=8",
                "m=320 n=264 k=136",
                "m=320 n=264 k=136 bias=true activation=relu",
                // Whole tiles, for which a loader waits.
                "m=256 n=264 k=512 send_blocks=2",
                "m=512 n=264 k=512 send_blocks=4 blocks=4 bias=true",
                "m=512 n=136 k=520 tile_columns=64 send_blocks=4 blocks=3 chunk=512",
                // Tiles of both ranks' rows, and blocks that share the columns of tiles.
                "m=128 n=520 k=512 together=true tile_columns=128 split=4 stages=4",
                "m=96 n=264 k=512 together=true split=2",
                // The gathered rows are a result as well.
                "m=320 n=264 k=136 gathered=true send_blocks=2 chunk=512",
                "m=96 n=264 k=512 gathered=true together=true",
                // Warps beside those that multiply send.
                "m=512 n=520 k=512 together=false beside=true tile_columns=256 stages=3 send_blocks=4 blocks=5",
                "m=512 n=136 k=520 beside=true tile_columns=64 stages=4 send_blocks=2 blocks=4 chunk=1024 sent=1",
                "m=512 n=520 k=512 together=false tile_columns=256 split=2 stages=4 blocks=7",
                // Tiles of one place beside each other, a loader's and all warps'.
                "m=512 n=520 k=512 together=false tile_columns=128 send_blocks=4 blocks=7 abreast=true",
                "m=320 n=264 k=136 together=false abreast=true",
                // All rows to one rank after the other, of two in the same order.
                "m=512 n=520 k=512 together=false tile_columns=128 send_blocks=4 blocks=7 phases=true",
                // A loader draws what it waits for, alone and with warps beside it.
                "m=512 n=520 k=512 together=false tile_columns=64 send_blocks=4 blocks=7 order=counter",
                "m=512 n=136 k=520 beside=true tile_columns=64 stages=4 send_blocks=2 blocks=4 chunk=1024 sent=1 order=counter",
            ] {
                cases.run::<AllGatherMatmul>(&format!("{rest} ranks=2 dtype={dtype}"));
            }
        }
    });
}

#[test]
fn parts_are_added_up_to_the_bit() {
    cases("matmul_reduce_scatter", 40, |cases| {
        for (dtype, how) in [
            ("bf16", "algorithm=pull early=false"),
            ("fp16", "algorithm=pull early=true"),
            ("bf16", "algorithm=push early=true"),
            ("fp16", "algorithm=push early=false"),
        ] {
            for rest in [
                "m=2 n=8 k=8",
                // Rows of a rank that end within a tile.
                "m=320 n=264 k=136",
                "m=320 n=264 k=136 bias=true activation=relu",
                "m=256 n=264 k=512 bias=true",
                "m=1024 n=520 k=512 tile_columns=256 stages=3 blocks=5",
                "m=1024 n=520 k=200 tile_columns=64 stages=6 blocks=7",
                "m=256 n=520 k=512 tile_columns=128 split=4 stages=4 blocks=8",
                // What warps multiply.
                "m=512 n=264 k=136 warps=4 tile_rows=128 tile_columns=64",
                // Tiles of one place beside each other.
                "m=256 n=520 k=512 tile_columns=64 lead=0 abreast=true",
                // Tiles that a loader draws, own ones between others'.
                "m=1024 n=520 k=200 tile_columns=64 stages=6 blocks=7 lead=1 order=counter",
            ] {
                cases.run::<MatmulReduceScatter>(&format!("{rest} ranks=2 dtype={dtype} {how}"));
            }
        }
    });
}
