//! Rows that travel back as fp8 and nvfp4: on the simulator against the reference, and within the bounds of the pages.

use peerwarp::codegen::family::{Choice, Family};
use peerwarp::families::moe::kernels::{
    Combine, CombineDtype, Hook, Layout, Own, Protocol, ReturnDtype, RoundTrip,
};
use peerwarp::families::moe::run::{MoeTuning, Round};
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, RowDtype, SCALE_BLOCK};
use peerwarp::harness::elements::decode;

use crate::support::{in_one_launch, modes, run, run_sim, shape};

const FP8: [ReturnDtype; 2] = [ReturnDtype::Fp8, ReturnDtype::Fp8Token];

const QUANTISED: [ReturnDtype; 3] = [ReturnDtype::Fp8, ReturnDtype::Fp8Token, ReturnDtype::Nvfp4];

fn small(shape: &MoeShape, combine_dtype: ReturnDtype) -> MoeTuning {
    MoeTuning::defaults(shape).unwrap().with_combine_dtype(combine_dtype).unwrap().small()
}

#[test]
fn rows_come_back_as_fp8_as_the_reference_has_it_in_every_mode() {
    for (ranks, counts) in [(2, &[5, 3][..]), (3, &[5, 0, 3])] {
        // 272 elements are two blocks of 128 and a part of one.
        let shape = shape(272, 7, 3, 5, ranks);
        let problem = MoeProblem::uniform(shape, counts, 3).unwrap();
        for combine_dtype in FP8 {
            let modes = modes(&small(&shape, combine_dtype));
            assert_eq!(modes.len(), 9);
            for tuning in modes {
                run(&problem, &tuning, 2);
            }
        }
    }
}

/// Blocks of 16, the last one cut short, with flags; and as packets, where rows are whole ones.
#[test]
fn rows_come_back_as_nvfp4_as_the_reference_has_it_in_every_mode() {
    for (ranks, counts, hidden, ways) in
        [(2, &[5, 3][..], 328, 5), (3, &[5, 0, 3], 352, 9), (2, &[2, 5], 2144, 9)]
    {
        let shape = shape(hidden, 7, 3, 5, ranks);
        let problem = MoeProblem::uniform(shape, counts, 3).unwrap();
        let modes = modes(&small(&shape, ReturnDtype::Nvfp4));
        assert_eq!(modes.len(), ways);
        for tuning in modes {
            run(&problem, &tuning, 2);
        }
    }
}

#[test]
fn rows_of_several_pieces_and_batches_come_back_quantised() {
    // Pieces of 512 elements: two whole ones and a rest of 160; of 1024: one and a rest.
    let shape = shape(1184, 6, 2, 4, 2);
    let problem = MoeProblem::uniform(shape, &[4, 3], 5).unwrap();
    for combine_dtype in QUANTISED {
        for layout in [Layout::RankMajor, Layout::ExpertMajor, Layout::ExpertStrided] {
            let tuning = small(&shape, combine_dtype).with_layout(layout);
            for protocol in [Protocol::Flags, Protocol::Packets] {
                run(&problem, &tuning.clone().with_protocol(protocol), 2);
            }
            let mut batched = tuning.with_protocol(Protocol::Flags);
            (batched.plan.combine.batch, batched.plan.combine.own) = (2, Some(Own::Moved));
            run(&problem, &batched, 2);
            // Groups of several warps share what they quantise.
            let wide = &mut batched.plan.combine;
            (wide.warps, wide.group_warps, wide.vectors) = (4, 2, 2);
            run(&problem, &batched, 1);
        }
    }
}

#[test]
fn weighted_rows_hooks_and_fp16_come_back_quantised() {
    let bf16 = shape(160, 4, 2, 3, 2);
    let fp16 = MoeShape { dtype: RowDtype::Fp16, ..bf16 };
    for shape in [bf16, fp16] {
        let problem = MoeProblem::uniform(shape, &[3, 2], 9).unwrap();
        for combine_dtype in QUANTISED {
            let tuning = small(&shape, combine_dtype);
            assert_eq!(tuning.key.combined, CombineDtype::from(shape.dtype));
            run(&problem, &tuning.clone().with_weighted(true), 2);
            run(&problem, &tuning.clone().with_hook(Hook::Expert).with_split(true), 2);
            // In halves a rank's own rows travel, too, which stay where they are in one launch.
            let rows_stay = tuning.with_layout(Layout::RankMajor).with_protocol(Protocol::Flags);
            assert!(rows_stay.combine().own.is_none());
            run(&problem, &rows_stay.clone().with_split(true), 2);
            run(&problem, &rows_stay, 2);
        }
    }
}

