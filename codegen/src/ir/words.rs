//! How constants and operators are spelled in the text form and in messages.

use std::fmt;

use super::{Const, Dtype, Lines, ParamKind, ReduceOp};

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

/// Ranks in words: `rank 0`, `ranks 1 to 3`, `ranks 0, 2 and 5`.
pub(crate) fn rank_list(ranks: &[u32]) -> String {
    match ranks {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [first, .., last] if (last - first) as usize == ranks.len() - 1 && ranks.len() > 2 => {
            format!("ranks {first} to {last}")
        }
        [others @ .., last] => {
            let others: Vec<String> = others.iter().map(u32::to_string).collect();
            format!("ranks {} and {last}", others.join(", "))
        }
    }
}

impl ReduceOp {
    /// One word for it.
    pub const fn name(self) -> &'static str {
        self.pick(["sum", "min", "max", "and", "or"])
    }

    /// One word for its going along the lines of a matrix.
    pub(super) const fn along(self, lines: Lines) -> &'static str {
        match lines {
            Lines::Rows => self.pick(["row_sum", "row_min", "row_max", "row_and", "row_or"]),
            Lines::Columns => {
                self.pick(["column_sum", "column_min", "column_max", "column_and", "column_or"])
            }
        }
    }

    pub(super) const fn pick(self, names: [&'static str; 5]) -> &'static str {
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
            ParamKind::Counts => ["Counts", "counts", "an array of counts"],
            ParamKind::Messages(transport) => transport.traits().words,
            ParamKind::Far(part) => part.words(),
            ParamKind::EpochWord => ["EpochWord", "epoch", "an epoch word"],
            ParamKind::Counters => ["Counters", "counters", "an array of counters"],
            ParamKind::BlockFlags => ["BlockFlags", "block flags", "an array of flags between blocks"],
            ParamKind::Scalar => ["Scalar", "scalar", "a scalar"],
        }
    }
}
