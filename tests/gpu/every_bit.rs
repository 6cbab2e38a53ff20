//! MoE's kernels of every kind, each right to the bit.

use std::sync::Arc;

use peerwarp::families::moe::kernels::{
    CombineDtype, Hook, IdType, Layout, Protocol, Quantise, ReturnDtype, RoundTrip,
};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::workload::Problem;
use peerwarp::runtime::gpu::Sharing;
use peerwarp::runtime::image::Images;
use peerwarp::runtime::{World, WorldOptions};
use rayon::prelude::*;
use serde_json::json;

use crate::{drawn, fitting, gpus, jit, one_launch, options, report, right, session, shape, two};

const ROUNDS: u32 = 4;
const SEED: u64 = 7;

/// Rounds that run one after the other, whose kernels are compiled side by side before.
struct Batch<'a> {
    world: &'a Arc<World>,
    all: Vec<(MoeRounds, u32)>,
}

impl Batch<'_> {
    fn new(world: &Arc<World>) -> Batch<'_> {
        Batch { world, all: vec![] }
    }

    /// Two launches a round, and so many replays of a graph behind.
    fn add(&mut self, tuning: &MoeTuning, n: &[u32], replays: u32) {
        let problem = drawn(tuning.key.shape, n, ROUNDS, SEED);
        let rounds = MoeRounds::new(&problem, &fitting(self.world, tuning), ROUNDS).unwrap();
        self.all.push((rounds, replays));
    }

    /// One launch a round.
    fn add_in_one_launch(&mut self, shape: &MoeShape, n: &[u32], replays: u32) {
        let (problem, config) = (drawn(*shape, n, ROUNDS, SEED), one_launch(self.world, shape));
        self.all.push((MoeRounds::in_one_launch(&problem, &config, ROUNDS).unwrap(), replays));
    }

    /// How many there were.
    fn right_to_the_bit(self) -> usize {
        let (jit, target) = (jit(), self.world.members()[0].gpu.info().target);
        // Into the cache, from which sessions take them.
        self.all.par_iter().flat_map_iter(|(rounds, _)| rounds.launches()).for_each(|launch| {
            jit.image(&*launch.variant, target).unwrap();
        });
        let cases = self.all.len();
        for (rounds, replays) in self.all {
            right(&mut session(self.world, rounds), replays);
        }
        cases
    }
}

#[test]
fn every_dtype_and_option_is_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    for sharing in [Sharing::Vmm, Sharing::Ipc] {
        let options = WorldOptions { sharing: Some(sharing), ..options() };
        let world = two(&gpus, &options);
        let mut all = Batch::new(&world);
        for dtype in [RowDtype::Bf16, RowDtype::Fp16, RowDtype::Fp8] {
            for (hidden, tokens, n) in
                [(2880, 37, [37, 0]), (64, 1, [1, 1]), (520, 9, [4, 9]), (1024, 16, [0, 0])]
            {
                for (dedup, split, hook, protocol, layout) in [
                    (true, false, Hook::None, Protocol::Flags, Layout::ExpertMajor),
                    (false, false, Hook::None, Protocol::Flags, Layout::ExpertMajor),
                    (true, true, Hook::None, Protocol::Flags, Layout::ExpertMajor),
                    (true, false, Hook::Expert, Protocol::Flags, Layout::ExpertMajor),
                    (true, false, Hook::None, Protocol::Packets, Layout::ExpertMajor),
                    (false, true, Hook::None, Protocol::Packets, Layout::ExpertMajor),
                    (true, false, Hook::Expert, Protocol::Packets, Layout::ExpertMajor),
                    (true, true, Hook::None, Protocol::Flags, Layout::RankMajor),
                    (true, false, Hook::Expert, Protocol::Flags, Layout::RankMajor),
                    (true, false, Hook::None, Protocol::Packets, Layout::RankMajor),
                    (true, true, Hook::Expert, Protocol::Packets, Layout::RankMajor),
                ] {
                    let shape = shape(hidden, tokens, dtype);
                    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap();
                    let tuning = tuning.with_dedup(dedup).with_split(split).with_hook(hook);
                    let tuning = tuning.with_protocol(protocol).with_layout(layout);
                    // Rows of 520 bytes are no whole number of packets.
                    if tuning.check(&shape).is_err() {
                        continue;
                    }
                    let one_launch =
                        (hook, protocol) == (Hook::Expert, Protocol::Packets) && tuning.semantics().weighs();
                    if one_launch {
                        all.add_in_one_launch(&shape, &n, 51);
                    }
                    let replays = if hook == Hook::Expert { 51 } else { 0 };
                    all.add(&tuning, &n, replays);
                }
            }
        }
        in_bulk(&mut all);
        scheduled_dynamically(&mut all);
        report("every bit", json!({ "sharing": sharing, "cases": all.right_to_the_bit() }));
    }
}

