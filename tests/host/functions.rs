//! Functions that every target computes alike: emitted text gives the simulator's bits.

#[path = "../../codegen/tests/printed/functions.rs"]
mod fixture;

use crate::build::Language;
use crate::same::{Case, Left};

fn case() -> Case {
    let kernels = |language: Language| vec![fixture::functions(language.target().warp_size())];
    Case::new("functions", 1, kernels).input(0, "x", &fixture::numbers()).output("out")
}

#[test]
fn functions_have_the_same_bits_in_the_simulator_and_as_text() {
    case().agrees(1);
}

/// The numbers reach every case: results of every kind are among those that are compared.
#[test]
fn results_of_every_kind_are_compared() {
    let Left::Same(bytes) = case().simulated(Language::Cuda, 1) else {
        panic!("the simulator finds something")
    };
    let all: Vec<f32> = bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    for of_one in all.chunks(fixture::NUMBERS as usize) {
        let kinds = [f32::is_nan, |x: f32| x > 0.5, |x: f32| x < 0.5];
        assert!(kinds.iter().all(|kind| of_one.iter().filter(|x| kind(**x)).count() > 50));
    }
    assert_eq!(all.len(), (fixture::FUNCTIONS * fixture::NUMBERS) as usize);
}
