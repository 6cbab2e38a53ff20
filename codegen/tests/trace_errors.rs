//! What an author of a `#[kernel]` function is told while it is traced, for each mistake that rustc cannot see.
//!
//! The snapshots show the author's source from the reported place on: they pin that an error points at the right token,
//! and do not change when lines move. (Mistakes that do not need the attribute are in `dsl_errors.rs`.)

use std::cell::Cell;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::Loc;

/// What every case gets.
#[derive(Clone, Copy)]
struct Args {
    g: Group,
    x: Ptr<u32>,
    y: Ptr<f32>,
    inbox: Sym<u32>,
    flag: Flags,
    epoch: Epoch,
}

/// The error of a kernel that must fail.
fn error(name: &str, body: fn(Args)) -> String {
    let result = trace(TraceMeta::new("test", 8, 32, 4), |p| {
        let (x, y) = (p.arg("x", 64), p.arg("y", 64));
        let (inbox, flag) = (p.arg("inbox", 1024), p.arg("flag", 8));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 2, |g| body(Args { g, x, y, inbox, flag, epoch }));
    });
    let error = result.expect_err(name);
    let mut text = format!("# {name}\n{}\n  at {}\n", error.message, source(error.loc));
    for (loc, what) in &error.notes {
        text += &format!("  note: {what}: {}\n", source(*loc));
    }
    text + &format!("  help: {}\n", error.help)
}

/// The source from a place on.
fn source(loc: Loc) -> String {
    assert!(loc.file.ends_with("trace_errors.rs"), "{loc:?} is not the author's");
    let line = include_str!("trace_errors.rs").lines().nth(loc.line as usize - 1).unwrap();
    line[loc.col as usize - 1..].to_owned()
}

/// Snapshot of the errors of several kernels, each a body with the arguments as `$a`. Inside a macro the author's
/// tokens keep their spans, as the snapshots show.
macro_rules! errors {
    ($($name:literal: $case:ident)*) => {
        let text = [$(error($name, $case)),*].join("\n");
        insta::with_settings!({ omit_expression => true }, { insta::assert_snapshot!(text) });
    };
}

#[test]
fn plain_variables_where_the_device_decides() {
    #[kernel]
    fn traced_value(a: Args) {
        let n = a.x.get(0);
        let mut best = n;
        if n > 3 {
            best = n + 1;
        }
        a.x.set(1, best);
    }
    #[kernel]
    fn host_value(a: Args) {
        let mut count = 0;
        for i in 0..a.x.get(0) {
            a.x.set(i, count);
            count += 1;
        }
    }
    #[kernel]
    fn in_else_of_nested(a: Args) {
        let mut seen = false;
        for i in 0..a.x.get(0) {
            if i > 3 {
                a.x.set(i, 1);
            } else if i > 1 {
                for _ in 0..3 {
                    seen = !seen;
                }
            }
        }
    }
    #[kernel]
    fn tile(a: Args) {
        let mut sum = a.y.load(0, 32);
        let mut i = var(0u32);
        while i < 4 {
            sum = sum + a.y.load(&i, 32);
            i += 1;
        }
        a.y.store(0, sum);
    }
    #[kernel]
    fn field(a: Args) {
        struct State {
            rows: [u32; 2],
        }
        let mut state = State { rows: [0; 2] };
        if a.x.get(0) == 1 {
            state.rows[1] = 7;
        }
        a.x.set(1, state.rows[1]);
    }
    #[kernel]
    fn swapped(a: Args) {
        let (mut p, mut q) = (a.x.get(0), a.x.get(1));
        if p > q {
            (p, q) = (q, p);
        }
        a.x.set(p, q);
    }
    #[kernel]
    fn right_of_and(a: Args) {
        let mut tried = 0;
        let n = a.x.get(0);
        let ok = n < 9 && {
            tried += 1;
            a.x.get(n) > 3
        };
        a.x.set(tried, ok.cast::<u32>());
    }
    #[kernel]
    fn in_closure(a: Args) {
        let mut rows = 0;
        let mut note = |by: u32| rows += by;
        if a.x.get(0) == 1 {
            note(3);
        }
        a.x.set(0, rows);
    }
    errors! {
        "a traced value reassigned in an if": traced_value
        "a host counter in a device loop": host_value
        "in an else, inside an unrolled loop": in_else_of_nested
        "a tile in a while": tile
        "a field": field
        "a destructuring assignment": swapped
        "on the right of &&": right_of_and
        "in a closure called in an if": in_closure
    }
}

