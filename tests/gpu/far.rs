//! Far channels between GPUs of one host: puts by libfabric, which a thread of the host carries for each rank.

#[path = "../../examples/kernels/src/far_gather.rs"]
mod far_gather;

use far_gather::FarGather;

use peerwarp::families::collectives::{
    AllGatherNodes, AllReduceNodes, AllToAllNodes, BroadcastNodes, ReduceScatterNodes,
};

use std::sync::Arc;

use peerwarp::families::moe::kernels::{Hook, Layout};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::GpuSession;
use peerwarp::runtime::{World, WorldOptions};
use serde_json::json;

use super::cases::{cases, cases_of_nodes};
use super::{gpus, jit, options, report};

/// Whether there is a libfabric to test with. Where PEERWARP_LIBFABRIC names one, it has to be.
fn library_is_there() -> bool {
    std::env::var_os(peerwarp_fabric::LIBRARY_VARIABLE).is_some()
        || peerwarp_fabric::library_version().is_ok()
}

#[test]
fn rows_that_are_put_far_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases("far_gather", 3, |cases| {
        cases.run::<FarGather>("elements=1001 ranks=2");
        cases.run::<FarGather>("elements=4096 ranks=2 pieces=4");
        cases.run::<FarGather>("elements=262144 ranks=2 pieces=16");
    });
}

#[test]
fn all_reduces_over_two_nodes_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases_of_nodes("all_reduce_nodes", 4, |cases| {
        cases.run::<AllReduceNodes>("elements=1003 ranks=2 nodes=2 dtype=bf16");
        cases.run::<AllReduceNodes>("elements=16384 ranks=2 nodes=2 dtype=f32");
        cases.run::<AllReduceNodes>("elements=65539 ranks=2 nodes=2 dtype=fp16 levels=node-first");
        cases.run::<AllReduceNodes>("elements=262144 ranks=2 nodes=2 dtype=bf16 op=max chunk=8192 blocks=16");
    });
}

#[test]
fn all_gathers_over_two_nodes_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases_of_nodes("all_gather_nodes", 3, |cases| {
        cases.run::<AllGatherNodes>("elements=1003 ranks=2 nodes=2 dtype=bf16");
        cases.run::<AllGatherNodes>("elements=65539 ranks=2 nodes=2 dtype=fp16");
        cases.run::<AllGatherNodes>("elements=262144 ranks=2 nodes=2 dtype=f32 chunk=8192 blocks=16");
    });
}

#[test]
fn broadcasts_over_two_nodes_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases_of_nodes("broadcast_nodes", 2, |cases| {
        cases.run::<BroadcastNodes>("elements=1003 ranks=2 nodes=2 dtype=bf16 root=1");
        cases.run::<BroadcastNodes>("elements=262144 ranks=2 nodes=2 dtype=f32 chunk=8192 blocks=16");
    });
}

#[test]
fn reduce_scatters_over_two_nodes_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases_of_nodes("reduce_scatter_nodes", 3, |cases| {
        cases.run::<ReduceScatterNodes>("elements=1003 ranks=2 nodes=2 dtype=bf16");
        cases.run::<ReduceScatterNodes>("elements=65539 ranks=2 nodes=2 dtype=fp16 op=max");
        cases.run::<ReduceScatterNodes>("elements=524288 ranks=2 nodes=2 dtype=f32 chunk=8192 blocks=16");
    });
}

#[test]
fn all_to_alls_over_two_nodes_are_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    cases_of_nodes("all_to_all_nodes", 3, |cases| {
        cases.run::<AllToAllNodes>("elements=1003 ranks=2 nodes=2 dtype=bf16");
        cases.run::<AllToAllNodes>("elements=65539 ranks=2 nodes=2 dtype=fp16");
        cases.run::<AllToAllNodes>("elements=524288 ranks=2 nodes=2 dtype=f32 chunk=8192 blocks=16");
    });
}

/// Rounds of dispatch, experts and combine on two GPUs that play two nodes, and graphs of them.
#[test]
fn moe_over_two_nodes_is_right_to_the_bit() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    let Some((_one, gpus)) = gpus() else { return };
    let world = Arc::new(World::of_gpus(&gpus[..2], &WorldOptions { nodes: 2, ..options() }).unwrap());
    let mut cases = 0;
    for (tokens, dtype) in [(8, RowDtype::Bf16), (128, RowDtype::Fp8), (300, RowDtype::Mxfp4)] {
        let shape = MoeShape { hidden: 1024, experts: 16, topk: 4, tokens, ranks: 2, dtype };
        let hooks = if dtype == RowDtype::Mxfp4 { vec![Hook::None] } else { vec![Hook::None, Hook::Expert] };
        for (layout, hook) in hooks.iter().flat_map(|&h| [(Layout::RankMajor, h), (Layout::ExpertMajor, h)]) {
            let weighted = hook == Hook::Expert && layout == Layout::RankMajor;
            let key = MoeKey { nodes: 2, layout, hook, weighted, ..MoeKey::new(shape) };
            let routings = [[tokens, tokens - 3], [0, 5], [tokens, tokens]];
            let routings = (1..).zip(routings).map(|(seed, n)| Routing::uniform(&shape, &n, seed));
            let problem = MoeProblem::with_rounds(shape, routings.collect(), 7).unwrap();
            let rounds = MoeRounds::new(&problem, &key.defaults().unwrap(), 3).unwrap();
            let mut session = GpuSession::new(Arc::new(rounds), &world, &jit()).unwrap().poisoned();
            for replays in [if hook == Hook::Expert { 51 } else { 0 }, 0] {
                let ran = session.run(replays).unwrap();
                assert!(ran.ok && ran.verdict.compared > 0, "{key:?}: {ran:?}");
            }
            cases += 1;
        }
    }
    report("moe over two nodes", json!({ "cases": cases }));
}
