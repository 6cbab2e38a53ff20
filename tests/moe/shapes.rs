//! Shapes and routings that protocols get wrong.

use peerwarp::codegen::dsl::ParamSpec;
use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::ParamKind;
use peerwarp::families::moe::kernels::{
    CombineDtype, Count, Hook, Layout, Protocol, Quantise, RoundTrip, ScaleLayout, ScaleRounding,
};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};

use crate::support::{apart, in_one_launch, modes, run, run_fused, run_ids, run_sim, shape, small};

/// Three rounds of uniform routing with other tokens, ids and numbers of tokens in each, in all four modes.
fn run_ragged(shape: &MoeShape) {
    let counts = |round: u32, rank: u32| (round * 5 + rank * 7 + 3) % (shape.tokens + 1);
    let round = |round| {
        let n: Vec<u32> = (0..shape.ranks).map(|rank| counts(round, rank)).collect();
        Routing::uniform(shape, &n, round.into())
    };
    let problem = MoeProblem::with_rounds(*shape, (0..3).map(round).collect(), 11).unwrap();
    for tuning in modes(&small(shape)) {
        run(&problem, &tuning, 3);
    }
    run_fused(&problem, 3);
}

#[test]
fn every_type_in_every_mode_with_and_without_a_hook() {
    for &dtype in [RowDtype::Bf16, RowDtype::Fp16, RowDtype::Fp8].iter() {
        let shape = MoeShape { dtype, ..shape(264, 12, 3, 5, 3) };
        let problem = MoeProblem::uniform(shape, &[5, 2, 4], 1).unwrap();
        for tuning in modes(&small(&shape)) {
            run(&problem, &tuning.clone().with_hook(Hook::Expert), 2);
            run(&problem, &tuning, 2);
        }
        run_fused(&problem, 2);
    }
}

/// A group moves all scales of a row at once: of the longest rows of nvfp4, 1024 words.
#[test]
fn the_longest_rows_have_their_scales_in_every_mode() {
    let shape = MoeShape { dtype: RowDtype::Nvfp4, ..shape(65536, 6, 2, 2, 2) };
    let problem = MoeProblem::uniform(shape, &[2, 1], 5).unwrap();
    for tuning in modes(&small(&shape)) {
        run(&problem, &tuning, 2);
    }
}

/// Rows whose bytes are never read as numbers, with scales of any size or without: as flags and as packets, in parts of several groups,
/// and by the defaults for few tokens and for many.
#[test]
fn rows_as_bytes_in_every_mode() {
    let bytes =
        [(4, 0), (12, 8), (1028, 36), (64, 2048)].map(|(row, scales)| RowDtype::Bytes { row, scales });
    for &dtype in RowDtype::NAMED.iter().chain(&bytes).filter(|dtype| dtype.dispatched().is_none()) {
        let shape = MoeShape { dtype, ..shape(1152, 6, 2, 3, 2) };
        let problem = MoeProblem::uniform(shape, &[3, 2], 5).unwrap();
        for tuning in modes(&small(&shape)) {
            let combined = if tuning.key.split { CombineDtype::Fp16 } else { CombineDtype::Bf16 };
            let tuning = tuning.with_combined(combined);
            run(&problem, &tuning, 2);
            run(&problem, &tuning.with_layout(Layout::ExpertMajor).with_protocol(Protocol::Flags), 2);
        }
        let mut apart = small(&shape).with_layout(Layout::RankMajor).with_protocol(Protocol::Packets);
        (apart.plan.dispatch.vectors, apart.plan.dispatch.send_blocks) = (1, 16);
        if apart.check(&shape).is_ok() {
            run(&problem, &apart, 2);
        }
        for tokens in [3, 300] {
            let shape = MoeShape { tokens, ..shape };
            let problem = MoeProblem::uniform(shape, &[3, 1], 6).unwrap();
            run(&problem, &MoeTuning::defaults(&shape).unwrap(), 2);
        }
    }
}

