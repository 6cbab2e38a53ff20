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
    let with = |more: &[(&'static str, &'static str)]| {
        let keys = ["elements", "ranks", "dtype"];
        let (key, rest) = (&more[..3], &more[3..]);
        assert!(key.iter().zip(keys).all(|((name, _), key)| *name == key));
        [key, rest].concat()
    };
    let small = [("elements", "10007"), ("ranks", "5"), ("dtype", "bf16")];
    let large = [("elements", "4194304"), ("ranks", "8"), ("dtype", "bf16")];
    let wide = [("elements", "1048576"), ("ranks", "64"), ("dtype", "f32")];
    let norm = [
        ("elements", "1048576"),
        ("ranks", "8"),
        ("dtype", "bf16"),
        ("hook", "rms-norm"),
        ("hidden", "8192"),
    ];
    let one_shot =
        [&large[..], &[("algorithm", "one-shot"), ("senders", "32"), ("chunk", "16384"), ("warps", "16")]];
    // A launch takes tiles of two and of three ranks at once.
    let tiles_of = |ranks| {
        let few = [("elements", "512"), ("ranks", ranks), ("dtype", "bf16")];
        let one_shot = [&few[..], &[("algorithm", "one-shot"), ("protocol", "packets")]].concat();
        let source = source::<AllReduce>(&one_shot, target);
        assert!(
            source.text.contains("series<") && source.text.contains("take_packets("),
            "no tiles are taken at once"
        );
        source
    };
    let pull = [&large[..], &[("algorithm", "pull-two-shot"), ("protocol", "flags")]].concat();
    distinct(vec![
        source::<AllReduce>(&with(&small), target),
        source::<AllReduce>(&with(&large), target),
        source::<AllReduce>(&with(&wide), target),
        source::<AllReduce>(&with(&norm), target),
        source::<AllReduce>(&with(&one_shot.concat()), target),
        source::<AllReduce>(&with(&pull), target),
        source::<RegisteredAllReduce>(&with(&small), target),
        source::<RegisteredAllReduce>(&with(&large), target),
        tiles_of("2"),
        tiles_of("3"),
        source::<ReduceScatter>(&with(&small), target),
        source::<ReduceScatter>(&with(&large), target),
        source::<AllGather>(&with(&large), target),
        source::<AllToAll>(&with(&small), target),
        source::<RaggedAllToAll>(&[("capacity", "10007"), ("ranks", "5"), ("dtype", "bf16")], target),
        source::<Broadcast>(&with(&large), target),
    ])
}

/// What NVIDIA's GPUs alone can.
fn by_the_switch() -> Vec<Source> {
    let of = |dtype, op| {
        let key = [("elements", "10007"), ("ranks", "5"), ("dtype", dtype), ("op", op)];
        let settings = [&key[..], &[("algorithm", "multimem"), ("protocol", "flags")]].concat();
        source::<AllReduce>(&settings, "cuda:sm_90a")
    };
    vec![of("bf16", "sum"), of("fp16", "max"), of("bf16", "min"), of("f32", "sum")]
}

#[test]
fn for_sm_90a() {
    let Some(nvcc) = tool(Tool::Nvcc) else { return };
    let sources = [sources("cuda:sm_90a"), by_the_switch()].concat();
    sources.par_iter().for_each(|source| drop(nvidia::compiled(&nvcc, source)));
}

#[test]
fn for_gfx942() {
    let (Some(clang), Some(readelf)) = (tool(Tool::Clang), tool(Tool::Readelf)) else { return };
    let dir = amd::folder_with_prelude("amd_collectives");
    for source in sources("hip:gfx942") {
        amd::compiled(&clang, &readelf, &dir, &source, "gfx942");
    }
}
