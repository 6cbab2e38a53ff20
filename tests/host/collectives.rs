//! Collectives as emitted text.

use peerwarp::families::collectives::{
    AllGather, AllGatherNodes, AllReduce, AllReduceNodes, AllToAll, AllToAllNodes, Broadcast, BroadcastNodes,
    RaggedAllToAll, ReduceScatter, ReduceScatterNodes, RegisteredAllReduce,
};

use crate::build::Language;
use crate::workload::{run, run_as};

#[test]
fn all_reduce() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256";
    run::<AllReduce>(&format!("{key} dtype=bf16 algorithm=one-shot senders=4 blocks=2"));
    run::<AllReduce>(&format!("{key} dtype=fp16 algorithm=one-shot senders=0 blocks=2 in_place=true op=max"));
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=two-shot senders=0 blocks=1"));
    for (dtype, op) in [("f32", "max"), ("f32", "max-nan"), ("bf16", "max-nan"), ("fp16", "min-nan")] {
        run::<AllReduce>(&format!("{key} dtype={dtype} algorithm=one-shot senders=0 blocks=2 op={op}"));
    }
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=two-shot senders=0 blocks=1 op=min-nan"));
    run::<AllReduce>(&format!(
        "{key} dtype=bf16 algorithm=two-shot senders=0 blocks=2 protocol=flags op=min"
    ));
}

#[test]
fn over_nodes() {
    let key = "elements=1031 warps=4 chunk=256 blocks=2";
    run::<AllReduceNodes>(&format!("{key} ranks=4 nodes=2 dtype=bf16 levels=rail-first"));
    run::<AllReduceNodes>(&format!(
        "{key} ranks=4 nodes=2 dtype=f32 levels=node-first protocol=flags op=max"
    ));
    run::<AllReduceNodes>(&format!("{key} ranks=3 nodes=3 dtype=fp16"));
    run::<AllGatherNodes>(&format!("{key} ranks=4 nodes=2 dtype=bf16"));
    run::<AllGatherNodes>(&format!("{key} ranks=3 nodes=3 dtype=f32"));
    run::<BroadcastNodes>(&format!("{key} ranks=4 nodes=2 dtype=fp16 root=3 protocol=flags"));
    run::<BroadcastNodes>(&format!("{key} ranks=3 nodes=3 dtype=bf16 root=1"));
    run::<ReduceScatterNodes>(&format!("{key} ranks=4 nodes=2 dtype=bf16"));
    run::<ReduceScatterNodes>(&format!("{key} ranks=3 nodes=3 dtype=f32 op=min"));
    run::<ReduceScatterNodes>(&format!("{key} ranks=4 nodes=2 dtype=f32 op=min-nan"));
    run::<AllReduceNodes>(&format!("{key} ranks=4 nodes=2 dtype=bf16 levels=rail-first op=max-nan"));
    for levels in ["node-first", "rail-first"] {
        run::<AllReduceNodes>(&format!("{key} ranks=4 nodes=2 dtype=bf16 levels={levels} op=avg"));
    }
    run::<AllToAllNodes>(&format!("{key} ranks=4 nodes=2 dtype=fp16 protocol=flags"));
    run::<AllToAllNodes>(&format!("{key} ranks=3 nodes=3 dtype=bf16"));
}

#[test]
fn of_one_rank() {
    let key = "elements=1031 ranks=1 warps=2 chunk=256 blocks=2";
    run::<AllReduce>(&format!("{key} dtype=bf16 algorithm=one-shot"));
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=pull-two-shot protocol=flags"));
    run::<RegisteredAllReduce>(&format!("{key} dtype=fp16 shots=two"));
    run::<AllGather>(&format!("{key} dtype=fp16"));
    run::<AllToAll>(&format!("{key} dtype=bf16 protocol=flags"));
}

#[test]
fn by_windows() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 protocol=flags blocks=2";
    run::<AllReduce>(&format!("{key} dtype=bf16 algorithm=pull"));
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=pull-two-shot in_place=true"));
    run::<AllGather>(&format!("{key} dtype=fp16 algorithm=pull"));
}

#[test]
fn of_registered_buffers() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 blocks=2";
    run::<RegisteredAllReduce>(&format!("{key} dtype=bf16 shots=one"));
    run::<RegisteredAllReduce>(&format!("{key} dtype=f32 shots=two"));
    run::<RegisteredAllReduce>(&format!("{key} dtype=fp16 shots=two op=max"));
    run::<RegisteredAllReduce>(&format!("{key} dtype=f32 shots=one op=max-nan"));
}

