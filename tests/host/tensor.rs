//! Products in tensor memory: mistakes that the printer or a template could have made, each of which the run finds by its own words,
//! and that columns are given back when a wait expires.

use std::ops::Range;

use peerwarp::families::matmul::{AllGatherMatmul, GroupedMatmul, Matmul, MatmulReduceScatter};
use rayon::prelude::*;

use crate::build::{Language::Blackwell, Mode, Text};
use crate::workload::{Outcome, outcomes, outcomes_in, run_as};

/// How a block multiplies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    /// One thread of a loader's warps: several tiles a block, several pieces a tile.
    Ring,
    /// One thread of the warps that bring operands.
    Block,
    /// One thread of a loader's warps, with scales of blocks: of fp8, and of e2m1.
    Scaled,
    Nvfp4,
    /// One thread of the first of two blocks: three rows of tiles, so that one of a pair is empty.
    Pair,
}

impl By {
    fn outcomes(self, seeds: Range<u64>, edit: impl FnOnce(Text) -> Text) -> Vec<Outcome> {
        let key = "n=40 k=136 ranks=2 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 blocks=1 warps=8";
        match self {
            By::Ring => outcomes::<Matmul>(Blackwell, &format!("m=400 order=strided {key}"), seeds, edit),
            By::Nvfp4 => {
                let key = "m=300 n=264 k=1280 ranks=1 dtype=u32 scales=nvfp4 stages=3 blocks=2";
                outcomes::<Matmul>(Blackwell, &format!("{key} warps=8 order=strided"), seeds, edit)
            }
            By::Scaled => {
                let key = "m=400 n=264 k=640 ranks=1 dtype=fp8 scales=mx tile_rows=128 tile_columns=128";
                outcomes::<Matmul>(
                    Blackwell,
                    &format!("{key} stages=3 blocks=2 warps=8 order=strided"),
                    seeds,
                    edit,
                )
            }
            By::Pair => {
                let key =
                    "m=300 n=136 k=136 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 blocks=2 warps=8";
                outcomes::<Matmul>(Blackwell, &format!("{key} pair=true order=strided"), seeds, edit)
            }
            By::Block => {
                let settings = format!("m=280 {key} chunk=512 send_blocks=1 together=false");
                outcomes::<AllGatherMatmul>(Blackwell, &settings, seeds, edit)
            }
        }
    }
}

/// A mistake: how a block multiplies, what is wrong, the text there and what stands there instead, and words of what is found. A verdict
/// is that results differ.
type Mistake = (By, &'static str, &'static str, &'static str, &'static str);

