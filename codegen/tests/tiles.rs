//! Tiles of any number of elements on the simulator: nothing beyond the end is touched, and all else moves.

use crate::printed::tails;

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Dtype, Kernel, Planted, verify};
use peerwarp_codegen::print::warnings;
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};
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
            let less = of(before, |x| x - 1.0);
            assert_eq!(read("less"), less, "{case:?}");
            let zeros = (TAIL_CHUNK as usize).saturating_sub(less.len());
            let backwards = less.iter().rev().take(TAIL_CHUNK as usize).copied();
            let backwards: Vec<T> = backwards.chain(vec![T::zeroed(); zeros]).collect();
            assert_eq!(read("backwards"), backwards, "{case:?}");
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

/// A kernel of one role, and what it is made of.
fn kernel(warps: u32, body: impl FnOnce(&mut Binder)) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("test", 3, 32, warps), body)
}

/// The buffer is shorter than the tiles say: that is found, not hidden by the mask.
#[test]
fn tiles_of_more_than_there_is_are_found() {
    #[kernel]
    fn double(b: Group, x: Ptr<f32>, n: Val<u32>) {
        for t in b.tiles(n, 64) {
            x.store(t.at(), 2.0 * x.load(t.at(), t.len()));
        }
    }
    let make = |n: u32| {
        let made = kernel(1, |p| {
            let (x, count) = (p.arg::<Ptr<f32>>("x", 100), p.arg::<Ptr<u32>>("count", 1));
            role("double", 1, |b| double(b, x, count.get(0)));
        });
        let kernel = Arc::new(Compiled::planted(Planted::new(made.unwrap()).unwrap()));
        let mut machine = Machine::new(3);
        machine.buffers_of(kernel.kernel()).unwrap();
        for rank in 0..3 {
            machine.write(rank, "x", 0, &[1f32; 100]).unwrap();
            machine.write(rank, "count", 0, &[n]).unwrap();
        }
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        machine.run(&Options::default())
    };
    for n in [0, 1, 64, 65, 100] {
        let outcome = make(n).unwrap_or_else(|e| panic!("{n}: {e}"));
        let want: Vec<f32> = (0..100).map(|i| if i < n { 2.0 } else { 1.0 }).collect();
        assert_eq!(outcome.memory.read::<f32>(0, "x").unwrap(), want, "{n}");
    }
    assert_eq!(make(101).unwrap_err().list[0].kind, FindingKind::OutOfBounds);
}

