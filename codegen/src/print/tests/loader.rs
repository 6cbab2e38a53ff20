//! Which roles get a loader: roles for whose products it can bring operands, and nothing else that needs all warps.

use crate::{
    dsl::{Binder, Binding, ParamSpec, TraceMeta, prelude::*, trace},
    ir::{Dtype, Kernel, verify},
    print::{EmitInfo, EmitOptions, Source, explain, source::assemble, warnings},
};

use super::printed;

/// What a role is given.
#[derive(Clone, Copy)]
pub(super) struct Given {
    pub x: AnyMatrix,
    pub w: AnyMatrix,
    pub out: AnyMatrix,
    pub y: Ptr<u32>,
}

impl Given {
    pub fn of(p: &mut Binder) -> Given {
        let matrix = |p: &mut Binder, name| p.matrix::<AnyMatrix>(name, [512, 200], Dtype::Bf16);
        Given { x: matrix(p, "x"), w: matrix(p, "w"), out: matrix(p, "out"), y: p.arg::<Ptr<u32>>("y", 4096) }
    }

    /// A product of 128 rows of `x` and 64 of `w`.
    fn product(self, b: Group) -> Tile<f32> {
        b.dot(self.x.rows(0, 128), self.w.rows(64, 64), 3)
    }

    pub fn store(self, sums: impl IntoTile<f32>) {
        self.out.rows(0, 128).store_f32(0, sums);
    }
}

/// A kernel of 2 ranks whose blocks have so many warps, with a role that does this.
#[track_caller]
fn role_of(warps: u32, body: impl FnOnce(Group, Given)) -> Kernel {
    let traced = trace(TraceMeta::new("sample", 2, 32, warps), |p| {
        let given = Given::of(p);
        role("multiply", 2, |b| body(b, given));
    });
    traced.unwrap_or_else(|e| panic!("{e}"))
}

#[track_caller]
pub(super) fn emitted(kernel: &Kernel, target: &str) -> Source {
    printed(kernel, target).unwrap_or_else(|e| panic!("{e}"))
}

pub(super) fn has_loader(source: &Source) -> bool {
    let found = source.text.contains("multiply_loader(");
    assert_eq!(found, !source.args.maps.is_empty(), "maps come with a loader");
    found
}

/// Whether a role of 8 warps gets one.
#[track_caller]
fn gets_one(body: impl FnOnce(Group, Given)) -> bool {
    has_loader(&emitted(&role_of(8, body), "cuda:sm_90a"))
}

#[test]
fn a_role_that_multiplies_gets_one() {
    assert!(gets_one(|b, g| g.store(g.product(b))));
    assert!(gets_one(|b, g| {
        let row = b.index() * 128;
        let sums = b.dot(g.x.rows(row, 128), g.w.rows(0, 64), 2);
        g.out.rows(row, 128).store_f32(0, (sums + 1.0).maximum(0.0));
    }));
}

#[test]
fn targets_whose_products_read_shared_memory_have_them() {
    let kernel = role_of(8, |b, g| g.store(g.product(b)));
    for target in ["cuda:sm_80", "cuda:sm_90", "cuda:sm_100"] {
        assert!(!has_loader(&emitted(&kernel, target)), "{target}");
    }
    for target in ["cuda:sm_90a", "cuda:sm_100a", "cuda:sm_103a", "cuda:sm_110a"] {
        assert!(has_loader(&emitted(&kernel, target)), "{target}");
    }
}