/// Lengths that launches say, from none to the capacity.
#[test]
fn of_any_length() {
    let key = "ranks=3 warps=2 chunk=256 blocks=2";
    for (length, row, protocol) in
        [("host", 1, "packets"), ("device", 8, "flags"), ("device", 256, "packets")]
    {
        let key = format!("{key} protocol={protocol} length={length} row={row} elements");
        run::<AllReduce>(&format!("{key}=1536 dtype=bf16 algorithm=one-shot senders=0"));
        run::<AllReduce>(&format!("{key}=1536 dtype=f32 algorithm=two-shot senders=0 in_place=true"));
        run::<ReduceScatter>(&format!("{key}=2304 dtype=fp16 op=avg"));
        run::<AllGather>(&format!("{key}=768 dtype=bf16"));
        run::<AllToAll>(&format!("{key}=2304 dtype=f32 in_place=true"));
        run::<Broadcast>(&format!("{key}=768 dtype=bf16 root=1"));
        if row < 256 {
            let key = key.replace(&format!("length={length}"), "length=each");
            run::<AllGather>(&format!("{key}=768 dtype=bf16"));
            run::<ReduceScatter>(&format!("{key}=2304 dtype=f32"));
        }
    }
    run::<AllReduce>(&format!(
        "{key} elements=1536 dtype=bf16 algorithm=pull protocol=flags length=device row=8"
    ));
    run::<AllReduce>(
        "elements=960 ranks=3 dtype=bf16 hook=rms-norm hidden=192 warps=2 blocks=2 algorithm=two-shot length=device row=192",
    );
}

/// Instructions that AMD's GPUs do not have.
#[test]
fn by_the_switch() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 protocol=flags blocks=2 algorithm=multimem";
    for rest in ["dtype=bf16", "dtype=f32 in_place=true", "dtype=fp16 op=max", "dtype=bf16 op=min"] {
        run_as::<AllReduce>(&[Language::Cuda], &format!("{key} {rest}"));
    }
}

#[test]
fn all_reduce_with_a_norm_behind_it() {
    let key = "elements=816 ranks=3 dtype=bf16 hook=rms-norm hidden=136 warps=2";
    run::<AllReduce>(&format!("{key} algorithm=one-shot blocks=2"));
    run::<AllReduce>(&format!("{key} algorithm=two-shot blocks=1"));
}

#[test]
fn all_reduce_with_a_norm_that_quantises() {
    let key = "elements=960 ranks=3 hook=rms-norm hidden=192 warps=2 blocks=2";
    for rest in [
        "dtype=bf16 algorithm=one-shot quantise=fp8-tensor weights=f32",
        "dtype=fp16 algorithm=two-shot quantise=fp8-token plus_one=true normalised=true",
        "dtype=bf16 algorithm=one-shot quantise=nvfp4 scale_layout=128x4",
        "dtype=f32 algorithm=two-shot quantise=nvfp4 protocol=flags",
        "dtype=bf16 algorithm=one-shot weights=f32 plus_one=true",
    ] {
        run::<AllReduce>(&format!("{key} {rest}"));
    }
}

/// Integers and bytes, of which every bit counts.
#[test]
fn integers() {
    let key = "ranks=3 warps=2 chunk=256 blocks=2";
    for dtype in ["i32", "fp8"] {
        run::<AllGather>(&format!("{key} dtype={dtype} elements=1031"));
        run::<AllToAll>(&format!("{key} dtype={dtype} elements=1031 in_place=true"));
        run::<Broadcast>(&format!("{key} dtype={dtype} elements=1031 root=1"));
    }
    for op in ["sum", "max", "min"] {
        run::<AllReduce>(&format!("{key} dtype=i32 elements=1031 op={op} algorithm=two-shot senders=0"));
        run::<RegisteredAllReduce>(&format!("{key} dtype=i32 elements=1031 op={op}"));
        run::<ReduceScatter>(&format!("{key} dtype=i32 elements=1031 op={op}"));
    }
}

#[test]
fn others() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 blocks=2";
    for (protocol, in_place) in [("packets", false), ("packets", true), ("flags", false)] {
        let key = format!("{key} protocol={protocol} in_place={in_place}");
        run::<ReduceScatter>(&format!("{key} dtype=f32"));
        run::<ReduceScatter>(&format!("{key} dtype=f32 op=min-nan"));
        run::<AllGather>(&format!("{key} dtype=bf16"));
        run::<AllToAll>(&format!("{key} dtype=fp16"));
        run::<Broadcast>(&format!("{key} dtype=bf16 root=1"));
        run::<RaggedAllToAll>(&format!("{key} dtype=bf16").replace("elements", "capacity"));
    }
}
