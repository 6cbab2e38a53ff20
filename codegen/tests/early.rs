//! Kernels that begin before the launch before them is over: what must stand between two of them, and what is emitted.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceError, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{Kernel, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

const RANKS: u32 = 2;

/// All ranks meet, in an epoch of the word of this name.
fn meeting(word: &str, early: bool) -> Kernel {
    let body = |p: &mut Binder| {
        let (met, word) =
            (p.arg::<Flags>(&format!("met_{word}"), (2 * RANKS).into()), p.arg::<EpochWord>(word, 1));
        let epoch = if early { word.begin_early() } else { word.begin() };
        role("meet", 2, |b| {
            if_first(b, || {
                let bank = epoch.parity() * RANKS;
                met.signal(Peers::all(), bank + rank(), epoch);
                let _all = met.wait_all(bank, RANKS, 1, epoch);
            });
        });
    };
    trace(TraceMeta::new("meeting", RANKS, 32, 1), body).unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn if_first(b: Group, act: impl FnOnce()) {
    if b.index() == 0 {
        act();
    }
}

/// What is found where launches of these words follow each other.
fn found(words: &[(&str, bool)]) -> Vec<FindingKind> {
    let mut machine = Machine::new(RANKS);
    let mut declared = vec![];
    for &(word, early) in words {
        let kernel = Arc::new(Compiled::new(verify(meeting(word, early)).unwrap()));
        if !declared.contains(&word) {
            machine.buffers_of(kernel.kernel()).unwrap();
            declared.push(word);
        }
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    let run = |seed| machine.run(&Options::default().with_seed(seed)).map_or_else(|f| f.list, |_| vec![]);
    let mut kinds: Vec<FindingKind> = (0..8).flat_map(run).map(|f| f.kind).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}

#[test]
fn another_launch_has_to_stand_between_two_of_a_word() {
    assert_eq!(found(&[("a", true), ("b", true), ("a", true), ("b", true)]), []);
    assert_eq!(found(&[("a", false), ("a", false)]), []);
    assert_eq!(found(&[("a", true), ("a", true)]), [FindingKind::EarlyEpoch]);
    assert_eq!(found(&[("b", true), ("a", false), ("a", true)]), [FindingKind::EarlyEpoch]);
    // The second one begins when the first is over, with any rank early.
    assert_eq!(found(&[("a", true), ("a", false)]), []);
}

#[test]
fn it_begins_before_the_wait_for_the_launch_before_and_lets_the_next_one_start() {
    let emitted = |early, target: &str| {
        let target: Target = target.parse().unwrap();
        let kernel = verify(meeting("word", early)).unwrap();
        emit(&kernel, target, &EmitInfo { command: "cargo test".into() }).unwrap().text
    };
    let order = |text: &str| {
        let entry = &text[text.find("__global__").unwrap()..];
        let mut at: Vec<(usize, &str)> =
            ["begin_epoch(", "griddepcontrol.wait", "launch_dependents", "meet_role("]
                .into_iter()
                .filter_map(|what| Some((entry.find(what)?, what)))
                .collect();
        at.sort_unstable();
        at.into_iter().map(|(_, what)| what).collect::<Vec<_>>()
    };
    let late = ["griddepcontrol.wait", "begin_epoch(", "meet_role(", "launch_dependents"];
    let early = ["begin_epoch(", "griddepcontrol.wait", "launch_dependents", "meet_role("];
    assert_eq!(order(&emitted(false, "cuda:sm_90a")), late);
    assert_eq!(order(&emitted(true, "cuda:sm_90a")), early);
    assert_eq!(order(&emitted(true, "cuda:sm_80")), ["begin_epoch(", "meet_role("]);
}

/// A role that tells all ranks that it has begun; `stores` something before, or not.
fn telling(early: bool, stores: bool, target: Target) -> Kernel {
    let body = |p: &mut Binder| {
        let (met, x) = (p.arg::<Flags>("met", (2 * RANKS).into()), p.arg::<Ptr<u32>>("x", 4));
        let word = p.arg::<EpochWord>("word", 1);
        let epoch = if early { word.begin_early() } else { word.begin() };
        role("work", 3, |b| x.set(b.index(), 1u32));
        role("tell", 1, |_| {
            let bank = epoch.parity() * RANKS;
            if stores {
                x.set(3, 0u32);
            }
            met.signal(Peers::all(), bank + rank(), epoch);
            let _all = met.wait_all(bank, RANKS, 1, epoch);
        });
    };
    trace(TraceMeta::new("telling", RANKS, target.warp_size(), 2), body).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn what_earlier_launches_did_is_released_beside_the_epoch() {
    let emitted = |early, stores, target: &str| {
        let target: Target = target.parse().unwrap();
        let kernel = verify(telling(early, stores, target)).unwrap();
        emit(&kernel, target, &EmitInfo { command: "cargo test".into() }).unwrap().text
    };
    for target in ["cuda:sm_80", "cuda:sm_90a"] {
        let beside = emitted(false, false, target);
        let entry = &beside[beside.find("__global__").unwrap()..];
        let fence = entry.find("if (block_in_grid() >= 3) release_earlier_launches();").unwrap();
        assert!(fence < entry.find("begin_epoch(").unwrap());
        assert!(entry.find("griddepcontrol.wait").is_none_or(|wait| wait < fence));
        assert!(beside.contains("    signal_released(args, args.met, ") && !beside.contains("signal_ranks("));
    }
    // What the role has done itself is published by a fence behind it; and so is everything where the epoch is known before.
    let others = [(false, true, "cuda:sm_90a"), (true, false, "cuda:sm_90a"), (false, false, "hip:gfx942")];
    for (early, stores, target) in others {
        let other = emitted(early, stores, target);
        assert!(!other.contains("release_earlier_launches"), "{other}");
        assert!(other.contains("    signal_ranks(block, args, args.met, "));
    }
}

#[test]
fn it_has_one_epoch() {
    let body = |p: &mut Binder| {
        let (a, b) = (p.arg::<EpochWord>("a", 1), p.arg::<EpochWord>("b", 1));
        let (_, _) = (a.begin_early(), b.peek());
        role("r", 1, |_| ());
    };
    let error: TraceError = trace(TraceMeta::new("two", RANKS, 32, 1), body).unwrap_err();
    assert_eq!(error.message, "a second epoch of a kernel that begins early");
    let mut kernel = meeting("a", false);
    kernel.prologue.ops.clear();
    kernel.begins_early = true;
    assert!(verify(kernel).unwrap_err().to_string().contains("begins early and has 0 epochs"));
}

/// A kernel that loads an index from `x` and loads from `y` there, after something was done to the index.
fn indexed(early: bool, bound: impl Fn(Val<u32>) -> Val<u32>, guarded: bool) -> Result<(), String> {
    let body = |p: &mut Binder| {
        let (x, y) = (p.arg::<Ptr<u32>>("x", 4), p.arg::<Ptr<u32>>("y", 8));
        let out = p.arg::<Ptr<u32>>("out", 4);
        let word = p.arg::<EpochWord>("word", 1);
        let _ = if early { word.begin_early() } else { word.begin() };
        role("work", 4, |b| {
            let at = bound(x.get(b.index()));
            let copy = || out.set(b.index(), y.get(at));
            if guarded { if_below(at, copy) } else { copy() }
        });
    };
    let kernel = trace(TraceMeta::new("indexed", RANKS, 32, 1), body).unwrap_or_else(|e| panic!("{e}"));
    verify(kernel).map(drop).map_err(|e| e.to_string())
}

#[kernel]
fn if_below(at: Val<u32>, act: impl FnOnce()) {
    if at < 8 {
        act();
    }
}

#[test]
fn an_index_from_memory_has_a_bound() {
    let refused = indexed(true, |at| at, false).unwrap_err();
    assert!(refused.contains("`load` takes an index from `x`, read at"), "{refused}");
    indexed(true, |at| at * 2 + 1, false).unwrap_err();
    for bound in [|at: Val<u32>| at.min(7), |at| at % 8, |at| at & 7] {
        indexed(true, bound, false).unwrap();
    }
    indexed(true, |at| at, true).unwrap();
    // A kernel that begins when the launch before is over notices that that one gave up.
    indexed(false, |at| at, false).unwrap();
}

/// What the verifier says of a kernel that begins early and does something with numbers from memory.
fn early_error(act: impl Fn(&Early)) -> Option<String> {
    let body = |p: &mut Binder| {
        let early = Early {
            x: p.arg("x", 64),
            y: p.arg("y", 64),
            out: p.arg("out", 64),
            inbox: p.arg("inbox", 64),
            flags: p.arg("flags", 64),
            epoch: p.arg::<EpochWord>("word", 1).begin_early(),
        };
        role("work", 1, |_| act(&early));
    };
    let kernel = trace(TraceMeta::new("early", RANKS, 32, 1), body).unwrap_or_else(|e| panic!("{e}"));
    verify(kernel).err().map(|e| e.to_string())
}

struct Early {
    x: Ptr<u32>,
    y: Ptr<f32>,
    out: Ptr<f32>,
    inbox: Sym<f32>,
    flags: Flags,
    epoch: Epoch,
}

#[kernel]
fn when(cond: Val<bool>, act: impl FnOnce()) {
    if cond {
        act();
    }
}

#[kernel]
fn unless(cond: Val<bool>, act: impl Fn()) {
    for _ in 0..2u32.val() {
        if cond {
            continue;
        }
        act();
    }
}

#[kernel]
fn count_to(most: Val<u32>, fits: bool, e: &Early) {
    let mut i = var(0u32);
    while i < most {
        if fits {
            if i < 64 {
                e.out.set(i.get(), 0.0);
            }
        } else {
            e.out.set(i.get(), 0.0);
        }
        i += 1u32;
    }
}

#[test]
fn only_what_keeps_a_number_from_memory_small_is_a_bound() {
    type Act = fn(&Early);
    let refused: [(&str, &str, Act); 13] = [
        ("a rank to signal", "the ranks to send to", |e| e.flags.signal(Peers::rank(e.x.get(0)), 0, e.epoch)),
        ("a rank to put to", "the ranks to send to", |e| {
            let mut parcel = send_to(Peers::rank(e.x.get(0)));
            parcel.put(&e.inbox, 0, e.y.load(0, 32));
            parcel.signal(&e.flags, 0, e.epoch);
        }),
        ("an equality elsewhere", "an index", |e| {
            let x = e.x.get(0);
            e.out.set(1, (x.eq_to(77)).select(1.0f32, 0.0f32));
            e.out.set(0, e.y.get(x));
        }),
        ("an order elsewhere", "an index", |e| {
            let x = e.x.get(0);
            e.out.set(1, (x.lt(64)).select(1.0f32, 0.0f32));
            e.out.set(0, e.y.get(x));
        }),
        ("a bound below", "an index", |e| {
            let x = e.x.get(0);
            when(x.gt(64), || e.out.set(0, e.y.get(x)));
        }),
        ("the other arm", "an index", |e| {
            let x = e.x.get(0);
            unless(x.lt(64), || e.out.set(0, e.y.get(x)));
        }),
        ("another number from memory", "an index", |e| {
            let (x, z) = (e.x.get(0), e.x.get(1));
            when(x.lt(z), || e.out.set(0, e.y.get(x)));
        }),
        ("one of two conditions", "an index", |e| {
            let (x, z) = (e.x.get(0), e.x.get(1));
            when(x.lt(64) | z.lt(64), || e.out.set(0, e.y.get(x)));
        }),
        ("a mask that is too wide", "an index", |e| {
            let t = e.x.load(0, 32);
            e.out.set(0, e.y.gather(t, t.lt(100_000), 0.0).sum());
        }),
        ("a minimum that is too large", "an index", |e| e.out.set(0, e.y.get(e.x.get(0).min(64)))),
        ("a float", "an index", |e| e.out.set(0, e.y.get(e.y.get(0).to_u32()))),
        ("a float in shared memory", "an index", |e| {
            let s = shared::<f32>("s", 4);
            s.set(0, e.y.get(0));
            e.out.set(0, e.y.get(s.get(0).to_u32()));
        }),
        ("a count", "an index", |e| count_to(e.x.get(0), false, e)),
    ];
    for (what, says, act) in refused {
        let error = early_error(act).unwrap_or_else(|| panic!("{what} passes"));
        assert!(error.contains(&format!("takes {says} from `")), "{what}: {error}");
    }
    let legal: [(&str, Act); 11] = [
        ("a rank below", |e| e.flags.signal(Peers::rank(e.x.get(0) % RANKS), 0, e.epoch)),
        ("a condition", |e| {
            let x = e.x.get(0);
            when(x.lt(64), || e.out.set(0, e.y.get(x)));
        }),
        ("both of two conditions", |e| {
            let (x, z) = (e.x.get(0), e.x.get(1));
            when(x.lt(64) & z.lt(64), || e.out.set(0, e.y.get(x) + e.y.get(z)));
        }),
        ("a round that is left", |e| {
            let x = e.x.get(0);
            unless(x.ge(64), || e.out.set(0, e.y.get(x)));
        }),
        ("neither of two", |e| {
            let (x, z) = (e.x.get(0), e.x.get(1));
            unless(x.ge(64) | z.ge(64), || e.out.set(0, e.y.get(x) + e.y.get(z)));
        }),
        ("an equality", |e| {
            let x = e.x.get(0);
            when(x.eq_to(3), || e.out.set(0, e.y.get(x)));
        }),
        ("a mask", |e| {
            let t = e.x.load(0, 32);
            e.out.set(0, e.y.gather(t, t.lt(64), 0.0).sum());
        }),
        ("a choice", |e| {
            let t = e.x.load(0, 32);
            e.out.set(0, e.y.gather(t.lt(64).select(t, 0u32), true, 0.0).sum());
        }),
        ("a bounded other number", |e| {
            let (x, n) = (e.x.get(0), e.x.get(1).min(64));
            when(x.lt(n), || e.out.set(0, e.y.get(x)));
        }),
        ("a float below a bound", |e| {
            let f = e.y.get(0);
            when(f.lt(64.0), || e.out.set(0, e.y.get(f.to_u32())));
        }),
        ("a count below a bound", |e| count_to(e.x.get(0), true, e)),
    ];
    for (what, act) in legal {
        assert_eq!(early_error(act), None, "{what}");
    }
}
