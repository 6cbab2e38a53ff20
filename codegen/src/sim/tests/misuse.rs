//! Mistakes of a single agent, of the host, and of the machine's setup.

use super::build::{Short, machine, sample, tile};
use super::*;
use crate::ir::samples::Sample;
use crate::ir::*;

/// The first finding of a kernel with one role of one block.
fn find(build: impl FnOnce(&mut Sample, ParamId)) -> Finding {
    let (mut s, out) = sample();
    s.role("all", 1, |s| build(s, out));
    machine(vec![s.finish()]).run(&Options::default()).expect_err("a mistake").list[0].clone()
}

#[test]
fn indices_outside_of_buffers() {
    let finding = find(|s, out| {
        let at = s.u32(64);
        s.set(out, at, at);
    });
    assert_eq!(
        finding.to_string(),
        concat!(
            "out-of-bounds: element 64 of `out` does not exist: it has 64\n",
            "  at src/sample.rs:4: rank 0, test, role all, block 0: store to `out`"
        )
        .replace("rank 0", &format!("rank {}", finding.at.rank))
    );
    let finding = find(|s, out| {
        let at = s.u32(61);
        let row = s.load(tile(4), out, at, None);
        s.set(out, at, row);
    });
    assert_eq!((finding.kind, finding.elements), (FindingKind::OutOfBounds, Some((61, 65))));
    let finding = find(|s, out| {
        let far = s.u32(1 << 20);
        let index = s.value("", tile(2), |out| ValueOp::Splat { out, a: far });
        s.op(MemoryOp::Scatter { place: out.into(), index, value: index, mask: None, adds: false });
    });
    assert!(matches!(finding.kind, FindingKind::ScatterConflict | FindingKind::OutOfBounds));
    let finding = find(|s, out| {
        let huge = s.constant(Const::U64(u64::MAX));
        let row = s.load(tile(4), out, huge, None);
        let zero = s.u32(0);
        s.set(out, zero, row);
    });
    assert_eq!(finding.kind, FindingKind::OutOfBounds);
    let finding = find(|s, out| {
        let (at, one) = (s.u32(64), s.u32(1));
        s.atomic(ReduceOp::Sum, out, at, one);
    });
    assert_eq!(finding.kind, FindingKind::OutOfBounds);
}

/// What a caller passes may end before what a kernel could use: on one rank, and from launch to launch.
#[test]
fn nothing_is_touched_beyond_the_end_that_the_caller_tells() {
    let run = |ends: [u64; 2]| {
        let (mut s, out) = sample();
        s.role("all", 1, |s| {
            let (at, seven) = (s.u32(9), s.u32(7));
            s.set(out, at, seven);
            let same = s.get(out, at);
            s.set(out, at, same);
        });
        let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap_or_else(|e| panic!("{e}"))));
        let mut machine = Machine::new(2);
        machine.buffers_of(kernel.kernel()).unwrap();
        for end in ends {
            machine.host(1, "ends", move |memory| memory.end("out", end).map_err(|e| e.to_string())).unwrap();
            machine.launch(1, &kernel, &Bindings::new()).unwrap();
        }
        machine.run(&Options::default())
    };
    run([40, 40]).unwrap();
    run([40, 256]).unwrap();
    let found = run([256, 39]).unwrap_err();
    assert!(found.list.iter().all(|f| f.kind == FindingKind::OutOfBounds), "{found}");
    let said = found.to_string();
    assert!(said.contains("element 9 of `out` does not exist: it has 9"), "{said}");
    let said = run([257, 257]).unwrap_err().to_string();
    assert!(said.contains("out"), "{said}");
}

/// A kernel that sends to `target` and signals `flag[index]`.
fn sending(target: impl FnOnce(&mut Sample) -> Target, index: u32) -> Finding {
    let (mut s, _) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 4);
    let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 4);
    s.role("all", 1, |s| {
        let (zero, one, index) = (s.u32(0), s.u32(1), s.u32(index));
        let target = target(s);
        let parcel = s.parcel(target);
        s.op(CommOp::Put(Put { parcel, buffer: inbox, index: zero, value: one, mask: None }));
        s.signal(parcel, flag, index, one);
    });
    machine(vec![s.finish()]).run(&Options::default()).expect_err("a mistake").list[0].clone()
}

