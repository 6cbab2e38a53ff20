//! Shape of an MoE layer over several ranks.

use std::fmt;
use std::str::FromStr;

use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ExpertMap, MoeError};

/// Elements of a row that share one scale in fp8 dispatch.
pub const SCALE_BLOCK: u32 = 128;

/// What rows are dispatched as. They are combined in the same type, those of less than two bytes an element in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RowDtype {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
    /// 8-bit e4m3 with an f32 scale for every 128 elements of a row.
    Fp8,
    /// 8-bit e4m3 with a scale of a byte, e8m0, for every 128 elements of a row: four to a word, zeros after the last one.
    Fp8Ue8m0,
    /// 8-bit floats, e4m3 or e5m2, with an f32 scale for a row.
    Fp8Token,
    /// 8-bit floats, e4m3 or e5m2, without scales that travel: such as with one for all rows.
    Fp8Tensor,
    /// 8-bit e4m3fnuz, the fp8 of gfx942: a bias of 8, no -0, and one NaN; with an f32 scale for every 128 elements of a row.
    Fp8Fnuz,
    /// 8-bit signed integers with an f32 scale for a row.
    Int8,
    /// 8-bit e4m3 with a scale of a byte, e8m0, for every 32 elements of a row (OCP Microscaling Formats 1.0).
    Mxfp8,
    /// 4-bit e2m1, two to a byte, with a scale of a byte, e4m3, for every 16 elements of a row.
    Nvfp4,
    /// 4-bit e2m1, two to a byte, with a scale of a byte, e8m0, for every 32 elements of a row (as [`RowDtype::Mxfp8`]).
    Mxfp4,
    /// Any bytes, written `bytes-ROW-SCALES`: what they mean, the two ends agree on. Of the others those that kernels don't look into
    /// are such bytes whose sizes follow from the number of elements.
    Bytes {
        /// Bytes of a row.
        row: u32,
        /// Bytes of its scales; 0 where there are none.
        scales: u32,
    },
}

/// Bytes that rows and their scales are whole words of.
const WORD: u32 = 4;