/// What `show --explain` says of instructions, with a loader and without one.
#[test]
fn instructions_are_named() {
    let kernel = role_of(8, |b, g| g.store(g.product(b)));
    let alone = role_of(8, |b, g| {
        g.y.set(0, 1);
        g.store(g.product(b));
    });
    let said = |kernel: &Kernel, target: &str| {
        let verified = verify(kernel.clone()).unwrap_or_else(|e| panic!("{e}"));
        let told = explain(&verified, target.parse().expect("a target")).expect("a kernel");
        told.roles[0].multiplies.clone().expect("it multiplies")
    };
    let of = |target| said(&kernel, target);
    assert_eq!(of("cuda:sm_80"), "Multiplies by `mma.sync.m16n8k16`");
    assert_eq!(of("cuda:sm_90a"), "Multiplies by `wgmma.mma_async.m64n64k16`");
    assert_eq!(
        of("cuda:sm_100a"),
        "Multiplies by `tcgen05.mma.cta_group::1.kind::f16` (never run on hardware), which one thread of the loader's second warp \
         issues; sums of two products in turn lie in 128 columns of tensor memory, and warps load them by `tcgen05.ld.16x256b`"
    );
    let alone = said(&alone, "cuda:sm_103a");
    assert!(alone.contains("which one thread issues; sums lie in 64 columns of tensor memory"), "{alone}");
}

#[test]
fn whole_boxes_are_there() {
    let columns = |from: u32, count: u32| {
        gets_one(|b, g| {
            let x = g.x.rows(0, 128).columns(from, count);
            g.store(b.dot(x, g.w.rows(64, 64), 3));
        })
    };
    assert!(columns(0, 200) && columns(64, 136) && columns(8, 128), "to the end, or whole pieces");
    assert!(!columns(0, 136), "zeros would have to follow within the matrix");
    // Columns that each block has others of.
    let by_block = |count: u32| {
        gets_one(|b, g| {
            let x = g.x.rows(0, 128).columns(b.index() * count, count);
            g.store(b.dot(x, g.w.rows(64, 64), 3));
        })
    };
    assert!(by_block(64) && !by_block(72));
    assert!(!gets_one(|b, g| {
        let x = g.x.rows(0, 128).below(g.y.get(0));
        g.store(b.dot(x, g.w.rows(64, 64), 3));
    }));
    assert!(!gets_one(|b, g| {
        let w = g.w.rows(64, 64).below(100);
        g.store(b.dot(g.x.rows(0, 128), w, 3));
    }));
}

#[test]
fn operands_are_no_results() {
    assert!(!gets_one(|b, g| g.store(b.dot(g.out.rows(128, 128), g.w.rows(64, 64), 3))));
}

#[test]
fn products_are_of_one_shape_and_by_warpgroups() {
    assert!(!gets_one(|b, g| {
        g.store(g.product(b));
        g.out.rows(0, 128).store_f32(0, b.dot(g.x.rows(0, 128), g.w.rows(0, 128), 3));
    }));
    assert!(!gets_one(|b, g| {
        g.store(g.product(b));
        g.out.rows(256, 64).store_f32(0, g.w.rows(0, 64).load_f32(0, 64));
    }));
    let aligned = |by: u32| {
        gets_one(|b, g| {
            g.store(g.product(b));
            g.out.rows(0, 128).store_f32(b.index() * by, g.product(b));
        })
    };
    assert!(aligned(8) && !aligned(4), "all are stored by the same lanes");
    assert!(
        !gets_one(|b, g| {
            g.store(g.product(b));
            g.store(b.dot(g.x.rows(128, 128), g.w.rows(64, 64), 2));
        }),
        "of as many stages"
    );
    assert!(!gets_one(|b, g| g.out.rows(0, 64).store_f32(0, b.dot(g.x.rows(0, 64), g.w.rows(0, 64), 3))));
}

#[test]
fn nothing_else_needs_all_warps() {
    assert!(!gets_one(|b, g| {
        let sums = g.product(b);
        g.y.set(0, (sums.sum() * 0.0).to_u32());
        g.store(sums);
    }));
    assert!(!gets_one(|b, g| {
        g.y.store(0, g.y.load(256, 256));
        g.store(g.product(b));
    }));
    assert!(!gets_one(|b, g| {
        g.y.set(0, g.y.get(1) + 1);
        g.store(g.product(b));
    }));
}

#[test]
fn variables_with_tiles_are_the_multiplying_warps_own() {
    let sums = gets_one(|b, g| {
        let mut sums = var(g.product(b));
        sums.set(sums.get() + g.product(b));
        g.store(sums.get());
    });
    assert!(sums);
}

