//! Additions of tiles on the simulator: sums are whole, nothing orders them, and other accesses of what is added to are found.

use std::sync::Arc;

use crate::printed::histogram::{BINS, NUMBERS, histogram};

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Memory, Options};

fn run(kernel: Kernel, seed: u64, weight: fn(u32) -> f32) -> Result<Memory, Box<Findings>> {
    let kernel = Arc::new(Compiled::new(verify(kernel).unwrap()));
    let mut machine = Machine::new(1);
    machine.buffers_of(kernel.kernel()).unwrap();
    let x: Vec<u32> = (0..NUMBERS).map(|i| i * i + 7).collect();
    machine.write(0, "x", 0, &x).unwrap();
    machine.write(0, "weight", 0, &(0..NUMBERS).map(weight).collect::<Vec<f32>>()).unwrap();
    machine.write(0, "counts", 0, &[0u32; BINS as usize]).unwrap();
    machine.write(0, "sums", 0, &[0f32; BINS as usize]).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    machine.run(&Options::default().with_seed(seed)).map(|outcome| outcome.memory)
}

#[test]
fn every_number_is_counted_under_any_seed() {
    let mut want = vec![0u32; BINS as usize];
    (0..NUMBERS).for_each(|i| want[((i * i + 7) % BINS) as usize] += 1);
    for (seed, warp_size) in (0..8).flat_map(|seed| [(seed, 32), (seed, 64)]) {
        let memory = run(histogram(warp_size), seed, |_| 0.5).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(memory.read::<u32>(0, "counts").unwrap(), want);
        let halves: Vec<f32> = want.iter().map(|&n| n as f32 * 0.5).collect();
        assert_eq!(memory.read::<f32>(0, "sums").unwrap(), halves);
    }
}

#[test]
fn sums_of_floats_differ_from_seed_to_seed() {
    let sums = |seed| {
        let memory = run(histogram(32), seed, |i| 1.0 / (i + 1) as f32).unwrap_or_else(|e| panic!("{e}"));
        memory.read::<f32>(0, "sums").unwrap().to_vec()
    };
    let first = sums(0);
    assert_eq!(first, sums(0));
    assert!((1..4).any(|seed| sums(seed) != first), "the order of sums does not show");
}

/// What a kernel with a body of its own leaves.
fn with(body: fn(Group, Ptr<u32>, Ptr<u32>)) -> Result<Memory, Box<Findings>> {
    let kernel = trace(TraceMeta::new("adds", 1, 32, 2), |p: &mut Binder| {
        let (x, counts) = (p.arg::<Ptr<u32>>("x", NUMBERS.into()), p.arg::<Ptr<u32>>("counts", BINS.into()));
        let (_weight, _sums) =
            (p.arg::<Ptr<f32>>("weight", NUMBERS.into()), p.arg::<Ptr<f32>>("sums", BINS.into()));
        role("adds", 2, |b| body(b, x, counts));
    });
    run(kernel.unwrap(), 0, |_| 0.0)
}

#[test]
fn other_accesses_of_what_is_added_to_are_found() {
    let found = |body| with(body).unwrap_err().list[0].kind;
    let load = found(|b, x, counts| {
        counts.scatter_add(x.load(0, 64) % BINS, splat(1u32, 64), true);
        x.store(b.index() * BINS, counts.load(0, BINS));
    });
    assert_eq!(load, FindingKind::DataRace);
    let store = found(|_, x, counts| {
        counts.store(0, splat(0u32, BINS));
        counts.scatter_add(x.load(0, 64) % BINS, splat(1u32, 64), true);
    });
    assert_eq!(store, FindingKind::DataRace);
    let beyond = found(|_, x, counts| counts.scatter_add(x.load(0, 64), splat(1u32, 64), true));
    assert_eq!(beyond, FindingKind::OutOfBounds);
    let unmasked = found(|_, x, counts| counts.scatter(x.load(0, 64) % BINS, splat(1u32, 64), true));
    assert_eq!(unmasked, FindingKind::ScatterConflict);
}

#[test]
fn a_mask_leaves_elements_out() {
    let memory = with(|b, _, counts| {
        let lane = arange(64u32);
        counts.scatter_add(lane % 4, splat(b.index() + 1, 64), lane.lt(10));
    });
    let memory = memory.unwrap_or_else(|e| panic!("{e}"));
    let counts = memory.read::<u32>(0, "counts").unwrap();
    assert_eq!(counts[..5], [9, 9, 6, 6, 0]);
}

#[test]
fn windows_are_not_added_to() {
    let refused = trace(TraceMeta::new("window", 2, 32, 1), |p: &mut Binder| {
        let window = p.arg::<Window<u32>>("window", 64);
        role("adds", 1, |_| window.scatter_add(arange(64u32), splat(1u32, 64), true));
    });
    assert!(refused.unwrap_err().to_string().contains("an atomic on the window `window`"));
}
