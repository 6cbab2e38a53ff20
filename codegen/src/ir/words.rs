//! How constants and operators are spelled in the text form and in messages.

use std::fmt;

use super::{BinaryOp, CompareOp, Const, Dtype, OpKind, ParamKind, ReduceOp, UnaryOp};

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
    /// One word for it.
    pub const fn name(self) -> &'static str {
        self.pick(["sum", "min", "max", "and", "or"])
    }

    const fn pick(self, names: [&'static str; 5]) -> &'static str {
        match self {
            ReduceOp::Sum => names[0],
            ReduceOp::Min => names[1],
            ReduceOp::Max => names[2],
            ReduceOp::And => names[3],
            ReduceOp::Or => names[4],
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
            ParamKind::Packets => "packets",
            ParamKind::Ll => "ll",
            ParamKind::EpochWord => "epoch",
            ParamKind::Counters => "counters",
            ParamKind::Scalar => "scalar",
        }
    }

    /// What it is, with its article.
    pub const fn noun(self) -> &'static str {
        match self {
            ParamKind::Local => "a local buffer",
            ParamKind::Symmetric => "a symmetric buffer",
            ParamKind::Flags => "a flag array",
            ParamKind::Packets => "a packet buffer",
            ParamKind::Ll => "an LL buffer",
            ParamKind::EpochWord => "an epoch word",
            ParamKind::Counters => "an array of counters",
            ParamKind::Scalar => "a scalar",
        }
    }
}

impl OpKind {
    /// One word for the operation, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            OpKind::Const { .. } => "constant",
            OpKind::Rank { .. } => "rank",
            OpKind::ScalarParam { .. } => "scalar parameter",
            OpKind::Epoch { .. } => "epoch",
            OpKind::GroupIndex { .. } => "group_index",
            OpKind::Binary { op, .. } => op.symbol(),
            OpKind::Unary { op, .. } => op.name(),
            OpKind::Compare { op, .. } => op.symbol(),
            OpKind::Select { .. } => "select",
            OpKind::Cast { .. } => "cast",
            OpKind::Fma { .. } => "fma",
            OpKind::Bitcast { .. } => "bitcast",
            OpKind::Splat { .. } => "splat",
            OpKind::Arange { .. } => "arange",
            OpKind::Reduce { op, .. } => {
                op.pick(["reduce_sum", "reduce_min", "reduce_max", "reduce_and", "reduce_or"])
            }
            OpKind::Scan { op, .. } => op.pick(["scan_sum", "scan_min", "scan_max", "scan_and", "scan_or"]),
            OpKind::Load { .. } => "load",
            OpKind::LoadMasked { .. } => "load_where",
            OpKind::Gather { .. } => "gather",
            OpKind::Store { .. } => "store",
            OpKind::Scatter { .. } => "scatter",
            OpKind::Atomic { op, .. } => {
                op.pick(["atomic_sum", "atomic_min", "atomic_max", "atomic_and", "atomic_or"])
            }
            OpKind::Tally { .. } => "tally",
            OpKind::Put { .. } => "put",
            OpKind::Copy { .. } => "copy",
            OpKind::Signal { .. } => "signal",
            OpKind::Wait { .. } => "wait",
            OpKind::WaitAll { .. } => "wait_all",
            OpKind::SendPackets { .. } => "send_packets",
            OpKind::TakePackets { .. } => "take_packets",
            OpKind::SendLl { .. } => "send_ll",
            OpKind::ReadLl { .. } => "read_ll",
            OpKind::If { .. } => "if",
            OpKind::For { .. } => "for",
            OpKind::While { .. } => "while",
            OpKind::Break { .. } => "break",
            OpKind::Continue { .. } => "continue",
            OpKind::VarDecl { .. } => "var",
            OpKind::VarGet { .. } => "variable",
            OpKind::VarSet { .. } => "assignment",
            OpKind::Split { .. } => "split",
        }
    }
}
