//! Dispatch and combine as emitted, on small shapes, bit for bit against the reference, with every access checked.

use peerwarp::families::moe::kernels::{
    Bases, CombineDtype, Hook, Layout, Protocol, Quantise, ReturnDtype, RoundTrip, ScaleLayout, ScaleRounding,
};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};

use crate::build::{Language, Mode};
use crate::moe::{MoeHost, Plan};

/// Schedules of each case.
const SEEDS: std::ops::Range<u64> = 0..3;

fn small(shape: &MoeShape) -> MoeTuning {
    MoeTuning::defaults_with(shape, Hook::None, Layout::ExpertMajor).unwrap().small()
}

/// Three rounds in both languages.
#[track_caller]
fn run(problem: &MoeProblem, tuning: &MoeTuning) {
    for language in Language::ALL {
        run_plan(problem, tuning, Plan::new(language, 3));
    }
}

#[track_caller]
fn run_plan(problem: &MoeProblem, tuning: &MoeTuning, plan: Plan) {
    let host = MoeHost::new(problem, tuning, plan);
    host.run_clean(&host.program(Mode::Checked), SEEDS);
}

/// Three rounds of uniform routing with other numbers of tokens in each, from none to all.
fn ragged(shape: MoeShape) -> MoeProblem {
    let counts = |round: u32, rank: u32| (round * 5 + rank * 7 + 3) % (shape.tokens + 1);
    let round = |round| {
        let n: Vec<u32> = (0..shape.ranks).map(|rank| counts(round, rank)).collect();
        Routing::uniform(&shape, &n, round.into())
    };
    MoeProblem::with_rounds(shape, (0..3).map(round).collect(), 11).unwrap()
}

#[test]
fn bf16_in_groups_of_two_warps() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.group_warps, tuning.plan.dispatch.chunk) = (4, 2, 2);
    (tuning.plan.combine.warps, tuning.plan.combine.group_warps) = (4, 2);
    (tuning.plan.dispatch.send_blocks, tuning.plan.combine.recv_blocks) = (1, 1);
    run(&ragged(shape), &tuning);
}

#[test]
fn fp8_with_scales() {
    let shape = MoeShape { hidden: 264, experts: 12, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Fp8 };
    run(&ragged(shape), &small(&shape));
}

#[test]
fn fp8_with_scales_and_a_hook() {
    let shape = MoeShape { hidden: 136, experts: 5, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Fp8 };
    run(&ragged(shape), &small(&shape).with_hook(Hook::Expert));
}

#[test]
fn fp16_rows_for_every_expert_in_two_phases() {
    let shape = MoeShape { hidden: 96, experts: 8, topk: 4, tokens: 4, ranks: 2, dtype: RowDtype::Fp16 };
    run(&ragged(shape), &small(&shape).with_dedup(false).with_split(true).with_hook(Hook::Expert));
}

#[test]
fn rows_of_2880_elements_in_pieces() {
    let shape = MoeShape { hidden: 2880, experts: 6, topk: 2, tokens: 2, ranks: 2, dtype: RowDtype::Fp16 };
    let mut tuning = small(&shape);
    (tuning.plan.dispatch.vectors, tuning.plan.combine.vectors) = (2, 2);
    run(&ragged(shape), &tuning);
}

#[test]
fn masked_and_repeated_ids_and_a_rank_without_tokens() {
    let shape = MoeShape { hidden: 32, experts: 9, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Bf16 };
    let masked = [[-1, 3, -1], [-1, -1, -1], [9, 0, i32::MAX], [4, i32::MIN, 4]].concat();
    let repeated = [[5, 5, 5], [5, 1, 5], [8, 8, 0]].concat();
    let ids = [vec![masked.clone(), vec![], repeated.clone()], vec![vec![], repeated, masked]];
    let rounds = ids.map(|ids| Routing::with_weights(&shape, ids, 5)).into();
    let problem = MoeProblem::with_rounds(shape, rounds, 5).unwrap();
    let mut tuning = small(&shape);
    tuning.plan.dispatch.chunk = 1;
    run(&problem, &tuning);
    run(&problem, &tuning.with_dedup(false));
}

