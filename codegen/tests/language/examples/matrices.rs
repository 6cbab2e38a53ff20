//! Matrices.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "matrices",
        title: "Matrices",
        intro: "A matrix in memory has rows of one length; the configuration chooses shape and element type. Its rows are loaded as a tile that keeps rows \
                and columns, and products of rows of two matrices are such tiles in `f32`. Which lane has which element is the target's own. The group's warps share it in parts of 16 x 16: \
                printing refuses a shape that they cannot share. The ops order nothing but the group's own accesses; \
                parcels, flags and windows order the rest as they do for vectors."
            .into(),
        kinds: &[
            "Matrix",
            "AnyMatrix",
            "MatrixRows",
            "SymMatrix",
            "AnySymMatrix",
            "WindowMatrix",
            "AnyWindowMatrix",
            "AnyPeerMatrix",
        ],
        examples: examples(),
        source: SOURCE,
    }
}

fn half(r: u32, i: u32) -> bf16 {
    bf16::from_f32((i % 7 + r) as f32)
}

/// Element `i` of the product of 64 rows with themselves, 64 columns each.
fn product(r: u32, i: u32) -> f32 {
    let (row, column) = (i / 64, i % 64);
    (0..64).map(|k| half(r, row * 64 + k).to_f32() * half(r, column * 64 + k).to_f32()).sum()
}

