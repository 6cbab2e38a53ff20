//! Roles, groups, loops and variables.

use peerwarp_codegen::dsl::prelude::*;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "control",
        title: "Roles, work and control flow",
        intro: "A kernel is a set of roles, each with blocks of its own that run at the same time. In a role the group is the block; inside a split it \
                is some of its warps. `#[kernel]` makes `if`, `while`, `for`, comparisons, assignments and `&&` work on values of the device; what \
                the host knows is decided while tracing and leaves no trace.\n\nBlocks of two roles, and two blocks of one, are not ordered: flags \
                do that ([Flags and channels](flags.md)). An entry without **Orders** orders nothing."
            .into(),
        kinds: &["Group", "DevRange", "Dynamic", "Tiles", "TileRange", "GroupTiles", "Var", "TileVar", "IntoVar"],
        examples: examples(),
        source: SOURCE,
    }
}

examples! {
    declares_roles ["role"]
    (x: Ptr<u32>[4] = |_, i| i, y: Ptr<u32>[4], z: Ptr<u32>[4]) -> (y: |_, i| i * 2, z: |_, i| i + 1)
    {
        role("double", 4, |b| y.set(b.index(), x.get(b.index()) * 2));
        role("next", 4, |b| z.set(b.index(), x.get(b.index()) + 1));
    }

    declares_beside ["role_beside"]
    (x: Ptr<u32>[4] = |_, i| i, y: Ptr<u32>[4], z: Ptr<u32>[4]) -> (y: |_, i| i * 2, z: |_, i| i + 1)
    {
        role("double", 4, |b| y.set(b.index(), x.get(b.index()) * 2));
        role_beside("double", "next", 1, |b| z.set(b.index(), x.get(b.index()) + 1));
    }

    declares_on_ranks ["role_on"]
    (out: Ptr<u32>[2]) -> (out: |r, i| 10 * r + i)
    {
        role_on([0], "first", 1, |_| {
            out.set(0, 0);
            out.set(1, 1);
        });
        role_on([1], "second", 2, |b| out.set(b.index(), b.index() + 10));
    }

    in_the_world ["rank", "ranks"]
    (out: Ptr<u32>[1]) -> (out: |r, _| r * 10 + 2)
    {
        role("main", 1, |_| {
            out.set(0, rank() * 10 + ranks());
        });
    }

    branches ["if", "=="]
    (x: Ptr<u32>[4] = |_, i| i, out: Ptr<u32>[4]) -> (out: |_, i| if i == 2 { 20 } else { i })
    {
        role("main", 4, |b| {
            let n = x.get(b.index());
            let chosen = if n == 2 { n * 10 } else { n };
            out.set(b.index(), chosen);
        });
    }

    short_circuits ["&&"]
    (x: Ptr<u32>[4] = |_, i| i, out: Ptr<u32>[4]) -> (out: |_, i| u32::from(i > 0 && i < 3))
    {
        role("main", 4, |b| {
            let i = b.index();
            let inside = i > 0 && x.get(i) < 3;
            out.set(i, inside.select(1u32, 0u32));
        });
    }

    counts ["for", "continue"]
    (n: Ptr<u32>[1] = |_, _| 6, out: Ptr<u32>[6] = |_, _| 0u32) -> (out: |_, i| if i == 3 { 0 } else { i })
    {
        role("main", 1, |_| {
            for i in 0..n.get(0) {
                if i == 3 {
                    continue;
                }
                out.set(i, i);
            }
        });
    }

    repeats ["while", "=", "break"]
    (n: Ptr<u32>[1] = |_, _| 40, out: Ptr<u32>[1]) -> (out: |_, _| 5)
    {
        role("main", 1, |_| {
            let mut left = var(n.get(0));
            while left > 1 {
                left = left / 2;
                if left == 5 {
                    break;
                }
            }
            out.set(0, &left);
        });
    }

    splits ["Group::split", "Group::strided"]
    (x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[8]) -> (out: |_, i| (0..8).map(|k| i * 8 + k).sum::<u32>())
    {
        role("main", 2, |block| {
            block.split(1, |g| {
                for row in g.strided(8u32) {
                    out.set(row, x.load(row * 8, 8).sum());
                }
            });
        });
    }

    numbers ["Group::index", "Group::block", "Group::in_block", "Group::count"]
    (out: Ptr<u32>[8] = |_, _| 0u32) -> (out: |_, i| if i < 4 { i + 4 * (i % 2) + 16 * (i / 2) + 64 } else { 0 })
    {
        role("main", 2, |block| {
            block.split(1, |g| {
                let (block, within) = (g.block(), g.in_block());
                out.set(g.index(), g.index() + 4 * block + 16 * within + 16 * g.count());
            });
        });
    }

    shapes ["Group::warps", "Group::lanes", "Group::blocks", "Group::reduces_at_once"]
    (out: Ptr<u32>[1]) -> (out: |_, _| 64 + 3)
    {
        role("main", 3, |b| {
            assert!(b.warps() * 32 <= b.lanes() && !b.reduces_at_once(32));
            if b.index() == 0 {
                out.set(0, b.lanes() + b.blocks());
            }
        });
    }

    under_dynamic_scheduling ["Group::dynamic"]
    (next: Counters[1], x: Ptr<u32>[64] = |_, i| i, out: Ptr<u32>[8]) -> (out: |_, i| (0..8).map(|k| i * 8 + k).sum::<u32>())
    {
        role("main", 2, |b| {
            for row in b.dynamic(8u32, Some(next.counter(0))) {
                out.set(row, x.load(row * 8, 8).sum());
            }
        });
    }

    last_group ["Group::last"]
    (ticket: Counters[1], part: Ptr<u32>[2], out: Ptr<u32>[1]) -> (out: |_, _| 3)
    {
        role("main", 2, |b| {
            part.set(b.index(), b.index() + 1);
            b.last(ticket.counter(0), || out.set(0, part.load(0, 2).sum()));
        });
    }

    goes_on ["Group::goes_on_as"]
    (x: Ptr<u32>[8] = |_, i| i, y: Ptr<u32>[8], z: Ptr<u32>[8]) -> (y: |_, i| i * 2, z: |_, i| i + 1)
    {
        role("double", 2, |b| {
            for i in b.strided(8u32) {
                y.set(i, x.get(i) * 2);
            }
            b.goes_on_as("next");
        });
        role("next", 1, |b| {
            for i in b.strided(8u32) {
                z.set(i, x.get(i) + 1);
            }
        });
    }

    steps ["DevRange::step_by"]
    (n: Ptr<u32>[1] = |_, _| 7, out: Ptr<u32>[8] = |_, _| 0u32) -> (out: |_, i| if i < 7 && i % 3 == 0 { i } else { 0 })
    {
        role("main", 1, |_| {
            for i in (0..n.get(0)).step_by(3) {
                out.set(i, i);
            }
        });
    }

    tiles_of_a_group ["Group::tiles", "TileRange::at", "TileRange::len"]
    (x: Ptr<u32>[200] = |_, i| i, out: Ptr<u32>[200]) -> (out: |_, i| i * 2)
    {
        role("main", 2, |b| {
            for t in b.tiles(200, 64) {
                out.store(t.at(), x.load(t.at(), t.len()) * 2);
            }
        });
    }

    tiles_by_number ["tiles", "Tiles::count", "Tiles::tile", "TileRange::number", "TileRange::first", "TileRange::count"]
    (x: Ptr<u32>[200] = |_, i| i, out: Ptr<u32>[16] = |_, _| 0u32) -> (out: |_, i| if i < 4 { i * 65 + if i == 3 { 8 } else { 64 } } else { 0 })
    {
        role("main", 2, |b| {
            let tiles = tiles(200, 64);
            for i in b.strided(tiles.count()) {
                let t = tiles.tile(i);
                out.set(t.number(), x.get(t.first()) + t.number() + t.count());
            }
        });
    }

    tiles_in_place ["TileRange::local", "TileRange::mask"]
    (x: Ptr<u32>[100] = |_, i| i, out: Ptr<u32>[2]) -> (out: |_, i| if i == 0 { 2016 + 64 } else { (64..100).sum::<u32>() + 36 })
    {
        role("main", 1, |b| {
            let room = shared::<u32>("room", 64);
            for t in b.tiles(100, 64) {
                room.store(t.local(), x.load(t.at(), t.len()));
                let one_more = room.load(t.local(), t.len()) + 1;
                out.set(t.number(), t.mask().select(one_more, 0).sum());
            }
        });
    }

    tiles_under_dynamic_scheduling ["GroupTiles::dynamic"]
    (next: Counters[1], x: Ptr<u32>[200] = |_, i| i, out: Ptr<u32>[200]) -> (out: |_, i| i * 2)
    {
        role("main", 2, |b| {
            for t in b.tiles(200, 64).dynamic(Some(next.counter(0))) {
                out.store(t.at(), x.load(t.at(), t.len()) * 2);
            }
        });
    }

    variables ["var", "Var::get", "Var::set"]
    (n: Ptr<u32>[1] = |_, _| 5, out: Ptr<u32>[1]) -> (out: |_, _| 10)
    {
        role("main", 1, |_| {
            let mut sum = var(0u32);
            for i in 0..n.get(0) {
                sum.set(sum.get() + i);
            }
            out.set(0, sum.get());
        });
    }

    variables_of_tiles ["TileVar::get", "TileVar::set", "TileVar::len"]
    (n: Ptr<u32>[1] = |_, _| 3, x: Ptr<f32>[192] = |_, i| i as f32, out: Ptr<f32>[64]) -> (out: |_, i| (i * 3 + 192) as f32)
    {
        role("main", 1, |_| {
            let mut sums = var(splat(0f32, 64));
            for i in 0..n.get(0) {
                sums.set(sums.get() + x.load(i * 64, sums.len()));
            }
            out.store(0, sums.get());
        });
    }
}