const MISTAKES: [Mistake; 24] = [
    (
        By::Ring,
        "a warp reads another one's lanes",
        "(lane / 32 % 4 << 21)",
        "((lane / 32 + 1) % 4 << 21)",
        "loads lanes from",
    ),
    (By::Ring, "a warp reads another one's columns", "Part::first_column(lane);", "0;", "Verdict"),
    (
        By::Ring,
        "no fence after sums are ready",
        "fence_after_meeting();\n    add_sums",
        "add_sums",
        "sums are loaded, and nothing orders that after their product",
    ),
    (
        By::Ring,
        "no fence before sums are said to be taken",
        "    fence_before_meeting();\n    __syncwarp();",
        "    __syncwarp();",
        "nothing orders that after a load of the old ones",
    ),
    (
        By::Ring,
        "no fence after a piece has been brought",
        "            fence_after_meeting();\n            ring.made()",
        "            ring.made()",
        "nothing orders a product after its columns were taken|race",
    ),
    (
        By::Ring,
        "sums are read before they are ready",
        "    phase_done(ring.ready + ring.sums, ring.sums_parity);\n",
        "",
        "sums are loaded that no product has made|nothing orders that after their product",
    ),
    (
        By::Ring,
        "sums are made anew before they are taken",
        "if (begins) phase_done(ring.taken + ring.sums, ring.sums_parity ^ 1);",
        "",
        "nothing orders that after a load of the old ones",
    ),
    (
        By::Ring,
        "one warp's sums are not waited for",
        "expect_arrivals(taken + i, Block::warps);",
        "expect_arrivals(taken + i, Block::warps - 1);",
        "nothing orders that after a load of the old ones|deadlock",
    ),
    (
        By::Ring,
        "both sums lie in the same columns",
        "return {first + sums * Sums<M, N>::columns};",
        "return {first};",
        "nothing orders that after",
    ),
    (
        By::Ring,
        "products are committed before they are begun",
        "            ring.made().multiply(ring.left(ring.piece), ring.right(ring.piece), !begins);\n            \
         commit_products(ring.empty + ring.piece);",
        "            commit_products(ring.empty + ring.piece);\n            \
         ring.made().multiply(ring.left(ring.piece), ring.right(ring.piece), !begins);",
        "race",
    ),
    (By::Ring, "a piece is not given back", "commit_products(ring.empty + ring.piece);", "", "deadlock"),
    (
        By::Ring,
        "loads are not waited for",
        r#"asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");"#,
        "",
        "loads are not waited for",
    ),
    (
        By::Ring,
        "columns are not given back",
        "give_columns<Ring::columns_taken>(ring.first);",
        "",
        "512 columns are not given back|128 columns are not given back",
    ),
    (
        By::Ring,
        "columns are given back before sums are taken",
        "            phase_done(ring.taken + ring.sums, ring.sums_parity ^ 1);\n            ring.next_sums();",
        "            ring.next_sums();",
        "columns are given back",
    ),
    (
        By::Ring,
        "too few columns are taken",
        "columns_taken = 2 * Sums<M, N>::columns",
        "columns_taken = Sums<M, N>::columns",
        "is not the block's",
    ),
    (
        By::Ring,
        "columns are no power of two",
        "columns_taken = 2 * Sums<M, N>::columns",
        "columns_taken = 3 * Sums<M, N>::columns",
        "a power of two from 32 to 512",
    ),
    (
        By::Ring,
        "the permit is given up before columns are taken",
        "    asm volatile(\"tcgen05.alloc",
        "    asm volatile(\"tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\" ::: \"memory\");\n    \
         asm volatile(\"tcgen05.alloc",
        "after the permit was given up",
    ),
    (By::Ring, "a descriptor's fixed bits are missing", " | u64(1) << 46", "", "bits 46 to 48"),
    (
        By::Ring,
        "eight rows are one unit too far apart",
        "u64(1024 >> 4) << 32",
        "u64((1024 >> 4) + 1) << 32",
        "Verdict|uninitialised|race",
    ),
    (
        By::Ring,
        "16 bytes change places as in rows of 64",
        "u64(2) << 61",
        "u64(4) << 61",
        "Verdict|uninitialised|middle of eight rows",
    ),
    (
        By::Ring,
        "an operand begins one unit too far",
        "& 0x3ffff) >> 4;",
        "& 0x3ffff) + 16 >> 4;",
        "Verdict|uninitialised|race",
    ),
    (
        By::Ring,
        "a product has half of its rows",
        "M / 16 << 24",
        "M / 32 << 24",
        "Verdict|no product has made",
    ),
    (By::Ring, "elements are of another type", "1u << 4 | 1u << 7 | 1u << 10", "1u << 4", "Verdict"),
    (
        By::Ring,
        "the first piece is added to what was there",
        "!begins);",
        "true);",
        "added to sums that no product has made",
    ),
];

const MISTAKES_OF_BLOCKS: [Mistake; 6] = [
    (
        By::Block,
        "a piece's products are not waited for",
        "        memory.wait();\n",
        "",
        "race|nothing orders|Verdict",
    ),
    (
        By::Block,
        "products begin before all have brought theirs",
        "block.sync();  // this piece is there",
        "",
        "race|uninitialised",
    ),
    (
        By::Block,
        "no fence before the next product",
        "    fence_before_meeting();\n    block.sync();  // the room",
        "    block.sync();  // the room",
        "nothing orders that after a load of the old ones",
    ),
    (
        By::Block,
        "no fence after products are made",
        "    fence_after_meeting();\n    add_sums",
        "    add_sums",
        "sums are loaded, and nothing orders that after their product",
    ),
    (
        By::Block,
        "no fence before columns are given back",
        "~TensorMemory() {\n        fence_before_meeting();",
        "~TensorMemory() {",
        "columns are given back, and nothing orders that after a load",
    ),
    (
        By::Block,
        "columns are not given back",
        "if (block.lane / 32 == 0) give_columns<Columns>(first);",
        "",
        "64 columns are not given back",
    ),
];

