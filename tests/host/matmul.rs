//! Products of matrices as emitted text: the lanes of the matrix instructions, pieces in shared memory, edges.

use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter};
use peerwarp::families::moe::kernels::MoeLayer;
use peerwarp::harness::workload::Workload;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};
use rayon::prelude::*;

use crate::build::Language::{self, Blackwell, Cuda, Gfx12, Hip};
use crate::build::Text;
use crate::same::Case;
use crate::workload::{Outcome, outcomes, run_as};

/// Runs a product as all that multiply in their own way, in tensor memory and by `wmma` too.
#[track_caller]
fn run<F: Workload>(settings: &str) {
    run_as::<F>(&[Cuda, Hip, Blackwell, Gfx12], settings);
}

#[test]
fn products_of_every_shape_of_tile() {
    // Rows, columns and pieces of which the last is not whole, with tiles of several shapes for the warps.
    let key = "m=100 n=72 k=72 activation=none blocks=2";
    run::<Matmul>(&format!("{key} ranks=2 dtype=bf16 warps=4 tile_rows=64 tile_columns=64 stages=3"));
    // What warpgroups multiply, where there are: one and two of them, one product after the other and two at once.
    run::<Matmul>(&format!("{key} dtype=fp16 warps=4 tile_rows=64 tile_columns=64 stages=2"));
    run::<Matmul>(&format!("{key} dtype=bf16 warps=4 tile_rows=128 tile_columns=64 stages=2"));
    run::<Matmul>(&format!("{key} dtype=fp16 warps=8 tile_rows=128 tile_columns=64 stages=2"));
    run::<Matmul>(
        "m=20 n=136 k=136 dtype=bf16 bias=true activation=relu warps=4 tile_rows=64 tile_columns=128 stages=2 blocks=1",
    );
}

#[test]
fn products_of_fp8() {
    let key = "n=72 k=272 dtype=fp8 activation=none tile_columns=64 stages=2";
    // By one warpgroup and by two, for which a loader brings operands, and by warps.
    run::<Matmul>(&format!("{key} m=100 warps=4 tile_rows=64 scales=row bias=true blocks=2"));
    run::<Matmul>(&format!("{key} m=140 warps=8 tile_rows=128 scales=tensor blocks=1 order=counter"));
    run::<Matmul>(&format!("{key} m=20 warps=4 tile_rows=128 scales=row blocks=1"));
    // Scales of blocks, the last one of fewer columns.
    run::<Matmul>(&format!("{key} m=100 warps=4 tile_rows=64 scales=block bias=true blocks=2"));
    run::<Matmul>(&format!("{key} m=20 warps=4 tile_rows=128 scales=block blocks=1"));
    run::<Matmul>("m=70 n=200 k=16 dtype=fp8 warps=4 tile_rows=64 tile_columns=128 stages=2 blocks=1");
}

#[test]
fn products_of_fewer_pieces_than_stages() {
    let key = "m=70 n=64 dtype=bf16 activation=silu warps=4 tile_rows=64 tile_columns=64 blocks=1";
    run::<Matmul>(&format!("{key} k=8 stages=3"));
    run::<Matmul>(&format!("{key} k=128 stages=3"));
}

#[test]
fn rows_that_are_gathered() {
    let key =
        "n=40 k=72 dtype=bf16 tile_rows=64 tile_columns=64 warps=4 stages=2 blocks=2 chunk=512 send_blocks=1";
    run::<AllGatherMatmul>(&format!("{key} m=136 ranks=2"));
    // Whole tiles, whose rows a loader waits for and brings.
    run::<AllGatherMatmul>(&format!("{key} m=256 ranks=2"));
    run::<AllGatherMatmul>(&format!("{key} m=66 ranks=3"));
    run::<AllGatherMatmul>(&format!("{key} m=66 ranks=3 bias=true activation=relu"));
    // And are a result as well: by two blocks, rows that end within a piece.
    let key = key.replace("send_blocks=1", "send_blocks=2 sent=1 gathered=true");
    run::<AllGatherMatmul>(&format!("{key} m=136 ranks=2 together=false"));
    run::<AllGatherMatmul>(&format!("{key} m=66 ranks=3 together=true"));
}

