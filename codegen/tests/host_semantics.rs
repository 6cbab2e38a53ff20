//! On host values a function computes with `#[kernel]` what it computes without. Every function below is compiled both
//! ways and compared.
#![allow(clippy::all)]

/// The same functions twice: plain in `plain`, with the attribute in `kernel`.
macro_rules! twice {
    ($($(#[$doc:meta])* fn $name:ident $([$($g:tt)*])? ($($args:tt)*) $(-> $out:ty)? $body:block)*) => {
        mod plain {
            #[allow(unused_imports)]
            use super::*;
            $(pub fn $name $(<$($g)*>)? ($($args)*) $(-> $out)? $body)*
        }
        mod kernel {
            #[allow(unused_imports)]
            use super::*;
            $(#[peerwarp_macros::kernel] pub fn $name $(<$($g)*>)? ($($args)*) $(-> $out)? $body)*
        }
    };
}

/// Asserts that both versions give the same for the same arguments.
macro_rules! same {
    ($name:ident: $(($($arg:expr),*))*) => {
        $(assert_eq!(plain::$name($($arg),*), kernel::$name($($arg),*), "{}", stringify!($name($($arg),*)));)*
    };
}

#[derive(Clone, Debug, PartialEq, PartialOrd, Default)]
struct Point {
    x: i32,
    y: i32,
    tags: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Small,
    Large,
}

struct Counter {
    n: u32,
    seen: Vec<u32>,
}

impl Counter {
    #[peerwarp_macros::kernel]
    fn bump(&mut self, by: u32) -> u32 {
        if by > 2 {
            self.n += by;
            self.seen.push(by);
        } else {
            self.n = self.n + 1;
        }
        self.n
    }
}

fn half(x: u32) -> Result<u32, String> {
    if x % 2 == 0 { Ok(x / 2) } else { Err(format!("{x} is odd")) }
}

fn add_one(v: &mut Vec<u32>) {
    for x in v {
        *x += 1;
    }
}

twice! {
    fn fibonacci(n: u32) -> u64 {
        let (mut a, mut b) = (0u64, 1u64);
        for _ in 0..n {
            (a, b) = (b, a + b);
        }
        a
    }

    fn try_operator(xs: &[u32]) -> Result<u32, String> {
        let mut sum = 0;
        for &x in xs {
            if x > 100 {
                return Err("too large".to_string());
            }
            sum += half(x)?;
        }
        Ok(sum)
    }

    fn labels(n: u32) -> Vec<(u32, u32)> {
        let mut found = vec![];
        'outer: for i in 0..n {
            for j in 0..n {
                if j > i {
                    continue 'outer;
                }
                if i * j > 20 {
                    break 'outer;
                }
                if (i + j) % 3 == 1 {
                    continue;
                }
                found.push((i, j));
            }
        }
        found
    }

    fn loop_with_value(limit: u32) -> u32 {
        let mut n = 1;
        let found = 'search: loop {
            n += 1;
            let mut k = 2;
            while k < n {
                if n % k == 0 && n > limit {
                    break 'search n;
                }
                k += 1;
            }
            if n > 2 * limit {
                break 0;
            }
        };
        found + n
    }

    fn block_with_value(x: i32) -> i32 {
        let y = 'b: {
            if x < 0 {
                break 'b -1;
            }
            if x == 0 {
                break 'b 0;
            }
            x * 10
        };
        y + 1
    }

    fn closures(xs: Vec<i32>) -> (Vec<i32>, i32) {
        let sign = |x: i32| {
            if x < 0 {
                return -1;
            }
            if x > 0 { 1 } else { 0 }
        };
        let mut total = 0;
        let mut add = |x: i32| {
            total += x;
            total
        };
        let sums: Vec<i32> = xs.iter().map(|&x| add(sign(x))).collect();
        let mut sorted = sums.clone();
        sorted.sort_by(|a, b| if a < b { std::cmp::Ordering::Greater } else { std::cmp::Ordering::Less });
        (sorted, total)
    }

    fn short_circuit(xs: &[u32], i: usize) -> bool {
        i < xs.len() && xs[i] > 3 || i == 7
    }

    fn diverging_right(x: Option<u32>) -> u32 {
        let ok = x.is_some() || return 17;
        if ok && x == Some(3) {
            return 1;
        }
        2
    }

    fn mixed_compare(a: &str, b: String, c: Option<f32>, d: (u8, char)) -> Vec<bool> {
        vec![a < "m", b == a, c > Some(0.5), d <= (3, 'x'), c != None, b.as_str() >= "a"]
    }

    fn ranges(v: &[u64]) -> u64 {
        let mut sum = 0;
        for i in 0..v.len() {
            sum += v[i];
        }
        for i in (1..v.len()).rev().step_by(2) {
            sum = sum * 3 + v[i];
        }
        for i in 2..=4u64 {
            sum += i;
        }
        for c in 'a'..'d' {
            sum += c as u64;
        }
        let n = 4;
        for i in 0..n {
            sum += i;
        }
        sum
    }

    fn places(p: Point) -> Point {
        let mut p = p;
        p.x = 3;
        p.y += p.x;
        let mut grid = [[0; 3]; 3];
        let mut i = 0;
        while i < 3 {
            grid[i][2 - i] = p.x + i as i32;
            grid[i][i] += 1;
            i += 1;
        }
        let r = &mut p;
        r.x = grid[1][1];
        r.tags.push(format!("{:?}", grid));
        *r = Point { y: r.y + 1, ..r.clone() };
        p
    }

    fn late(x: u32) -> (u32, String) {
        let a;
        let b: String;
        a = x + 1;
        b = String::from("late");
        (a, b)
    }

    fn rebuilt(words: Vec<String>) -> Vec<String> {
        let mut w = words;
        if w.len() > 1 {
            w = w.into_iter().rev().collect();
        }
        w.sort_by_key(|s| s.len());
        w = { w.retain(|s| s != "b"); w };
        w
    }

    fn boxed(x: i32) -> i32 {
        let mut f: Box<dyn Fn(i32) -> i32> = Box::new(|a| a + 1);
        if x > 3 {
            f = Box::new(move |a| a * x);
        }
        f(10)
    }

    fn lent(n: u32) -> Vec<u32> {
        let mut v: Vec<u32> = (0..n).collect();
        add_one(&mut v);
        let last = &mut v[0];
        *last = 99;
        for x in &mut v {
            *x *= 2;
        }
        for x in v.iter_mut() {
            if *x > 50 {
                *x -= 50;
            }
        }
        v
    }

    fn matches(x: i32, k: Kind) -> i32 {
        let a = match x {
            0 => 1,
            1..=5 => 2,
            n if n < 0 => n,
            -9 | 77 => 5,
            other => {
                let mut o = other;
                o += 1;
                if o > 50 {
                    return -7;
                }
                o
            }
        };
        let b = match (k, x > 3) {
            (Kind::Small, true) => 10,
            (Kind::Small, false) => 20,
            (Kind::Large, big) => if big { 30 } else { 40 },
        };
        a + b + match x == 2 { true => 100, false => 0 }
    }

    fn let_chains(v: &[Option<u32>]) -> u32 {
        let mut sum = 0;
        for item in v {
            let Some(x) = item else { continue };
            if let Some(y) = v.first() && let Some(mut z) = *y && *x > 2 {
                z += 1;
                sum += z;
            } else if let None = v.last().unwrap() {
                sum += 1000;
            } else {
                sum += 1;
            }
        }
        sum
    }

    fn drained(n: u32) -> Vec<u32> {
        let mut stack = vec![n];
        let mut out = vec![];
        while let Some(x) = stack.pop() {
            if x == 0 {
                continue;
            }
            if out.len() >= 10 {
                break;
            }
            out.push(x);
            stack.push(x / 2);
            if x % 3 == 0 {
                stack.push(x / 3);
            }
        }
        out
    }

    fn largest [T: PartialOrd + Copy] (xs: &[T]) -> Option<T> {
        let mut best: Option<T> = None;
        for &x in xs {
            match best {
                Some(b) if b >= x => {}
                _ => best = Some(x),
            }
        }
        best
    }

    fn numbers(x: f32, n: u64, small: u8) -> (f32, u64, u8, i64) {
        let a = if x > 0.0 { x } else { 0.0 };
        let b = if n < 3 { 7 } else { n };
        let c = if small == 1 { small } else if b > 3 { 5 } else { small + 1 };
        let d = if a < 1.0 {
            -1
        } else if b > 100 {
            return (a, b, c, 7);
        } else {
            1
        };
        let (e, f) = if b > 5 { (b, 1) } else { (2, c) };
        (a, b + e, c + f, d)
    }

    fn casts(x: i64, k: Kind, c: char) -> (u8, f32, u32, i32, usize) {
        let n = 5;
        let big = (x + n) as u8 as f32 as u32;
        (x as u8, x as f32 / 3.0, c as u32 + big, k as i32, if x > 3 { n as usize } else { -1i32 as usize })
    }

    fn asserted(n: u32) -> u32 {
        assert!(n < 100, "n is {n}");
        debug_assert!(n != 50);
        assert_eq!(n % 1, 0);
        let text = format!("{}-{small}", n > 3, small = n < 3);
        text.len() as u32
    }

    fn written(n: u32) -> String {
        use std::fmt::Write;
        let mut out = String::new();
        for i in 0..n {
            if i > 0 {
                out.push_str(", ");
            }
            write!(out, "{i}").unwrap();
        }
        out
    }

    fn whiles(n: u64) -> Vec<u64> {
        let mut x = n;
        let mut seen = vec![x];
        'run: while x != 1 && seen.len() < 200 {
            x = if x % 2 == 0 { x / 2 } else { 3 * x + 1 };
            let mut skip = 0;
            while skip < 3 {
                skip += 1;
                if x == 5 && skip == 2 {
                    continue 'run;
                }
                if x == 1000 {
                    break 'run;
                }
            }
            seen.push(x);
        }
        seen
    }

    fn destructured(points: Vec<Point>) -> (i32, i32) {
        let mut best = (i32::MIN, 0);
        for Point { x, mut y, .. } in points {
            y -= 1;
            if (x, y) > best {
                best = (x, y);
            }
        }
        best.1 += 1;
        best
    }

    fn nested_items(x: u32) -> u32 {
        const LIMIT: u32 = 1 << 3;
        fn twice(x: u32) -> u32 {
            if x < LIMIT { 2 * x } else { x }
        }
        let arr = [0u8; if LIMIT > 2 { 3 } else { 4 }];
        twice(x) + arr.len() as u32
    }

    fn shadowed(x: u32) -> u32 {
        let mut n = x;
        n += 1;
        let f = |mut n: u32| {
            n += 10;
            n
        };
        let n = if n > 3 { f(n) } else { n };
        n
    }
}

