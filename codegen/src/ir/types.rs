//! Element types and the types of IR values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Element type of a scalar, a tile or a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// Truth value; lives in registers only, never in a buffer.
    Bool,
    /// 32-bit signed integer.
    I32,
    /// 32-bit unsigned integer.
    U32,
    /// 64-bit unsigned integer.
    U64,
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    Fp16,
    /// bfloat16.
    Bf16,
    /// 8-bit float, 4 exponent and 3 mantissa bits, no infinities (OCP E4M3FN).
    Fp8,
}

impl Dtype {
    /// Every element type.
    pub const ALL: [Dtype; 8] =
        [Dtype::Bool, Dtype::I32, Dtype::U32, Dtype::U64, Dtype::F32, Dtype::Fp16, Dtype::Bf16, Dtype::Fp8];

    /// Size of one element in memory, in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Dtype::Bool | Dtype::Fp8 => 1,
            Dtype::Fp16 | Dtype::Bf16 => 2,
            Dtype::I32 | Dtype::U32 | Dtype::F32 => 4,
            Dtype::U64 => 8,
        }
    }

    /// Whether this is one of the floating-point types.
    pub const fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 | Dtype::Fp8)
    }

    /// Whether this is one of the integer types (`Bool` is none).
    pub const fn is_int(self) -> bool {
        matches!(self, Dtype::I32 | Dtype::U32 | Dtype::U64)
    }

    /// Whether arithmetic works on this type. The 8- and 16-bit floats are storage types: cast to `F32` first.
    pub const fn is_arithmetic(self) -> bool {
        matches!(self, Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32)
    }

    /// How many elements an LL word has, which holds 4 bytes of data; none of types that do not travel so.
    pub const fn per_ll_word(self) -> Option<u32> {
        match self {
            Dtype::I32 | Dtype::U32 | Dtype::F32 => Some(1),
            Dtype::Fp16 | Dtype::Bf16 => Some(2),
            Dtype::Bool | Dtype::U64 | Dtype::Fp8 => None,
        }
    }

    /// The name used in IR text, variant names and the CLI.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::I32 => "i32",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::F32 => "f32",
            Dtype::Fp16 => "fp16",
            Dtype::Bf16 => "bf16",
            Dtype::Fp8 => "fp8",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Type of an IR value: a scalar, uniform over the group that computes it, or a tile, spread over its lanes. A tile is a vector or a
/// matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Type {
    /// Element type.
    pub dtype: Dtype,
    /// `None` for a scalar, the comptime number of elements for a tile.
    pub len: Option<u32>,
    /// The comptime number of elements of a row, for a matrix.
    pub columns: Option<u32>,
}

impl Type {
    /// A scalar of the given element type.
    pub const fn scalar(dtype: Dtype) -> Type {
        Type { dtype, len: None, columns: None }
    }

    /// A tile of `len` elements.
    pub const fn tile(dtype: Dtype, len: u32) -> Type {
        Type { dtype, len: Some(len), columns: None }
    }

    /// A matrix of `rows` times `columns` elements.
    pub const fn matrix(dtype: Dtype, rows: u32, columns: u32) -> Type {
        Type { dtype, len: Some(rows * columns), columns: Some(columns) }
    }

    /// Rows and columns, of a matrix.
    pub fn shape(self) -> Option<(u32, u32)> {
        let (len, columns) = self.len.zip(self.columns)?;
        Some((len.checked_div(columns)?, columns))
    }

    /// Whether this is a tile, a vector or a matrix.
    pub const fn is_tile(self) -> bool {
        self.len.is_some()
    }

    /// The same shape with another element type.
    pub const fn with_dtype(self, dtype: Dtype) -> Type {
        Type { dtype, ..self }
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.len, self.shape()) {
            (None, _) => write!(f, "{}", self.dtype),
            (Some(_), Some((rows, columns))) => write!(f, "{}[{rows} x {columns}]", self.dtype),
            (Some(n), None) => write!(f, "{}[{n}]", self.dtype),
        }
    }
}
