//! What kernels promise beyond data and flags: counters at zero, indices that fit, loops that end; and in which order a broken
//! promise is reported.

use super::build::{Short, U, machine, sample, tile};
use super::*;
use crate::ir::samples::Sample;
use crate::ir::*;

use FindingKind::*;

/// What the first schedule finds.
fn fails(kernels: Vec<Kernel>) -> Findings {
    *machine(kernels).run(&Options::default()).expect_err("a mistake")
}

/// A kernel with one role of one block.
fn alone(build: impl FnOnce(&mut Sample, ParamId)) -> Kernel {
    let (mut s, out) = sample();
    s.role("all", 1, |s| build(s, out));
    s.finish()
}

fn runs(kernel: Kernel) {
    machine(vec![kernel]).run(&Options::default()).unwrap_or_else(|f| panic!("{f}"));
}

/// Draws numbers below two from a counter; the last block to find none resets it if it looks for `last`.
fn drawing(last: u32) -> Kernel {
    let (mut s, _) = sample();
    let next = s.b.param("next", ParamKind::Counters, Dtype::U32, 2);
    s.role("all", 2, |s| {
        let loc = s.loc();
        let (one, two, last) = (s.u32(1), s.u32(2), s.u32(last));
        let mut cond = None;
        let header = s.region(|s| cond = Some(s.constant(Const::Bool(true))));
        let body = s.region(|s| {
            let number = s.atomic(ReduceOp::Sum, next, one, one);
            let none = s.compare("", CompareOp::Ge, number, two);
            s.when(none, |s| {
                let is_last = s.compare("", CompareOp::Eq, number, last);
                s.when(is_last, |s| {
                    let zero = s.u32(0);
                    s.atomic(ReduceOp::And, next, one, zero);
                });
                s.op(ControlOp::Break { depth: 0 });
            });
        });
        s.b.push(ControlOp::While { header, cond: cond.unwrap(), body }, loc);
    });
    s.finish()
}

#[test]
fn a_work_counter_is_zero_at_the_end_of_each_launch() {
    // Two numbers and two blocks that find none: the fourth to draw gets 3.
    machine(vec![drawing(3); 3]).run(&Options::default()).unwrap_or_else(|f| panic!("{f}"));
    // As if the last block had left early, or another loop drew, too.
    let findings = fails(vec![drawing(4)]);
    let found = &findings.list[0];
    assert_eq!((found.kind, found.elements), (CounterNotReset, Some((1, 2))), "{findings}");
    assert!(found.message.starts_with("work counter next[1] is 4 at the end of the launch"), "{found}");
    assert_eq!((found.at.role.as_deref(), &*found.at.action), (Some("all"), "atomic on `next`"));
}

/// One launch puts under an epoch word of its own, another waits and reads under another word; the epoch of the put is
/// `late` behind if the kernel leaves it out sometimes.
fn halves(put_until: u32) -> Vec<Kernel> {
    let (mut s, _) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 2);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 2);
    let word = s.b.param("sent", ParamKind::EpochWord, Dtype::U32, 1);
    let epoch = s.value("epoch", U, |out| ValueOp::Epoch { out, word, advance: true });
    let one = s.u32(1);
    let bank = s.binary("bank", BinaryOp::And, epoch, one);
    s.role("send", 1, |s| {
        let (me, most) = (s.rank(), s.u32(put_until));
        let to = s.binary("", BinaryOp::Xor, me, one);
        let parcel = s.parcel(Target::Rank(to));
        let early = s.compare("", CompareOp::Le, epoch, most);
        s.when(early, |s| {
            s.op(CommOp::Put(Put { parcel, buffer: inbox, index: bank, value: epoch, mask: None }));
        });
        s.signal(parcel, flag, bank, epoch);
    });
    let send = s.finish();
    let (mut s, out) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 2);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 2);
    let word = s.b.param("received", ParamKind::EpochWord, Dtype::U32, 1);
    let epoch = s.value("epoch", U, |out| ValueOp::Epoch { out, word, advance: true });
    let one = s.u32(1);
    let bank = s.binary("bank", BinaryOp::And, epoch, one);
    s.role("recv", 1, |s| {
        let me = s.rank();
        let from = s.binary("", BinaryOp::Xor, me, one);
        let got = s.wait(flag, bank, from, epoch);
        let v = s.load(U, inbox, bank, Some(got));
        s.set(out, bank, v);
    });
    vec![send, s.finish()]
}

