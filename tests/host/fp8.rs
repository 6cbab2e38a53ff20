//! Products of fp8 beside those of bf16, as emitted for targets that multiply fp8 in different ways.

#[path = "../../codegen/tests/printed/fp8.rs"]
mod printed;

use half::bf16;
use peerwarp_codegen::elements::encode;
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Dtype, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use printed::{COLUMNS, K, ROWS, kernel, matrix};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job};

const WAIT_BUDGET_NS: u64 = 2_000_000_000;

fn scale(row: u32) -> f32 {
    (row % 5 + 1) as f32 / 8.0
}

fn product([rows, columns]: [u32; 2], k: u32, seed: u32) -> Vec<f32> {
    let (x, w) = (matrix(rows, k, seed), matrix(columns, k, seed + 1));
    let of = |row: u32, column: u32| {
        (0..k).map(|i| x[(row * k + i) as usize] * w[(column * k + i) as usize]).sum::<f32>()
    };
    (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| of(r, c)).collect()
}

/// Sums of fp8 times the scales of their rows, and of bf16.
fn expected() -> Vec<u8> {
    let (fp8, bf16) = (product([ROWS, COLUMNS], K, 1), product([ROWS, COLUMNS], 72, 3));
    let sums = fp8.into_iter().zip(bf16).zip(0..);
    sums.flat_map(|((a, b), at)| (a * scale(at / COLUMNS) + b).to_le_bytes()).collect()
}

/// By warpgroups that bring operands themselves, by warps that convert to bf16, and by waves that do, or do not.
#[test]
fn products_of_two_types_are_those_of_the_definition() {
    let narrow = |m: Vec<f32>| m.into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    for (language, target, tile) in [
        (Language::Cuda, "cuda:sm_90a", 256),
        (Language::Cuda, "cuda:sm_80", 64),
        (Language::Hip, "hip:gfx942", 64),
        (Language::Hip, "hip:gfx950", 64),
        (Language::Gfx12, "hip:gfx1250", 64),
    ] {
        let to: Target = target.parse().unwrap();
        let kernel = verify(kernel(to.warp_size(), 128, tile)).unwrap();
        let source = emit(&kernel, to, &EmitInfo { command: "a test".into() }).unwrap();
        let text = Text::of(&source, language);
        let emitted = Emitted { kernel: kernel.into_kernel(), source };
        let mut job = Job::new(language, 1);
        job.buffers_of(&emitted.kernel, str::to_owned);
        let launch = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), WAIT_BUDGET_NS);
        job.write(0, "x", 0, &encode(Dtype::Fp8, &matrix(ROWS, K, 1)));
        job.write(0, "w", 0, &encode(Dtype::Fp8, &matrix(COLUMNS, K, 2)));
        job.write(0, "left", 0, &narrow(matrix(ROWS, 72, 3)));
        job.write(0, "right", 0, &narrow(matrix(COLUMNS, 72, 4)));
        job.write(0, "scales", 0, &(0..ROWS).map(scale).collect::<Vec<_>>());
        job.run_on(0, launch);
        job.read(0, "out", 0..u64::from(ROWS * COLUMNS) * 4);
        let program = Program::new(std::slice::from_ref(&text), Mode::Checked);
        for run in job.run(&program, 0..3) {
            assert!(run.findings.is_empty(), "{target}: {:?}", run.findings);
            assert!(run.read.iter().all(|read| *read == expected()), "{target}: other results");
        }
    }
}
