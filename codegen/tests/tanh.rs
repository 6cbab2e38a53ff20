//! The hyperbolic tangent: simulated, folded, in text form, and as HIP sources compute it.

use std::process::Command;
use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

const LEN: u32 = 256;

fn squash(warp_size: u32) -> Kernel {
    trace(TraceMeta::new("squash", 2, warp_size, 1), |p| {
        let (x, out) = (p.arg::<Ptr<f32>>("x", LEN.into()), p.arg::<Ptr<f32>>("out", u64::from(LEN) + 2));
        role("all", 1, |_| {
            out.store(0, x.load(0, LEN).tanh());
            out.set(LEN, x.get(1).tanh());
            out.set(LEN + 1, 0.5f32.val().tanh());
        });
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// Both sides of zero, both parts of the HIP function, and what lies beyond numbers.
fn inputs() -> Vec<f32> {
    let special = [0.0, -0.0, 0.625, -0.625, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE];
    let spread = (special.len() as u32..LEN).map(|i| (i as f32 - 130.0).powi(3) * 1e-5);
    special.into_iter().chain(spread).collect()
}

fn exact(x: f32) -> f64 {
    f64::from(x).tanh()
}

/// How far a result is from the exact one, in units in the last place of the latter.
fn units(got: f32, want: f64) -> f64 {
    let near = (want as f32).abs().max(f32::MIN_POSITIVE);
    (f64::from(got) - want).abs() / f64::from(near.next_up() - near)
}

#[test]
fn the_simulator_rounds_once() {
    let kernel = Arc::new(Compiled::new(verify(squash(32)).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    let x = inputs();
    (0..2).for_each(|rank| machine.write(rank, "x", 0, &x).unwrap());
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let outcome = machine.run(&Options::default()).unwrap();
    let got = outcome.memory.read::<f32>(0, "out").unwrap();
    let want = x.iter().copied().chain([x[1], 0.5]).map(|x| (exact(x) as f32).to_bits());
    let got = got.iter().map(|x| x.to_bits());
    assert!(got.zip(want).all(|(got, want)| got == want || f32::from_bits(want).is_nan()));
}

#[test]
fn targets_round_as_they_do_so_constants_stay_as_they_are() {
    let text = squash(32).to_string();
    assert_eq!(text.matches("tanh(").count(), 3, "{text}");
    assert!(text.contains("tanh(0.5)"), "{text}");
}

fn source(target: &str) -> String {
    let target: peerwarp_codegen::family::Target = target.parse().unwrap();
    let kernel = verify(squash(target.warp_size())).unwrap();
    emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap().text
}

#[test]
fn cuda_takes_the_accurate_function() {
    let text = source("cuda:sm_90a");
    assert!(text.contains("{ return tanhf(x); }") && text.contains("tanh_of(0.5f)"), "{text}");
}

/// The function of HIP sources, as the compiler of this machine compiles it.
#[test]
fn hip_is_within_two_units() {
    let text = source("hip:gfx942");
    let start = text.rfind("__device__ __forceinline__ f32 tanh_of").unwrap();
    let function = &text[start..start + text[start..].find("\n}\n").unwrap() + 3];
    let path = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("tanh.cpp");
    let x = (0..0x4300_0000u32).step_by(0x1_0007).map(f32::from_bits).chain(inputs()).collect::<Vec<_>>();
    let bits = x.iter().map(|x| format!("{:#x}u", x.to_bits())).collect::<Vec<_>>().join(",");
    let main = format!(
        "#include <cstdio>\n#include <cstring>\n#define __device__\n#define __forceinline__ inline\nusing f32 = float;\n\
         {function}\nconst unsigned inputs[] = {{{bits}}};\n\
         int main() {{ for (unsigned bits : inputs) {{ f32 x; memcpy(&x, &bits, 4); x = tanh_of(x); \
         memcpy(&bits, &x, 4); printf(\"%u\\n\", bits); }} }}\n"
    );
    std::fs::write(&path, main).unwrap();
    let program = path.with_extension("bin");
    let built = Command::new("c++").args(["-std=c++17", "-O1"]).arg(&path).arg("-o").arg(&program).output();
    let built = built.expect("the compiler starts");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let said = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let got: Vec<f32> = said.lines().map(|bits| f32::from_bits(bits.parse().unwrap())).collect();
    assert_eq!(got.len(), x.len());
    for (&x, &got) in x.iter().zip(&got) {
        let good = if x.is_nan() { got.is_nan() } else { units(got, exact(x)) <= 2.0 };
        assert!(good && (x.is_nan() || got.is_sign_negative() == x.is_sign_negative()), "tanh({x}) is {got}");
    }
}
