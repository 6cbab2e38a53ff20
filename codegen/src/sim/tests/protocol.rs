//! Ordering, flags and epochs, in kernels of a few lines.

use super::build::{Short, U, machine, sample};
use super::tokens;
use super::*;
use crate::ir::samples::Sample;
use crate::ir::*;

/// Two values of a rank's `cells`.
fn cells(memory: &Memory, rank: u32) -> [u32; 2] {
    let all = memory.read::<u32>(rank, "cells").unwrap();
    [all[0], all[1]]
}

/// Runs under every schedule; all must be clean.
fn clean(machine: &Machine, mut check: impl FnMut(&Memory)) {
    for options in schedules() {
        let outcome = machine.run(&options).unwrap_or_else(|f| panic!("{options:?}: {f}"));
        check(&outcome.memory);
    }
}

/// Runs under every schedule; all must fail and begin with a finding of the kind. Returns the first of the first.
fn all_find(machine: &Machine, kind: FindingKind) -> Finding {
    let mut first = None;
    for options in schedules() {
        let Err(findings) = machine.run(&options) else { panic!("nothing is found under {options:?}") };
        assert_eq!(findings.list[0].kind, kind, "{options:?}: {findings}");
        first.get_or_insert(findings.list[0].clone());
    }
    first.unwrap()
}

/// `inbox` and `cells` of two numbers, and eight flags.
fn buffers(s: &mut Sample) -> (ParamId, ParamId, ParamId) {
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 2);
    let cells = s.b.param("cells", ParamKind::Local, Dtype::U32, 2);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 8);
    (inbox, cells, flag)
}

fn is_rank(s: &mut Sample, rank: u32) -> ValueId {
    let (me, rank) = (s.rank(), s.u32(rank));
    s.compare("", CompareOp::Eq, me, rank)
}

fn other(s: &mut Sample) -> ValueId {
    let (me, one) = (s.rank(), s.u32(1));
    s.binary("other", BinaryOp::Xor, me, one)
}

#[test]
fn a_signal_publishes_what_joined_groups_put() {
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let to = other(s);
        s.split(|s| {
            let group = s.group();
            let seven = s.u32(7);
            let value = s.add(group, seven);
            s.put(to, inbox, group, value);
        });
        let (zero, one) = (s.u32(0), s.u32(1));
        let parcel = s.parcel(Target::Rank(to));
        s.signal(parcel, flag, zero, one);
        let got = s.wait(flag, zero, to, one);
        for i in [zero, one] {
            let v = s.load(U, inbox, i, Some(got));
            s.set(cells_, i, v);
        }
    });
    clean(&machine(vec![s.finish()]), |m| assert_eq!([cells(m, 0), cells(m, 1)], [[7, 8]; 2]));
}

#[test]
fn order_is_passed_on_from_rank_to_rank() {
    // Rank 0 puts to rank 2 and signals rank 1, which signals rank 2: rank 2 sees rank 0's put.
    let mut s = Sample::new("relay");
    s.b.kernel.ranks = 3;
    let (inbox, cells_, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let (zero, one, two) = (s.u32(0), s.u32(1), s.u32(2));
        let [first, second, third] = [0, 1, 2].map(|r| is_rank(s, r));
        s.when(first, |s| {
            let nine = s.u32(9);
            s.put(two, inbox, zero, nine);
            let parcel = s.parcel(Target::Rank(one));
            s.signal(parcel, flag, zero, one);
        });
        s.when(second, |s| {
            s.wait(flag, zero, zero, one);
            let parcel = s.parcel(Target::Rank(two));
            s.signal(parcel, flag, one, one);
        });
        s.when(third, |s| {
            let got = s.wait(flag, one, one, one);
            let v = s.load(U, inbox, zero, Some(got));
            s.set(cells_, zero, v);
        });
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(3);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("cells").unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    clean(&machine, |m| assert_eq!(cells(m, 2), [9, 0]));
}

#[test]
fn a_later_put_to_the_same_place_arrives_later() {
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let to = other(s);
        let (zero, one, two) = (s.u32(0), s.u32(1), s.u32(2));
        s.put(to, inbox, zero, one);
        let parcel = s.put(to, inbox, zero, two);
        s.signal(parcel, flag, zero, one);
        let got = s.wait(flag, zero, to, one);
        let v = s.load(U, inbox, zero, Some(got));
        s.set(cells_, zero, v);
    });
    clean(&machine(vec![s.finish()]), |m| assert_eq!(cells(m, 0), [2, 0]));
}

