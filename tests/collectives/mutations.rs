//! Mutation runs over the kernels: bugs of one change that nothing finds are none.

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each};
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};

use crate::support::config;

/// Changes that change nothing: family, operation and change.
const EQUIVALENT: [(&str, &str, &str); 7] = [
    // The mask says which of the flags are waited for: none beyond the last rank's.
    ("all_reduce", "wait_all of tiles_arrived", "count + 1"),
    ("reduce_scatter", "wait_all of tiles_arrived", "count + 1"),
    // A mask says which elements of its own row a rank copies: none beyond the loop's end.
    ("ragged_all_to_all", "for", "end + 1"),
    ("all_to_all", "for", "end + 1"),
    // A rank that reads all others' vectors and then its own writes what is there.
    ("all_gather", "for", "end + 1"),
    // What it publishes was stored before the launch, and nothing of the launch comes before it.
    ("registered_all_reduce", "signal of data_ready", "before its puts"),
    // Of a tile that is not the last it waits for a reader of the next one, too, which waits for no reader itself.
    ("registered_all_reduce", "wait_all of tile_read", "count + 1"),
];

/// Whether it makes a rank wait longer for credits: until others have begun this launch, where the one before would do.
fn waits_longer(op: &str, change: &str) -> bool {
    matches!((op, change), ("signal of tiles_ready", "epoch - 1") | ("wait_all of tiles_ready", "epoch + 1"))
}

#[track_caller]
fn planted<F: Workload>(settings: &str) -> MutationRun {
    let config = config::<F>(&format!("ranks=3 dtype=f32 warps=1 chunk=256 {settings}"));
    let inputs = Inputs { seed: 0, rounds: 6, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 8, resident_blocks: None };
    let mut run = plant_each(suite::of::<F>(), &[config.into_variant()], &exploration)
        .unwrap_or_else(|e| panic!("{settings}: {e}"));
    run.leave_out(|s| {
        let (op, change) = (s.mutant.op.as_str(), s.mutant.change.as_str());
        // With flags the tiles themselves order launches: what ranks show without an owner needs no banks.
        let needs_no_bank = settings.contains("protocol=flags") && op == "*" && change.starts_with("parity");
        waits_longer(op, change) || needs_no_bank || EQUIVALENT.contains(&(F::NAME, op, change))
    });
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
        planted::<RaggedAllToAll>(&with("capacity=600 blocks=2"));
        planted::<Broadcast>(&with("elements=600 blocks=2 root=1"));
    }
    planted::<AllReduce>("elements=600 algorithm=one-shot senders=4 blocks=2");
    for (protocol, length) in [("packets", "device"), ("flags", "host")] {
        let with = |rest: &str| format!("protocol={protocol} length={length} row=4 {rest}");
        planted::<AllReduce>(&with("elements=600 algorithm=one-shot senders=0 blocks=2"));
        planted::<AllReduce>(&with("elements=1792 algorithm=two-shot senders=0 blocks=2"));
        planted::<ReduceScatter>(&with("elements=1008 blocks=2"));
        planted::<AllGather>(&with("elements=600 blocks=2"));
        planted::<AllToAll>(&with("elements=1008 blocks=2"));
        planted::<Broadcast>(&with("elements=600 blocks=2 root=1"));
        let each = |rest: &str| format!("protocol={protocol} length=each row=4 {rest}");
        planted::<AllGather>(&each("elements=600 blocks=2"));
        planted::<ReduceScatter>(&each("elements=1800 blocks=2"));
    }
    planted::<AllReduce>("elements=600 algorithm=pull protocol=flags senders=0 blocks=2");
    planted::<AllReduce>("elements=1792 algorithm=pull-two-shot protocol=flags senders=0 blocks=2");
    planted::<AllReduce>("elements=1792 algorithm=multimem protocol=flags senders=0 blocks=2");
    planted::<AllGather>("elements=600 algorithm=pull protocol=flags blocks=2");
    planted::<RegisteredAllReduce>("elements=600 shots=one blocks=2");
    planted::<RegisteredAllReduce>("elements=1792 shots=two blocks=2");
}