#[test]
fn stale_data_is_found_where_sender_and_receiver_have_epoch_words_of_their_own() {
    let rounds = |put_until| (0..4).flat_map(|_| halves(put_until)).collect::<Vec<_>>();
    machine(rounds(9)).run(&Options::default()).unwrap_or_else(|f| panic!("{f}"));
    let findings = fails(rounds(2));
    let stale = findings.first(StaleRead).unwrap_or_else(|| panic!("{findings}"));
    assert!(stale.message.contains("wait for epoch 3") && stale.message.contains("older epoch 1"), "{stale}");
}

#[test]
fn an_index_that_wraps_is_found_where_it_is_used() {
    // 65536 rows of 65536: row 65536 is row 0 again.
    let row_of = |s: &mut Sample, row: u32| {
        let (row, width) = (s.u32(row), s.u32(1 << 16));
        let first = s.mul(row, width);
        let three = s.u32(3);
        s.add(first, three)
    };
    let findings = fails(vec![alone(|s, out| {
        let at = row_of(s, 1 << 16);
        s.set(out, at, at);
    })]);
    let found = &findings.list[0];
    assert_eq!((found.kind, found.elements), (WrappedIndex, Some((3, 4))), "{findings}");
    assert!(found.message.contains("comes to 4294967299, which wraps to 3"), "{found}");
    // A tile of indices, one of which wraps: where the mask leaves that one out, no error is due.
    for (masked, ends) in [(false, true), (true, false)] {
        let kernel = alone(|s, out| {
            let at = row_of(s, 1 << 16);
            let far = s.value("", tile(2), |out| ValueOp::Splat { out, a: at });
            let lane = s.value("", tile(2), |out| ValueOp::Arange { out });
            let zero = s.u32(0);
            let none = s.value("", tile(2), |out| ValueOp::Splat { out, a: zero });
            let mask = s.compare("", CompareOp::Eq, lane, none);
            let mask = (!masked).then_some(mask);
            let index = if masked { lane } else { far };
            s.op(MemoryOp::Scatter { place: out.into(), index, value: lane, mask, adds: false });
            let sum = s.value("", U, |out| ValueOp::Reduce { out, op: ReduceOp::Sum, a: far });
            s.set(out, zero, sum);
        });
        let found = machine(vec![kernel]).run(&Options::default()).err();
        assert_eq!(found.as_ref().is_some_and(|f| f.list[0].kind == WrappedIndex), ends, "{found:?}");
    }
}

