//! Host effects where the device decides whether they happen.

use std::cell::Cell;

use super::*;

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
    fn tile_added_to(a: Args) {
        let mut sum = a.y.load(0, 32);
        for i in 0..a.x.get(0) {
            sum += a.y.load(i, 32);
        }
        a.y.store(0, sum);
    }
    #[kernel]
    fn scalar_added_to(a: Args) {
        let mut n = a.x.get(0);
        if n > 3 {
            n -= 1;
        }
        a.x.set(0, n);
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
        "a traced tile added to in a device loop": tile_added_to
        "a traced scalar changed in an if": scalar_added_to
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
        let next_row = p.arg("next_row", 1);
        role("main", 2, |g| allowed(Args { g, x, y, inbox, flag, next_row, epoch }));
    });
    insta::assert_snapshot!(kernel.unwrap());
}
