//! Any legal configuration traces, verifies, prints for both vendors, and simulates equal to the reference.

use peerwarp::codegen::family::{Family, Target};
use peerwarp::codegen::ir;
use peerwarp::codegen::print::{self, EmitInfo};
use peerwarp::families::moe::kernels::{Combine, Dispatch, Hook, Layout, Protocol, RoundTrip};
use peerwarp::families::moe::plan::Way;
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use proptest::prelude::*;
use proptest::sample::select;

use crate::support::{in_one_launch, run, run_sim};

fn shapes() -> impl Strategy<Value = MoeShape> {
    let bytes = (1..=300u32, 0..=40u32)
        .prop_map(|(row, scales)| RowDtype::Bytes { row: 4 * row, scales: 4 * scales });
    let dtype = prop_oneof![8 => select(RowDtype::NAMED), 1 => bytes];
    (1..=45u32, 1..=40u32, 1..=6u32, 1..=9u32, 1..=6u32, dtype).prop_map(
        |(eighths, experts, topk, tokens, ranks, dtype)| MoeShape {
            hidden: 8 * eighths * if of_blocks(dtype) { 16 } else { 1 },
            experts,
            topk: topk.min(experts),
            tokens,
            ranks,
            dtype,
        },
    )
}

/// Whether rows are whole blocks, of which 128 elements are some.
fn of_blocks(dtype: RowDtype) -> bool {
    matches!(dtype, RowDtype::Mxfp8 | RowDtype::Nvfp4 | RowDtype::Mxfp4)
}

/// A legal tuning for a shape, not too many blocks for a test.
fn tunings(shape: MoeShape) -> impl Strategy<Value = MoeTuning> {
    let few = || select(vec![1u32, 2, 4]);
    let blocks = (few(), few(), few(), few());
    let warps = (select(vec![2u32, 4, 8]), select(vec![1u32, 2, 4]), select(vec![1u32, 2, 4, 8]));
    let protocol = (any::<[bool; 6]>(), select(vec![1u32, 2, 4, 8, 16]));
    (blocks, warps, warps_of_combine(), protocol).prop_filter_map("legal", move |(b, w, cw, p)| {
        let mut tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).ok()?;
        let ([dedup, split, hook, packets, packets_back, tokens], chunk) = p;
        let protocol = |packets| if packets { Protocol::Packets } else { Protocol::Flags };
        tuning.plan.way = Way::new(protocol(packets), protocol(packets_back))?;
        let d = &mut tuning.plan.dispatch;
        (d.send_blocks, d.recv_blocks, d.warps, d.group_warps, d.vectors) = (b.0, b.1, w.0, w.1, w.2);
        d.chunk = chunk;
        let c = &mut tuning.plan.combine;
        (c.send_blocks, c.recv_blocks, c.warps, c.group_warps, c.vectors) = (b.2, b.3, cw.0, cw.1, cw.2);
        let hook = if hook { Hook::Expert } else { Hook::None };
        let layout = if tokens && dedup { Layout::RankMajor } else { Layout::ExpertMajor };
        let tuning = tuning.with_dedup(dedup).with_split(split).with_hook(hook).with_layout(layout);
        tuning.check(&shape).is_ok().then_some(tuning)
    })
}

fn warps_of_combine() -> impl Strategy<Value = (u32, u32, u32)> {
    (select(vec![2u32, 4, 8]), select(vec![1u32, 2, 4]), select(vec![1u32, 2, 4, 8]))
}

/// Two rounds with masked and repeated ids, and with any number of tokens.
fn problems(shape: MoeShape) -> impl Strategy<Value = MoeProblem> {
    let id = prop_oneof![4 => 0..shape.experts as i32, 1 => Just(-1), 1 => Just(shape.experts as i32)];
    let token = prop::collection::vec(id, shape.topk as usize);
    let rank = prop::collection::vec(token, 0..=shape.tokens as usize).prop_map(|t| t.concat());
    let round = prop::collection::vec(rank, shape.ranks as usize);
    (prop::collection::vec(round, 2), any::<u64>()).prop_map(move |(rounds, seed)| {
        let rounds = rounds.into_iter().map(|ids| Routing::with_weights(&shape, ids, seed)).collect();
        MoeProblem::with_rounds(shape, rounds, seed).unwrap()
    })
}

