//! Dispatch: every token to the ranks that own its experts, grouped by expert.

use crate::moe::{MoeShape, Routing};

/// The tokens that one rank sends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Rows one after another, as bytes of the dispatched type.
    pub rows: Vec<u8>,
    /// Scales of all rows one after another; empty unless the rows are fp8.
    pub scales: Vec<f32>,
}

impl Tokens {
    /// Bytes of a token's row.
    pub fn row(&self, shape: &MoeShape, token: usize) -> &[u8] {
        let bytes = shape.row_bytes() as usize;
        &self.rows[token * bytes..(token + 1) * bytes]
    }

    /// Scales of a token's row.
    pub fn row_scales(&self, shape: &MoeShape, token: usize) -> &[f32] {
        let n = shape.scales() as usize;
        &self.scales[token * n..(token + 1) * n]
    }
}

/// What one rank has after dispatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grouped {
    /// A row for every entry that goes to one of this rank's experts: by expert, then source rank, token, k.
    pub rows: Vec<u8>,
    /// Their scales; empty unless the rows are fp8.
    pub scales: Vec<f32>,
    /// Rows of each of this rank's experts.
    pub counts: Vec<u32>,
    /// `[source][token * topk + k]`: number of the entry's row, -1 when the entry is not this rank's.
    pub pos: Vec<Vec<i32>>,
}

/// Dispatch, as seen by one rank.
pub fn dispatch(shape: &MoeShape, routing: &Routing, sent: &[Tokens], rank: u32) -> Grouped {
    let topk = shape.topk as usize;
    let mut out =
        Grouped { pos: routing.ids.iter().map(|ids| vec![-1; ids.len()]).collect(), ..Grouped::default() };
    let mut rows = 0;
    for expert in shape.map().owned(rank) {
        let before = rows;
        for (source, ids) in routing.ids.iter().enumerate() {
            for (entry, &id) in ids.iter().enumerate() {
                if id == expert as i32 {
                    out.rows.extend(sent[source].row(shape, entry / topk));
                    out.scales.extend(sent[source].row_scales(shape, entry / topk));
                    out.pos[source][entry] = rows;
                    rows += 1;
                }
            }
        }
        out.counts.push((rows - before) as u32);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::RowDtype;

    /// Two ranks, three experts (two on rank 0), two ids a token, one of them masked, one repeated.
    fn tiny() -> (MoeShape, Routing, Vec<Tokens>) {
        let shape = MoeShape { hidden: 8, experts: 3, topk: 2, tokens: 2, ranks: 2, dtype: RowDtype::Fp8 };
        let ids = vec![vec![2, 0, 0, 0], vec![-1, 1]];
        let weights = vec![vec![1.0; 4], vec![1.0; 2]];
        let sent = vec![
            Tokens { rows: [[10; 8], [11; 8]].concat(), scales: vec![0.5, 0.25] },
            Tokens { rows: vec![20; 8], scales: vec![2.0] },
        ];
        (shape, Routing { ids, weights }, sent)
    }

    #[test]
    fn rows_are_grouped_by_expert_source_token_and_k() {
        let (shape, routing, sent) = tiny();
        let zero = dispatch(&shape, &routing, &sent, 0);
        assert_eq!(zero.rows, [[10; 8], [11; 8], [11; 8], [20; 8]].concat());
        assert_eq!(zero.scales, [0.5, 0.25, 0.25, 2.0]);
        assert_eq!(zero.counts, [3, 1]);
        assert_eq!(zero.pos, [vec![-1, 0, 1, 2], vec![-1, 3]]);
        let one = dispatch(&shape, &routing, &sent, 1);
        assert_eq!(one.rows, [10; 8]);
        assert_eq!(one.counts, [1]);
        assert_eq!(one.pos, [vec![0, -1, -1, -1], vec![-1, -1]]);
    }

    #[test]
    fn nothing_sent_is_nothing_received() {
        let (shape, _, _) = tiny();
        let none = Routing { ids: vec![vec![], vec![]], weights: vec![vec![], vec![]] };
        let got = dispatch(&shape, &none, &[Tokens::default(), Tokens::default()], 0);
        assert_eq!(got, Grouped { counts: vec![0, 0], pos: vec![vec![], vec![]], ..Grouped::default() });
    }
}