#[test]
fn ranks_and_flags_that_do_not_exist() {
    let finding = sending(|s| Target::Rank(s.u32(2)), 0);
    assert_eq!(finding.message, "rank 2 does not exist: there are 2");
    let finding = sending(|s| Target::Mask(s.constant(Const::U64(0b101))), 0);
    assert_eq!(
        (finding.kind, &*finding.message),
        (FindingKind::OutOfBounds, "rank 2 does not exist: there are 2")
    );
    let finding = sending(|s| Target::Rank(s.u32(0)), 4);
    assert_eq!((finding.kind, finding.buffer.as_deref()), (FindingKind::OutOfBounds, Some("flag")));
}

#[test]
fn waits_for_flags_and_ranks_that_do_not_exist() {
    for (index, from) in [(4, 0), (0, 2)] {
        let (mut s, _) = sample();
        let flag = s.b.param("flag", ParamKind::Flags, Dtype::U32, 4);
        s.role("all", 1, |s| {
            let (index, from, one) = (s.u32(index), s.u32(from), s.u32(1));
            s.wait(flag, index, from, one);
        });
        let findings = machine(vec![s.finish()]).run(&Options::default()).expect_err("a mistake");
        assert_eq!(findings.list[0].kind, FindingKind::OutOfBounds, "{findings}");
    }
}

#[test]
fn scatters_that_write_an_element_twice() {
    let finding = find(|s, out| {
        let five = s.u32(5);
        let index = s.value("", tile(2), |out| ValueOp::Splat { out, a: five });
        s.op(MemoryOp::Scatter { place: out.into(), index, value: index, mask: None, adds: false });
    });
    assert_eq!((finding.kind, finding.elements), (FindingKind::ScatterConflict, Some((5, 6))));
}

#[test]
fn arithmetic_without_a_result() {
    let finding = find(|s, out| {
        let (zero, one) = (s.u32(0), s.u32(1));
        let none = s.get(out, zero);
        let v = s.binary("", BinaryOp::Rem, one, none);
        s.set(out, zero, v);
    });
    assert_eq!(finding.kind, FindingKind::DivisionByZero);
    assert_eq!(finding.at.action, "arithmetic");
    let finding = find(|s, out| {
        let (zero, width) = (s.u32(0), s.u32(32));
        let wide = s.value("", tile(3), |out| ValueOp::Splat { out, a: width });
        let v = s.binary("", BinaryOp::Shl, wide, wide);
        s.set(out, zero, v);
    });
    assert_eq!(finding.kind, FindingKind::ShiftOverflow);
}

#[test]
fn reads_of_memory_that_was_never_written() {
    let (mut s, out) = sample();
    let x = s.b.param("x", ParamKind::Local, Dtype::U32, 8);
    let loc = s.loc();
    let shared = s.b.shared("scratch", Dtype::U32, 8, 1, loc);
    s.role("all", 1, |s| {
        let (zero, two) = (s.u32(0), s.u32(2));
        s.set(x, zero, zero);
        s.set(shared, two, zero);
        let a = s.load(tile(4), x, zero, None);
        let b = s.load(tile(4), shared, zero, None);
        let sum = s.add(a, b);
        s.set(out, zero, sum);
    });
    let findings = machine(vec![s.finish()]).run(&Options::default()).expect_err("a mistake");
    let where_: Vec<_> =
        findings.list.iter().map(|f| (f.kind, f.buffer.as_deref().unwrap(), f.elements.unwrap())).collect();
    let kind = FindingKind::UninitializedRead;
    assert_eq!(where_, [(kind, "x", (1, 4)), (kind, "scratch", (0, 2))]);
    assert!(findings.list.iter().all(|f| f.times >= 1));
}

