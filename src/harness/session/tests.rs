use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
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

/// Adds up what it is passed, in memory of its own: a bank for each parity of the launch.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "running_sum", kernel = running_sum, args = RunningSumArgs, warps = 1)]
pub struct RunningSum {
    #[key(short = "r", range = 1..=64, ranks)]
    ranks: u32,
}

impl Legal for RunningSum {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = RunningSum)]
pub struct RunningSumArgs {
    #[input]
    #[len(|_| 1)]
    x: Ptr<u32>,
    /// 1 in the first launch.
    #[input]
    #[len(|_| 1)]
    first: Ptr<u32>,
    #[output]
    #[len(|_| 1)]
    sum: Ptr<u32>,
    #[len(|_| 2)]
    kept: Ptr<u32>,
    epoch: EpochWord,
}

#[kernel]
fn running_sum(_: &RunningSum, a: &RunningSumArgs) {
    let bank = a.epoch.begin().parity();
    role("add", 1, |_| {
        let mut sum = var(a.x.get(0));
        if a.first.get(0) == 0 {
            sum += a.kept.get(1 - bank);
        }
        a.sum.set(0, &sum);
        a.kept.set(bank, &sum);
    });
}

#[test]
fn memory_of_an_operation_lasts_from_run_to_run() {
    let ranks = Arc::new(SimRanks::new(2, 7, true).unwrap());
    let make = || {
        let variant = RunningSum::with_defaults(&RunningSumKey { ranks: 2 }).unwrap().into_variant();
        SimOperation::new(Arc::clone(&ranks), variant).unwrap()
    };
    let run = |operation: &SimOperation, x: [u32; 2], first: u32| {
        let passed = |of: [u32; 2]| of.map(|n| n.to_le_bytes().to_vec()).to_vec();
        let operands: OfRanks = vec![
            ("x".into(), passed(x)),
            ("first".into(), passed([first; 2])),
            ("sum".into(), passed([0; 2])),
        ];
        let outputs = operation.run(operands, vec![vec![]; 2])?;
        let sums = outputs[0].1.iter().map(|bytes| u32::from_le_bytes(bytes[..].try_into().unwrap()));
        Ok::<_, SimError>(sums.collect::<Vec<u32>>())
    };
    let (one, other) = (make(), make());
    assert_eq!(run(&one, [1, 10], 1).unwrap(), [1, 10]);
    // An operation beside it has memory and epochs of its own.
    assert_eq!(run(&other, [5, 5], 1).unwrap(), [5, 5]);
    assert_eq!(run(&one, [2, 20], 0).unwrap(), [3, 30]);
    assert_eq!(run(&one, [3, 30], 0).unwrap(), [6, 60]);
    // Nothing is there before the first launch, and a run that fails leaves what was there.
    let found = run(&make(), [1, 1], 0).unwrap_err().to_string();
    assert!(found.contains("uninitialized-read"), "{found}");
}
