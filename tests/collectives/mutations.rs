//! Mutation runs over the kernels: bugs of one change that nothing finds are none.

use peerwarp::families::collectives::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each};
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};

use crate::support::config;

/// Changes that change nothing: operation and change.
const EQUIVALENT: [(&str, &str); 1] = [
    // The mask says which of the flags are waited for: none beyond the last rank's.
    ("wait_all of tiles_arrived", "count + 1"),
];

#[track_caller]
fn planted<F: Workload>(settings: &str) -> MutationRun {
    let config = config::<F>(&format!("ranks=3 dtype=f32 warps=1 chunk=256 {settings}"));
    let inputs = Inputs { seed: 0, rounds: 4, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 8, resident_blocks: None };
    let mut run = plant_each(suite::of::<F>(), &[config.into_variant()], &exploration)
        .unwrap_or_else(|e| panic!("{settings}: {e}"));
    run.leave_out(|s| EQUIVALENT.contains(&(s.mutant.op.as_str(), s.mutant.change.as_str())));
    println!("{} {settings}: {run}", F::NAME);
    assert!(run.planted > 20 && run.survivors.is_empty(), "{settings}: {run}");
    run
}

#[test]
fn every_bug_of_one_change_is_found() {
    for protocol in ["packets", "flags"] {
        let with = |rest: &str| format!("protocol={protocol} {rest}");
        planted::<AllReduce>(&with("elements=600 algorithm=one-shot senders=0 blocks=2"));
        // Without a rest, which would have one owner on all ranks: what is sent to that one need not be.
        planted::<AllReduce>(&with("elements=1792 algorithm=two-shot senders=0 blocks=2"));
        planted::<ReduceScatter>(&with("elements=1001 blocks=2"));
        planted::<AllGather>(&with("elements=600 blocks=2"));
        planted::<AllToAll>(&with("elements=1001 blocks=2"));
        planted::<Broadcast>(&with("elements=600 blocks=2 root=1"));
    }
    planted::<AllReduce>("elements=600 algorithm=one-shot senders=4 blocks=2");
}
