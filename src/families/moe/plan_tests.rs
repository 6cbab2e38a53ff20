use super::*;
use crate::families::moe::RowDtype;
use crate::families::moe::kernels::RoundTrip;

#[test]
fn launches_stay_within_so_many_blocks_and_are_legal() {
    for (tokens, dtype) in
        [(1, RowDtype::Bf16), (128, RowDtype::Bf16), (2048, RowDtype::Fp8), (4096, RowDtype::Bf16)]
    {
        let shape = MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 2, dtype };
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let whole = MoeTuning::defaults_with(&shape, Hook::None, layout).unwrap();
            assert_eq!(whole.clone().within(132), whole, "what fits stays");
            for most in [16, 33, 66] {
                let tuning = whole.clone().within(most);
                tuning.check(&shape).unwrap();
                let blocks = [tuning.dispatch().blocks(), tuning.combine().blocks()];
                assert!(blocks.iter().all(|blocks| *blocks <= most), "{blocks:?} of {most}");
            }
            if tokens == 4096 && layout == Layout::RankMajor {
                let few = whole.clone().within(24);
                let sending = few.plan.dispatch.send_blocks + few.dispatch().route_blocks();
                assert_eq!([sending, few.plan.dispatch.recv_blocks], [20, 2], "nearly all send");
                assert_eq!([few.plan.combine.send_blocks, few.plan.combine.recv_blocks], [12, 12]);
                assert_eq!([few.plan.dispatch.group_warps, few.plan.combine.group_warps], [1, 1]);
            }
            // As few as there can be, and no fewer.
            let least = whole.within(0);
            assert_eq!((least.plan.dispatch.send_blocks, least.plan.dispatch.recv_blocks), (1, 1));
            assert_eq!((least.plan.combine.send_blocks, least.plan.combine.recv_blocks), (1, 1));
        }
        if dtype == RowDtype::Bf16 {
            let round_trip = RoundTrip::defaults(&shape).unwrap().within(66);
            round_trip.check().unwrap();
            assert!(round_trip.blocks() <= 66);
        }
    }
}

#[test]
fn rows_come_back_as_they_went_out() {
    let all = [Protocol::Flags, Protocol::Bulk, Protocol::Packets];
    for (out, back) in all.into_iter().flat_map(|out| all.map(|back| (out, back))) {
        let found = Way::new(out, back).map(|way| (way.out(), way.back()));
        assert_eq!(found, (out.arrival() == back.arrival()).then_some((out, back)));
    }
}

#[test]
fn a_dispatch_and_a_combine_say_which_plan_they_are_projections_of() {
    let shape = |tokens, dtype| MoeShape { hidden: 1024, experts: 64, topk: 4, tokens, ranks: 2, dtype };
    for (tokens, dtype) in [(8, RowDtype::Bf16), (8, RowDtype::Nvfp4), (4096, RowDtype::Fp8)] {
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let whole = MoeTuning::defaults_with(&shape(tokens, dtype), Hook::None, layout).unwrap();
            for tuning in [whole.clone().with_split(true), whole.clone().with_dedup(false).small(), whole] {
                for (dispatch, combine) in tuning.dispatch_launches().iter().zip(tuning.combine_launches()) {
                    assert_eq!(MoeTuning::of(dispatch, &combine).unwrap(), tuning);
                }
            }
        }
    }
}
