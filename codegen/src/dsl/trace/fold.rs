//! Pure operations as keys, and what can be computed at trace time.

use super::tracer::Trace;
use crate::dsl::values::val::Extent;
use crate::ir::{
    BinaryOp, CompareOp, Const, Dtype, Kernel, NoResult, ReduceOp, Type, UnaryOp, ValueId, ValueOp,
};

/// A pure operation without its result: two equal ones compute the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pure {
    Const(Const),
    Binary(BinaryOp, ValueId, ValueId),
    Unary(UnaryOp, ValueId),
    Compare(CompareOp, ValueId, ValueId),
    Select(ValueId, ValueId, ValueId),
    Cast(Dtype, ValueId),
    Fma(ValueId, ValueId, ValueId),
    Bitcast(Dtype, ValueId),
    Splat(ValueId, Extent),
    Rank,
    Node,
    Active,
    GroupIndex,
    Reduce(ReduceOp, ValueId),
    Scan(ReduceOp, ValueId, bool),
}

impl Pure {
    /// The operation that defines `out`.
    pub fn kind(self, out: ValueId) -> ValueOp {
        match self {
            Pure::Const(value) => ValueOp::Const { out, value },
            Pure::Binary(op, a, b) => ValueOp::Binary { out, op, a, b },
            Pure::Unary(op, a) => ValueOp::Unary { out, op, a },
            Pure::Compare(op, a, b) => ValueOp::Compare { out, op, a, b },
            Pure::Select(cond, a, b) => ValueOp::Select { out, cond, a, b },
            Pure::Cast(_, a) => ValueOp::Cast { out, a },
            Pure::Fma(a, b, c) => ValueOp::Fma { out, a, b, c },
            Pure::Bitcast(_, a) => ValueOp::Bitcast { out, a },
            Pure::Splat(a, _) => ValueOp::Splat { out, a },
            Pure::Rank => ValueOp::Rank { out },
            Pure::Node => ValueOp::Node { out },
            Pure::Active => ValueOp::Active { out },
            Pure::GroupIndex => ValueOp::GroupIndex { out },
            Pure::Reduce(op, a) => ValueOp::Reduce { out, op, a },
            Pure::Scan(op, a, exclusive) => ValueOp::Scan { out, op, a, exclusive },
        }
    }

    /// Type of its result.
    pub fn ty(self, k: &Kernel) -> Type {
        match self {
            Pure::Const(c) => Type::scalar(c.dtype()),
            Pure::Unary(op, a) if op.counts() => k.ty(a).with_dtype(Dtype::U32),
            Pure::Binary(_, a, _)
            | Pure::Unary(_, a)
            | Pure::Select(_, a, _)
            | Pure::Fma(a, ..)
            | Pure::Scan(_, a, _) => k.ty(a),
            Pure::Compare(_, a, _) => k.ty(a).with_dtype(Dtype::Bool),
            Pure::Cast(to, a) | Pure::Bitcast(to, a) => k.ty(a).with_dtype(to),
            Pure::Splat(a, extent) => extent.of(k.ty(a).dtype),
            Pure::Active => Type::scalar(Dtype::U64),
            Pure::Rank | Pure::Node | Pure::GroupIndex => Type::scalar(Dtype::U32),
            Pure::Reduce(_, a) => Type::scalar(k.ty(a).dtype),
        }
    }
}

/// What folding found.
pub(crate) enum Folded {
    /// The operation must be computed on the device.
    No,
    /// Its result is known.
    Constant(Const),
    /// Its result is one of its operands.
    Value(ValueId),
}

/// Message and help of an operation that no device value can make right.
pub(crate) type Why = (&'static str, &'static str);

/// `op` with its constant on the right, where operands of integers may be exchanged: so `255 & x` is `x & 255`.
pub(crate) fn ordered(t: &Trace, op: Pure) -> Pure {
    use BinaryOp::*;
    let Pure::Binary(of, a, b) = op else { return op };
    let commutes = matches!(of, Add | Mul | Min | Max | And | Or | Xor) && !t.ty(a).dtype.is_float();
    let turns = commutes && t.uniform(a).is_some() && t.uniform(b).is_none();
    if turns { Pure::Binary(of, b, a) } else { op }
}

