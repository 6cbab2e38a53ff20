//! Additions of tiles, as emitted text.

#[path = "../../codegen/tests/printed/histogram.rs"]
mod fixture;

use fixture::{BINS, NUMBERS, histogram};

use crate::build::{Language, Mode, Program, Text};
use crate::same::{Case, Left};

fn case() -> Case {
    let kernels = |language: Language| vec![histogram(language.target().warp_size())];
    let x: Vec<u32> = (0..NUMBERS).map(|i| i * i + 7).collect();
    // Whole numbers: their sums are exact in any order.
    let weight: Vec<f32> = (0..NUMBERS).map(|i| (i % 17) as f32).collect();
    let zeros = [0u32; BINS as usize];
    let case = Case::new("histogram", 1, kernels).input(0, "x", &x).input(0, "weight", &weight);
    case.input(0, "counts", &zeros).input(0, "sums", &zeros).output("counts").output("sums")
}

#[test]
fn additions_agree_with_the_simulator() {
    case().agrees(3);
}

#[test]
fn every_bug_of_an_addition_shows() {
    let bugs = [
        // Two lanes read the same count before either writes it.
        (Language::Cuda, "return atomicAdd_block(p, x);", "const T old = *p; *p = old + x; return old;"),
        (Language::Cuda, "return atomicAdd(p, x);", "const T old = *p; *p = old + x; return old;"),
        // Blocks of other warps do not meet at that scope.
        (Language::Cuda, "return atomicAdd(p, x);", "return atomicAdd_block(p, x);"),
        (
            Language::Hip,
            "__HIP_MEMORY_SCOPE_AGENT);\n}\ntemplate",
            "__HIP_MEMORY_SCOPE_WORKGROUP);\n}\ntemplate",
        ),
    ];
    let case = case();
    for (language, from, to) in bugs {
        let emitted = case.emitted(language);
        let text = Text::of(&emitted[0].source, language).edited(from, to, 1);
        let left = case.executed_by(&Program::new(&[text], Mode::Checked), &emitted, language, 2);
        assert!(matches!(left, Left::Wrong(_)), "{language:?}: {from} -> {to}");
    }
}
