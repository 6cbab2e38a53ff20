//! A mutation run over the kernel: bugs of one change that nothing finds are none.

use add_all_gather::config::AddAllGather;
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each};
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

/// Changes that change nothing: role, operation and change.
const EQUIVALENT: [(&str, &str, &str); 1] = [
    // An LL element beyond the end of the last chunk: its message has room for it, and no rank reads it.
    ("send", "send_ll of sums", "count + 1"),
];

/// Whether it makes a rank wait longer for credits: until others have begun this launch, where the one before would do.
fn waits_longer(op: &str, change: &str) -> bool {
    matches!((op, change), ("signal of sums_ready", "epoch - 1") | ("wait_all of sums_ready", "epoch + 1"))
}

fn planted(protocol: Transport) -> MutationRun {
    let config = AddAllGather {
        elements: 600,
        ranks: 3,
        dtype: Dtype::F32,
        warps: 2,
        protocol,
        chunk: 256,
        send_blocks: 2,
        recv_blocks: 2,
    };
    let inputs = Inputs { seed: 0, rounds: 6, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 16, resident_blocks: None };
    let suite = suite::of::<AddAllGather>();
    let mut run = plant_each(suite, &[config.into_variant()], &exploration).unwrap_or_else(|e| panic!("{e}"));
    run.leave_out(|s| {
        let role = s.mutant.role.as_deref().unwrap_or_default();
        let (op, change) = (&*s.mutant.op, &*s.mutant.change);
        waits_longer(op, change) || EQUIVALENT.contains(&(role, op, change))
    });
    run
}

#[test]
fn every_bug_of_one_change_is_found() {
    for (protocol, equivalent) in [(Transport::Flags, 0), (Transport::Packets, 2), (Transport::Ll, 3)] {
        let run = planted(protocol);
        println!("add_all_gather, {}: {run}", protocol.name());
        assert_eq!(run.equivalent, equivalent, "{run}");
        assert!(run.planted > 20 && run.survivors.is_empty(), "{run}");
    }
}
