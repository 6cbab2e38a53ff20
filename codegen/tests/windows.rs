//! Windows on the simulator: what peers read, and that each mistake with them is found.

use crate::printed::pull;

use std::sync::Arc;

use half::bf16;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{Access, Mutant, Mutation, Operand, Site, Slot, every, mutate};
use peerwarp_codegen::ir::{Kernel, MemoryOp, OpKind, Place, Planted, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, Machine, Options};
use pull::{Bug, PULL_PART, PULL_RANKS, PULL_ROW, pull, pull_with};

fn machine(kernel: Planted, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(kernel.kernel().ranks);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..PULL_RANKS {
        machine.write(rank, "x", 0, &row(rank)).unwrap();
        machine.write(rank, "n", 0, &[counted(rank)]).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

fn row(rank: u32) -> Vec<bf16> {
    (0..PULL_ROW).map(|i| bf16::from_f32(((i * 7 + rank * 13) % 251) as f32 - 125.0)).collect()
}

fn counted(rank: u32) -> u32 {
    [0, 100, PULL_PART, 719][rank as usize]
}

#[test]
fn peers_read_what_is_published() {
    let rows: Vec<Vec<bf16>> = (0..PULL_RANKS).map(row).collect();
    for warp_size in [32, 64] {
        let machine = machine(Planted::new(pull(warp_size)).unwrap(), 5);
        for seed in 0..12 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..PULL_RANKS {
                let next = (rank + 1) % PULL_RANKS;
                let sum = outcome.memory.read::<bf16>(rank, "sum").unwrap();
                let copied = outcome.memory.read::<bf16>(rank, "next").unwrap();
                let turned = outcome.memory.read::<u32>(rank, "turned").unwrap();
                for i in 0..PULL_ROW {
                    let (at, part) = (i as usize, i / PULL_PART * PULL_PART);
                    let want = rows.iter().fold(0f32, |sum, row| sum + row[at].to_f32());
                    assert_eq!(sum[at], bf16::from_f32(want), "rank {rank}, element {i}");
                    let there = i - part < counted(next);
                    assert_eq!(
                        copied[at],
                        if there { rows[next as usize][at] } else { bf16::ZERO },
                        "{rank} {i}"
                    );
                    let word = (PULL_PART - 1 - (i - part)) * 3 + next * 1000 + part;
                    assert_eq!(turned[at], word, "rank {rank}, element {i}");
                }
            }
        }
        // What is read of a peer crosses the link, from the owner to the reader.
        let report = machine.run(&Options::default()).unwrap().report;
        let bytes = &report.kernels["pull"].bytes;
        assert_eq!(bytes[2][3], 5 * u64::from(PULL_ROW) * 2, "only summed up");
        assert!(bytes[2][1] > bytes[2][3], "also copied");
    }
}

/// The kinds of findings over some seeds.
fn found(kernel: &Planted, launches: u32) -> Vec<FindingKind> {
    let machine = machine(kernel.clone(), launches);
    let run = |seed| machine.run(&Options::default().with_seed(seed)).err();
    let mut kinds: Vec<FindingKind> =
        (0..24).filter_map(run).flat_map(|f| f.list.into_iter().map(|f| f.kind)).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

fn of_bug(bug: Bug, launches: u32) -> Vec<FindingKind> {
    found(&Planted::new(pull_with(32, bug)).unwrap(), launches)
}

#[test]
fn mistakes_with_windows_are_found() {
    assert_eq!(of_bug(Bug::None, 6), []);
    // The next launch stores while a slow peer may still read.
    assert_eq!(of_bug(Bug::SingleHalf, 1), []);
    assert!(of_bug(Bug::SingleHalf, 2).contains(&FindingKind::DataRace));
    assert!(of_bug(Bug::EarlySignal, 1).contains(&FindingKind::DataRace));
    assert!(of_bug(Bug::WrongRank, 1).contains(&FindingKind::WrongSender));
    assert!(of_bug(Bug::WrongPart, 1).contains(&FindingKind::DataRace));
}

#[test]
fn planted_bugs_with_windows_are_found() {
    let kernel = pull(32);
    let signal = || Site::new("publish", Access::Signal, "ready");
    let wait = || Site::new("reduce", Access::Wait, "ready");
    let load = || Site::new("reduce", Access::Load, "window");
    let mutant = |m: Mutation| mutate(&kernel, &m).unwrap_or_else(|e| panic!("{e}"));
    let race = [FindingKind::DataRace, FindingKind::UninitializedRead];
    for (what, mutation, want) in [
        ("relaxed", Mutation::Relax(signal()), &race[..]),
        ("first", Mutation::SignalFirst(signal()), &race),
        ("no signal", Mutation::Drop(signal()), &[FindingKind::Deadlock]),
        ("no wait", Mutation::Drop(wait()), &race),
        ("no store", Mutation::Drop(Site::new("publish", Access::Store, "window")), &race),
        (
            "another rank",
            Mutation::Offset { site: load().nth(0), slot: Slot::From, by: 1 },
            &[FindingKind::WrongSender, FindingKind::OutOfBounds],
        ),
        (
            "always rank 0",
            Mutation::Replace { site: load(), slot: Slot::From, with: Operand::Number(0) },
            &[FindingKind::WrongSender],
        ),
        ("another element", Mutation::Offset { site: load().nth(0), slot: Slot::Index, by: 1 }, &race),
    ] {
        let kinds = found(&mutant(mutation), 3);
        assert!(kinds.iter().any(|k| want.contains(k)), "{what}: {kinds:?}");
    }
}

/// What a run leaves behind that was computed of peers' windows.
fn results(machine: &Machine) -> Result<Vec<Vec<bf16>>, Box<Findings>> {
    let outcome = machine.run(&Options::default())?;
    let read = |rank| ["sum", "next"].map(|name| outcome.memory.read::<bf16>(rank, name).unwrap().to_vec());
    Ok((0..PULL_RANKS).flat_map(read).collect())
}

#[test]
fn every_planted_bug_is_found_or_shows() {
    let kernel = pull(32);
    let right = results(&machine(Planted::new(kernel.clone()).unwrap(), 3)).unwrap();
    let is_missed = |mutant: &Mutant| {
        let planted = mutate(&kernel, &mutant.mutation).unwrap_or_else(|e| panic!("{mutant}: {e}"));
        let machine = machine(planted, 3);
        let clean = |seed| machine.run(&Options::default().with_seed(seed)).is_ok();
        (0..6).all(clean) && results(&machine).is_ok_and(|got| got == right)
    };
    let all = every(&kernel);
    let loads = all.iter().filter(|m| m.change == "rank + 1" && m.op.starts_with("load"));
    assert!(loads.count() >= 3, "loads of peers are changed");
    let missed: Vec<&Mutant> = all.iter().filter(|m| is_missed(m)).collect();
    // The wait for the next rank comes again after the loop that has waited for all.
    assert_eq!(missed.len(), 1, "{missed:#?}");
    assert_eq!((missed[0].op.as_str(), missed[0].change.as_str()), ("wait of ready", "left out"));
}

#[test]
fn a_race_on_a_window_names_both_sides() {
    let machine = machine(Planted::new(pull_with(32, Bug::SingleHalf)).unwrap(), 2);
    let run = |seed| machine.run(&Options::default().with_seed(seed)).err();
    let findings: Box<Findings> = (0..24).find_map(run).unwrap();
    let race = findings
        .list
        .iter()
        .find(|f| f.kind == FindingKind::DataRace && f.buffer.as_deref() == Some("window"));
    let text = race.unwrap().to_string();
    assert!(text.contains("store to `window`") && text.contains("load of a rank's `window`"), "{text}");
}

/// What a stale read gets: a signal that orders nothing lets the peer see what was there before.
#[test]
fn stores_to_a_window_are_seen_late_unless_ordered() {
    let relaxed = mutate(&pull(32), &Mutation::Relax(Site::new("publish", Access::Signal, "ready"))).unwrap();
    let options = |seed| Options { race_checks: false, ..Options::default().with_seed(seed) };
    let right = machine(Planted::new(pull(32)).unwrap(), 1).run(&options(0)).unwrap();
    let right = right.memory.read::<bf16>(0, "sum").unwrap();
    let machine = machine(relaxed, 1);
    let stale = (0..48).any(|seed| {
        machine.run(&options(seed)).is_ok_and(|o| o.memory.read::<bf16>(0, "sum").unwrap() != right)
    });
    assert!(stale, "no seed showed late stores");
}

/// A kernel of one role, which reads a window.
fn traced(body: impl Fn(Window<u32>, Flags, Epoch, Ptr<u32>)) -> Result<Kernel, TraceError> {
    trace(TraceMeta::new("read", 4, 32, 1), |p: &mut Binder| {
        let (window, out) = (p.arg::<Window<u32>>("window", 64), p.arg::<Ptr<u32>>("out", 64));
        let ready = p.arg::<Flags>("ready", 8);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("all", 1, |_| body(window, ready, epoch, out));
    })
}

#[test]
fn a_receipt_covers_what_its_signal_publishes() {
    traced(|window, ready, epoch, out| {
        window.store(0, arange(32));
        out.store(0, window.load(0, 32));
        window.signal(Peers::all(), &ready, rank(), epoch);
        let got = ready.wait_all(0, 4, 1, epoch);
        out.store(32, window.of(2).load(&got, 0, 32));
    })
    .map(verify)
    .unwrap()
    .unwrap();
    let error = trace(TraceMeta::new("read", 4, 32, 1), |p: &mut Binder| {
        let (window, out) = (p.arg::<Window<u32>>("window", 64), p.arg::<Ptr<u32>>("out", 64));
        let (inbox, ready) = (p.arg::<Sym<u32>>("inbox", 4), p.arg::<Flags>("ready", 4));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("all", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.put_value(&inbox, rank(), 1u32);
            parcel.signal(&ready, rank(), epoch);
            let got = ready.wait_all(0, 4, 1, epoch);
            out.store(32, window.of(2).load(&got, 0, 32));
        });
    })
    .unwrap_err();
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn another_ranks_receipt_is_refused_where_the_ranks_are_known() {
    let error = traced(|window, ready, epoch, out| {
        window.signal(Peers::all(), &ready, rank(), epoch);
        let got = ready.from(1).wait(1, epoch);
        out.store(0, window.of(2).load(&got, 0, 32));
    })
    .unwrap_err();
    insta::assert_snapshot!(error.to_string());
}

#[test]
fn windows_have_no_atomics() {
    let error = traced(|window, ready, epoch, _| {
        window.atomic_add(0, 1u32);
        window.signal(Peers::all(), &ready, rank(), epoch);
    })
    .unwrap_err();
    assert!(error.message.contains("an atomic on the window `window`"), "{error}");
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    let error = traced(|window, ready, epoch, out| {
        window.signal(Peers::all(), &ready, rank(), epoch);
        let got = ready.from(1).wait(1, epoch);
        out.store(0, window.of(4).load(&got, 0, 32));
    })
    .unwrap_err();
    assert!(error.message.starts_with("rank 4 in a world of 4 ranks"), "{error}");
}

/// What the verifier says of the kernel with a change.
fn refused(change: impl Fn(&mut MemoryOp)) -> String {
    let mut kernel = pull(32);
    for op in &mut kernel.ops {
        if let OpKind::Memory(op) = &mut op.kind {
            change(op);
        }
    }
    verify(kernel).unwrap_err().to_string()
}

#[test]
fn the_verifier_refuses_what_the_language_cannot_say() {
    let without_receipt = refused(|op| {
        if let MemoryOp::Load { place: Place::Peer(..), receipt, .. } = op {
            *receipt = None;
        }
    });
    assert!(without_receipt.contains("`window` is read without a receipt"), "{without_receipt}");
    let rank = pull(32).ops.iter().find_map(|op| match op.kind {
        OpKind::Memory(MemoryOp::Load { place, .. }) => place.rank(),
        _ => None,
    });
    let to_peer = refused(|op| {
        if let MemoryOp::Store { place: place @ Place::Param(_), .. } = op {
            *place = Place::Peer(place.param().unwrap(), rank.unwrap());
        }
    });
    assert!(to_peer.contains("`window` of a peer is read only"), "{to_peer}");
    let of_inbox = refused(|op| {
        if let MemoryOp::Load { place: place @ Place::Param(_), .. } = op {
            *place = Place::Peer(place.param().unwrap(), rank.unwrap());
        }
    });
    assert!(
        of_inbox.contains("`load` on parameter `x`, which is a local buffer; it works on a window"),
        "{of_inbox}"
    );
    let mut unpublished = pull(32);
    unpublished.parcels.iter_mut().for_each(|parcel| parcel.windows.clear());
    let unpublished = verify(unpublished).unwrap_err().to_string();
    assert!(unpublished.contains("signalling what was not sent"), "{unpublished}");
    assert!(unpublished.contains("`window` is read after a wait on `ready`, but no parcel"), "{unpublished}");
}

#[test]
fn what_is_put_into_a_window_is_not_published() {
    let error = traced(|window, ready, epoch, out| {
        let mut parcel = send_to(Peers::all());
        parcel.put(&window, 0, arange(32));
        parcel.signal(&ready, rank(), epoch);
        let got = ready.wait_all(0, 4, 1, epoch);
        out.store(32, window.of(2).load(&got, 0, 32));
    })
    .unwrap_err();
    assert!(error.message.contains("the receipt of `ready` does not cover `window`"), "{error}");
}
