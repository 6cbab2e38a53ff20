//! Rows as bytes of any sizes, rows that dispatch quantises, rows that come back in another type, and fewer places than rows.

use peerwarp::families::moe::kernels::{CombineDtype, Hook, Layout, Protocol, Quantise};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeShape, RowDtype};
use serde_json::json;

use crate::{every_bit, gpus, options, report, shape, two};

fn defaults(shape: &MoeShape, layout: Layout) -> MoeTuning {
    MoeTuning::defaults_with(shape, Hook::None, layout).unwrap()
}

#[test]
fn rows_of_every_kind_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let mut cases = 0;
    let mut case = |tuning: &MoeTuning, n: [u32; 2]| {
        every_bit(&world, tuning, &n, 4, 0, 7);
        cases += 1;
    };
    for (tokens, n) in [(3, [3, 1]), (48, [48, 20]), (700, [700, 333])] {
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            for (row, scales) in [(4, 0), (1028, 36), (3584, 448), (64, 2048)] {
                let shape = shape(2048, tokens, RowDtype::Bytes { row, scales });
                case(&defaults(&shape, layout), n);
            }
            for (dtype, hidden) in [(RowDtype::Fp8, 7168), (RowDtype::Fp8, 2880), (RowDtype::Mxfp8, 7168)] {
                let shape = shape(hidden, tokens, dtype);
                for (from, combined) in
                    [(Quantise::Bf16, CombineDtype::Bf16), (Quantise::Fp16, CombineDtype::Fp16)]
                {
                    let tuning = defaults(&shape, layout).with_quantise(from).unwrap();
                    case(&tuning.with_combined(combined), n);
                }
            }
        }
        let shape = shape(1024, tokens, RowDtype::Bf16);
        for (layout, max_rows) in [
            (Layout::ExpertMajor, 2 * tokens + 1),
            (Layout::ExpertMajor128, 128),
            (Layout::ExpertStrided, tokens.div_ceil(4)),
        ] {
            case(&defaults(&shape, layout).with_max_rows(max_rows), n);
            let flags = defaults(&shape, layout).with_protocol(Protocol::Flags);
            case(&flags.with_max_rows(max_rows).with_split(true), n);
        }
    }
    report("rows of every kind", json!({ "cases": cases }));
}