#[test]
fn endless_loops_are_given_up() {
    let (mut s, _) = sample();
    s.role("all", 1, |s| {
        let loc = s.loc();
        let mut cond = None;
        let header = s.region(|s| cond = Some(s.constant(Const::Bool(true))));
        s.b.push(ControlOp::While { header, cond: cond.unwrap(), body: Region::default() }, loc);
    });
    let options = Options { max_steps: 10_000, ..Options::default() };
    let findings = machine(vec![s.finish()]).run(&options).expect_err("endless");
    assert_eq!(findings.list[0].kind, FindingKind::StepLimit);
    assert!(findings.report.steps < 11_000);
}

/// A machine with one buffer of four numbers and one host step.
fn hosted(step: impl Fn(&mut HostMemory<'_, '_>) -> Result<(), String> + Send + Sync + 'static) -> Machine {
    let mut machine = Machine::new(2);
    machine.buffer("x", ParamKind::Local, Dtype::U32, 4).unwrap();
    machine.host(1, "try", step).unwrap();
    machine
}

fn failure(machine: &Machine) -> String {
    machine.run(&Options::default()).expect_err("the host fails").list[0].message.clone()
}

#[test]
fn hosts_see_their_mistakes() {
    let fails = failure(&hosted(|_| Err("no luck".into())));
    assert_eq!(fails, "host step `try` of rank 1: no luck");
    let outside = failure(&hosted(|m| Ok(m.write("x", 3, &[1u32, 2])?)));
    assert!(outside.ends_with("bytes 12..20 are outside of buffer `x`, which has 16"), "{outside}");
    let unknown = failure(&hosted(|m| m.read::<u8>("y", 0..1).map(drop).map_err(Into::into)));
    assert!(unknown.ends_with("there is no buffer `y`; there are: x"), "{unknown}");
    let machine = hosted(|m| m.read::<u32>("x", 0..4).map(drop).map_err(Into::into));
    let findings = machine.run(&Options::default()).expect_err("x was never written");
    assert_eq!(findings.list[0].kind, FindingKind::UninitializedRead);
    assert_eq!((findings.list[0].at.kernel.as_deref(), findings.list[0].at.rank), (None, 1));
}