const MISTAKES_OF_PAIRS: [Mistake; 12] = [
    (
        By::Pair,
        "one block hears of its commits alone",
        "\"h\"(static_cast<unsigned short>(3))",
        "\"h\"(static_cast<unsigned short>(1))",
        "deadlock",
    ),
    (
        By::Pair,
        "products begin before the other block's half is there",
        "\"n\"(2 * rows_bytes)",
        "\"n\"(rows_bytes)",
        "race|uninitialised|Verdict|deadlock",
    ),
    (
        By::Pair,
        "boxes count at the barriers of the block that brings them",
        "\"l\"(in_first_of_pair(full + piece))",
        "\"l\"(__cvta_generic_to_shared(full + piece))",
        "deadlock",
    ),
    (
        By::Pair,
        "either block brings the other one's half",
        "b_row + number_in_pair() * (N / 2)",
        "b_row + (1 - number_in_pair()) * (N / 2)",
        "Verdict",
    ),
    (By::Pair, "both blocks bring the first half", "b_row + number_in_pair() * (N / 2)", "b_row", "Verdict"),
    (
        By::Pair,
        "a block leaves while the other one multiplies what it has",
        "__syncwarp();\n        fence_before_meeting();\n        meet_pair();",
        "__syncwarp();\n        fence_before_meeting();",
        "columns are given back|is not the block's",
    ),
    (
        By::Pair,
        "the first block does not wait for sums that the other one takes",
        "expect_arrivals(taken + i, 2 * Block::warps);",
        "expect_arrivals(taken + i, Block::warps);",
        "nothing orders that after a load of the old ones|deadlock",
    ),
    (
        By::Pair,
        "warps say to their own block that sums are taken",
        "arrive_at_first(ring.taken + ring.sums);",
        "arrive_at(ring.taken + ring.sums);",
        "deadlock",
    ),
    (
        By::Pair,
        "both blocks multiply",
        "loader.lane == 0 && number_in_pair() == 0",
        "loader.lane == 0",
        "the second block of a pair multiplies|deadlock",
    ),
    (
        By::Pair,
        "a product has the first block's rows",
        "2 * M / 16 << 24",
        "M / 16 << 24",
        "a pair's product of 128 rows",
    ),
    (
        By::Pair,
        "columns are taken for one block",
        "tcgen05.alloc.cta_group::2",
        "tcgen05.alloc.cta_group::1",
        "some instructions are for one block, and others for a pair",
    ),
    (
        By::Pair,
        "blocks begin before the other one has",
        "        meet_pair();\n        fence_after_meeting();\n        first = words[Stages];",
        "        __syncthreads();\n        fence_after_meeting();\n        first = words[Stages];",
        "no thread has begun|race|nothing orders a product after its columns were taken|columns are not given back",
    ),
];

