//! Every algorithm in every protocol, for worlds and lengths that do not divide, several rounds back to back.

use peerwarp::codegen::ir::mutate::{Mutation, Site, mutate};
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::families::collectives::{
    AllGather, AllGatherNodes, AllReduce, AllToAll, AllToAllNodes, Broadcast, BroadcastNodes, RaggedAllToAll,
    ReduceScatter, ReduceScatterNodes, RegisteredAllReduce,
};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::prelude::Family;
use proptest::prelude::*;

use crate::support::{ROUNDS, config, explore, run};

/// Worlds, and lengths of all kinds: of one element, odd ones, and of several tiles and a rest.
const SHAPES: [(u32, u32); 7] = [(2, 1), (2, 1024), (3, 777), (5, 2501), (8, 1031), (8, 4096), (1, 1031)];

const DTYPES: [&str; 3] = ["f32", "bf16", "fp16"];

#[test]
fn all_reduce() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for protocol in ["packets", "flags"] {
            for rest in
                ["algorithm=one-shot blocks=2", "algorithm=two-shot blocks=2", "algorithm=two-shot blocks=1"]
            {
                explore::<AllReduce>(&format!("{key} protocol={protocol} {rest} senders=0"), 2);
                explore::<AllReduce>(&format!("{key} protocol={protocol} {rest} senders=0 in_place=true"), 1);
            }
        }
        explore::<AllReduce>(&format!("{key} algorithm=one-shot blocks=2 senders=4"), 2);
        for op in ["max", "min", "max-nan", "min-nan"] {
            explore::<AllReduce>(&format!("{key} algorithm=one-shot blocks=1 op={op}"), 1);
        }
    }
}

/// What peers read where it is, in one shot and in two.
#[test]
fn all_reduce_by_windows() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        let key = format!("{key} protocol=flags senders=0");
        for rest in
            ["pull blocks=2", "pull blocks=1 in_place=true op=max", "pull-two-shot blocks=2 in_place=true"]
        {
            explore::<AllReduce>(&format!("{key} algorithm={rest}"), 2);
        }
        explore::<AllReduce>(&format!("{key} algorithm=pull-two-shot blocks=1"), 2);
        explore::<AllReduce>(&format!("{key} algorithm=multimem blocks=2"), 2);
        explore::<AllReduce>(&format!("{key} algorithm=multimem blocks=1 in_place=true"), 1);
    }
}

/// Where the caller has its vector, and in place.
#[test]
fn all_reduce_of_registered_buffers() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for rest in [
            "shots=one blocks=16",
            "shots=one blocks=1 op=max",
            "shots=two blocks=1 op=avg",
            "shots=two blocks=2",
            "shots=two blocks=1 op=min-nan",
        ] {
            explore::<RegisteredAllReduce>(&format!("{key} {rest}"), 2);
        }
    }
}

/// The kinds of what is found where a wait is left out, over some schedules.
fn without_wait(shots: &str, flag: &str) -> Vec<&'static str> {
    let config = config::<RegisteredAllReduce>(&format!(
        "elements=1792 ranks=3 dtype=f32 shots={shots} warps=1 chunk=256 blocks=2"
    ));
    let inputs = Inputs { seed: 0, rounds: ROUNDS, ..Inputs::default() };
    let problem = suite::of::<RegisteredAllReduce>().problem(&[config.into_variant()], &inputs).unwrap();
    let left_out = Mutation::Drop(Site::wait("exchange", flag));
    let session =
        SimSession::planted(problem.into(), &mut |kernel| *kernel = mutate(kernel, &left_out).unwrap());
    let session = session.unwrap();
    let found = |seed| session.run(&Options { seed, ..Options::default() }).err();
    let mut kinds: Vec<_> =
        (0..12).filter_map(found).flat_map(|found| found.list).map(|finding| finding.kind.name()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// A vector is read before its signal, overwritten where a peer still reads it, and so by the caller behind the launch.
#[test]
fn waits_for_registered_buffers_are_needed() {
    for (shots, flag) in
        [("one", "data_ready"), ("one", "tile_read"), ("two", "sums_ready"), ("two", "sums_read")]
    {
        let kinds = without_wait(shots, flag);
        assert!(kinds.contains(&"data-race"), "{flag}: {kinds:?}");
    }
}

#[test]
fn all_gather_by_windows() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for rest in ["blocks=2", "blocks=1 in_place=true"] {
            explore::<AllGather>(&format!("{key} algorithm=pull protocol=flags {rest}"), 2);
        }
    }
}

