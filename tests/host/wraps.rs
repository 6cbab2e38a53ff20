//! Integers that wrap, as emitted text.

#[path = "../../codegen/tests/printed/wraps.rs"]
mod fixture;

use crate::build::Language;
use crate::same::Case;

const SEEDS: u64 = 4;

#[test]
fn lanes_meet_before_they_read_by_an_index_that_a_cast_cuts() {
    let kernels = |language: Language| vec![fixture::cut(language.target().warp_size())];
    let mut x: Vec<u32> = (0..257).map(|i| i * i).collect();
    x[256] = 0;
    Case::new("cut", 1, kernels).input(0, "x", &x).output("out").agrees(SEEDS);
}

#[test]
fn counters_end_in_both() {
    let kernels = |language: Language| vec![fixture::steps(language.target().warp_size())];
    for (end, step) in [(100, u32::MAX - 10), (u32::MAX, 1 << 31), (7, 3), (u32::MAX - 2, u32::MAX - 3)] {
        let x = [end, step, 2_147_000_000, 9];
        Case::new(format!("{end} by {step}"), 1, kernels).input(0, "x", &x).output("out").agrees(SEEDS);
    }
}
