//! Looks at packets before it is known whether they come, as emitted text: none of them finds a packet that is not the taking's own.

#[path = "../../codegen/tests/printed/looks.rs"]
#[allow(dead_code)] // the simulator's tests plant the mistakes
pub mod fixture;

use fixture::{Heard, RANKS, ROW, looks};

use crate::build::Language;
use crate::same::Case;

const SEEDS: u64 = 8;

fn row(rank: u32) -> Vec<f32> {
    (0..2 * ROW).map(|i| (i + 1000 * rank) as f32).collect()
}

/// Three launches of a kernel.
pub fn case(heard: Heard) -> Case {
    let kernels = move |language: Language| vec![looks(language.target().warp_size(), heard)];
    let case = Case::new(format!("{heard:?}"), 3, kernels).output("out").output("note");
    (0..RANKS).fold(case, |case, rank| case.input(rank, "x", &row(rank)))
}

#[test]
fn looks_find_the_packets_that_takings_would() {
    for heard in [Heard::TakesBoth, Heard::BlockFlag, Heard::Flag] {
        case(heard).agrees(SEEDS);
    }
}