#[test]
fn control_flow() {
    same!(fibonacci: (0) (1) (30));
    same!(try_operator: (&[2, 4, 6]) (&[2, 3]) (&[200]) (&[]));
    same!(labels: (0) (4) (12));
    same!(loop_with_value: (0) (5) (31));
    same!(block_with_value: (-3) (0) (4));
    same!(closures: (vec![3, -1, 0, 5]));
    same!(short_circuit: (&[1, 9], 0) (&[1, 9], 1) (&[1, 9], 7));
    same!(diverging_right: (None) (Some(3)) (Some(4)));
    same!(let_chains: (&[Some(1), Some(3), None]) (&[None, Some(1)]) (&[Some(5)]));
    same!(drained: (0) (100) (729));
    same!(whiles: (1) (6) (27) (40));
}

#[test]
fn values_and_places() {
    same!(mixed_compare: ("abc", "abc".into(), Some(1.0), (3, 'x')) ("z", "y".into(), None, (4, 'a')));
    same!(ranges: (&[1, 2, 3, 4, 5]) (&[]));
    same!(places: (Point { x: 1, y: 2, tags: vec![] }));
    same!(late: (3));
    same!(rebuilt: (vec!["ccc".into(), "b".into(), "aa".into()]) (vec![]));
    same!(boxed: (3) (4));
    same!(lent: (5) (60));
    same!(matches: (0, Kind::Small) (2, Kind::Large) (-4, Kind::Small) (9, Kind::Large) (60, Kind::Small));
    same!(largest: (&[3, 1, 4]) (&[] as &[i32]));
    same!(numbers: (-1.5, 2, 1) (2.5, 9, 0) (0.5, 3, 9) (3.0, 101, 1));
    same!(casts: (300, Kind::Small, 'x') (-1, Kind::Large, 'y'));
    same!(asserted: (1) (7));
    same!(written: (0) (4));
    same!(destructured: (vec![Point { x: 1, y: 2, tags: vec![] }, Point { x: 1, y: 5, tags: vec![] }]) (vec![]));
    same!(nested_items: (3) (9));
    same!(shadowed: (1) (7));
}

#[test]
fn methods() {
    let mut c = Counter { n: 0, seen: vec![] };
    assert_eq!((c.bump(1), c.bump(5), c.bump(2)), (1, 6, 7));
    assert_eq!(c.seen, [5]);
}

#[test]
fn host_escape() {
    /// Both arms move `v` and initialise `w`, which is an error unless the `if` stays Rust's.
    #[peerwarp_macros::kernel]
    fn choose(take: bool, v: Vec<u32>) -> Vec<u32> {
        let w;
        #[host]
        if take {
            w = v;
        } else {
            w = v.into_iter().map(|x| x + 1).collect();
        }
        let n = #[host]
        if w.len() > 3 { w.len() } else { 0 };
        #[host]
        for _ in 0..n {
            if n > 4 {
                break;
            }
        }
        w
    }
    assert_eq!(choose(true, vec![1]), [1]);
    assert_eq!(choose(false, vec![1]), [2]);
}

#[test]
#[should_panic(expected = "assertion failed: n < 100")]
fn assertions_keep_their_text() {
    #[peerwarp_macros::kernel]
    fn check(n: u32) {
        assert!(n < 100);
    }
    check(100);
}
