//! Signals without data and barriers on the simulator: what they order, and that each mistake with them is found.

use crate::printed::signals;

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{self, Access, Mutation, Site, Slot};
use peerwarp_codegen::ir::{CompareOp, Kernel, Planted, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};
use signals::{PARTS, RANKS, ROW, credit, credit_by_barrier, hand_over, meeting, pages, requests};

use FindingKind::*;

const LAUNCHES: u32 = 5;
const SEEDS: u64 = 24;

fn row(rank: u32) -> Vec<f32> {
    (0..ROW).map(|i| (i + 100 * rank) as f32).collect()
}

fn machine(kernel: Planted) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(kernel.kernel().ranks);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..kernel.kernel().ranks {
        machine.write(rank, "x", 0, &row(rank)).unwrap();
    }
    for _ in 0..LAUNCHES {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

/// What a rank has at the end.
fn expected(kernel: &Kernel, rank: u32) -> Vec<f32> {
    match kernel.name.as_str() {
        "credit" | "pages" | "requests" => row((rank + RANKS - 1) % RANKS),
        "hand_over" => {
            let mut scaled: Vec<f32> = row(rank).iter().map(|x| 2.0 * x).collect();
            scaled.rotate_left(16);
            scaled.push(row(rank).iter().sum());
            scaled
        }
        _ => (0..ROW as usize).map(|i| (0..RANKS).map(|r| row(r)[i]).sum()).collect(),
    }
}

/// Kinds of the causes that are found under any seed; none for a wrong result.
fn found(kernel: &Planted) -> Vec<Option<FindingKind>> {
    let machine = machine(kernel.clone());
    let kernel = kernel.clone().into_kernel();
    let mut kinds = vec![];
    for seed in 0..SEEDS {
        match machine.run(&Options::default().with_seed(seed)) {
            Ok(outcome) => {
                let read = |rank, name| outcome.memory.read::<f32>(rank, name).unwrap_or_default();
                let out = |rank| [read(rank, "out"), read(rank, "sum")].concat();
                kinds.extend((0..RANKS).any(|rank| out(rank) != expected(&kernel, rank)).then_some(None));
            }
            Err(findings) => {
                kinds.extend(findings.list.iter().take(findings.causes).map(|f| Some(f.kind)));
            }
        }
    }
    kinds
}

#[test]
fn rows_arrive_launch_after_launch() {
    for warp_size in [32, 64] {
        for kernel in
            [credit, credit_by_barrier, meeting, hand_over, requests, pages].map(|make| make(warp_size))
        {
            let kernel = Planted::new(verify(kernel).unwrap().into_kernel()).unwrap();
            assert_eq!(found(&kernel), []);
        }
    }
}

#[track_caller]
fn planted(kernel: &Kernel, mutation: &Mutation, allowed: &[FindingKind]) {
    let kinds = found(&mutate::mutate(kernel, mutation).unwrap());
    assert!(!kinds.is_empty(), "{mutation:?} is not found");
    assert!(kinds.iter().all(|k| k.is_some_and(|k| allowed.contains(&k))), "{mutation:?}: {kinds:?}");
}

#[test]
fn a_signal_without_data_orders_the_launch_before() {
    let (kernel, signal) = (credit(32), || Site::signal("ready", "ready"));
    planted(&kernel, &Mutation::Drop(signal()), &[Deadlock]);
    // The packets of the launch before are sent again before they are taken.
    planted(&kernel, &Mutation::Relax(signal()), &[LostPacket, LostSignal]);
    let wait = Site::wait("ready", "ready");
    planted(&kernel, &Mutation::Drop(wait.clone()), &[LostPacket, LostSignal, UnwaitedSignal]);
    let one_more = |slot| Mutation::Offset { site: signal(), slot, by: 1 };
    planted(&kernel, &one_more(Slot::Index), &[Deadlock, OutOfBounds]);
    planted(&kernel, &one_more(Slot::Value), &[Deadlock, EpochConfusion]);
    let late = Mutation::Offset { site: wait, slot: Slot::Value, by: -1 };
    planted(&kernel, &late, &[Deadlock, EpochConfusion]);
}

#[test]
fn a_barrier_is_met_by_all() {
    let (kernel, signal) = (meeting(32), || Site::signal("add", "read"));
    let but_one = mutate::Condition::new("place", CompareOp::Ne, 0);
    let all_but_one = Mutation::Guard { site: signal(), when: but_one, whole_parcel: false };
    planted(&kernel, &all_but_one, &[Deadlock]);
    planted(&kernel, &Mutation::Relax(signal()), &[DataRace, LostSignal]);
    // It comes before what it should come after: the reads of the inbox.
    planted(&kernel, &Mutation::SignalFirst(signal()), &[DataRace, LostSignal, EpochConfusion]);
}

#[test]
fn flags_between_blocks_order_what_the_blocks_store() {
    let (kernel, signal) = (hand_over(32), || Site::signal("scale", "done"));
    planted(&kernel, &Mutation::Drop(signal()), &[Deadlock]);
    planted(&kernel, &Mutation::Relax(signal()), &[DataRace, UninitializedRead]);
    planted(&kernel, &Mutation::SignalFirst(signal()), &[DataRace, UninitializedRead]);
    let wait = || Site::wait("turn", "done");
    planted(&kernel, &Mutation::Drop(wait()), &[DataRace, UninitializedRead, UnwaitedSignal, LostSignal]);
    let other = |site, slot| Mutation::Offset { site, slot, by: 1 };
    planted(&kernel, &other(wait().nth(0), Slot::From), &[WrongSender]);
    planted(&kernel, &other(signal(), Slot::Value), &[Deadlock, EpochConfusion]);
    planted(&kernel, &other(signal(), Slot::Index), &[OutOfBounds, Deadlock, WrongSender]);
    let left_out = mutate::mutate(&kernel, &Mutation::Drop(signal())).unwrap();
    let findings = machine(left_out).run(&Options::default()).unwrap_err().to_string();
    assert!(findings.contains("role turn") && findings.contains("from block 0 of its rank"), "{findings}");
    let other = mutate::mutate(&kernel, &other(wait().nth(0), Slot::From)).unwrap();
    let findings = machine(other).run(&Options::default()).unwrap_err().to_string();
    // Either rank may be the first to be found.
    let said = |rank| format!("is awaited from block 1, but rank {rank} scale block 0 signalled it");
    assert!(findings.contains(&said(0)) || findings.contains(&said(1)), "{findings}");
}

#[test]
fn a_count_that_is_short_is_never_taken() {
    let (kernel, count) = (requests(32), || Site::signal("push", "sent"));
    let but_one = mutate::Condition::new("place", CompareOp::Ne, 32);
    planted(&kernel, &Mutation::Guard { site: count(), when: but_one, whole_parcel: true }, &[Deadlock]);
    let amount = |by| Mutation::Offset { site: count(), slot: Slot::Value, by };
    planted(&kernel, &amount(-1), &[Deadlock]);
    let short = mutate::mutate(&kernel, &amount(-1)).unwrap();
    let findings = machine(short).run(&Options::default()).unwrap_err().to_string();
    assert!(findings.contains("waits for sent[0] = 4 from rank"), "{findings}");
    assert!(findings.contains("(it holds 0)"), "{findings}");
}

#[test]
fn a_count_that_goes_too_far_is_found() {
    let twice = Mutation::Offset { site: Site::signal("push", "sent"), slot: Slot::Value, by: 1 };
    planted(&requests(32), &twice, &[EpochConfusion, DataRace, UninitializedRead, LostSignal]);
    let other = Mutation::Offset { site: Site::wait("decode", "sent"), slot: Slot::From, by: 1 };
    planted(&requests(32), &other, &[WrongSender, OutOfBounds]);
}

#[test]
fn a_count_that_is_taken_too_early_is_found() {
    let (kernel, take) = (requests(32), || Site::wait("decode", "sent"));
    let count = |by| Mutation::Offset { site: take(), slot: Slot::Value, by };
    // What the last block put is not ordered before the load, and is counted with the next launch's.
    let early = [DataRace, UninitializedRead, LostSignal, EpochConfusion, UnwaitedSignal, StaleRead];
    planted(&kernel, &count(-1), &early);
    planted(&kernel, &count(1), &[Deadlock]);
    planted(&kernel, &Mutation::Drop(take()), &[DataRace, UninitializedRead, UnwaitedSignal, LostSignal]);
    // Without the barrier the next launch counts while this one's count may not have been taken.
    planted(
        &kernel,
        &Mutation::Drop(Site::wait("decode", "taken")),
        &[LostSignal, EpochConfusion, UnwaitedSignal],
    );
}

#[test]
fn what_is_put_comes_before_the_count() {
    let (kernel, count) = (requests(32), || Site::signal("push", "sent"));
    let unordered = [DataRace, UninitializedRead, StaleRead];
    planted(&kernel, &Mutation::SignalFirst(count()), &unordered);
    planted(&kernel, &Mutation::Relax(count()), &[DataRace, UninitializedRead, StaleRead, LostSignal]);
}

#[test]
fn pages_are_pushed_when_their_reader_has_begun_and_read_when_all_are_there() {
    let kernel = pages(32);
    let free = || Site::wait("push", "free");
    // The launch before may still read them.
    planted(&kernel, &Mutation::Drop(free()), &[DataRace, EpochConfusion, UnwaitedSignal, LostSignal]);
    planted(&kernel, &Mutation::Relax(Site::signal("read", "free")), &[DataRace, LostSignal]);
    let take = || Site::wait("read", "sent");
    let early = [DataRace, UninitializedRead, UnwaitedSignal, LostSignal, EpochConfusion];
    planted(&kernel, &Mutation::Drop(take()), &early);
    planted(&kernel, &Mutation::Offset { site: take(), slot: Slot::Value, by: -1 }, &early);
    // The first count could do without order: the second one covers what was put before both.
    let count = || Site::signal("push", "sent").nth(1);
    planted(&kernel, &Mutation::SignalFirst(count()), &[DataRace, UninitializedRead]);
    planted(&kernel, &Mutation::Relax(count()), &[DataRace, UninitializedRead, LostSignal]);
    // Two writers of one page, and a page that its owner sends on meanwhile.
    let put =
        |by| Mutation::Offset { site: Site::new("push", Access::Put, "pool").nth(0), slot: Slot::Index, by };
    planted(&kernel, &put(16), &[DataRace, UninitializedRead]);
    planted(&kernel, &put(-64), &[DataRace, UninitializedRead]);
}

#[test]
fn flags_and_counts_are_told_apart() {
    let error = refused(4, |flags, epoch| _ = flags.wait_all(0, PARTS + 1, 1, epoch));
    assert!(error.contains("5 elements from element 0 on of `flags`"), "{error}");
    let kernel = requests(32);
    let text = kernel.to_string();
    assert!(text.contains("signal @sent[0] += 1 to") && text.contains("wait @sent[0] == 4"), "{text}");
    let told = peerwarp_codegen::ir::explain(&verify(kernel).unwrap()).to_string();
    assert!(told.contains(", adding `1`") && told.contains(", takes `4`"), "{told}");
    // An epoch is no count: a wait for many flags knows of none.
    let mut mixed = requests(32);
    let of = |kernel: &Kernel, name| kernel.params.iter().position(|p| p.name == name).unwrap();
    let (taken, sent) = (of(&mixed, "taken"), of(&mixed, "sent"));
    mixed.params[taken].kind = mixed.params[sent].kind;
    let refused = verify(mixed).unwrap_err().to_string();
    assert!(refused.contains("`taken`") && refused.contains("a flag array"), "{refused}");
}

#[test]
fn the_last_to_come_sees_what_all_others_did() {
    let (kernel, ticket) = (hand_over(32), || Site::new("add", Access::Atomic, "ticket"));
    planted(&kernel, &Mutation::Relax(ticket()), &[DataRace, UninitializedRead]);
    let count = |by| Mutation::Offset { site: ticket(), slot: Slot::Count, by };
    // The tail before the last one arrives, and no tail at all: the counter stays where it is.
    planted(&kernel, &count(-1), &[DataRace, UninitializedRead, CounterNotReset]);
    planted(&kernel, &count(1), &[CounterNotReset]);
}

#[test]
fn a_second_ticket_of_a_counter_is_refused() {
    let twice = refused_with(|g, ticket| {
        g.last(ticket.counter(0), || ());
        g.last(ticket.counter(0), || ());
    });
    assert!(twice.contains("counter 0 of `ticket` has another use"), "{twice}");
    let in_loop = refused_with(tickets_in_a_loop);
    assert!(
        in_loop.contains("a ticket of counter 0 of `ticket` in a loop that runs several times"),
        "{in_loop}"
    );
    let beyond = refused_with(|g, ticket| g.last(ticket.counter(1), || ()));
    assert!(beyond.contains("element 1 of `ticket`, which has 1"), "{beyond}");
}

#[kernel]
fn tickets_in_a_loop(g: Group, ticket: Counters) {
    for _ in 0..4u32.val() {
        g.last(ticket.counter(0), || ());
    }
}

#[test]
fn a_ticket_that_some_do_not_take_is_found() {
    let kernel = trace(TraceMeta::new("some", RANKS, 32, 2), |p: &mut Binder| {
        let _x = p.arg::<Ptr<f32>>("x", ROW.into());
        let ticket = p.arg::<Counters>("ticket", 1);
        role("role", 4, |b| some_come(b, ticket));
    });
    let kernel = verify(kernel.unwrap()).unwrap().into_kernel();
    let findings = machine(Planted::new(kernel).unwrap()).run(&Options::default()).unwrap_err();
    assert_eq!(findings.list[0].kind, CounterNotReset, "{findings}");
}

#[kernel]
fn some_come(b: Group, ticket: Counters) {
    if b.index() != 2 {
        b.last(ticket.counter(0), || ());
    }
}

fn refused_with(body: fn(Group, Counters)) -> String {
    let refused = trace(TraceMeta::new("refused", 4, 32, 4), |p: &mut Binder| {
        let ticket = p.arg::<Counters>("ticket", 1);
        role("role", 4, |b| body(b, ticket));
    });
    refused.unwrap_err().to_string()
}

#[test]
fn every_bug_of_one_change_is_found() {
    let equivalent = [
        // The flag after the last rank's is not in the mask of those that are waited for.
        "wait_all of ready: count + 1",
        // The flags of `sent` order the launches already: their barriers could do with one bank.
        "*: parity 0",
        "*: parity 1",
        // The flag after it is waited for next.
        "block_wait of done: count + 1",
    ];
    let kernels = [
        (credit(32), 1),
        (credit_by_barrier(32), 0),
        (meeting(32), 2),
        (hand_over(32), 1),
        (requests(32), 0),
        (pages(32), 0),
    ];
    for (kernel, equal) in kernels {
        let all = mutate::every(&kernel);
        let survives = |m: &&mutate::Mutant| {
            let mutant = mutate::mutate(&kernel, &m.mutation).unwrap();
            verify(mutant.clone().into_kernel()).is_ok() && found(&mutant).is_empty()
        };
        let survivors: Vec<String> = all.iter().filter(survives).map(ToString::to_string).collect();
        let explained = survivors.iter().filter(|s| equivalent.iter().any(|e| s.ends_with(e))).count();
        assert!(all.len() > 25, "{}", all.len());
        assert_eq!((survivors.len(), explained), (equal, equal), "{}: {survivors:#?}", kernel.name);
    }
}

/// What a kernel of one role with some flags says about a mistake in it.
fn refused(flags: u64, body: fn(Flags, Epoch)) -> String {
    let refused = trace(TraceMeta::new("refused", 4, 32, 4), |p: &mut Binder| {
        let flags = p.arg::<Flags>("flags", flags);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("role", 1, |_| body(flags, epoch));
    });
    refused.unwrap_err().to_string()
}

#[test]
fn too_few_flags_are_refused() {
    let error = refused(7, |flags, epoch| _ = flags.meet(epoch));
    assert!(error.contains("barrier 0 of 4 ranks on `flags`, which has 7 flags"), "{error}");
    assert!(error.contains("`flags` has to have 8"), "{error}");
    let error = refused(8, |flags, epoch| _ = flags.meet_at(1, epoch));
    assert!(error.contains("barrier 1 of 4 ranks") && error.contains("`flags` has to have 16"), "{error}");
    let error = refused(4, |flags, epoch| flags.signal(Peers::all(), 4, epoch));
    assert!(error.contains("element 4 of `flags`, which has 4"), "{error}");
}