/// The two functions of a role whose blocks draw so many tiles, and what else it has.
fn drawn(body: impl FnOnce(Group, Given, Counters)) -> Option<[String; 2]> {
    let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
        let given = Given::of(p);
        let next = p.arg::<Counters>("next", 2);
        role("multiply", 2, |b| body(b, given, next));
    });
    let source = emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a");
    has_loader(&source).then(|| sides(&source.text))
}

#[kernel]
fn multiply_drawn(b: Group, g: Given, next: Counters) {
    for i in b.dynamic(9u32, Some(next.counter(1))) {
        let sums = b.dot(g.x.rows(i * 128, 128), g.w.rows(64, 64), 3);
        g.out.rows(i * 128, 128).store_f32(0, sums);
    }
}

#[test]
fn the_loader_draws_for_all() {
    let [loads, multiplies] = drawn(multiply_drawn).expect("a role with a counter has a loader");
    for (text, of_loader) in [
        ("draw_for_all(loader, drawn, [&] { return fetch_sum(args.next + 1, 1u); });", true),
        ("fetch_and(args.next + 1, 0u);", true),
        ("= take_drawn(drawn);", false),
    ] {
        assert_eq!(
            [&loads, &multiplies].map(|side| side.matches(text).count()),
            [of_loader, !of_loader].map(usize::from),
            "{text}: {loads}{multiplies}"
        );
    }
    // Both leave the loop where the numbers end.
    for side in [&loads, &multiplies] {
        let (end, leave) = (side.find("if (i >= 9) {"), side.find("break;"));
        assert!(end.is_some() && end < leave && side.contains("while (true) {"), "{side}");
        // Three pieces of 128 and 64 rows with their barriers, and what is drawn behind them.
        assert!(side.contains(&format!("shared_array<u64>({})", 3 * (192 * 128 + 16))), "{side}");
    }
}

/// Rows of one of two matrices, of as many columns in either case.
#[kernel]
fn multiply_either(b: Group, g: Given, columns: u32) {
    let own = b.index().eq_to(0);
    let sums = if own {
        b.dot(g.x.rows(0, 128), g.w.rows(64, 64), 3)
    } else {
        b.dot(g.w.rows(128, 128).columns(0u32, columns), g.w.rows(64, 64), 3)
    };
    g.store(sums);
}

#[test]
fn branches_that_multiply_as_many_columns_share_a_product() {
    let sides_of = |columns: u32| {
        let source = emitted(&role_of(8, |b, g| multiply_either(b, g, columns)), "cuda:sm_90a");
        assert!(has_loader(&source));
        sides(&source.text)
            .map(|side| (side.matches("dot_of_pieces<").count(), side.matches("} else {").count()))
    };
    let [(_, loads), multiplies] = sides_of(200);
    assert_eq!((loads, multiplies), (1, (1, 0)), "the loader alone knows of what matrix");
    let [_, multiplies] = sides_of(64);
    assert_eq!(multiplies, (2, 1), "products of other pieces");
}

#[kernel]
fn multiply_twice(b: Group, g: Given, next: Counters) {
    for i in b.dynamic(9u32, Some(next.counter(0))) {
        g.out.rows(i * 128, 128).store_f32(0, g.product(b));
    }
    for i in b.dynamic(5u32, Some(next.counter(1))) {
        g.out.rows(i * 128, 128).store_f32(64, g.product(b));
    }
}

#[kernel]
fn take_a_ticket(b: Group, g: Given, next: Counters) {
    g.store(g.product(b));
    b.last(next.counter(0), || g.y.set(0, 1u32));
}

#[kernel]
fn count(b: Group, g: Given, _next: Counters) {
    let before = g.y.atomic_add(0, 1u32);
    g.out.rows(before * 128, 128).store_f32(0, g.product(b));
}