/// Rows that dispatch quantises, with blocks of every size, of zeros, and cut short, in parts of several groups: what comes is the
/// reference's in every bit.
#[test]
fn rows_quantised_on_their_way() {
    for (dtype, hidden, quantise, rounding) in [
        (RowDtype::Fp8, 272, Quantise::Bf16, ScaleRounding::Floor),
        (RowDtype::Fp8, 1664, Quantise::Fp16, ScaleRounding::Floor),
        (RowDtype::Fp8Ue8m0, 272, Quantise::Fp16, ScaleRounding::Floor),
        (RowDtype::Fp8Ue8m0, 1672, Quantise::Bf16, ScaleRounding::Up),
        (RowDtype::Fp8Fnuz, 272, Quantise::Bf16, ScaleRounding::Floor),
        (RowDtype::Int8, 1672, Quantise::Fp16, ScaleRounding::Floor),
        (RowDtype::Nvfp4, 1216, Quantise::Bf16, ScaleRounding::Floor),
        (RowDtype::Nvfp4, 64, Quantise::Fp16, ScaleRounding::Floor),
        (RowDtype::Mxfp8, 384, Quantise::Bf16, ScaleRounding::Floor),
        (RowDtype::Mxfp8, 1664, Quantise::Fp16, ScaleRounding::Up),
    ] {
        let quantised =
            |tuning: MoeTuning| tuning.with_quantise(quantise).unwrap().with_scale_rounding(rounding);
        let shape = MoeShape { dtype, ..shape(hidden, 6, 2, 3, 3) };
        let problem = MoeProblem::uniform(shape, &[3, 2, 3], 5).unwrap();
        for tuning in modes(&quantised(small(&shape)).small()) {
            let combined = if tuning.key.split { CombineDtype::Fp16 } else { CombineDtype::Bf16 };
            run(&problem, &tuning.clone().with_combined(combined), 2);
            let hooked = tuning.with_hook(Hook::Expert);
            if hooked.check(&shape).is_ok() {
                run(&problem, &hooked, 2);
            }
        }
        // As tuned for few tokens and many: rank by rank, and in a ring.
        for tokens in [3, 32, 300] {
            let shape = MoeShape { tokens, ..shape };
            let problem = MoeProblem::uniform(shape, &[3, 1, 2], 6).unwrap();
            run(&problem, &quantised(MoeTuning::defaults(&shape).unwrap()), 2);
        }
    }
}

/// Scales of every size in every order: of rows by token, packed, aligned and at a stride, in one matrix or in one for each expert, whose
/// rows are no whole tiles; of rows that stay where they arrive, and of rows that do not.
#[test]
fn scales_stand_in_the_order_that_is_asked_for() {
    use ScaleLayout::{Column, Tiles};
    let of_type = [
        (RowDtype::Fp8, 272, Column),
        (RowDtype::Fp8Ue8m0, 1664, Column),
        (RowDtype::Nvfp4, 640, Tiles),
        (RowDtype::Mxfp8, 1152, Tiles),
        (RowDtype::Mxfp4, 384, Column),
        (RowDtype::Bytes { row: 64, scales: 36 }, 64, Column),
    ];
    for (dtype, hidden, order) in of_type {
        let shape = MoeShape { dtype, ..shape(hidden, 6, 2, 47, 3) };
        let problem = MoeProblem::uniform(shape, &[3, 47, 5], 5).unwrap();
        for tuning in modes(&small(&shape).with_scale_layout(order)) {
            run(&problem, &tuning, 2);
        }
        let tuning = small(&shape).with_scale_layout(order).with_protocol(Protocol::Flags);
        for layout in [Layout::ExpertMajor128, Layout::ExpertStrided] {
            run(&problem, &tuning.clone().with_layout(layout), 1);
        }
        run(&problem, &tuning.clone().with_layout(Layout::ExpertStrided).with_max_rows(7), 1);
        // Those that dispatch quantises.
        if let Ok(quantised) = tuning.with_quantise(Quantise::Bf16) {
            run(&problem, &quantised.small().with_layout(Layout::RankMajor), 1);
        }
    }
}

#[test]
fn plain_mode_is_the_loop_over_k_bit_for_bit() {
    let shape = shape(96, 16, 8, 6, 4);
    let problem = MoeProblem::uniform(shape, &[6; 4], 2).unwrap();
    let plain = run(&problem, &small(&shape).with_dedup(false), 2);
    assert_eq!((plain.max_abs_err, plain.max_rel_err), (0.0, 0.0));
    // Otherwise owners round: half a unit in the last place for each owner's part and for the sum.
    let dedup = run(&problem, &small(&shape), 2);
    assert!(dedup.max_abs_err > 0.0 && dedup.max_rel_err < 0.02, "{dedup:?}");
}

#[test]
fn numbers_of_tokens_that_change_from_round_to_round() {
    run_ragged(&shape(32, 8, 2, 6, 4));
    run_ragged(&shape(32, 8, 4, 9, 3));
}

#[test]
fn no_rank_has_tokens() {
    run_ids(&shape(32, 8, 2, 3, 4), vec![vec![]; 4]);
}

