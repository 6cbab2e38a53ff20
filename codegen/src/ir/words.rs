//! How constants and operators are spelled in the text form and in messages.

use std::fmt;

use super::{BinaryOp, CompareOp, Const, Dtype, ParamKind, ReduceOp, UnaryOp};

impl Const {
    /// The element type of this constant.
    pub const fn dtype(self) -> Dtype {
        match self {
            Const::Bool(_) => Dtype::Bool,
            Const::I32(_) => Dtype::I32,
            Const::U32(_) => Dtype::U32,
            Const::U64(_) => Dtype::U64,
            Const::F32(_) => Dtype::F32,
        }
    }

    /// The value of an integer constant.
    pub fn as_int(self) -> Option<i128> {
        match self {
            Const::I32(v) => Some(v.into()),
            Const::U32(v) => Some(v.into()),
            Const::U64(v) => Some(v.into()),
            Const::Bool(_) | Const::F32(_) => None,
        }
    }
}

/// A literal: `4` is `U32`, the other integers carry a suffix, floats a point or an exponent.
impl fmt::Display for Const {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Const::Bool(v) => write!(f, "{v}"),
            Const::I32(v) => write!(f, "{v}i32"),
            Const::U32(v) => write!(f, "{v}"),
            Const::U64(v) => write!(f, "{v}u64"),
            Const::F32(bits) => write!(f, "{:?}", f32::from_bits(*bits)),
        }
    }
}

impl BinaryOp {
    /// Operator or function name.
    pub const fn symbol(self) -> &'static str {
        match self {
            BinaryOp::Add => "+",
            BinaryOp::Sub => "-",
            BinaryOp::Mul => "*",
            BinaryOp::Div => "/",
            BinaryOp::Rem => "%",
            BinaryOp::Min => "min",
            BinaryOp::Max => "max",
            BinaryOp::And => "&",
            BinaryOp::Or => "|",
            BinaryOp::Xor => "^",
            BinaryOp::Shl => "<<",
            BinaryOp::Shr => ">>",
        }
    }
}

impl UnaryOp {
    /// Function name.
    pub const fn name(self) -> &'static str {
        match self {
            UnaryOp::Neg => "neg",
            UnaryOp::Not => "not",
            UnaryOp::Abs => "abs",
            UnaryOp::Exp => "exp",
            UnaryOp::Sqrt => "sqrt",
            UnaryOp::PopCount => "popcount",
            UnaryOp::TrailingZeros => "trailing_zeros",
        }
    }
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
}

impl ReduceOp {
    /// What follows `reduce_`, `scan_` or `atomic_`.
    pub const fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::And => "and",
            ReduceOp::Or => "or",
        }
    }
}

impl ParamKind {
    /// One word for it.
    pub const fn name(self) -> &'static str {
        match self {
            ParamKind::Local => "local",
            ParamKind::Symmetric => "symmetric",
            ParamKind::Flags => "flags",
            ParamKind::EpochWord => "epoch",
            ParamKind::Scalar => "scalar",
        }
    }
}