/// The rows of groups, as many as `y` says, one group's behind the other's; a group's tiles end where the group does.
#[kernel]
fn multiply_groups(b: Group, g: Given, next: Counters) {
    let (mut group, mut first) = (var(0u32), var(0u32));
    let (mut brought, mut stored) = (var(0u32), var(0u32));
    for i in b.dynamic(9u32, Some(next.counter(0))) {
        while i >= &first + g.y.get(&group) {
            first += g.y.get(&group);
            group += 1;
        }
        let sums = b.dot(g.x.rows((&first + i) * 128, 128), g.w.rows(&brought, 64), 3);
        g.out.rows(i * 128, 128).below(&stored + 100).store_f32(0, sums);
        brought += 8;
        stored += 1;
    }
}

#[test]
fn either_side_computes_what_it_needs_of_inputs_and_variables() {
    let [loads, multiplies] = drawn(multiply_groups).expect("scalars need not all warps");
    for (text, of) in [
        ("= args.y[group_2];", [true, true]),
        ("first += ", [true, true]),
        ("brought += 8", [true, false]),
        ("stored += 1", [false, true]),
        ("u32 brought", [true, false]),
        ("u32 stored", [false, true]),
    ] {
        assert_eq!([&loads, &multiplies].map(|side| side.contains(text)), of, "{text}: {loads}{multiplies}");
    }
    let tail = |b: Group, g: Given, next: Counters| {
        let mut last = var(0u32);
        g.store(g.product(b));
        b.last(next.counter(0), || last.set(1u32));
        g.out.rows(last.get() * 128, 128).store_f32(0, g.product(b));
    };
    assert!(drawn(tail).is_none(), "the loader does not know which block is the last one");
}

#[test]
fn counters_are_drawn_from_in_loops_alone() {
    let [loads, multiplies] = drawn(multiply_twice).expect("one loop after the other");
    assert_eq!(loads.matches("draw_for_all(").count(), 2, "{loads}");
    assert_eq!(multiplies.matches("take_drawn(").count(), 2, "{multiplies}");
    assert!(!loads.contains("sync()"), "a loader meets no other warp: {loads}");
    // Other memory may be anybody's.
    assert!(drawn(count).is_none());
}

#[test]
fn the_last_block_to_come_has_a_tail_without_its_loader() {
    let [loads, multiplies] = drawn(take_a_ticket).expect("a tail needs no loader");
    assert!(!loads.contains("comes_last") && !loads.contains("args.y"), "{loads}");
    assert!(
        multiplies.contains("comes_last(block, args.next") && multiplies.contains("args.y"),
        "{multiplies}"
    );
    let sums = |b: Group, g: Given, next: Counters| {
        g.store(g.product(b));
        b.last(next.counter(0), || g.y.set(0, g.y.load(256, 256).sum()));
    };
    let [loads, multiplies] = drawn(sums).expect("its warps meet without the loader");
    assert!(!loads.contains("group_reduce") && multiplies.contains("group_reduce"), "{multiplies}");
    let used = |b: Group, g: Given, next: Counters| {
        g.store(g.product(b));
        b.last(next.counter(0), || g.store(g.product(b)));
    };
    assert!(drawn(used).is_none(), "the loader does not know which block is the last one");
}

#[test]
fn matrices_of_several_types_are_stored_by_lanes_of_their_own() {
    let with = |column: u32| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
            let matrix = |p: &mut Binder, name, dtype| p.matrix::<AnyMatrix>(name, [128, 64], dtype);
            let (x, out) = (matrix(p, "x", Dtype::Bf16), matrix(p, "out", Dtype::Bf16));
            let (bias, sums) = (matrix(p, "bias", Dtype::F32), matrix(p, "sums", Dtype::F32));
            role("multiply", 2, |b| {
                let product = b.dot(x.rows(0, 128), x.rows(0, 64), 2) + bias.rows(0, 128).load_f32(0, 64);
                sums.rows(0, 128).store_f32(0, product);
                out.rows(0, 128).store_f32(0, product);
                out.rows(0, 128).store_f32(column, product);
            });
        });
        has_loader(&emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a"))
    };
    assert!(with(8), "lanes exchange what goes to `out`, and not what goes to `sums`");
    assert!(!with(4), "other lanes store `out` again");
}

