//! What operations compute.

use super::build::{Short, U, outputs, sample, tile};
use super::*;
use crate::ir::*;

#[test]
fn loops_break_and_continue() {
    // sum over i in 0..5, j in 0..5 of 10 i + j; j = 3 goes on with the next i, i = 3 ends both loops.
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, one, three, five, ten) = (s.u32(0), s.u32(1), s.u32(3), s.u32(5), s.u32(10));
        let sum = s.var("sum", zero);
        s.for_each("i", (zero, five, one), |s, i| {
            s.for_each("j", (zero, five, one), |s, j| {
                let skip = s.compare("", CompareOp::Eq, j, three);
                s.when(skip, |s| {
                    s.op(ControlOp::Continue { depth: 1 });
                });
                let stop = s.compare("", CompareOp::Eq, i, three);
                s.when(stop, |s| {
                    s.op(ControlOp::Break { depth: 1 });
                });
                let tens = s.mul(i, ten);
                let term = s.add(tens, j);
                let old = s.read_var(sum);
                let new = s.add(old, term);
                s.set_var(sum, new);
            });
        });
        let sum = s.read_var(sum);
        s.set(out, zero, sum);
    });
    let want = (0..3).flat_map(|i| (0..3).map(move |j| 10 * i + j)).sum::<u32>();
    assert_eq!(outputs(s.finish(), 1), [want]);
}

#[test]
fn while_loops_and_branch_results() {
    // The Collatz sequence from 7: how many steps to 1.
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, one, two, three, seven) = (s.u32(0), s.u32(1), s.u32(2), s.u32(3), s.u32(7));
        let (n, steps) = (s.var("n", seven), s.var("steps", zero));
        let loc = s.loc();
        let mut cond = None;
        let header = s.region(|s| {
            let now = s.read_var(n);
            cond = Some(s.compare("", CompareOp::Ne, now, one));
        });
        let body = s.region(|s| {
            let now = s.read_var(n);
            let odd = s.binary("", BinaryOp::And, now, one);
            let odd = s.compare("", CompareOp::Eq, odd, one);
            let (mut up, mut down) = (None, None);
            let then = s.region(|s| {
                let triple = s.mul(now, three);
                up = Some(s.add(triple, one));
            });
            let otherwise = s.region(|s| down = Some(s.binary("", BinaryOp::Div, now, two)));
            let next = s.b.kernel.add_value(U, None);
            let results = vec![(next, up.unwrap(), down.unwrap())];
            s.op(ControlOp::If { cond: odd, then, otherwise, results });
            s.set_var(n, next);
            let old = s.read_var(steps);
            let new = s.add(old, one);
            s.set_var(steps, new);
        });
        s.b.push(ControlOp::While { header, cond: cond.unwrap(), body }, loc);
        let steps = s.read_var(steps);
        s.set(out, zero, steps);
    });
    assert_eq!(outputs(s.finish(), 1), [16]);
}

#[test]
fn counters_end_at_the_last_number() {
    // From -2 below 3 by 2, and a counter that would overflow.
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, one) = (s.u32(0), s.u32(1));
        let runs = s.var("runs", zero);
        let bounds = [Const::I32(-2), Const::I32(3), Const::I32(2)].map(|c| s.constant(c));
        let count = |s: &mut _, _| {
            let old = Short::read_var(s, runs);
            let new = Short::add(s, old, one);
            Short::set_var(s, runs, new);
        };
        s.for_each("i", (bounds[0], bounds[1], bounds[2]), count);
        let (start, end, step) = (s.u32(u32::MAX - 5), s.u32(u32::MAX), s.u32(4));
        s.for_each("i", (start, end, step), count);
        let runs = s.read_var(runs);
        s.set(out, zero, runs);
    });
    assert_eq!(outputs(s.finish(), 1), [3 + 2]);
}

