//! The layout of rows at the rank that receives them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

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
    /// The same, with the first row of each expert at a multiple of 8. Rows before it that are nobody's are left as they are.
    #[choice(name = "expert-major-8")]
    ExpertMajor8,
    /// The same at multiples of 16.
    #[choice(name = "expert-major-16")]
    ExpertMajor16,
    /// The same at multiples of 128.
    #[choice(name = "expert-major-128")]
    ExpertMajor128,
    /// By expert, source, token and k, with the first row of the rank's e-th expert at `e * ranks * tokens`. Ids that a token has twice
    /// can make an expert's rows more than that: those that have no place are counted, and contribute nothing.
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

impl Layout {
    /// Whether there is a row for every entry, and an expert's rows are together.
    pub fn by_expert(self) -> bool {
        self != Layout::RankMajor
    }

    /// Where the rows of a rank's experts begin, when all ranks together have `tokens` tokens at most.
    pub fn begins(self, tokens: u32) -> Begins {
        match self {
            Layout::RankMajor | Layout::ExpertMajor => Begins::Aligned(1),
            Layout::ExpertMajor8 => Begins::Aligned(8),
            Layout::ExpertMajor16 => Begins::Aligned(16),
            Layout::ExpertMajor128 => Begins::Aligned(128),
            Layout::ExpertStrided => Begins::Strided(tokens),
        }
    }

    /// Rows that a rank with so many experts has places for, when all ranks together have `tokens` tokens at most.
    pub fn places(self, tokens: u32, topk: u32, experts: u32) -> u64 {
        if self == Layout::RankMajor {
            return u64::from(tokens);
        }
        match self.begins(tokens) {
            Begins::Aligned(align) => {
                let gaps = u64::from(experts) * u64::from(align - 1);
                (u64::from(tokens) * u64::from(topk) + gaps).next_multiple_of(align.into())
            }
            Begins::Strided(stride) => u64::from(experts) * u64::from(stride),
        }
    }
}

/// Where a row that arrives is put.
pub(super) enum Places {
    /// In each of these rows that is not negative.
    All(Shared<i32>),
    /// In this row.
    One(Val<u32>),
}

impl Places {
    /// Does something with each of the rows.
    #[kernel]
    pub fn each(&self, act: impl Fn(Val<u32>)) {
        match self {
            Places::One(row) => act(*row),
            Places::All(rows) => {
                for k in 0..(rows.len() as u32).val() {
                    let row = rows.get(k);
                    if row >= 0 {
                        act(row.cast::<u32>());
                    }
                }
            }
        }
    }
}