#[test]
fn the_line_that_keeps_a_role_from_a_loader_is_named() {
    let kernel = |body: fn(Group, Given)| verify(role_of(8, body)).unwrap_or_else(|e| panic!("{e}"));
    let target = "cuda:sm_90a".parse().expect("a target");
    let meets = kernel(|b, g| {
        let sums = g.product(b);
        g.y.set(0, (sums.sum() * 0.0).to_u32());
        g.store(sums);
    });
    let line = line!() - 3;
    let [warning] = &warnings(&meets, target).expect("a kernel")[..] else { panic!("one warning") };
    assert_eq!(
        (warning.loc.line, warning.message.as_str()),
        (line, "role `multiply` has no loader: all warps meet in a reduction")
    );
    let told = explain(&meets, target).expect("a kernel");
    let text = told.to_string();
    assert!(text.contains(&format!("loader.rs:{line} all warps meet in a reduction")), "{text}");
    assert_eq!((told.block_threads, told.loader_warps), (256, 0));
    // Kernels that have one, and targets that have none.
    let fits = kernel(|b, g| g.store(g.product(b)));
    assert!(warnings(&fits, target).expect("a kernel").is_empty());
    assert!(warnings(&meets, "cuda:sm_80".parse().expect("a target")).expect("a kernel").is_empty());
}

#[test]
fn a_kernel_is_reported_with_the_launch_that_is_emitted() {
    let kernel = verify(role_of(8, |b, g| g.store(g.product(b)))).unwrap_or_else(|e| panic!("{e}"));
    for target in ["cuda:sm_90a", "cuda:sm_80"] {
        let (told, source) = (explain(&kernel, target.parse().expect("a target")), emitted(&kernel, target));
        let (told, launch) = (told.expect("a kernel"), source.launch);
        let threads = (told.block_threads, u64::from(told.block_warps * told.warp_size));
        assert_eq!(threads, (launch.block_threads.into(), launch.block_threads.into()), "{target}");
        assert_eq!(told.shared_bytes, u64::from(launch.shared_bytes), "{target}");
    }
    let told = explain(&kernel, "cuda:sm_90a".parse().expect("a target")).expect("a kernel").to_string();
    assert!(told.contains("384 threads (12 warps of 32 lanes, 4 for a loader)"), "{told}");
}

#[test]
fn what_is_stored_beyond_a_matrix_is_not_counted() {
    let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
        let matrix = |p: &mut Binder, name, shape| p.matrix::<AnyMatrix>(name, shape, Dtype::F32);
        let (x, narrow) = (p.matrix::<AnyMatrix>("x", [128, 64], Dtype::Bf16), matrix(p, "narrow", [120, 4]));
        role("multiply", 2, |b| {
            narrow.rows(0, 128).store_f32(3, b.dot(x.rows(0, 128), x.rows(0, 64), 2));
        });
    });
    let kernel = verify(traced.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
    let told = explain(&kernel, "cuda:sm_90a".parse().expect("a target")).expect("a kernel");
    let stored = told.roles[0].traffic.iter().find(|t| t.buffer == "narrow").expect("a store");
    assert_eq!(stored.bytes, 120 * 4, "one column of 120 rows");
}

#[test]
fn who_leaves_at_once_has_none() {
    let with = |epoch: bool| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
            let x: AnyMatrix = p.matrix("x", [128, 64], Dtype::Bf16);
            let out: AnyMatrix = p.matrix("out", [128, 64], Dtype::Bf16);
            let flags = p.arg::<Flags>("flags", 2);
            let word = p.arg::<EpochWord>("epoch", 1);
            let now = if epoch { word.begin() } else { word.peek() };
            role("send", 1, |_| flags.signal(Peers::all(), rank(), now));
            role("multiply", 2, |b| {
                out.rows(0, 128).store_f32(0, b.dot(x.rows(0, 128), x.rows(0, 64), 2));
            });
        });
        has_loader(&emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a"))
    };
    assert!(with(true));
    assert!(!with(false));
}