const MISTAKES_OF_SCALES: [Mistake; 21] = [
    (
        By::Scaled,
        "scales are of another 128 columns",
        "a_words + i * tile",
        "a_words + (i ^ 1) * tile",
        "Verdict|outside|uninitialised|bounds",
    ),
    (By::Scaled, "scales are of other rows", "u64(b_row / 128) * Words", "u64(0) * Words", "Verdict"),
    (
        By::Scaled,
        "scales of either operand change places",
        "\"r\"(a_scales), \"r\"(b_scales)",
        "\"r\"(b_scales), \"r\"(a_scales)",
        "Verdict",
    ),
    (
        By::Scaled,
        "each 32 columns have the first ones' scales",
        "byte << 4 | 1u << 23",
        "1u << 23",
        "Verdict",
    ),
    (
        By::Scaled,
        "left rows have the next columns' scales",
        "| byte << 29;",
        "| (byte ^ 1) << 29;",
        "Verdict",
    ),
    (
        By::Scaled,
        "right scales are copied to the left ones' columns",
        "copy_scales_later(to + i * columns + M / 32, scales",
        "copy_scales_later(to + i * columns, scales",
        "scales are read that no copy has brought",
    ),
    (
        By::Scaled,
        "right scales are one column too far",
        "copy_scales_later(to + i * columns + M / 32, scales",
        "copy_scales_later(to + i * columns + M / 32 + 1, scales",
        "scales are read that no copy has brought|Verdict",
    ),
    (
        By::Scaled,
        "eight rows of scales are too far apart",
        "u64(128 >> 4) << 32 | (u64(__cvta_generic_to_shared(words))",
        "u64(256 >> 4) << 32 | (u64(__cvta_generic_to_shared(words))",
        "Verdict|uninitialised|race|mbarrier",
    ),
    (
        By::Scaled,
        "a piece has the scales of the stage before",
        "ring.scales(ring.piece), ring.scale_columns(), !begins",
        "ring.scales(ring.piece == 0 ? Ring::stages - 1 : ring.piece - 1), ring.scale_columns(), !begins",
        "Verdict|uninitialised|race",
    ),
    (
        By::Scaled,
        "products are begun before the scales are copied",
        "for (u32 i = 0; i < words; ++i) {",
        "for (u32 i = words; i < words; ++i) {",
        "scales are read that no copy has brought",
    ),
    (
        By::Scaled,
        "no fence after a piece and its scales have been brought",
        "            fence_after_meeting();\n            if constexpr (Ring::scale_words > 0) {",
        "            if constexpr (Ring::scale_words > 0) {",
        "nothing orders a copy after its columns were taken|race",
    ),
    (
        By::Scaled,
        "a piece is given back before its scales are copied",
        "            if constexpr (Ring::scale_words > 0) {",
        "            commit_products(ring.empty + ring.piece);\n            if constexpr (Ring::scale_words > 0) {",
        "race|Verdict|mbarrier|deadlock",
    ),
    (
        By::Scaled,
        "the bytes of scales are not expected",
        "* sizeof(T) + scales_bytes;",
        "* sizeof(T);",
        "race|uninitialised|Verdict|deadlock",
    ),
    (By::Scaled, "scales are said to be e4m3", "1u << 23 | N / 8", "N / 8", "are not ue8m0"),
    (
        By::Scaled,
        "scales lie where sums do",
        "return first + 2 * Sums<M, N>::columns + piece",
        "return first + piece",
        "nothing orders that after|no product has made|Verdict|no copy has brought",
    ),
    (
        By::Scaled,
        "no columns are taken for scales",
        "(ScaleWords > 0 ? 4 : 2) * Sums<M, N>::columns",
        "2 * Sums<M, N>::columns",
        "is not the block's",
    ),
    (
        By::Nvfp4,
        "all e2m1 of a piece have the first ones' scales",
        "k % words * columns",
        "0 * columns",
        "Verdict",
    ),
    (
        By::Nvfp4,
        "the next word of scales is copied",
        "scales_in_shared(scales + i * M)",
        "scales_in_shared(scales + (i ^ 1) * M)",
        "Verdict",
    ),
    (
        By::Nvfp4,
        "one word of four is brought",
        "\"n\"(ScaleWords * 512)",
        "\"n\"(512)",
        "uninitialised|deadlock|Verdict",
    ),
    (By::Nvfp4, "right elements are of another type", "1u << 7 | 1u << 10", "1u << 7", "are not e2m1"),
    (By::Nvfp4, "scales begin inside a word", "words == 1 ? k : 0", "k", "begin inside a word"),
];

