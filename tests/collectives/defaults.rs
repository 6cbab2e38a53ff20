//! What collectives do unless somebody says otherwise, and what they refuse.

use peerwarp::families::collectives::{
    Algorithm, AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
    Shots,
};
use peerwarp::prelude::*;

use crate::support::config;

/// Algorithm, tile, warps, and blocks that send and reduce, of an all-reduce of so many bytes in bf16.
fn all_reduce(bytes: u32, ranks: u32) -> (Algorithm, u32, u32, u32, u32) {
    let c = config::<AllReduce>(&format!("elements={} ranks={ranks} dtype=bf16", bytes / 2));
    assert_eq!(c.protocol, Transport::Packets, "they were faster at every size measured");
    (c.algorithm, c.chunk, c.warps, c.senders, c.blocks)
}

#[test]
fn two_ranks_take_one_shot_at_every_size() {
    use Algorithm::OneShot;
    assert_eq!(all_reduce(2 << 10, 2), (OneShot, 1024, 4, 0, 1));
    assert_eq!(all_reduce(32 << 10, 2), (OneShot, 1024, 4, 0, 16));
    assert_eq!(all_reduce(512 << 10, 2), (OneShot, 2048, 8, 0, 128));
    assert_eq!(all_reduce(2 << 20, 2), (OneShot, 8192, 16, 0, 128));
    // Sending and reducing apart, as measured.
    assert_eq!(all_reduce(8 << 20, 2), (OneShot, 8192, 16, 32, 96));
    assert_eq!(all_reduce(64 << 20, 2), (OneShot, 8192, 16, 32, 96));
}

#[test]
fn more_ranks_take_two_shots_where_bytes_outweigh_a_hop() {
    use Algorithm::{OneShot, TwoShot};
    let first_two_shot = |ranks| (1..26).map(|log| 1u32 << log).find(|b| all_reduce(*b, ranks).0 == TwoShot);
    assert_eq!([2, 4, 8, 64].map(first_two_shot), [None, Some(512 << 10), Some(128 << 10), Some(16 << 10)]);
    assert_eq!(all_reduce(8 << 20, 8), (TwoShot, 4096, 16, 0, 128));
    assert_eq!(all_reduce(64 << 10, 8).0, OneShot);
}

#[test]
fn registered_buffers_take_two_shots_where_a_third_hop_pays_or_blocks_would_wait_for_each_tile() {
    let shots = |bytes: u32, ranks: u32| {
        config::<RegisteredAllReduce>(&format!("elements={} ranks={ranks} dtype=bf16", bytes / 2)).shots
    };
    assert_eq!(
        [2 << 10, 2 << 20, 64 << 20].map(|bytes| shots(bytes, 2)),
        [Shots::One, Shots::One, Shots::Two]
    );
    assert_eq!([64 << 10, 128 << 10].map(|bytes| shots(bytes, 8)), [Shots::One, Shots::Two]);
}

#[test]
fn defaults_are_legal_for_all_worlds_and_lengths() {
    for ranks in [2, 3, 8, 64] {
        for elements in [1, 7, 4096, 10007, 1 << 20, (1 << 22) + 1] {
            for dtype in ["f32", "bf16"] {
                let key = format!("elements={elements} ranks={ranks} dtype={dtype}");
                let all = [
                    config::<AllReduce>(&key).trace(32),
                    config::<AllReduce>(&format!("{key} in_place=true op=max")).trace(64),
                    config::<RegisteredAllReduce>(&key).trace(32),
                    config::<ReduceScatter>(&key).trace(64),
                    config::<AllGather>(&key).trace(32),
                    config::<AllToAll>(&key).trace(32),
                    config::<RaggedAllToAll>(&key.replace("elements", "capacity")).trace(64),
                    config::<Broadcast>(&format!("{key} root={}", ranks - 1)).trace(32),
                ];
                all.into_iter().for_each(|kernel| drop(kernel.unwrap_or_else(|e| panic!("{key}: {e}"))));
            }
        }
    }
}

