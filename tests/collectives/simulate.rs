//! Every algorithm in every protocol, for worlds and lengths that do not divide, several rounds back to back.

use peerwarp::families::collectives::{AllGather, AllReduce, AllToAll, Broadcast, ReduceScatter};

use crate::support::explore;

/// Worlds, and lengths of all kinds: of one element, odd ones, and of several tiles and a rest.
const SHAPES: [(u32, u32); 6] = [(2, 1), (2, 1024), (3, 777), (5, 2501), (8, 1031), (8, 4096)];

const DTYPES: [&str; 3] = ["f32", "bf16", "fp16"];

#[test]
fn all_reduce() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for protocol in ["packets", "flags"] {
            for rest in ["algorithm=one-shot blocks=2", "algorithm=two-shot blocks=2", "algorithm=two-shot blocks=1"] {
                explore::<AllReduce>(&format!("{key} protocol={protocol} {rest} senders=0"), 2);
                explore::<AllReduce>(&format!("{key} protocol={protocol} {rest} senders=0 in_place=true"), 1);
            }
        }
        explore::<AllReduce>(&format!("{key} algorithm=one-shot blocks=2 senders=4"), 2);
        for op in ["max", "min"] {
            explore::<AllReduce>(&format!("{key} algorithm=one-shot blocks=1 op={op}"), 1);
        }
    }
}

/// A family in both protocols, in place and not.
fn both<F: peerwarp::harness::workload::Workload>(more: &str) {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for protocol in ["packets", "flags"] {
            explore::<F>(&format!("{key} protocol={protocol} blocks=2 {more}"), 2);
            explore::<F>(&format!("{key} protocol={protocol} blocks=1 in_place=true {more}"), 1);
        }
    }
}

#[test]
fn reduce_scatter() {
    both::<ReduceScatter>("op=sum");
    both::<ReduceScatter>("op=max");
}

#[test]
fn all_gather() {
    both::<AllGather>("");
}

#[test]
fn all_to_all() {
    both::<AllToAll>("");
}

#[test]
fn broadcast() {
    both::<Broadcast>("root=0");
    both::<Broadcast>("root=1");
}