#[test]
fn a_product_that_wraps_is_found_where_its_size_decides() {
    type Use = fn(&mut Sample, ParamId, ValueId);
    let compared: Use = |s, out, n| {
        let two = s.u32(2);
        let less = s.compare("", CompareOp::Lt, n, two);
        s.when(less, |s| s.set(out, two, two));
    };
    let counted: Use = |s, out, n| {
        let (zero, one) = (s.u32(0), s.u32(1));
        s.for_each("i", (zero, n, one), |s, i| s.set(out, zero, i));
    };
    fn quotient(op: BinaryOp) -> impl Fn(&mut Sample, ParamId, ValueId) {
        move |s, out, n| {
            let two = s.u32(2);
            let small = s.binary("", op, n, two);
            s.set(out, two, small);
        }
    }
    let widened: Use = |s, out, n| {
        let wide = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Cast { out, a: n });
        s.set(out, wide, n);
    };
    // Each also through a sum, and of the lanes of tiles.
    let of_tiles: Use = |s, out, n| {
        let many = s.value("", tile(2), |out| ValueOp::Splat { out, a: n });
        let lane = s.value("", tile(2), |out| ValueOp::Arange { out });
        let small = s.binary("", BinaryOp::Min, many, lane);
        let zero = s.u32(0);
        s.op(MemoryOp::Store { place: out.into(), index: zero, value: small, mask: None });
    };
    let of_compared_tiles: Use = |s, out, n| {
        let many = s.value("", tile(2), |out| ValueOp::Splat { out, a: n });
        let lane = s.value("", tile(2), |out| ValueOp::Arange { out });
        let mask = s.compare("", CompareOp::Lt, many, lane);
        let zero = s.u32(0);
        s.op(MemoryOp::Store { place: out.into(), index: zero, value: lane, mask: Some(mask) });
    };
    let stepped: Use = |s, out, n| {
        let (zero, one) = (s.u32(0), s.u32(1));
        s.for_each("i", (zero, one, n), |s, i| s.set(out, zero, i));
    };
    let equal: Use = |s, out, n| {
        let two = s.u32(2);
        let is_two = s.compare("", CompareOp::Eq, n, two);
        s.when(is_two, |s| s.set(out, two, two));
    };
    fn converted(to: Dtype) -> impl Fn(&mut Sample, ParamId, ValueId) {
        move |s, out, n| {
            let zero = s.u32(0);
            let number = s.value("", Type::scalar(to), |out| ValueOp::Cast { out, a: n });
            let back = s.value("", U, |out| ValueOp::Cast { out, a: number });
            s.set(out, zero, back);
        }
    }
    fn reduced(op: ReduceOp) -> impl Fn(&mut Sample, ParamId, ValueId) {
        move |s, out, n| {
            let zero = s.u32(0);
            let many = s.value("", tile(2), |out| ValueOp::Splat { out, a: n });
            let one = s.value("", U, |out| ValueOp::Reduce { out, op, a: many });
            s.set(out, zero, one);
        }
    }
    let of_converted_tiles: Use = |s, out, n| {
        let zero = s.u32(0);
        let many = s.value("", tile(2), |out| ValueOp::Splat { out, a: n });
        let floats = s.value("", Type::tile(Dtype::F32, 2), |out| ValueOp::Cast { out, a: many });
        let value = s.value("", tile(2), |out| ValueOp::Cast { out, a: floats });
        s.op(MemoryOp::Store { place: out.into(), index: zero, value, mask: None });
    };
    let [min, max, div, shr] = [BinaryOp::Min, BinaryOp::Max, BinaryOp::Div, BinaryOp::Shr].map(quotient);
    let [float, signed] = [Dtype::F32, Dtype::I32].map(converted);
    let [least, most] = [ReduceOp::Min, ReduceOp::Max].map(reduced);
    type AnyUse<'a> = &'a dyn Fn(&mut Sample, ParamId, ValueId);
    let uses: [AnyUse; 16] = [
        &compared,
        &counted,
        &min,
        &max,
        &div,
        &widened,
        &of_tiles,
        &of_compared_tiles,
        &shr,
        &stepped,
        &equal,
        &float,
        &signed,
        &least,
        &most,
        &of_converted_tiles,
    ];
    for (at, used) in uses.into_iter().enumerate() {
        for (rows, fits) in [(1 << 16, false), (0, true)] {
            let kernel = alone(|s, out| {
                let (rows, width, one) = (s.u32(rows), s.u32((1 << 16) + 1), s.u32(1));
                let product = s.mul(rows, width);
                let n = s.add(product, one);
                used(s, out, n);
            });
            let found = machine(vec![kernel]).run(&Options::default());
            let first = found.as_ref().err().map(|f| f.list[0].clone());
            assert_eq!(first.as_ref().map(|f| f.kind), (!fits).then_some(WrappedIndex), "{at}: {first:?}");
            let said = first.map_or("comes to 4295032833, which wraps to 65537".into(), |f| f.message);
            assert!(said.contains("comes to 4295032833, which wraps to 65537"), "{at}: {said}");
        }
    }
}

#[test]
fn arithmetic_may_wrap_where_no_index_comes_of_it() {
    runs(alone(|s, out| {
        // Below zero and back, a hash that is cut to size, and a loop that counts to what has wrapped.
        let (one, five, many) = (s.u32(1), s.u32(5), s.u32(2_654_435_761));
        let none = s.binary("", BinaryOp::Sub, one, five);
        let back = s.add(none, five);
        s.set(out, back, one);
        let hash = s.mul(many, many);
        let width = s.u32(26);
        let slot = s.binary("", BinaryOp::Shr, hash, width);
        s.set(out, slot, hash);
        let size = s.u32(64);
        let slot = s.binary("", BinaryOp::Rem, hash, size);
        let held = s.get(out, one);
        s.set(out, slot, held);
        let minus = s.constant(Const::I32(-4));
        let offset = s.value("", U, |out| ValueOp::Cast { out, a: minus });
        let same = s.add(five, offset);
        s.set(out, same, one);
    }));
}

