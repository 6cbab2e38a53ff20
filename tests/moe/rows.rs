//! Callers have as many rows as they say, and kernels touch none beyond them.

use std::sync::Arc;

use peerwarp::codegen::family::{Family, Variant};
use peerwarp::codegen::ir::{Const, verify};
use peerwarp::codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Options};
use peerwarp::families::moe::kernels::{Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::{MoeTuning, Round};
use peerwarp::families::moe::{MoeProblem, MoeShape, RowDtype};

use crate::support::{apart, in_one_launch, modes, run_sim, shape, small};

/// Tokens of the ranks: all, some, one, none.
const COUNTS: [[u32; 2]; 4] = [[5, 2], [0, 3], [1, 0], [0, 0]];

/// Each round in all modes: in some rounds there are just as many rows as tokens, in others more.
#[test]
fn tensors_end_with_their_last_token() {
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        let shape = MoeShape { hidden: 272, dtype, ..shape(272, 6, 3, 5, 2) };
        for counts in COUNTS {
            let problem = MoeProblem::uniform(shape, &counts, 3).unwrap();
            // Few blocks, and so many that each has a part of a row and a rank.
            for tuning in
                modes(&small(&shape)).into_iter().chain(modes(&MoeTuning::defaults(&shape).unwrap()))
            {
                run_sim(&apart(&problem, &tuning, 3), 3);
            }
            run_sim(&in_one_launch(&problem, &RoundTrip::defaults(&shape).unwrap().small(), 3), 3);
        }
    }
}

#[test]
fn rounds_have_rows_of_all_kinds() {
    let shape = shape(64, 4, 2, 5, 2);
    let problem = MoeProblem::uniform(shape, &[2, 2], 0).unwrap();
    let tuning = small(&shape);
    let rows = |round| {
        let round = Round::new(&problem, tuning.semantics(), round);
        [0, 1].map(|rank| (round.rows_there(rank), round.inputs(rank).n))
    };
    // As many as tokens, as the host knows or a word on the GPU; as many as can be; some in between.
    assert_eq!([rows(0), rows(1), rows(2)], [[(2, u32::MAX), (5, 2)], [(5, 2), (3, 2)], [(3, 2), (2, 2)]]);
}

/// A dispatch whose `n` says four rows on rank 1, where one tensor has two.
fn lied(variant: &Variant, shape: &MoeShape, buffer: &'static str, bytes: u64) -> Box<Findings> {
    let problem = MoeProblem::uniform(*shape, &[2, 2], 1).unwrap();
    let round = Round::new(&problem, small(shape).semantics(), 0);
    let kernel = Arc::new(Compiled::new(verify(variant.trace(32).unwrap()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in [0, 1] {
        let tokens = &round.tokens[rank as usize];
        let entries = 2 * shape.topk as usize;
        machine.write(rank, "n", 0, &[2u32]).unwrap();
        machine.write(rank, "x", 0, &[0u8].repeat(4 * shape.row_bytes() as usize)).unwrap();
        machine.write(rank, "x", 0, &tokens.rows).unwrap();
        machine.write(rank, "ids", 0, &vec![0i32; 2 * entries]).unwrap();
        machine.write(rank, "ids", 0, &round.routing.ids[rank as usize]).unwrap();
        machine.write(rank, "weights", 0, &vec![0f32; 2 * entries]).unwrap();
        if rank == 1 {
            let end = move |memory: &mut peerwarp::codegen::sim::HostMemory<'_, '_>| {
                memory.end(buffer, bytes).map_err(|e| e.to_string())
            };
            machine.host(rank, "end", end).unwrap();
        }
        let mut numbers = Bindings::new().scalar("rows_there", Const::U32(4));
        if kernel.kernel().params.iter().any(|p| p.name == "empty_id") {
            numbers = numbers.scalar("empty_id", Const::I32(-1));
        }
        machine.launch(rank, &kernel, &numbers).unwrap();
    }
    machine.run(&Options::default()).unwrap_err()
}

/// What is loaded ahead is loaded, as far as callers say that it is there: so that a kernel which forgot what they say is found.
#[test]
fn rows_that_are_told_of_and_not_there_are_found() {
    let shape = shape(64, 4, 2, 4, 2);
    let tuning = MoeTuning::defaults(&shape).unwrap().with_layout(Layout::RankMajor);
    let packets = tuning.clone().with_protocol(Protocol::Packets).dispatch().into_variant();
    let flags = tuning.with_protocol(Protocol::Flags).dispatch().into_variant();
    let fused = RoundTrip::defaults(&shape).unwrap().into_variant();
    let (row, entries) = (u64::from(2 * shape.row_bytes()), u64::from(2 * shape.topk) * 4);
    for (variant, buffer, bytes) in [
        (&packets, "x", row),
        (&packets, "ids", entries),
        (&packets, "weights", entries),
        (&flags, "ids", entries),
        (&flags, "weights", entries),
        (&fused, "x", row),
        (&fused, "ids", entries),
        (&fused, "weights", entries),
    ] {
        let found = lied(variant, &shape, buffer, bytes);
        let beyond = |f: &peerwarp::codegen::sim::Finding| {
            f.kind == FindingKind::OutOfBounds && f.to_string().contains(&format!("of `{buffer}` do"))
        };
        assert!(found.list.iter().any(beyond), "{}, {buffer}: {found}", variant.variant_name());
    }
}
