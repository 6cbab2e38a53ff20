//! Mutations of kinds that no change of one operand makes: data of an older launch under another epoch word, numbers that
//! wrap before they bound something, rows that the caller has not passed, looks before the wait, and orders left out
//! between roles. The families have no reference: only the checker can find them.

mod families;

use std::sync::Arc;

use families::{
    BUGS_OF_LOOKS, BUGS_OF_ORDERS, BUGS_OF_ROWS, BUGS_OF_SIZES, Banks, Looks, Orders, PARTS, Relay, Rows,
    Sizes,
};
use peerwarp::codegen::ir::mutate::{Condition, Mutation, Site, mutate};
use peerwarp::codegen::ir::{CompareOp, Planted};
use peerwarp::codegen::sim::Options;
use peerwarp::harness::check::{Exploration, Wrong, default_epochs, explore};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

const SEEDS: u64 = 24;

fn inputs(variant: &[peerwarp::codegen::family::Variant]) -> Inputs {
    let rounds = default_epochs(variant).unwrap_or_else(|e| panic!("{e}"));
    Inputs { rounds, ragged: true, ..Inputs::default() }
}

/// What is found first in a family with a bug in it.
fn found<F: Family>(bug: u32) -> Option<String> {
    let config =
        F::from_settings(&[("ranks", "3"), ("bug", &bug.to_string())]).unwrap_or_else(|e| panic!("{e}"));
    let variants = [config.into_variant()];
    // A kernel that the verifier refuses is found.
    let rounds = default_epochs(&variants);
    let Ok(rounds) = rounds else { return Some("refused".into()) };
    let inputs = Inputs { rounds, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: SEEDS, resident_blocks: None };
    match explore(suite::plain::<F>(), &variants, &exploration, || {}) {
        Err(_) => Some("refused".into()),
        Ok(None) => None,
        Ok(Some((_, Wrong::Protocol(findings)))) => Some(findings.list[0].kind.name().into()),
        Ok(Some((_, Wrong::Result(_)))) => Some("result".into()),
    }
}

/// Counts what is found of the bugs of a family, which is clean without.
fn count<F: Family>(bugs: u32, missed: &mut Vec<String>) -> u32 {
    assert_eq!(found::<F>(0), None, "{} as it is", F::NAME);
    for bug in 1..=bugs {
        let found = found::<F>(bug);
        println!("{} {bug}: {found:?}", F::NAME);
        if found.is_none() {
            missed.push(format!("{} {bug}", F::NAME));
        }
    }
    bugs
}

/// A row of the relay is not sent again from an epoch on.
fn old_rows(missed: &mut Vec<String>) -> u32 {
    let variants = [Relay::from_settings(&[("ranks", "3"), ("bug", "0")])
        .unwrap_or_else(|e| panic!("{e}"))
        .into_variant()];
    let problem = |seed| {
        let inputs = Inputs { seed, ..inputs(&variants) };
        Arc::from(suite::plain::<Relay>().problem(&variants, &inputs).unwrap_or_else(|e| panic!("{e}")))
    };
    let mut planted = 0;
    for row in 0..PARTS as usize {
        for last in [1, 2, 3] {
            let when = Condition::new("epoch", CompareOp::Le, last);
            let site = Site::put("all", "inbox").nth(row);
            let guard = Mutation::Guard { site, when, whole_parcel: false };
            let finds = |seed| {
                let plant = &mut |kernel: &mut Planted| {
                    *kernel = mutate(kernel, &guard).unwrap_or_else(|e| panic!("{e}"))
                };
                let session = SimSession::planted(problem(seed), plant).unwrap_or_else(|e| panic!("{e}"));
                session.run(&Options::default().with_seed(seed)).err()
            };
            let first = (0..SEEDS).find_map(finds);
            println!("relay, row {row} up to epoch {last}: {:?}", first.as_ref().map(|f| f.list[0].kind));
            if first.is_none() {
                missed.push(format!("relay, row {row} up to epoch {last}"));
            }
            planted += 1;
        }
    }
    planted
}

#[test]
fn mutations_of_other_kinds_are_found() {
    let mut missed = vec![];
    assert_eq!(found::<Relay>(0), None, "the relay as it is");
    let planted = old_rows(&mut missed)
        + count::<Looks>(BUGS_OF_LOOKS, &mut missed)
        + count::<Sizes>(BUGS_OF_SIZES, &mut missed)
        + count::<Rows>(BUGS_OF_ROWS, &mut missed)
        + count::<Orders>(BUGS_OF_ORDERS, &mut missed);
    assert!(planted >= 40, "{planted} planted");
    assert!(missed.is_empty(), "{} of {planted} are missed: {missed:#?}", missed.len());
}

#[test]
fn a_bank_is_explored_until_it_is_used_again() {
    let explored = |bug: &str, rounds: Option<u32>| {
        let config = Banks::from_settings(&[("ranks", "2"), ("bug", bug)]).unwrap_or_else(|e| panic!("{e}"));
        let variants = [config.into_variant()];
        let usual = default_epochs(&variants).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(usual, 6);
        let inputs = Inputs { rounds: rounds.unwrap_or(usual), ragged: true, ..Inputs::default() };
        let exploration = Exploration { inputs, seeds: SEEDS, resident_blocks: None };
        explore(suite::of::<Banks>(), &variants, &exploration, || {}).unwrap_or_else(|e| panic!("{e}"))
    };
    assert!(explored("0", None).is_none());
    // Launches that use each bank once show nothing.
    assert!(explored("1", Some(4)).is_none());
    assert!(matches!(explored("1", None), Some((_, Wrong::Protocol(_)))));
}