#[test]
fn values_are_what_32_bits_make_of_them() {
    let got = super::build::outputs(
        alone(|s, out| {
            let (zero, one, two) = (s.u32(0), s.u32(1), s.u32(2));
            let large = s.u32(u32::MAX);
            let wrapped = s.add(large, two);
            s.set(out, zero, wrapped);
            // Equal, not zero as a truth value or in 64 bits, and not above two.
            let equal = s.compare("", CompareOp::Eq, wrapped, one);
            s.when(equal, |s| s.set(out, one, wrapped));
            let wide = s.value("", Type::scalar(Dtype::U64), |out| ValueOp::Cast { out, a: wrapped });
            s.set(out, wide, two);
            let three = s.u32(3);
            let half = s.binary("", BinaryOp::Div, wrapped, two);
            s.set(out, three, half);
        }),
        4,
    );
    assert_eq!(got, [1, 2, 0, 0]);
}

#[test]
fn a_plain_alias_of_symmetric_memory_sees_ones_own_puts() {
    let (mut s, out) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 4);
    let alias = s.b.param("alias", ParamKind::Local, Dtype::U32, 4);
    s.role("all", 1, |s| {
        let (me, zero, one, seven) = (s.rank(), s.u32(0), s.u32(1), s.u32(7));
        s.put(me, inbox, zero, seven);
        s.put(me, inbox, one, seven);
        // What is stored after a put stays, and what is put before a load is read.
        s.set(alias, one, me);
        let v = s.get(alias, zero);
        s.set(out, zero, v);
        let v = s.get(alias, one);
        s.set(out, one, v);
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.launch_all(&kernel, &Bindings::new().buffer("alias", "inbox")).unwrap();
    for options in schedules() {
        let memory = machine.run(&options).unwrap_or_else(|f| panic!("{f}")).memory;
        assert_eq!(memory.read::<u32>(1, "out").unwrap()[..2], [7, 1], "{options:?}");
        assert_eq!(memory.read::<u32>(1, "inbox").unwrap()[1], 1, "{options:?}");
    }
}

#[test]
fn the_smallest_integer_by_minus_one() {
    for op in [BinaryOp::Div, BinaryOp::Rem] {
        let findings = fails(vec![alone(|s, _| {
            let (a, b) = (s.constant(Const::I32(i32::MIN)), s.constant(Const::I32(-1)));
            s.value("", Type::scalar(Dtype::I32), |out| ValueOp::Binary { out, op, a, b });
        })]);
        assert_eq!(findings.list[0].kind, DivisionOverflow, "{findings}");
    }
}

#[test]
fn a_spin_on_an_atomic_is_given_up_and_named() {
    let kernel = alone(|s, out| {
        let loc = s.loc();
        let (zero, one) = (s.u32(0), s.u32(1));
        let mut cond = None;
        let header = s.region(|s| {
            let held = s.atomic(ReduceOp::Max, out, one, zero);
            cond = Some(s.compare("", CompareOp::Eq, held, zero));
        });
        s.b.push(ControlOp::While { header, cond: cond.unwrap(), body: Region::default() }, loc);
    });
    let findings = fails(vec![kernel]);
    let spin = &findings.list[0];
    assert_eq!((spin.kind, &*spin.at.action), (EndlessSpin, "atomic on `out`"), "{findings}");
    assert!(spin.message.starts_with("a loop does atomic on `out` again and again"), "{spin}");
    assert!(findings.report.steps < 2 * crate::sim::schedule::world::SPIN_STEPS);
}

#[test]
fn a_flag_that_no_rank_signals_is_reported() {
    let (mut s, _) = sample();
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 1);
    s.role("all", 1, |s| {
        let (me, zero, one) = (s.rank(), s.u32(0), s.u32(1));
        let from = s.binary("", BinaryOp::Xor, me, one);
        s.wait(flag, zero, from, one);
    });
    let findings = fails(vec![s.finish()]);
    let deadlock = findings.first(Deadlock).unwrap();
    assert!(deadlock.message.ends_with("the awaited signal will never come"), "{deadlock}");
    let why = deadlock.chain.last().unwrap();
    assert!(why.starts_with("nothing that rank ") && why.contains("signals flag: `test` does not"), "{why}");
}

/// Both ranks signal each other and wait, in every launch; rank 1 leaves the signal of its first launch out.
fn forgets_to_signal_once() -> Kernel {
    let (mut s, _) = sample();
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 2);
    let epoch = s.epoch(true);
    s.role("all", 1, |s| {
        let (me, one) = (s.rank(), s.u32(1));
        let other = s.binary("", BinaryOp::Xor, me, one);
        let parity = s.binary("", BinaryOp::And, epoch, one);
        let later = s.compare("", CompareOp::Gt, epoch, one);
        let first = s.compare("", CompareOp::Lt, me, one);
        let signals = s.binary("", BinaryOp::Or, later, first);
        s.when(signals, |s| {
            let parcel = s.parcel(Target::Rank(other));
            s.signal(parcel, flag, parity, epoch);
        });
        s.wait(flag, parity, other, epoch);
    });
    s.finish()
}

