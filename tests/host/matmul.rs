//! Products of matrices as emitted text: the lanes of the matrix instructions, pieces in shared memory, edges.

use peerwarp::families::matmul::{AllGatherMatmul, Matmul};

use crate::workload::run;

#[test]
fn products_of_every_shape_of_tile() {
    // Rows, columns and pieces of which the last is not whole, with tiles of several shapes for the warps.
    let key = "m=100 n=72 k=72 ranks=2 activation=none blocks=2";
    run::<Matmul>(&format!("{key} dtype=bf16 warps=4 tile_rows=64 tile_columns=64 stages=3"));
    // What warpgroups multiply, where there are: one and two of them, one product after the other and two at once.
    run::<Matmul>(&format!("{key} dtype=fp16 warps=4 tile_rows=64 tile_columns=64 stages=2"));
    run::<Matmul>(&format!("{key} dtype=bf16 warps=4 tile_rows=128 tile_columns=64 stages=2"));
    run::<Matmul>(&format!("{key} dtype=fp16 warps=8 tile_rows=128 tile_columns=64 stages=2"));
    run::<Matmul>(
        "m=20 n=136 k=136 ranks=2 dtype=bf16 bias=true activation=relu warps=4 tile_rows=64 tile_columns=128 stages=2 blocks=1",
    );
}

#[test]
fn products_of_fewer_pieces_than_stages() {
    let key = "m=70 n=64 ranks=2 dtype=bf16 activation=silu warps=4 tile_rows=64 tile_columns=64 blocks=1";
    run::<Matmul>(&format!("{key} k=8 stages=3"));
    run::<Matmul>(&format!("{key} k=128 stages=3"));
}

#[test]
fn rows_that_are_gathered() {
    let key =
        "n=40 k=72 dtype=bf16 tile_rows=64 tile_columns=64 warps=4 stages=2 blocks=2 chunk=512 send_blocks=1";
    run::<AllGatherMatmul>(&format!("{key} m=136 ranks=2"));
    run::<AllGatherMatmul>(&format!("{key} m=66 ranks=3"));
}
