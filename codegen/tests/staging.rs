//! Products as printers stage them, on the simulator: loads that run by themselves and land late, slots that are used again; and that each
//! mistake with them is found, and called by its name.

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{every, mutate};
use peerwarp_codegen::ir::{Dtype, Kernel, Planted};
use peerwarp_codegen::sim::FindingKind::{DataRace, Deadlock, PieceOutOfTurn};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Mistake, Options, Strategy};

const ROWS: u32 = 16;
const PARTS: u32 = 3;
/// Seven pieces, the last of them short.
const K: u32 = 6 * 64 + 8;
const STAGES: u32 = 3;

#[derive(Clone, Copy)]
struct Args {
    x: AnyMatrix,
    w: AnyMatrix,
    inbox: AnySymMatrix,
    arrived: Flags,
    out: AnyMatrix,
}

/// Rows that each rank copies to the other one, part by part, and that are multiplied there.
fn kernel() -> Kernel {
    trace(TraceMeta::new("staged", 2, 32, 4), |p| {
        let a = Args {
            x: p.matrix("x", [PARTS * ROWS, K], Dtype::Bf16),
            w: p.matrix("w", [ROWS, K], Dtype::Bf16),
            inbox: p.matrix("inbox", [2 * PARTS * ROWS, K], Dtype::Bf16),
            arrived: p.arg("arrived", u64::from(2 * PARTS)),
            out: p.matrix("out", [PARTS * ROWS, ROWS], Dtype::F32),
        };
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 1, |_| send(a, epoch));
        role("multiply", 1, |b| multiply(b, a, epoch));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn send(a: Args, epoch: Epoch) {
    for part in 0u32.val()..PARTS.val() {
        let mut rows = send_to(Peers::others());
        for row in 0u32.val()..ROWS.val() {
            let to = ((epoch.parity() * PARTS + part) * ROWS + row) * K;
            rows.copy_any(&a.inbox.elements(), to, &a.x.elements(), (part * ROWS + row) * K, K);
        }
        rows.signal(&a.arrived, epoch.parity() * PARTS + part, epoch);
    }
}

#[kernel]
fn multiply(b: Group, a: Args, epoch: Epoch) {
    for part in 0u32.val()..PARTS.val() {
        let flag = epoch.parity() * PARTS + part;
        let got = a.arrived.from((rank() + 1) % 2).wait(flag, epoch);
        let sums = b.dot(a.inbox.rows(&got, flag * ROWS, ROWS), a.w.rows(0, ROWS), STAGES);
        a.out.rows(part * ROWS, ROWS).store_f32(0, sums);
    }
}

/// A matrix of small whole numbers, of its own for each seed: sums of products are exact.
fn matrix(rows: u32, seed: u32) -> Vec<f32> {
    (0..rows * K).map(|i| ((i * 7 + i / K * 3 + seed * 13) % 17) as f32 - 8.0).collect()
}

fn machine(kernel: Planted) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    let narrow = |m: Vec<f32>| m.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for rank in 0..2 {
        machine.write(rank, "x", 0, &narrow(matrix(PARTS * ROWS, rank))).unwrap();
        machine.write(rank, "w", 0, &narrow(matrix(ROWS, 2 + rank))).unwrap();
    }
    for _ in 0..4 {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

fn schedules() -> impl Iterator<Item = Options> {
    [Strategy::Random, Strategy::Adversarial].into_iter().flat_map(|strategy| {
        (0..6).map(move |seed| Options { staged: Some(true), seed, strategy, ..Options::default() })
    })
}

#[test]
fn staged_products_are_those_of_the_definition() {
    let machine = machine(Planted::new(kernel()).unwrap());
    for options in schedules().chain([Options { staged: Some(false), ..Options::default() }]) {
        let outcome = machine.run(&options).unwrap_or_else(|f| panic!("{options:?}: {f}"));
        for rank in 0..2 {
            let (x, w) = (matrix(PARTS * ROWS, 1 - rank), matrix(ROWS, 2 + rank));
            let out = outcome.memory.read::<f32>(rank, "out").unwrap();
            for (at, found) in out.iter().enumerate() {
                let (row, column) = (at as u32 / ROWS, at as u32 % ROWS);
                let of = |m: &[f32], row: u32, i: u32| m[(row * K + i) as usize];
                let sum: f32 = (0..K).map(|i| of(&x, row, i) * of(&w, column, i)).sum();
                assert_eq!(*found, sum, "rank {rank}, {row}, {column}, {options:?}");
            }
        }
    }
}

/// Unless somebody says so: it takes longer.
#[test]
fn one_seed_in_four_stages_products() {
    let machine = machine(Planted::new(kernel()).unwrap());
    let mistaken = |seed| Options { seed, mistake: Some(Mistake::EmptyNotAwaited), ..Options::default() };
    let found: Vec<bool> = (0..8).map(|seed| machine.run(&mistaken(seed)).is_err()).collect();
    assert_eq!(found, [false, false, false, true, false, false, false, true]);
}

/// What is found with a mistake, over all schedules.
fn found(mistake: Mistake) -> Vec<Findings> {
    let machine = machine(Planted::new(kernel()).unwrap());
    let run = |options: Options| machine.run(&Options { mistake: Some(mistake), ..options }).err();
    schedules().filter_map(run).map(|findings| *findings).collect()
}

#[test]
fn every_mistake_with_a_ring_is_found_and_named() {
    use Mistake::*;
    let (late, early) = ("before rows of `", "land in slot ");
    let unordered = "the load does not come after what the group has waited for";
    let expected: [(Mistake, FindingKind, &[&str]); 13] = [
        (FullNotAwaited, PieceOutOfTurn, &["is multiplied in slot ", late, "the load is on its way"]),
        (HalfExpected, PieceOutOfTurn, &["is multiplied in slot ", late, "the load is on its way"]),
        (OldRoundAwaited, PieceOutOfTurn, &["is multiplied in slot ", late, "those of piece "]),
        (EmptyNotAwaited, PieceOutOfTurn, &["rows of `", early, "before piece "]),
        (OneSlotTooFew, PieceOutOfTurn, &["rows of `", early, "before piece "]),
        (GivenBackEarly, PieceOutOfTurn, &["rows of `", early, "is being multiplied"]),
        (
            LastNotGivenBack,
            Deadlock,
            &["is never brought: the loader waits for slot ", "no group gives back"],
        ),
        (NextRoundAwaited, Deadlock, &["piece 0 ", "the loader waits for slot 0, which no group gives back"]),
        (SlotSkipped, PieceOutOfTurn, &["rows of `", early, "is being multiplied"]),
        (NoProxyFence, DataRace, &["the load of rows of `inbox` of piece ", "into slot ", unordered]),
        (LoaderDoesNotWait, DataRace, &["the load of rows of `inbox` of piece ", "into slot ", unordered]),
        (LeftBroughtAhead, DataRace, &["the load of rows of `inbox` of piece ", "into slot ", unordered]),
        (CopyNotAwaited, DataRace, &["nothing orders"]),
    ];
    for (mistake, kind, words) in expected {
        let found = found(mistake);
        assert!(!found.is_empty(), "{mistake:?} is not found");
        for findings in &found {
            // All are said of the product, or the copy, at the author's line.
            let first = &findings.list[0];
            let here = first.at.loc.is_some_and(|loc| loc.to_string().contains("staging.rs"));
            assert!(here, "{mistake:?}: {findings}");
        }
        let named = |finding: &peerwarp_codegen::sim::Finding| {
            finding.kind == kind && words.iter().all(|word| finding.message.contains(word))
        };
        let one = found.iter().any(|findings| findings.list.iter().any(named));
        assert!(one, "{mistake:?} is not called by its name: {}", found[0]);
    }
}

/// Bugs of one change in the kernel itself, with loads that land late.
#[test]
fn every_bug_of_one_change_is_found_in_staged_products() {
    let kernel = kernel();
    let right = machine(Planted::new(kernel.clone()).unwrap()).run(&Options::default()).unwrap();
    let (mut planted, mut missed) = (0, vec![]);
    for mutant in every(&kernel) {
        let Ok(mistaken) = mutate(&kernel, &mutant.mutation) else { continue };
        planted += 1;
        let machine = machine(mistaken);
        let shows = schedules().any(|options| match machine.run(&options) {
            Err(_) => true,
            Ok(outcome) => (0..2).any(|rank| {
                outcome.memory.read::<f32>(rank, "out").unwrap()
                    != right.memory.read::<f32>(rank, "out").unwrap()
            }),
        });
        if !shows {
            missed.push(mutant.to_string());
        }
    }
    assert!(planted > 20 && missed.is_empty(), "of {planted}: {missed:#?}");
}