#[test]
fn what_cannot_travel_back_as_fp8_is_refused_by_its_field() {
    let shape = shape(256, 4, 2, 4, 2);
    let refused = |tuning: &MoeTuning| tuning.check(&shape).unwrap_err().to_string();
    let bulk = small(&shape, ReturnDtype::Fp8).with_protocol(Protocol::Bulk);
    let said = refused(&bulk);
    assert!(said.contains("`protocol` = bulk") && said.contains("`combine_dtype` is fp8"), "{said}");
    let mut wide = small(&MoeShape { hidden: 8192, ..shape }, ReturnDtype::Fp8);
    (wide.plan.combine.warps, wide.plan.combine.vectors) = (16, 8);
    let said = wide.check(&wide.key.shape).unwrap_err().to_string();
    assert!(said.contains("`vectors` = 8") && said.contains("shared memory"), "{said}");
    // 264 bytes are no whole packets.
    let odd = MoeShape { hidden: 264, ..shape };
    let said = small(&odd, ReturnDtype::Fp8Token).with_protocol(Protocol::Packets);
    let said = said.check(&odd).unwrap_err().to_string();
    assert!(said.contains("`protocol` = packets") && said.contains("264 bytes"), "{said}");
}

#[test]
fn a_variant_that_returns_fp8_has_a_name_of_its_own_and_the_other_one_keeps_its() {
    let shape = shape(256, 4, 2, 4, 2);
    let names = ["_retfp8_", "_retfp8token_", "_retnvfp4_"];
    for (combine_dtype, part) in QUANTISED.into_iter().zip(names) {
        let name = small(&shape, combine_dtype).combine().variant_name();
        assert!(name.contains(part), "{name}");
        assert_eq!(Combine::parse_variant(&name).unwrap().combine_dtype, combine_dtype);
    }
    let plain = small(&shape, ReturnDtype::Combined).combine().variant_name();
    assert!(!plain.contains("ret"), "{plain}");
    let key = MoeKey { combine_dtype: ReturnDtype::Fp8, ..MoeKey::new(shape) };
    let tuning = key.defaults().unwrap();
    assert_eq!(MoeTuning::of(&tuning.dispatch(), &tuning.combine()).unwrap(), tuning);
}

#[test]
fn a_round_trip_in_one_launch_returns_fp8_by_block() {
    for (dtype, ranks, counts) in
        [(RowDtype::Bf16, 2, &[3, 2][..]), (RowDtype::Fp8, 3, &[1, 3, 0]), (RowDtype::Fp16, 2, &[3, 3])]
    {
        // Pieces of 512 elements: a whole one and a rest.
        let shape = MoeShape { dtype, ..shape(656, 6, 2, 3, ranks) };
        let problem = MoeProblem::uniform(shape, counts, 4).unwrap();
        let config = RoundTrip::defaults_with(&shape, ReturnDtype::Fp8).unwrap().small();
        run_sim(&in_one_launch(&problem, &config, 3), 4);
        for (combine_dtype, name) in [(ReturnDtype::Fp8Token, "fp8-token"), (ReturnDtype::Nvfp4, "nvfp4")] {
            let refused = RoundTrip { combine_dtype, ..config.clone() }.check().unwrap_err();
            assert!(refused.to_string().contains(&format!("`combine_dtype` = {name}")), "{refused}");
        }
    }
    let shape = shape(512, 4, 2, 2, 2);
    let config = RoundTrip::defaults_with(&shape, ReturnDtype::Fp8).unwrap();
    let narrow = RoundTrip { vectors: 1, ..config }.check().unwrap_err().to_string();
    assert!(narrow.contains("`vectors` = 1") && narrow.contains("at least 2"), "{narrow}");
}

#[test]
fn ranks_of_nodes_return_what_is_quantised_within_their_node() {
    let shape = shape(288, 8, 3, 4, 4);
    let problem = MoeProblem::uniform(shape, &[4, 1, 0, 3], 2).unwrap();
    for combine_dtype in QUANTISED {
        let key = MoeKey { nodes: 2, combine_dtype, ..MoeKey::new(shape) };
        run(&problem, &key.defaults().unwrap().small(), 2);
    }
}

