//! Constant folding of scalar integers and truth values.

use super::super::*;

/// What an operation evaluates to when its operands are these constants; `None` if that is not known before it runs.
/// Floats are left alone.
pub(super) fn fold(kind: &OpKind, ty: Type, known: &dyn Fn(ValueId) -> Option<Const>) -> Option<Const> {
    if ty.is_tile() {
        return None;
    }
    let OpKind::Value(op) = kind else { return None };
    match op {
        ValueOp::Const { value, .. } => Some(*value),
        ValueOp::Binary { op, a, b, .. } => binary(*op, known(*a)?, known(*b)?),
        ValueOp::Unary { op, a, .. } if ty.dtype != Dtype::F32 => op.of_constant(known(*a)?),
        ValueOp::Compare { op, a, b, .. } => compare(*op, known(*a)?, known(*b)?),
        ValueOp::Select { cond, a, b, .. } => match known(*cond)? == Const::Bool(true) {
            true => known(*a),
            false => known(*b),
        },
        ValueOp::Cast { a, .. } => match known(*a)? {
            Const::Bool(b) => wrap(ty.dtype, b.into()),
            c @ (Const::I32(_) | Const::U32(_) | Const::U64(_) | Const::F32(_)) => {
                wrap(ty.dtype, c.as_int()?)
            }
        },
        any!(of_launch, spreads, reductions)
        | ValueOp::Unary { .. }
        | ValueOp::Fma { .. }
        | ValueOp::Bitcast { .. } => None,
    }
}

/// Wraps into an integer type.
fn wrap(dtype: Dtype, v: i128) -> Option<Const> {
    match dtype {
        Dtype::I32 => Some(Const::I32(v as i32)),
        Dtype::U32 => Some(Const::U32(v as u32)),
        Dtype::U64 => Some(Const::U64(v as u64)),
        Dtype::Bool | Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8 => None,
    }
}

fn binary(op: BinaryOp, a: Const, b: Const) -> Option<Const> {
    if let (Const::Bool(x), Const::Bool(y)) = (a, b) {
        return match op {
            BinaryOp::And => Some(Const::Bool(x & y)),
            BinaryOp::Or => Some(Const::Bool(x | y)),
            BinaryOp::Xor => Some(Const::Bool(x ^ y)),
            any!(sums, quotients, extremes, shifts) => None,
        };
    }
    let (x, y) = (a.as_int()?, b.as_int()?);
    let shift = || u32::try_from(y).ok().filter(|&n| n < a.dtype().bytes() * 8);
    let v = match op {
        BinaryOp::Add => x + y,
        BinaryOp::Sub => x - y,
        // Two 64-bit factors can leave 128 signed bits; only the low 64 are kept.
        BinaryOp::Mul => x.wrapping_mul(y),
        BinaryOp::Div => x.checked_div(y)?,
        BinaryOp::Rem => x.checked_rem(y)?,
        BinaryOp::Min => x.min(y),
        BinaryOp::Max => x.max(y),
        BinaryOp::And => x & y,
        BinaryOp::Or => x | y,
        BinaryOp::Xor => x ^ y,
        BinaryOp::Shl => x.wrapping_shl(shift()?),
        BinaryOp::Shr => x >> shift()?,
    };
    wrap(a.dtype(), v)
}

fn compare(op: CompareOp, a: Const, b: Const) -> Option<Const> {
    let (x, y) = match (a, b) {
        (Const::Bool(x), Const::Bool(y)) => (x.into(), y.into()),
        _ => (a.as_int()?, b.as_int()?),
    };
    Some(Const::Bool(match op {
        CompareOp::Eq => x == y,
        CompareOp::Ne => x != y,
        CompareOp::Lt => x < y,
        CompareOp::Le => x <= y,
        CompareOp::Gt => x > y,
        CompareOp::Ge => x >= y,
    }))
}
