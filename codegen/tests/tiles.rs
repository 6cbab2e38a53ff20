//! Tiles of any number of elements on the simulator: nothing beyond the end is touched, and all else moves.

#[path = "printed/tails.rs"]
mod tails;

use std::sync::Arc;

use half::{bf16, f16};
use peerwarp_codegen::ir::{Dtype, Kernel, Planted};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};
use tails::{TAIL_CHUNK, TAIL_RANKS, Tails, tails_of};

/// A type of elements, exact for small integers.
trait Number: bytemuck::Pod + PartialEq + std::fmt::Debug {
    const DTYPE: Dtype;
    fn of(x: f32) -> Self;
}

impl Number for f32 {
    const DTYPE: Dtype = Dtype::F32;
    fn of(x: f32) -> f32 {
        x
    }
}
impl Number for bf16 {
    const DTYPE: Dtype = Dtype::Bf16;
    fn of(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
}
impl Number for f16 {
    const DTYPE: Dtype = Dtype::Fp16;
    fn of(x: f32) -> f16 {
        f16::from_f32(x)
    }
}

/// A small integer: twice it, too, is exact in every type.
fn number(rank: u32, i: u32) -> f32 {
    ((i * 7 + rank * 13) % 61) as f32 - 30.0
}

fn machine<T: Number>(kernel: Kernel, n: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(TAIL_RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..TAIL_RANKS {
        let x: Vec<T> = (0..n).map(|i| T::of(number(rank, i))).collect();
        machine.write(rank, "x", 0, &x).unwrap();
        machine.write(rank, "count", 0, &[n]).unwrap();
    }
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    machine
}

fn moves<T: Number>(n: u32, on_device: bool, warp_size: u32) {
    let case = Tails { n, dtype: T::DTYPE, on_device };
    let machine = machine::<T>(tails_of(case, warp_size), n);
    for seed in 0..4 {
        let outcome =
            machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        for rank in 0..TAIL_RANKS {
            let read = |name| outcome.memory.read::<T>(rank, name).unwrap();
            let of = |source: u32, f: fn(f32) -> f32| -> Vec<T> {
                (0..n).map(|i| T::of(f(number(source, i)))).collect()
            };
            let before = (rank + TAIL_RANKS - 1) % TAIL_RANKS;
            let all: Vec<T> = (0..TAIL_RANKS).flat_map(|source| of(source, |x| x + 1.0)).collect();
            assert_eq!(read("all"), all, "{case:?}");
            assert_eq!(read("copied"), of(before, |x| x), "{case:?}");
            assert_eq!(read("doubled"), of(before, |x| 2.0 * x), "{case:?}");
            let least = |tile: u32| {
                let end = n.min((tile + 1) * TAIL_CHUNK);
                (tile * TAIL_CHUNK..end).map(|i| number(rank, i)).fold(f32::MAX, f32::min)
            };
            let sum: f32 = (0..n).map(|i| number(rank, i)).sum();
            let least: f32 = (0..n.div_ceil(TAIL_CHUNK)).map(least).sum();
            assert_eq!(outcome.memory.read::<f32>(rank, "sum").unwrap(), [sum + least], "{case:?}");
        }
    }
}

#[test]
fn every_element_moves_and_nothing_else() {
    for n in [1, 7, 8, 500, 512, 513, 1000, 1003, 1024] {
        for on_device in [false, true] {
            moves::<f32>(n, on_device, 32);
            moves::<bf16>(n, on_device, 64);
            moves::<f16>(n, on_device, 32);
        }
    }
}