/// Rows in bulk, and several with a flag: by token, and one for each entry.
fn in_bulk(all: &mut Batch<'_>) {
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        for (hidden, tokens, n) in [(2880, 37, [37, 0]), (1024, 16, [9, 16])] {
            for (dedup, split, layout) in
                [(true, false, Layout::RankMajor), (false, true, Layout::ExpertMajor)]
            {
                for batch in [1, 4] {
                    let shape = shape(hidden, tokens, dtype);
                    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor)
                        .unwrap()
                        .with_dedup(dedup)
                        .with_split(split);
                    let mut tuning = tuning.with_protocol(Protocol::Bulk).with_layout(layout);
                    tuning.plan.combine.batch = batch;
                    (tuning.plan.dispatch.group_warps, tuning.plan.combine.group_warps) = (2, 1);
                    all.add(&tuning, &n, 0);
                }
            }
        }
    }
}

/// As many groups as draw what they send on two ranks, and rows for each: of one warp and of two, with a flag for a row and for
/// several, and few that send back and sum.
fn scheduled_dynamically(all: &mut Batch<'_>) {
    for (dtype, layout, split) in [
        (RowDtype::Bf16, Layout::RankMajor, false),
        (RowDtype::Fp8, Layout::RankMajor, true),
        (RowDtype::Bf16, Layout::ExpertMajor, false),
    ] {
        for (warps, group_warps, batch) in [(8, 1, 4), (16, 2, 1)] {
            let shape = shape(512, 2048, dtype);
            let tuning =
                MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().with_split(split);
            let mut tuning = tuning.with_protocol(Protocol::Flags).with_layout(layout);
            let (dispatch, combine) = (&mut tuning.plan.dispatch, &mut tuning.plan.combine);
            (dispatch.warps, dispatch.group_warps) = (warps, group_warps);
            (dispatch.send_blocks, dispatch.recv_blocks) = (64, 16);
            (combine.warps, combine.group_warps, combine.batch) = (warps, group_warps, batch);
            (combine.send_blocks, combine.recv_blocks) = (8, 4);
            all.add(&tuning, &[2048, 1311], 0);
        }
    }
}

fn defaults(shape: &MoeShape, layout: Layout) -> MoeTuning {
    MoeTuning::defaults_with(shape, Hook::None, layout).unwrap()
}

/// Tokens of a rank at most, and of each.
const SIZES: [(u32, [u32; 2]); 3] = [(3, [3, 1]), (48, [48, 20]), (700, [700, 333])];

#[test]
fn rows_of_every_kind_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let mut all = Batch::new(&world);
    for (tokens, n) in SIZES {
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            for (row, scales) in [(4, 0), (1028, 36), (3584, 448), (64, 2048)] {
                let shape = shape(2048, tokens, RowDtype::Bytes { row, scales });
                all.add(&defaults(&shape, layout), &n, 0);
            }
            for (dtype, hidden) in [
                (RowDtype::Fp8, 7168),
                (RowDtype::Fp8, 2880),
                (RowDtype::Fp8Ue8m0, 2880),
                (RowDtype::Fp8Fnuz, 7168),
                (RowDtype::Int8, 2880),
                (RowDtype::Mxfp8, 7168),
                (RowDtype::Nvfp4, 7168),
            ] {
                let shape = shape(hidden, tokens, dtype);
                for (from, combined) in
                    [(Quantise::Bf16, CombineDtype::Bf16), (Quantise::Fp16, CombineDtype::Fp16)]
                {
                    let tuning = defaults(&shape, layout).with_quantise(from).unwrap();
                    all.add(&tuning.with_combined(combined), &n, 0);
                }
            }
        }
    }
    report("rows of every kind", json!({ "cases": all.right_to_the_bit() }));
}

