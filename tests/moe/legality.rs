//! Which configurations are legal, and what tuning defaults to.

use peerwarp::codegen::family::{Family, Illegal, Legal, Target};
use peerwarp::codegen::print::{self, EmitInfo};
use peerwarp::families::moe::kernels::{
    Combine, CombineDtype, Dispatch, Hook, Layout, Protocol, Quantise, ScaleLayout, ScaleRounding,
};
use peerwarp::families::moe::plan::Way;
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::models;

use crate::support::shape;

fn dispatch(edit: impl FnOnce(&mut Dispatch)) -> Result<(), Illegal> {
    let mut config = MoeTuning::defaults_with(&shape(7168, 256, 8, 128, 8), Hook::None, Layout::ExpertMajor)
        .unwrap()
        .dispatch();
    edit(&mut config);
    config.legal()
}

fn combine(edit: impl FnOnce(&mut Combine)) -> Result<(), Illegal> {
    let mut config = MoeTuning::defaults_with(&shape(7168, 256, 8, 128, 8), Hook::None, Layout::ExpertMajor)
        .unwrap()
        .combine();
    edit(&mut config);
    config.legal()
}

#[test]
fn every_reason_is_given() {
    let reasons = [
        dispatch(|c| (c.experts, c.topk) = (4, 5)),
        dispatch(|c| (c.warps, c.group_warps) = (4, 8)),
        dispatch(|c| c.warps = 32),
        dispatch(|c| c.chunk = 256),
        dispatch(|c| {
            (c.layout, c.tokens, c.chunk) = (Layout::RankMajor, 4096, 1024);
            (c.warps, c.group_warps) = (4, 1);
        }),
        dispatch(|c| (c.tokens, c.chunk) = (65536, 16384)),
        dispatch(|c| (c.tokens, c.chunk) = (65536, 2)),
        dispatch(|c| (c.send_blocks, c.recv_blocks) = (64, 96)),
        dispatch(|c| (c.layout, c.dedup) = (Layout::RankMajor, false)),
        dispatch(|c| (c.layout, c.send_blocks) = (Layout::RankMajor, 64)),
        combine(|c| (c.experts, c.topk) = (4, 5)),
        combine(|c| (c.warps, c.group_warps) = (4, 8)),
        combine(|c| c.warps = 32),
        combine(|c| {
            (c.layout, c.protocol, c.warps, c.group_warps) = (Layout::RankMajor, Protocol::Flags, 32, 2)
        }),
        combine(|c| (c.send_blocks, c.recv_blocks) = (96, 64)),
        combine(|c| (c.layout, c.dedup) = (Layout::RankMajor, false)),
    ];
    let reasons: Vec<String> = reasons.into_iter().map(|r| r.unwrap_err().to_string()).collect();
    insta::assert_snapshot!(reasons.join("\n"));
}

#[test]
fn parts_of_rows_are_numbered_without_wrapping() {
    // 65536 tokens of 32 rows each on 64 ranks are 2^27 rows, of up to 2^9 parts.
    let large = |tokens, hidden| MoeShape { tokens, hidden, ..shape(7168, 256, 32, 128, 64) };
    let plain = |tuning: MoeTuning| tuning.with_protocol(Protocol::Packets).with_dedup(false);
    let refused = |legal: Result<(), Illegal>| {
        let said = legal.unwrap_err().to_string();
        assert!(said.starts_with("`tokens` = 65536") && said.contains("at most "), "{said}");
    };
    let fits = plain(MoeTuning::defaults(&large(128, 65536)).unwrap());
    fits.dispatch().legal().unwrap();
    fits.combine().legal().unwrap();
    let mut wraps = fits;
    wraps.key.shape.tokens = 65536;
    refused(wraps.dispatch().legal());
    refused(wraps.combine().legal());
}

