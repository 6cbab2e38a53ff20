//! Who gives an address, a handle or a module answers for it, with `unsafe`.

use std::sync::Arc;

use peerwarp::families::moe::{MoeRank, Tokens};
use peerwarp::runtime::World;
use peerwarp::runtime::gpu::{Gpu, RawEvent, RawFunction, RawGraph, RawModule, RawStream, SharedBlock};
use peerwarp::runtime::handles::{Graph, LoadedKernel};
use peerwarp::runtime::op::{RankOp, RawTensor, StreamRef};

fn memory(world: &World, block: &SharedBlock) {
    let gpu = &world.members()[0].gpu;
    gpu.free(0x1000).unwrap();
    gpu.upload(0x1000, &[0; 64]).unwrap();
    gpu.download(0x1000, &mut [0; 64]).unwrap();
    gpu.fill(0x1000, 64, 0, RawStream::DEFAULT).unwrap();
    gpu.free_shared(block).unwrap();
}

fn handles(gpu: &dyn Gpu, event: RawEvent, module: RawModule, graph: RawGraph) {
    gpu.destroy_stream(RawStream::DEFAULT).unwrap();
    gpu.destroy_event(event).unwrap();
    gpu.destroy_graph(graph).unwrap();
    gpu.unload(module).unwrap();
    let _ = (RawStream::from_raw(1), RawEvent::from_raw(1), RawModule::from_raw(1));
}

fn launches(gpu: &dyn Gpu, function: RawFunction, graph: RawGraph, rank: &mut RankOp) {
    gpu.launch(function, &Default::default(), &[], RawStream::DEFAULT).unwrap();
    gpu.launch_graph(graph, RawStream::DEFAULT).unwrap();
    rank.launch_raw(0, &[0x1000], RawStream::DEFAULT).unwrap();
}

fn rounds(rank: &mut MoeRank, tokens: &Tokens) {
    let routed = rank.dispatch_raw(tokens, RawStream::DEFAULT).unwrap();
    rank.combine_raw(routed, 0x1000, 0x2000, RawStream::DEFAULT).unwrap();
}

fn replays(graph: &Graph) {
    graph.launch(RawStream::DEFAULT).unwrap();
}

fn loads(gpu: &Arc<dyn Gpu>) {
    gpu.load(&[1, 2, 3]).unwrap();
    LoadedKernel::new(gpu, &[1, 2, 3], "k", Default::default()).unwrap();
}

fn tensors() {
    let _ = RawTensor::new(0x1000, 64, 0);
    let _ = StreamRef::from_raw(RawStream::DEFAULT, 0);
}

fn main() {}
