//! Products of groups of rows, whose numbers memory has, in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Groups, rows of all of them, columns of the result, and columns that are multiplied.
pub const GROUPS: u32 = 5;
pub const ROWS: u32 = 150;
pub const COLUMNS: u32 = 72;
pub const K: u32 = 136;
const TILE: u32 = 64;

#[derive(Clone, Copy)]
struct Groups {
    x: AnyMatrix,
    w: AnyMatrix,
    rows: Ptr<u32>,
    out: AnyMatrix,
}

/// Each group's rows times its own weights.
pub fn groups(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("groups", 1, warp_size, 4);
    meta.doc = "Products of groups of rows.".into();
    trace(meta, |p| {
        let a = Groups {
            x: p.matrix("x", [ROWS, K], Dtype::Bf16),
            w: p.matrix("w", [GROUPS * COLUMNS, K], Dtype::Bf16),
            rows: p.arg("rows", GROUPS.into()),
            out: p.matrix("out", [ROWS, COLUMNS], Dtype::Bf16),
        };
        role("multiply", 2, |b| multiply(b, a));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

/// Blocks take tiles of all groups in turn.
#[kernel]
fn multiply(b: Group, a: Groups) {
    let strips = COLUMNS.div_ceil(TILE);
    let (mut first, mut tiles) = (var(0u32), var(0u32));
    for group in 0..GROUPS.val() {
        let rows = a.rows.get(group);
        let end = &first + rows;
        let more = (rows + (TILE - 1)) / TILE * strips;
        // The first tile of the group that is this block's.
        for tile in ((b.index() + 2 - &tiles % 2) % 2..more).step_by(2) {
            let (row, column) = (&first + tile / strips * TILE, tile % strips * TILE);
            let w = a.w.rows(group * COLUMNS + column, TILE);
            let sums = b.dot(a.x.rows(row, TILE), w, 2);
            a.out.rows(row, TILE).below(end).store_f32(column, sums);
        }
        first.set(end);
        tiles += more;
    }
}