/// A family in both protocols, in place and not; `LAST` is the last rank.
fn both<F: Workload>(more: &str) {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let more = more.replace("LAST", &(ranks - 1).to_string());
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
    both::<ReduceScatter>("op=avg");
}

#[test]
fn all_gather() {
    both::<AllGather>("");
}

#[test]
fn all_to_all() {
    both::<AllToAll>("");
}

/// Counts differ by rank, round and seed: none, some, all, and more than there is room for.
#[test]
fn ragged_all_to_all() {
    for (i, (ranks, capacity)) in SHAPES.iter().enumerate() {
        // It is that of each pair of ranks.
        let capacity = capacity.div_ceil(*ranks);
        let key = format!("capacity={capacity} ranks={ranks} dtype={} warps=1 chunk=256", DTYPES[i % 3]);
        for protocol in ["packets", "flags"] {
            explore::<RaggedAllToAll>(&format!("{key} protocol={protocol} blocks=2"), 3);
            explore::<RaggedAllToAll>(&format!("{key} protocol={protocol} blocks=1 in_place=true"), 2);
        }
    }
}

/// Integers and bytes, of which every bit counts.
fn moved<F: Workload>(more: &str) {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let dtype = ["i32", "fp8"][i % 2];
        let key = format!("ranks={ranks} dtype={dtype} warps=1 chunk=256 blocks=2 {more}{elements}");
        explore::<F>(&key, 1);
        explore::<F>(&format!("{key} in_place=true"), 1);
    }
}

#[test]
fn integers_are_reduced() {
    for (i, (ranks, elements)) in SHAPES.iter().enumerate() {
        let op = ["sum", "max", "min"][i % 3];
        let key = format!("elements={elements} ranks={ranks} dtype=i32 op={op} warps=1 chunk=256");
        for algorithm in ["one-shot", "two-shot", "pull", "pull-two-shot"] {
            explore::<AllReduce>(&format!("{key} algorithm={algorithm} senders=0 blocks=2"), 1);
        }
        explore::<RegisteredAllReduce>(&format!("{key} shots=two blocks=2"), 1);
        explore::<ReduceScatter>(&format!("{key} blocks=2"), 1);
        explore::<ReduceScatter>(&format!("{key} blocks=1 in_place=true"), 1);
    }
}

#[test]
fn integers_and_bytes_are_moved_bit_for_bit() {
    moved::<AllGather>("elements=");
    moved::<AllGather>("algorithm=pull elements=");
    moved::<AllToAll>("elements=");
    moved::<Broadcast>("root=0 elements=");
    moved::<RaggedAllToAll>("capacity=");
}

/// What says lengths, and how long a row is; capacities of such rows that every number of ranks up to 4 divides.
const LENGTHS: [(&str, u32, u32); 5] =
    [("host", 1, 1716), ("device", 1, 2508), ("device", 8, 1056), ("host", 256, 3072), ("device", 512, 6144)];

/// A family in both protocols, in place and not, with lengths that launches say.
fn of_any_length<F: Workload>(more: &str) {
    for (i, (length, row, elements)) in LENGTHS.iter().enumerate() {
        let (ranks, dtype) = (2 + i % 3, DTYPES[i % 3]);
        let key = format!("elements={elements} ranks={ranks} dtype={dtype} length={length} row={row}");
        for protocol in ["packets", "flags"].iter().filter(|p| **p == "flags" || !more.contains("pull")) {
            let key = format!("{key} protocol={protocol} warps=1 chunk=256 {more}");
            explore::<F>(&format!("{key} blocks=2"), 2);
            explore::<F>(&format!("{key} blocks=1 in_place=true"), 1);
        }
    }
}