/// The loader's function and that of the others, of a role that tells other ranks what it has multiplied.
fn both_sides(body: impl FnOnce(Group, Given, AnyWindowMatrix, AnySymMatrix, Flags, Epoch)) -> [String; 2] {
    let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
        let given = Given::of(p);
        let parts: AnyWindowMatrix = p.matrix("parts", [256, 64], Dtype::Bf16);
        let inbox: AnySymMatrix = p.matrix("inbox", [128, 200], Dtype::Bf16);
        let flags = p.arg::<Flags>("flags", 8);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 1, |_| {
            let mut rows = send_to(Peers::all());
            rows.put_any(&inbox.elements(), 0, given.x.elements().load(0, 2048));
            rows.signal(&flags, 2 + rank(), epoch);
        });
        role("multiply", 2, |b| body(b, given, parts, inbox, flags, epoch));
    });
    sides(&emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a").text)
}

/// What the loader of a role runs, and what the others do.
pub(super) fn sides(text: &str) -> [String; 2] {
    ["void multiply_loader(", "void multiply_role("].map(|head| {
        let body = &text[text.find(head).unwrap_or_else(|| panic!("no {head} in {text}"))..];
        body[..body.find("\n}\n").expect("a function ends")].to_owned()
    })
}

#[test]
fn who_multiplies_stores_and_signals_and_waits_for_what_it_reads() {
    let [loads, multiplies] = both_sides(|b, g, parts, _, flags, epoch| {
        let (sums, peer) = (g.product(b), 1 - rank());
        parts.rows(0, 128).store_f32(0, sums);
        parts.signal(Peers::rank(peer), &flags, rank(), epoch);
        let got = flags.from(peer).wait(peer, epoch);
        g.store(sums + parts.of(peer).rows(&got, 0, 128).load_f32(0, 64));
    });
    assert!(!loads.contains("signal_rank") && !loads.contains("wait_flag"), "{loads}");
    // Who multiplies stays when a wait fails: the loader waits for what it brings to be taken.
    for text in ["store_lanes", "signal_rank", "\n    wait_flag(block", "load_lanes"] {
        assert!(multiplies.contains(text), "{text}: {multiplies}");
    }
}

#[test]
fn the_loader_waits_for_what_it_brings() {
    let product = |b: Group, g: Given, inbox: AnySymMatrix, flags: Flags, epoch: Epoch| {
        let got = flags.from(1 - rank()).wait(3 - rank(), epoch);
        g.store(b.dot(inbox.rows(&got, 0, 128), g.w.rows(0, 64), 2));
    };
    let waits = |sides: [String; 2]| sides.map(|side| side.contains("wait_flag("));
    assert_eq!(
        waits(both_sides(|b, g, _, inbox, flags, epoch| product(b, g, inbox, flags, epoch))),
        [true, false]
    );
    // Who tells others something after it has waited, has waited.
    let signals = both_sides(|b, g, _, inbox, flags, epoch| {
        product(b, g, inbox, flags, epoch);
        flags.signal(Peers::all(), 4 + rank(), epoch);
    });
    assert_eq!(waits(signals), [true, true]);
    // What is never read may be the others' leave to write.
    let unread = both_sides(|b, g, _, _, flags, epoch| {
        let _got = flags.from(1 - rank()).wait(3 - rank(), epoch);
        g.store(g.product(b));
    });
    assert_eq!(waits(unread), [true, true]);
}

