//! LL elements and counting in order on the simulator: what arrives, and that each mistake with them is found.

use crate::findings;
use crate::printed::census;

use std::sync::Arc;

use census::{Bug, CENSUS_BINS, CENSUS_RANKS, CENSUS_VALUES, census, census_with};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Kernel, Planted, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Machine, Options};

/// Values of a rank, some of them too large to be counted.
fn values(rank: u32) -> Vec<u32> {
    (0..CENSUS_VALUES).map(|i| (i * i * 7 + i * (rank + 3) + rank) % (CENSUS_BINS + 5)).collect()
}

fn machine(kernel: Kernel, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(CENSUS_RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..CENSUS_RANKS {
        machine.write(rank, "values", 0, &values(rank)).unwrap();
    }
    for _ in 0..launches {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
    }
    machine
}

/// How many of each value come before each of a rank's, and how many there are.
fn counted(rank: u32) -> (Vec<u32>, Vec<u32>) {
    let mut count = vec![0; CENSUS_BINS as usize];
    let mut before = |v: u32| {
        let Some(n) = count.get_mut(v as usize) else { return 0 };
        *n += 1;
        *n - 1
    };
    let before = values(rank).into_iter().map(&mut before).collect();
    (before, count)
}

#[test]
fn every_rank_has_the_counts_of_all() {
    let all: Vec<u32> = (0..CENSUS_RANKS).flat_map(|rank| counted(rank).1).collect();
    for warp_size in [32, 64] {
        let machine = machine(census(warp_size), 5);
        for seed in 0..12 {
            let outcome = machine.run(&Options::default().with_seed(seed)).unwrap_or_else(|e| panic!("{e}"));
            for rank in 0..CENSUS_RANKS {
                assert_eq!(outcome.memory.read::<u32>(rank, "before").unwrap(), counted(rank).0);
                assert_eq!(
                    outcome.memory.read::<u32>(rank, "all").unwrap(),
                    [all.clone(), all.clone()].concat()
                );
            }
        }
    }
}

/// The kinds of findings over some seeds.
fn found(bug: Bug, launches: u32) -> Vec<FindingKind> {
    findings::kinds(&machine(census_with(32, bug), launches), 24)
}

#[test]
fn mistakes_with_ll_elements_are_found() {
    assert_eq!(found(Bug::None, 6), []);
    assert!(found(Bug::SingleBank, 4).contains(&FindingKind::LostPacket));
    assert!(found(Bug::NoAnswer, 4).contains(&FindingKind::LostPacket));
    assert_eq!(found(Bug::WrongElement, 1), [FindingKind::Deadlock]);
    assert_eq!(found(Bug::WrongSender, 1), [FindingKind::WrongSender]);
}

/// Sends two elements from an index on.
fn sent_from(index: fn(Val<u32>) -> Val<u32>) -> Result<(), String> {
    let kernel = trace(TraceMeta::new("pairs", 2, 32, 1), |p| {
        let (x, ll): (Ptr<bf16>, Ll<bf16>) = (p.arg("x", 64), p.arg("ll", 64));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 8, |b| ll.send(Peers::others(), index(b.index()), x.load(0, 2), epoch));
    });
    verify::verify(kernel.unwrap()).map(|_| ()).map_err(|e| e.to_string())
}

#[test]
fn what_is_sent_begins_a_word() {
    assert_eq!(sent_from(|b| 2 * b), Ok(()));
    let error = sent_from(|b| b).unwrap_err();
    assert!(error.contains("not known to begin an LL word of 2 elements"), "{error}");
}

#[test]
fn a_deadlock_over_ll_elements_says_who_waits_for_which() {
    let findings = machine(census_with(32, Bug::WrongElement), 1).run(&Options::default()).unwrap_err();
    insta::assert_snapshot!(findings.to_string());
}
