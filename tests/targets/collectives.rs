//! Collectives compile for both vendors, and keep everything in registers.

use peerwarp::build::toolchain::Tool;
use peerwarp::codegen::print::Source;
use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use rayon::prelude::*;

use super::{amd, distinct, nvidia, source, tool};

/// Small worlds and large ones, long vectors and a rest, tiles of the most registers.
fn sources(target: &str) -> Vec<Source> {
    let small = "elements=10007 ranks=5 dtype=bf16";
    let large = "elements=4194304 ranks=8 dtype=bf16";
    let long = "elements=1048576";
    let norm = |form: &str| format!("{long} ranks=8 dtype=bf16 hook=rms-norm hidden=8192 {form}");
    let one_shot = format!("{large} algorithm=one-shot senders=32 chunk=16384 warps=16");
    let pull = format!("{large} algorithm=pull-two-shot protocol=flags");
    // A launch takes tiles of two and of three ranks at once.
    let tiles_of = |ranks| {
        let few = format!("elements=512 ranks={ranks} dtype=bf16 algorithm=one-shot protocol=packets");
        let source = source::<AllReduce>(&few, target);
        assert!(
            source.text.contains("series<") && source.text.contains("take_packets("),
            "no tiles are taken at once"
        );
        source
    };
    distinct(vec![
        source::<AllReduce>(small, target),
        source::<AllReduce>(large, target),
        source::<AllReduce>(&format!("{long} ranks=64 dtype=f32"), target),
        source::<AllReduce>(&norm(""), target),
        source::<AllReduce>(&norm("quantise=fp8-tensor plus_one=true"), target),
        source::<AllReduce>(&one_shot, target),
        source::<AllReduce>(&pull, target),
        source::<RegisteredAllReduce>(small, target),
        source::<RegisteredAllReduce>(large, target),
        tiles_of(2),
        tiles_of(3),
        source::<ReduceScatter>(small, target),
        source::<ReduceScatter>(large, target),
        source::<AllGather>(large, target),
        source::<AllToAll>(small, target),
        source::<RaggedAllToAll>("capacity=10007 ranks=5 dtype=bf16", target),
        source::<Broadcast>(large, target),
        source::<AllReduce>(&format!("{large} length=device"), target),
        source::<AllReduce>(
            &format!("{large} length=host row=8 algorithm=one-shot chunk=16384 warps=16"),
            target,
        ),
        source::<ReduceScatter>(&format!("{large} length=each row=8"), target),
        source::<AllGather>(&format!("{large} length=each row=8"), target),
        source::<AllToAll>(&format!("{large} length=device"), target),
        source::<Broadcast>(&format!("{large} length=host"), target),
    ])
}

/// Rows of a norm that are quantised. On gfx942 some registers spill, as they do of the same norm that quantises nothing.
fn rows_with_scales() -> Vec<Source> {
    let of = |form: &str| {
        let key = "elements=1048576 ranks=8 dtype=bf16 hook=rms-norm hidden=4096";
        source::<AllReduce>(&format!("{key} {form}"), "cuda:sm_90a")
    };
    vec![
        of("quantise=fp8-token weights=f32 normalised=true"),
        of("quantise=nvfp4 scale_layout=128x4"),
        of("quantise=fp8-tensor plus_one=true"),
    ]
}

/// What NVIDIA's GPUs alone can.
fn by_the_switch() -> Vec<Source> {
    let of = |dtype, op| {
        let key = format!("elements=10007 ranks=5 dtype={dtype} op={op}");
        source::<AllReduce>(&format!("{key} algorithm=multimem protocol=flags"), "cuda:sm_90a")
    };
    vec![of("bf16", "sum"), of("fp16", "max"), of("bf16", "min"), of("f32", "sum")]
}

#[test]
fn for_sm_90a() {
    let Some(nvcc) = tool(Tool::Nvcc) else { return };
    let sources = distinct([sources("cuda:sm_90a"), by_the_switch(), rows_with_scales()].concat());
    // The compiler reads its own headers once a unit.
    sources.par_chunks(sources.len().div_ceil(2)).for_each(|sources| {
        let text: String = sources.iter().map(|source| &source.text[..]).collect();
        nvidia::compiled_text(&nvcc, &format!("from_{}", sources[0].file_name), &text);
    });
}

#[test]
fn for_gfx942() {
    let (Some(clang), Some(readelf)) = (tool(Tool::Clang), tool(Tool::Readelf)) else { return };
    let dir = amd::folder_with_prelude("amd_collectives");
    for source in sources("hip:gfx942") {
        amd::compiled(&clang, &readelf, &dir, &source, "gfx942");
    }
}