#[test]
fn limits_are_reached_but_not_passed() {
    dispatch(|c| c.chunk = 128).unwrap();
    dispatch(|c| (c.send_blocks, c.recv_blocks) = (32, 80)).unwrap();
    combine(|c| (c.send_blocks, c.recv_blocks) = (64, 64)).unwrap();
    dispatch(|c| c.layout = Layout::RankMajor).unwrap();
    combine(|c| c.layout = Layout::RankMajor).unwrap();
    let flags = Protocol::Flags;
    dispatch(|c| (c.layout, c.protocol, c.warps) = (Layout::RankMajor, flags, 32)).unwrap();
    combine(|c| (c.layout, c.protocol, c.warps) = (Layout::RankMajor, flags, 32)).unwrap();
    // A launch that only sends need not be resident together with blocks that receive.
    let phase = peerwarp::families::moe::kernels::Phase::Send;
    dispatch(|c| (c.phase, c.send_blocks, c.recv_blocks) = (phase, 64, 96)).unwrap();
    combine(|c| (c.phase, c.send_blocks, c.recv_blocks) = (phase, 96, 64)).unwrap();
}

/// Rows of 4096 bytes are two warps' work, but 32 warps are too many groups of two.
#[test]
fn defaults_for_prefill_by_token_are_emitted() {
    for (hidden, tokens, ranks) in [(2048, 300, 2), (2048, 4096, 8), (64, 257, 16), (7168, 1024, 2)] {
        for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
            let shape = MoeShape { dtype, ..shape(hidden, 256, 8, tokens, ranks) };
            let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::RankMajor).unwrap();
            for target in ["cuda:sm_90a", "hip:gfx942"].map(|t| t.parse::<Target>().unwrap()) {
                let lanes = target.warp_size();
                let kernels = [tuning.dispatch().trace(lanes), tuning.combine().trace(lanes)];
                for kernel in kernels.map(Result::unwrap) {
                    let info = EmitInfo { command: "peerwarp generate".into() };
                    assert_eq!(
                        print::emit(&peerwarp::codegen::ir::verify(kernel).unwrap(), target, &info)
                            .unwrap()
                            .launch
                            .block_threads,
                        1024
                    );
                }
            }
        }
    }
}

/// A packet that ends in all ones loses a bit: of floats that leaves NaNs, of 4-bit elements and of scales of a byte other numbers.
#[test]
fn rows_that_packets_would_change_go_with_flags() {
    for (dtype, packets) in [
        (RowDtype::Bf16, true),
        (RowDtype::Fp8Token, true),
        (RowDtype::Fp8Tensor, true),
        (RowDtype::Fp8Ue8m0, false),
        (RowDtype::Fp8Fnuz, false),
        (RowDtype::Int8, false),
        (RowDtype::Mxfp8, false),
        (RowDtype::Nvfp4, false),
        (RowDtype::Mxfp4, false),
        (RowDtype::Bytes { row: 1024, scales: 64 }, false),
    ] {
        let shape = MoeShape { dtype, ..shape(2048, 64, 4, 16, 4) };
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let tuning = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
            tuning.check(&shape).unwrap();
            assert_eq!(tuning.plan.way.out() == Protocol::Packets, packets, "{dtype}");
            assert_eq!(tuning.plan.way.back(), tuning.plan.way.out());
            let said = tuning.clone().with_protocol(Protocol::Packets).check(&shape);
            assert_eq!(said.is_ok(), packets, "{dtype}: {said:?}");
            assert!(packets || said.unwrap_err().to_string().contains("flags or bulk for"));
            let hooked = tuning.with_hook(Hook::Expert).check(&shape);
            assert_eq!(hooked.is_ok(), dtype == RowDtype::Bf16, "{dtype}: {hooked:?}");
        }
    }
}