#[test]
fn rows_as_packets() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape).with_protocol(Protocol::Packets);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.group_warps, tuning.plan.dispatch.chunk) = (4, 2, 2);
    (tuning.plan.combine.warps, tuning.plan.combine.group_warps) = (4, 2);
    run(&ragged(shape), &tuning);
    run(&ragged(shape), &tuning.with_dedup(false).with_split(true));
}

#[test]
fn fp8_rows_with_scales_as_packets() {
    let shape = MoeShape { hidden: 272, experts: 12, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Fp8 };
    let tuning = small(&shape).with_protocol(Protocol::Packets);
    run(&ragged(shape), &tuning);
    run(&ragged(shape), &tuning.with_hook(Hook::Expert));
}

/// Rows that are bytes, with scales of a word, of several and of none.
#[test]
fn rows_as_bytes() {
    let shape = MoeShape { hidden: 384, experts: 8, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Nvfp4 };
    run(&ragged(shape), &small(&shape));
    run(&ragged(shape), &small(&shape).with_layout(Layout::RankMajor));
    let token = MoeShape { hidden: 528, dtype: RowDtype::Fp8Token, ..shape };
    let mut apart = small(&token).with_layout(Layout::RankMajor).with_protocol(Protocol::Packets);
    (apart.plan.dispatch.vectors, apart.plan.dispatch.send_blocks) = (1, 16);
    run(&ragged(token), &apart);
    let mxfp8 = MoeShape { dtype: RowDtype::Mxfp8, ..shape };
    run(&ragged(mxfp8), &small(&mxfp8));
    let bytes = MoeShape { dtype: RowDtype::Bytes { row: 1028, scales: 36 }, ..shape };
    run(&ragged(bytes), &small(&bytes));
}

/// Quantised by their senders, as packets and with flags, with blocks that are cut short; back in either type.
#[test]
fn rows_quantised_on_their_way() {
    let shape = MoeShape { hidden: 656, experts: 8, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Fp8 };
    let tuning = |shape: &MoeShape, from| small(shape).with_quantise(from).unwrap().small();
    run(&ragged(shape), &tuning(&shape, Quantise::Bf16).with_protocol(Protocol::Packets));
    run(
        &ragged(shape),
        &tuning(&shape, Quantise::Fp16).with_layout(Layout::RankMajor).with_protocol(Protocol::Flags),
    );
    let mxfp8 = MoeShape { hidden: 640, dtype: RowDtype::Mxfp8, ..shape };
    run(&ragged(mxfp8), &tuning(&mxfp8, Quantise::Bf16).with_combined(CombineDtype::Fp16));
    let up = tuning(&mxfp8, Quantise::Fp16).with_scale_rounding(ScaleRounding::Up);
    run(&ragged(mxfp8), &up.with_scale_layout(ScaleLayout::Tiles).with_layout(Layout::ExpertStrided));
    for dtype in [RowDtype::Fp8Fnuz, RowDtype::Int8, RowDtype::Nvfp4] {
        let shape = MoeShape { hidden: 640, dtype, ..shape };
        run(&ragged(shape), &tuning(&shape, Quantise::Bf16));
    }
    let words = MoeShape { dtype: RowDtype::Fp8Ue8m0, ..shape };
    let up = tuning(&words, Quantise::Bf16).with_scale_rounding(ScaleRounding::Up);
    run(&ragged(words), &up.with_scale_layout(ScaleLayout::Column).with_layout(Layout::RankMajor));
}

/// Back as fp8, with scales of blocks and of rows, of pieces that are cut short, and in one launch.
#[test]
fn rows_that_come_back_as_fp8() {
    let shape = MoeShape { hidden: 656, experts: 8, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Bf16 };
    let tuning = |dtype| small(&shape).with_combine_dtype(dtype).unwrap().small();
    let (by_block, by_row) = (tuning(ReturnDtype::Fp8), tuning(ReturnDtype::Fp8Token));
    run(&ragged(shape), &by_block.clone().with_protocol(Protocol::Packets));
    run(&ragged(shape), &by_block.clone().with_layout(Layout::RankMajor).with_protocol(Protocol::Flags));
    run(&ragged(shape), &by_block.with_dedup(false).with_protocol(Protocol::Packets));
    run(&ragged(shape), &by_row.clone().with_layout(Layout::RankMajor).with_protocol(Protocol::Packets));
    let four = MoeShape { hidden: 1184, ..shape };
    let by_sixteen = small(&four).with_combine_dtype(ReturnDtype::Nvfp4).unwrap().small();
    run(&ragged(four), &by_sixteen.clone().with_protocol(Protocol::Packets));
    run(&ragged(four), &by_sixteen.with_layout(Layout::RankMajor).with_protocol(Protocol::Flags));
    run(&ragged(shape), &by_row.with_protocol(Protocol::Flags).with_split(true));
    let two = MoeShape { ranks: 2, ..shape };
    run(&ragged(two), &small(&two).with_combine_dtype(ReturnDtype::Fp8).unwrap().small());
    for (language, dtype) in Language::ALL.into_iter().zip([RowDtype::Bf16, RowDtype::Fp8]) {
        let shape = MoeShape { dtype, tokens: 2, ..shape };
        let config = RoundTrip::defaults_with(&shape, ReturnDtype::Fp8).unwrap().small();
        let host = MoeHost::fused(&ragged(shape), &config, Plan::new(language, 1));
        host.run_clean(&host.program(Mode::Checked), SEEDS);
    }
}

