//! Shape of an MoE layer over several ranks.

use std::fmt;
use std::str::FromStr;

use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;
use serde::{Deserialize, Serialize};

use super::{ExpertMap, MoeError};

/// Elements of a row that share one scale in fp8 dispatch.
pub const SCALE_BLOCK: u32 = 128;

/// What rows are dispatched as. They are combined in the same type, those of less than two bytes an element in bf16.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum RowDtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
    /// 8-bit e4m3 with an f32 scale for every 128 elements of a row.
    Fp8,
    /// 8-bit floats, e4m3 or e5m2, with an f32 scale for a row.
    Fp8Token,
    /// 8-bit floats, e4m3 or e5m2, without scales that travel: such as with one for all rows.
    Fp8Tensor,
    /// 8-bit e4m3 with a scale of a byte, e8m0, for every 32 elements of a row (OCP Microscaling Formats 1.0).
    Mxfp8,
    /// 4-bit e2m1, two to a byte, with a scale of a byte, e4m3, for every 16 elements of a row.
    Nvfp4,
    /// 4-bit e2m1, two to a byte, with a scale of a byte, e8m0, for every 32 elements of a row (as [`RowDtype::Mxfp8`]).
    Mxfp4,
}

impl RowDtype {
    /// Type of a dispatched row's elements, of rows that kernels can look into: with a hook. Of others they move the bytes.
    pub const fn dispatched(self) -> Option<Dtype> {
        match self {
            RowDtype::Bf16 => Some(Dtype::Bf16),
            RowDtype::Fp16 => Some(Dtype::Fp16),
            RowDtype::Fp8 => Some(Dtype::Fp8),
            RowDtype::Fp8Token
            | RowDtype::Fp8Tensor
            | RowDtype::Mxfp8
            | RowDtype::Nvfp4
            | RowDtype::Mxfp4 => None,
        }
    }

    /// Type of an expert's output and of the combined rows.
    pub const fn combined(self) -> Dtype {
        match self {
            RowDtype::Fp16 => Dtype::Fp16,
            _ => Dtype::Bf16,
        }
    }

    /// Bits of an element.
    const fn bits(self) -> u32 {
        match self {
            RowDtype::Bf16 | RowDtype::Fp16 => 16,
            RowDtype::Fp8 | RowDtype::Fp8Token | RowDtype::Fp8Tensor | RowDtype::Mxfp8 => 8,
            RowDtype::Nvfp4 | RowDtype::Mxfp4 => 4,
        }
    }

    /// Elements of a row of `hidden` elements that share a scale; none where no scales travel.
    pub const fn scaled(self, hidden: u32) -> Option<u32> {
        match self {
            RowDtype::Bf16 | RowDtype::Fp16 | RowDtype::Fp8Tensor => None,
            RowDtype::Fp8 => Some(SCALE_BLOCK),
            RowDtype::Fp8Token => Some(hidden),
            RowDtype::Mxfp8 | RowDtype::Mxfp4 => Some(32),
            RowDtype::Nvfp4 => Some(16),
        }
    }

    /// Type in which scales move: f32, or words of four scales.
    pub const fn moved_scales(self) -> Dtype {
        match self {
            RowDtype::Mxfp8 | RowDtype::Nvfp4 | RowDtype::Mxfp4 => Dtype::U32,
            _ => Dtype::F32,
        }
    }

    /// Bytes of a row of `hidden` elements, without its scales.
    pub const fn row_bytes(self, hidden: u32) -> u32 {
        hidden * self.bits() / 8
    }

    /// Bytes of the scales of a row of `hidden` elements.
    pub const fn scale_bytes(self, hidden: u32) -> u32 {
        match self.scaled(hidden) {
            None => 0,
            Some(scaled) => {
                let bytes = if matches!(self.moved_scales(), Dtype::F32) { 4 } else { 1 };
                hidden.div_ceil(scaled) * bytes
            }
        }
    }

