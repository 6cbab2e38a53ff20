//! Two-operand arithmetic and comparisons.

use serde::{Deserialize, Serialize};

use super::{Const, Dtype};

/// Why integer arithmetic has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoResult {
    /// Division or remainder by zero.
    DivisionByZero,
    /// The smallest integer divided by -1.
    DivisionOverflow,
    /// A shift by at least the operand's width.
    ShiftOverflow,
}

#[inline(always)]
fn zip<A: Copy, O>(a: &[A], b: &[A], out: &mut [O], f: impl Fn(A, A) -> O) {
    out.iter_mut().zip(a).zip(b).for_each(|((o, &a), &b)| *o = f(a, b));
}

/// Each row: the operator or function name, the types of operands and result, and what it computes: of integers, of `bool`, of floats
/// exactly, or of floats as each target treats NaN and signed zero.
macro_rules! binary_ops {
    ($(
        $(#[$doc:meta])*
        $op:ident = $symbol:literal of $dtypes:ident, int: $int:expr
        $(, bool: $bool:expr)? $(, float: $float:expr)? $(, target: $target:expr)?;
    )+) => {
        /// Two-operand arithmetic and logic. Operands and result share one type. Integer arithmetic wraps.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub enum BinaryOp { $($(#[$doc])* $op,)+ }

        impl BinaryOp {
            /// Operator or function name.
            pub const fn symbol(self) -> &'static str {
                match self { $(BinaryOp::$op => $symbol,)+ }
            }

            /// Whether operands may be of a type.
            pub const fn allows(self, dtype: Dtype) -> bool {
                match self { $(BinaryOp::$op => binary_ops!(@$dtypes dtype),)+ }
            }

            fn floats(self, x: f32, y: f32) -> Option<f32> {
                match self { $(BinaryOp::$op => { $(return Some(binary_ops!(@call $float, x, y));)? })+ }
                None
            }

            fn truths(self, x: bool, y: bool) -> Option<bool> {
                match self { $(BinaryOp::$op => { $(return Some(binary_ops!(@call $bool, x, y));)? })+ }
                None
            }
        }

        impl TwoOperands for f32 {
            #[inline(always)]
            fn binary(op: BinaryOp, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<(), NoResult> {
                match op {
                    $(BinaryOp::$op => { $(zip(a, b, out, $float);)? $(zip(a, b, out, $target);)? })+
                }
                Ok(())
            }
        }

        /// Logic on truth values, a byte each.
        #[inline(always)]
        pub(crate) fn truths(op: BinaryOp, a: &[u8], b: &[u8], out: &mut [u8]) {
            match op { $(BinaryOp::$op => { $(zip(a, b, out, $bool);)? })+ }
        }

        binary_ops! { @int i32 $($op $int;)+ }
        binary_ops! { @int u32 $($op $int;)+ }
        binary_ops! { @int u64 $($op $int;)+ }
    };
    (@number $dtype:ident) => { $dtype.is_arithmetic() };
    (@bits $dtype:ident) => { $dtype.is_int() || matches!($dtype, Dtype::Bool) };
    (@integer $dtype:ident) => { $dtype.is_int() };
    (@call $f:expr, $x:ident, $y:ident) => {{
        let f: fn(_, _) -> _ = $f;
        f($x, $y)
    }};
    (@int $t:ident $($op:ident $int:expr;)+) => {
        impl TwoOperands for $t {
            #[inline(always)]
            fn binary(op: BinaryOp, a: &[$t], b: &[$t], out: &mut [$t]) -> Result<(), NoResult> {
                match op {
                    BinaryOp::Div | BinaryOp::Rem if b.contains(&0) => return Err(NoResult::DivisionByZero),
                    BinaryOp::Div | BinaryOp::Rem
                        if <$t>::MIN != 0 && a.iter().zip(b).any(|(a, b)| a.checked_div(*b).is_none()) =>
                    {
                        return Err(NoResult::DivisionOverflow);
                    }
                    BinaryOp::Shl | BinaryOp::Shr
                        if b.iter().any(|&b| !(0..<$t>::BITS as $t).contains(&b)) =>
                    {
                        return Err(NoResult::ShiftOverflow);
                    }
                    $(BinaryOp::$op => zip(a, b, out, $int),)+
                }
                Ok(())
            }
        }
    };
}

/// An element type that arithmetic takes.
pub(crate) trait TwoOperands: Copy {
    /// Applies an operation to each pair. Where the verifier allows no such operands, the result is left as it is.
    fn binary(op: BinaryOp, a: &[Self], b: &[Self], out: &mut [Self]) -> Result<(), NoResult>;
}

binary_ops! {
    Add = "+" of number, int: |a, b| a.wrapping_add(b), float: |a, b| a + b;
    Sub = "-" of number, int: |a, b| a.wrapping_sub(b), float: |a, b| a - b;
    Mul = "*" of number, int: |a, b| a.wrapping_mul(b), float: |a, b| a * b;
    /// Integer or float division; integer division by zero is an error in the simulator.
    Div = "/" of number, int: |a, b| a.wrapping_div(b), float: |a, b| a / b;
    /// Integer remainder.
    Rem = "%" of integer, int: |a, b| a.wrapping_rem(b);
    Min = "min" of number, int: |a, b| a.min(b), target: f32::min;
    Max = "max" of number, int: |a, b| a.max(b), target: f32::max;
    /// Bitwise on integers, logical on `bool`.
    And = "&" of bits, int: |a, b| a & b, bool: |a, b| a & b;
    /// Bitwise on integers, logical on `bool`.
    Or = "|" of bits, int: |a, b| a | b, bool: |a, b| a | b;
    /// Bitwise on integers, logical on `bool`.
    Xor = "^" of bits, int: |a, b| a ^ b, bool: |a, b| a ^ b;
    /// Shift left; the shift count has the operand's type and must be below its width.
    Shl = "<<" of integer, int: |a, b| a << b;
    /// Logical shift right on unsigned, arithmetic on signed.
    Shr = ">>" of integer, int: |a, b| a >> b;
}

impl BinaryOp {
    /// What it makes of constants, unless targets differ in that or the verifier allows no such operands.
    pub(crate) fn of_constants(self, x: Const, y: Const) -> Result<Option<Const>, NoResult> {
        fn one<T: TwoOperands>(op: BinaryOp, x: T, y: T) -> Result<T, NoResult> {
            let mut out = [x];
            T::binary(op, &[x], &[y], &mut out)?;
            Ok(out[0])
        }
        match (x, y) {
            (Const::I32(x), Const::I32(y)) => Ok(Some(Const::I32(one(self, x, y)?))),
            (Const::U32(x), Const::U32(y)) => Ok(Some(Const::U32(one(self, x, y)?))),
            (Const::U64(x), Const::U64(y)) => Ok(Some(Const::U64(one(self, x, y)?))),
            (Const::F32(x), Const::F32(y)) => {
                let result = self.floats(f32::from_bits(x), f32::from_bits(y));
                Ok(result.map(|v| Const::F32(v.to_bits())))
            }
            (Const::Bool(x), Const::Bool(y)) => Ok(self.truths(x, y).map(Const::Bool)),
            _ => Ok(None),
        }
    }
}

/// Comparison; the result is `Bool` of the operands' shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CompareOp {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

impl CompareOp {
    /// Operator.
    pub const fn symbol(self) -> &'static str {
        match self {
            CompareOp::Eq => "==",
            CompareOp::Ne => "!=",
            CompareOp::Lt => "<",
            CompareOp::Le => "<=",
            CompareOp::Gt => ">",
            CompareOp::Ge => ">=",
        }
    }

    /// Whether it holds of two elements.
    #[inline(always)]
    pub(crate) fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            CompareOp::Eq => a == b,
            CompareOp::Ne => a != b,
            CompareOp::Lt => a < b,
            CompareOp::Le => a <= b,
            CompareOp::Gt => a > b,
            CompareOp::Ge => a >= b,
        }
    }

    /// Whether it holds of constants of one type.
    pub(crate) fn of_constants(self, x: Const, y: Const) -> Option<bool> {
        Some(match (x, y) {
            (Const::I32(x), Const::I32(y)) => self.holds(x, y),
            (Const::U32(x), Const::U32(y)) => self.holds(x, y),
            (Const::U64(x), Const::U64(y)) => self.holds(x, y),
            (Const::Bool(x), Const::Bool(y)) => self.holds(x, y),
            (Const::F32(x), Const::F32(y)) => self.holds(f32::from_bits(x), f32::from_bits(y)),
            _ => return None,
        })
    }
}

impl Const {
    /// A number as another type of arithmetic.
    pub(crate) fn cast(self, to: Dtype) -> Option<Const> {
        macro_rules! from {
            ($x:expr) => {
                match to {
                    Dtype::I32 => Const::I32($x as i32),
                    Dtype::U32 => Const::U32($x as u32),
                    Dtype::U64 => Const::U64($x as u64),
                    Dtype::F32 => Const::F32(($x as f32).to_bits()),
                    Dtype::Bool | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => return None,
                }
            };
        }
        Some(match self {
            Const::I32(x) => from!(x),
            Const::U32(x) => from!(x),
            Const::U64(x) => from!(x),
            Const::F32(x) => from!(f32::from_bits(x)),
            Const::Bool(x) => from!(u32::from(x)),
        })
    }
}
