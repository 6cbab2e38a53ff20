//! The layout of rows at the rank that receives them.

use peerwarp_codegen::family::Choice;

use crate::families::moe::MoeShape;

/// The order of the rows that dispatch yields, and of the experts' outputs that combine takes.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Layout {
    /// By source and token: a row for every token that comes, put down as it arrives, and an index by which a grouped GEMM
    /// gathers. The experts' work includes the weighted sum of a token's rows: combine takes one row for each. It is what most
    /// engines take, and faster.
    RankMajor,
    /// By expert, source, token and k: a row for every entry, which a grouped GEMM takes as they are. Combine weighs and sums.
    ExpertMajor,
    /// The same, with the first row of each expert at a multiple of 8. Rows before it without an expert are left as they are.
    #[choice(name = "expert-major-8")]
    ExpertMajor8,
    /// The same at multiples of 16.
    #[choice(name = "expert-major-16")]
    ExpertMajor16,
    /// The same at multiples of 128.
    #[choice(name = "expert-major-128")]
    ExpertMajor128,
    /// By expert, source, token and k, with the first row of the rank's e-th expert at `e * ranks * tokens`, or at `e * max_rows` where
    /// that is given. An expert may get more rows, with the first stride only if a token has an id twice: those that have no place
    /// are counted, and contribute nothing.
    ExpertStrided,
}

/// Where the rows of a rank's experts begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// At multiples of a number, one right after the other.
    Aligned(u32),
    /// Each expert's so many rows after the one's before.
    Strided(u32),
}

/// The places that a rank has for rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Where the rows of its experts begin.
    pub begins: Begins,
    /// How many there are.
    pub places: u64,
    /// Whether there may be more rows than places: then those that have none are counted, and contribute nothing.
    pub drops: bool,
}

impl Layout {
    /// Whether there is a row for every entry, and an expert's rows are together.
    pub fn by_expert(self) -> bool {
        self != Layout::RankMajor
    }

    /// What the first row of each expert is a multiple of, where rows are packed; none where they have a stride.
    pub(super) fn align(self) -> Option<u32> {
        match self {
            Layout::RankMajor | Layout::ExpertMajor => Some(1),
            Layout::ExpertMajor8 => Some(8),
            Layout::ExpertMajor16 => Some(16),
            Layout::ExpertMajor128 => Some(128),
            Layout::ExpertStrided => None,
        }
    }

    /// The largest `max_rows` by expert that there is a use for: more rows never come.
    pub fn most_rows(self, shape: &MoeShape) -> u64 {
        match self.align() {
            Some(_) => self.room(shape, 0).places,
            None => u64::from(shape.ranks * shape.tokens) * u64::from(shape.topk),
        }
    }

    /// The places that a rank has for rows of a shape; with `max_rows`, if it is not 0, for so many by expert: of all experts, or of each
    /// at a fixed stride.
    pub fn room(self, shape: &MoeShape, max_rows: u32) -> Room {
        let (tokens, experts) = (shape.ranks * shape.tokens, u64::from(shape.map().at_most()));
        let Some(align) = self.align() else {
            let stride = if max_rows > 0 { max_rows } else { tokens };
            let places = experts * u64::from(stride);
            return Room { begins: Begins::Strided(stride), places, drops: true };
        };
        let all = if self == Layout::RankMajor {
            u64::from(tokens)
        } else {
            let gaps = experts * u64::from(align - 1);
            (u64::from(tokens) * u64::from(shape.topk) + gaps).next_multiple_of(align.into())
        };
        let places = if max_rows > 0 { max_rows.into() } else { all };
        Room { begins: Begins::Aligned(align), places, drops: max_rows > 0 }
    }
}