/// Blocks draw tiles whose rows others bring, and go on as what brings sums home; warps beside them do not.
#[test]
fn whole_layers() {
    let key = "experts=5 topk=3 tokens=20 dtype=bf16 stages=2 blocks=2";
    // With a loader, whose boxes are whole, and without one.
    let tile = "warps=4 tile_rows=64 tile_columns=64";
    run::<MoeLayer>(&format!("hidden=64 inter=64 {key} {tile} ranks=1 lag=1"));
    run::<MoeLayer>(&format!("hidden=72 inter=48 {key} {tile} ranks=2 lag=2 bias=true"));
    run::<MoeLayer>(&format!("hidden=128 inter=128 {} {tile} ranks=2 lag=1", key.replace("bf16", "fp8")));
    let wide = "warps=8 tile_rows=128 tile_columns=64 move_warps=2 activation=relu";
    run::<MoeLayer>(&format!("hidden=64 inter=64 {key} {wide} ranks=3 lag=1"));
}

#[test]
fn parts_that_are_added_up() {
    let key = "n=72 k=72 dtype=bf16 tile_columns=64 stages=2 blocks=2 warps=4";
    // By warps, by warpgroups for which a loader brings operands, and of more than two ranks.
    // The first one's own tiles come between others'.
    run::<MatmulReduceScatter>(&format!(
        "{key} m=264 ranks=2 tile_rows=128 algorithm=pull early=true lead=1"
    ));
    run::<MatmulReduceScatter>(&format!("{key} m=136 ranks=2 tile_rows=64 algorithm=push"));
    run::<MatmulReduceScatter>(&format!("{key} m=66 ranks=3 tile_rows=64 algorithm=pull"));
    run::<MatmulReduceScatter>(&format!("{key} m=66 ranks=2 tile_rows=64 algorithm=push bias=true"));
    run::<MatmulReduceScatter>(&format!(
        "{key} m=66 ranks=3 tile_rows=64 algorithm=pull bias=true activation=relu"
    ));
}

#[test]
fn of_one_rank() {
    let key = "m=136 n=72 k=72 dtype=bf16 tile_rows=64 tile_columns=64 warps=4 stages=2 blocks=2";
    run::<Matmul>(key);
    run::<AllGatherMatmul>(&format!("{key} ranks=1 chunk=512 send_blocks=1 gathered=true"));
    run::<MatmulReduceScatter>(&format!("{key} ranks=1 algorithm=pull early=true"));
    run::<MatmulReduceScatter>(&format!("{key} ranks=1 algorithm=push"));
}

#[test]
fn products_whose_columns_blocks_share() {
    let key = "n=72 k=256 tile_rows=64 tile_columns=64 warps=4 stages=2";
    // Blocks that take turns with the parts of a tile, and blocks whose last one has the next tile's.
    run::<Matmul>(&format!("{key} m=100 dtype=bf16 bias=true activation=relu split=2 blocks=4"));
    run::<Matmul>(&format!("{key} m=100 dtype=fp16 split=4 blocks=3"));
    // By warps.
    run::<Matmul>(
        "m=20 n=136 k=128 dtype=bf16 warps=4 tile_rows=64 tile_columns=128 stages=2 split=2 blocks=2",
    );
    let sent = format!("{key} ranks=2 dtype=bf16 chunk=512 send_blocks=2 blocks=4 split=2");
    run::<AllGatherMatmul>(&format!("{sent} m=128 together=true"));
    run::<AllGatherMatmul>(&format!("{sent} m=128 together=false"));
    // Tiles that end with the rows of all ranks, behind which are those of the next epoch.
    run::<AllGatherMatmul>(&format!("{sent} m=72 together=true"));
    run::<MatmulReduceScatter>(&format!("{key} ranks=2 dtype=bf16 m=130 split=2 blocks=5 algorithm=push"));
    run::<MatmulReduceScatter>(&format!(
        "{key} ranks=2 dtype=bf16 m=128 split=4 blocks=4 algorithm=pull early=true"
    ));
}