#[test]
fn rows_that_come_back_quantised_and_few_places_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let mut all = Batch::new(&world);
    for (tokens, n) in SIZES {
        for (layout, dtype, hidden) in [
            (Layout::RankMajor, RowDtype::Bf16, 7168),
            (Layout::ExpertMajor, RowDtype::Bf16, 2880),
            (Layout::ExpertMajor, RowDtype::Fp16, 7168),
        ] {
            let shape = shape(hidden, tokens, dtype);
            for combine_dtype in [ReturnDtype::Fp8, ReturnDtype::Fp8Token, ReturnDtype::Nvfp4] {
                let tuning = defaults(&shape, layout).with_combine_dtype(combine_dtype).unwrap();
                for protocol in [Protocol::Flags, Protocol::Packets] {
                    let mut tuning = tuning.clone().with_protocol(protocol);
                    let dispatch = &mut tuning.plan.dispatch;
                    dispatch.warps = dispatch.warps.min(16);
                    all.add(&tuning, &n, 0);
                }
                let weighted = tuning.with_layout(Layout::RankMajor).with_weighted(true);
                all.add(&weighted.with_split(true), &n, 0);
            }
        }
        let shape = shape(1024, tokens, RowDtype::Bf16);
        for (layout, max_rows) in [
            (Layout::ExpertMajor, 2 * tokens + 1),
            (Layout::ExpertMajor128, 128),
            (Layout::ExpertStrided, tokens.div_ceil(4)),
        ] {
            all.add(&defaults(&shape, layout).with_max_rows(max_rows), &n, 0);
            let flags = defaults(&shape, layout).with_protocol(Protocol::Flags);
            all.add(&flags.with_max_rows(max_rows).with_split(true), &n, 0);
        }
    }
    report("rows that come back", json!({ "cases": all.right_to_the_bit() }));
}

/// Tables that change from round to round, ids of 64 bits, and counts of entries: of experts, and of those that have no slot.
#[test]
fn experts_in_slots_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let mut all = Batch::new(&world);
    for (tokens, n) in SIZES {
        for (dtype, layout) in [
            (RowDtype::Bf16, Layout::RankMajor),
            (RowDtype::Bf16, Layout::ExpertMajor),
            (RowDtype::Fp8, Layout::ExpertMajor128),
        ] {
            let shape = shape(2880, tokens, dtype);
            // Fewer slots than experts, as many, and more.
            for (slots, replicas, ids) in [(5, 1, IdType::I64), (8, 1, IdType::I32), (12, 3, IdType::I64)] {
                let tuning = defaults(&shape, layout).with_placement(slots, replicas).unwrap();
                let tuning = tuning.with_ids(ids).with_expert_load(true).with_missing(true);
                all.add(&tuning, &n, 0);
                all.add(&tuning.with_protocol(Protocol::Flags).with_split(true), &n, 0);
            }
        }
        let shape = shape(1024, tokens, RowDtype::Bf16);
        let plain = defaults(&shape, Layout::RankMajor).with_ids(IdType::I64);
        all.add(&plain.with_expert_load(true), &n, 0);
        let (problem, config) = (drawn(shape, &n, ROUNDS, SEED), one_launch(&world, &shape));
        let config =
            RoundTrip { expert_slots: 12, replicas: 3, ids: IdType::I64, expert_load: true, ..config };
        all.all.push((MoeRounds::in_one_launch(&problem, &config, ROUNDS).unwrap(), 0));
    }
    report("experts in slots", json!({ "cases": all.right_to_the_bit() }));
}