#[test]
fn rounds_in_one_launch() {
    let bf16 = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let fp8 = MoeShape { hidden: 272, dtype: RowDtype::Fp8, ..bf16 };
    for shape in [bf16, fp8] {
        let config = RoundTrip::defaults(&shape).unwrap().small();
        let groups_of_two = RoundTrip { warps: 4, group_warps: 2, vectors: 1, ..config.clone() };
        for (language, config) in [(Language::ALL[0], &config), (Language::ALL[1], &groups_of_two)] {
            let plan = Plan { start_after: u32::MAX - 2, ..Plan::new(language, 4) };
            let host = MoeHost::fused(&ragged(shape), config, plan);
            host.run_clean(&host.program(Mode::Checked), SEEDS);
        }
    }
}

#[test]
fn rows_by_token() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape).with_layout(Layout::RankMajor);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.group_warps, tuning.plan.dispatch.chunk) = (4, 2, 2);
    run(&ragged(shape), &tuning.clone().with_protocol(Protocol::Flags));
    let fp8 = MoeShape { hidden: 272, experts: 12, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Fp8 };
    run(&ragged(fp8), &small(&fp8).with_layout(Layout::RankMajor).with_protocol(Protocol::Packets));
}

/// With gaps before the rows of experts; and at a fixed stride, which one expert's rows exceed.
#[test]
fn rows_by_expert_that_begin_apart() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let small =
        |shape: &MoeShape, layout| MoeTuning::defaults_with(shape, Hook::None, layout).unwrap().small();
    run(&ragged(shape), &small(&shape, Layout::ExpertMajor8).with_protocol(Protocol::Flags));
    run(&ragged(shape), &small(&shape, Layout::ExpertStrided));
    let shape = MoeShape { hidden: 64, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Fp16 };
    let ids = vec![vec![1, 1, 1, 1, 2, 1], vec![1, 3, 1, 0, 1, 1]];
    let routing = Routing::with_weights(&shape, ids, 5);
    let problem =
        MoeProblem::with_rounds(shape, vec![routing.clone(), routing.clone(), routing], 11).unwrap();
    for protocol in [Protocol::Flags, Protocol::Packets] {
        run(&problem, &small(&shape, Layout::ExpertStrided).with_protocol(protocol));
    }
    // Nine rows are the first rank's, of which five have a place, or three of each expert.
    for (layout, max_rows, protocol) in [
        (Layout::ExpertMajor, 5, Protocol::Flags),
        (Layout::ExpertMajor8, 8, Protocol::Packets),
        (Layout::ExpertStrided, 3, Protocol::Packets),
    ] {
        run(&problem, &small(&shape, layout).with_max_rows(max_rows).with_protocol(protocol));
    }
}

/// Bases that a block computes in memory, of few experts and of so many that blocks count some of them at once.
#[test]
fn bases_in_memory() {
    let few = MoeShape { hidden: 64, experts: 10, topk: 3, tokens: 5, ranks: 3, dtype: RowDtype::Bf16 };
    let many = MoeShape { experts: 4100, tokens: 2, ranks: 2, ..few };
    for (shape, layout, protocol) in [
        (few, Layout::ExpertMajor, Protocol::Flags),
        (few, Layout::ExpertStrided, Protocol::Packets),
        (few, Layout::RankMajor, Protocol::Packets),
        (many, Layout::ExpertMajor8, Protocol::Flags),
    ] {
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap().small();
        let mut tuning = tuning.with_protocol(protocol);
        (tuning.plan.dispatch.bases, tuning.plan.dispatch.chunk) = (Some(Bases::Memory), 2);
        run(&ragged(shape), &tuning);
    }
}

