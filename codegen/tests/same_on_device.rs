//! A function computes on the (simulated) device what it computes on the host: every body below is compiled as plain
//! Rust over a vector, and as a `#[kernel]` over device memory.
#![allow(
    clippy::needless_borrows_for_generic_args,
    clippy::manual_is_multiple_of,
    clippy::assign_op_pattern,
    reason = "one text has to be both a plain function and a kernel"
)]

use std::sync::Arc;

use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

/// Words of memory that each function works on.
const WORDS: usize = 32;

/// Plain Rust's version of what the bodies use.
mod host {
    use std::cell::RefCell;

    /// Memory.
    pub struct Words(pub RefCell<Vec<u32>>);

    /// What an index or a value may be.
    pub trait Word {
        fn word(self) -> u32;
    }
    impl Word for u32 {
        fn word(self) -> u32 {
            self
        }
    }
    impl Word for &u32 {
        fn word(self) -> u32 {
            *self
        }
    }

    impl Words {
        pub fn get(&self, i: impl Word) -> u32 {
            self.0.borrow()[i.word() as usize]
        }
        pub fn set(&self, i: impl Word, value: impl Word) {
            self.0.borrow_mut()[i.word() as usize] = value.word();
        }
    }

    pub fn var(x: u32) -> u32 {
        x
    }
}

macro_rules! twice {
    ($(fn $name:ident($x:ident) $body:block)*) => {
        mod plain {
            use super::host::*;
            $(pub fn $name($x: &Words) $body)*
        }
        mod device {
            use peerwarp_codegen::dsl::prelude::*;
            $(#[kernel] pub fn $name($x: Ptr<u32>) $body)*
        }
        $(#[test]
        fn $name() {
            same(stringify!($name), plain::$name, device::$name);
        })*
    };
}

/// Runs both versions on several memories and compares what they leave.
fn same(name: &str, plain: fn(&host::Words), device: fn(peerwarp_codegen::dsl::Ptr<u32>)) {
    let kernel = trace(TraceMeta::new(name, 2, 32, 1), |p| {
        let x = p.arg("x", WORDS as u64);
        peerwarp_codegen::dsl::role("main", 1, |_| device(x));
    });
    let kernel = kernel.unwrap_or_else(|e| panic!("{e}"));
    let text = kernel.to_string();
    let kernel = Arc::new(Compiled::new(verify(kernel).unwrap_or_else(|e| panic!("{e}\n{text}"))));
    for seed in 0..24u32 {
        let some = |i: u32| (seed + 1).wrapping_mul(0x9e37_79b9).rotate_left(i + seed) >> 16;
        let mut memory: Vec<u32> = (0..WORDS as u32).map(|i| some(i) % (3 + seed)).collect();
        memory[0] = seed % 9;
        let mut machine = Machine::new(2);
        machine.buffers_of(kernel.kernel()).unwrap();
        for rank in 0..2 {
            machine.write(rank, "x", 0, &memory).unwrap();
        }
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let words = host::Words(memory.clone().into());
        plain(&words);
        let computed = outcome.memory.read::<u32>(0, "x").unwrap();
        assert_eq!(computed, words.0.into_inner(), "{name} on {memory:?}\n{text}");
    }
}

twice! {
    fn arms(x) {
        let n = x.get(0);
        let (least, most) = if n < 4 { (n, 4) } else { (x.get(1), n * 2) };
        x.set(1, least);
        x.set(2, most);
        let class = if n == 0 { 10 } else if n <= 2 || x.get(n) == 1 { n } else if n != 5 && n < 7 { 30 } else { n + 1 };
        x.set(3, class);
    }

    fn short_circuit(x) {
        let n = x.get(0);
        let mut checks = var(0u32);
        if n > 2 && { checks += 1; x.get(n) > 1 } || { checks += 10; x.get(1) > 2 } {
            x.set(4, 1);
        }
        let inside = n < 32 && x.get(n) != 0 && x.get(x.get(n)) < 3;
        if inside || n == 1 {
            x.set(5, 1);
        }
        x.set(6, &checks);
    }

    fn leaving_loops(x) {
        let n = x.get(0);
        let mut seen = var(0u32);
        'rows: for i in 0..n {
            let v = x.get(i + 1);
            if v == 2 {
                continue;
            }
            for j in 0..v {
                if j == 6 {
                    continue 'rows;
                }
                if x.get(j) == 7 {
                    break 'rows;
                }
                seen += 1;
                if seen > 40 {
                    break;
                }
            }
            for k in 0..3 {
                if k == 1 {
                    continue;
                }
                if v == k {
                    continue 'rows;
                }
                seen += 100;
            }
            seen += 1000;
        }
        x.set(9, &seen);
    }

    fn arms_that_leave(x) {
        let n = x.get(0);
        for i in 1..n {
            let a = if x.get(i) > 1 { x.get(i) } else { continue };
            let b = if a == 5 { break } else { a + i };
            let c = if b > 9 {
                b
            } else if b == 3 {
                x.set(30, b);
                break;
            } else {
                1
            };
            x.set(i, a + b * c);
            if c == 1 {
                continue;
            } else {
                x.set(31, i);
            }
            x.set(29, a);
        }
    }

    fn whiles(x) {
        let mut left = var(x.get(0) + 3);
        let mut steps = var(0u32);
        'run: while left != 1 && steps < 20 {
            steps += 1;
            if &left % 2 == 0 {
                left /= 2;
                continue;
            }
            let mut i = var(0u32);
            while i < 4 {
                i += 1;
                if x.get(&i) == 0 {
                    break;
                }
                if x.get(&i) == 11 {
                    break 'run;
                }
                if i == 3 && left > 30 {
                    left = 7;
                    continue 'run;
                }
            }
            left = left * 3 + 1;
        }
        x.set(7, &steps);
        x.set(8, &left);
    }

    fn ranges(x) {
        let n = x.get(0);
        for i in (n..20).step_by(3) {
            x.set(i, x.get(i) + 1);
        }
        for i in 1..=n {
            x.set(i, x.get(i) * 2);
        }
        for i in n..n {
            x.set(i, 999);
        }
        let mut total = x.get(1);
        for k in 2..6 {
            total = total + x.get(k);
        }
        x.set(21, total);
    }

    fn hosts_decisions(x) {
        'rows: for i in 0..x.get(0) {
            for c in [1, 2, 3] {
                if c == 2 {
                    if i > 4 {
                        x.set(i, c);
                    }
                    continue 'rows;
                }
                x.set(i + 1, c);
            }
            x.set(20, 99);
        }
        let pick = |a, b| if a < b { a } else { b };
        x.set(22, pick(x.get(1), x.get(2)));
        let least = {
            let (a, b) = (x.get(3), x.get(4));
            if a == b {
                a
            } else {
                pick(a, b) + 1
            }
        };
        x.set(23, least);
    }
}