/// Nothing, all, more than the capacity, and what leaves a tile in part, in launches one after another.
#[test]
fn all_reduce_of_any_length() {
    for algorithm in ["one-shot", "two-shot"] {
        of_any_length::<AllReduce>(&format!("algorithm={algorithm} senders=0"));
    }
    for (i, (length, row, elements)) in LENGTHS.iter().enumerate() {
        let (ranks, dtype) = (2 + i % 3, DTYPES[i % 3]);
        let key =
            format!("elements={elements} ranks={ranks} dtype={dtype} length={length} row={row} warps=1");
        explore::<AllReduce>(&format!("{key} chunk=256 algorithm=one-shot senders=4 blocks=2"), 2);
        for algorithm in ["pull", "pull-two-shot", "multimem"] {
            let key = format!("{key} chunk=256 senders=0 protocol=flags algorithm={algorithm}");
            explore::<AllReduce>(&format!("{key} blocks=2"), 2);
        }
        explore::<AllReduce>(&format!("{key} chunk=256 algorithm=one-shot blocks=1 senders=0 op=max"), 1);
        // One tile is more than the capacity.
        explore::<AllReduce>(
            &format!("elements=100 ranks={ranks} dtype={dtype} length={length} blocks=2"),
            2,
        );
    }
}

#[test]
fn all_reduce_with_a_norm_of_any_length() {
    let key = "elements=2560 ranks=3 dtype=bf16 hook=rms-norm hidden=320 warps=4 blocks=2 senders=0";
    for (length, row) in [("host", 320), ("device", 640)] {
        for rest in ["one-shot", "two-shot", "pull-two-shot protocol=flags"] {
            explore::<AllReduce>(&format!("{key} length={length} row={row} algorithm={rest}"), 2);
        }
        for form in ["fp8-token normalised=true", "nvfp4 scale_layout=128x4"] {
            explore::<AllReduce>(
                &format!("{key} length={length} row={row} algorithm=one-shot quantise={form}"),
                1,
            );
        }
    }
}

#[test]
fn others_of_any_length() {
    of_any_length::<ReduceScatter>("op=avg");
    of_any_length::<AllGather>("");
    of_any_length::<AllGather>("algorithm=pull");
    of_any_length::<AllToAll>("");
    of_any_length::<Broadcast>("root=1");
}

/// Each rank has a length of its own; some have fewer rows than they say, and the tensor of all ranks has no room for the last ones.
#[test]
fn ranks_have_lengths_of_their_own() {
    for (i, (_, row, elements)) in LENGTHS.iter().enumerate() {
        let (ranks, dtype) = (2 + i as u32 % 3, DTYPES[i % 3]);
        let key = format!("ranks={ranks} dtype={dtype} length=each row={row} warps=1 chunk=256");
        for protocol in ["packets", "flags"] {
            for blocks in [1, 2] {
                let key = format!("{key} protocol={protocol} blocks={blocks} elements");
                explore::<AllGather>(&format!("{key}={}", elements / ranks), 3);
                explore::<ReduceScatter>(&format!("{key}={elements} op=avg"), 3);
            }
        }
    }
    explore::<AllGather>("elements=600 ranks=3 dtype=fp8 length=each row=3 warps=1 chunk=256", 4);
    explore::<ReduceScatter>("elements=1800 ranks=3 dtype=i32 length=each row=3 warps=1 chunk=256", 4);
}

#[test]
fn broadcast() {
    both::<Broadcast>("root=0");
    both::<Broadcast>("root=LAST");
}

/// Several nodes of several ranks, and of one; of one element, odd lengths, and of several tiles.
fn over_nodes<F: Workload>(rest: &str) {
    let shapes = [(4, 2, 1031), (3, 3, 1), (3, 3, 777), (6, 2, 1), (6, 2, 2501), (6, 3, 1024)];
    for (i, (ranks, nodes, elements)) in shapes.iter().enumerate() {
        let key = format!("elements={elements} ranks={ranks} nodes={nodes} dtype={}", DTYPES[i % 3]);
        let rest = rest.replace("LAST", &(ranks - 1).to_string());
        for protocol in ["packets", "flags"] {
            for blocks in [1, 2] {
                explore::<F>(
                    &format!("{key} {rest} warps=4 chunk=256 protocol={protocol} blocks={blocks}"),
                    2,
                );
            }
        }
    }
}

#[test]
fn all_gather_over_nodes() {
    over_nodes::<AllGatherNodes>("");
}

#[test]
fn broadcast_over_nodes() {
    over_nodes::<BroadcastNodes>("root=0");
    over_nodes::<BroadcastNodes>("root=LAST");
}

#[test]
fn reduce_scatter_over_nodes() {
    over_nodes::<ReduceScatterNodes>("op=sum");
    over_nodes::<ReduceScatterNodes>("op=max");
    over_nodes::<ReduceScatterNodes>("op=avg");
}