/// Through shared memory where the language can: with one warp a group and with two, with scales beside the rows, and several
/// rows with a flag.
#[test]
fn rows_in_bulk() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape).with_layout(Layout::RankMajor).with_protocol(Protocol::Bulk);
    tuning.plan.combine.batch = 2;
    run(&ragged(shape), &tuning);
    let fp8 = MoeShape { hidden: 272, experts: 12, topk: 3, tokens: 4, ranks: 3, dtype: RowDtype::Fp8 };
    let mut tuning = small(&fp8).with_layout(Layout::RankMajor).with_protocol(Protocol::Bulk);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.group_warps) = (4, 2);
    (tuning.plan.combine.warps, tuning.plan.combine.group_warps) = (4, 2);
    run(&ragged(fp8), &tuning);
}

/// Also where the owner sums, and where each entry has a row of its own.
#[test]
fn several_rows_with_a_flag() {
    let shape = MoeShape { hidden: 200, experts: 10, topk: 3, tokens: 5, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape).with_protocol(Protocol::Flags);
    tuning.plan.combine.batch = 2;
    run(&ragged(shape), &tuning);
    tuning.plan.combine.batch = 8;
    run(&ragged(shape), &tuning.with_dedup(false).with_split(true));
}

/// So many numbers for each of two groups of two warps, and of four of one, that scheduling is dynamic.
#[test]
fn dynamic_scheduling() {
    let shape = MoeShape { hidden: 136, experts: 10, topk: 4, tokens: 17, ranks: 4, dtype: RowDtype::Bf16 };
    let mut tuning = small(&shape).with_layout(Layout::RankMajor).with_protocol(Protocol::Flags);
    tuning.plan.combine.batch = 2;
    run(&ragged(shape), &tuning);
    let mut tuning = small(&shape).with_protocol(Protocol::Flags);
    let (dispatch, combine) = (&mut tuning.plan.dispatch, &mut tuning.plan.combine);
    (dispatch.warps, dispatch.group_warps, dispatch.send_blocks) = (4, 2, 1);
    (combine.warps, combine.group_warps, combine.send_blocks, combine.recv_blocks) = (4, 2, 1, 1);
    run(&ragged(shape), &tuning);
}

#[test]
fn epochs_that_wrap_around() {
    let shape = MoeShape { hidden: 32, experts: 8, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };
    let problem = MoeProblem::uniform(shape, &[3, 0, 2], 7).unwrap();
    for language in Language::ALL {
        let plan = Plan { start_after: u32::MAX - 3, ..Plan::new(language, 6) };
        run_plan(&problem, &small(&shape), plan);
        run_plan(&problem, &small(&shape).with_protocol(Protocol::Packets), plan);
    }
}

/// Blocks, groups and rows as they are tuned for a machine; only results are looked at.
fn as_tuned(hidden: u32, vectors: Option<(u32, u32)>) {
    let shape = MoeShape { hidden, experts: 128, topk: 8, tokens: 8, ranks: 4, dtype: RowDtype::Bf16 };
    let problem = MoeProblem::uniform(shape, &[8, 3, 8, 0], 8).unwrap();
    let mut tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap();
    (tuning.plan.dispatch.send_blocks, tuning.plan.dispatch.recv_blocks) = (4, 8);
    (tuning.plan.combine.send_blocks, tuning.plan.combine.recv_blocks) = (8, 4);
    if let Some(vectors) = vectors {
        (tuning.plan.dispatch.vectors, tuning.plan.combine.vectors) = vectors;
    }
    for language in Language::ALL {
        let host = MoeHost::new(&problem, &tuning, Plan::new(language, 2));
        // Ranks that all go alike, and ranks of similar paces: of very different ones the fast one would mostly poll.
        host.run_clean(&host.program(Mode::Fast), 8..10);
    }
}

#[test]
fn blocks_as_tuned() {
    as_tuned(2048, Some((4, 2)));
    // Half of the row, in as many pieces.
    as_tuned(1024, None);
}
