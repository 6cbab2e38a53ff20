//! Rows by expert that begin at multiples of a number, or at a fixed stride.

use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::Kernel;
use peerwarp::families::moe::kernels::{
    Bases, Begins, Combine, Count, Dispatch, Hook, Layout, Phase, Protocol,
};
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

/// Two ranks sum what they have of their own tokens where it is, of so many tokens and more; also where a token is masked, has all its
/// experts on one rank, or is not there.
#[test]
fn rows_of_ones_own_tokens_stay_where_they_are() {
    for (protocol, most) in [(Protocol::Packets, 64), (Protocol::Flags, 1024)] {
        for layout in [Layout::ExpertMajor, Layout::ExpertMajor8, Layout::ExpertStrided] {
            let shape = shape(64, 6, 3, most, 2);
            let tuning = small(&shape, layout).with_protocol(protocol);
            assert!(receives_from(&tuning.combine().trace(32).unwrap(), "y"), "{layout:?}, {protocol:?}");
            let fewer = Combine { tokens: most - 1, ..tuning.combine() };
            assert!(!receives_from(&fewer.trace(32).unwrap(), "y"), "{layout:?}, {protocol:?}");
            run(&MoeProblem::uniform(shape, &[most, 41], 11).unwrap(), &tuning, 2);
        }
        // A piece and a shorter one: of packets a lane would keep the registers of both.
        let shape = shape(272, 6, 3, most, 2);
        let mut tuning = small(&shape, Layout::ExpertMajor).with_protocol(protocol);
        tuning.plan.combine.vectors = 1;
        let keeps = receives_from(&tuning.combine().trace(32).unwrap(), "y");
        assert_eq!(keeps, protocol == Protocol::Flags, "{protocol:?}");
        run(&MoeProblem::uniform(shape, &[most, 41], 11).unwrap(), &tuning, 1);
    }
}

/// Dispatch with flags moves its own tokens' rows from where they are given, and by senders that are done as well if there are many.
#[test]
fn rows_of_ones_own_tokens_are_not_sent() {
    for (tokens, ranks, joins) in [(16, 2, true), (15, 2, false), (16, 3, false)] {
        let shape = shape(64, 6, 3, tokens, ranks);
        let tuning = small(&shape, Layout::ExpertMajor).with_protocol(Protocol::Flags);
        let kernel = tuning.dispatch().trace(32).unwrap();
        assert!(receives_from(&kernel, "x"), "{kernel}");
        assert_eq!(kernel.to_string().contains(", then recv"), joins, "{kernel}");
        run(&MoeProblem::uniform(shape, &[tokens, 9, 0][..ranks as usize], 12).unwrap(), &tuning, 3);
        // In a launch of its own it receives what all have sent, and packets are there as soon.
        let split = Dispatch { phase: Phase::Recv, ..tuning.dispatch() };
        let packets = tuning.with_protocol(Protocol::Packets).dispatch();
        assert!([split, packets].iter().all(|d| !receives_from(&d.trace(32).unwrap(), "x")));
    }
}

/// Whether blocks that receive load from a parameter.
fn receives_from(kernel: &Kernel, name: &str) -> bool {
    let kernel = kernel.to_string();
    let (_, receives) = kernel.split_once("role recv").unwrap();
    receives.contains(&format!("load @{name}["))
}

/// Bases that a block computes in memory give rows the same places: of few experts, and of so many that blocks count and lay out
/// some of them at once.
#[test]
fn bases_in_memory_give_rows_the_same_places() {
    for experts in [7, 8200] {
        let shape = shape(64, experts, 3, 5, 2);
        let problem = MoeProblem::uniform(shape, &[5, 2], 3).unwrap();
        let in_memory = |mut tuning: MoeTuning| {
            (tuning.plan.dispatch.bases, tuning.plan.dispatch.chunk) = (Some(Bases::Memory), 2);
            tuning.check(&shape).unwrap();
            run(&problem, &tuning, 3);
        };
        for layout in [Layout::RankMajor, Layout::ExpertMajor, Layout::ExpertMajor8, Layout::ExpertStrided] {
            for protocol in [Protocol::Flags, Protocol::Packets] {
                in_memory(small(&shape, layout).with_protocol(protocol));
            }
            in_memory(small(&shape, layout).with_split(true));
        }
        in_memory(small(&shape, Layout::ExpertMajor8).with_max_rows(8));
        in_memory(small(&shape, Layout::ExpertMajor).with_dedup(false).with_protocol(Protocol::Packets));
    }
}