#[test]
fn peer_stores_really_arrive_late() {
    // Without race checks, a relaxed flag lets some schedules read before the data is there.
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let to = other(s);
        let (zero, one) = (s.u32(0), s.u32(1));
        let parcel = s.put(to, inbox, zero, one);
        let order = SignalOrder::Relaxed;
        s.op(CommOp::Signal(Signal { parcel, flag, index: zero, value: one, order }));
        let got = s.wait(flag, zero, to, one);
        let v = s.load(U, inbox, zero, Some(got));
        s.set(cells_, zero, v);
    });
    let machine = machine(vec![s.finish()]);
    let seen = schedules().map(|o| {
        let outcome = machine.run(&Options { race_checks: false, ..o }).unwrap_or_else(|f| panic!("{f}"));
        cells(&outcome.memory, 0)[0]
    });
    let seen: Vec<u32> = seen.collect();
    assert!(seen.contains(&0) && seen.contains(&1), "{seen:?}");
    all_find(&machine, FindingKind::DataRace);
}

#[test]
fn groups_race_in_shared_and_global_memory() {
    for shared in [false, true] {
        let (mut s, out) = sample();
        let loc = s.loc();
        let array = s.b.shared("array", Dtype::U32, 4, 1, loc);
        let place: Place = if shared { array.into() } else { out.into() };
        s.role("all", 1, |s| {
            s.split(|s| {
                let (zero, group) = (s.u32(0), s.group());
                s.set(place, zero, group);
            });
        });
        let race = all_find(&machine(vec![s.finish()]), FindingKind::DataRace);
        assert_eq!(race.buffer.as_deref(), Some(if shared { "array" } else { "out" }));
        assert_eq!((race.at.loc, race.elements), (race.other.as_ref().unwrap().loc, Some((0, 1))));
        assert_ne!(race.at.group, race.other.unwrap().group);
    }
}

#[test]
fn atomics_race_with_plain_accesses_only() {
    let kernel = |look: bool| {
        let (mut s, out) = sample();
        s.role("count", 2, |s| {
            let (zero, one) = (s.u32(0), s.u32(1));
            s.atomic(ReduceOp::Sum, out, zero, one);
        });
        if look {
            s.role("look", 1, |s| {
                let (zero, one) = (s.u32(0), s.u32(1));
                let v = s.get(out, zero);
                s.set(out, one, v);
            });
        }
        s.finish()
    };
    clean(&machine(vec![kernel(false)]), |m| assert_eq!(m.read::<u32>(0, "out").unwrap()[0], 2));
    all_find(&machine(vec![kernel(true)]), FindingKind::DataRace);
}

#[test]
fn launches_of_a_rank_are_ordered() {
    let step = |add: u32| {
        let (mut s, out) = sample();
        s.role("all", 1, |s| {
            let (zero, add) = (s.u32(0), s.u32(add));
            let v = s.get(out, zero);
            let v = s.add(v, add);
            s.set(out, zero, v);
        });
        s.finish()
    };
    clean(&machine(vec![step(1), step(2), step(3)]), |m| {
        assert_eq!(m.read::<u32>(1, "out").unwrap()[0], 6);
    });
}

#[test]
fn a_put_to_oneself_is_there_in_the_next_launch() {
    let kernel = |send: bool| {
        let (mut s, _) = sample();
        let (inbox, cells_, _) = buffers(&mut s);
        s.role("all", 1, |s| {
            let (me, zero, five) = (s.rank(), s.u32(0), s.u32(5));
            if send {
                let value = s.add(me, five);
                s.put(me, inbox, zero, value);
            } else {
                let v = s.get(inbox, zero);
                s.set(cells_, zero, v);
            }
        });
        s.finish()
    };
    clean(&machine(vec![kernel(true), kernel(false)]), |m| {
        assert_eq!([cells(m, 0)[0], cells(m, 1)[0]], [5, 6])
    });
    let mut seen_by_host = machine(vec![kernel(true)]);
    for rank in 0..2 {
        let look = |m: &mut HostMemory<'_, '_>| {
            let v = m.read::<u32>("inbox", 0..1)?;
            if v == [5 + m.rank()] { Ok(()) } else { Err(format!("{v:?}")) }
        };
        seen_by_host.host(rank, "look", look).unwrap();
    }
    clean(&seen_by_host, |_| {});
}