/// Sums of 256 rows, which two instructions make; of 256 columns, the most; and of 64 rows, whose columns warps share.
#[test]
fn sums_of_every_shape() {
    let key = "k=136 ranks=2 stages=2 blocks=1";
    for shape in [
        "m=300 n=136 dtype=bf16 tile_rows=256 tile_columns=128 warps=8",
        "m=140 n=264 dtype=fp16 tile_rows=128 tile_columns=256 warps=8",
        "m=70 n=264 dtype=bf16 tile_rows=64 tile_columns=256 warps=8",
    ] {
        run_as::<Matmul>(&[Blackwell], &format!("{shape} {key}"));
    }
    run_as::<Matmul>(
        &[Blackwell],
        "m=300 n=72 k=272 dtype=fp8 scales=block tile_rows=256 tile_columns=64 warps=8 stages=2 blocks=1",
    );
    // Few rows, whose scales fill no tile, by four warps; and more pieces than stages, by blocks that draw tiles.
    run_as::<Matmul>(&[Blackwell], "m=9 n=72 k=128 dtype=fp8 scales=mx warps=4 stages=2 blocks=1");
    let all = "bias=true activation=swiglu order=counter";
    run_as::<Matmul>(&[Blackwell], &format!("m=260 n=288 k=640 dtype=fp8 scales=mx stages=4 blocks=2 {all}"));
    run_as::<Matmul>(
        &[Blackwell],
        "m=140 n=72 k=512 dtype=u32 scales=nvfp4 warps=4 stages=2 blocks=1 bias=true",
    );
    // A row's scale of the result is of the sums of one warp, or of two tiles of gates.
    for rest in [
        "m=140 n=256 k=256 dtype=fp8 scales=mx blocks=2 bias=true",
        "m=40 n=512 k=128 dtype=fp8 scales=mx blocks=1 activation=swiglu",
        "m=140 n=128 k=512 dtype=u32 scales=nvfp4 blocks=1",
    ] {
        run_as::<Matmul>(&[Blackwell], &format!("{rest} stages=2 out=fp8"));
    }
    let gates = "groups=2 n=256 k=256 dtype=fp8 scales=mx rows=300 align=128 blocks=2 stages=2";
    run_as::<GroupedMatmul>(&[Blackwell], &format!("{gates} activation=swiglu out=fp8"));
    let groups = "groups=3 n=128 k=256 dtype=u32 scales=nvfp4 rows=600 align=128 blocks=2";
    run_as::<GroupedMatmul>(&[Blackwell], groups);
    let groups = "groups=3 n=256 k=384 dtype=fp8 scales=mx weighted=true stages=3 blocks=3";
    run_as::<GroupedMatmul>(&[Blackwell], &format!("{groups} rows=700 align=128 bias=true"));
    run_as::<GroupedMatmul>(&[Blackwell], &format!("{groups} rows=768 stride=256 activation=swiglu"));
}

/// Two blocks with sums of 128 or 256 rows each, of every width and type, of groups with few rows or none, and of rows that a list names.
#[test]
fn pairs_of_blocks_multiply() {
    let key = "stages=2 pair=true order=strided";
    for shape in [
        "m=600 n=136 k=136 dtype=bf16 tile_rows=256 tile_columns=128 warps=8 blocks=2",
        "m=140 n=288 k=200 dtype=fp16 tile_rows=128 tile_columns=256 warps=8 blocks=4 bias=true activation=swiglu",
        "m=300 n=72 k=272 dtype=fp8 scales=block tile_rows=256 tile_columns=64 warps=8 blocks=2",
        "m=9 n=24 k=144 dtype=fp8 scales=row blocks=2",
        "m=256 n=256 k=256 dtype=fp8 scales=row tile_columns=128 out=fp8 blocks=2",
    ] {
        run_as::<Matmul>(&[Blackwell], &format!("{shape} {key}"));
    }
    let groups = "groups=3 n=72 k=136 dtype=bf16 tile_rows=128 blocks=4 height=2";
    run_as::<GroupedMatmul>(&[Blackwell], &format!("{groups} rows=500 {key} weighted=true"));
    run_as::<GroupedMatmul>(&[Blackwell], &format!("{groups} rows=300 gather=90 {key}"));
}

/// Rows of other ranks, and sums of theirs, of which the last row of tiles of a pair may be empty.
#[test]
fn pairs_of_blocks_wait_for_ranks() {
    let key = "n=72 k=136 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 warps=8 pair=true";
    let gathers = format!("{key} ranks=2 chunk=512 send_blocks=2 blocks=2");
    run_as::<AllGatherMatmul>(&[Blackwell], &format!("m=512 {gathers} bias=true gathered=true"));
    run_as::<AllGatherMatmul>(&[Blackwell], &format!("m=256 {gathers} together=true"));
    let scatters = format!("{key} blocks=4");
    run_as::<MatmulReduceScatter>(
        &[Blackwell],
        &format!("m=600 ranks=2 {scatters} algorithm=push bias=true"),
    );
    run_as::<MatmulReduceScatter>(&[Blackwell], &format!("m=390 ranks=3 {scatters} algorithm=pull"));
    run_as::<MatmulReduceScatter>(
        &[Blackwell],
        &format!("m=300 ranks=2 {scatters} algorithm=pull early=true"),
    );
}

