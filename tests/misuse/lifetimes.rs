//! What a launch uses outlives it, and what it writes has no other owner meanwhile.

use std::sync::Arc;

use peerwarp::families::moe::MoeRank;
use peerwarp::families::moe::kernels::{RoundTrip, RoundTripLaunch, TokenLaunch};
use peerwarp::families::moe::slices::{RoutedSlices, TokenSlices};
use peerwarp::runtime::cudarc::driver::{CudaSlice, CudaStream};
use peerwarp::runtime::gpu::{Gpu, RawStream};
use peerwarp::runtime::handles::{Buffer, Stream};
use peerwarp::runtime::op::{Op, StreamRef};

fn a_handle_does_not_outlive_its_stream(gpu: &Arc<dyn Gpu>) -> RawStream<'_> {
    let stream = Stream::new(gpu).unwrap();
    stream.raw()
}

fn neither_does_what_launches_take(gpu: &Arc<dyn Gpu>) -> StreamRef<'_> {
    let stream = Stream::new(gpu).unwrap();
    StreamRef::from(&stream)
}

fn nothing_is_put_on_a_stream_that_is_gone(gpu: &Arc<dyn Gpu>, buffer: &Buffer) {
    let stream = Stream::new(gpu).unwrap();
    let raw = stream.raw();
    drop(stream);
    buffer.fill(0, raw).unwrap();
}

fn what_combine_reads_is_kept(
    rank: &mut MoeRank,
    stream: &Arc<CudaStream>,
    (x, n, ids, weights): (CudaSlice<u16>, CudaSlice<u32>, CudaSlice<i32>, CudaSlice<f32>),
    y: &CudaSlice<u16>,
    out: &mut CudaSlice<u16>,
) {
    let tokens = TokenSlices { x: &x, x_scale: None, n: Some(&n), ids: &ids, weights: &weights };
    let routed = rank.dispatch(tokens, stream).unwrap();
    drop(ids);
    rank.combine(routed, y, out).unwrap();
}

fn a_dispatch_is_combined_once(
    rank: &mut MoeRank,
    routed: RoutedSlices<'_>,
    y: &CudaSlice<u16>,
    out: &mut CudaSlice<u16>,
) {
    rank.combine(routed, y, out).unwrap();
    rank.combine(routed, y, out).unwrap();
}

fn an_output_is_not_also_an_input(rank: &mut MoeRank, routed: RoutedSlices<'_>, mut y: CudaSlice<u16>) {
    rank.combine(routed, &y, &mut y).unwrap();
}

fn nor_in_the_struct_of_a_launch(
    op: &mut Op<RoundTrip>,
    stream: &Stream,
    mut x: CudaSlice<u16>,
    (n, ids, weights): (&CudaSlice<u32>, &CudaSlice<i32>, &CudaSlice<f32>),
) {
    let tokens = TokenLaunch { x: &x, x_scale: None, tensor_scale: None, n, rows_there: 8, ids, weights, place: None, replicas: None };
    op.rank(0).launch(stream, RoundTripLaunch { tokens, expert_load: None, out: &mut x }).unwrap();
}

fn who_captures_answers_for_the_graph(op: &mut Op<RoundTrip>, stream: &Stream, args: RoundTripLaunch<'_>) {
    op.rank(0).capture(stream, args).unwrap();
}

fn main() {}