#[test]
fn few_stores_on_their_way_are_enough() {
    let machine = tokens::machine(tokens::kernel(tokens::Bug::None, false).0, 2);
    for options in schedules() {
        machine.run(&Options { max_delayed: 2, ..options }).unwrap_or_else(|f| panic!("{f}"));
    }
}

#[test]
fn the_adversary_starves_a_role() {
    // Fails only if all blocks of one role are done before any of the other begins: at random that hardly happens.
    let (mut s, out) = sample();
    for (name, number) in [("first", 1), ("second", 2)] {
        s.role(name, 8, |s| {
            let (zero, one, number) = (s.u32(0), s.u32(1), s.u32(number));
            let ticket = s.atomic(ReduceOp::Sum, out, zero, one);
            let at = s.add(ticket, one);
            s.set(out, at, number);
        });
    }
    let mut machine = machine(vec![s.finish()]);
    for rank in 0..2 {
        let look = |m: &mut HostMemory<'_, '_>| {
            let order = m.read::<u32>("out", 1..17)?;
            let apart = order[..8].iter().all(|&role| role == order[0]);
            if apart { Err(format!("role {} came first", order[0])) } else { Ok(()) }
        };
        machine.host(rank, "look", look).unwrap();
    }
    let messages = |strategy| {
        let run = |seed| machine.run(&Options { seed, strategy, ..Options::default() });
        let failed = (0..200).filter_map(|seed| run(seed).err());
        failed.map(|f| f.list[0].message.clone()).collect::<Vec<_>>()
    };
    assert!(messages(Strategy::Random).len() < 3);
    let adversarial = messages(Strategy::Adversarial);
    for role in [1, 2] {
        assert!(
            adversarial.iter().any(|m| m.ends_with(&format!("role {role} came first"))),
            "{adversarial:?}"
        );
    }
}

/// Both ranks signal each other's flag with a value, and wait for it or not.
fn ping_at(index: u32, signal: u32, wait: Option<u32>) -> Kernel {
    let (mut s, _) = sample();
    let (_, _, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let (to, index) = (other(s), s.u32(index));
        let parcel = s.parcel(Target::Rank(to));
        let value = s.u32(signal);
        s.signal(parcel, flag, index, value);
        if let Some(wait) = wait {
            let value = s.u32(wait);
            s.wait(flag, index, to, value);
        }
    });
    s.finish()
}

fn ping(signal: u32, wait: Option<u32>) -> Kernel {
    ping_at(0, signal, wait)
}

#[test]
fn signals_that_come_to_nothing() {
    let unwaited = all_find(&machine(vec![ping(1, None)]), FindingKind::UnwaitedSignal);
    assert_eq!(unwaited.elements, Some((0, 1)));
    all_find(&machine(vec![ping(1, None), ping(2, Some(2))]), FindingKind::LostSignal);
    all_find(&machine(vec![ping(1, None), ping(1, Some(1))]), FindingKind::DoubledSignal);
    // A rank may signal its second launch before the other is at its first wait.
    all_find(&machine(vec![ping(1, Some(1)), ping(2, Some(2))]), FindingKind::LostSignal);
    clean(&machine(vec![ping_at(1, 1, Some(1)), ping_at(0, 2, Some(2)), ping_at(1, 3, Some(3))]), |_| {});
}

