//! Far channels by NCCL's GIN.
//!
//! Compilers that `PEERWARP_NVCC` and `PEERWARP_CLANG` name compile the sources: for CUDA with the headers of NCCL in the folder that
//! `PEERWARP_NCCL` names, for HIP with declarations of `stub/nccl_device.h`, since RCCL's headers are in no package here.

use crate::compile_emitted::{clang, compiler, complaint, folder};
use crate::printed::difference::difference;
use crate::printed::post::post;
use crate::printed::{ALL, emitted_with};
use crate::together::Written;

use std::path::Path;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::Kernel;
use peerwarp_codegen::print::{EmitOptions, FarEngine, GIN_DEPTH, PrintError, Source};

const GIN: EmitOptions = EmitOptions { timeline: None, lines: false, far: FarEngine::Gin };

fn post_by(far: FarEngine, target: &str) -> Source {
    emitted_with(post, target, &EmitOptions { far, ..GIN }).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn roles_wait_for_room_and_put_by_themselves() {
    let [ring, gin] = FarEngine::ALL.map(|far| post_by(far, "cuda:sm_90a"));
    insta::assert_snapshot!("post", difference(ring.roles(), gin.roles()));
    for said in ["PeerwarpGin far;", "const void* comm;", "POST_FAR_CHANNELS 6", "POST_FAR_DEPTH 256"] {
        assert!(gin.abi.contains(said), "{said} is not in\n{}", gin.abi);
    }
    assert!(gin.text.contains("#include <nccl_device.h>") && !ring.text.contains("nccl"));
    let hip = post_by(FarEngine::Gin, "hip:gfx942");
    let puts = |source: &Source| -> Vec<String> {
        let lines = source.roles().lines().map(str::trim).filter(|l| l.contains("_far"));
        lines.map(str::to_owned).collect()
    };
    assert_eq!(puts(&gin), puts(&hip));
}

/// Ranks of all nodes.
#[derive(Debug)]
struct Wide(u32);

#[derive(Message)]
#[message(config = Wide)]
struct Pair {
    #[len(|_| 8)]
    row: Field<u32>,
    #[len(|_| 4)]
    scale: Field<f32>,
}

#[derive(KernelArgs)]
#[args(config = Wide)]
struct WideArgs {
    #[len(|_| 8)]
    x: Ptr<u32>,
    #[channel(|c| ChannelShape::new(Transport::Far, c.0, Slots::ByNumber(1)))]
    pair: Channel<Pair>,
    epoch: EpochWord,
}

/// A message of two fields from each rank to all others.
#[kernel]
fn wide(c: &Wide, a: &WideArgs) {
    let pair = a.pair.open(a.epoch.begin());
    role("send", 1, |_| {
        let out = pair.to(Peers::others()).slot(0);
        out.field(pair.row).put(0, a.x.load(0, 8));
        out.field(pair.scale).put(0, splat(1.0f32, 4));
        out.done();
        pair.settle();
    });
    role("receive", 1, |_| {
        let _ = pair.wait_others(1);
    });
    pair.credits();
    let _ = c;
}

fn to_others(nodes: u32, warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("wide", nodes, warp_size, 1);
    meta.nodes = nodes;
    trace_args::<WideArgs>(meta, &Wide(nodes), wide).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn puts_at_once_fit_into_the_queues() {
    let fits = emitted_with(|lanes| to_others(GIN_DEPTH / 2 + 1, lanes), "cuda:sm_90a", &GIN).unwrap();
    assert!(fits.text.contains(&format!("far_depth = {GIN_DEPTH};")), "{}", fits.roles());
    let more: fn(u32) -> Kernel = |lanes| to_others(GIN_DEPTH / 2 + 2, lanes);
    let refused = emitted_with(more, "cuda:sm_90a", &GIN).unwrap_err();
    let PrintError::FarDepth { ranks, each, puts, depth, ref counts, .. } = refused else {
        panic!("{refused}")
    };
    assert_eq!((ranks, each, puts, depth, counts.as_str()), (129, 2, 258, 256, "pair_arrived"));
    let said = refused.to_string();
    assert!(
        said.contains("2 messages at once to each of 129 ranks") && said.contains("queues for 256"),
        "{said}"
    );
    assert!(emitted_with(more, "cuda:sm_90a", &EmitOptions { far: FarEngine::Ring, ..GIN }).is_ok());
}

#[test]
fn near_kernels_have_nothing_for_gin() {
    for (name, make) in ALL {
        match emitted_with(*make, "cuda:sm_90a", &GIN) {
            Ok(source) => assert!(source.text.contains("struct Far {"), "{name}"),
            Err(e) => assert!(matches!(&e, PrintError::NothingFar { .. }), "{name}: {e}"),
        }
    }
    let near = emitted_with(ALL[0].1, "cuda:sm_90a", &GIN).unwrap_err().to_string();
    assert!(near.starts_with("`token_copy` has no far channels, so there is nothing"), "{near}");
}

#[test]
fn nvcc_compiles_it_with_the_headers_of_nccl() {
    let (Some(nvcc), Some(nccl)) = (compiler("PEERWARP_NVCC"), compiler("PEERWARP_NCCL")) else { return };
    let written = Written::new(&folder("gin_cuda"), "post", &post_by(FarEngine::Gin, "cuda:sm_90a"));
    let said = complaint(&written.path, &|source: &Path, out: &Path| {
        let mut command = crate::compile_emitted::nvcc(&nvcc, "sm_90a")(source, out);
        command.arg("-I").arg(&nccl);
        command
    });
    assert_eq!(said, None);
}

#[test]
fn clang_compiles_it_with_declarations_of_rccl() {
    let Some(compiler) = compiler("PEERWARP_CLANG") else { return };
    let dir = folder("gin_hip");
    let written = Written::new(&dir, "post", &post_by(FarEngine::Gin, "hip:gfx942"));
    let stub = Path::new(env!("CARGO_MANIFEST_DIR")).join("stub");
    let said = complaint(&written.path, &|source: &Path, out: &Path| {
        let mut command = clang(&compiler, "gfx942", &dir)(source, out);
        // What is declared has no code to link.
        command.arg("-I").arg(&stub).args(["-Wno-undefined-inline", "-c", "-emit-llvm"]);
        command
    });
    assert_eq!(said, None);
}
