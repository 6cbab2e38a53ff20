//! What far kernels take at network cards: as `explain` bounds it, and as a run of the simulator counts it.

use peerwarp_codegen::device::{FarMoved, FarPath};
use peerwarp_codegen::dsl::prelude::Publish;
use peerwarp_codegen::ir::{Planted, explain, verify};
use peerwarp_codegen::sim::{Options, Report};

use super::world::{Post, RANKS, ROW, ROWS, launched, traced};

const LAUNCHES: u32 = 3;

/// A card so slow that the bytes of a launch take most of its time.
const SLOW: FarPath = FarPath { gbps: 0.001, put_us: 3.0, count_us: 1.5, puts_per_us: 4.0 };

fn close(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-9 * want.abs(), "{got} is not {want}");
}

fn ran(config: &Post) -> Report {
    let kernel = Planted::from(verify(traced(config).unwrap()).unwrap());
    launched(kernel, config, LAUNCHES).run(&Options::default()).unwrap().report
}

/// What a rank puts to the others in a launch, and what it tells them.
fn expected() -> FarMoved {
    let others = u64::from(RANKS - 1);
    let puts = u64::from(ROWS) * others;
    FarMoved { puts, bytes: puts * u64::from(4 * ROW), credits: others, settles: true }
}

#[test]
fn a_run_counts_what_cards_move() {
    for publish in [Publish::Each, Publish::Batch] {
        let moved = expected();
        let report = ran(&Post::new(publish));
        assert_eq!(
            report.far_puts(),
            u64::from(LAUNCHES * RANKS) * (moved.puts + moved.credits),
            "a batch is counted by its last put"
        );
        close(report.far_us(&SLOW), SLOW.launch_us(&moved));
    }
}

#[test]
fn explain_bounds_what_cards_move() {
    for gathers in [false, true] {
        let kernel = traced(&Post { gathers, ..Post::new(Publish::Each) }).unwrap();
        let moved = explain(&kernel).far.unwrap().moved.unwrap();
        // A put to a rank that is not known may go to another one each time.
        let all = if gathers { RANKS - 1 } else { RANKS };
        let puts = u64::from(ROWS * all);
        assert_eq!(moved, FarMoved { puts, bytes: puts * u64::from(4 * ROW), ..expected() });
    }
}

/// The modelled time follows each figure of the far path, local completion and credits included, and no figure of NVLink.
#[test]
fn times_follow_the_figures_of_the_cards() {
    let report = ran(&Post::new(Publish::Each));
    let us = |path: FarPath| report.far_us(&path);
    let bytes_us = expected().bytes as f64 / SLOW.gbps / 1e3;
    // Local completion is the last: the bytes there, and an acknowledgement back.
    close(us(SLOW), bytes_us + 2.0 * SLOW.put_us);
    close(us(FarPath { gbps: SLOW.gbps / 2.0, ..SLOW }) - us(SLOW), bytes_us);
    close(us(FarPath { put_us: 5.0, ..SLOW }) - us(SLOW), 4.0);
    // The count of the last put comes after its local completion where the proxy is slow.
    close(us(FarPath { count_us: 9.0, ..SLOW }), bytes_us + SLOW.put_us + 9.0);
    // Few messages a microsecond: eight a rank, credits among them.
    close(us(FarPath { gbps: 1e6, puts_per_us: 0.01, ..SLOW }), 800.0 + 2.0 * SLOW.put_us);
}

#[test]
fn a_launch_of_credits_alone_takes_a_credit() {
    let moved = FarMoved { credits: 7, ..FarMoved::default() };
    close(SLOW.launch_us(&moved), 0.25 + 3.0 + 1.5);
    close(SLOW.launch_us(&FarMoved::default()), 0.0);
}

#[test]
fn the_description_says_what_a_described_machine_takes() {
    let kernel = traced(&Post::new(Publish::Each)).unwrap();
    let told = explain(&kernel).to_string();
    let said = "Network cards move at most 576 B a launch, in 9 messages, and 2 credits.";
    assert!(told.contains(said) && !told.contains("As much keeps"), "{told}");
    let path = FarPath { gbps: 1.0, put_us: 3.0, count_us: 1.5, puts_per_us: 1.0 };
    let told = explain(&kernel).with_far_path(&path).to_string();
    let said = "As much keeps them (1.0 GB/s, 1.00 puts a us) busy for 11.0 us: the last message is counted after 15.5 us and locally \
                complete after 17.0 us; a credit takes 5.5 us. Such a launch takes 17.0 us or more.";
    assert!(told.contains(said), "{told}");
}
