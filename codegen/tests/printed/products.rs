//! Products of matrices in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Rows and columns of the result, and columns that are multiplied: no tile and no piece divides them.
pub const ROWS: u32 = 70;
pub const COLUMNS: u32 = 40;
pub const K: u32 = 136;
/// Rows of `peers` that are another rank's.
pub const THEIRS: u32 = 9;
const TILE: u32 = 32;

#[derive(Clone, Copy)]
struct Products {
    x: AnyMatrix,
    w: AnyMatrix,
    left: AnyMatrix,
    right: AnyMatrix,
    bias: AnyPtr,
    residual: AnyMatrix,
    peers: AnySymMatrix,
    arrived: Flags,
    out: AnyMatrix,
    theirs: AnyMatrix,
}

/// Two products of bf16 and fp16 added up, with a bias, a residual and an activation behind them; and one of rows that the next
/// rank sends.
pub fn products(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("products", 2, warp_size, 4);
    meta.doc = "Products of matrices, with edges everywhere.".into();
    trace(meta, |p| {
        let a = Products {
            x: p.matrix("x", [ROWS, K], Dtype::Bf16),
            w: p.matrix("w", [COLUMNS, K], Dtype::Bf16),
            left: p.matrix("left", [ROWS, 72], Dtype::Fp16),
            right: p.matrix("right", [COLUMNS, 72], Dtype::Fp16),
            bias: p.erased("bias", COLUMNS.into(), Dtype::Bf16),
            residual: p.matrix("residual", [ROWS, COLUMNS], Dtype::F32),
            peers: p.matrix("peers", [2 * ROWS, K], Dtype::Bf16),
            arrived: p.arg("arrived", 2),
            out: p.matrix("out", [ROWS, COLUMNS], Dtype::Bf16),
            theirs: p.matrix("theirs", [ROWS, COLUMNS], Dtype::F32),
        };
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 1, |_| send(a, epoch));
        role("multiply", 2, |b| multiply(b, a));
        role("receive", 1, |b| receive(b, a, epoch));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// The first rows of `x`, a row each.
#[kernel]
fn send(a: Products, epoch: Epoch) {
    let mut rows = send_to(Peers::rank((rank() + 1) % 2));
    let bank = epoch.parity() * ROWS;
    for row in 0..THEIRS.val() {
        rows.put_any(&a.peers.elements(), (bank + row) * K, a.x.elements().load(row * K, K));
    }
    rows.signal(&a.arrived, epoch.parity(), epoch);
}

#[kernel]
fn multiply(b: Group, a: Products) {
    let strips = COLUMNS.div_ceil(TILE);
    for tile in b.strided(ROWS.div_ceil(TILE) * strips) {
        let row = tile / strips * TILE;
        let column = tile % strips * TILE;
        // The columns of a product in two parts.
        let (x, w) = (a.x.rows(row, TILE), a.w.rows(column, TILE));
        let sums = b.dot(x.columns(0, 64), w, 2);
        let sums = b.dot_add(sums, x.columns(64, K - 64), w, 2);
        let sums = b.dot_add(sums, a.left.rows(row, TILE), a.right.rows(column, TILE), 3);
        let sums = sums + a.bias.load_rows_f32(column, [TILE, TILE]);
        let sums = sums + a.residual.rows(row, TILE).load_f32(column, TILE);
        a.out.rows(row, TILE).store_f32(column, sums.maximum(0.0) * 0.5);
    }
}

/// What lies behind the received rows belongs to no rank.
#[kernel]
fn receive(b: Group, a: Products, epoch: Epoch) {
    let got = a.arrived.from((rank() + 1) % 2).wait(epoch.parity(), epoch);
    let bank = epoch.parity() * ROWS;
    let rows = a.peers.rows(&got, bank, TILE).below(bank + THEIRS);
    for column in (0..COLUMNS.val()).step_by(TILE) {
        let sums = b.dot(rows, a.w.rows(column, TILE), 2);
        // Elements that no lane's are aligned to, and that end within its.
        let sums = sums + a.bias.load_rows_f32(column + 5, [TILE, TILE]);
        a.theirs.rows(0, TILE).below(THEIRS).store_f32(column, sums);
    }
}