#[test]
fn variables_keep_their_value_when_read() {
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, one, four) = (s.u32(0), s.u32(1), s.u32(4));
        let ones = s.value("", tile(4), |out| ValueOp::Splat { out, a: one });
        let var = s.var("v", ones);
        let before = s.read_var(var);
        let twos = s.add(before, before);
        s.set_var(var, twos);
        let after = s.read_var(var);
        s.set(out, zero, before);
        s.set(out, four, after);
    });
    assert_eq!(outputs(s.finish(), 8), [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn masked_accesses_touch_only_what_the_mask_selects() {
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, seven, far) = (s.u32(0), s.u32(7), s.u32(62));
        let index = s.value("", tile(4), |out| ValueOp::Arange { out });
        let two = s.u32(2);
        let two = s.value("", tile(4), |out| ValueOp::Splat { out, a: two });
        let low = s.compare("", CompareOp::Lt, index, two);
        // Elements 62 and 63 exist, 64 and 65 do not.
        s.op(MemoryOp::Store { place: out.into(), index: far, value: two, mask: Some(low) });
        let other = s.value("", tile(4), |out| ValueOp::Splat { out, a: seven });
        let got = s.value("", tile(4), |o| {
            OpKind::Memory(MemoryOp::LoadMasked {
                out: o,
                place: out.into(),
                index: far,
                mask: low,
                other,
                receipt: None,
            })
        });
        s.set(out, zero, got);
    });
    assert_eq!(outputs(s.finish(), 4), [2, 2, 7, 7]);
}

#[test]
fn gathers_and_scatters() {
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let (zero, three, eight, nine) = (s.u32(0), s.u32(3), s.u32(8), s.u32(9));
        let index = s.value("", tile(4), |out| ValueOp::Arange { out });
        let spread = s.value("", tile(4), |out| ValueOp::Splat { out, a: three });
        let spread = s.binary("spread", BinaryOp::Mul, index, spread);
        let one = s.u32(1);
        let one = s.value("", tile(4), |out| ValueOp::Splat { out, a: one });
        let some = s.compare("", CompareOp::Ne, index, one);
        let values = s.value("", tile(4), |out| ValueOp::Splat { out, a: eight });
        let values = s.add(values, index);
        s.op(MemoryOp::Scatter {
            place: out.into(),
            index: spread,
            value: values,
            mask: Some(some),
            adds: false,
        });
        let other = s.value("", tile(4), |out| ValueOp::Splat { out, a: nine });
        let got = s.value("", tile(4), |o| {
            OpKind::Memory(MemoryOp::Gather {
                out: o,
                place: out.into(),
                index: spread,
                mask: some,
                other,
                receipt: None,
            })
        });
        let at = s.u32(16);
        s.set(out, at, got);
        let _ = zero;
    });
    let got = outputs(s.finish(), 20);
    assert_eq!((got[0], got[3], got[6], got[9]), (8, 0, 10, 11));
    assert_eq!(got[16..], [8, 9, 10, 11]);
}

#[test]
fn groups_have_their_own_numbers_and_shared_arrays() {
    let (mut s, out) = sample();
    let loc = s.loc();
    let own = s.b.shared("own", Dtype::U32, 1, 2, loc);
    let common = s.b.shared("common", Dtype::U32, 8, 1, loc);
    s.role("first", 1, |_| {});
    s.role("all", 3, |s| {
        let block = s.group();
        s.split(|s| {
            let zero = s.u32(0);
            let index = s.group();
            s.set(own, zero, index);
            let mine = s.get(own, zero);
            s.set(common, index, mine);
            let twenty = s.u32(20);
            let at = s.add(index, twenty);
            s.set(out, at, index);
        });
        // The groups of block b are b and b + 3: the block sees what both wrote.
        let three = s.u32(3);
        let a = s.get(common, block);
        let second = s.add(block, three);
        let b = s.get(common, second);
        let sum = s.add(a, b);
        s.set(out, block, sum);
    });
    let got = outputs(s.finish(), 26);
    assert_eq!(got[..3], [3, 5, 7]);
    assert_eq!(got[20..], [0, 1, 2, 3, 4, 5]);
}

