//! Products of fp8: what they are, what the verifier refuses of them, and what each target multiplies by.

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::elements::encode;
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Dtype, Kernel, Planted, VerifyErrors, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

use crate::printed::fp8::{COLUMNS, K, ROWS, kernel, matrix};

fn product(x: &[f32], w: &[f32], k: u32, (row, column): (u32, u32)) -> f32 {
    let of = |m: &[f32], row: u32, i: u32| m[(row * k + i) as usize];
    (0..k).map(|i| of(x, row, i) * of(w, column, i)).sum()
}

#[test]
fn products_are_those_of_the_definition() {
    let [x, w, left, right] =
        [(ROWS, K, 1), (COLUMNS, K, 2), (ROWS, 72, 3), (COLUMNS, 72, 4)].map(|(m, n, s)| matrix(m, n, s));
    let scales: Vec<f32> = (0..ROWS).map(|row| (row % 5 + 1) as f32 / 8.0).collect();
    let narrow = |m: &[f32]| m.iter().map(|x| bf16::from_f32(*x)).collect::<Vec<_>>();
    for warp_size in [32, 64] {
        let compiled = Arc::new(Compiled::planted(Planted::new(kernel(warp_size, 128, 64)).unwrap()));
        let mut machine = Machine::new(1);
        machine.buffers_of(compiled.kernel()).unwrap();
        machine.write(0, "x", 0, &encode(Dtype::Fp8, &x)).unwrap();
        machine.write(0, "w", 0, &encode(Dtype::Fp8, &w)).unwrap();
        machine.write(0, "left", 0, &narrow(&left)).unwrap();
        machine.write(0, "right", 0, &narrow(&right)).unwrap();
        machine.write(0, "scales", 0, &scales).unwrap();
        machine.launch_all(&compiled, &Bindings::new()).unwrap();
        // The fourth seed stages products.
        for seed in 0..4 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            let out = outcome.memory.read::<f32>(0, "out").unwrap();
            for (row, column) in (0..ROWS).flat_map(|row| (0..COLUMNS).map(move |column| (row, column))) {
                let scaled = product(&x, &w, K, (row, column)) * scales[row as usize];
                let want = scaled + product(&left, &right, 72, (row, column));
                assert_eq!(out[(row * COLUMNS + column) as usize], want, "{row}, {column}");
            }
        }
    }
}

#[test]
fn broken_products_are_refused() {
    let said = |kernel: Kernel| {
        let errors: VerifyErrors = verify(kernel).expect_err("it is refused");
        errors.to_string()
    };
    let eighth = said(kernel(32, 8, 64));
    assert!(eighth.contains("is not known to be a multiple of 16 columns"), "{eighth}");
    let mut narrow = kernel(32, 128, 64);
    let x = narrow.params.iter_mut().find(|p| p.name == "x").unwrap();
    (x.columns, x.len) = (Some(264), 264 * u64::from(ROWS));
    let narrow = said(narrow);
    assert!(
        narrow.contains("rows of 264 elements, which are no whole 16 bytes; let 16 divide them"),
        "{narrow}"
    );
    let mut mixed = kernel(32, 128, 64);
    mixed.params.iter_mut().find(|p| p.name == "w").unwrap().dtype = Dtype::Bf16;
    let mixed = said(mixed);
    assert!(mixed.contains("`dot` of `x`, which is of fp8, with `w`, which is of bf16"), "{mixed}");
}

#[test]
fn targets_multiply_by_what_they_have() {
    for (target, has, has_not) in [
        ("cuda:sm_90a", "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3", "two_as_bf16"),
        ("cuda:sm_89", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "two_as_bf16"),
        ("cuda:sm_120a", "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32", "two_as_bf16"),
        ("cuda:sm_80", "two_as_bf16", "e4m3.e4m3"),
        ("hip:gfx950", "mfma_f32_16x16x32_fp8_fp8", "four_as_bf16"),
        ("hip:gfx942", "four_as_bf16", "fp8_fp8"),
        ("hip:gfx90a", "four_as_bf16", "fp8_fp8"),
    ] {
        let target: Target = target.parse().unwrap();
        // A warpgroup multiplies 128 columns of fp8 at once.
        let tile = if target.to_string() == "cuda:sm_90a" { 256 } else { 64 };
        let kernel = verify(kernel(target.warp_size(), 128, tile)).unwrap();
        let text = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap().text;
        assert!(text.contains(has) && !text.contains(has_not), "{target}:\n{text}");
    }
}
