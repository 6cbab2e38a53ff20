use std::sync::Arc;

use peerwarp_codegen::family::Family;
use peerwarp_codegen::sim::Options;

use super::*;
use crate::families::collectives::RegisteredAllReduce;
use crate::harness::bench::align::{Idle, IdleKey};
use crate::harness::suite;
use crate::harness::workload::{Inputs, Problem};
use crate::runtime::mock::{Machine, Uncompiled, world};

/// A family of which nothing is known but its parameters.
fn plain() -> Arc<dyn Problem> {
    let variant = Idle::with_defaults(&IdleKey { ranks: 2 }).unwrap().into_variant();
    let inputs = Inputs { rounds: 2, ..Inputs::default() };
    suite::plain::<Idle>().problem(&[variant], &inputs).unwrap().into()
}

#[test]
fn a_family_without_a_workload_is_run_and_nothing_is_compared() {
    let ran = SimSession::new(plain()).unwrap().run(&Options::default()).unwrap();
    assert_eq!((ran.verdict.ok(), ran.verdict.compared), (true, 0));

    let machine = Machine::default();
    let ran = GpuSession::new(plain(), &world(&machine), &Uncompiled).unwrap().poisoned().run(3).unwrap();
    assert_eq!((ran.ok, ran.verdict.compared), (true, 0));
    // Two rounds on two ranks that the host looks at, two in each rank's graph; three replays.
    assert_eq!(machine.launches.lock().unwrap().len(), 2 * 2 + 2 * 2);
    assert_eq!(machine.graphs.load(std::sync::atomic::Ordering::Relaxed), 2 * 3);
    assert_eq!(machine.alive(), 0);
}

/// A launch refuses any other memory for an operand that peers reach.
#[test]
fn each_round_has_windows_of_its_own_in_memory_that_peers_reach() {
    let config = RegisteredAllReduce::from_text("elements=500 ranks=2 dtype=f32 op=sum").unwrap();
    let variant = config.into_variant();
    let inputs = Inputs { rounds: 3, ..Inputs::default() };
    let problem = suite::of::<RegisteredAllReduce>().problem(&[variant], &inputs).unwrap();
    let machine = Machine::default();
    let mut session = GpuSession::new(problem.into(), &world(&machine), &Uncompiled).unwrap();
    session.run(1).unwrap();
    let launched: Vec<Vec<u64>> = machine.launches.lock().unwrap().iter().map(|l| l.args.clone()).collect();
    // Three rounds on two ranks that the host looks at, and the same in each rank's graph.
    assert_eq!(launched.len(), 2 * 3 * 2);
    let different: std::collections::BTreeSet<_> = launched.iter().collect();
    assert_eq!(different.len(), 2 * 3);
}