impl RowDtype {
    /// Those that have names of their own.
    pub const NAMED: &'static [RowDtype] = match <RowDtype as Choice>::ALL {
        [named @ .., RowDtype::Bytes { .. }] => named,
        all => all,
    };

    /// The most bytes of a row that is bytes.
    pub const MOST_ROW_BYTES: u32 = 131072;

    /// The most bytes of the scales of one: so many that a few registers of a lane hold them.
    pub const MOST_SCALE_BYTES: u32 = 2048;

    /// What it is apart from sizes: how configurations of kernels name it, which have these in fields of their own.
    #[must_use]
    pub const fn format(self) -> RowDtype {
        self.with_sizes(0, 0)
    }

    /// The same with these sizes, if it is bytes.
    #[must_use]
    pub const fn with_sizes(self, row: u32, scales: u32) -> RowDtype {
        match self {
            RowDtype::Bytes { .. } => RowDtype::Bytes { row, scales },
            named => named,
        }
    }

    /// Bytes of a row and of its scales, if it is bytes; else none.
    pub const fn sizes(self) -> (u32, u32) {
        match self {
            RowDtype::Bytes { row, scales } => (row, scales),
            _ => (0, 0),
        }
    }

    /// Type of a dispatched row's elements, of rows that kernels can look into: with a hook. Of others they move the bytes.
    pub const fn dispatched(self) -> Option<Dtype> {
        match self {
            RowDtype::Bf16 => Some(Dtype::Bf16),
            RowDtype::Fp16 => Some(Dtype::Fp16),
            RowDtype::Fp8 => Some(Dtype::Fp8),
            _ => None,
        }
    }

    /// Type of an expert's output and of the combined rows.
    pub const fn combined(self) -> Dtype {
        match self {
            RowDtype::Fp16 => Dtype::Fp16,
            _ => Dtype::Bf16,
        }
    }

    /// Type in which scales move: f32, or words of four bytes.
    pub const fn moved_scales(self) -> Dtype {
        match self {
            RowDtype::Fp8Ue8m0
            | RowDtype::Mxfp8
            | RowDtype::Nvfp4
            | RowDtype::Mxfp4
            | RowDtype::Bytes { .. } => Dtype::U32,
            _ => Dtype::F32,
        }
    }

    /// Bytes of a row of `hidden` elements, without its scales.
    pub const fn row_bytes(self, hidden: u32) -> u32 {
        match self {
            RowDtype::Bf16 | RowDtype::Fp16 => 2 * hidden,
            RowDtype::Fp8
            | RowDtype::Fp8Ue8m0
            | RowDtype::Fp8Token
            | RowDtype::Fp8Tensor
            | RowDtype::Fp8Fnuz
            | RowDtype::Int8
            | RowDtype::Mxfp8 => hidden,
            RowDtype::Nvfp4 | RowDtype::Mxfp4 => hidden / 2,
            RowDtype::Bytes { row, .. } => row,
        }
    }

    /// Bytes of the scales of a row of `hidden` elements.
    pub const fn scale_bytes(self, hidden: u32) -> u32 {
        match self {
            RowDtype::Bf16 | RowDtype::Fp16 | RowDtype::Fp8Tensor => 0,
            RowDtype::Fp8 | RowDtype::Fp8Fnuz => 4 * hidden.div_ceil(SCALE_BLOCK),
            RowDtype::Fp8Ue8m0 => 4 * hidden.div_ceil(4 * SCALE_BLOCK),
            RowDtype::Fp8Token | RowDtype::Int8 => 4,
            RowDtype::Mxfp8 | RowDtype::Mxfp4 => hidden.div_ceil(32),
            RowDtype::Nvfp4 => hidden.div_ceil(16),
            RowDtype::Bytes { scales, .. } => scales,
        }
    }

    /// Bytes of a row that have a word of scales together.
    pub(in crate::families::moe) const fn scaled_bytes(self) -> u32 {
        match self {
            RowDtype::Fp8Ue8m0 => 4 * SCALE_BLOCK,
            RowDtype::Nvfp4 => 32,
            _ => SCALE_BLOCK,
        }
    }

    /// Whether scales are powers of two.
    pub(in crate::families::moe) const fn has_powers(self) -> bool {
        matches!(self, RowDtype::Fp8Ue8m0 | RowDtype::Mxfp8 | RowDtype::Mxfp4)
    }

    /// Whether scales are bytes of blocks of 16 or 32 elements.
    pub(in crate::families::moe) const fn has_blocks(self) -> bool {
        matches!(self, RowDtype::Mxfp8 | RowDtype::Nvfp4 | RowDtype::Mxfp4)
    }

    /// Whether rows and scales may go as packets: one that ends in all ones loses a bit there, which leaves a NaN a NaN where all are
    /// floats that have some, and makes another number of others.
    pub(in crate::families::moe) const fn survives_packets(self) -> bool {
        // Integers and e2m1 have no NaN, all ones are a number of e4m3fnuz, and without the top bit e8m0's 1.
        matches!(
            self,
            RowDtype::Bf16 | RowDtype::Fp16 | RowDtype::Fp8 | RowDtype::Fp8Token | RowDtype::Fp8Tensor
        )
    }

    /// Which field of rows of `hidden` elements is not what it has to be, its value, and what that is: rows and their scales move as
    /// whole words.
    pub(in crate::families::moe) fn check(self, hidden: u32) -> Result<(), (&'static str, u32, String)> {
        let words = |multiple| {
            format!(
                "a multiple of {multiple} for {self}: rows and their scales move as whole words of 4 bytes"
            )
        };
        match self {
            RowDtype::Bytes { row, scales } => {
                let (most_row, most_scales) = (RowDtype::MOST_ROW_BYTES, RowDtype::MOST_SCALE_BYTES);
                if !row.is_multiple_of(WORD) || !(WORD..=most_row).contains(&row) {
                    return Err((
                        "row_bytes",
                        row,
                        format!("a multiple of {WORD} from {WORD} to {most_row}"),
                    ));
                }
                if !scales.is_multiple_of(WORD) || scales > most_scales {
                    return Err((
                        "scale_bytes",
                        scales,
                        format!("a multiple of {WORD} from 0 to {most_scales}"),
                    ));
                }
                Ok(())
            }
            RowDtype::Mxfp8 | RowDtype::Mxfp4 if !hidden.is_multiple_of(128) => {
                Err(("hidden", hidden, words(128)))
            }
            RowDtype::Nvfp4 if !hidden.is_multiple_of(64) => Err(("hidden", hidden, words(64))),
            _ if !hidden.is_multiple_of(8) => Err(("hidden", hidden, words(8))),
            _ => Ok(()),
        }
    }
}

