//! Mutants run: each bug planted in the exchange is found by the simulator, and the exchange itself is clean.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ir::mutate::{Access, Condition, Mutation, Operand, Site, Slot, mutate};
use crate::ir::{CompareOp, Planted, samples};
use crate::sim::{Bindings, Compiled, FindingKind, Machine, Options, Strategy};

/// Runs four epochs of an exchange under many schedules. Returns every kind of finding that came first in a run.
fn found(kernel: Planted) -> BTreeSet<FindingKind> {
    let kernel = Arc::new(Compiled::planted(kernel));
    let mut machine = Machine::new(kernel.kernel().ranks);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..machine.ranks() {
        machine.write(rank, "x", 0, &[1.5f32; 96]).unwrap();
    }
    for _ in 0..4 {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    let schedules = (0..20).flat_map(|seed| {
        [Strategy::Random, Strategy::Adversarial].map(|s| Options::default().with_seed(seed).with_strategy(s))
    });
    schedules.filter_map(|options| machine.run(&options).err().map(|f| f.list[0].kind)).collect()
}

#[track_caller]
fn planted(mutation: &Mutation, kinds: &[FindingKind]) {
    let found = found(mutate(&samples::exchange(), mutation).unwrap());
    assert!(!found.is_empty(), "{mutation:?} is not found");
    assert!(found.iter().all(|k| kinds.contains(k)), "{mutation:?} is called {found:?}");
}

fn flag_signal() -> Site {
    Site::signal("exchange", "flag")
}

fn flag_wait() -> Site {
    Site::wait("exchange", "flag")
}

use FindingKind::*;

#[test]
fn the_exchange_is_clean() {
    assert_eq!(found(Planted::new(samples::exchange()).unwrap()), BTreeSet::new());
}

#[test]
fn missing_release_and_flag_before_data() {
    planted(&Mutation::Relax(flag_signal()), &[DataRace, UninitializedRead, LostSignal]);
    planted(&Mutation::SignalFirst(flag_signal()), &[DataRace, UninitializedRead]);
}

#[test]
fn wrong_epoch_slot_count_and_rank() {
    let wait = |slot, by| Mutation::Offset { site: flag_wait(), slot, by };
    let signal = |slot, by| Mutation::Offset { site: flag_signal(), slot, by };
    planted(&wait(Slot::Value, -1), &[DataRace, UninitializedRead, EpochConfusion, LostSignal]);
    planted(&wait(Slot::Value, 2), &[Deadlock]);
    planted(&signal(Slot::Value, 2), &[Deadlock, EpochConfusion]);
    planted(&signal(Slot::Index, 1), &[Deadlock, OutOfBounds, DataRace, EpochConfusion, WrongSender]);
    planted(&signal(Slot::Index, 1 << 20), &[OutOfBounds]);
    planted(&wait(Slot::From, 1), &[WrongSender]);
}

#[test]
fn missing_operations() {
    planted(&Mutation::Drop(flag_wait()), &[LostSignal, UnwaitedSignal]);
    planted(&Mutation::Drop(flag_signal()), &[Deadlock]);
    planted(&Mutation::Drop(Site::put("exchange", "inbox")), &[UninitializedRead, StaleRead]);
    let when = Condition::new("me", CompareOp::Ne, 2);
    planted(&Mutation::Guard { site: flag_signal(), when, whole_parcel: true }, &[Deadlock]);
}

#[test]
fn two_writers_reuse_and_bounds() {
    let index = |site, n| Mutation::Replace { site, slot: Slot::Index, with: Operand::Number(n) };
    let put = Site::put("exchange", "inbox");
    planted(&index(put.clone(), 0), &[DataRace, UninitializedRead]);
    planted(&index(put, 700), &[OutOfBounds]);
    planted(&index(Site::new("exchange", Access::Load, "x"), 1), &[OutOfBounds]);
    let parity = Mutation::ReplaceValue { name: "parity".into(), nth: None, with: Operand::Number(0) };
    planted(&parity, &[DataRace, EpochConfusion, LostSignal]);
    planted(
        &Mutation::KeepEpoch("epoch".into()),
        &[DoubledSignal, DataRace, EpochConfusion, StaleRead, LostSignal],
    );
}
