//! What is folded at trace time is what the device would compute: every operation on constants, against the simulator
//! on the same values read from memory.

use std::fmt::Debug;
use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Constant, FromRaw, TraceMeta, rt, trace};
use peerwarp_codegen::ir::{BinaryOp, Const, Loc, OpKind, ValueOp, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

/// Stores results computed twice, of operands that are constants and of operands that are read, side by side.
struct Twice<'a, T: Element> {
    values: &'a [T],
    read: Ptr<T>,
    next: u32,
    folded: Ptr<u64>,
    computed: Ptr<u64>,
}

/// An element type with its values and the 64 bits that a result is compared by.
trait Probe: Constant + Debug {
    fn bits(v: Val<Self>) -> Val<u64>;
}
impl Probe for u32 {
    // Half by half: a wrapped number as a whole is reported where its size is used.
    fn bits(v: Val<u32>) -> Val<u64> {
        (v >> 16).to_u64() * 65536 + (v % 65536).to_u64()
    }
}
impl Probe for i32 {
    fn bits(v: Val<i32>) -> Val<u64> {
        v.to_u32().to_u64()
    }
}
impl Probe for u64 {
    fn bits(v: Val<u64>) -> Val<u64> {
        v
    }
}
impl Probe for f32 {
    fn bits(v: Val<f32>) -> Val<u64> {
        v.bitcast::<u32>().to_u64()
    }
}
impl Probe for bool {
    fn bits(v: Val<bool>) -> Val<u64> {
        v.cast()
    }
}

impl<T: Element + IntoVal<T>> Twice<'_, T> {
    /// `f` of every value.
    fn one<R: Probe>(&mut self, f: impl Fn(Val<T>) -> Val<R>) {
        for (i, &x) in self.values.iter().enumerate() {
            let folded = f(x.val());
            assert!(known(folded).is_some(), "case {}: not folded", self.next);
            self.store(folded, f(self.read.get(i)));
        }
    }

    /// `f` of every pair of values that `allowed` lets through.
    fn two<R: Probe>(&mut self, allowed: impl Fn(T, T) -> bool, f: impl Fn(Val<T>, Val<T>) -> Val<R>) {
        for (i, &x) in self.values.iter().enumerate() {
            for (j, &y) in self.values.iter().enumerate().filter(|(_, y)| allowed(x, **y)) {
                let folded = f(x.val(), y.val());
                assert!(known(folded).is_some(), "case {}: not folded", self.next);
                self.store(folded, f(self.read.get(i), self.read.get(j)));
            }
        }
    }

    fn store<R: Probe>(&mut self, folded: Val<R>, computed: Val<R>) {
        self.folded.set(self.next, R::bits(folded));
        self.computed.set(self.next, R::bits(computed));
        self.next += 1;
    }
}