#[test]
fn host_effects_where_the_device_decides() {
    #[kernel]
    fn pushed(a: Args) {
        let mut found = vec![];
        for i in 0..a.x.get(0) {
            found.push(i);
        }
    }
    #[kernel]
    fn in_a_chain(a: Args) {
        let mut table = vec![vec![1]];
        if a.x.get(0) > 1 {
            let row = table.iter_mut().next();
            assert!(row.is_some());
        }
    }
    #[kernel]
    fn lent(a: Args) {
        fn mark(flags: &mut [bool]) {
            flags[0] = true;
        }
        let mut flags = [false; 4];
        if a.x.get(0) > 1 {
            mark(&mut flags);
        }
    }
    #[kernel]
    fn parameter(a: Args) {
        #[kernel]
        fn collect(a: Args, into: &mut Vec<u32>) {
            if a.x.get(0) > 1 {
                into.extend([1, 2]);
            }
        }
        collect(a, &mut vec![]);
    }
    #[kernel]
    fn written(a: Args) {
        use std::fmt::Write;
        let mut text = String::new();
        if a.x.get(0) > 1 {
            write!(text, "seen").unwrap();
        }
    }
    #[kernel]
    fn own_field(a: Args) {
        struct Rows {
            n: u32,
            found: Vec<u32>,
        }
        impl Rows {
            #[kernel]
            fn add(&mut self, a: Args) {
                self.n += 1;
                if a.x.get(0) > 1 {
                    self.found.push(self.n);
                }
            }
        }
        Rows { n: 0, found: vec![] }.add(a);
    }
    #[kernel]
    fn beside_let(a: Args) {
        let mut todo = vec![1, 2];
        for i in 0..a.x.get(0) {
            if let Some(k) = todo.pop() {
                a.x.set(i, k);
            }
        }
    }
    #[kernel]
    fn iterated(a: Args) {
        let mut slots = 0u32..;
        for i in 0..a.x.get(0) {
            a.x.set(i, slots.next().unwrap());
        }
    }
    errors! {
        "push": pushed
        "a method that lends": in_a_chain
        "&mut": lent
        "through a parameter": parameter
        "write!": written
        "a field of self": own_field
        "in the condition of if let": beside_let
        "an iterator of the host": iterated
    }
}

/// What the guard must not reject.
#[kernel]
fn allowed(a: Args) {
    let mut rows = vec![];
    let mut count = 0;
    for i in 0..4 {
        rows.push(a.x.get(i));
        count += 1;
    }
    let mut parcel = send_to(Peers::all());
    let mut acc = var(0u32);
    let mut sums = vec![var(1u32), var(2u32)];
    let lists = [vec![7]];
    let calls = Cell::new(0);
    if rows[0] > count {
        // Declared in here: the effect belongs to this branch.
        let mut inner = vec![rows[1]];
        inner.push(rows[2]);
        let mut last = inner[0];
        for v in inner.iter_mut() {
            *v = *v + 1;
            last = *v;
        }
        add(&mut acc, last);
        for acc in sums.iter_mut() {
            add(acc, last);
        }
        add(&mut sums[1], last);
        if let Some(list) = lists.first()
            && let Some(first) = list.clone().pop()
        {
            sums[0] += first;
        }
        parcel.put(&a.inbox, 0, splat(last, 32));
        put(&mut parcel, &a, last);
        #[host]
        calls.set(calls.get() + 1);
        #[host]
        rows.push(rows[0]);
    }
    parcel.signal(&a.flag, rank(), a.epoch);
    a.x.set(rows.len() as u32 + calls.get(), acc);
    a.x.set(0, &sums[0] + &sums[1]);
}

#[kernel]
fn add(acc: &mut Var<u32>, v: Val<u32>) {
    if v > 3 {
        *acc += v;
    } else {
        *acc = v;
    }
}

fn put(parcel: &mut Parcel, a: &Args, v: Val<u32>) {
    parcel.put(&a.inbox, 32, splat(v, 32));
}

#[test]
fn the_guard_lets_device_effects_and_local_state_pass() {
    let kernel = trace(TraceMeta::new("test", 8, 32, 4), |p| {
        let (x, y) = (p.arg("x", 64), p.arg("y", 64));
        let (inbox, flag) = (p.arg("inbox", 1024), p.arg("flag", 8));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("main", 2, |g| allowed(Args { g, x, y, inbox, flag, epoch }));
    });
    insta::assert_snapshot!(kernel.unwrap());
}

