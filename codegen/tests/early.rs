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
    // The second one begins when the first is over, whoever was early.
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