/// Three rounds, each with counts of another routing: one has more rows than there are.
#[test]
fn rows_of_groups() {
    let key = "n=72 k=72 dtype=bf16 tile_columns=64 stages=2";
    // A loader that goes from group to group, with rows of tiles in sets and groups apart.
    run::<GroupedMatmul>(&format!("{key} groups=3 rows=200 tile_rows=64 warps=4 height=2 blocks=3"));
    run::<GroupedMatmul>(&format!("{key} groups=2 rows=150 align=16 tile_rows=128 warps=8 blocks=2"));
    run::<GroupedMatmul>(&format!("{key} groups=5 rows=90 tile_rows=64 warps=4 blocks=3 order=counter"));
    let tile = "tile_rows=64 warps=4 tile_columns=64 stages=2 blocks=2";
    let fp8 = format!("n=160 k=144 groups=2 rows=90 dtype=fp8 {tile} bias=true");
    run::<GroupedMatmul>(&format!("{fp8} stride=45 scales=row weighted=true"));
    run::<GroupedMatmul>(&format!("{fp8} scales=block activation=swiglu"));
    // By warps.
    run::<GroupedMatmul>(&format!("{key} groups=5 rows=30 tile_rows=128 warps=4 blocks=2"));
}

/// Scales of one tile, and of two side by side, by warpgroups and by warps, of which each has a part of a row.
#[test]
fn results_of_fp8() {
    let plan = "stages=2 blocks=2 out=fp8";
    let fp8 = format!("dtype=fp8 scales=block activation=swiglu bias=true {plan}");
    let grouped = format!("groups=2 rows=90 n=512 k=144 tile_columns=128 {fp8}");
    run::<GroupedMatmul>(&format!("{grouped} tile_rows=64 warps=4"));
    run::<GroupedMatmul>(&format!("{grouped} tile_rows=64 warps=8"));
    run::<Matmul>(&format!("m=140 n=256 k=72 dtype=bf16 tile_rows=128 tile_columns=64 warps=8 {plan}"));
    run::<Matmul>(&format!(
        "m=20 n=128 k=144 dtype=fp8 scales=row tile_rows=64 tile_columns=128 warps=8 {plan}"
    ));
}

/// More tiles than blocks, as many as do not divide by these.
#[test]
fn tiles_that_blocks_draw() {
    let key =
        "n=72 k=136 ranks=2 dtype=bf16 tile_rows=64 tile_columns=64 warps=4 stages=2 blocks=3 order=counter";
    run::<Matmul>(&format!("{key} m=300 bias=true"));
    // By warps, and by warpgroups that bring operands themselves.
    run::<Matmul>(&key.replace("tile_rows=64", "tile_rows=128 m=300"));
    let sent = format!("{key} chunk=512 send_blocks=1 together=false");
    run::<AllGatherMatmul>(&format!("{sent} m=264"));
    // A loader, and warps that send beside it.
    run::<AllGatherMatmul>(&format!("{sent} m=256 beside=true"));
    run::<MatmulReduceScatter>(&format!("{key} m=264 algorithm=pull early=true lead=1"));
}

/// Rows of `x` that an index names: by a loader, box by box, and by warps and warpgroups that bring operands themselves.
#[test]
fn rows_of_groups_that_are_gathered() {
    let key = "n=72 k=136 tile_columns=64 stages=2 gather=40";
    run::<GroupedMatmul>(&format!("{key} groups=3 rows=200 dtype=bf16 tile_rows=64 warps=4 blocks=3"));
    run::<GroupedMatmul>(&format!(
        "{key} groups=2 rows=150 dtype=fp16 align=16 tile_rows=128 warps=8 blocks=2 order=counter"
    ));
    run::<GroupedMatmul>(&format!("{key} groups=5 rows=30 dtype=bf16 tile_rows=128 warps=4 blocks=2"));
    let fp8 = "n=160 k=272 groups=2 rows=90 dtype=fp8 tile_rows=64 warps=4 tile_columns=64 stages=2 blocks=2 gather=70";
    run::<GroupedMatmul>(&format!("{fp8} scales=row stride=45"));
    run::<GroupedMatmul>(&format!("{fp8} scales=block bias=true activation=swiglu"));
}