/// Every access takes the mask that its index has, whatever the type; the other elements are zero, and stay.
#[test]
fn masks_are_for_every_access() {
    const LEN: u32 = 64;
    fn run(typed: bool) -> Vec<f32> {
        let made = kernel(1, |p| {
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            let flag = p.arg::<Flags>("flag", 2);
            let odd = || (arange(LEN) % 2).eq_to(1);
            if typed {
                let (x, out) =
                    (p.arg::<Ptr<f32>>("x", LEN.into()), p.arg::<Ptr<f32>>("out", 2 * u64::from(LEN)));
                let inbox = p.arg::<Sym<f32>>("inbox", 2 * u64::from(LEN));
                role("all", 1, |_| {
                    let here = shared::<f32>("here", LEN);
                    here.store(0, splat(3f32, LEN));
                    here.store(0.only(odd()), x.load(0.only(rank().lt(2)), LEN));
                    let mut parcel = send_to(Peers::rank(rank()));
                    parcel.put(&inbox, 0, splat(7f32, LEN));
                    parcel.put(&inbox, 0.only(!odd()).only(true), here.load(0.only(!odd()), LEN));
                    parcel.signal(&flag, 0, epoch);
                    let got = flag.from(rank()).wait(0, epoch);
                    out.store(0, inbox.load(&got, 0, LEN));
                    out.store(LEN, inbox.load(&got, 0.only(odd()), LEN));
                    out.store_where(LEN.only(arange(LEN).lt(8)), splat(5f32, LEN), odd());
                    out.store(LEN.only(rank().gt(9)), splat(1f32, LEN));
                });
            } else {
                let x = p.erased::<AnyPtr>("x", LEN.into(), Dtype::F32);
                let out = p.erased::<AnyPtr>("out", 2 * u64::from(LEN), Dtype::F32);
                let inbox = p.erased::<AnySym>("inbox", 2 * u64::from(LEN), Dtype::F32);
                role("all", 1, |_| {
                    let here = shared::<f32>("here", LEN);
                    here.store(0, splat(3f32, LEN));
                    here.store(0.only(odd()), x.load_f32(0.only(rank().lt(2)), LEN));
                    let mut parcel = send_to(Peers::rank(rank()));
                    parcel.put_f32(&inbox, 0, splat(7f32, LEN));
                    let even = AnyTile::rounded(here.load(0.only(!odd()), LEN), Dtype::F32);
                    parcel.put_any(&inbox, 0.only(!odd()), even);
                    parcel.signal(&flag, 0, epoch);
                    let got = flag.from(rank()).wait(0, epoch);
                    out.store(0, inbox.load(&got, 0, LEN));
                    out.store_f32(LEN, inbox.load_f32(&got, 0.only(odd()), LEN));
                    out.store_f32(LEN.only(arange(LEN).lt(8) & odd()), splat(5f32, LEN));
                    out.store(LEN.only(rank().gt(9)), x.load_if(0, LEN, rank().lt(2)));
                });
            }
        });
        let kernel = Arc::new(Compiled::planted(Planted::new(made.unwrap()).unwrap()));
        let mut machine = Machine::new(3);
        machine.buffers_of(kernel.kernel()).unwrap();
        for rank in 0..2 {
            machine.write(rank, "x", 0, &(0..LEN).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
        }
        // What rank 2 does not load need not be there.
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
        outcome.memory.read::<f32>(1, "out").unwrap().to_vec()
    }
    let want = |i: u32| match i {
        i if i.is_multiple_of(2) => match i < LEN {
            true => 3.0,
            false => 0.0,
        },
        i if i < LEN => 7.0,
        i if i < LEN + 8 => 5.0,
        _ => 7.0,
    };
    let want: Vec<f32> = (0..2 * LEN).map(want).collect();
    assert_eq!(run(true), want);
    assert_eq!(run(false), want);
}

/// A condition that does not hold sends no packet, and waits for none.
#[test]
fn packets_move_or_not() {
    let made = kernel(1, |p| {
        let (packets, out) = (p.arg::<Packets<f32>>("packets", 64), p.arg::<Ptr<f32>>("out", 64));
        role("all", 1, |_| {
            packets.send(Peers::rank(rank()), 0.only(rank().lt(2)), splat(3f32, 64));
            out.store(0, packets.take(0.only(rank().lt(2)), 64, rank()));
        });
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(made.unwrap()).unwrap()));
    let mut machine = Machine::new(3);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
    for (rank, want) in [(0, 3.0), (1, 3.0), (2, 0.0)] {
        assert_eq!(outcome.memory.read::<f32>(rank, "out").unwrap(), [want; 64], "rank {rank}");
    }
}

/// A scalar condition chooses tiles, and `+=` works on traced values in loops of the host.
#[test]
fn conditions_choose_tiles_and_values_add_up() {
    #[kernel]
    fn body(x: AnyPtr, out: Ptr<f32>) {
        let mine = rank() == 1;
        let mut sum = x.load_f32(0, 32);
        let mut count = rank();
        for i in 1..4 {
            sum += x.load_f32(32 * i, 32);
            count += 1;
        }
        sum -= 1.0;
        out.store(0, mine.select(sum, 0.0));
        out.store(32, mine.select(2.0, sum));
        let any = mine.select(x.load(0.only(mine), 32), x.load(96.only(!mine), 32));
        out.store(64, any.to_f32());
        out.set(96, mine.select(count.to_f32(), 0.5));
    }
    let made = kernel(1, |p| {
        let (x, out) = (p.erased::<AnyPtr>("x", 128, Dtype::F32), p.arg::<Ptr<f32>>("out", 97));
        role("all", 1, |_| body(x, out));
    });
    let made = made.unwrap();
    // Nothing is loaded that the mask leaves out.
    let kernel = Arc::new(Compiled::planted(Planted::new(made).unwrap()));
    let mut machine = Machine::new(3);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..3 {
        machine.write(rank, "x", 0, &(0..128).map(|i| i as f32).collect::<Vec<_>>()).unwrap();
    }
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let sum = |i: u32| (4 * i + 32 * 6) as f32 - 1.0;
    let of = |f: fn(u32) -> f32| (0..32).map(f).collect::<Vec<f32>>();
    let sums: Vec<f32> = (0..32).map(sum).collect();
    for (rank, want) in [
        (1, [sums.clone(), of(|_| 2.0), of(|i| i as f32), vec![4.0]].concat()),
        (2, [of(|_| 0.0), sums, of(|i| (96 + i) as f32), vec![0.5]].concat()),
    ] {
        assert_eq!(outcome.memory.read::<f32>(rank, "out").unwrap(), want, "rank {rank}");
    }
}

/// What an author learns of lanes that idle.
fn warned(warps: u32, body: impl FnOnce(&mut Binder)) -> Vec<String> {
    let kernel = verify(kernel(warps, body).unwrap()).unwrap_or_else(|e| panic!("{e}"));
    let target: Target = "cuda:sm_90a".parse().unwrap();
    let all = warnings(&kernel, target).unwrap();
    all.iter().map(|w| format!("{}\n  help: {}", w.message, w.help)).collect()
}

#[test]
fn tiles_that_leave_lanes_idle_are_told() {
    #[kernel]
    fn rows(g: Group, x: AnyPtr, out: AnyPtr, len: u32) {
        for i in g.strided(4u32) {
            out.store(i * len, x.load(i * len, len));
        }
    }
    let arguments = |p: &mut Binder| {
        (p.erased::<AnyPtr>("x", 4096, Dtype::Bf16), p.erased::<AnyPtr>("out", 4096, Dtype::Bf16))
    };
    let block = |warps, len| {
        warned(warps, |p| {
            let (x, out) = arguments(p);
            role("rows", 2, |b| rows(b, x, out, len));
        })
    };
    let what = "a tile of 32 bf16 keeps 32 of the 256 lanes of its block busy\n  help: move it with groups of 32 lanes, \
                `b.split(1, ..)`, or tiles of up to 256 elements";
    assert_eq!(block(8, 32), [what]);
    // One warp cannot be smaller, and long tiles have work for all.
    assert_eq!(block(1, 8), [""; 0]);
    assert_eq!(block(8, 1024), [""; 0]);
    // Half of the lanes are as good as all if they hold 16 bytes each, and no better if they hold 8.
    assert_eq!(block(8, 512).len(), 1);
    let group = |warps, len| {
        warned(8, |p| {
            let (x, out) = arguments(p);
            role("rows", 2, |b| b.split(warps, |g| rows(g, x, out, len)));
        })
    };
    let what = "a tile of 24 bf16 keeps 24 of the 128 lanes of its group busy\n  help: move it with groups of 32 lanes, \
                `b.split(1, ..)`, or tiles of up to 128 elements";
    assert_eq!(group(4, 24), [what]);
    assert_eq!(group(1, 24), [""; 0]);
    // Integers of a warp are control, and so is what stands beside longer tiles.
    let control = warned(8, |p| {
        let (ids, weights) = (p.arg::<Ptr<u32>>("ids", 8), p.arg::<Ptr<f32>>("weights", 8));
        let (x, out) = arguments(p);
        role("count", 1, |_| ids.store(0, ids.load(0, 8) + 1));
        role("rows", 2, |b| {
            weights.store(0, weights.load(0, 8) * 2.0);
            rows(b, x, out, 1024);
        });
    });
    assert_eq!(control, [""; 0]);
}