#[test]
fn what_needs_no_wait_is_brought_before_it() {
    let [loads, _] = both_sides(|b, g, _, inbox, flags, epoch| {
        let got = flags.from(1 - rank()).wait(3 - rank(), epoch);
        g.store(b.dot(inbox.rows(&got, 0, 128), g.w.rows(0, 64), 2));
    });
    let at = |text: &str| loads.find(text).unwrap_or_else(|| panic!("no {text} in {loads}"));
    assert!(at("bring_right_ahead(") < at("wait_flag(") && at("wait_flag(") < at("bring_rest("), "{loads}");
    // The right operand's rows are waited for, or both products' rows are.
    let [right, _] = both_sides(|b, g, _, inbox, flags, epoch| {
        let got = flags.from(1 - rank()).wait(3 - rank(), epoch);
        g.store(b.dot(g.x.rows(0, 128), inbox.rows(&got, 0, 64), 2));
    });
    let [twice, _] = both_sides(|b, g, _, inbox, flags, epoch| {
        let got = flags.from(1 - rank()).wait(3 - rank(), epoch);
        let sums = b.dot(inbox.rows(&got, 0, 128), g.w.rows(0, 64), 2);
        g.store(b.dot_add(sums, inbox.rows(&got, 0, 128), g.w.rows(64, 64), 2));
    });
    for loads in [right, twice] {
        let (wait, bring) = (loads.find("wait_flag("), loads.find("bring_"));
        assert!(wait.is_some() && wait < bring && !loads.contains("ahead"), "{loads}");
    }
}

#[test]
fn blocks_may_add_up_what_others_have_multiplied() {
    let with = |binding: Binding| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
            let matrix = |p: &mut Binder, name| p.matrix::<AnyMatrix>(name, [128, 64], Dtype::Bf16);
            let (x, out) = (matrix(p, "x"), matrix(p, "out"));
            let sums = ParamSpec::matrix::<AnyMatrix>("sums", [256, 64], Dtype::F32, "").bound(binding);
            p.declare(vec![sums]);
            let (sums, done) = (p.next::<AnyMatrix>(), p.arg::<BlockFlags>("done", 2));
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("multiply", 2, |b| {
                let product = b.dot(x.rows(0, 128), x.rows(0, 64), 2);
                sums.rows(b.index() * 128, 128).store_f32(0, product);
                done.signal(b.index(), epoch);
                done.from(0).wait(0, epoch);
                out.rows(0, 128).store_f32(0, product + sums.rows(0, 128).load_f32(0, 64));
            });
        });
        let source = emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a");
        (has_loader(&source), source.text.contains("store_lanes<256>(args.sums"))
    };
    assert_eq!(with(Binding::State), (true, true));
    // What callers read lies in rows, which lanes exchange.
    assert_eq!(with(Binding::Output), (false, false));
}

#[test]
fn boxes_have_no_more_rows_than_a_matrix() {
    let traced = trace(TraceMeta::new("sample", 2, 32, 4), |p| {
        let matrix = |p: &mut Binder, name, rows| p.matrix::<AnyMatrix>(name, [rows, 128], Dtype::Bf16);
        let (x, w, out) = (matrix(p, "x", 20), matrix(p, "w", 512), p.matrix("out", [20, 512], Dtype::Bf16));
        let out: AnyMatrix = out;
        role("multiply", 2, |b| out.rows(0, 64).store_f32(0, b.dot(x.rows(0, 64), w.rows(0, 64), 3)));
    });
    let source = emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a");
    let rows: Vec<_> = source.args.maps.iter().map(|m| m.box_rows).collect();
    assert_eq!(rows, [20, 64]);
    assert!(source.text.contains("Ring<3, 64, 64, bf16, 20, 64> ring("), "{}", source.text);
}

/// Boxes have one row each, and the ring has all of them; but where a list changes no loader reads it.
#[test]
fn gathered_rows_are_boxes_of_one_row() {
    let of = |writes: bool, target| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 4), |p| {
            let matrix = |p: &mut Binder, name, rows| p.matrix::<AnyMatrix>(name, [rows, 128], Dtype::Bf16);
            let (x, w, out) =
                (matrix(p, "x", 20), matrix(p, "w", 512), p.matrix("out", [300, 512], Dtype::Bf16));
            let (out, list): (AnyMatrix, Ptr<u32>) = (out, p.arg("list", 300));
            role("multiply", 2, |b| {
                let rows = x.gather_rows(&list, 64, 64).below(300);
                out.rows(64, 64).store_f32(0, b.dot(rows, w.rows(0, 64), 3));
            });
            if writes {
                role("lists", 1, |_| list.set(0, 1u32));
            }
        });
        emitted(&traced.unwrap_or_else(|e| panic!("{e}")), target)
    };
    for target in ["cuda:sm_90a", "cuda:sm_100a"] {
        let source = of(false, target);
        let rows: Vec<_> = source.args.maps.iter().map(|m| m.box_rows).collect();
        assert_eq!(rows, [1, 64]);
        assert!(source.text.contains("Ring<3, 64, 64, bf16> ring("), "{}", source.text);
        assert!(
            source.text.contains("bring_gathered(loader, ring, args.x_boxes, args.list, 64, "),
            "{}",
            source.text
        );
        assert!(!has_loader(&of(true, target)));
    }
    let of_warps = of(false, "cuda:sm_80").text;
    assert!(of_warps.contains("gathered_rows<128, 64>(block, args.x, 20u, args.list, 64, "), "{of_warps}");
}