#[test]
fn all_to_all_over_nodes() {
    over_nodes::<AllToAllNodes>("");
}

#[test]
fn all_reduce_with_a_norm_behind_it() {
    for (i, (ranks, rows, hidden)) in [(2, 5, 64), (3, 7, 2880), (4, 1, 136), (1, 3, 136)].iter().enumerate()
    {
        let (elements, dtype) = (rows * hidden, DTYPES[i % 3]);
        let key =
            format!("elements={elements} ranks={ranks} dtype={dtype} hook=rms-norm hidden={hidden} warps=4");
        for rest in [
            "one-shot blocks=2",
            "two-shot blocks=1",
            "two-shot blocks=2 protocol=flags in_place=true",
            "pull-two-shot blocks=2 protocol=flags",
        ] {
            explore::<AllReduce>(&format!("{key} senders=0 algorithm={rest}"), 2);
        }
    }
}

/// To the bit, as squares of these rows add up exactly; rows whose scales fill tiles of 128x4 in part, and columns.
#[test]
fn all_reduce_with_a_norm_that_quantises() {
    let forms = [
        "quantise=fp8-tensor weights=f32",
        "quantise=fp8-token plus_one=true normalised=true",
        "quantise=nvfp4 weights=f32 plus_one=true",
        "quantise=nvfp4 normalised=true scale_layout=128x4",
        "quantise=nvfp4 scale_layout=column op=avg",
        "weights=f32",
        "plus_one=true in_place=true",
    ];
    let algorithms = [
        "one-shot blocks=2",
        "two-shot blocks=2 protocol=flags",
        "two-shot blocks=1",
        "pull blocks=2 protocol=flags",
        "pull-two-shot blocks=2 protocol=flags",
    ];
    for (i, form) in forms.iter().enumerate() {
        let (ranks, rows, hidden) = [(2, 5, 64), (3, 7, 320), (4, 1, 192), (1, 3, 128)][i % 4];
        let (elements, dtype) = (rows * hidden, DTYPES[i % 3]);
        let key =
            format!("elements={elements} ranks={ranks} dtype={dtype} hook=rms-norm hidden={hidden} {form}");
        for algorithm in [algorithms[i % 5], algorithms[(i + 2) % 5]] {
            explore::<AllReduce>(&format!("{key} senders=0 warps=4 algorithm={algorithm}"), 2);
        }
    }
}

/// What goes over the links is what the limits of `bench` are made of, where vectors are whole packets.
#[test]
fn links_carry_what_work_says() {
    let one = |config: &dyn Fn() -> (u64, u64)| {
        let (work, wire) = config();
        assert_eq!(work, wire);
    };
    one(&|| wire::<AllReduce>("elements=2048 ranks=4 dtype=f32 algorithm=one-shot"));
    one(&|| wire::<AllReduce>("elements=4096 ranks=4 dtype=f32 algorithm=two-shot chunk=1024 blocks=1"));
    one(&|| wire::<AllReduce>("elements=2048 ranks=4 dtype=f32 algorithm=pull protocol=flags"));
    one(&|| {
        wire::<AllReduce>(
            "elements=4096 ranks=4 dtype=f32 algorithm=pull-two-shot protocol=flags chunk=1024 blocks=1",
        )
    });
    one(&|| wire::<RegisteredAllReduce>("elements=2048 ranks=4 dtype=f32 shots=one"));
    one(&|| wire::<RegisteredAllReduce>("elements=4096 ranks=4 dtype=f32 shots=two chunk=1024 blocks=1"));
    one(&|| wire::<AllGather>("elements=1024 ranks=4 dtype=bf16 algorithm=pull protocol=flags"));
    one(&|| wire::<ReduceScatter>("elements=4096 ranks=4 dtype=f32"));
    one(&|| wire::<AllGather>("elements=1024 ranks=4 dtype=bf16"));
    one(&|| wire::<AllToAll>("elements=4096 ranks=4 dtype=bf16"));
    one(&|| wire::<Broadcast>("elements=1024 ranks=4 dtype=fp16 root=3"));
}

