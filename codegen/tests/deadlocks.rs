//! Deadlocks whose cause is a signal that was left out: the first line names it, also where the rank that forgot waits itself.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::Planted;
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options, Strategy};

const RANKS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bug {
    /// A rank signals in its work loop, and rank 0 has no work.
    NoWork,
    /// Rank 0 has no signal in its code's way, and waits like all.
    Condition,
    /// All ranks signal in even epochs only.
    OddEpochs,
    /// A role ends without its signal, while another one waits for that and signals another index.
    OtherIndex,
    /// As `Condition`, with LL elements.
    Ll,
    /// As `Condition`, with packets.
    Packets,
    /// Groups of a split wait; their block signals after it.
    Split,
    /// No signal is left out: each rank waits before it signals.
    Circle,
    /// The same, with a signal in a loop behind the wait.
    CircleInLoop,
}

#[kernel]
fn deadlocks(bug: Bug, p: &mut Binder) {
    let (sent, over) = (p.arg::<Flags>("sent", 64), p.arg::<Flags>("over", 64));
    let (x, out) = (p.arg::<Ptr<f32>>("x", 64), p.arg::<Ptr<f32>>("out", 64));
    let (ll, inbox) = (p.arg::<Ll<f32>>("ll", 64), p.arg::<Packets<f32>>("inbox", 64));
    let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    let (me, bank) = (rank(), epoch.parity() * RANKS);
    let all = || {
        let _all = sent.wait_all(bank, RANKS, 1, epoch);
    };
    match bug {
        Bug::NoWork => role("r", 1, |b| {
            for _ in b.strided(me) {
                sent.signal(Peers::all(), bank + me, epoch);
            }
            all();
        }),
        Bug::Condition => role("r", 1, |_| {
            if me != 0 {
                sent.signal(Peers::all(), bank + me, epoch);
            }
            all();
        }),
        Bug::OddEpochs => role("r", 1, |_| {
            if epoch.parity() == 0 {
                sent.signal(Peers::all(), bank + me, epoch);
            }
            all();
        }),
        Bug::OtherIndex => {
            role("r", 1, |_| {
                if x.get(0) > 1e9 {
                    sent.signal(Peers::all(), me, epoch);
                }
            });
            role("q", 1, |_| {
                let _first = sent.from(0).wait(0, epoch);
                sent.signal(Peers::all(), RANKS + me, epoch);
            });
            role("s", 1, |_| {
                let _second = sent.from(1).wait(RANKS + 1, epoch);
            });
        }
        Bug::Ll => role("r", 1, |_| {
            if me != 0 {
                ll.send(Peers::all(), me * 4, x.load(0, 4), epoch);
            }
            let i = arange(4 * RANKS);
            out.store(0, ll.gather(i, i / 4, true, epoch));
        }),
        Bug::Packets => role("r", 1, |_| {
            if me != 0 {
                inbox.send(Peers::all(), me * 4, x.load(0, 4));
            }
            for from in 0..RANKS {
                out.store(from * 4, inbox.take(from * 4, 4, from));
            }
        }),
        Bug::Split => role("r", 1, |b| {
            b.split(1, |_| {
                if me != 0 {
                    sent.signal(Peers::all(), bank + me, epoch);
                }
                all();
            });
            over.signal(Peers::all(), me, epoch);
        }),
        Bug::Circle => role("r", 1, |_| {
            let other = (me + 1) % RANKS;
            let _next = sent.from(other).wait(bank + other, epoch);
            sent.signal(Peers::all(), bank + me, epoch);
        }),
        Bug::CircleInLoop => role("r", 1, |_| {
            let other = (me + 1) % RANKS;
            for _ in 0..2u32.val() {
                let _next = sent.from(other).wait(bank + other, epoch);
                sent.signal(Peers::all(), bank + me, epoch);
            }
        }),
    }
}

/// The deadlocks that schedules show after some launches: what each is for, where, and why.
fn deadlocks_of(bug: Bug, launches: u32) -> Vec<(String, Vec<String>)> {
    let kernel = trace(TraceMeta::new("deadlocks", RANKS, 32, 2), |p: &mut Binder| deadlocks(bug, p));
    let kernel = Planted::new(kernel.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.zero("x").unwrap();
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    let strategies = [Strategy::Random, Strategy::Adversarial];
    let runs =
        (0..8).map(|seed| Options { seed, strategy: strategies[seed as usize % 2], ..Options::default() });
    let told = runs.map(|options| {
        let findings = machine.run(&options).unwrap_err();
        let deadlock = findings.first(FindingKind::Deadlock).unwrap_or_else(|| panic!("{findings}"));
        (deadlock.message.clone(), deadlock.chain.clone())
    });
    told.collect()
}

#[test]
fn a_rank_that_forgets_and_then_waits_is_the_cause() {
    let past = |role: &str, what: &str| {
        format!(
            "role {role} of rank 0, which signals {what}, waits past its last signal without signalling that"
        )
    };
    let finished = "role r of rank 0, which signals sent, has finished without signalling that";
    let causes = [
        (Bug::NoWork, "waits for sent[3] = 1 from rank 0", past("r", "sent")),
        (Bug::Condition, "waits for sent[3] = 1 from rank 0", past("r", "sent")),
        (Bug::OtherIndex, "waits for sent[0] = 1 from rank 0", finished.into()),
        (Bug::Ll, "waits for ll[0] = 1 from rank 0", past("r", "ll")),
        (Bug::Packets, "waits for packet 0 of inbox from rank 0", past("r", "inbox")),
        (Bug::Split, "waits for sent[3] = 1 from rank 0", past("r", "sent")),
    ];
    for (bug, wait, why) in causes {
        for launches in [1, 4] {
            for (message, chain) in deadlocks_of(bug, launches) {
                assert!(
                    message.ends_with("the awaited signal will never come"),
                    "{bug:?}: {message} {chain:#?}"
                );
                assert!(chain[0].contains(wait), "{bug:?}: {chain:#?}");
                assert_eq!(chain[1], why, "{bug:?}: {chain:#?}");
            }
        }
    }
}

#[test]
fn a_signal_of_other_epochs_only_is_none_that_may_still_come() {
    for (message, chain) in deadlocks_of(Bug::OddEpochs, 4) {
        assert!(message.ends_with("the awaited signal will never come"), "{message} {chain:#?}");
        assert!(
            chain[0].contains("epoch 1") && chain[0].contains("waits for sent[3] = 1 from rank 0"),
            "{chain:#?}"
        );
        assert!(chain[1].contains("waits past its last signal"), "{chain:#?}");
    }
}

#[test]
fn who_can_still_signal_closes_a_circle() {
    for bug in [Bug::Circle, Bug::CircleInLoop] {
        for (message, chain) in deadlocks_of(bug, 2) {
            assert!(
                message.ends_with("every group waits for another one that waits"),
                "{bug:?}: {message} {chain:#?}"
            );
            assert_eq!(chain.last().map(String::as_str), Some("which closes the circle"), "{chain:#?}");
        }
    }
}