/// Computes `op` when its operands are constants, or simplifies `x + 0`, `x * 1` and the like.
pub(crate) fn fold(t: &Trace, op: Pure) -> Result<Folded, Why> {
    let constant = |v: ValueId| t.constant(v);
    Ok(match op {
        Pure::Binary(op, a, b) => {
            if let (Some(x), Some(y)) = (constant(a), constant(b)) {
                return Ok(op.of_constants(x, y).map_err(why)?.map_or(Folded::No, Folded::Constant));
            }
            check_right(op, t.uniform(b))?;
            match identity(op, a, b, t.uniform(a), t.uniform(b)) {
                // A scalar cannot stand for a tile.
                Folded::Constant(_) if t.ty(a).is_tile() => Folded::No,
                folded @ (Folded::No | Folded::Constant(_) | Folded::Value(_)) => folded,
            }
        }
        Pure::Unary(op, a) => {
            constant(a).and_then(|x| op.of_constant(x)).map_or(Folded::No, Folded::Constant)
        }
        Pure::Compare(op, a, b) => match (constant(a), constant(b)) {
            (Some(x), Some(y)) => {
                op.of_constants(x, y).map_or(Folded::No, |v| Folded::Constant(Const::Bool(v)))
            }
            _ => Folded::No,
        },
        Pure::Select(cond, a, b) => match t.uniform(cond) {
            Some(Const::Bool(true)) => Folded::Value(a),
            Some(Const::Bool(false)) => Folded::Value(b),
            _ if a == b => Folded::Value(a),
            _ => Folded::No,
        },
        Pure::Cast(to, a) | Pure::Bitcast(to, a) if t.ty(a).dtype == to => Folded::Value(a),
        Pure::Cast(to, a) => constant(a).and_then(|x| x.cast(to)).map_or(Folded::No, Folded::Constant),
        Pure::Const(_)
        | Pure::Fma(..)
        | Pure::Bitcast(..)
        | Pure::Splat(..)
        | Pure::Rank
        | Pure::Node
        | Pure::Active
        | Pure::GroupIndex
        | Pure::Reduce(..)
        | Pure::Scan(..) => Folded::No,
    })
}

const DIV0: Why = ("a division by the constant zero", "check the config before dividing by it");
const DIV_MIN: Why =
    ("the smallest i32 divided by -1, which does not fit i32", "negate it, or check the config before");
const SHIFT: Why = (
    "a shift by at least the width of its operand",
    "widen the operand first (`.to_u64()`), or check what the count is computed from",
);

fn why(no_result: NoResult) -> Why {
    match no_result {
        NoResult::DivisionByZero => DIV0,
        NoResult::DivisionOverflow => DIV_MIN,
        NoResult::ShiftOverflow => SHIFT,
    }
}

fn check_right(op: BinaryOp, b: Option<Const>) -> Result<(), Why> {
    use BinaryOp::*;
    use Const::*;
    match (op, b) {
        (Div | Rem, Some(I32(0) | U32(0) | U64(0))) => Err(DIV0),
        (Shl | Shr, Some(U32(n))) if n >= 32 => Err(SHIFT),
        (Shl | Shr, Some(I32(n))) if !(0..32).contains(&n) => Err(SHIFT),
        (Shl | Shr, Some(U64(n))) if n >= 64 => Err(SHIFT),
        _ => Ok(()),
    }
}

/// Whether a constant is the integer zero.
pub(crate) fn is_zero(c: Const) -> bool {
    matches!(c, Const::I32(0) | Const::U32(0) | Const::U64(0))
}

fn identity(op: BinaryOp, a: ValueId, b: ValueId, x: Option<Const>, y: Option<Const>) -> Folded {
    use BinaryOp::*;
    let zero = |c: Option<Const>| c.is_some_and(is_zero);
    let one = |c: Option<Const>| {
        matches!(c, Some(Const::I32(1) | Const::U32(1) | Const::U64(1)))
            || c == Some(Const::F32(1f32.to_bits()))
    };
    let truth = |c: Option<Const>| match c {
        Some(Const::Bool(v)) => Some(v),
        _ => None,
    };
    match op {
        Add | Sub | Or | Xor | Shl | Shr if zero(y) => Folded::Value(a),
        Mul if one(x) => Folded::Value(b),
        Mul | Div if one(y) => Folded::Value(a),
        Mul | And if zero(y) => Folded::Value(b),
        And if truth(y) == Some(true) => Folded::Value(a),
        Or if truth(y) == Some(false) => Folded::Value(a),
        Rem if one(y) => y.and_then(zero_like).map_or(Folded::No, Folded::Constant),
        And | Or | Min | Max if a == b => Folded::Value(a),
        Add | Sub | Mul | Div | Rem | Min | Max | And | Or | Xor | Shl | Shr => Folded::No,
    }
}

fn zero_like(c: Const) -> Option<Const> {
    Some(match c {
        Const::I32(_) => Const::I32(0),
        Const::U32(_) => Const::U32(0),
        Const::U64(_) => Const::U64(0),
        Const::Bool(_) | Const::F32(_) => return None,
    })
}
