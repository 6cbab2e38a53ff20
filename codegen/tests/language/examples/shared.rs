//! Shared memory.

use peerwarp_codegen::dsl::prelude::*;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "shared",
        title: "Shared memory",
        intro: "An array in shared memory belongs to the group that declares it: at block level the block has one, inside a split each group has its \
                own. It is undefined until it is written. A group's own accesses happen in the order of the program, whichever lanes make them; \
                the emitted source has the barriers that this takes. A split's begin and end order the block's accesses and those of its groups. \
                Groups of one split that access the block's array are not ordered with each other: they use atomics or different elements. A \
                kernel whose arrays a target has no room for is refused when its source is emitted."
            .into(),
        kinds: &["Shared"],
        examples: examples(),
        source: SOURCE,
    }
}

examples! {
    declares ["shared", "Shared::len"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| 63 - i + 64)
    {
        role("main", 1, |_| {
            let room = shared::<u32>("room", 64);
            room.store(0, x.load(0, 64));
            out.store(0, room.gather(63 - arange(64), true, 0) + room.len() as u32);
        });
    }

    elements ["Shared::get", "Shared::set"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[1]) -> (out: |_, _| 2016)
    {
        role("main", 1, |_| {
            let total = shared::<u32>("total", 1);
            total.set(0, x.load(0, 64).sum());
            out.set(0, total.get(0));
        });
    }

    vectors ["Shared::load", "Shared::store"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| i)
    {
        role("main", 1, |_| {
            let room = shared::<u32>("room", 64);
            room.store(0, x.load(0, 64));
            out.store(0, room.load(0, 64));
        });
    }

    under_masks ["Shared::load_where", "Shared::store_where"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| if i < 32 { i } else { 7 })
    {
        role("main", 1, |_| {
            let (room, low) = (shared::<u32>("room", 64), arange(64).lt(32));
            room.store_where(0, x.load(0, 64), low);
            out.store(0, room.load_where(0, low, 7));
        });
    }

    by_index ["Shared::gather", "Shared::scatter"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[64]) -> (out: |_, i| i)
    {
        role("main", 1, |_| {
            let (room, back) = (shared::<u32>("room", 64), 63 - arange(64));
            room.scatter(back, x.load(0, 64), true);
            out.store(0, room.gather(back, true, 0));
        });
    }

    adds ["Shared::scatter_add", "Shared::scatter_add_unordered"]
    (x: Ptr<u32>[64] = |_, i| i % 4, out: Ptr<u32>[4], halves: Ptr<f32>[4]) -> (out: |_, _| 16u32, halves: |_, _| 8f32)
    {
        role("main", 1, |_| {
            let (bins, sums) = (shared::<u32>("bins", 4), shared::<f32>("sums", 4));
            bins.store(0, splat(0u32, 4));
            sums.store(0, splat(0f32, 4));
            let bin = x.load(0, 64);
            bins.scatter_add(bin, splat(1u32, 64), true);
            sums.scatter_add_unordered(bin, splat(0.5f32, 64), true);
            out.store(0, bins.load(0, 4));
            halves.store(0, sums.load(0, 4));
        });
    }

    atomics ["Shared::atomic_add", "Shared::atomic_max", "Shared::atomic_or"]
    (out: Ptr<u32>[3]) -> (out: |_, i| [3, 5, 4][i as usize])
    {
        role("main", 1, |_| {
            let room = shared::<u32>("room", 3);
            room.store(0, splat(0u32, 3));
            let _before = room.atomic_add(0, 3);
            let _ = room.atomic_max(1, 5);
            let _ = room.atomic_or(2, 4);
            out.store(0, room.load(0, 3));
        });
    }

    counts_in_order ["Shared::tally"]
    (x: Ptr<u32>[64] = |_, i| i % 4, out: Ptr<u32>[64]) -> (out: |_, i| i / 4)
    {
        role("main", 1, |_| {
            let count = shared::<u32>("count", 4);
            count.store(0, splat(0u32, 4));
            out.store(0, count.tally(x.load(0, 64), true));
        });
    }
}