/// A product whose rows a list names that the kernel itself has written: no loader reads it, and lanes meet before they do.
fn listed(warp_size: u32) -> Kernel {
    let traced = trace(TraceMeta::new("listed", 1, warp_size, 4), |p| {
        let (x, w) = (p.matrix("x", [40, 136], Dtype::Bf16), p.matrix("w", [64, 136], Dtype::Bf16));
        let (x, w, out): (AnyMatrix, AnyMatrix, AnyMatrix) = (x, w, p.matrix("out", [70, 64], Dtype::F32));
        let (order, list): (Ptr<u32>, Ptr<u32>) = (p.arg("order", 70), p.arg("list", 70));
        let scales: Ptr<f32> = p.arg("scales", 40);
        role("multiply", 1, |b| {
            list.store(0, order.load(0, 70));
            for row in [0, 64] {
                let sums = b.dot(x.gather_rows(&list, row, 64), w.rows(0, 64), 2);
                let scales = scales.gather_columns_f32(0, &list, row, [64, 64]);
                out.rows(row, 64).store_f32(0, sums * scales);
            }
        });
    });
    traced.unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn lists_that_a_kernel_writes_are_read_after_it() {
    let whole = |n: u32, seed: u32| (0..n).map(move |i| bf16::from_f32(((i * 7 + seed) % 9) as f32 - 4.0));
    let (x, w): (Vec<_>, Vec<_>) = (whole(40 * 136, 1).collect(), whole(64 * 136, 2).collect());
    let order: Vec<u32> = (0..70).map(|i| i * 11 % 43).collect();
    let scales: Vec<f32> = (0..40).map(|i| 0.5 + i as f32).collect();
    let case = Case::new("listed", 1, |language: Language| vec![listed(language.target().warp_size())]);
    let case = case.input(0, "x", &x).input(0, "w", &w).input(0, "order", &order).input(0, "scales", &scales);
    case.output("out").agrees(4);
}

/// How a block multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Warps,
    /// Warpgroups, which bring operands themselves.
    Warpgroups,
    /// Warpgroups, for which a loader brings them.
    Loader,
    /// The same, and the others add up parts of several ranks.
    Parts,
    /// The same of rows that are gathered, and blocks share columns.
    Shares,
    /// The same of tiles that loaders draw.
    Draws,
    /// Warpgroups, for which a loader brings fp8.
    Fp8,
    /// The same with scales of blocks.
    Blocks,
    /// The same with a result of fp8, whose scales are of two tiles each.
    Quantised,
    /// The same of rows that an index names, which the loader brings one by one.
    Gathered,
    /// Those that warps bring themselves.
    GatheredByWarps,
}

impl By {
    /// Runs a kernel that multiplies so: two tiles a block or three, and more pieces than stages but where tiles are drawn.
    fn outcomes(self, language: Language, edit: impl FnOnce(Text) -> Text) -> Vec<Outcome> {
        let key = "n=40 k=136 ranks=2 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 blocks=1";
        match self {
            By::Warps => {
                outcomes::<Matmul>(language, &format!("m=140 order=strided warps=4 {key}"), 0..2, edit)
            }
            // Rows that end within a tile, and what comes behind has not arrived: no boxes of it are loaded.
            By::Warpgroups => {
                let settings = format!("m=280 warps=8 {key} chunk=512 send_blocks=1 together=false");
                outcomes::<AllGatherMatmul>(language, &settings, 0..2, edit)
            }
            By::Loader => {
                outcomes::<Matmul>(language, &format!("m=140 order=strided warps=8 {key}"), 0..2, edit)
            }
            // Pieces of two tiles fit the ring, so that a loader could be further ahead than by the one that it has drawn.
            By::Draws => {
                let key = "m=300 n=40 k=72 ranks=2 dtype=bf16 tile_rows=64 tile_columns=64 stages=4";
                outcomes::<Matmul>(language, &format!("{key} warps=4 blocks=2 order=counter"), 0..2, edit)
            }
            By::Fp8 | By::Blocks => {
                let scales = if self == By::Fp8 { "row" } else { "block" };
                let key = "m=140 n=136 k=400 ranks=2 dtype=fp8 tile_rows=128 tile_columns=64 stages=2 warps=8 blocks=1";
                outcomes::<Matmul>(language, &format!("{key} scales={scales} order=strided"), 0..2, edit)
            }
            By::Quantised => {
                let key =
                    "m=140 n=256 k=128 dtype=fp8 tile_rows=128 tile_columns=64 stages=2 warps=8 blocks=1";
                outcomes::<Matmul>(language, &format!("{key} out=fp8 order=strided"), 0..2, edit)
            }
            By::Gathered => {
                let key = "groups=2 rows=150 n=72 k=400 gather=40 dtype=fp8 scales=row warps=8";
                let plan = "tile_rows=128 tile_columns=64 stages=2 blocks=1 order=strided";
                outcomes::<GroupedMatmul>(language, &format!("{key} {plan}"), 0..2, edit)
            }
            By::GatheredByWarps => {
                let key = "groups=2 rows=150 n=72 k=136 gather=40 dtype=bf16 warps=4";
                let plan = "tile_rows=128 tile_columns=64 stages=2 blocks=1 order=strided";
                outcomes::<GroupedMatmul>(language, &format!("{key} {plan}"), 0..2, edit)
            }
            By::Shares => {
                let key =
                    "m=256 n=40 k=512 ranks=2 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 blocks=2";
                let settings = format!("{key} warps=8 together=true beside=false send_blocks=1 split=2");
                outcomes::<AllGatherMatmul>(language, &settings, 0..2, edit)
            }
            By::Parts => outcomes::<MatmulReduceScatter>(
                language,
                &format!("m=140 warps=8 {key} algorithm=pull early=true"),
                0..2,
                edit,
            ),
        }
    }
}

