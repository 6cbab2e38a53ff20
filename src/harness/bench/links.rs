//! What work puts on the links of each rank.

use serde::{Deserialize, Serialize};

use crate::harness::workload::Work;

/// Bytes that leave a rank, and those that come to it from others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankBytes {
    /// To other ranks.
    pub out: u64,
    /// From other ranks.
    #[serde(rename = "in")]
    pub into: u64,
}

impl RankBytes {
    /// What keeps a link busy whose two directions work at once.
    pub fn busier(self) -> u64 {
        self.out.max(self.into)
    }
}

impl std::ops::Add for RankBytes {
    type Output = RankBytes;

    fn add(self, other: RankBytes) -> RankBytes {
        RankBytes { out: self.out + other.out, into: self.into + other.into }
    }
}

impl Work {
    /// What each rank sends to others and receives from them.
    pub fn by_rank(&self) -> Vec<RankBytes> {
        by_rank(&self.bytes)
    }

    /// Bytes of the busiest rank, in the direction that has more of them.
    pub fn busiest(&self) -> u64 {
        busiest(&self.bytes)
    }

    /// The same of the least bytes that solve the problem.
    pub fn least_busiest(&self) -> u64 {
        busiest(self.least.as_ref().unwrap_or(&self.bytes))
    }
}

/// Of bytes `[from][to]`; what a rank moves to itself crosses no link.
fn by_rank(bytes: &[Vec<u64>]) -> Vec<RankBytes> {
    let of_rank = |rank: usize| {
        let others = (0..bytes.len()).filter(|other| *other != rank);
        let (out, into) = others.fold((0, 0), |(out, into), o| (out + bytes[rank][o], into + bytes[o][rank]));
        RankBytes { out, into }
    };
    (0..bytes.len()).map(of_rank).collect()
}

fn busiest(bytes: &[Vec<u64>]) -> u64 {
    by_rank(bytes).into_iter().map(RankBytes::busier).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directions_work_at_once_and_what_stays_crosses_no_link() {
        let there = Work { bytes: vec![vec![9, 5], vec![3, 9]], ..Work::default() };
        assert_eq!(there.by_rank(), [RankBytes { out: 5, into: 3 }, RankBytes { out: 3, into: 5 }]);
        let back = Work { bytes: vec![vec![0, 2], vec![1, 0]], ..Work::default() };
        assert_eq!([&there, &back, &there.then(&back)].map(Work::busiest), [5, 2, 7]);
        // All of it one way, then all of it back: at once.
        let [out, home] = [[[0, 8], [0, 0]], [[0, 0], [8, 0]]]
            .map(|bytes| Work { bytes: bytes.map(Vec::from).to_vec(), ..Work::default() });
        assert_eq!(out.then(&home).busiest(), 8);
        let dear = Work { least: Some(vec![vec![0, 4], vec![4, 0]]), ..there };
        assert_eq!((dear.busiest(), dear.least_busiest(), Work::default().busiest()), (5, 4, 0));
    }
}