    /// Whether rows and scales may go as packets: one that ends in all ones loses a bit there, which leaves a NaN a NaN where all are
    /// floats that have some, and makes another number of others.
    pub(in crate::families::moe) const fn survives_packets(self) -> bool {
        match self {
            RowDtype::Bf16 | RowDtype::Fp16 | RowDtype::Fp8 | RowDtype::Fp8Token | RowDtype::Fp8Tensor => {
                true
            }
            // e2m1 has no NaN, and all ones without the top bit are e8m0's 1.
            RowDtype::Mxfp8 | RowDtype::Nvfp4 | RowDtype::Mxfp4 => false,
        }
    }

    /// What a row's elements have to be a multiple of: scales move as words of four bytes, and all of a row's are whole ones.
    pub(in crate::families::moe) fn check_hidden(self, hidden: u32) -> Result<(), String> {
        let multiple = match (self.moved_scales(), self.scaled(hidden)) {
            (Dtype::U32, Some(scaled)) => 4 * scaled,
            _ => 8,
        };
        match hidden.is_multiple_of(multiple) {
            true => Ok(()),
            false => Err(format!(
                "a multiple of {multiple} for {self}: rows and their scales move as whole words of 4 bytes"
            )),
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
        let names = || RowDtype::ALL.iter().map(Choice::name).collect::<Vec<_>>().join(", ");
        RowDtype::from_name(s)
            .ok_or_else(|| MoeError::invalid("dtype", s, format!("must be one of {}", names())))
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
        let whole = self.dtype.check_hidden(self.hidden);
        whole.map_err(|allowed| MoeError::invalid("hidden", self.hidden, format!("must be {allowed}")))?;
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

    /// Scales of a dispatched row as they move, in words of four bytes: f32, or four scales of a byte. None where no scales travel.
    pub fn scales(&self) -> u32 {
        self.scale_bytes() / 4
    }

    /// Bytes of a dispatched row's scales.
    pub fn scale_bytes(&self) -> u32 {
        self.dtype.scale_bytes(self.hidden)
    }

    /// Bytes of a dispatched row without its scales.
    pub fn row_bytes(&self) -> u32 {
        self.dtype.row_bytes(self.hidden)
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
            "dtype = int8: must be one of bf16, fp16, fp8, fp8-token, fp8-tensor, mxfp8, nvfp4, mxfp4"
        );
    }

    #[test]
    fn rows_and_scales_have_the_bytes_of_their_format() {
        let bytes = |dtype| {
            let shape = MoeShape { hidden: 7168, dtype, ..SHAPE };
            shape.check().unwrap();
            assert_eq!(shape.scales() * 4, shape.scale_bytes());
            (shape.row_bytes(), shape.scale_bytes())
        };
        let all = [
            (RowDtype::Bf16, (14336, 0)),
            (RowDtype::Fp8, (7168, 224)),
            (RowDtype::Fp8Token, (7168, 4)),
            (RowDtype::Fp8Tensor, (7168, 0)),
            (RowDtype::Mxfp8, (7168, 224)),
            (RowDtype::Nvfp4, (3584, 448)),
            (RowDtype::Mxfp4, (3584, 224)),
        ];
        for (dtype, of) in all {
            assert_eq!(bytes(dtype), of, "{dtype}");
        }
    }

    #[test]
    fn rows_whose_scales_are_no_whole_words_are_refused_by_name() {
        let message = |hidden, dtype| MoeShape { hidden, dtype, ..SHAPE }.check().unwrap_err().to_string();
        let rest = "rows and their scales move as whole words of 4 bytes";
        let said = [(2880, RowDtype::Mxfp8, 128), (2848, RowDtype::Nvfp4, 64), (64, RowDtype::Mxfp4, 128)];
        for (hidden, dtype, multiple) in said {
            let wanted = format!("hidden = {hidden}: must be a multiple of {multiple} for {dtype}: {rest}");
            assert_eq!(message(hidden, dtype), wanted);
        }
        MoeShape { dtype: RowDtype::Fp8Token, ..SHAPE }.check().unwrap();
    }
}
