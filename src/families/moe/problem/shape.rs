//! Shape of an MoE layer over several ranks.

use std::fmt;
use std::str::FromStr;

use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;
use serde::{Deserialize, Serialize};

use super::{ExpertMap, MoeError};

/// Elements of a row that share one scale in fp8 dispatch.
pub const SCALE_BLOCK: u32 = 128;

/// What rows are dispatched as. They are combined in the same type, fp8 ones in bf16.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum RowDtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
    /// 8-bit e4m3 with an f32 scale for every 128 elements of a row.
    Fp8,
}

impl RowDtype {
    /// Type of a dispatched row's elements.
    pub const fn dispatched(self) -> Dtype {
        match self {
            RowDtype::Bf16 => Dtype::Bf16,
            RowDtype::Fp16 => Dtype::Fp16,
            RowDtype::Fp8 => Dtype::Fp8,
        }
    }

    /// Type of an expert's output and of the combined rows.
    pub const fn combined(self) -> Dtype {
        match self {
            RowDtype::Bf16 | RowDtype::Fp8 => Dtype::Bf16,
            RowDtype::Fp16 => Dtype::Fp16,
        }
    }
}

impl fmt::Display for RowDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for RowDtype {
    type Err = MoeError;

    fn from_str(s: &str) -> Result<RowDtype, MoeError> {
        RowDtype::from_name(s).ok_or_else(|| MoeError::invalid("dtype", s, "must be bf16, fp16 or fp8"))
    }
}

/// Shape of an MoE layer whose experts are spread over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MoeShape {
    /// Elements a row.
    pub hidden: u32,
    /// Experts of all ranks together.
    pub experts: u32,
    /// Expert ids a token.
    pub topk: u32,
    /// Tokens a rank at most.
    pub tokens: u32,
    /// World size.
    pub ranks: u32,
    /// Type of dispatched rows.
    pub dtype: RowDtype,
}

impl fmt::Display for MoeShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MoeShape { hidden, experts, topk, tokens, ranks, dtype } = self;
        write!(f, "hidden {hidden}, {experts} experts, topk {topk}, {tokens} tokens, {ranks} ranks, {dtype}")
    }
}

impl MoeShape {
    /// Checks every field.
    pub fn check(&self) -> Result<(), MoeError> {
        let range = |field, value: u32, low: u32, high: u32| match (low..=high).contains(&value) {
            true => Ok(()),
            false => Err(MoeError::invalid(field, value, format!("must be {low} to {high}"))),
        };
        range("hidden", self.hidden, 8, 65536)?;
        if !self.hidden.is_multiple_of(8) {
            return Err(MoeError::invalid("hidden", self.hidden, "must be a multiple of 8"));
        }
        range("experts", self.experts, 1, 65535)?;
        range("topk", self.topk, 1, 32)?;
        if self.topk > self.experts {
            let allowed = format!("must not be more than there are experts ({})", self.experts);
            return Err(MoeError::invalid("topk", self.topk, allowed));
        }
        range("tokens", self.tokens, 1, 65536)?;
        range("ranks", self.ranks, 2, 64)
    }

    /// Which rank owns which expert.
    pub fn map(&self) -> ExpertMap {
        ExpertMap { experts: self.experts, ranks: self.ranks }
    }

    /// The first expert of each rank, and after the last one the number of all experts.
    pub fn first_experts(&self) -> Vec<u32> {
        let map = self.map();
        (0..map.ranks).map(|rank| map.owned(rank).start).chain([map.experts]).collect()
    }

    /// Scales a dispatched row has: none unless it is fp8.
    pub fn scales(&self) -> u32 {
        match self.dtype {
            RowDtype::Fp8 => self.hidden.div_ceil(SCALE_BLOCK),
            RowDtype::Bf16 | RowDtype::Fp16 => 0,
        }
    }

    /// Bytes of a dispatched row without its scales.
    pub fn row_bytes(&self) -> u32 {
        self.hidden * self.dtype.dispatched().bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: MoeShape =
        MoeShape { hidden: 2880, experts: 128, topk: 4, tokens: 128, ranks: 8, dtype: RowDtype::Fp8 };

    #[test]
    fn a_tail_of_a_row_has_a_scale_of_its_own() {
        assert_eq!(SHAPE.scales(), 23);
        assert_eq!(MoeShape { dtype: RowDtype::Bf16, ..SHAPE }.scales(), 0);
        assert_eq!(MoeShape { dtype: RowDtype::Bf16, ..SHAPE }.row_bytes(), 5760);
    }

    #[test]
    fn bad_shapes_are_named() {
        let message = |s: MoeShape| s.check().unwrap_err().to_string();
        SHAPE.check().unwrap();
        assert_eq!(message(MoeShape { hidden: 12, ..SHAPE }), "hidden = 12: must be a multiple of 8");
        assert_eq!(message(MoeShape { hidden: 0, ..SHAPE }), "hidden = 0: must be 8 to 65536");
        assert_eq!(message(MoeShape { topk: 33, ..SHAPE }), "topk = 33: must be 1 to 32");
        assert_eq!(
            message(MoeShape { experts: 3, ..SHAPE }),
            "topk = 4: must not be more than there are experts (3)"
        );
        assert_eq!(message(MoeShape { ranks: 1, ..SHAPE }), "ranks = 1: must be 2 to 64");
        assert_eq!(message(MoeShape { tokens: 0, ..SHAPE }), "tokens = 0: must be 1 to 65536");
        assert_eq!(message(MoeShape { experts: 65536, ..SHAPE }), "experts = 65536: must be 1 to 65535");
    }

    #[test]
    fn row_types_parse_by_name() {
        for &dtype in RowDtype::ALL {
            assert_eq!(dtype.to_string().parse::<RowDtype>().unwrap(), dtype);
        }
        assert_eq!(
            "int8".parse::<RowDtype>().unwrap_err().to_string(),
            "dtype = int8: must be bf16, fp16 or fp8"
        );
    }
}
