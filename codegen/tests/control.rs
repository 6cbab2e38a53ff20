//! `#[kernel]` on device values: what the rewritten control flow traces.

use peerwarp_codegen::dsl::control::{Cond, MergeIf};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Kernel, verify};

/// Traces `body` as the one role of a kernel with the buffers `x` (u32) and `y` (f32).
#[track_caller]
fn traced(body: impl FnOnce(Group, Ptr<u32>, Ptr<f32>)) -> Kernel {
    let kernel = trace(TraceMeta::new("k", 4, 32, 4), |binder: &mut Binder| {
        let x = binder.arg::<Ptr<u32>>("x", 64);
        let y = binder.arg::<Ptr<f32>>("y", 64);
        role("main", 2, |b| body(b, x, y));
    });
    let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
    verify(kernel.clone()).unwrap_or_else(|e| panic!("{e:?}\n{kernel}"));
    kernel
}

#[kernel]
fn branches(_: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    if n < 3 {
        x.set(1, n);
    } else if n >= 2 * n && n != 7 {
        x.set(2, n + 1);
    }
    let w = if n == 4 { y.get(0) } else { 0.5 };
    y.set(1, w);
    let (a, b) = if 5 > n { (n, w) } else { (n + 1, w * 2.0) };
    y.set(a, b);
}

#[test]
fn if_compare_and_merge() {
    insta::assert_snapshot!(traced(branches));
}

#[kernel]
fn decided(g: Group, x: Ptr<u32>, _: Ptr<f32>) {
    let none = 0u32.val();
    if none == 1 {
        x.set(rank() / none, 1);
    }
    let two = if none < 1 { 2u32.val() } else { x.get(1 / none) };
    for i in g.strided(none) {
        x.set(i % none, 3);
    }
    for i in two..2 {
        x.set(i / none, 4);
    }
    for _ in 0..two {
        if two > 1 {
            break;
        }
        x.set(5, 5);
    }
    x.set(6, two);
}

/// Arms that are not taken and loops over nothing are not traced: what stands in them need not make sense.
#[test]
fn constant_conditions_are_decided_while_tracing() {
    let text = traced(decided).to_string();
    let body = text.lines().skip_while(|line| !line.contains("role")).skip(1);
    let stores = body.clone().filter(|line| line.contains("store")).count();
    assert_eq!((stores, body.filter(|line| line.trim_start().starts_with("if ")).count()), (1, 0), "{text}");
}

#[kernel]
fn loops(g: Group, x: Ptr<u32>, _: Ptr<f32>) {
    let n = x.get(0);
    for t in g.strided(n) {
        x.set(t, t * 2);
    }
    for i in 0..n {
        for k in 0..2 {
            x.set(i * 2 + k, k);
        }
    }
    for _ in (n..64).step_by(4) {
        x.set(3, 1);
    }
    for i in 1..=n {
        x.set(i, 1);
    }
    let mut sum = var(0u32);
    while sum < n && x.get(&sum) != 0 {
        sum += x.get(&sum);
        if sum > 9 {
            sum = 9;
        }
    }
    x.set(1, sum);
}

#[test]
fn device_loops_and_variables() {
    insta::assert_snapshot!(traced(loops));
}

#[kernel]
fn exits(_: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    'rows: for i in 0..n {
        let v = x.get(i);
        if v == 0 {
            continue;
        }
        for k in 0..3 {
            // Unrolled: the host's `continue` drops one round, the device's ends the row.
            if k == 1 {
                continue;
            }
            if v == k + 7 {
                continue 'rows;
            }
            x.set(k, v);
        }
        let w = if v > 5 {
            y.get(v)
        } else if v == 4 {
            break;
        } else {
            0.0
        };
        for j in 0..v {
            if x.get(j) == 1 {
                break 'rows;
            }
            if j > 2 {
                break;
            }
        }
        y.set(i, w);
    }
}

#[test]
fn nested_exits() {
    insta::assert_snapshot!(traced(exits));
}

