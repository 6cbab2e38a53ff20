use std::sync::Arc;

use peerwarp_codegen::family::Family;
use peerwarp_codegen::ir::Const;
use peerwarp_codegen::sim::{Compiled, Options};

use super::kernels::Kernels;
use super::*;
use crate::families::collectives::RegisteredAllReduce;
use crate::families::moe::run::MoeTuning;
use crate::families::moe::{MoeShape, RowDtype};
use crate::harness::bench::align::{Idle, IdleKey};
use crate::harness::suite;
use crate::harness::workload::{Inputs, Problem};
use crate::runtime::mock::{Machine, Uncompiled, world};
use crate::runtime::op::LaunchSpec;

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

#[test]
fn rows_that_nothing_tells_are_drawn_with_none_and_all() {
    let shape = MoeShape { hidden: 16, experts: 6, topk: 2, tokens: 5, ranks: 2, dtype: RowDtype::Bf16 };
    let tuning = MoeTuning::defaults(&shape).unwrap();
    let launches = tuning.dispatch_launches().into_iter().map(Family::into_variant);
    let launches: Vec<LaunchSpec> = launches.map(|v| LaunchSpec::new("dispatch", v)).collect();
    let kernels = Kernels::new(&launches, &mut |kernel| Compiled::new(kernel)).unwrap();
    for seed in 0..8 {
        let turns = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)];
        let drawn: Vec<_> = turns.iter().map(|turn| kernels.drawn_rows(&[], seed, *turn)).collect();
        assert!(drawn.iter().all(|d| d.len() == 1 && d[0].0 == "rows_there"), "{drawn:?}");
        let rows: Vec<Const> = drawn.into_iter().map(|d| d[0].1).collect();
        assert!(rows.contains(&Const::U32(0)) && rows.contains(&Const::U32(5)), "{seed}: {rows:?}");
        assert!(rows.iter().all(|rows| matches!(rows, Const::U32(0..=5))), "{seed}: {rows:?}");
        let told = [("rows_there".to_owned(), Const::U32(3))];
        assert_eq!(kernels.drawn_rows(&told, seed, (0, 0)), []);
    }
}
