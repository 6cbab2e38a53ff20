//! A mutation run over the kernel: bugs of one change that nothing finds are none.

use add_all_gather::config::AddAllGather;
use peerwarp::harness::check::Exploration;
use peerwarp::harness::mutation::{MutationRun, plant_each};
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;

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
    let inputs = Inputs { seed: 0, rounds: 4, ragged: true, ..Inputs::default() };
    let exploration = Exploration { inputs, seeds: 16, resident_blocks: None };
    let suite = suite::of::<AddAllGather>();
    plant_each(suite, &[config.into_variant()], &exploration).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_bug_of_one_change_is_found() {
    for protocol in [Transport::Flags, Transport::Packets, Transport::Ll] {
        let run = planted(protocol);
        println!("add_all_gather, {}: {run}", protocol.name());
        assert!(run.planted > 20 && run.survivors.is_empty(), "{run}");
    }
}