#[test]
fn atomics_add_up_and_yield_the_old_value() {
    let (mut s, out) = sample();
    s.role("all", 4, |s| {
        s.split(|s| {
            let (zero, one) = (s.u32(0), s.u32(1));
            let ticket = s.atomic(ReduceOp::Sum, out, zero, one);
            let at = s.add(ticket, one);
            s.set(out, at, at);
            let group = s.group();
            let forty = s.u32(40);
            s.atomic(ReduceOp::Max, out, forty, group);
        });
    });
    let got = outputs(s.finish(), 41);
    assert_eq!(got[..9], [8, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(got[40], 7);
}

#[test]
fn conversions_bits_and_reductions() {
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        let index = s.value("", tile(8), |out| ValueOp::Arange { out });
        let floats = Type::tile(Dtype::F32, 8);
        let x = s.value("", floats, |out| ValueOp::Cast { out, a: index });
        let y = s.value("", floats, |out| ValueOp::Fma { out, a: x, b: x, c: x });
        let y = s.value("", floats, |out| ValueOp::Unary { out, op: UnaryOp::Neg, a: y });
        let half = s.value("", Type::tile(Dtype::Bf16, 8), |out| ValueOp::Cast { out, a: y });
        let back = s.value("", floats, |out| ValueOp::Cast { out, a: half });
        let back = s.value("", Type::tile(Dtype::I32, 8), |out| ValueOp::Cast { out, a: back });
        let sum =
            s.value("", Type::scalar(Dtype::I32), |out| ValueOp::Reduce { out, op: ReduceOp::Sum, a: back });
        let sum =
            s.value("", Type::scalar(Dtype::I32), |out| ValueOp::Unary { out, op: UnaryOp::Abs, a: sum });
        let sum = s.value("", U, |out| ValueOp::Bitcast { out, a: sum });
        let running =
            s.value("", tile(8), |out| ValueOp::Scan { out, op: ReduceOp::Sum, a: index, exclusive: false });
        let even = s.u32(2);
        let even = s.value("", tile(8), |out| ValueOp::Splat { out, a: even });
        let even = s.binary("", BinaryOp::Rem, index, even);
        let none = s.u32(0);
        let zeros = s.value("", tile(8), |out| ValueOp::Splat { out, a: none });
        let even = s.compare("", CompareOp::Eq, even, zeros);
        let picked = s.value("", tile(8), |out| ValueOp::Select { out, cond: even, a: running, b: zeros });
        let eight = s.u32(8);
        s.set(out, none, picked);
        s.set(out, eight, sum);
    });
    let got = outputs(s.finish(), 9);
    assert_eq!(got, [0, 0, 3, 0, 10, 0, 21, 0, (0..8).map(|i| i * i + i).sum()]);
}

#[test]
fn scalar_parameters_and_bindings() {
    let (mut s, out) = sample();
    let n = s.b.param("n", ParamKind::Scalar, Dtype::U32, 1);
    s.role("all", 1, |s| {
        let n = s.value("n", U, |out| ValueOp::ScalarParam { out, param: n });
        let zero = s.u32(0);
        s.set(out, zero, n);
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffer("elsewhere", ParamKind::Local, Dtype::F32, 64).unwrap();
    for rank in 0..2 {
        let bindings = Bindings::new().buffer("out", "elsewhere").scalar("n", Const::U32(40 + rank));
        machine.launch(rank, &kernel, &bindings).unwrap();
    }
    let memory = machine.run(&Options::default()).unwrap().memory;
    assert_eq!([0, 1].map(|r| memory.read::<u32>(r, "elsewhere").unwrap()[0]), [40, 41]);
}