examples! {
    rows ["AnyMatrix::rows", "MatrixRows::load_f32", "MatrixRows::store_f32", "AnyMatrix::shape", "AnyMatrix::dtype"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, out: AnyMatrix[Dtype::Bf16, 64, 64])
    -> (out: |r, i| bf16::from_f32(half(r, i).to_f32() * 2.0))
    {
        assert_eq!((x.shape(), x.dtype()), ([64, 64], Dtype::Bf16));
        role("main", 1, |_| {
            out.rows(0, 64).store_f32(0, x.rows(0, 64).load_f32(0, 64) * 2.0);
        });
    }

    of_a_type ["Matrix::elements", "SymMatrix::elements", "WindowMatrix::elements"]
    (x: Matrix<f32>[Dtype::F32, 8, 8] = |_, i| i as f32, inbox: SymMatrix<f32>[Dtype::F32, 8, 8],
     window: WindowMatrix<f32>[Dtype::F32, 8, 8], out: Matrix<f32>[Dtype::F32, 8, 8])
    -> (out: |_, i| if i == 0 { 63.0 } else { i as f32 })
    {
        assert_eq!(inbox.elements().len(), 64);
        role("main", 1, |_| {
            window.elements().store(0, x.elements().load(0, 64));
            out.elements().store(0, window.elements().load(0, 64));
            out.elements().set(0, x.elements().get(63));
        });
    }

    parts ["MatrixRows::load", "MatrixRows::below", "AnyMatrix::elements"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, out: AnyMatrix[Dtype::Bf16, 64, 64])
    -> (out: |r, i| if i / 64 < 40 { half(r, i) } else { bf16::ONE })
    {
        role("main", 1, |_| {
            let one = AnyTile::rounded(splat(1f32, 1536), out.dtype());
            out.elements().store(40 * 64, one);
            out.rows(0, 64).below(40).store_f32(0, x.rows(0, 64).load(0, 64).to_f32());
        });
    }

    multiplies ["Group::dot", "Group::dot_add", "MatrixRows::columns"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, out: AnyMatrix[Dtype::F32, 64, 64]) -> (out: |r, i| product(r, i) * 2.0)
    {
        role("main", 1, |b| {
            let sums = b.dot(x.rows(0, 64), x.rows(0, 64), 2);
            let sums = b.dot_add(sums, x.rows(0, 64).columns(0, 64), x.rows(0, 64), 2);
            out.rows(0, 64).store_f32(0, sums);
        });
    }

    multiplies_known_rows ["MatrixRows::known_below"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, out: AnyMatrix[Dtype::F32, 64, 64])
    -> (out: |r, i| if i / 64 < 40 { product(r, i) } else { 1.0 })
    {
        role("main", 1, |b| {
            let one = AnyTile::rounded(splat(1f32, 1536), out.dtype());
            out.elements().store(40 * 64, one);
            let sums = b.dot(x.rows(0, 64).known_below(40), x.rows(0, 64), 2);
            out.rows(0, 64).below(40).store_f32(0, sums);
        });
    }

    gathers_rows ["AnyMatrix::gather_rows"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, list: Ptr<u32>[64] = |_, i| 63 - i, out: AnyMatrix[Dtype::F32, 64, 64])
    -> (out: |r, i| product(r, (63 - i / 64) * 64 + i % 64))
    {
        role("main", 1, |b| {
            let sums = b.dot(x.gather_rows(&list, 0, 64), x.rows(0, 64), 2);
            out.rows(0, 64).store_f32(0, sums);
        });
    }

    scaled_rows ["MatrixRows::scaled_by"]
    (x: AnyMatrix[Dtype::Fp8, 128, 128] = |_, _| 0x38u8, scales: Ptr<u32>[128] = |_, _| 0x7f7f_7f80u32,
     out: AnyMatrix[Dtype::F32, 128, 128])
    -> (out: |_, _| 32.0 * 4.0 + 96.0f32)
    {
        role("main", 1, |b| {
            // Elements are 1. The scales are 2 of the first 32 columns, and 1 of the others.
            let rows = x.rows(0, 128).scaled_by(&scales);
            out.rows(0, 128).store_f32(0, b.dot(rows, rows, 2));
        });
    }

    paired_rows ["MatrixRows::in_pairs"]
    (x: AnyMatrix[Dtype::Bf16, 256, 64] = half, w: AnyMatrix[Dtype::Bf16, 64, 64] = half, out: AnyMatrix[Dtype::F32, 256, 64])
    -> (out: product)
    {
        role("main", 2, |b| {
            // Either block has 128 rows of `x`, and both have all rows of `w`.
            let x = x.rows(b.index() * 128, 128);
            out.rows(b.index() * 128, 128).store_f32(0, b.dot(x, w.rows(0, 64).in_pairs(), 2));
        });
    }

    reduces_rows ["Tile::row_sum", "Tile::row_max", "Tile::row_min"]
    (x: AnyMatrix[Dtype::F32, 64, 64] = |_, i| (i % 64) as f32, out: AnyMatrix[Dtype::F32, 64, 64]) -> (out: |_, _| 2016f32 + 63.0)
    {
        role("main", 1, |_| {
            let x = x.rows(0, 64).load_f32(0, 64);
            out.rows(0, 64).store_f32(0, x.row_sum() + x.row_max() + x.row_min());
        });
    }

    reduces_columns ["Tile::column_sum", "Tile::column_max", "Tile::column_min"]
    (x: AnyMatrix[Dtype::F32, 64, 64] = |_, i| (i / 64) as f32, out: AnyMatrix[Dtype::F32, 64, 64]) -> (out: |_, _| 2016f32 + 63.0)
    {
        role("main", 1, |_| {
            let x = x.rows(0, 64).load_f32(0, 64);
            out.rows(0, 64).store_f32(0, x.column_sum() + x.column_max() + x.column_min());
        });
    }

    takes_apart ["Tile::deinterleave"]
    (x: AnyMatrix[Dtype::F32, 64, 64] = |_, i| (i % 64) as f32, out: AnyMatrix[Dtype::F32, 64, 32])
    -> (out: |_, i| { let i = i % 32; (i / 16 * 32 + i % 16) as f32 * 100.0 + (i / 16 * 32 + i % 16 + 16) as f32 })
    {
        role("main", 1, |_| {
            let (even, odd) = x.rows(0, 64).load_f32(0, 64).deinterleave();
            out.rows(0, 64).store_f32(0, even * 100.0 + odd);
        });
    }

    sends_rows ["Parcel::put_rows_f32", "AnySymMatrix::rows", "AnySymMatrix::shape", "AnySymMatrix::dtype", "AnySymMatrix::elements"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, inbox: AnySymMatrix[Dtype::Bf16, 64, 64], arrived: Flags[1], word: EpochWord[1],
     out: AnyMatrix[Dtype::Bf16, 64, 64])
    -> (out: |r, i| half(1 - r, i))
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        assert_eq!((inbox.shape(), inbox.dtype(), inbox.elements().len()), ([64, 64], Dtype::Bf16, 4096));
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put_rows_f32(&inbox, 0, 0, x.rows(0, 64).load_f32(0, 64));
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            out.rows(0, 64).store_f32(0, inbox.rows(&got, 0, 64).load_f32(0, 64));
        });
    }

    reads_rows_of_peers ["AnyWindowMatrix::signal", "AnyWindowMatrix::of", "AnyPeerMatrix::rows"]
    (x: AnyMatrix[Dtype::Bf16, 64, 64] = half, window: AnyWindowMatrix[Dtype::Bf16, 64, 64], ready: Flags[1], word: EpochWord[1],
     out: AnyMatrix[Dtype::Bf16, 64, 64])
    -> (out: |r, i| half(1 - r, i))
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            window.rows(0, 64).store_f32(0, x.rows(0, 64).load_f32(0, 64));
            window.signal(Peers::rank(peer), &ready, 0, epoch);
            let got = ready.from(peer).wait(0, epoch);
            out.rows(0, 64).store_f32(0, window.of(peer).rows(&got, 0, 64).load_f32(0, 64));
        });
    }
}
