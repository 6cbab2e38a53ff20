//! What small kernels become: names, inlining, fusion, widths, control flow.

use crate::dsl::prelude::*;
use crate::ir::Kernel;

use super::{kernel, printed, role_body};

/// The body of a role with the buffers `x` and `y` of f32, `n` of u32.
#[track_caller]
fn body(build: impl FnOnce(Group, Ptr<f32>, Ptr<f32>, Ptr<u32>)) -> String {
    role_body(&sample(build))
}

#[track_caller]
fn sample(build: impl FnOnce(Group, Ptr<f32>, Ptr<f32>, Ptr<u32>)) -> Kernel {
    kernel(|p| {
        let x = p.arg::<Ptr<f32>>("x", 1 << 20);
        let y = p.arg::<Ptr<f32>>("y", 1 << 20);
        let n = p.arg::<Ptr<u32>>("n", 4096);
        role("main", 2, |b| build(b, x, y, n));
    })
}

/// Without the `// file:line` behind statements, which would move with this file.
fn plain(text: &str) -> String {
    let code = text.lines().map(|l| l.split("  //").next().unwrap_or(l));
    code.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_chain_of_tile_operations_is_one_loop() {
    let text = body(|b, x, y, _| y.store(b.index() * 512, x.load(b.index() * 512, 512) * 2.0 + 1.0));
    insta::assert_snapshot!(plain(&text));
}

#[test]
fn a_tile_that_does_not_divide_has_a_partial_step_and_loads_go_before_stores() {
    let text = body(|b, x, y, _| y.store(b.index() * 2880, x.load(b.index() * 2880, 2880)));
    insta::assert_snapshot!(plain(&text));
}

#[test]
fn width_follows_what_is_known_of_the_index() {
    let of = |step: u32| body(move |b, x, y, _| y.store(b.index() * 8, x.load(b.index() * step, 512)));
    assert!(of(4).contains("load<4>(args.x + block.index * 4 + block.lane * 4)"), "{}", of(4));
    assert!(of(2).contains("load<4, 2>(args.x + block.index * 2 + block.lane * 4)"), "{}", of(2));
    assert!(of(3).contains("load<4, 1>(args.x + block.index * 3 + block.lane * 4)"), "{}", of(3));
    // Where no access can use vectors, lanes take one element each.
    let text = body(|b, x, y, _| y.store(b.index(), x.load(b.index() * 3, 512)));
    assert!(!text.contains("load<") && !text.contains("store("), "{text}");
}

#[test]
fn a_group_of_a_block_sees_the_index_of_the_block() {
    let text = body(|b, x, y, _| b.split(2, |g| y.set(b.index() * 8 + g.index(), x.get(b.index()))));
    assert!(text.contains("args.x[block.index]"), "{text}");
}

#[kernel]
fn countdown(b: Group, x: Ptr<f32>, y: Ptr<f32>, n: Ptr<u32>) {
    let mut left = var(n.get(0));
    let mut sum = var(0.0f32);
    while left > 0 {
        let before = left.get();
        left -= 1;
        sum += x.get(before) * y.get(&left);
    }
    y.set(b.index(), sum);
}

#[test]
fn a_variable_read_before_an_assignment_keeps_its_old_value() {
    let text = plain(&body(countdown));
    insta::assert_snapshot!(text);
}

#[kernel]
fn overtaken(_: Group, _: Ptr<f32>, _: Ptr<f32>, n: Ptr<u32>) {
    let mut v = var(n.get(0));
    let old = v.get() + 1;
    v = n.get(1);
    n.set(old, &v);
    n.set(1, old);
}

#[test]
fn a_read_that_an_assignment_overtakes_is_copied() {
    insta::assert_snapshot!(plain(&body(overtaken)), @"
    const Block block(0);
    const u32 n_value = args.n[0];
    u32 v = n_value;
    const u32 old = v + 1;
    const u32 n_value_2 = args.n[1];
    v = n_value_2;
    block.sync();
    if (block.lane == 0) args.n[old] = v;
    if (block.lane == 0) args.n[1] = old;
    ");
}

#[kernel]
fn jumps(_: Group, x: Ptr<f32>, _: Ptr<f32>, n: Ptr<u32>) {
    'rows: for i in 0..n.get(0) {
        for j in 0..n.get(1) {
            if n.get(i + j) == 1 {
                continue 'rows;
            }
            if n.get(i + j) == 2 {
                break 'rows;
            }
        }
        x.set(i, 1.0);
    }
}

#[test]
fn jumps_out_of_inner_loops_go_to_labels() {
    insta::assert_snapshot!(plain(&body(jumps)));
}

#[test]
fn products_that_meet_a_sum_are_rounded_by_themselves() {
    let text = body(|_, x, y, _| {
        let a = x.load(0, 128);
        y.store(0, a * 3.0 + 1.0);
        y.store(128, a * 5.0 * 2.0);
        y.set(512, (a * 7.0).sum());
    });
    assert!(text.contains("mul_rn(x_tile[j], 3.0f) + 1.0f"), "{text}");
    assert!(text.contains("x_tile[j] * 5.0f * 2.0f"), "{text}");
    assert!(text.contains("+= mul_rn(x_tile[j], 7.0f)"), "{text}");
}

#[test]
fn registers_of_partial_tiles_are_read_only_where_they_were_written() {
    let text = body(|_, x, y, _| {
        let mut sum = var(splat(0.0f32, 40));
        sum.set(sum.get() + x.load(0, 40));
        y.store(0, sum.get());
    });
    let guards = text.matches("block.lane < 40").count();
    assert!(guards >= 1, "{text}");
    let loose = text.lines().filter(|l| l.starts_with("    sum =") || l.starts_with("    sum +=")).count();
    assert_eq!(loose, 0, "{text}");
}

#[test]
fn masks_that_always_hold_and_sets_of_all_ranks_are_not_tested() {
    let text = body(|_, x, y, _| y.store(0, x.gather(127 - arange(128), true, 0.0)));
    assert!(!text.contains('?'), "{text}");
    let k = kernel(|p| {
        let inbox = p.arg::<Sym<u32>>("inbox", 512);
        let flag = p.arg::<Flags>("flag", 4);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.put(&inbox, 0, arange(512));
            parcel.put_value(&inbox, 0, 4);
            parcel.signal(&flag, rank(), epoch);
        });
    });
    let text = role_body(&k);
    assert!(!text.contains(">> peer"), "{text}");
    assert!(text.contains("iota<4>(block.lane * 4)"), "{text}");
}