#[kernel]
fn host_exits(_: Group, x: Ptr<u32>, _: Ptr<f32>) {
    let config = [1, 2, 3];
    'rows: for i in 0..x.get(0) {
        for c in config {
            if c == 2 {
                // The host decides, the device loop is left: nothing of this round follows.
                if i > 4 {
                    x.set(i, c);
                }
                continue 'rows;
            }
            x.set(i + 1, c);
        }
        x.set(0, 99);
    }
    'all: while x.get(0) > 0 {
        for c in config {
            if c == 3 {
                break 'all;
            }
            x.set(2, c);
        }
        x.set(0, 99);
    }
    let mut c = 0;
    let last = loop {
        c += 1;
        if config[c] == 3 {
            break config[c];
        }
    };
    x.set(5, last);
}

#[test]
fn exits_the_host_decides() {
    let text = traced(host_exits).to_string();
    assert!(!text.contains("99"), "dead code was traced:\n{text}");
    insta::assert_snapshot!(text);
}

#[kernel]
fn logic(_: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    let host = n.eq_to(3);
    let flag = var(true);
    let pure = n > 1 && n < 9 || n == 77;
    let guarded = n < 64 && x.get(n) > 0;
    let either = n >= 64 || x.get(n) == 0;
    let mixed = true && n < 5;
    let skipped = false && x.get(3) < 5;
    if pure && guarded && !either && mixed && flag && host || skipped {
        x.set(1, 1);
    }
    let t = y.load(0, 16);
    let m = t > 0.5 && t < n.to_f32() || t == 3.0;
    if flag || m.any() {
        y.store(0, m.select(t, 1.0));
    }
}

#[test]
fn logic_of_all_mixes() {
    insta::assert_snapshot!(traced(logic));
}

/// Yields its smaller argument.
#[kernel]
fn smaller<T: peerwarp_codegen::dsl::Num>(a: Val<T>, b: Val<T>) -> Val<T> {
    if a < b { a } else { b }
}

/// Chooses on the host or on the device, as the condition is.
#[kernel]
fn either<C: Cond, T: MergeIf<C::Kind>>(c: C, a: T, b: T) -> T {
    if c { a } else { b }
}

#[kernel]
fn find(x: Ptr<u32>, wanted: u32, n: Val<u32>) -> Val<u32> {
    let mut at = var(n);
    for i in 0..n {
        if x.get(i) == wanted {
            at = i;
            break;
        }
    }
    at.get()
}

#[kernel]
fn helpers(b: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let least = smaller(x.get(0), x.get(1));
    let least_y = smaller(y.get(0), y.get(1));
    let chosen = either(least == 2, least_y, either(true, y.get(2), y.get(3)));
    y.set(1, chosen);
    b.split(2, |g| {
        let at = find(x, 5, least);
        if g.index() == 0 {
            x.set(at, 1);
        }
    });
    y.set(0, least_y);
}

#[test]
fn helper_functions_and_closures() {
    insta::assert_snapshot!(traced(helpers));
}

#[kernel]
fn tiles(_: Group, x: Ptr<u32>, y: Ptr<f32>) {
    let n = x.get(0);
    let mut acc = var(splat(0.0, 32));
    for i in 0..n {
        let row = y.load(i, 32);
        acc += row;
        let kept = if n > 3 { row } else { splat(1.0, 32) };
        if (row < 0.0).any() {
            acc = kept;
        }
    }
    let mut sum = acc.get();
    for k in 0..2 {
        sum = sum + y.load(k, 32);
    }
    y.store(0, sum);
}

#[test]
fn tiles_in_control_flow() {
    insta::assert_snapshot!(traced(tiles));
}

#[kernel]
fn yields(_: Group, x: Ptr<u32>, _: Ptr<f32>) {
    let n = x.get(0);
    for i in 0..n {
        // Both ways of leaving a region by one arm of a yielding `if`.
        let a = if i > 3 { i } else { continue };
        let b = if i > 9 { break } else { i * 3 };
        if a == b {
            x.set(0, a);
            break;
        } else {
            continue;
        }
    }
    let [a, b] = if n > 1 { [n, n + 1] } else { [n + 2, n] };
    let (sum, five, product) = (a + b, 5, a * b);
    x.set(sum + five, product);
}

#[test]
fn arms_that_leave() {
    insta::assert_snapshot!(traced(yields));
}