#[test]
fn a_signal_that_nothing_orders_after_the_wait_for_the_last_one() {
    // Rank 0 signals twice in a row; rank 1 waits for both, and usually sees the first in time.
    let (mut s, _) = sample();
    let (_, _, flag) = buffers(&mut s);
    s.role("all", 1, |s| {
        let (zero, one, two) = (s.u32(0), s.u32(1), s.u32(2));
        let first = is_rank(s, 0);
        let loc = s.loc();
        let then = s.region(|s| {
            for value in [one, two] {
                let parcel = s.parcel(Target::Rank(one));
                s.signal(parcel, flag, zero, value);
            }
        });
        let otherwise = s.region(|s| {
            for value in [one, two] {
                s.wait(flag, zero, zero, value);
            }
        });
        s.b.push(ControlOp::If { cond: first, then, otherwise, results: vec![] }, loc);
    });
    let machine = machine(vec![s.finish()]);
    let mut in_time = 0;
    for options in schedules() {
        let findings = machine.run(&options).expect_err("a race of flags");
        match findings.list[0].kind {
            FindingKind::LostSignal => {
                in_time += usize::from(findings.list[0].message.contains("could miss"))
            }
            FindingKind::EpochConfusion => {}
            _ => panic!("{findings}"),
        }
    }
    assert!(in_time > 0, "some schedules let the wait see the first signal");
}

#[test]
fn epochs_set_back_and_left_behind() {
    let back = all_find(&machine(vec![ping(2, Some(2)), ping(1, Some(1))]), FindingKind::EpochConfusion);
    assert!(
        back.message.contains("it already holds the newer 2") || back.message.contains("set back"),
        "{back}"
    );
}

/// Puts in some epochs only, but always signals; then reads. Double-buffered.
fn sometimes(put_until: u32) -> Kernel {
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    let epoch = s.epoch(true);
    s.role("all", 1, |s| {
        let (to, one, limit) = (other(s), s.u32(1), s.u32(put_until));
        let parity = s.binary("", BinaryOp::And, epoch, one);
        let parcel = s.parcel(Target::Rank(to));
        let early = s.compare("", CompareOp::Le, epoch, limit);
        s.when(early, |s| {
            s.op(CommOp::Put(Put { parcel, buffer: inbox, index: parity, value: epoch, mask: None }));
        });
        s.signal(parcel, flag, parity, epoch);
        let got = s.wait(flag, parity, to, epoch);
        let v = s.load(U, inbox, parity, Some(got));
        s.set(cells_, parity, v);
    });
    s.finish()
}

#[test]
fn a_read_of_what_an_older_epoch_left() {
    clean(&machine(vec![sometimes(9); 4]), |m| assert_eq!(cells(m, 0), [4, 3]));
    let stale = all_find(&machine(vec![sometimes(2); 4]), FindingKind::StaleRead);
    assert!(stale.message.contains("wait for epoch 3") && stale.message.contains("older epoch 1"), "{stale}");
    assert_eq!(stale.other.unwrap().epoch, Some(1));
}

/// How the wait that a read of `inbox` relies on counts, other than the put.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Count {
    /// By another epoch word and other flags.
    OtherWord,
    /// By the same word, of which the put's signal does not tell before it is computed.
    LateValue,
}

/// Puts up to an epoch, signals the put and, by another count, that all is put; then reads after a wait for the latter.
fn by_another_count(count: Count, put_until: u32) -> Kernel {
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    let all_put = s.b.param("all_put", ParamKind::Flags, Dtype::U32, 2);
    let epoch = s.epoch(true);
    let word = s.b.param("other_epoch", ParamKind::EpochWord, Dtype::U32, 1);
    let other_epoch = s.value("other_epoch", U, |out| ValueOp::Epoch { out, word, advance: true });
    s.role("all", 1, |s| {
        let (to, one, limit) = (other(s), s.u32(1), s.u32(put_until));
        let parity = s.binary("", BinaryOp::And, epoch, one);
        let value = if count == Count::LateValue { s.mul(epoch, one) } else { epoch };
        let parcel = s.parcel(Target::Rank(to));
        let early = s.compare("", CompareOp::Le, epoch, limit);
        s.when(early, |s| {
            s.op(CommOp::Put(Put { parcel, buffer: inbox, index: parity, value, mask: None }));
        });
        s.signal(parcel, flag, parity, value);
        let parcel = s.parcel(Target::Rank(to));
        let now = if count == Count::LateValue { epoch } else { other_epoch };
        s.signal(parcel, all_put, parity, now);
        s.wait(flag, parity, to, value);
        let got = s.wait(all_put, parity, to, now);
        let v = s.load(U, inbox, parity, Some(got));
        s.set(cells_, parity, v);
    });
    s.finish()
}