fn agree<T>(values: &[T], cases: impl FnOnce(&mut Twice<'_, T>))
where
    T: Element + IntoVal<T> + bytemuck::Pod,
{
    const MOST: u64 = 4096;
    let mut made = 0;
    let kernel = trace(TraceMeta::new("fold", 1, 32, 1), |p| {
        let read: Ptr<T> = p.arg("values", values.len() as u64);
        let (folded, computed) = (p.arg("folded", MOST), p.arg("computed", MOST));
        role("all", 1, |_| {
            let mut twice = Twice { values, read, next: 0, folded, computed };
            cases(&mut twice);
            made = twice.next;
        });
    });
    let kernel = Arc::new(Compiled::new(verify(kernel.unwrap_or_else(|e| panic!("{e}"))).unwrap()));
    let mut machine = Machine::new(1);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.write(0, "values", 0, values).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
    let read = |name| outcome.memory.read::<u64>(0, name).unwrap()[..made as usize].to_vec();
    let wrong: Vec<_> =
        read("folded").into_iter().zip(read("computed")).enumerate().filter(|(_, (f, c))| f != c).collect();
    assert!(wrong.is_empty(), "case, folded and computed: {wrong:x?}");
}

/// Comparisons, which all types have.
macro_rules! comparisons {
    ($t:ident) => {
        $t.two(|_, _| true, |a, b| a.eq_to(b));
        $t.two(|_, _| true, |a, b| a.ne_to(b));
        $t.two(|_, _| true, |a, b| a.lt(b));
        $t.two(|_, _| true, |a, b| a.le(b));
        $t.two(|_, _| true, |a, b| a.gt(b));
        $t.two(|_, _| true, |a, b| a.ge(b));
        $t.two(|_, _| true, |a, b| a.lt(b).select(a, b));
    };
}

/// Integer arithmetic and conversions.
macro_rules! integers {
    ($t:ident, $width:literal) => {
        $t.two(|_, _| true, |a, b| a + b);
        $t.two(|_, _| true, |a, b| a - b);
        $t.two(|_, _| true, |a, b| a * b);
        $t.two(|x, y| x.checked_div(y).is_some(), |a, b| a / b);
        $t.two(|x, y| x.checked_div(y).is_some(), |a, b| a % b);
        $t.two(|_, _| true, |a, b| a.min(b));
        $t.two(|_, _| true, |a, b| a.max(b));
        $t.two(|_, _| true, |a, b| a & b);
        $t.two(|_, _| true, |a, b| a | b);
        $t.two(|_, _| true, |a, b| a ^ b);
        $t.two(|_, y| (0..$width).contains(&y), |a, b| a << b);
        $t.two(|_, y| (0..$width).contains(&y), |a, b| a >> b);
        $t.one(|a| !a);
        $t.one(|a| a.to_u32());
        $t.one(|a| a.to_i32());
        $t.one(|a| a.to_u64());
        $t.one(|a| a.to_f32());
        comparisons!($t);
    };
}

#[test]
fn unsigned() {
    agree(&[0u32, 1, 2, 7, 31, 0x7fff_ffff, 0x8000_0000, 0xffff_fff0, u32::MAX], |t| {
        integers!(t, 32);
        t.one(|a| a.popcount());
        t.one(|a| a.trailing_zeros());
    });
}

#[test]
fn signed() {
    agree(&[0i32, 1, 2, -1, -7, 31, i32::MAX, i32::MIN], |t| {
        integers!(t, 32);
        t.one(|a| -a);
        t.one(|a| a.abs());
    });
}

#[test]
fn the_smallest_integer_by_minus_one_is_refused() {
    for op in [|a: Val<i32>, b: Val<i32>| a / b, |a: Val<i32>, b: Val<i32>| a % b] {
        let traced = trace(TraceMeta::new("fold", 1, 32, 1), |p| {
            let out: Ptr<i32> = p.arg("out", 1);
            role("all", 1, |_| out.set(0, op(i32::MIN.val(), (-1i32).val())));
        });
        let error = traced.unwrap_err();
        assert!(error.message.contains("the smallest i32 divided by -1"), "{error}");
    }
}

#[test]
fn wide() {
    agree(&[0u64, 1, 7, 40, 63, 0xffff_ffff, 1 << 32, (1 << 53) + 1, 1 << 63, u64::MAX], |t| {
        integers!(t, 64);
        t.one(|a| a.popcount());
        t.one(|a| a.trailing_zeros());
        t.one(|a| bit(a.to_u32() & 63));
    });
}

#[test]
fn floats() {
    let values =
        [0.0f32, -0.0, 1.0, -1.5, 0.1, 3e9, -3e9, 5e9, 1e-40, f32::MAX, f32::INFINITY, f32::NEG_INFINITY];
    agree(&values, |t| {
        t.two(|_, _| true, |a, b| a + b - b);
        t.two(|_, _| true, |a, b| a * b);
        t.one(|a| -a);
        t.one(|a| a.abs());
        t.one(|a| a.to_u32());
        t.one(|a| a.to_i32());
        t.one(|a| a.to_u64());
        comparisons!(t);
    });
    // Quotients: 0 / 0 and the like are NaN, whose bits are the target's own.
    agree(&[1.0f32, -1.5, 0.1, 3e9, f32::MAX, 1e-40], |t| t.two(|_, _| true, |a, b| a / b));
    agree(&[f32::NAN, 1.0], |t| {
        comparisons!(t);
        t.one(|a| a.to_u32());
    });
}

#[test]
fn identities() {
    // One operand is known: the result is the other one, or a constant.
    let same = |values: &[u32], f: fn(Val<u32>) -> Val<u32>, g: fn(u32) -> u32| {
        let kernel = trace(TraceMeta::new("identity", 1, 32, 1), |p| {
            let (x, y): (Ptr<u32>, Ptr<u32>) = (p.arg("x", 8), p.arg("y", 8));
            role("all", 1, |_| (0..8).for_each(|i: u32| y.set(i, f(x.get(i)))));
        });
        let kernel = Arc::new(Compiled::new(verify(kernel.unwrap()).unwrap()));
        let mut machine = Machine::new(1);
        machine.buffers_of(kernel.kernel()).unwrap();
        machine.write(0, "x", 0, values).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
        let expected: Vec<u32> = values.iter().map(|&x| g(x)).collect();
        assert_eq!(outcome.memory.read::<u32>(0, "y").unwrap(), expected);
    };
    let values = [0, 1, 2, 3, 0x8000_0000, 0xffff_fffe, u32::MAX, 77];
    same(&values, |x| 0u32.val() - x, |x| 0u32.wrapping_sub(x));
    same(&values, |x| 0u32.val() + x, |x| x);
    same(&values, |x| x - 0u32.val(), |x| x);
    same(&values, |x| x * 0u32.val(), |_| 0);
    same(&values, |x| 0u32.val() * x, |_| 0);
    same(&values, |x| 1u32.val() * x, |x| x);
    same(&values, |x| x / 1u32.val(), |x| x);
    same(&values, |x| x % 1u32.val(), |_| 0);
    same(&values, |x| 1u32.val() / (x | 1), |x| u32::from(x | 1 == 1));
    same(&values, |x| 0u32.val() << (x & 31), |_| 0);
    same(&values, |x| 1u32.val() << (x & 31), |x| 1 << (x & 31));
    same(&values, |x| x << 0u32.val(), |x| x);
    same(&values, |x| x & 0u32.val(), |_| 0);
    same(&values, |x| x | 0u32.val(), |x| x);
    same(&values, |x| x ^ 0u32.val(), |x| x);
    same(&values, |x| x ^ x, |_| 0);
    same(&values, |x| x & x, |x| x);
    same(&values, |x| x - x, |_| 0);
    same(&values, |x| x.min(x) + x.max(0), |x| x.wrapping_mul(2));
}

/// The constant that a value is known to be.
fn known<T: Element>(v: Val<T>) -> Option<Const> {
    rt::known(v.to_raw(), Loc::caller())
}

#[test]
fn constants_are_folded() {
    let kernel = trace(TraceMeta::new("fold", 1, 32, 1), |p| {
        let x: Ptr<u32> = p.arg("x", 1);
        role("all", 1, |_| expect_constants(x));
    });
    verify(kernel.unwrap()).unwrap();
}

fn expect_constants(x: Ptr<u32>) {
    let (zero, one) = (0u32, 1u32);
    let k = |x: u32| IntoVal::<u32>::val(x);
    let i = |x: i32| IntoVal::<i32>::val(x);
    let f = |x: f32| IntoVal::<f32>::val(x);
    for (v, expected) in [
        (k(7) + 5, 12),
        (k(7) - 8, u32::MAX),
        (k(7) * 5, 35),
        (k(7) / 2, 3),
        (k(7) % 4, 3),
        (k(7) & 12, 4),
        (k(7) | 8, 15),
        (k(7) ^ 2, 5),
        (k(7) << 30, 0xc000_0000),
        (k(7) >> 1, 3),
        (k(7).min(5), 5),
        (k(7).max(5), 7),
        (!k(7), !7),
        (k(7).popcount(), 3),
        (k(0).trailing_zeros(), 32),
        (bit(40).trailing_zeros(), 40),
        (i(-1).to_u32(), u32::MAX),
        (f(-3.7).to_u32(), 0),
        (f(3.7).to_u32(), 3),
        (k(7).lt(8).select(k(1), 2), 1),
        (k(8).lt(8).select(k(1), 2), 2),
        (x.get(0) % one, 0),
        (x.get(0) * zero, 0),
        (x.get(0) & zero, 0),
    ] {
        assert_eq!(known(v), Some(Const::U32(expected)));
    }
    for (v, expected) in [(i(-7) / 2, -3), (i(-7) % 2, -1), (i(-8) >> 1, -4), (-i(3), -3), (i(-4).abs(), 4)] {
        assert_eq!(known(v), Some(Const::I32(expected)));
    }
    for (v, expected) in
        [(f(1.5) + 2.0, 3.5f32), (f(1.5) - 2.0, -0.5), (f(1.5) * 2.0, 3.0), (f(1.0) / 4.0, 0.25)]
    {
        assert_eq!(known(v), Some(Const::F32(expected.to_bits())));
    }
    let nan = f(f32::NAN);
    for (c, expected) in [
        (k(3).le(3), true),
        (k(3).ge(4), false),
        (k(3).gt(2), true),
        (k(3).ne_to(3), false),
        (i(-1).lt(0), true),
        (nan.eq_to(nan), false),
        (nan.ne_to(nan), true),
        (nan.lt(1.0), false),
        (nan.ge(1.0), false),
        (!k(3).eq_to(3), false),
        (k(3).eq_to(3) & k(3).eq_to(4), false),
    ] {
        assert_eq!(known(c), Some(Const::Bool(expected)));
    }
}

/// Either order is one expression. Sums of floats keep theirs, as a result that is no number is one of the operands.
#[test]
fn integers_have_their_constant_on_the_right() {
    let kernel = trace(TraceMeta::new("exchanged", 1, 32, 1), |p| {
        let (x, y) = (p.arg::<Ptr<u32>>("x", 64), p.arg::<Ptr<f32>>("y", 1));
        role("all", 1, |_| {
            let (one, each, number) = (x.get(0), x.load(0, 32), y.get(0));
            for masked in [255u32.val() & one, one & 255u32.val()] {
                x.set(1, masked);
            }
            for largest in [splat(7u32, 32).maximum(each), each.maximum(splat(7u32, 32))] {
                x.store(32, largest);
            }
            for sum in [0.5f32.val() + number, number + 0.5f32.val()] {
                y.set(0, sum);
            }
        });
    })
    .unwrap();
    let operations = |of: BinaryOp| {
        let ops = kernel.ops.iter();
        ops.filter(|op| matches!(op.kind, OpKind::Value(ValueOp::Binary { op, .. }) if op == of)).count()
    };
    assert_eq!([BinaryOp::And, BinaryOp::Max, BinaryOp::Add].map(operations), [1, 1, 2]);
}
