//! Collectives: every algorithm, protocol and type.

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::harness::workload::Workload;

use super::cases::{Cases, cases};

const DTYPES: [&str; 3] = ["f32", "bf16", "fp16"];

/// One element, no whole vector of 16 bytes, and chunks with a rest for each block.
const LENGTHS: [u32; 3] = [1, 1003, 65_539];

/// With every choice of these fields' values, for each of these types and each length.
fn every<F: Workload>(cases: &mut Cases<'_>, length: &str, dtypes: &[&str], fields: &[(&str, &[&str])]) {
    let lengths = LENGTHS.map(|n| n.to_string());
    let lengths = lengths.each_ref().map(String::as_str);
    let all = [&[("ranks", &["2"][..]), ("dtype", dtypes), (length, &lengths)][..], fields].concat();
    let choices = all.iter().fold(vec![String::new()], |choices, (name, values)| {
        let with = |value| choices.iter().map(move |c| format!("{c} {name}={value}"));
        values.iter().flat_map(with).collect()
    });
    choices.iter().for_each(|settings| cases.run::<F>(settings));
}

const PROTOCOLS: (&str, &[&str]) = ("protocol", &["packets", "flags"]);
const IN_PLACE: (&str, &[&str]) = ("in_place", &["false", "true"]);

#[test]
fn all_reduces_are_right_to_the_bit() {
    cases("all_reduce", 66, |cases| {
        let algorithms = ("algorithm", &["one-shot", "two-shot", "pull", "pull-two-shot"][..]);
        every::<AllReduce>(cases, "elements", &DTYPES, &[algorithms, PROTOCOLS]);
        every::<AllReduce>(cases, "elements", &["bf16"], &[("op", &["max", "min"]), IN_PLACE]);
    });
}

/// Lengths that launches say: of rows of one element, and of whole packets.
#[test]
fn collectives_of_any_length_are_right_to_the_bit() {
    cases("any_length", 44, |cases| {
        for (row, protocol) in [(1, "packets"), (1, "flags"), (8, "packets"), (8, "flags")] {
            let key = format!("ranks=2 row={row} protocol={protocol} elements=65536 length");
            for length in ["host", "device"] {
                let key = format!("{key}={length}");
                for algorithm in ["one-shot", "two-shot", "pull"] {
                    cases.run::<AllReduce>(&format!("{key} dtype=bf16 algorithm={algorithm}"));
                }
                cases.run::<ReduceScatter>(&format!("{key} dtype=f32"));
                cases.run::<AllGather>(&format!("{key} dtype=bf16"));
                cases.run::<AllToAll>(&format!("{key} dtype=fp16"));
                cases.run::<Broadcast>(&format!("{key} dtype=bf16 root=1"));
            }
            cases.run::<AllGather>(&format!("{key}=each dtype=bf16"));
            cases.run::<ReduceScatter>(&format!("{key}=each dtype=f32"));
        }
    });
}

/// Squares of these rows add up exactly, so that quantised rows and their scales are right to the bit, too.
#[test]
fn all_reduces_with_norms_that_quantise_are_right_to_the_bit() {
    cases("all_reduce with a norm", 28, |cases| {
        for form in [
            "quantise=fp8-tensor weights=f32",
            "quantise=fp8-token plus_one=true normalised=true",
            "quantise=nvfp4 weights=f32 plus_one=true",
            "quantise=nvfp4 normalised=true scale_layout=128x4",
            "quantise=nvfp4 scale_layout=column op=avg",
            "weights=f32",
            "plus_one=true in_place=true",
        ] {
            for (rows, hidden) in [(5, 64), (33, 4096)] {
                let key = format!("elements={} ranks=2 hook=rms-norm hidden={hidden} {form}", rows * hidden);
                for (dtype, algorithm) in [
                    ("bf16", "one-shot"),
                    ("fp16", "two-shot protocol=packets"),
                    ("bf16", "two-shot protocol=flags"),
                    ("f32", "pull-two-shot protocol=flags"),
                ] {
                    cases.run::<AllReduce>(&format!("{key} dtype={dtype} algorithm={algorithm} senders=0"));
                }
            }
        }
    });
}

#[test]
fn all_reduces_of_registered_buffers_are_right_to_the_bit() {
    cases("registered_all_reduce", 24, |cases| {
        let shots = ("shots", &["one", "two"][..]);
        every::<RegisteredAllReduce>(cases, "elements", &DTYPES, &[shots]);
        every::<RegisteredAllReduce>(cases, "elements", &["bf16"], &[("op", &["max"]), shots]);
    });
}

#[test]
fn all_gathers_are_right_to_the_bit() {
    cases("all_gather", 30, |cases| {
        every::<AllGather>(cases, "elements", &DTYPES, &[("algorithm", &["push", "pull"]), PROTOCOLS]);
        every::<AllGather>(cases, "elements", &["fp16"], &[PROTOCOLS, IN_PLACE]);
    });
}

#[test]
fn reduce_scatters_are_right_to_the_bit() {
    cases("reduce_scatter", 24, |cases| {
        every::<ReduceScatter>(cases, "elements", &DTYPES, &[PROTOCOLS]);
        every::<ReduceScatter>(cases, "elements", &["f32"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn all_to_alls_are_right_to_the_bit() {
    cases("all_to_all", 24, |cases| {
        every::<AllToAll>(cases, "elements", &DTYPES, &[PROTOCOLS]);
        every::<AllToAll>(cases, "elements", &["bf16"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn ragged_all_to_alls_are_right_to_the_bit() {
    cases("ragged_all_to_all", 24, |cases| {
        every::<RaggedAllToAll>(cases, "capacity", &DTYPES, &[PROTOCOLS]);
        every::<RaggedAllToAll>(cases, "capacity", &["f32"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}

#[test]
fn broadcasts_are_right_to_the_bit() {
    cases("broadcast", 30, |cases| {
        every::<Broadcast>(cases, "elements", &DTYPES, &[PROTOCOLS, ("root", &["0", "1"])]);
        every::<Broadcast>(cases, "elements", &["fp16"], &[PROTOCOLS, ("in_place", &["true"])]);
    });
}
