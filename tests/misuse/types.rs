//! Rows are of types of which every bit pattern is a value, and a launch takes its own kernel's parameters.

use peerwarp::families::moe::MoeRank;
use peerwarp::families::moe::kernels::{RoundTrip, TokenLaunch};
use peerwarp::families::moe::slices::RoutedSlices;
use peerwarp::runtime::cudarc::driver::CudaSlice;
use peerwarp::runtime::handles::Stream;
use peerwarp::runtime::op::Op;

fn rows(rank: &mut MoeRank, routed: RoutedSlices<'_>, y: &CudaSlice<bool>, out: &mut CudaSlice<bool>) {
    rank.combine(routed, y, out).unwrap();
}

fn parameters(op: &mut Op<RoundTrip>, stream: &Stream, args: TokenLaunch<'_>) {
    op.rank(0).launch(stream, args).unwrap();
}

fn main() {}
