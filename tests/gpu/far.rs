//! Far channels between GPUs of one host: puts by libfabric, which a thread of the host carries for each rank.

#[path = "../../examples/kernels/src/far_gather.rs"]
mod far_gather;

use far_gather::FarGather;

use peerwarp::families::collectives::{
    AllGatherNodes, AllReduceNodes, AllToAllNodes, BroadcastNodes, ReduceScatterNodes,
};

use super::cases::{cases, cases_of_nodes};

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
