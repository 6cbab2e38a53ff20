//! Dynamic scheduling: each number is one group's, in every launch and in every order of events; and each mistake with it is
//! found.

use crate::findings;
use crate::printed::broadcast;

use std::sync::Arc;

use broadcast::{RANKS, ROW, ROWS, broadcast};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{Access, Mutation, Operand, Site, Slot, mutate};
use peerwarp_codegen::ir::{Kernel, Planted};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, HostMemory, Machine};

/// Launches of each run: every one has to find the counters as the first did.
const LAUNCHES: u32 = 4;

/// A rank's row; the third one is empty, so that its receivers go on with the next number.
fn row(rank: u32, row: u32) -> Vec<u32> {
    (0..ROW).map(|i| if row == 2 { 0 } else { rank * 10_000 + row * 1_000 + i + 1 }).collect()
}

/// Launches a kernel again and again on all ranks, and looks at what each launch wrote.
fn machine(kernel: &Kernel, n: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel.clone()).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        let x: Vec<u32> = (0..ROWS).flat_map(|i| row(rank, i)).collect();
        machine.write(rank, "x", 0, &x).unwrap();
        machine.write(rank, "n", 0, &[n]).unwrap();
    }
    for _ in 0..LAUNCHES {
        for rank in 0..RANKS {
            let clear = |memory: &mut HostMemory<'_, '_>| {
                memory.write("out", 0, &[7u32; (RANKS * ROWS * ROW) as usize]).map_err(|e| e.to_string())
            };
            machine.host(rank, "clear", clear).unwrap();
        }
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        for rank in 0..RANKS {
            machine.host(rank, "check", move |memory| check(memory, n)).unwrap();
        }
    }
    machine
}

fn check(memory: &mut HostMemory<'_, '_>, n: u32) -> Result<(), String> {
    let out = memory.read::<u32>("out", 0..u64::from(RANKS * ROWS * ROW)).map_err(|e| e.to_string())?;
    for (number, got) in (0..).zip(out.chunks(ROW as usize)) {
        let (source, i) = (number / ROWS, number % ROWS);
        let want = if i < n && i != 2 { row(source, i) } else { vec![7; ROW as usize] };
        if got != want {
            return Err(format!("row {i} of rank {source} is {got:?}"));
        }
    }
    Ok(())
}

fn found(kernel: &Kernel, n: u32) -> Vec<FindingKind> {
    findings::kinds(&machine(kernel, n), 24)
}

#[test]
fn each_number_is_drawn_once_in_every_launch() {
    for warp_size in [32, 64] {
        // None, fewer than there are groups, as many, and more.
        for n in [0, 1, 4, ROWS] {
            assert_eq!(found(&broadcast(warp_size), n), [], "{n} rows");
        }
    }
}

/// What draws a number in a role, and with `back` what resets the counter.
fn draws(role: &str, back: bool) -> Site {
    Site::new(role, Access::Atomic, "next").nth(back.into())
}

#[test]
fn a_counter_that_is_not_put_back_leaves_rows_of_the_next_launch() {
    let keep =
        |role| Mutation::Replace { site: draws(role, true), slot: Slot::Value, with: Operand::Number(-1) };
    let sender = mutate(&broadcast(32), &keep("send")).unwrap();
    assert_eq!(found(&sender, ROWS), [FindingKind::Deadlock, FindingKind::CounterNotReset]);
    let receiver = mutate(&broadcast(32), &keep("recv")).unwrap();
    let receiver = found(&receiver, ROWS);
    assert!(receiver.contains(&FindingKind::HostFailed), "{receiver:?}");
    assert!(receiver.contains(&FindingKind::CounterNotReset), "{receiver:?}");
}

#[test]
fn numbers_that_are_passed_over_are_found() {
    let two = Mutation::Replace { site: draws("send", false), slot: Slot::Value, with: Operand::Number(2) };
    assert_eq!(found(&mutate(&broadcast(32), &two).unwrap(), ROWS), [FindingKind::Deadlock]);
}

#[test]
fn groups_that_share_a_counter_of_another_loop_are_found() {
    let other = Mutation::Replace { site: draws("recv", false), slot: Slot::Index, with: Operand::Number(0) };
    assert!(!found(&mutate(&broadcast(32), &other).unwrap(), ROWS).is_empty());
}

/// What tracing says of loops over one counter or two.
fn refused(body: fn(Counters, Ptr<u32>)) -> TraceError {
    let traced =
        trace(TraceMeta::new("k", 2, 32, 1), |p: &mut Binder| body(p.arg("next", 2), p.arg("x", 64)));
    traced.expect_err("groups would share numbers")
}

#[kernel]
fn two_roles(next: Counters, x: Ptr<u32>) {
    for name in ["a", "b"] {
        role(name, 2, |b| {
            for i in b.dynamic(8u32, Some(next.counter(1))) {
                x.set(i, 1u32);
            }
        });
    }
}

#[kernel]
fn two_loops(next: Counters, x: Ptr<u32>) {
    role("all", 2, |b| {
        for i in b.dynamic(8u32, Some(next.counter(0))) {
            x.set(i, 1u32);
        }
        for i in b.dynamic(8u32, Some(next.counter(0))) {
            x.set(i + 8, 1u32);
        }
    });
}

#[kernel]
fn again_and_again(next: Counters, x: Ptr<u32>) {
    role("all", 2, |b| {
        for round in 0..x.get(0) {
            for i in b.dynamic(8u32, Some(next.counter(0))) {
                x.set(i + 8, round);
            }
        }
    });
}

#[kernel]
fn one_each(next: Counters, x: Ptr<u32>) {
    role("all", 2, |b| {
        for i in b.dynamic(8u32, Some(next.counter(0))) {
            x.set(i, 1u32);
        }
        for i in b.dynamic(8u32, Some(next.counter(1))) {
            x.set(i + 8, 1u32);
        }
    });
}

#[test]
fn a_counter_is_one_loops() {
    for body in [two_roles, two_loops] {
        let error = refused(body);
        assert!(error.message.ends_with("of `next` is drawn from by two loops"), "{error}");
        assert!(
            error.loc.file.ends_with("dynamic.rs") && error.notes[0].0.file.ends_with("dynamic.rs"),
            "{error}"
        );
    }
    let error = refused(again_and_again);
    assert!(error.message.ends_with("is drawn from by a loop that runs several times"), "{error}");
    trace(TraceMeta::new("k", 2, 32, 1), |p: &mut Binder| one_each(p.arg("next", 2), p.arg("x", 64)))
        .unwrap();
}
