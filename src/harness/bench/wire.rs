//! What a routing puts on the links, in bytes of rows and their scales. Routing records and flags are not counted.

use serde::{Deserialize, Serialize};

use super::result::What;
use crate::families::moe::{MoeShape, Routing};

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

/// What each rank sends and receives in one round.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wire {
    /// By rank, in dispatch.
    pub dispatch: Vec<RankBytes>,
    /// By rank, in combine.
    pub combine: Vec<RankBytes>,
}

impl Wire {
    /// Of rows that go once to every rank that needs them, or once for every entry.
    pub fn of(shape: &MoeShape, routing: &Routing, dedup: bool) -> Wire {
        let rows = rows(shape, routing, dedup);
        let row = u64::from(shape.row_bytes()) + 4 * u64::from(shape.scales());
        let back = u64::from(shape.hidden) * u64::from(shape.dtype.combined().bytes());
        let sent: Vec<RankBytes> = (0..rows.len()).map(|rank| of_rank(&rows, rank)).collect();
        let times = |bytes| move |n: &RankBytes| RankBytes { out: n.out * bytes, into: n.into * bytes };
        // What came in goes back.
        let home = |n: RankBytes| RankBytes { out: n.into, into: n.out };
        Wire {
            dispatch: sent.iter().map(times(row)).collect(),
            combine: sent.iter().map(times(back)).map(home).collect(),
        }
    }

    /// The busiest rank's bytes, in the direction that has more of them. The two transfers of a round trip may overlap.
    pub fn busiest(&self, what: What) -> u64 {
        let round = || self.dispatch.iter().zip(&self.combine).map(|(d, c)| *d + *c).collect();
        let ranks = match what {
            What::Dispatch => self.dispatch.clone(),
            What::Combine => self.combine.clone(),
            What::RoundTrip | What::RoundTripOfMany | What::FusedRoundTrip | What::FusedRoundTripOfMany => {
                round()
            }
        };
        ranks.iter().map(|rank: &RankBytes| rank.busier()).max().unwrap_or(0)
    }
}

/// Rows of dispatch, `[from][to]`; the diagonal is what stays.
pub fn rows(shape: &MoeShape, routing: &Routing, dedup: bool) -> Vec<Vec<u64>> {
    let (map, ranks) = (shape.map(), shape.ranks as usize);
    let owner: Vec<usize> =
        (0..shape.experts as i32).map(|e| map.owner(e).map_or(0, |rank| rank as usize)).collect();
    let of_source = |ids: &Vec<i32>| {
        let mut to = vec![0; ranks];
        for token in ids.chunks(shape.topk as usize) {
            let mut entries = vec![0u64; ranks];
            for id in token.iter().filter_map(|&id| usize::try_from(id).ok()) {
                if let Some(&rank) = owner.get(id) {
                    entries[rank] += 1;
                }
            }
            for (all, n) in to.iter_mut().zip(entries) {
                *all += if dedup { n.min(1) } else { n };
            }
        }
        to
    };
    routing.ids.iter().map(of_source).collect()
}

fn of_rank(rows: &[Vec<u64>], rank: usize) -> RankBytes {
    let others = (0..rows.len()).filter(|other| *other != rank);
    let (out, into) = others.fold((0, 0), |(out, into), o| (out + rows[rank][o], into + rows[o][rank]));
    RankBytes { out, into }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;

    const SHAPE: MoeShape =
        MoeShape { hidden: 256, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Fp8 };

    #[test]
    fn a_row_goes_once_to_a_rank_or_once_for_an_entry_and_comes_back() {
        // Rank 0: a token for 0, 2, 3; rank 1: a token for 0, 0 and nobody, and a masked one.
        let ids = vec![vec![0, 2, 3], vec![0, 0, -1, -1, 7, -1]];
        let routing = Routing { ids, weights: vec![] };
        assert_eq!(rows(&SHAPE, &routing, true), [[1, 1], [1, 0]]);
        assert_eq!(rows(&SHAPE, &routing, false), [[1, 2], [2, 0]]);
        let wire = Wire::of(&SHAPE, &routing, true);
        // Two scales a row, and combine in bf16.
        assert_eq!(wire.dispatch, [RankBytes { out: 264, into: 264 }; 2]);
        assert_eq!(wire.combine, [RankBytes { out: 512, into: 512 }; 2]);
        assert_eq!(What::ALL.map(|what| wire.busiest(what)), [264, 512, 776, 776, 776, 776]);
        let one_way = Routing { ids: vec![vec![2, 3, -1, 2, -1, -1], vec![]], weights: vec![] };
        let wire = Wire::of(&SHAPE, &one_way, false);
        assert_eq!(wire.dispatch[0], RankBytes { out: 3 * 264, into: 0 });
        assert_eq!(wire.combine[1], RankBytes { out: 3 * 512, into: 0 });
        // All of it from rank 0, and all of it back: at once.
        assert_eq!(What::ALL.map(|what| wire.busiest(what)), [792, 1536, 1536, 1536, 1536, 1536]);
    }
}
