//! Loops, functions and values that leave what the device decides; signals in it.

use std::cell::Cell;

use super::*;

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
fn dynamic_loops_left_before_their_end() {
    #[kernel]
    fn broken(a: Args) {
        for row in a.g.dynamic(8, Some(a.next_row.counter(0))) {
            if a.x.get(row) == 0 {
                break;
            }
        }
    }
    #[kernel]
    fn from_a_loop_inside(a: Args) {
        'rows: for row in a.g.dynamic(8, Some(a.next_row.counter(0))) {
            for i in 0..a.x.get(row) {
                if a.x.get(i) == 0 {
                    break 'rows;
                }
            }
        }
    }
    #[kernel]
    fn to_a_loop_around(a: Args) {
        'tries: for try_ in 0..a.x.get(0) {
            for row in a.g.dynamic(8, Some(a.next_row.counter(0))) {
                if a.x.get(row) == try_ {
                    continue 'tries;
                }
            }
        }
    }
    errors! {
        "break": broken
        "break of the loop around": from_a_loop_inside
        "in a loop that runs several times": to_a_loop_around
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
