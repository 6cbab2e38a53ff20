//! Accesses that all pointers have alike, as emitted text.

#[path = "../../codegen/tests/printed/alike.rs"]
mod fixture;

use fixture::{LEN, alike};
use half::bf16;

use crate::build::Language;
use crate::same::Case;

#[test]
fn floats_are_gathered_scattered_and_repeated_as_in_the_simulator() {
    let kernels = |language: Language| vec![alike(language.target().warp_size())];
    let x: Vec<bf16> = (0..LEN).map(|i| bf16::from_f32(i as f32 - 20.0)).collect();
    let bias: Vec<f32> = (0..LEN).map(|i| (i % 5) as f32).collect();
    let case = Case::new("alike", 2, kernels).input(0, "x", &x).input(0, "bias", &bias);
    case.output("turned").output("gathered").output("rows").output("most").agrees(2);
}
