//! How constants and operators are spelled in the text form and in messages.

use std::fmt;

use super::{
    CommOp, Const, ControlOp, Dtype, Lines, MatrixOp, MemoryOp, OpKind, ParamKind, ReceiveMessages,
    ReduceLines, ReduceOp, SendMessages, ValueOp,
};

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

/// Part of what callers have to agree with: see [`Param::signature`](super::Param::signature).
impl fmt::Debug for ParamKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words()[0])
    }
}

impl ParamKind {
    /// One word for it.
    pub const fn name(self) -> &'static str {
        self.words()[1]
    }

    /// What it is, with its article.
    pub const fn noun(self) -> &'static str {
        self.words()[2]
    }

    const fn words(self) -> [&'static str; 3] {
        match self {
            ParamKind::Local => ["Local", "local", "a local buffer"],
            ParamKind::Symmetric => ["Symmetric", "symmetric", "a symmetric buffer"],
            ParamKind::Window => ["Window", "window", "a window"],
            ParamKind::Flags => ["Flags", "flags", "a flag array"],
            ParamKind::Messages(transport) => transport.traits().words,
            ParamKind::EpochWord => ["EpochWord", "epoch", "an epoch word"],
            ParamKind::Counters => ["Counters", "counters", "an array of counters"],
            ParamKind::BlockFlags => ["BlockFlags", "block flags", "an array of flags between blocks"],
            ParamKind::Scalar => ["Scalar", "scalar", "a scalar"],
        }
    }
}

impl OpKind {
    /// One word for the operation, for messages.
    pub const fn name(&self) -> &'static str {
        match self {
            OpKind::Value(ValueOp::Const { .. }) => "constant",
            OpKind::Value(ValueOp::Rank { .. }) => "rank",
            OpKind::Value(ValueOp::ScalarParam { .. }) => "scalar parameter",
            OpKind::Value(ValueOp::Epoch { .. }) => "epoch",
            OpKind::Value(ValueOp::GroupIndex { .. }) => "group_index",
            OpKind::Value(ValueOp::Binary { op, .. }) => op.symbol(),
            OpKind::Value(ValueOp::Unary { op, .. }) => op.name(),
            OpKind::Value(ValueOp::Compare { op, .. }) => op.symbol(),
            OpKind::Value(ValueOp::Select { .. }) => "select",
            OpKind::Value(ValueOp::Cast { .. }) => "cast",
            OpKind::Value(ValueOp::Fma { .. }) => "fma",
            OpKind::Value(ValueOp::Bitcast { .. }) => "bitcast",
            OpKind::Value(ValueOp::Splat { .. }) => "splat",
            OpKind::Value(ValueOp::Arange { .. }) => "arange",
            OpKind::Value(ValueOp::Reduce { op, .. }) => {
                op.pick(["reduce_sum", "reduce_min", "reduce_max", "reduce_and", "reduce_or"])
            }
            OpKind::Value(ValueOp::Scan { op, .. }) => {
                op.pick(["scan_sum", "scan_min", "scan_max", "scan_and", "scan_or"])
            }
            OpKind::Memory(MemoryOp::Load { .. }) => "load",
            OpKind::Memory(MemoryOp::LoadMasked { .. }) => "load_where",
            OpKind::Memory(MemoryOp::Gather { .. }) => "gather",
            OpKind::Memory(MemoryOp::Store { .. }) => "store",
            OpKind::Memory(MemoryOp::Scatter { .. }) => "scatter",
            OpKind::Memory(MemoryOp::Atomic { op, .. }) => {
                op.pick(["atomic_sum", "atomic_min", "atomic_max", "atomic_and", "atomic_or"])
            }
            OpKind::Memory(MemoryOp::Tally { .. }) => "tally",
            OpKind::Memory(MemoryOp::Ticket { .. }) => "ticket",
            OpKind::Matrix(MatrixOp::Dot(_)) => "dot",
            OpKind::Matrix(MatrixOp::LoadMatrix(_)) => "load_matrix",
            OpKind::Matrix(MatrixOp::LoadRow(_)) => "load_row",
            OpKind::Matrix(MatrixOp::ReduceLines(ReduceLines { op, lines: Lines::Rows, .. })) => {
                op.pick(["row_sum", "row_min", "row_max", "row_and", "row_or"])
            }
            OpKind::Matrix(MatrixOp::ReduceLines(ReduceLines { op, lines: Lines::Columns, .. })) => {
                op.pick(["column_sum", "column_min", "column_max", "column_and", "column_or"])
            }
            OpKind::Matrix(MatrixOp::StoreMatrix(_)) => "store_matrix",
            OpKind::Comm(CommOp::Put(_)) => "put",
            OpKind::Comm(CommOp::PutMatrix(_)) => "put_matrix",
            OpKind::Comm(CommOp::BulkCopy(_)) => "copy",
            OpKind::Comm(CommOp::Signal(_)) => "signal",
            OpKind::Comm(CommOp::Wait(_)) => "wait",
            OpKind::Comm(CommOp::WaitAll(_)) => "wait_all",
            OpKind::Comm(CommOp::BlockSignal(_)) => "block_signal",
            OpKind::Comm(CommOp::BlockWait(_)) => "block_wait",
            OpKind::Comm(CommOp::SendMessages(SendMessages { transport, .. })) => transport.traits().send,
            OpKind::Comm(CommOp::ReceiveMessages(ReceiveMessages { transport, .. })) => {
                transport.traits().receive
            }
            OpKind::Control(ControlOp::If { .. }) => "if",
            OpKind::Control(ControlOp::For { .. }) => "for",
            OpKind::Control(ControlOp::While { .. }) => "while",
            OpKind::Control(ControlOp::Break { .. }) => "break",
            OpKind::Control(ControlOp::Continue { .. }) => "continue",
            OpKind::Control(ControlOp::VarDecl { .. }) => "var",
            OpKind::Control(ControlOp::VarGet { .. }) => "variable",
            OpKind::Control(ControlOp::VarSet { .. }) => "assignment",
            OpKind::Control(ControlOp::Split { .. }) => "split",
        }
    }
}
