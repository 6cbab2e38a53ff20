//! One-operand arithmetic: a row an operation.

use serde::{Deserialize, Serialize};

use super::{Const, Dtype, functions};

/// An element type that arithmetic takes.
pub(crate) trait OneOperand: Copy {
    /// Applies an operation to each element. Where the verifier allows no such operand, elements stay as they are.
    fn unary(op: UnaryOp, a: &[Self], out: &mut [Self]);
    /// Applies one whose result counts bits.
    fn count(op: UnaryOp, a: &[Self], out: &mut [u32]);
}

#[inline(always)]
fn map<A: Copy, O>(a: &[A], out: &mut [O], f: impl Fn(A) -> O) {
    out.iter_mut().zip(a).for_each(|(o, &a)| *o = f(a));
}

/// Each row: the name in the text form, the operand's types, and whether zero low bits of the operand are zero in the result.
/// Then what it computes: of an integer, of a float exactly, of a float as each target rounds it, or as a number of bits.
macro_rules! unary_ops {
    ($(
        $(#[$doc:meta])*
        $op:ident = $name:literal of [$($dtype:ident)+], keeps_zeros: $keeps:literal
        $(, int: $int:expr)? $(, float: $float:expr)? $(, rounded: $rounded:expr)? $(, count: $count:expr)?;
    )+) => {
        /// One-operand arithmetic.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum UnaryOp { $($(#[$doc])* $op,)+ }

        impl UnaryOp {
            /// Every operation.
            pub const ALL: &[UnaryOp] = &[$(UnaryOp::$op),+];

            /// Function name.
            pub const fn name(self) -> &'static str {
                match self { $(UnaryOp::$op => $name,)+ }
            }

            /// Whether operands may be of a type.
            pub const fn allows(self, dtype: Dtype) -> bool {
                match self { $(UnaryOp::$op => matches!(dtype, $(Dtype::$dtype)|+),)+ }
            }

            /// Whether zero low bits of an integer operand are zero in the result.
            pub(crate) const fn keeps_zeros(self) -> bool {
                match self { $(UnaryOp::$op => $keeps,)+ }
            }

            /// Whether the result is a number of bits, a `U32` whatever the operand is.
            pub const fn counts(self) -> bool {
                match self { $(UnaryOp::$op => false $(|| unary_ops!(yes $count))?,)+ }
            }

            /// Whether a target rounds the result in a way of its own.
            pub const fn rounds(self) -> bool {
                match self { $(UnaryOp::$op => false $(|| unary_ops!(yes $rounded))?,)+ }
            }
        }

        impl OneOperand for f32 {
            #[inline(always)]
            fn unary(op: UnaryOp, a: &[f32], out: &mut [f32]) {
                match op {
                    $(UnaryOp::$op => { $(return map(a, out, $float);)? $(return map(a, out, $rounded);)? })+
                }
                out.copy_from_slice(a);
            }

            #[inline(always)]
            fn count(_: UnaryOp, a: &[f32], out: &mut [u32]) {
                map(a, out, f32::to_bits);
            }
        }

        unary_ops! { @int i32 $($op ($($int)?) ($($count)?))+ }
        unary_ops! { @int u32 $($op ($($int)?) ($($count)?))+ }
        unary_ops! { @int u64 $($op ($($int)?) ($($count)?))+ }
    };
    (@int $t:ident $($op:ident ($($int:expr)?) ($($count:expr)?))+) => {
        impl OneOperand for $t {
            #[inline(always)]
            fn unary(op: UnaryOp, a: &[$t], out: &mut [$t]) {
                match op { $(UnaryOp::$op => { $(return map(a, out, $int);)? })+ }
                out.copy_from_slice(a);
            }

            #[inline(always)]
            fn count(op: UnaryOp, a: &[$t], out: &mut [u32]) {
                match op { $(UnaryOp::$op => { $(return map(a, out, $count);)? })+ }
                out.fill(0);
            }
        }
    };
    (yes $_:expr) => { true };
}

unary_ops! {
    /// Negation. Integers wrap.
    Neg = "neg" of [I32 F32], keeps_zeros: true, int: |x| x.wrapping_neg(), float: |x| -x;
    /// Bitwise on integers, logical on `bool`.
    Not = "not" of [Bool I32 U32 U64], keeps_zeros: false, int: |x| !x;
    /// Magnitude. The smallest integer stays as it is.
    Abs = "abs" of [I32 F32], keeps_zeros: true, int: |x| x.max(x.wrapping_neg()), float: f32::abs;
    /// e to the power of x, `F32` only.
    Exp = "exp" of [F32], keeps_zeros: false, rounded: f32::exp;
    /// Square root, `F32` only.
    Sqrt = "sqrt" of [F32], keeps_zeros: false, rounded: f32::sqrt;
    /// Hyperbolic tangent, `F32` only. The simulator rounds the tangent of an `f64`; targets are within 2 units in the last place.
    Tanh = "tanh" of [F32], keeps_zeros: false, rounded: |x| f64::from(x).tanh() as f32;
    /// 1 / sqrt(x), `F32` only, rounded once.
    Rsqrt = "rsqrt" of [F32], keeps_zeros: false, float: functions::rsqrt;
    /// Natural logarithm, `F32` only, within 1 unit in the last place.
    Log = "log" of [F32], keeps_zeros: false, float: functions::log;
    /// Error function, `F32` only, within 1.5 units in the last place.
    Erf = "erf" of [F32], keeps_zeros: false, float: functions::erf;
    /// Sine, `F32` only, within 2 units in the last place up to 2^20, and NaN beyond.
    Sin = "sin" of [F32], keeps_zeros: false, float: functions::sin;
    /// Cosine, `F32` only, within 2 units in the last place up to 2^20, and NaN beyond.
    Cos = "cos" of [F32], keeps_zeros: false, float: functions::cos;
    /// Number of set bits; the result is `U32`.
    PopCount = "popcount" of [I32 U32 U64], keeps_zeros: false, count: |x| x.count_ones();
    /// Number of zero bits below the lowest set bit; the width for zero; the result is `U32`.
    TrailingZeros = "trailing_zeros" of [I32 U32 U64], keeps_zeros: false, count: |x| x.trailing_zeros();
}

impl UnaryOp {
    /// What it makes of a constant, unless targets round that or the verifier allows no such operand.
    pub(crate) fn of_constant(self, constant: Const) -> Option<Const> {
        fn one<T: OneOperand>(op: UnaryOp, x: T, constant: fn(T) -> Const) -> Const {
            let (mut same, mut count) = ([x], [0]);
            match op.counts() {
                true => T::count(op, &[x], &mut count),
                false => T::unary(op, &[x], &mut same),
            }
            if op.counts() { Const::U32(count[0]) } else { constant(same[0]) }
        }
        if !self.allows(constant.dtype()) || self.rounds() {
            return None;
        }
        Some(match constant {
            Const::Bool(x) => Const::Bool(!x),
            Const::I32(x) => one(self, x, Const::I32),
            Const::U32(x) => one(self, x, Const::U32),
            Const::U64(x) => one(self, x, Const::U64),
            Const::F32(x) => one(self, f32::from_bits(x), |x| Const::F32(x.to_bits())),
        })
    }
}