#[track_caller]
fn refused<F: Family>(settings: &str, words: &[&str]) {
    let error = F::from_text(settings).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

/// All ranks' elements are 2^34.
#[test]
fn the_longest_vectors_are_gathered_in_every_way() {
    let ways = ["protocol=packets", "protocol=flags", "algorithm=pull protocol=flags"];
    for way in ways.iter().flat_map(|way| [false, true].map(|in_place| format!("in_place={in_place} {way}")))
    {
        let key = format!("=268435456 ranks=64 dtype=f32 {way}");
        AllGather::from_text(&format!("elements{key}")).unwrap().trace(32).unwrap();
        if !way.contains("pull") {
            RaggedAllToAll::from_text(&format!("capacity{key}")).unwrap().trace(32).unwrap();
        }
    }
}

#[test]
fn what_cannot_be_is_reported_by_field_value_and_what_is_allowed() {
    refused::<AllReduce>("elements=0 ranks=2 dtype=f32", &["elements", "= 0", "from 1 to"]);
    refused::<AllReduce>("elements=8 ranks=0 dtype=f32", &["ranks", "= 0", "1 to 64"]);
    refused::<AllReduce>("elements=8 ranks=2 dtype=fp8", &["dtype", "fp8", "f32, fp16, bf16"]);
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 op=product", &["op", "product", "sum, max, min, avg"]);
    refused::<AllReduce>("ranks=2 dtype=f32", &["no value for `elements`"]);
    refused::<AllReduce>(
        "elements=8 ranks=2 dtype=f32 warps=1 chunk=4096",
        &["chunk", "4096", "at most 1024"],
    );
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 algorithm=two-shot senders=8", &["senders", "8"]);
    refused::<AllReduce>(
        "elements=8 ranks=2 dtype=f32 algorithm=pull protocol=packets",
        &["protocol", "packets", "flags"],
    );
    refused::<AllGather>(
        "elements=8 ranks=2 dtype=f32 algorithm=pull protocol=packets",
        &["protocol", "packets", "flags"],
    );
    refused::<AllReduce>(
        "elements=8 ranks=2 dtype=f32 algorithm=multimem op=max",
        &["algorithm", "multimem", "max of f32", "switches"],
    );
    refused::<AllReduce>(
        "elements=8 ranks=2 dtype=bf16 algorithm=multimem op=avg",
        &["algorithm", "multimem", "avg of bf16", "switches"],
    );
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 hidden=8", &["hidden", "without a hook"]);
    refused::<AllReduce>(
        "elements=100 ranks=2 dtype=f32 hook=rms-norm hidden=8",
        &["hidden", "100 elements"],
    );
    refused::<AllReduce>("elements=100 ranks=2 dtype=f32 hook=rms-norm", &["hidden", "= 0"]);
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 weights=f32", &["weights", "f32", "without a hook"]);
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 plus_one=true", &["plus_one", "without a hook"]);
    refused::<AllReduce>("elements=8 ranks=2 dtype=f32 quantise=nvfp4", &["quantise", "without a hook"]);
    let norm = "elements=65536 ranks=2 dtype=bf16 hook=rms-norm hidden";
    for (form, said) in [
        ("256 normalised=true", ["normalised", "true", "`quantise`"]),
        ("256 quantise=fp8-token in_place=true", ["in_place", "true", "false with `quantise`"]),
        ("256 quantise=fp8-token scale_layout=128x4", ["scale_layout", "128x4", "row"]),
        ("32 quantise=nvfp4", ["hidden", "32", "a multiple of 64 up to 13312"]),
        ("16384 quantise=nvfp4 warps=16", ["hidden", "16384", "up to 13312"]),
        ("8 quantise=fp8-tensor", ["hidden", "= 8", "a multiple of 16"]),
    ] {
        refused::<AllReduce>(&format!("{norm}={form}"), &said);
    }
    let key = "elements=8 ranks=2 dtype=i32";
    for op in ["avg", "max-nan", "min-nan"] {
        let said = ["op", op, "sum, max or min of i32"];
        refused::<AllReduce>(&format!("{key} op={op}"), &said);
        refused::<RegisteredAllReduce>(&format!("{key} op={op}"), &said);
        refused::<ReduceScatter>(&format!("{key} op={op}"), &said);
    }
    refused::<AllReduce>(&format!("{key} hook=rms-norm hidden=8"), &["hook", "rms-norm", "none with i32"]);
    refused::<AllReduce>(&format!("{key} algorithm=multimem"), &["algorithm", "multimem", "sum of i32"]);
    refused::<AllReduce>(&format!("{key} protocol=packets"), &["protocol", "packets", "flags with i32"]);
    refused::<ReduceScatter>("elements=8 ranks=2 dtype=fp8", &["dtype", "fp8", "f32, fp16, bf16, i32"]);
    for dtype in ["i32", "fp8"] {
        let key = format!("elements=8 ranks=2 dtype={dtype}");
        assert_eq!(AllGather::from_text(&key).unwrap().protocol, Transport::Flags);
        refused::<AllGather>(
            &format!("{key} protocol=packets"),
            &["protocol", "packets", "flags with", dtype],
        );
    }
    refused::<Broadcast>("elements=8 ranks=2 dtype=f32 root=2", &["root", "= 2", "0 to 1"]);
    let key = "elements=96 ranks=4 dtype=f32";
    refused::<AllReduce>(&format!("{key} row=8"), &["row", "= 8", "1 with length=whole"]);
    refused::<AllReduce>(&format!("{key} length=each"), &["length", "each", "whole, host, device"]);
    refused::<AllReduce>(&format!("{key} length=host row=36"), &["elements", "= 96", "a multiple of 36"]);
    refused::<AllToAll>(&format!("{key} length=device row=32"), &["elements", "= 96", "32", "4 ranks"]);
    refused::<ReduceScatter>(
        &format!("{key} length=each in_place=true"),
        &["in_place", "true", "false where"],
    );
    refused::<AllGather>(&format!("{key} length=each in_place=true"), &["in_place", "true", "false where"]);
    let read = "length=each algorithm=pull protocol=flags";
    refused::<AllGather>(&format!("{key} {read}"), &["algorithm", "pull", "push where each rank"]);
    let long = "elements=268435456 ranks=64 dtype=f32 length=each";
    refused::<AllGather>(long, &["elements", "= 268435456", "32 bits"]);
    let norm = "elements=512 ranks=2 dtype=bf16 hook=rms-norm hidden=64 length=host";
    refused::<AllReduce>(&format!("{norm} row=32"), &["row", "= 32", "a multiple of 64"]);
}
