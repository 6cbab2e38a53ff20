//! Constant folding of scalar integers and truth values.

use super::super::*;

/// What an operation evaluates to when its operands are these constants; `None` if that is not known before it runs.
/// Floats are left alone.
pub(in crate::ir) fn fold(
    kind: &OpKind,
    ty: Type,
    known: &dyn Fn(ValueId) -> Option<Const>,
) -> Option<Const> {
    let OpKind::Value(op) = kind else { return None };
    if let ValueOp::Const { value, .. } = op {
        return Some(*value).filter(|_| !ty.is_tile());
    }
    if ty.is_tile() || ty.dtype == Dtype::F32 {
        return None;
    }
    match op {
        ValueOp::Binary { op, a, b, .. } => op.of_constants(known(*a)?, known(*b)?).ok()?,
        ValueOp::Unary { op, a, .. } => op.of_constant(known(*a)?),
        ValueOp::Compare { op, a, b, .. } => op.of_constants(known(*a)?, known(*b)?).map(Const::Bool),
        ValueOp::Select { cond, a, b, .. } => match known(*cond)? == Const::Bool(true) {
            true => known(*a),
            false => known(*b),
        },
        ValueOp::Cast { a, .. } => known(*a)?.cast(ty.dtype),
        any!(given, spreads, reductions) | ValueOp::Fma { .. } | ValueOp::Bitcast { .. } => None,
    }
}
