//! Tiles of products that go to all ranks and stay in a window, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Rows and columns of a product, and columns that are multiplied: no tile divides them.
pub const ROWS: u32 = 70;
pub const COLUMNS: u32 = 72;
pub const K: u32 = 72;
pub const RANKS: u32 = 2;
const TILE: u32 = 64;
/// Rows of whole tiles, and columns of tiles.
const BAND: u32 = 128;
const STRIPS: u32 = 2;
const TILES: u32 = BAND / TILE * STRIPS;
/// The last rank's rows in the second bank end within a tile.
const INBOX_ROWS: u32 = 2 * RANKS * BAND - 40;

#[derive(Clone, Copy)]
struct Parts {
    x: AnyMatrix,
    w: AnyMatrix,
    inbox: AnySymMatrix,
    window: AnyWindowMatrix,
    arrived: Flags,
    ready: Flags,
    out: AnyMatrix,
}

/// Every rank's product, rounded, in all inboxes, and as it is in a window: all of them are added up.
pub fn parts(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("parts", RANKS, warp_size, 4);
    meta.doc = "Tiles of products that other ranks add up.".into();
    trace(meta, |p| {
        let a = Parts {
            x: p.matrix("x", [ROWS, K], Dtype::Bf16),
            w: p.matrix("w", [COLUMNS, K], Dtype::Bf16),
            inbox: p.matrix("inbox", [INBOX_ROWS, COLUMNS], Dtype::Bf16),
            window: p.matrix("window", [2 * BAND, COLUMNS], Dtype::F32),
            arrived: p.arg("arrived", (2 * RANKS * TILES).into()),
            ready: p.arg("ready", (2 * RANKS * TILES).into()),
            out: p.matrix("out", [ROWS, COLUMNS], Dtype::F32),
        };
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("multiply", 2, |b| multiply(b, a, epoch));
        role("add", 1, |b| add(b, a, epoch));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

fn flag(epoch: Epoch, rank: Val<u32>, tile: Val<u32>) -> Val<u32> {
    (epoch.parity() * RANKS + rank) * TILES + tile
}

#[kernel]
fn multiply(b: Group, a: Parts, epoch: Epoch) {
    for tile in b.strided(TILES) {
        let (row, column) = (tile / STRIPS * TILE, tile % STRIPS * TILE);
        let sums = b.dot(a.x.rows(row, TILE), a.w.rows(column, TILE), 2);
        let mut part = send_to(Peers::all());
        part.put_rows_f32(&a.inbox, (epoch.parity() * RANKS + rank()) * BAND + row, column, sums);
        part.signal(&a.arrived, flag(epoch, rank(), tile), epoch);
        a.window.rows(epoch.parity() * BAND + row, TILE).store_f32(column, sums);
        a.window.signal(Peers::all(), &a.ready, flag(epoch, rank(), tile), epoch);
    }
}

#[kernel]
fn add(b: Group, a: Parts, epoch: Epoch) {
    for tile in b.strided(TILES) {
        let (row, column) = (tile / STRIPS * TILE, tile % STRIPS * TILE);
        let mut all = None;
        for peer in 0..RANKS {
            let got = a.arrived.from(peer).wait(flag(epoch, peer.val(), tile), epoch);
            let rounded = a.inbox.rows(&got, (epoch.parity() * RANKS + peer) * BAND + row, TILE);
            let rounded = rounded.load_f32(column, TILE);
            let got = a.ready.from(peer).wait(flag(epoch, peer.val(), tile), epoch);
            let exact = a.window.of(peer).rows(&got, epoch.parity() * BAND + row, TILE);
            let part = rounded + exact.load_f32(column, TILE);
            all = Some(all.map_or(part, |all| all + part));
        }
        a.out.rows(row, TILE).store_f32(column, all.expect("there are ranks"));
    }
}
