//! Rows by expert that begin at multiples of a number, or at a fixed stride.

use peerwarp::families::moe::kernels::{Begins, Hook, Layout, Protocol};
use peerwarp::families::moe::run::{MoeTuning, Round};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};

use crate::support::{apart, run, run_sim, shape};

/// Layouts with gaps between the rows of experts.
const APART: [Layout; 4] =
    [Layout::ExpertMajor8, Layout::ExpertMajor16, Layout::ExpertMajor128, Layout::ExpertStrided];

fn small(shape: &MoeShape, layout: Layout) -> MoeTuning {
    MoeTuning::defaults_with(shape, Hook::None, layout).unwrap().small()
}

#[test]
fn rows_stand_where_the_layout_says() {
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        let shape = MoeShape { dtype, ..shape(272, 7, 3, 5, 3) };
        for (counts, layout) in [[5, 0, 3], [1, 4, 5], [0, 0, 0]].iter().flat_map(|n| APART.map(|l| (n, l))) {
            let problem = MoeProblem::uniform(shape, counts, 3).unwrap();
            let tuning = small(&shape, layout);
            for protocol in [Protocol::Flags, Protocol::Packets] {
                run(&problem, &tuning.clone().with_protocol(protocol), 2);
            }
            run(&problem, &tuning.with_split(true).with_hook(Hook::Expert), 2);
        }
    }
}

#[test]
fn aligned_rows_may_go_once_for_every_entry() {
    let shape = shape(64, 6, 3, 5, 2);
    let problem = MoeProblem::uniform(shape, &[5, 2], 7).unwrap();
    let tuning = small(&shape, Layout::ExpertMajor).with_dedup(false).with_layout(Layout::ExpertMajor8);
    run(&problem, &tuning, 2);
    let strided = small(&shape, Layout::ExpertMajor).with_dedup(false).with_layout(Layout::ExpertStrided);
    let said = strided.check(&shape).unwrap_err().to_string();
    assert!(said.contains("expert-strided") && said.contains("where `dedup` is off"), "{said}");
}

/// All ids of all tokens are the same expert: rows that do not fit its stride are counted, and add nothing.
#[test]
fn rows_beyond_the_stride_are_counted_and_contribute_nothing() {
    let shape = shape(64, 4, 3, 2, 2);
    let ids = vec![vec![1, 1, 1, 1, 2, 1], vec![1, 3, 1, 0, 1, 1]];
    let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 5), 5).unwrap();
    for protocol in [Protocol::Flags, Protocol::Packets] {
        let tuning = small(&shape, Layout::ExpertStrided).with_protocol(protocol);
        let mut batches = tuning.clone();
        batches.combine.batch = if protocol == Protocol::Flags { 2 } else { 1 };
        for tuning in [tuning, batches] {
            run_sim(&apart(&problem, &tuning, 3), 5);
            let round = Round::new(&problem, tuning.semantics(), 0);
            let overflow = round.dispatched(0).find(|e| e.buffer == "overflow").unwrap();
            // Nine rows, of which four have a place.
            assert_eq!(overflow.bytes, 5u32.to_ne_bytes());
        }
    }
}

#[test]
fn layouts_say_where_rows_begin_and_how_many_places_there_are() {
    let of = |layout: Layout| (layout.begins(12), layout.places(12, 3, 5));
    assert_eq!(of(Layout::RankMajor), (Begins::Aligned(1), 12));
    assert_eq!(of(Layout::ExpertMajor), (Begins::Aligned(1), 36));
    assert_eq!(of(Layout::ExpertMajor8), (Begins::Aligned(8), 72));
    assert_eq!(of(Layout::ExpertMajor128), (Begins::Aligned(128), 768));
    assert_eq!(of(Layout::ExpertStrided), (Begins::Strided(12), 60));
}