#[test]
fn a_host_that_reads_an_inbox_without_order() {
    let (mut s, _) = sample();
    let inbox = s.b.param("inbox", ParamKind::Symmetric, Dtype::U32, 1);
    s.role("all", 1, |s| {
        let (zero, one) = (s.u32(0), s.u32(1));
        s.put(one, inbox, zero, zero);
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("inbox").unwrap();
    machine.launch(0, &kernel, &Bindings::new()).unwrap();
    machine.host(1, "peek", |m| m.read::<u32>("inbox", 0..1).map(drop).map_err(Into::into)).unwrap();
    for options in schedules() {
        let findings = machine.run(&options).expect_err("a race with the host");
        assert_eq!(findings.list[0].kind, FindingKind::DataRace, "{findings}");
    }
}

#[test]
fn machines_that_are_set_up_wrongly() {
    let (mut s, _) = sample();
    s.b.param("n", ParamKind::Scalar, Dtype::U32, 1);
    s.b.param("flag", ParamKind::Flags, Dtype::U32, 4);
    s.role("all", 1, |_| {});
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let bound = Bindings::new().scalar("n", Const::U32(1));
    let error = |machine: &mut Machine, b: &Bindings| machine.launch(0, &kernel, b).unwrap_err().to_string();
    let mut machine = Machine::new(2);
    assert_eq!(error(&mut machine, &bound), "there is no buffer `out`; there are: ");
    machine.buffer("out", ParamKind::Local, Dtype::U32, 8).unwrap();
    assert_eq!(error(&mut machine, &bound), "parameter `out` of `test` needs 256 bytes, buffer `out` has 32");
    machine.buffers_of(kernel.kernel()).unwrap();
    let missing = error(&mut machine, &Bindings::new());
    assert_eq!(missing, "scalar parameter `n` (u32) of `test` has no value");
    let typed = error(&mut machine, &Bindings::new().scalar("n", Const::F32(0)));
    assert_eq!(typed, "scalar parameter `n` of `test` is u32, its value is f32");
    let unknown = error(&mut machine, &bound.clone().buffer("outt", "out"));
    assert_eq!(unknown, "`test` has no parameter `outt`");
    let plain = error(&mut machine, &bound.clone().buffer("flag", "out"));
    assert_eq!(plain, "parameter `flag` of `test` is a flag array, buffer `out` is a local buffer");
    assert_eq!(machine.launch(2, &kernel, &bound).unwrap_err(), SimError::UnknownRank { rank: 2, ranks: 2 });
    assert!(matches!(
        Machine::new(3).launch(0, &kernel, &bound),
        Err(SimError::WorldSize { wants: 2, has: 3, .. })
    ));
    let conflict = machine.buffer("flag", ParamKind::Local, Dtype::U32, 4).unwrap_err();
    assert!(matches!(conflict, SimError::KindConflict { .. }));
    assert!(matches!(machine.write(0, "flag", 0, &[1u32]), Err(SimError::NotPlain { .. })));
    let large = machine.buffer("huge", ParamKind::Local, Dtype::U64, u64::MAX).unwrap_err().to_string();
    assert!(large.starts_with("buffer `huge` of 18446744073709551615 bytes on each of 2 ranks is too large"));
    assert!(machine.launch(0, &kernel, &bound).is_ok());
    assert!(Machine::new(0).run(&Options::default()).is_ok());
    let (mut s, _) = sample();
    s.role("all", 1, |s| {
        s.op(ControlOp::Break { depth: 0 });
    });
    let malformed = Planted::new(s.finish()).unwrap_err().to_string();
    assert!(malformed.starts_with("src/sample.rs:"), "{malformed}");
}

#[test]
fn exploring_finds_the_lowest_failing_seed() {
    // Fails where the two blocks happen to run in the order of their numbers.
    let (mut s, out) = sample();
    s.role("all", 2, |s| {
        let (zero, one) = (s.u32(0), s.u32(1));
        let ticket = s.atomic(ReduceOp::Sum, out, zero, one);
        let (group, at) = (s.group(), s.add(ticket, one));
        s.set(out, at, group);
    });
    let kernel = Arc::new(Compiled::planted(Planted::new(s.finish()).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("out").unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    for rank in 0..2 {
        let check = |m: &mut HostMemory<'_, '_>| {
            let out = m.read::<u32>("out", 1..3)?;
            if out == [0, 1] { Ok(()) } else { Err(format!("{out:?}")) }
        };
        machine.host(rank, "in order", check).unwrap();
    }
    let options = Options::default();
    let fails = |seed| machine.run(&options.with_seed(seed)).is_err();
    let lowest = (0..200).find(|&s| fails(s)).expect("some seed fails");
    let done = std::sync::atomic::AtomicU64::new(0);
    let progress = |_| {
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let exploration = check(&machine, 0..200, &options, &progress).unwrap();
    let (seed, findings) = exploration.first_failure.expect("some seed fails");
    assert_eq!((seed, findings.seed), (lowest, lowest));
    assert_eq!(done.into_inner(), exploration.runs);
    assert!(exploration.runs > lowest && exploration.steps > 0);
    let replay = machine.run(&options.with_seed(seed)).expect_err("the same again");
    assert_eq!(replay.list, findings.list);
    assert!(check(&machine, 0..lowest, &options, &|_| {}).unwrap().first_failure.is_none());
}

#[test]
fn findings_are_counted_and_limited() {
    let (mut s, out) = sample();
    s.role("all", 1, |s| {
        s.split(|s| {
            for i in 0..5 {
                let i = s.u32(i);
                s.set(out, i, i);
            }
        });
    });
    let machine = machine(vec![s.finish()]);
    let all = machine.run(&Options::default()).expect_err("races");
    assert_eq!((all.list.len(), all.dropped), (5, 0));
    assert!(all.list.iter().all(|f| f.times == 2), "once on each rank");
    let few = machine.run(&Options { max_findings: 2, ..Options::default() }).expect_err("races");
    assert_eq!((few.list.len(), few.dropped), (2, 6));
    assert!(few.to_string().contains("and 6 more"));
}