/// As configurations of kernels name it: without sizes.
impl Choice for RowDtype {
    const ALL: &'static [RowDtype] = &[
        RowDtype::Bf16,
        RowDtype::Fp16,
        RowDtype::Fp8,
        RowDtype::Fp8Ue8m0,
        RowDtype::Fp8Token,
        RowDtype::Fp8Tensor,
        RowDtype::Fp8Fnuz,
        RowDtype::Int8,
        RowDtype::Mxfp8,
        RowDtype::Nvfp4,
        RowDtype::Mxfp4,
        RowDtype::Bytes { row: 0, scales: 0 },
    ];

    fn name(&self) -> &'static str {
        match self {
            RowDtype::Bf16 => "bf16",
            RowDtype::Fp16 => "fp16",
            RowDtype::Fp8 => "fp8",
            RowDtype::Fp8Ue8m0 => "fp8-ue8m0",
            RowDtype::Fp8Token => "fp8-token",
            RowDtype::Fp8Tensor => "fp8-tensor",
            RowDtype::Fp8Fnuz => "fp8-fnuz",
            RowDtype::Int8 => "int8",
            RowDtype::Mxfp8 => "mxfp8",
            RowDtype::Nvfp4 => "nvfp4",
            RowDtype::Mxfp4 => "mxfp4",
            RowDtype::Bytes { .. } => "bytes",
        }
    }
}

impl fmt::Display for RowDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self.sizes() {
            (0, _) => Ok(()),
            (row, 0) => write!(f, "-{row}"),
            (row, scales) => write!(f, "-{row}-{scales}"),
        }
    }
}

impl FromStr for RowDtype {
    type Err = MoeError;

    fn from_str(s: &str) -> Result<RowDtype, MoeError> {
        if let Some(named) = RowDtype::NAMED.iter().find(|named| named.name() == s) {
            return Ok(*named);
        }
        let sizes = s.strip_prefix("bytes-").map(|sizes| sizes.split_once('-').unwrap_or((sizes, "0")));
        if let Some((Ok(row), Ok(scales))) = sizes.map(|(row, scales)| (row.parse(), scales.parse())) {
            return Ok(RowDtype::Bytes { row, scales });
        }
        let names = RowDtype::NAMED.iter().map(Choice::name).collect::<Vec<_>>().join(", ");
        let allowed = format!("must be one of {names}, or bytes-ROW-SCALES with the bytes of each");
        Err(MoeError::invalid("dtype", s, allowed))
    }
}

impl Serialize for RowDtype {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RowDtype {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<RowDtype, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
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
    /// The most experts.
    pub const MOST_EXPERTS: u32 = 65535;

    /// Checks every field, for one node.
    pub fn check(&self) -> Result<(), MoeError> {
        self.check_but_ranks()?;
        range("ranks", self.ranks, 1, 64)
    }