#[test]
fn one_rank_has_all_tokens() {
    let shape = shape(32, 8, 2, 5, 4);
    for source in 0..4 {
        let mut n = [0; 4];
        n[source] = 5;
        let problem = MoeProblem::uniform(shape, &n, 3).unwrap();
        run(&problem, &small(&shape), 3);
    }
}

#[test]
fn all_tokens_go_to_one_expert() {
    run_ids(&shape(32, 8, 1, 5, 4), vec![vec![6; 5]; 4]);
}

#[test]
fn all_tokens_go_to_one_rank() {
    run_ids(&shape(32, 8, 2, 5, 4), vec![[2, 3].repeat(5); 4]);
}

#[test]
fn all_tokens_stay() {
    let ids = (0..4).map(|rank| [rank * 2 + 1, rank * 2].repeat(5)).collect();
    run_ids(&shape(32, 8, 2, 5, 4), ids);
}

#[test]
fn masked_ids() {
    let tokens = [[-1, 3, -1], [-1, -1, -1], [9, 0, i32::MAX], [4, i32::MIN, 4]].concat();
    run_ids(&shape(32, 9, 3, 4, 2), vec![tokens.clone(), tokens]);
    run_ids(&shape(32, 9, 3, 4, 2), vec![vec![-1; 12], vec![-1; 12]]);
}

#[test]
fn repeated_ids() {
    run_ids(&shape(32, 8, 4, 3, 2), vec![[[5, 5, 5, 5], [5, 1, 5, 1], [0, 0, 7, 7]].concat(), vec![3; 4]]);
}

#[test]
fn experts_that_ranks_do_not_divide() {
    run_ragged(&shape(32, 10, 3, 5, 4));
    run_ragged(&shape(32, 7, 2, 5, 3));
}

#[test]
fn fewer_experts_than_ranks() {
    run_ragged(&shape(32, 3, 2, 4, 5));
    run_ragged(&shape(32, 1, 1, 4, 2));
}

#[test]
fn hidden_sizes_from_8_to_7168() {
    for (hidden, dtype) in
        [(8, RowDtype::Fp8), (8, RowDtype::Bf16), (136, RowDtype::Fp8), (2880, RowDtype::Fp16)]
    {
        run_ragged(&MoeShape { dtype, ..shape(hidden, 6, 2, 3, 2) });
    }
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        let shape = MoeShape { dtype, ..shape(7168, 16, 4, 2, 2) };
        let problem = MoeProblem::uniform(shape, &[2, 1], 9).unwrap();
        run(&problem, &MoeTuning::defaults(&shape).unwrap(), 2);
        run_sim(&in_one_launch(&problem, &RoundTrip::defaults(&shape).unwrap(), 2), 9);
    }
}

#[test]
fn topk_from_1_to_32() {
    run_ragged(&shape(32, 4, 1, 4, 2));
    run_ragged(&shape(32, 32, 32, 3, 2));
    run_ragged(&shape(32, 70, 32, 2, 4));
}

#[test]
fn one_to_sixty_four_ranks() {
    for ranks in [1, 2, 7, 16, 33] {
        let shape = shape(16, (2 * ranks - 1).max(2), 2, 2, ranks);
        let n: Vec<u32> = (0..ranks).map(|r| r % 3).map(|n| n.min(2)).collect();
        let problem = MoeProblem::uniform(shape, &n, 4).unwrap();
        run(&problem, &small(&shape), 2);
        run_fused(&problem, 2);
    }
    let shape = shape(8, 64, 3, 1, 64);
    let problem = MoeProblem::uniform(shape, &[1; 64], 4).unwrap();
    run(&problem, &small(&shape), 2);
}

#[test]
fn many_records_a_rank() {
    let shape = shape(16, 6, 2, 11, 3);
    let problem = MoeProblem::uniform(shape, &[11, 4, 0], 6).unwrap();
    for chunk in [1, 2, 4, 16] {
        let mut tuning = small(&shape);
        tuning.plan.dispatch.chunk = chunk;
        run(&problem, &tuning, 3);
    }
}

/// So many rows for few groups that all go to one rank, then all to the next one: three ranks, one without tokens.
#[test]
fn rows_that_go_rank_by_rank() {
    let shape = shape(64, 7, 2, 33, 3);
    let problem = MoeProblem::uniform(shape, &[33, 5, 0], 8).unwrap();
    for tuning in modes(&small(&shape)).into_iter().filter(|t| t.plan.way.out() == Protocol::Packets) {
        run(&problem, &tuning, 3);
    }
}