#[test]
fn what_is_quantised_and_combined_is_refused_by_name() {
    let said = |dtype, edit: fn(MoeTuning) -> MoeTuning| {
        let shape = MoeShape { dtype, ..shape(2048, 64, 4, 16, 4) };
        let tuning = edit(MoeTuning::defaults(&shape).unwrap());
        tuning.check(&shape).unwrap_err().to_string()
    };
    let quantise: fn(MoeTuning) -> MoeTuning = |mut tuning| {
        tuning.key.quantise = Quantise::Bf16;
        tuning
    };
    for dtype in [RowDtype::Bf16, RowDtype::Mxfp4, RowDtype::Bytes { row: 64, scales: 0 }] {
        let said = said(dtype, quantise);
        assert!(
            said.contains("`quantise` = bf16")
                && said.contains("fp8, fp8-ue8m0, fp8-fnuz, int8, mxfp8 or nvfp4"),
            "{said}"
        );
    }
    let rounded: fn(MoeTuning) -> MoeTuning = |tuning| tuning.with_scale_rounding(ScaleRounding::Up);
    for said in [
        said(RowDtype::Mxfp8, rounded),
        said(RowDtype::Fp8, |t| {
            t.with_quantise(Quantise::Bf16).unwrap().with_scale_rounding(ScaleRounding::Up)
        }),
    ] {
        assert!(said.contains("`scale_rounding` = up") && said.contains("powers of two"), "{said}");
    }
    let columns: fn(MoeTuning) -> MoeTuning = |tuning| tuning.with_scale_layout(ScaleLayout::Column);
    for said in [
        said(RowDtype::Fp8Tensor, columns),
        said(RowDtype::Fp8, |t| t.with_scale_layout(ScaleLayout::Column).with_hook(Hook::Expert)),
    ] {
        assert!(said.contains("`scale_layout` = column") && said.contains("no scales come out"), "{said}");
    }
    let tiles = said(RowDtype::Fp8, |tuning| tuning.with_scale_layout(ScaleLayout::Tiles));
    assert!(tiles.contains("`scale_layout` = 128x4") && tiles.contains("row or column"), "{tiles}");
    let many = MoeShape { dtype: RowDtype::Nvfp4, ..shape(65536, 64, 8, 65536, 8) };
    let many = MoeTuning::defaults(&many)
        .unwrap()
        .with_layout(Layout::ExpertStrided)
        .with_scale_layout(ScaleLayout::Column);
    let said_of_many = many.check(&many.key.shape).unwrap_err().to_string();
    assert!(
        said_of_many.contains("`scale_layout` = column") && said_of_many.contains("2^32 words"),
        "{said_of_many}"
    );
    let bulk = said(RowDtype::Fp8, |mut tuning| {
        tuning.key.quantise = Quantise::Bf16;
        tuning.plan.way = Way::new(Protocol::Bulk, Protocol::Flags).unwrap();
        tuning
    });
    assert!(bulk.contains("`protocol` = bulk") && bulk.contains("flags or packets"), "{bulk}");
    let fp16: fn(MoeTuning) -> MoeTuning = |tuning| tuning.with_combined(CombineDtype::Fp16);
    assert_eq!(said(RowDtype::Bf16, fp16), "combined = fp16: must be bf16, as rows of bf16 go out");
    let hooked =
        said(RowDtype::Fp8, |tuning| tuning.with_hook(Hook::Expert).with_combined(CombineDtype::Fp16));
    assert_eq!(hooked, "combined = fp16: must be bf16, as rows of fp8 come out of the hook");
    let shape = MoeShape { dtype: RowDtype::Mxfp8, ..shape(2048, 64, 4, 16, 4) };
    let name =
        MoeTuning::defaults(&shape).unwrap().with_quantise(Quantise::Bf16).unwrap().dispatch().variant_name();
    assert!(name.contains("_mxfp8_qbf16_raw_"), "{name}");
    let tuning = MoeTuning::defaults(&shape).unwrap().with_quantise(Quantise::Bf16).unwrap();
    let tuning = tuning.with_scale_rounding(ScaleRounding::Up).with_scale_layout(ScaleLayout::Tiles);
    let name = tuning.dispatch().variant_name();
    assert!(name.contains("_mxfp8_qbf16_srup_sl128x4_raw_"), "{name}");
    assert_eq!(Dispatch::parse_variant(&name).unwrap(), tuning.dispatch());
    assert_eq!(MoeTuning::of(&tuning.dispatch(), &tuning.combine()).unwrap(), tuning);
}

#[test]
fn defaults_of_the_known_models() {
    let mut names = vec![];
    for model in models::builtin() {
        for (tokens, dtype) in
            [(1, RowDtype::Bf16), (8, RowDtype::Bf16), (128, RowDtype::Fp8), (4096, RowDtype::Bf16)]
        {
            let models::Shape { hidden, experts, topk, .. } = model.shape;
            let shape = MoeShape { hidden, experts, topk, tokens, ranks: 8, dtype };
            let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap();
            names.push(format!(
                "{}\n  {}",
                tuning.dispatch().variant_name(),
                tuning.combine().variant_name()
            ));
        }
    }
    insta::assert_snapshot!(names.join("\n"));
}