/// Mistakes that a template could have made, each of which has to show: in what is found, or in the results.
#[test]
fn every_bug_of_a_product_shows() {
    use By::{
        Blocks, Draws, Fp8, Gathered, GatheredByWarps, Loader, Parts, Quantised, Shares, Warpgroups, Warps,
    };
    let bugs: [(Language, By, &str, &str, &str); 62] = [
        (
            Cuda,
            Warps,
            "copies are not waited for",
            r#"asm volatile("cp.async.wait_group %0;" ::"n"(Stages - 2) : "memory");"#,
            "",
        ),
        (
            Cuda,
            Warps,
            "a piece is multiplied before all have brought theirs",
            "group.sync();  // this piece is there, and all are done with the one before",
            "",
        ),
        (
            Cuda,
            Warps,
            "the room is taken from who still multiplies",
            "group.sync();  // the room is free",
            "",
        ),
        (
            Cuda,
            Warps,
            "rows are brought that are not there",
            "inside && row < rows.count ? 16 : 0",
            "inside ? 16 : 0",
        ),
        (
            Cuda,
            Warps,
            "columns are brought that are not there",
            "inside && row < rows.count ? 16 : 0",
            "row < rows.count ? 16 : 0",
        ),
        (
            Cuda,
            Warps,
            "fragments are read as if nothing had changed places",
            "return rows + row * 64 + ((chunk ^ row) % 8) * 8;",
            "return rows + row * 64 + chunk * 8;",
        ),
        (Cuda, Warps, "the upper columns come first", "k * 2 + lane / 8 % 2", "k * 2 + 1 - lane / 8 % 2"),
        (Cuda, Warps, "rows are stored that are not there", "if (row < end) store_below", "store_below"),
        (
            Cuda,
            Warpgroups,
            "products are not waited for",
            r#"asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");"#,
            "",
        ),
        (Cuda, Warpgroups, "both warpgroups multiply the same rows", "group.lane / 128 * 64 * 64", "0"),
        (Cuda, Warpgroups, "a product of other columns", "right + k * 2", "right + k"),
        (
            Cuda,
            Loader,
            "a piece is multiplied before it has been brought",
            "phase_done(ring.full + ring.piece, ring.parity);",
            "",
        ),
        (
            Cuda,
            Loader,
            "a piece is brought before the one there has been multiplied",
            "phase_done(ring.empty + ring.piece, ring.parity ^ 1);",
            "",
        ),
        (Cuda, Loader, "the loader waits for the phase after", "ring.parity ^ 1);", "ring.parity);"),
        (Cuda, Loader, "parities stay as they are", "parity ^= piece == 0;", ""),
        (Cuda, Loader, "fewer bytes are expected than come", r#""n"(rows_bytes)"#, r#""n"(rows_bytes / 2)"#),
        (Cuda, Loader, "no arrival is expected for what is brought", "expect_arrivals(full + i, 1);", ""),
        (
            Cuda,
            Loader,
            "a piece is free while a warp still multiplies it",
            "expect_arrivals(empty + i, Block::warps);",
            "expect_arrivals(empty + i, Block::warps - 1);",
        ),
        (Cuda, Loader, "barriers are used before they have begun", "__syncthreads();", ""),
        (
            Cuda,
            Loader,
            "a piece is given back before its products are there",
            "wgmma.wait_group.sync.aligned 1;",
            "wgmma.wait_group.sync.aligned 2;",
        ),
        (
            Cuda,
            Loader,
            "sums are used before the last products are there",
            r#"asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");"#,
            "",
        ),
        (Cuda, Loader, "the last piece is not given back", "    ring.release(before);\n}", "}"),
        (Cuda, Loader, "both warpgroups multiply the same rows", "block.lane / 128 * 64 * 64", "0"),
        (Cuda, Loader, "every piece has the same columns", "b_row, column + i * 64", "b_row, column"),
        (Cuda, Loader, "both boxes have the same rows", "bring_right(b, b_row,", "bring_right(b, a_row,"),
        (
            Cuda,
            Parts,
            "parts are read before they are there",
            "if (group.lane == 0) arrived = poll(args, flags, index, peer, expected, site);",
            "",
        ),
        (
            Cuda,
            Parts,
            "a part is published before all lanes have stored theirs",
            "    group.sync();\n    if (group.lane == 0) store_release_system(flag, value);",
            "    if (group.lane == 0) store_release_system(flag, value);",
        ),
        (
            Cuda,
            Parts,
            "lanes store what others read",
            "first * lanes + lane * once, part",
            "first * lanes + (lane ^ 1) * once, part",
        ),
        (
            Cuda,
            Parts,
            "lanes read the same again",
            "from + first * lanes + lane * once",
            "from + lane * once",
        ),
        (
            Cuda,
            Shares,
            "a piece is brought ahead before the one there has been multiplied",
            " && phase_is_done(ring.empty + ring.piece, ring.parity ^ 1)",
            "",
        ),
        (
            Cuda,
            Shares,
            "what comes behind what was ahead is that again",
            "column + ahead * 64, pieces - ahead);",
            "column, pieces - ahead);",
        ),
        (
            Cuda,
            Shares,
            "sums are signalled before all lanes have stored theirs",
            "    group.sync();\n    if (group.lane == 0) store_release_device(flag, value);",
            "    if (group.lane == 0) store_release_device(flag, value);",
        ),
        (
            Cuda,
            Shares,
            "sums are added up before they are there",
            "arrived = poll_block(args, flags, first + i, block, expected, site);",
            "",
        ),
        (
            Cuda,
            Draws,
            "a number is taken before it has been drawn",
            "phase_done(drawn.full, drawn.parity);",
            "",
        ),
        (
            Cuda,
            Draws,
            "a number is drawn over one that not all have taken",
            "phase_done(drawn.empty, drawn.parity ^ 1);",
            "",
        ),
        (
            Cuda,
            Draws,
            "a number is gone while a warp has not taken it",
            "expect_arrivals(empty, Block::warps);",
            "expect_arrivals(empty, Block::warps - 1);",
        ),
        (
            Cuda,
            Draws,
            "a number is gone while a lane has not read it",
            "__syncwarp();  // all lanes have",
            "//",
        ),
        (Cuda, Draws, "no warp hears that a number is there", "        arrive_at(drawn.full);", ""),
        (
            Cuda,
            Draws,
            "the loader's parity stays as it is",
            "    }\n    drawn.parity ^= 1;\n    return shuffle",
            "    }\n    return shuffle",
        ),
        (
            Cuda,
            Draws,
            "the others' parity stays as it is",
            "    drawn.parity ^= 1;\n    return number;",
            "    return number;",
        ),
        (
            Cuda,
            Draws,
            "the counter is not set back",
            "if (loader.lane == 0) fetch_and(args.next_tile, 0u);",
            "",
        ),
        (
            Cuda,
            Fp8,
            "products of fp8 are not waited for",
            "        asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n#pragma unroll\n",
            "#pragma unroll\n",
        ),
        (
            Cuda,
            Fp8,
            "a piece of fp8 is multiplied before it has been brought",
            "i < pieces; ++i) {\n        phase_done(ring.full + ring.piece, ring.parity);",
            "i < pieces; ++i) {",
        ),
        (
            Cuda,
            Fp8,
            "both warpgroups multiply the same rows",
            "block.lane / 128 * 64 * Ring::columns);\n        const u64 right = matrix_in_shared(ring.right(ring.piece));\n        multiply_apart",
            "0);\n        const u64 right = matrix_in_shared(ring.right(ring.piece));\n        multiply_apart",
        ),
        (
            Cuda,
            Fp8,
            "a piece is given back before its products are there",
            "        multiply_apart(ring.room, sums, left, right);\n        ring.release(ring.piece);",
            "        ring.release(ring.piece);\n        multiply_apart(ring.room, sums, left, right);",
        ),
        (
            Cuda,
            Fp8,
            "pieces have half of their columns",
            "constexpr u32 piece_columns = 128",
            "constexpr u32 piece_columns = 64",
        ),
        (
            Cuda,
            Blocks,
            "the products of a block are not waited for",
            "    asm volatile(\"wgmma.wait_group.sync.aligned 0;\" ::: \"memory\");\n#pragma unroll\n",
            "#pragma unroll\n",
        ),
        (
            Cuda,
            Blocks,
            "a block is given back before its products are there",
            "    multiply_piece(block, ring, sums);\n",
            "    multiply_piece(block, ring, sums);\n    ring.release(ring.piece);\n",
        ),
        (
            Cuda,
            Blocks,
            "a block is not given back",
            "    ring.release(ring.piece);\n    ring.next();",
            "    ring.next();",
        ),
        (Cuda, Blocks, "all blocks have the second one's scales of rows", "after * 140 + row", "140 + row"),
        (
            Cuda,
            Blocks,
            "all blocks have the second one's scale of `w`",
            "[w_scales_index + after]",
            "[w_scales_index + 1]",
        ),
        (
            Cuda,
            Blocks,
            "a block has the scales of the next one",
            "scales_now[step][j] = scales[step][j];\n                scales[step][j] = x_scales_column_2[j];",
            "scales[step][j] = x_scales_column_2[j];\n                scales_now[step][j] = scales[step][j];",
        ),
        (
            Cuda,
            Quantised,
            "a scale is of half of a lane's neighbours",
            "apart < Lines::end; apart *= 2",
            "apart < Lines::end / 2; apart *= 2",
        ),
        (
            Cuda,
            Quantised,
            "lanes store half of their elements twice",
            "all.of[i + 4] = two.of[1];",
            "all.of[i + 4] = two.of[0];",
        ),
        (
            Cuda,
            Quantised,
            "scales of rows that are not there go to the next block's",
            "if (column == 0 && row < end)",
            "if (column == 0)",
        ),
        (
            Cuda,
            Gathered,
            "rows are brought before their piece is free",
            "        __syncwarp();\n#pragma unroll\n        for (u32 n = 0; n < each; ++n) {\n            const u32 row",
            "#pragma unroll\n        for (u32 n = 0; n < each; ++n) {\n            const u32 row",
        ),
        (
            Cuda,
            Gathered,
            "a lane brings its neighbour's rows",
            "a_row + n * Loader::lanes + loader.lane",
            "a_row + n * Loader::lanes + (loader.lane ^ 1)",
        ),
        (
            Cuda,
            Gathered,
            "scales are those of the rows of the result",
            "load_or_zero(p, index + number, end)",
            "load_or_zero(p, index + at, end)",
        ),
        (
            Cuda,
            GatheredByWarps,
            "a lane's rows are eight apart",
            "n * (Group::lanes / 8) + group.lane / 8",
            "n * 8 + group.lane / 8",
        ),
        (
            Hip,
            GatheredByWarps,
            "columns are read that are not there",
            "rows.numbers[n] != rows.none && column < end",
            "rows.numbers[n] != rows.none",
        ),
        (Hip, Warps, "a piece is multiplied before it is there", "group.sync();  // this piece is there", ""),
        (
            Hip,
            Warps,
            "a piece is overwritten before all are done with it",
            "group.sync();  // and all are done with it",
            "",
        ),
    ];
    let missed: Vec<String> = bugs
        .par_iter()
        .filter_map(|&(language, by, name, from, to)| {
            let runs = by.outcomes(language, |text| text.edited(from, to, 1));
            runs.iter().any(|run| run.wrong.is_empty()).then(|| format!("{language:?}, {by:?}: {name}"))
        })
        .collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    for (language, by) in
        [Warps, Warpgroups, Loader, Parts, Shares, Draws, Fp8, Blocks, Quantised, Gathered, GatheredByWarps]
            .map(|by| (Cuda, by))
            .into_iter()
            .chain([(Hip, Warps), (Hip, GatheredByWarps)])
    {
        let runs = by.outcomes(language, |text| text);
        assert!(runs.iter().all(|run| run.wrong.is_empty()), "{language:?}, {by:?}: {}", runs[0].wrong);
    }
}