/// How many work counters dispatch and combine have.
fn counters(tuning: &MoeTuning) -> (usize, usize) {
    let (dispatch, combine) = (tuning.dispatch().into_variant(), tuning.combine().into_variant());
    let counters = |params: Vec<ParamSpec>| params.iter().filter(|p| p.kind == ParamKind::Counters).count();
    (counters(dispatch.params()), counters(combine.params()))
}

/// With as many numbers for each of six groups as make scheduling dynamic; by rank there are fewer, none, and as many.
#[test]
fn dynamic_scheduling() {
    let shape = shape(32, 8, 4, 25, 4);
    let n = |round: u32| [25, round * 3, 2, 9];
    let rounds = (0..3).map(|round| Routing::uniform(&shape, &n(round), round.into()));
    let problem = MoeProblem::with_rounds(shape, rounds.collect(), 5).unwrap();
    for (layout, protocol, batch, dedup, split) in [
        (Layout::ExpertMajor, Protocol::Flags, 1, true, false),
        (Layout::ExpertMajor, Protocol::Flags, 2, true, true),
        (Layout::ExpertMajor, Protocol::Flags, 1, false, false),
        (Layout::RankMajor, Protocol::Flags, 2, true, false),
        (Layout::RankMajor, Protocol::Bulk, 1, true, true),
    ] {
        let tuning = small(&shape).with_dedup(dedup).with_split(split);
        let mut tuning = tuning.with_protocol(protocol).with_layout(layout);
        tuning.plan.combine.batch = batch;
        // Where a slot goes to one rank, dynamic scheduling does not pay.
        assert_eq!(counters(&tuning), (dedup.into(), 2), "{tuning:?}");
        run(&problem, &tuning, 3);
    }
    assert_eq!(counters(&small(&shape).with_protocol(Protocol::Packets)), (0, 0));
    for (ranks, layout, dynamic) in
        [(2, Layout::RankMajor, 1), (2, Layout::ExpertMajor, 1), (8, Layout::ExpertMajor, 1)]
    {
        let shape = MoeShape { hidden: 7168, tokens: 4096, ranks, ..shape };
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
        assert_eq!(counters(&tuning), (dynamic, 2), "{tuning:?}");
    }
}

#[test]
fn rows_in_many_pieces() {
    let shape = shape(2880, 6, 2, 2, 2);
    let problem = MoeProblem::uniform(shape, &[2, 1], 6).unwrap();
    for vectors in [1, 2, 4, 8] {
        let mut tuning = small(&shape);
        (tuning.plan.dispatch.vectors, tuning.plan.combine.vectors) = (vectors, vectors);
        run(&problem, &tuning, 2);
    }
}

#[test]
fn defaults_of_a_served_model() {
    let shape = shape(2048, 128, 8, 8, 4);
    let problem = MoeProblem::uniform(shape, &[8, 3, 8, 0], 8).unwrap();
    run(&problem, &MoeTuning::defaults(&shape).unwrap(), 2);
}

#[test]
fn epochs_that_wrap_around() {
    let shape = shape(32, 8, 2, 3, 3);
    let problem = MoeProblem::uniform(shape, &[3, 0, 2], 7).unwrap();
    for tuning in modes(&small(&shape)) {
        let mut sim = apart(&problem, &tuning, 6);
        sim.start_after(u32::MAX - 3).unwrap();
        run_sim(&sim, 7);
    }
    let fused = RoundTrip::defaults(&shape).unwrap().small();
    let mut sim = in_one_launch(&problem, &fused, 6);
    sim.start_after(u32::MAX - 3).unwrap();
    run_sim(&sim, 7);
}

/// Records of more entries than a block has at once: by expert and by token, with flags, and as LL elements that senders have counted.
#[test]
fn records_in_parts() {
    let shape = shape(16, 12, 3, 600, 2);
    let problem = MoeProblem::uniform(shape, &[600, 411], 7).unwrap();
    for layout in [Layout::ExpertMajor, Layout::ExpertMajor8, Layout::RankMajor] {
        for protocol in [Protocol::Flags, Protocol::Packets] {
            let mut tuning = small(&shape).with_layout(layout).with_protocol(protocol);
            tuning.plan.dispatch.chunk = 512;
            tuning.plan.dispatch.count = Some(Count::Sender);
            // 1536 entries are one part and a half.
            assert_eq!(tuning.dispatch().record_entries(), 1536);
            run(&problem, &tuning, 2);
        }
    }
}