/// Four launches of one kernel on each rank.
fn four_launches(kernel: Kernel) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("cells").unwrap();
    for _ in 0..4 {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

#[test]
fn a_read_of_old_data_after_a_wait_that_counts_otherwise() {
    for count in [Count::OtherWord, Count::LateValue] {
        clean(&four_launches(by_another_count(count, 9)), |m| assert_eq!(cells(m, 0), [4, 3], "{count:?}"));
        let stale = all_find(&four_launches(by_another_count(count, 2)), FindingKind::StaleRead);
        let want = |rank| {
            format!(
                "inbox[1..2] is read after a signal of rank {rank}'s launch 3, but its content is older: rank {rank} wrote it \
                 in launch 1 and launched the same kernel again in launch 2"
            )
        };
        assert!([want(0), want(1)].contains(&stale.message), "{stale}");
    }
}

#[test]
fn a_read_of_what_a_newer_epoch_put_there() {
    // Flags by epoch, one slot: the second launch waits for its own epoch, then reads as if it were the first.
    let (mut s, _) = sample();
    let (inbox, cells_, flag) = buffers(&mut s);
    let epoch = s.epoch(true);
    s.role("all", 1, |s| {
        let (to, zero, one) = (other(s), s.u32(0), s.u32(1));
        let parcel = s.put(to, inbox, zero, epoch);
        s.signal(parcel, flag, epoch, epoch);
        let mut got = s.wait(flag, epoch, to, epoch);
        let second = s.compare("", CompareOp::Gt, epoch, one);
        s.when(second, |s| {
            let before = s.binary("", BinaryOp::Sub, epoch, one);
            got = s.wait(flag, before, to, before);
            let v = s.load(U, inbox, zero, Some(got));
            s.set(cells_, zero, v);
        });
        // Both ranks read before either overwrites.
        let three = s.u32(3);
        let four = s.add(epoch, three);
        let parcel = s.parcel(Target::Rank(to));
        s.signal(parcel, flag, four, epoch);
        s.wait(flag, four, to, epoch);
    });
    let newer = all_find(&machine(vec![s.finish(); 2]), FindingKind::EpochConfusion);
    assert!(newer.message.contains("wait for epoch 1") && newer.message.contains("newer epoch 2"), "{newer}");
}

#[test]
fn epochs_wrap_around() {
    let mut machine = machine(vec![sometimes(u32::MAX); 5]);
    for rank in 0..2 {
        machine.write(rank, "epoch", 0, &[u32::MAX - 2]).unwrap();
    }
    // MAX - 1, MAX, 4, 5, 6
    clean(&machine, |m| assert_eq!(cells(m, 1), [6, 5]));
}

#[test]
fn a_peeked_epoch_stays() {
    let look = |advance: bool| {
        let (mut s, out) = sample();
        let epoch = s.epoch(advance);
        s.role("all", 2, |s| {
            let group = s.group();
            s.set(out, group, epoch);
        });
        s.finish()
    };
    let last = |advance: [bool; 3]| {
        let machine = machine(advance.map(look).to_vec());
        machine.run(&Options::default()).unwrap().memory.read::<u32>(0, "out").unwrap()[..2].to_vec()
    };
    assert_eq!(last([false, false, false]), [1, 1]);
    assert_eq!(last([true, false, true]), [2, 2]);
    assert_eq!(last([true, true, true]), [3, 3]);
}

#[test]
fn an_epoch_advances_as_the_last_block_begins() {
    let (mut s, out) = sample();
    let _ = s.epoch(true);
    let word = s.b.param("look", ParamKind::EpochWord, Dtype::U32, 1);
    let next = s.value("next", U, |out| ValueOp::Epoch { out, word, advance: false });
    s.role("all", 2, |s| {
        let group = s.group();
        s.set(out, group, next);
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("out").unwrap();
    machine.launch_all(&kernel, &Bindings::new().buffer("look", "epoch")).unwrap();
    // One block after the other: the second one, which is the last, has advanced the word when it looks.
    let one_by_one = Options { resident_blocks: Some(1), ..Options::default() };
    let memory = machine.run(&one_by_one).unwrap().memory;
    assert_eq!(memory.read::<u32>(0, "out").unwrap()[..2], [1, 2]);
}