/// What the first block of a pair reads of the world is what both begin with.
#[test]
fn pairs_of_blocks_begin_or_leave_together() {
    let key = "m=512 n=40 k=136 ranks=2 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 warps=8";
    let key = format!("{key} chunk=512 send_blocks=2 blocks=2 together=false pair=true");
    // Blocks 2 and 3 multiply; one of the two finds the world aborted.
    let finds = |block: u32, from: &str, to: &str| {
        let aborted = "const bool aborted = load_relaxed_system(&args.status[args.rank]->aborted) != 0;";
        let one = format!("const bool aborted = block_in_grid() == {block};");
        let edit = |text: Text| text.edited(aborted, &one, 1).edited(from, to, 1);
        outcomes_in::<AllGatherMatmul>(Mode::Fast, Blackwell, &key, 0..2, edit)
    };
    let verdict = "return first;";
    for outcome in finds(3, verdict, verdict) {
        assert!(outcome.wrong.is_empty(), "the second block leaves: {}", outcome.wrong);
    }
    for outcome in finds(2, verdict, verdict) {
        let both = outcome.wrong.contains("Verdict") && outcome.wrong.lines().count() == 1;
        assert!(both, "a block does not leave: {}", outcome.wrong);
    }
    for outcome in finds(3, verdict, "return epoch;") {
        assert!(outcome.wrong.contains("deadlock"), "the verdict is not shared: {}", outcome.wrong);
    }
    for outcome in finds(2, "meet_pair();  // the first block's memory is there until both have read it", "")
    {
        assert!(
            outcome.wrong.contains("of a block that has ended"),
            "a block leaves early: {}",
            outcome.wrong
        );
    }
}

#[test]
fn every_mistake_in_tensor_memory_is_found() {
    let missed: Vec<String> = [&MISTAKES[..], &MISTAKES_OF_BLOCKS, &MISTAKES_OF_SCALES, &MISTAKES_OF_PAIRS]
        .concat()
        .par_iter()
        .filter_map(|&(by, name, from, to, words)| {
            let runs = by.outcomes(0..1, |text| text.edited(from, to, 1));
            let found = |run: &Outcome| words.split('|').any(|w| run.wrong.contains(w));
            let other = runs.iter().find(|run| !found(run))?;
            let text: String = other.wrong.chars().take(300).collect();
            Some(format!("{by:?}: {name}: {}", if text.is_empty() { "nothing is found" } else { &text }))
        })
        .collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    for by in [By::Ring, By::Block, By::Scaled, By::Nvfp4, By::Pair] {
        let runs = by.outcomes(0..2, |text| text);
        assert!(runs.iter().all(|run| run.wrong.is_empty()), "{by:?}: {}", runs[0].wrong);
    }
}

/// Ranks that wait for rows which never come leave, and give their columns back.
#[test]
fn columns_are_given_back_when_a_wait_expires() {
    let never = |text: Text| {
        text.edited("if ((mask >> peer) & 1) store_release_system(flags[peer] + index, value);", "", 1)
    };
    let key = "n=40 k=136 ranks=2 dtype=bf16 tile_rows=128 tile_columns=64 stages=2 warps=8";
    let key = format!("{key} chunk=512 together=false");
    for (mode, rows, gives) in [
        // Tiles of whole rows: the loader brings what has not come, which would race and end the run.
        (Mode::Fast, "m=512 blocks=1 send_blocks=1", "give_columns<Ring::columns_taken>(ring.first);"),
        // The same of pairs, whose blocks go on with undefined rows, equally often.
        (
            Mode::Fast,
            "m=512 blocks=2 send_blocks=2 pair=true",
            "if (thread_in_block() / 32 == Block::warps + 1) give_columns<Ring::columns_taken>(ring.first);",
        ),
        // Others, whose warps leave.
        (
            Mode::Checked,
            "m=280 blocks=1 send_blocks=1",
            "if (block.lane / 32 == 0) give_columns<Columns>(first);",
        ),
    ] {
        let run = |edit: &dyn Fn(Text) -> Text| {
            outcomes_in::<AllGatherMatmul>(mode, Blackwell, &format!("{rows} {key}"), 0..2, edit)
        };
        for outcome in run(&never) {
            assert!(outcome.wrong.contains("Verdict"), "{rows}: no wait has expired: {}", outcome.wrong);
            assert!(!outcome.wrong.contains("tensor memory"), "{rows}: {}", outcome.wrong);
        }
        for outcome in run(&|text| never(text).edited(gives, "", 1)) {
            assert!(outcome.wrong.contains("columns are not given back"), "{rows}: {}", outcome.wrong);
        }
    }
}
