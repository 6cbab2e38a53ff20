//! Operands with scales of blocks: what is refused of them by the trace, the verifier and the printers, and which scale is of what.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::fp8;
use peerwarp_codegen::ir::{Dtype, Kernel, Planted, scales_word, verify};
use peerwarp_codegen::print::{EmitInfo, emit, emit_with_timeline};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

const SHAPE: [u32; 2] = [256, 384];

/// Multiplies rows of `x` and `w` of fp8 by their scales.
type Multiply = fn(Group, [AnyMatrix; 2], [Ptr<u32>; 2]) -> Tile<f32>;

/// `out` is what `multiply` makes of `x` and `w` of fp8, and of their scales.
fn traced(multiply: Multiply) -> Result<Kernel, String> {
    let kernel = trace(TraceMeta::new("scaled", 1, 32, 8), |p| {
        let [x, w] = ["x", "w"].map(|name| p.matrix::<AnyMatrix>(name, SHAPE, Dtype::Fp8));
        let scales = ["x_scales", "w_scales"].map(|name| p.arg::<Ptr<u32>>(name, 768));
        let out: AnyMatrix = p.matrix("out", SHAPE, Dtype::F32);
        role("main", 1, |b| out.rows(0, 128).store_f32(0, multiply(b, [x, w], scales)));
    });
    kernel.map_err(|e| e.to_string())
}

fn plain(b: Group, [x, w]: [AnyMatrix; 2], [x_scales, w_scales]: [Ptr<u32>; 2]) -> Tile<f32> {
    b.dot(x.rows(128, 128).scaled_by(&x_scales), w.rows(0, 128).scaled_by(&w_scales), 2)
}

/// What the verifier says of it after a change.
fn refused(change: impl FnOnce(&mut Kernel)) -> String {
    let mut kernel = traced(plain).expect("a kernel");
    change(&mut kernel);
    verify(kernel).map_err(|e| e.to_string()).expect_err("it is wrong")
}

/// Each element is multiplied by the scale of its row and its 32 columns; what is not of the matrix is not read.
#[test]
fn elements_are_multiplied_by_their_scales() {
    let compiled = Arc::new(Compiled::planted(Planted::new(traced(plain).unwrap()).unwrap()));
    let mut machine = Machine::new(1);
    machine.buffers_of(compiled.kernel()).unwrap();
    let [rows, columns] = SHAPE;
    let power = |operand: u32, row: u32, block: u32| (row * 5 + block * 3 + operand) % 3 + 126;
    let one = vec![fp8::from_f32(1.0); (rows * columns) as usize];
    for (operand, names) in (0..).zip([("x", "x_scales"), ("w", "w_scales")]) {
        machine.write(0, names.0, 0, &one).unwrap();
        let mut words = vec![0u32; 768];
        for (row, block) in (0..rows).flat_map(|row| (0..columns / 32).map(move |block| (row, block))) {
            let at = scales_word(row.into(), (block / 4).into(), (columns / 128).into()) as usize;
            words[at] |= power(operand, row, block) << (block % 4 * 8);
        }
        machine.write(0, names.1, 0, &words).unwrap();
    }
    machine.launch_all(&compiled, &Bindings::new()).unwrap();
    let value = |operand, row, block| 2f32.powi(power(operand, row, block) as i32 - 127);
    // The fourth seed stages products.
    for seed in [0, 3] {
        let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
        let out = outcome.memory.read::<f32>(0, "out").unwrap();
        for (row, column) in [(0, 0), (1, 0), (0, 1), (33, 70), (127, 127)] {
            let of = |block| 32.0 * value(0, 128 + row, block) * value(1, column, block);
            let want: f32 = (0..columns / 32).map(of).sum();
            assert_eq!(out[(row * columns + column) as usize], want, "seed {seed}: {row}, {column}");
        }
    }
    assert_eq!([0, 1, 7, 10].map(fp8::e2m1_to_f32), [0.0, 0.5, 6.0, -1.0]);
    assert!(
        fp8::e8m0_to_f32(255).is_nan() && fp8::e8m0_to_f32(0) > 0.0 && fp8::e8m0_to_f32(254) < f32::INFINITY
    );
}

#[test]
fn what_has_no_scales_is_refused() {
    fn param<'k>(kernel: &'k mut Kernel, name: &str) -> &'k mut peerwarp_codegen::ir::Param {
        kernel.params.iter_mut().find(|p| p.name == name).expect("a parameter")
    }
    let of_one = traced(|b, [x, w], [scales, _]| b.dot(x.rows(0, 128).scaled_by(&scales), w.rows(0, 128), 2));
    let loaded = traced(|_, [x, _], [scales, _]| x.rows(0, 128).scaled_by(&scales).load_f32(0, 128));
    let odd = traced(|b, [x, w], [of_x, of_w]| {
        b.dot(x.rows(b.index() * 64, 128).scaled_by(&of_x), w.rows(0, 128).scaled_by(&of_w), 2)
    });
    let narrow = traced(|b, [x, w], [of_x, of_w]| {
        b.dot(x.rows(0, 128).scaled_by(&of_x), w.rows(0, 64).scaled_by(&of_w), 2)
    });
    let said = |kernel: Result<Kernel, String>| {
        kernel.and_then(|k| verify(k).map(drop).map_err(|e| e.to_string())).expect_err("it is wrong")
    };
    for (said, words) in [
        (said(of_one), "of which one has scales of blocks"),
        (said(loaded), "a load of rows with scales of blocks"),
        (said(odd), "which is not known to be a multiple of 128"),
        (said(narrow), "rows of `w` with the scales `w_scales`"),
        (
            refused(|k| param(k, "w_scales").len = 767),
            "`w_scales` as scales of blocks; these are a vector of at least 768 u32",
        ),
        (refused(|k| param(k, "w_scales").dtype = Dtype::F32), "`w_scales` as scales of blocks"),
        (refused(|k| param(k, "x").dtype = Dtype::Bf16), "rows of `x` with the scales `x_scales`"),
        (refused(|k| k.shared[0].len -= 1), "room"),
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
}

#[test]
fn targets_without_the_instruction_refuse_them() {
    let printed = |kernel: &Kernel, target: &str| {
        let verified = verify(kernel.clone()).unwrap_or_else(|e| panic!("{e}"));
        let (target, info) = (target.parse().expect("a target"), EmitInfo { command: "a test".into() });
        emit(&verified, target, &info).map(|source| source.text).map_err(|e| e.to_string())
    };
    let kernel = traced(plain).unwrap();
    for target in Target::all().filter(|target| target.warp_size() == 32) {
        let name = target.to_string();
        match printed(&kernel, &name) {
            Ok(text) => {
                assert!(target.has_block_scales() && text.contains("kind::mxf8f6f4.block_scale"), "{name}")
            }
            Err(said) => {
                assert!(!target.has_block_scales() && said.contains("has no instruction for that"), "{said}")
            }
        }
    }
    // A reduction needs all warps, and a timeline has no loader.
    let reduced = traced(|b, matrices, scales| {
        let sums = plain(b, matrices, scales);
        sums - sums.row_max()
    });
    let said = printed(&reduced.unwrap(), "cuda:sm_100a").expect_err("it has no loader");
    assert!(said.contains("only a loader brings operands with scales of blocks"), "{said}");
    let (verified, info) = (verify(kernel).unwrap(), EmitInfo { command: "a test".into() });
    let timed = emit_with_timeline(&verified, "cuda:sm_100a".parse().unwrap(), &info, 8);
    assert!(timed.unwrap_err().to_string().contains("kernels with a timeline"));
}