#[test]
fn a_deadlock_begins_with_the_first_signal_that_can_no_longer_come() {
    for launches in [1, 4] {
        let kernel = Arc::new(Compiled::planted(Planted::new(forgets_to_signal_once()).unwrap()));
        let mut machine = Machine::new(2);
        machine.buffers_of(kernel.kernel()).unwrap();
        for _ in 0..launches {
            machine.launch_all(&kernel, &Bindings::new()).unwrap();
        }
        for options in schedules() {
            let findings = machine.run(&options).unwrap_err();
            let deadlock = findings.first(Deadlock).unwrap_or_else(|| panic!("{findings}"));
            assert!(deadlock.message.ends_with("the awaited signal will never come"), "{findings}");
            assert_eq!((deadlock.at.rank, deadlock.at.epoch), (0, Some(1)), "{findings}");
            assert!(deadlock.chain[0].contains("waits for flag[1] = 1 from rank 1"), "{findings}");
            let why = match launches {
                1 => "rank 1 has finished its program and never signalled that",
                _ => "launch 1 of rank 1, in epoch 1, is over and never signalled that",
            };
            assert_eq!(deadlock.chain[1], why, "{findings}");
        }
    }
}

#[test]
fn a_tile_that_is_not_taken_may_have_any_index() {
    let (mut s, _) = sample();
    let packets = s.b.param("packets", ParamKind::Packets, Dtype::F32, 8);
    s.role("all", 1, |s| {
        let (zero, four) = (s.u32(0), s.u32(4));
        let before = s.binary("", BinaryOp::Sub, zero, four);
        let mask = s.constant(Const::U64(0b10));
        let mut out = || s.b.kernel.add_value(Type::tile(Dtype::F32, 4), None);
        let tiles = vec![
            Taken { out: out(), index: before, from: zero },
            Taken { out: out(), index: zero, from: zero },
        ];
        s.op(CommOp::ReceiveMessages(ReceiveMessages {
            transport: Transport::Packets,
            buffer: packets,
            mask,
            tiles,
            epoch: None,
            count: None,
        }));
    });
    let findings = fails(vec![s.finish()]);
    assert_eq!(findings.list[0].kind, Deadlock, "{findings}");
}

#[test]
fn causes_come_first_and_what_follows_is_folded() {
    // A wait that looks at another rank's flag: its data races with what is read.
    let (mut s, out) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 2);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 2);
    s.role("all", 1, |s| {
        let (me, one) = (s.rank(), s.u32(1));
        let to = s.binary("", BinaryOp::Xor, me, one);
        for target in [me, to] {
            let parcel = s.put(target, inbox, me, me);
            s.signal(parcel, flag, me, one);
        }
        let got = s.wait(flag, me, to, one);
        let v = s.load(U, inbox, to, Some(got));
        s.set(out, me, v);
    });
    let findings = machine(vec![s.finish()]).run(&Options::default()).expect_err("a mistake");
    let kinds: Vec<FindingKind> = findings.list.iter().map(|f| f.kind).collect();
    assert!(kinds[..findings.causes].contains(&WrongSender), "{findings}");
    assert!(kinds[..findings.causes].contains(&UnwaitedSignal), "{findings}");
    let follows: Vec<FindingKind> = findings.consequences().iter().map(|f| f.kind).collect();
    assert!(
        !follows.is_empty() && follows.iter().all(|k| [DataRace, UninitializedRead].contains(k)),
        "{findings}"
    );
    let text = findings.to_string();
    let (causes, folded) = text.split_once("what may follow from that:\n").unwrap();
    assert!(causes.contains("wrong-sender: ") && !causes.contains("inbox["), "{text}");
    assert!(folded.lines().filter(|l| l.starts_with("  - ")).count() == follows.len(), "{text}");
    let json = serde_json::to_value(&*findings).unwrap();
    let list =
        |key: &str| json[key].as_array().unwrap().iter().map(|f| f["kind"].clone()).collect::<Vec<_>>();
    assert!(list("list").contains(&"wrong-sender".into()), "{json}");
    assert_eq!(list("consequences").len(), follows.len());
}