    /// Checks every field, for any nodes.
    pub(in crate::families::moe) fn check_but_ranks(&self) -> Result<(), MoeError> {
        range("hidden", self.hidden, 8, 65536)?;
        if !self.hidden.is_multiple_of(8) {
            return Err(MoeError::invalid("hidden", self.hidden, "must be a multiple of 8"));
        }
        let whole = self.dtype.check(self.hidden);
        whole.map_err(|(field, value, allowed)| {
            MoeError::invalid(field, value, format!("must be {allowed}"))
        })?;
        range("experts", self.experts, 1, MoeShape::MOST_EXPERTS)?;
        range("topk", self.topk, 1, 32)?;
        if self.topk > self.experts {
            let allowed = format!("must not be more than there are experts ({})", self.experts);
            return Err(MoeError::invalid("topk", self.topk, allowed));
        }
        range("tokens", self.tokens, 1, 65536)
    }

    /// Which rank owns which expert.
    pub fn map(&self) -> ExpertMap {
        ExpertMap { experts: self.experts, ranks: self.ranks }
    }

    /// The shape in which slots stand for experts, of ranks that have so many each; of 0, the same.
    #[must_use]
    pub fn with_slots(self, slots: u32) -> MoeShape {
        MoeShape { experts: self.map().with_slots(slots).experts, ..self }
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

fn range(field: &'static str, value: u32, low: u32, high: u32) -> Result<(), MoeError> {
    match (low..=high).contains(&value) {
        true => Ok(()),
        false => Err(MoeError::invalid(field, value, format!("must be {low} to {high}"))),
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
        assert_eq!(message(MoeShape { ranks: 0, ..SHAPE }), "ranks = 0: must be 1 to 64");
        assert_eq!(message(MoeShape { tokens: 0, ..SHAPE }), "tokens = 0: must be 1 to 65536");
        assert_eq!(message(MoeShape { experts: 65536, ..SHAPE }), "experts = 65536: must be 1 to 65535");
    }

    #[test]
    fn row_types_parse_by_name() {
        let bytes = [(96, 0), (4, 2048)].map(|(row, scales)| RowDtype::Bytes { row, scales });
        assert_eq!(bytes.map(|dtype| dtype.to_string()), ["bytes-96", "bytes-4-2048"]);
        for &dtype in RowDtype::NAMED.iter().chain(&bytes) {
            assert_eq!(dtype.to_string().parse::<RowDtype>().unwrap(), dtype);
            assert_eq!(dtype.format().with_sizes(dtype.sizes().0, dtype.sizes().1), dtype);
            assert!(<RowDtype as Choice>::ALL.contains(&dtype.format()));
        }
        for text in ["bytes", "bytes-", "bytes-4-", "bytes-4-4-4", "bytes--4", "bytes-x"] {
            text.parse::<RowDtype>().unwrap_err();
        }
        assert_eq!(
            "int4".parse::<RowDtype>().unwrap_err().to_string(),
            "dtype = int4: must be one of bf16, fp16, fp8, fp8-ue8m0, fp8-token, fp8-tensor, fp8-fnuz, int8, mxfp8, nvfp4, mxfp4, or \
             bytes-ROW-SCALES with the bytes of each"
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
            (RowDtype::Fp8Ue8m0, (7168, 56)),
            (RowDtype::Fp8Token, (7168, 4)),
            (RowDtype::Fp8Tensor, (7168, 0)),
            (RowDtype::Fp8Fnuz, (7168, 224)),
            (RowDtype::Int8, (7168, 4)),
            (RowDtype::Mxfp8, (7168, 224)),
            (RowDtype::Nvfp4, (3584, 448)),
            (RowDtype::Mxfp4, (3584, 224)),
            (RowDtype::Bytes { row: 3616, scales: 12 }, (3616, 12)),
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
        let bytes = |row, scales| message(2880, RowDtype::Bytes { row, scales });
        for row in [0, 2, 30, 131076] {
            assert_eq!(bytes(row, 0), format!("row_bytes = {row}: must be a multiple of 4 from 4 to 131072"));
        }
        for scales in [1, 6, 2052] {
            assert_eq!(
                bytes(32, scales),
                format!("scale_bytes = {scales}: must be a multiple of 4 from 0 to 2048")
            );
        }
    }
}