/// Bytes of a round, as a workload says and as they were.
fn wire<F: Workload>(settings: &str) -> (u64, u64) {
    let config = config::<F>(settings);
    let ran = run(&config, 1, Strategy::Random);
    let bytes: u64 = config.work().bytes.iter().flatten().sum();
    (bytes, ran.report.bytes_on_wire() / u64::from(ROUNDS))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn any_all_reduce_is_right(
        elements in 1u32..3000,
        ranks in 1u32..7,
        dtype in prop::sample::select(DTYPES.to_vec()),
        op in prop::sample::select(vec!["sum", "max", "min"]),
        protocol in prop::sample::select(vec!["packets", "flags"]),
        algorithm in prop::sample::select(vec!["one-shot", "two-shot"]),
        chunk in prop::sample::select(vec![256u32, 512]),
        blocks in prop::sample::select(vec![1u32, 2, 4]),
        in_place: bool,
        seed: u64,
    ) {
        let config = config::<AllReduce>(&format!(
            "elements={elements} ranks={ranks} dtype={dtype} op={op} protocol={protocol} algorithm={algorithm} \
             chunk={chunk} blocks={blocks} in_place={in_place} warps=1 senders=0"
        ));
        run(&config, seed, Strategy::Adversarial);
    }

    #[test]
    fn any_length_is_right(
        rows in 1u32..400,
        row in prop::sample::select(vec![1u32, 3, 8, 100, 256, 512]),
        ranks in 1u32..6,
        dtype in prop::sample::select(DTYPES.to_vec()),
        protocol in prop::sample::select(vec!["packets", "flags"]),
        length in prop::sample::select(vec!["host", "device"]),
        blocks in prop::sample::select(vec![1u32, 4]),
        in_place: bool,
        which in 0..8,
        seed: u64,
    ) {
        let rows = rows.min(4000 / row).max(1);
        let with = |length: &str, parts: u32, rest: &str| {
            format!(
                "elements={} row={row} ranks={ranks} dtype={dtype} protocol={protocol} length={length} chunk=256 \
                 blocks={blocks} warps=1 {rest}",
                rows * row * parts
            )
        };
        let place = format!("in_place={in_place}");
        let of = |parts, rest: &str| with(length, parts, &format!("{place} {rest}"));
        match which {
            0 => drop(run(&config::<AllReduce>(&of(1, "algorithm=one-shot senders=0")), seed, Strategy::Adversarial)),
            1 => drop(run(&config::<AllReduce>(&of(1, "algorithm=two-shot senders=0")), seed, Strategy::Adversarial)),
            2 => drop(run(&config::<ReduceScatter>(&of(ranks, "")), seed, Strategy::Adversarial)),
            3 => drop(run(&config::<AllGather>(&of(1, "")), seed, Strategy::Adversarial)),
            4 => drop(run(&config::<AllToAll>(&of(ranks, "")), seed, Strategy::Adversarial)),
            5 => drop(run(&config::<AllGather>(&with("each", 1, "")), seed, Strategy::Adversarial)),
            6 => drop(run(&config::<ReduceScatter>(&with("each", ranks, "op=max")), seed, Strategy::Adversarial)),
            _ => drop(run(&config::<Broadcast>(&of(1, "")), seed, Strategy::Adversarial)),
        }
    }

    #[test]
    fn any_other_collective_is_right(
        elements in 1u32..3000,
        ranks in 1u32..7,
        dtype in prop::sample::select(DTYPES.to_vec()),
        protocol in prop::sample::select(vec!["packets", "flags"]),
        blocks in prop::sample::select(vec![1u32, 4]),
        in_place: bool,
        which in 0..5,
        seed: u64,
    ) {
        let settings = format!(
            "elements={elements} ranks={ranks} dtype={dtype} protocol={protocol} chunk=256 blocks={blocks} \
             in_place={in_place} warps=1"
        );
        match which {
            0 => drop(run(&config::<ReduceScatter>(&settings), seed, Strategy::Adversarial)),
            1 => drop(run(&config::<AllGather>(&settings), seed, Strategy::Adversarial)),
            2 => drop(run(&config::<AllToAll>(&settings), seed, Strategy::Adversarial)),
            3 => {
                let settings = settings.replace("elements", "capacity");
                drop(run(&config::<RaggedAllToAll>(&settings), seed, Strategy::Adversarial));
            }
            _ => drop(run(&config::<Broadcast>(&settings), seed, Strategy::Adversarial)),
        }
    }
}