#[test]
fn bases_that_do_not_go_together_with_the_rest_are_refused_by_their_name() {
    let shape = shape(64, 65535, 2, 3, 2);
    let dispatch = small(&shape, Layout::RankMajor).with_protocol(Protocol::Packets).dispatch();
    let said = |dispatch: Dispatch| dispatch.check().unwrap_err().to_string();
    let shared = said(Dispatch { bases: Some(Bases::Shared), ..dispatch.clone() });
    assert!(shared.contains("`bases` = shared") && shared.contains("memory: a block needs"), "{shared}");
    let counted = said(Dispatch { count: Some(Count::Receiver), ..dispatch });
    assert!(
        counted.contains("`count` = receiver") && counted.contains("where bases are in memory"),
        "{counted}"
    );
}

/// The rule takes memory where shared memory does not hold the bases, and nowhere else.
#[test]
fn as_many_experts_as_ids_can_name_have_bases_in_memory() {
    for (experts, bases) in [(256, Bases::Shared), (65535, Bases::Memory)] {
        let shape = shape(64, experts, 2, 3, 2);
        let problem = MoeProblem::uniform(shape, &[3, 1], 4).unwrap();
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let tuning = small(&shape, layout);
            assert_eq!(tuning.dispatch().bases(), bases, "{experts}, {layout:?}");
            run(&problem, &tuning, 2);
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
        batches.plan.combine.batch = if protocol == Protocol::Flags { 2 } else { 1 };
        for tuning in [tuning, batches] {
            run_sim(&apart(&problem, &tuning, 3), 5);
            let round = Round::new(&problem, tuning.semantics(), 0);
            let overflow = round.dispatched(0).find(|e| e.buffer == "overflow").unwrap();
            // Nine rows, of which four have a place.
            assert_eq!(*overflow.bytes, 5u32.to_ne_bytes());
        }
    }
}

/// Where experts' rows are, and fewer places than rows: what has none is counted and adds nothing, in the middle of an expert's rows,
/// before the first of an expert, for all of a rank, or for none.
#[test]
fn rows_beyond_the_places_are_counted_and_contribute_nothing() {
    let shape = shape(64, 5, 3, 6, 2);
    let problem = MoeProblem::uniform(shape, &[6, 4], 9).unwrap();
    for (layout, max_rows) in [
        (Layout::ExpertMajor, 1),
        (Layout::ExpertMajor, 7),
        (Layout::ExpertMajor, 36),
        (Layout::ExpertMajor8, 8),
        (Layout::ExpertMajor8, 16),
        (Layout::ExpertStrided, 2),
        (Layout::ExpertStrided, 13),
    ] {
        let tuning = small(&shape, layout).with_max_rows(max_rows);
        for protocol in [Protocol::Flags, Protocol::Packets] {
            run(&problem, &tuning.clone().with_protocol(protocol), 3);
        }
        let mut batches = tuning.clone().with_protocol(Protocol::Flags).with_split(true);
        batches.plan.combine.batch = 4;
        run(&problem, &batches.with_hook(Hook::Expert), 2);
    }
}

