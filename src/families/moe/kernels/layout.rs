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
}

impl Layout {
    /// Rows that a rank has places for, when all ranks together have `tokens` tokens at most.
    pub fn places(self, tokens: u32, topk: u32) -> u64 {
        match self {
            Layout::ExpertMajor => u64::from(tokens) * u64::from(topk),
            Layout::RankMajor => u64::from(tokens),
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
