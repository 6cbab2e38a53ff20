//! Memory of this rank.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "memory",
        title: "Pointers and memory",
        intro: "Offsets and lengths count elements. A group's own accesses happen in the order of the program. Nothing orders the accesses of two \
                groups but a split's end, a flag, a ticket, or the end of the kernel. The simulator reports two unordered accesses of one element, \
                one of which writes, as a `data-race`. Accesses beyond the end are found while tracing where the index is known, and by the \
                simulator otherwise.\n\nMemory whose element type the configuration chooses (`AnyPtr`) has methods that end in `_f32` and convert, \
                and others that move an `AnyTile` as it is."
            .into(),
        kinds: &["Ptr", "AnyPtr", "AnyTile", "IntoIndex", "Index"],
        examples: examples(),
        source: SOURCE,
    }
}

fn half(_: u32, i: u32) -> bf16 {
    bf16::from_f32(i as f32)
}

fn twice(_: u32, i: u32) -> bf16 {
    bf16::from_f32(i as f32 * 2.0)
}

examples! {
    elements ["Ptr::get", "Ptr::set", "Ptr::len"]
    (x: Ptr<u32>[64] = |r, i| i + r, out: Ptr<u32>[2]) -> (out: |r, i| if i == 0 { 3 + r } else { 64 })
    {
        role("main", 1, |_| {
            out.set(0, x.get(3));
            out.set(1, x.len() as u32);
        });
    }

    vectors ["Ptr::load", "Ptr::store"]
    (x: Ptr<f32>[64] = |_, i| i as f32, out: Ptr<f32>[64]) -> (out: |_, i| i as f32 * 2.0)
    {
        role("main", 1, |_| {
            out.store(0, x.load(0, 64) * 2.0);
        });
    }

    under_masks ["Ptr::load_where", "Ptr::store_where"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64] = |_, _| 9u32) -> (out: |_, i| if i >= 60 { 9 } else if i < 40 { i } else { 7 })
    {
        role("main", 1, |_| {
            let i = arange(64);
            out.store_where(0, x.load_where(0, i.lt(40), 7), i.lt(60));
        });
    }

    by_index ["Ptr::gather", "Ptr::scatter"]
    (x: Ptr<u32>[64] = |_, i| i * 3, out: Ptr<u32>[64]) -> (out: |_, i| i * 3)
    {
        role("main", 1, |_| {
            let back = 63 - arange(64);
            out.scatter(back, x.gather(back, true, 0), true);
        });
    }

    adds ["Ptr::scatter_add", "Ptr::scatter_add_unordered"]
    (x: Ptr<u32>[64] = |_, i| i % 4, bins: Ptr<u32>[4] = |_, _| 0u32, sums: Ptr<f32>[4] = |_, _| 0f32)
    -> (bins: |_, _| 16u32, sums: |_, _| 8f32)
    {
        role("main", 1, |_| {
            let bin = x.load(0, 64);
            bins.scatter_add(bin, splat(1u32, 64), true);
            sums.scatter_add_unordered(bin, splat(0.5f32, 64), true);
        });
    }

    atomics ["Ptr::atomic_add", "Ptr::atomic_max", "Ptr::atomic_or"]
    (out: Ptr<u32>[3] = |_, _| 0u32) -> (out: |_, i| [5, 4, 3][i as usize])
    {
        role("main", 2, |b| {
            let _before = out.atomic_add(0, b.index() + 2);
            let _ = out.atomic_max(1, b.index() + 3);
            let _ = out.atomic_or(2, b.index() + 1);
        });
    }

    equal_rows ["Ptr::load_rows_f32", "AnyPtr::load_rows_f32"]
    (bias: Ptr<f32>[64] = |_, i| i as f32, more: AnyPtr[Dtype::Bf16, 64] = half, out: AnyMatrix[Dtype::F32, 32, 64])
    -> (out: |_, i| (i % 64 * 2) as f32)
    {
        role("main", 1, |_| {
            let shape = [32, 64];
            out.rows(0, 32).store_f32(0, bias.load_rows_f32(0, shape) + more.load_rows_f32(0, shape));
        });
    }

    equal_columns ["Ptr::load_columns_f32", "AnyPtr::load_columns_f32"]
    (scales: Ptr<f32>[32] = |_, i| i as f32, more: AnyPtr[Dtype::Bf16, 64] = half, out: AnyMatrix[Dtype::F32, 32, 64])
    -> (out: |_, i| (i / 64 * 2) as f32)
    {
        role("main", 1, |_| {
            let shape = [32, 64];
            out.rows(0, 32).store_f32(0, scales.load_columns_f32(0, shape) + more.load_columns_f32(0, shape));
        });
    }

    gathered_columns ["Ptr::gather_columns_f32", "AnyPtr::gather_columns_f32"]
    (scales: Ptr<f32>[32] = |_, i| i as f32, more: AnyPtr[Dtype::Bf16, 64] = half, list: Ptr<u32>[32] = |_, i| 31 - i,
     out: AnyMatrix[Dtype::F32, 32, 64])
    -> (out: |_, i| ((31 - i / 64) * 2) as f32)
    {
        role("main", 1, |_| {
            let shape = [32, 64];
            let one = scales.gather_columns_f32(0, &list, 0, shape);
            out.rows(0, 32).store_f32(0, one + more.gather_columns_f32(0, &list, 0, shape));
        });
    }

    any_as_floats ["AnyPtr::load_f32", "AnyPtr::store_f32", "AnyPtr::get_f32"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: |_, i| bf16::from_f32(i as f32 + 2.0))
    {
        role("main", 1, |_| {
            out.store_f32(0, x.load_f32(0, 64) + x.get_f32(2));
        });
    }

    any_of_one_type ["AnyPtr::typed"]
    (x: AnyPtr[Dtype::I32, 64] = |_, i| i as i32 - 7, out: Ptr<i32>[64]) -> (out: |_, i| i as i32 - 7)
    {
        role("main", 1, |_| {
            out.store(0, x.typed::<i32>().load(0, 64));
        });
    }

    any_by_index ["AnyPtr::gather_f32", "AnyPtr::scatter_f32"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: half)
    {
        role("main", 1, |_| {
            let back = 63 - arange(64);
            out.scatter_f32(back, x.gather_f32(back, true, 0.0), true);
        });
    }

    any_scattered ["AnyPtr::scatter"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: |r, i| half(r, 63 - i))
    {
        role("main", 1, |_| {
            out.scatter(63 - arange(64), x.load(0, 64), true);
        });
    }

    any_as_they_are ["AnyPtr::load", "AnyPtr::store", "AnyPtr::dtype", "AnyPtr::len"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: half)
    {
        assert_eq!((x.dtype(), x.len()), (Dtype::Bf16, 64));
        role("main", 1, |_| {
            out.store(0, x.load(0, 64));
        });
    }

    any_under_masks ["AnyPtr::load_where", "AnyPtr::store_where", "AnyPtr::load_if"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: |r, i| if i < 32 { half(r, i) } else { bf16::ZERO })
    {
        role("main", 1, |b| {
            let i = arange(64);
            out.store_where(0, x.load_where(0, i.lt(32)), i.lt(48));
            out.store_where(0, x.load_if(0, 64, b.index().gt(0)), i.ge(48));
        });
    }

    any_tiles ["AnyTile::to_f32", "AnyTile::rounded"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, out: AnyPtr[Dtype::Bf16, 64]) -> (out: twice)
    {
        role("main", 1, |_| {
            let doubled = x.load(0, 64).to_f32() * 2.0;
            out.store(0, AnyTile::rounded(doubled, out.dtype()));
        });
    }

    any_typed ["AnyTile::typed"]
    (x: AnyPtr[Dtype::U32, 64] = |_, i| i, out: AnyPtr[Dtype::U32, 64]) -> (out: |_, i| i + 1)
    {
        role("main", 1, |_| {
            out.store(0, AnyTile::from(x.load(0, 64).typed::<u32>() + 1));
        });
    }

    some_elements ["IntoIndex::only"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| if i % 2 == 0 { i } else { 0 })
    {
        role("main", 1, |_| {
            let even = (arange(64) % 2).eq_to(0);
            out.store(0, x.load(0.only(even), 64));
        });
    }
}
