//! What a problem's routing makes ranks send, counted without running anything.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::families::moe::{ExpertMap, MoeShape, Routing};

/// What one rank sends and receives, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RankTraffic {
    /// Tokens of this rank.
    pub tokens_sent: u64,
    /// Tokens of all ranks, this one too, that go to one of this rank's experts.
    pub tokens_received: u64,
    /// Rows that this rank's experts work on: a token's row once for every one of its ids that is this rank's.
    pub rows: u64,
}

/// What the routing demands, over all rounds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Traffic {
    /// By rank.
    pub ranks: Vec<RankTraffic>,
    /// Rows that leave their rank when each goes once to every rank.
    pub rows_dedup: u64,
    /// Rows that leave their rank when each goes once to every expert.
    pub rows_plain: u64,
    /// Which part of the rows need not be sent thanks to deduplication.
    pub dedup_saving: f64,
}

impl Traffic {
    pub(super) fn of(shape: &MoeShape, rounds: &[&Routing]) -> Traffic {
        let mut traffic = Traffic::default();
        for routing in rounds {
            traffic.add(shape.map(), shape.topk, routing);
        }
        if traffic.rows_plain > 0 {
            traffic.dedup_saving = 1.0 - traffic.rows_dedup as f64 / traffic.rows_plain as f64;
        }
        traffic
    }

    /// Rows that leave their node, over all rounds: one for each token and other node that owns one of its experts.
    pub fn rows_to_nodes(shape: &MoeShape, nodes: u32, rounds: &[&Routing]) -> u64 {
        let (map, local) = (shape.map(), shape.ranks / nodes);
        let of_source = |(source, ids): (usize, &Vec<i32>)| {
            let of_token = |ids: &[i32]| {
                let owners = ids.iter().filter_map(|&id| map.owner(id)).map(|owner| owner / local);
                owners.filter(|node| *node != source as u32 / local).collect::<BTreeSet<u32>>().len()
            };
            ids.chunks(shape.topk as usize).map(of_token).sum::<usize>() as u64
        };
        rounds.iter().map(|routing| routing.ids.iter().enumerate().map(of_source).sum::<u64>()).sum()
    }

    fn add(&mut self, map: ExpertMap, topk: u32, routing: &Routing) {
        self.ranks.resize(map.ranks as usize, RankTraffic::default());
        for (source, ids) in routing.ids.iter().enumerate() {
            for token in ids.chunks(topk as usize) {
                self.ranks[source].tokens_sent += 1;
                for (owner, rank) in self.ranks.iter_mut().enumerate() {
                    let rows = token.iter().filter(|&&id| map.owner(id) == Some(owner as u32)).count() as u64;
                    rank.rows += rows;
                    rank.tokens_received += u64::from(rows > 0);
                    if owner != source {
                        self.rows_plain += rows;
                        self.rows_dedup += u64::from(rows > 0);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_received_once_by_a_rank_and_is_a_row_for_each_id() {
        let map = ExpertMap { experts: 4, ranks: 2 };
        // Rank 0: a token for 0, 2, 3; rank 1: a token for 0, 0 and no expert, and a masked one.
        let ids = vec![vec![0, 2, 3], vec![0, 0, -1, -1, 7, -1]];
        let mut traffic = Traffic::default();
        traffic.add(map, 3, &Routing { ids, weights: vec![] });
        let rank = |tokens_sent, tokens_received, rows| RankTraffic { tokens_sent, tokens_received, rows };
        assert_eq!(traffic.ranks, [rank(1, 2, 3), rank(2, 1, 2)]);
        assert_eq!((traffic.rows_plain, traffic.rows_dedup), (4, 2));
    }
}