#[test]
fn what_has_no_place_is_counted_with_what_all_would_need() {
    let shape = shape(64, 4, 3, 2, 2);
    // Rank 0 has two rows of expert 0 and five of expert 1.
    let ids = vec![vec![1, 1, 0, 1, 2, 1], vec![1, 3, 2, 0, 3, 3]];
    let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids, 5), 5).unwrap();
    let words = |layout, max_rows| {
        let tuning = small(&shape, layout).with_max_rows(max_rows);
        let round = Round::new(&problem, tuning.semantics(), 0);
        let word = |name: &str| {
            let found = round.dispatched(0).find(|e| e.buffer == name).unwrap();
            found.bytes.chunks(4).map(|b| u32::from_ne_bytes(b.try_into().unwrap())).collect::<Vec<_>>()
        };
        ["overflow", "needed", "expert_start", "expert_rows"].map(word)
    };
    let packed = words(Layout::ExpertMajor, 4);
    assert_eq!(packed, [vec![3], vec![7], vec![0, 2, 4], vec![2, 2]]);
    let none_of_the_second = words(Layout::ExpertMajor, 1);
    assert_eq!(none_of_the_second, [vec![6], vec![7], vec![0, 1, 1], vec![1, 0]]);
    let aligned = words(Layout::ExpertMajor8, 8);
    assert_eq!(aligned, [vec![5], vec![16], vec![0, 8, 8], vec![2, 0]]);
    assert_eq!(words(Layout::ExpertMajor8, 16), [vec![0], vec![16], vec![0, 8, 16], vec![2, 5]]);
    assert_eq!(words(Layout::ExpertStrided, 3), [vec![2], vec![5], vec![0, 3, 6], vec![2, 3]]);
    assert_eq!(words(Layout::ExpertStrided, 5), [vec![0], vec![5], vec![0, 5, 10], vec![2, 5]]);
}

#[test]
fn places_that_make_no_sense_are_refused_by_name() {
    let shape = shape(64, 4, 3, 5, 2);
    let said = |tuning: MoeTuning| tuning.check(&shape).unwrap_err().to_string();
    let of = |layout, max_rows| small(&shape, layout).with_max_rows(max_rows);
    let refused = [
        (of(Layout::RankMajor, 8), "`max_rows` = 8", "0 for rank-major rows"),
        (of(Layout::ExpertMajor8, 12), "`max_rows` = 12", "a multiple of 8 for expert-major-8"),
        (of(Layout::ExpertMajor, 31), "`max_rows` = 31", "at most 30"),
        (of(Layout::ExpertStrided, 31), "`max_rows` = 31", "at most 30"),
        (of(Layout::ExpertMajor, 8).with_dedup(false), "`max_rows` = 8", "0 where `dedup` is off"),
    ];
    for (tuning, value, allowed) in refused {
        let said = said(tuning);
        assert!(said.contains(value) && said.contains(allowed), "{said}");
    }
    let [eight, nine] = [8, 9].map(|max_rows| of(Layout::ExpertMajor, max_rows));
    let apart = MoeTuning::of(&eight.dispatch(), &nine.combine()).unwrap_err().to_string();
    assert!(
        apart.contains("with layout, max_rows, expert_slots, ids and dedup as dispatch has them"),
        "{apart}"
    );
    let name = of(Layout::ExpertMajor, 8).dispatch().variant_name();
    assert!(name.contains("_expertmajor_m8_both__"), "{name}");
    assert_eq!(Dispatch::parse_variant(&name).unwrap(), of(Layout::ExpertMajor, 8).dispatch());
}

#[test]
fn layouts_say_where_rows_begin_and_how_many_places_there_are() {
    let shape = shape(64, 10, 3, 6, 2);
    let of = |layout: Layout| {
        let room = layout.room(&shape, 0);
        (room.begins, room.places)
    };
    assert_eq!(of(Layout::RankMajor), (Begins::Aligned(1), 12));
    assert_eq!(of(Layout::ExpertMajor), (Begins::Aligned(1), 36));
    assert_eq!(of(Layout::ExpertMajor8), (Begins::Aligned(8), 72));
    assert_eq!(of(Layout::ExpertMajor128), (Begins::Aligned(128), 768));
    assert_eq!(of(Layout::ExpertStrided), (Begins::Strided(12), 60));
}