fn cases() -> impl Strategy<Value = (MoeTuning, MoeProblem)> {
    shapes().prop_flat_map(|shape| (tunings(shape), problems(shape)))
}

fn prints(config: &impl Family) {
    for target in ["cuda:sm_80", "hip:gfx90a"] {
        let target: Target = target.parse().unwrap();
        let kernel = config.trace(target.warp_size()).unwrap();
        let kernel = ir::verify(kernel).unwrap_or_else(|e| panic!("{}: {e}", config.variant_name()));
        let command = "peerwarp generate".to_owned();
        let source = print::emit(&kernel, target, &EmitInfo { command }).unwrap();
        assert!(source.text.contains(&config.variant_name()));
        assert!(u64::from(source.launch.shared_bytes) <= 46 << 10);
    }
}

/// The round trip in one launch with the same blocks and warps, where that is legal.
fn round_trip(tuning: &MoeTuning) -> Option<RoundTrip> {
    let (d, c) = (&tuning.plan.dispatch, &tuning.plan.combine);
    let fused = RoundTrip {
        warps: d.warps,
        send_blocks: d.send_blocks,
        expert_blocks: d.recv_blocks,
        recv_blocks: c.recv_blocks,
        group_warps: d.group_warps,
        vectors: d.vectors,
        ..RoundTrip::defaults(&tuning.key.shape).ok()?
    };
    fused.check().is_ok().then_some(fused)
}

/// A number that entries, one a lane, are computed with and that scales, a packet a lane, are counted with.
#[test]
fn as_many_scales_as_records() {
    let shape = MoeShape { hidden: 144, experts: 21, topk: 4, tokens: 6, ranks: 2, dtype: RowDtype::Fp8 };
    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor)
        .unwrap()
        .with_protocol(Protocol::Packets);
    assert_eq!(tuning.dispatch().scales(), tuning.dispatch().records());
    prints(&tuning.dispatch());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_legal_configuration_works((tuning, problem) in cases()) {
        for launch in tuning.dispatch_launches() {
            prints(&launch);
            prop_assert_eq!(Dispatch::parse_variant(&launch.variant_name()).unwrap(), launch);
        }
        for launch in tuning.combine_launches() {
            prints(&launch);
            prop_assert_eq!(Combine::parse_variant(&launch.variant_name()).unwrap(), launch);
        }
        run(&problem, &tuning, 2);
        if let Some(fused) = round_trip(&tuning) {
            prints(&fused);
            prop_assert_eq!(&RoundTrip::parse_variant(&fused.variant_name()).unwrap(), &fused);
            run_sim(&in_one_launch(&problem, &fused, 2), problem.seed);
        }
    }

    /// Whatever the problem, its defaults are legal, or the error says why the problem is too large.
    #[test]
    fn any_key_has_defaults_or_a_reason(
        eighths in 1..=8192u32, experts in 1..=65535u32, topk in 1..=32u32, tokens in 1..=65536u32, ranks in 1..=64u32,
        dtype in select(RowDtype::NAMED),
    ) {
        let shape = MoeShape { hidden: 8 * eighths, experts, topk: topk.min(experts), tokens, ranks, dtype };
        match MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor) {
            Ok(tuning) => {
                tuning.check(&shape).unwrap();
                prop_assert!(tuning.dispatch().trace(32).is_ok());
                prop_assert!(tuning.combine().trace(64).is_ok());
            }
            // Of blocks, every row has whole ones.
            Err(e) if of_blocks(dtype) && e.to_string().contains("hidden") => {
                prop_assert!(!shape.hidden.is_multiple_of(128) || shape.hidden > 32768, "{}", e);
            }
            Err(e) => prop_assert!(e.to_string().contains("`chunk`"), "{}", e),
        }
    }
}