/// For each element of a rank's combined rows: how far it is from the exact sum, and how far it may be.
fn errors(problem: &MoeProblem, tuning: &MoeTuning, rank: u32) -> Vec<[f64; 2]> {
    let (shape, round) = (problem.shape, Round::new(problem, tuning.semantics(), 0));
    let (hidden, topk) = (shape.hidden as usize, shape.topk as usize);
    let out = decode(tuning.key.combined.dtype(), &round.out[rank as usize]);
    let block = match tuning.key.combine_dtype {
        ReturnDtype::Fp8 => SCALE_BLOCK as usize,
        ReturnDtype::Nvfp4 => 16,
        ReturnDtype::Combined | ReturnDtype::Fp8Token => hidden,
    };
    let of_token = |(token, out): (usize, &[f32])| {
        let x = round.tokens[rank as usize].values(&shape, token as u32);
        let entries = token * topk..(token + 1) * topk;
        let (ids, weights) = (
            &round.routing.ids[rank as usize][entries.clone()],
            &round.routing.weights[rank as usize][entries],
        );
        // What each owner's experts make of it: as the stand-in expert does, each of its products rounded once.
        let mut rows = vec![vec![0f64; hidden]; shape.ranks as usize];
        let mut largest_sum = vec![0f64; hidden];
        for (id, weight) in ids.iter().zip(weights) {
            let Some(owner) = shape.map().owner(*id) else { continue };
            let y =
                peerwarp::families::moe::reference::stand_in_expert(tuning.key.combined.dtype(), owner, &x);
            for (i, y) in y.iter().enumerate() {
                rows[owner as usize][i] += f64::from(*weight) * f64::from(*y);
                largest_sum[i] += (f64::from(*weight) * f64::from(*y)).abs();
            }
        }
        let u16bit = 2f64.powi(-8);
        let largest_of = |row: &[f64]| row.iter().fold(0f64, |m, x| m.max(x.abs()));
        let largest: Vec<Vec<f64>> =
            rows.iter().map(|row| row.chunks(block).map(largest_of).collect()).collect();
        let each = (0..hidden).map(|i| {
            let exact: f64 = rows.iter().map(|row| row[i]).sum();
            let of_rank = |(row, largest): (&Vec<f64>, &Vec<f64>)| {
                let (x, m) = (row[i].abs() * (1.0 + u16bit), largest[i / block] * (1.0 + u16bit));
                let quantised = match tuning.key.combine_dtype {
                    ReturnDtype::Nvfp4 => (x / 5.0).max(m * 17.0 / 384.0).max(largest_of(row) / 28672.0),
                    _ => (x / 16.0).max(m / 458752.0),
                };
                quantised * 1.0001 + row[i].abs() * u16bit
            };
            let rounded: f64 = rows.iter().zip(&largest).map(of_rank).sum();
            let summed = largest_sum[i] * 2f64.powi(-24) * (topk + shape.ranks as usize + 2) as f64;
            let off = rounded + summed;
            [(f64::from(out[i]) - exact).abs(), off + (exact.abs() + off) * u16bit]
        });
        each.collect::<Vec<_>>()
    };
    out.chunks(hidden).enumerate().flat_map(of_token).collect()
}

#[test]
fn sums_of_quantised_rows_are_within_the_bound_of_the_exact_sum() {
    let shape = shape(512, 16, 6, 12, 4);
    let problem = MoeProblem::uniform(shape, &[12; 4], 7).unwrap();
    for layout in [Layout::RankMajor, Layout::ExpertMajor] {
        let mut worst = vec![];
        for combine_dtype in [ReturnDtype::Combined].into_iter().chain(QUANTISED) {
            let tuning = small(&shape, combine_dtype).with_layout(layout);
            let all: Vec<[f64; 2]> = (0..4).flat_map(|rank| errors(&problem, &tuning, rank)).collect();
            for [off, bound] in &all {
                assert!(off <= bound, "{}: {off} is more than {bound}", layout.name());
            }
            worst.push(all.iter().fold(0f64, |m, [off, bound]| m.max(off / bound)));
        }
        // The bound is not far from what is met, and tells quantised rows from those of 16 bits.
        assert!(worst[0] < 0.2 && worst[1..].iter().all(|worst| *worst > 0.5), "{worst:?}");
    }
}