#[test]
fn what_goes_through_other_lanes_needs_them_to_meet() {
    let with = |reads: bool| {
        let traced = trace(TraceMeta::new("sample", 2, 32, 8), |p| {
            let matrix = |p: &mut Binder, name| p.matrix::<AnyMatrix>(name, [128, 64], Dtype::Bf16);
            let (x, out) = (matrix(p, "x"), matrix(p, "out"));
            let parts: AnyWindowMatrix = p.matrix("parts", [128, 128], Dtype::Bf16);
            let (flags, epoch) = (p.arg::<Flags>("flags", 2), p.arg::<EpochWord>("epoch", 1).begin());
            role("multiply", 2, |b| {
                parts.rows(0, 128).store_f32(64, b.dot(x.rows(0, 128), x.rows(0, 64), 2));
                parts.signal(Peers::all(), &flags, rank(), epoch);
                let got = flags.from(1 - rank()).wait(1 - rank(), epoch);
                if reads {
                    let theirs = parts.of(1 - rank()).rows(&got, 0, 128).load_f32(64, 64);
                    out.rows(0, 128).store_f32(0, theirs);
                }
            });
        });
        has_loader(&emitted(&traced.unwrap_or_else(|e| panic!("{e}")), "cuda:sm_90a"))
    };
    // A window in rows is stored by lanes that exchange what they have, and read by others.
    assert!(with(false) && !with(true));
}

#[test]
fn timelines_have_none() {
    let kernel = role_of(8, |b, g| g.store(g.product(b)));
    let info = EmitInfo { command: "peerwarp generate sample".into() };
    let target = "cuda:sm_90a".parse().expect("a target");
    let options = EmitOptions { timeline: Some(16), ..EmitOptions::default() };
    let emitted = assemble::emit(&kernel, target, &info, &options).unwrap_or_else(|e| panic!("{e}"));
    assert!(!has_loader(&emitted));
}

#[test]
fn rings_and_maps_stand_where_there_is_room() {
    let of = |warps, rows: u32, stages| {
        let kernel = role_of(warps, |b, g| {
            g.out.rows(0, rows).store_f32(0, b.dot(g.x.rows(0, rows), g.w.rows(0, 64), stages));
        });
        emitted(&kernel, "cuda:sm_90a")
    };
    // A loader's warp beside four, a whole warpgroup beside eight.
    let (four, eight) = (of(4, 64, 3), of(8, 128, 3));
    assert_eq!((four.launch.block_threads, eight.launch.block_threads), (128 + 32, 256 + 128));
    assert!(!four.text.contains("setmaxnreg") && eight.text.contains("setmaxnreg.inc"));
    // Pieces of 64 columns of bf16, and two barriers of 8 bytes each.
    assert_eq!(eight.launch.shared_bytes, 3 * ((128 + 64) * 64 * 2 + 16));
    let maps: Vec<_> =
        eight.args.maps.iter().map(|m| (m.name.as_str(), m.offset % 128, m.box_rows)).collect();
    assert_eq!(maps, [("x_boxes", 0, 128), ("w_boxes", 0, 64)]);
    let last = eight.args.maps.last().expect("two");
    assert_eq!(eight.args.bytes, last.offset + 128);
    assert!(last.offset >= 128 && eight.args.maps[0].offset + 128 == last.offset);
}