#[test]
fn emission_is_a_function_of_its_input() {
    let k = sample(|b, x, y, n| {
        let v = x.load(b.index() * 512, 512);
        y.store(0, v * v.sum());
        n.set(0, n.atomic_add(5, 1));
    });
    let one = printed(&k, "cuda:sm_100a").unwrap();
    assert_eq!(one, printed(&k, "cuda:sm_100a").unwrap());
    assert_eq!(one.launch.grid, 2);
    assert_eq!((one.file_name.as_str(), one.abi_file_name.as_str()), ("sample.cu", "sample.h"));
}

/// A launch checks the pointers of what has a size, and a host program allocates it.
#[test]
fn buffers_that_are_used_have_a_size() {
    let k = kernel(|p| {
        let (words, packets) = (p.arg::<Ll<u32>>("words", 4), p.arg::<Packets<f32>>("packets", 8));
        p.arg::<Ll<u32>>("unused", 4);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 1, |_| {
            words.send(Peers::all(), 0, arange(4), epoch);
            let from = words.load(0, 4, 1, epoch);
            packets.send(Peers::all(), 0, splat(from.sum().to_f32(), 4));
            packets.take(0, 4, 1);
        });
    });
    let source = printed(&k, "cuda:sm_90a").unwrap();
    let sizes: Vec<&str> = source.abi.lines().filter(|l| l.trim_start().starts_with("X(")).collect();
    let has = |text: &str| sizes.iter().any(|line| line.contains(text));
    assert!(has("X(words, LL, 32)") && has("X(packets, PACKETS, 32)"), "{sizes:?}");
    assert!(has("X(unused, LL, 0)"), "{sizes:?}");
    assert!(source.text.contains("{offsetof(Args, words), "), "{}", source.text);
}

#[test]
fn arguments_are_laid_out_as_c_does() {
    let k = kernel(|p| {
        p.arg::<Ptr<u32>>("x", 4);
        p.arg::<Val<u32>>("small", 1);
        p.arg::<Val<u64>>("big", 1);
        p.arg::<Sym<u32>>("inbox", 4);
        let y = p.arg::<Ptr<u32>>("y", 4);
        role("main", 1, |_| y.set(0, 1));
    });
    let source = printed(&k, "cuda:sm_80").unwrap();
    let fields: Vec<(&str, u32, u32)> =
        source.args.fields.iter().map(|f| (f.name.as_str(), f.offset, f.bytes)).collect();
    assert_eq!(
        fields,
        [
            ("x", 0, 8),
            ("small", 8, 4),
            ("big", 16, 8),
            ("inbox", 24, 32),
            ("y", 56, 8),
            ("status", 64, 32),
            ("wait_budget_ns", 96, 8),
            ("rank", 104, 4)
        ]
    );
    assert_eq!(source.args.bytes, 112);
    insta::assert_snapshot!(source.abi);
}