#[test]
fn loops_of_the_host_left_under_a_device_condition() {
    #[kernel]
    fn unrolled(a: Args) {
        for k in 0..8 {
            if a.x.get(k) == 0 {
                break;
            }
        }
    }
    #[kernel]
    fn endless(a: Args) {
        loop {
            if a.x.get(0) == 0 {
                break;
            }
        }
    }
    #[kernel]
    fn counted(a: Args) {
        let mut k = 0;
        while k < 8 {
            k += 1;
            if a.x.get(k) == 0 {
                continue;
            }
            a.x.set(k, 1);
        }
    }
    #[kernel]
    fn from_a_device_loop(a: Args) {
        'rows: for k in [1, 2, 3] {
            for i in 0..a.x.get(k) {
                a.x.set(i, 1);
                break 'rows;
            }
        }
    }
    #[kernel]
    fn block(a: Args) {
        let n = 'found: {
            if a.x.get(0) == 0 {
                break 'found 3;
            }
            4
        };
        a.x.set(0, n);
    }
    #[kernel]
    fn matched(a: Args) {
        let mut todo = vec![1, 2];
        while let Some(k) = todo.pop() {
            if a.x.get(k) == 0 {
                continue;
            }
        }
    }
    errors! {
        "break of an unrolled loop": unrolled
        "a spin with loop": endless
        "continue of a while of the host": counted
        "a host loop left from a device loop": from_a_device_loop
        "a labelled block": block
        "while let": matched
    }
}

#[test]
fn functions_left_under_a_device_condition() {
    #[kernel]
    fn returns(a: Args) {
        if a.x.get(0) == 0 {
            return;
        }
        a.x.set(0, 1);
    }
    #[kernel]
    fn from_a_loop(a: Args) {
        #[kernel]
        fn find(a: Args) -> Val<u32> {
            for i in 0..a.x.get(0) {
                return i;
            }
            rank()
        }
        a.x.set(0, find(a));
    }
    #[kernel]
    fn question_mark(a: Args) {
        #[kernel]
        fn rows(a: Args, n: Option<u32>) -> Option<u32> {
            if a.x.get(0) == 0 {
                a.x.set(0, n?);
            }
            n
        }
        rows(a, None);
    }
    #[kernel]
    fn closure(a: Args) {
        let twice = |v: Val<u32>| {
            if v > 3 {
                return v;
            }
            v * 2
        };
        a.x.set(0, twice(a.x.get(1)));
    }
    errors! {
        "return": returns
        "return out of a loop": from_a_loop
        "?": question_mark
        "return of a closure": closure
    }
}

#[test]
fn values_that_escape() {
    #[kernel]
    fn branch(a: Args) {
        let mut kept = a.x.get(0);
        if kept > 1 {
            #[host]
            kept = a.x.get(1);
        }
        a.x.set(0, kept);
    }
    #[kernel]
    fn loop_variable(a: Args) {
        let last = Cell::new(None);
        for i in 0..a.x.get(0) {
            last.set(Some(i));
        }
        a.x.set(0, last.get().unwrap());
    }
    #[kernel]
    fn condition(a: Args) {
        let read = Cell::new(None);
        let mut i = var(0u32);
        while i < 3 && {
            read.set(Some(a.x.get(&i)));
            read.get().unwrap() != 0
        } {
            i += 1;
        }
        a.x.set(0, read.get().unwrap());
    }
    #[kernel]
    fn split(a: Args) {
        let mut first = None;
        a.g.split(1, |g| first = Some(g.index()));
        a.x.set(0, first.unwrap());
    }
    #[kernel]
    fn yielded(a: Args) {
        let inner = Cell::new(a.x.get(0));
        if a.x.get(1) > 2 {
            inner.set(a.x.get(2));
        }
        let v = if a.x.get(3) > 4 { inner.get() } else { a.x.get(5) };
        a.x.set(0, v);
    }
    #[kernel]
    fn lengths(a: Args) {
        let n = a.x.get(0);
        let row = if n > 1 { a.y.load(0, 32) } else { a.y.load(0, 16) };
        a.y.store(0, row);
    }
    errors! {
        "a branch's value": branch
        "a loop variable": loop_variable
        "a value of a condition": condition
        "a group's value": split
        "what an arm yields": yielded
        "arms that yield tiles of two lengths": lengths
    }
}

#[test]
fn protocol() {
    #[kernel]
    fn empty(a: Args) {
        let row = send_to(Peers::all());
        if a.x.get(0) > 0 {
            row.signal(&a.flag, rank(), a.epoch);
        }
    }
    #[kernel]
    fn conditional(a: Args) {
        let mut row = send_to(Peers::all());
        row.put(&a.inbox, 0, a.x.load(0, 32));
        if a.x.get(0) > 0 {
            row.signal(&a.flag, rank(), a.epoch);
        }
    }
    errors! {
        "signalling what was not sent": empty
        "a signal that not every path reaches": conditional
    }
}
