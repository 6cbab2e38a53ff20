//! Combine: every token's expert outputs, weighted and summed in f32.

use peerwarp_codegen::ir::Dtype;

use super::{Grouped, encode, round};
use crate::moe::{MoeShape, Routing};

/// An entry's expert output: what the owner has in the row where dispatch put the entry.
fn output<'a>(
    shape: &MoeShape,
    grouped: &[Grouped],
    y: &'a [Vec<f32>],
    at: Entry,
) -> Option<(u32, &'a [f32])> {
    let owner = shape.map().owner(at.id)?;
    let row = grouped[owner as usize].pos[at.source][at.index] as usize;
    let hidden = shape.hidden as usize;
    Some((owner, &y[owner as usize][row * hidden..(row + 1) * hidden]))
}

#[derive(Clone, Copy)]
struct Entry {
    source: usize,
    index: usize,
    id: i32,
}

fn add(sum: &mut [f32], weight: f32, row: &[f32]) {
    for (s, x) in sum.iter_mut().zip(row) {
        *s = weight.mul_add(*x, *s);
    }
}

/// The combined rows of one rank, as bytes: for each token the sum over k, in order, in f32, rounded at the end.
/// `y[rank]` are the expert outputs of a rank, in the order of its dispatched rows.
pub fn in_order(
    shape: &MoeShape,
    routing: &Routing,
    grouped: &[Grouped],
    y: &[Vec<f32>],
    rank: u32,
) -> Vec<u8> {
    let (source, topk) = (rank as usize, shape.topk as usize);
    let mut out = vec![];
    for (token, ids) in routing.ids[source].chunks(topk).enumerate() {
        let mut sum = vec![0f32; shape.hidden as usize];
        for (k, &id) in ids.iter().enumerate() {
            let index = token * topk + k;
            if let Some((_, row)) = output(shape, grouped, y, Entry { source, index, id }) {
                add(&mut sum, routing.weights[source][index], row);
            }
        }
        out.extend(encode(shape.dtype.combined(), &sum));
    }
    out
}

/// As [`in_order`], but summed as the deduplicating kernels do it: each owner sums its own entries and rounds once,
/// then the owners' pieces are added in the order of ranks.
pub fn by_owner(
    shape: &MoeShape,
    routing: &Routing,
    grouped: &[Grouped],
    y: &[Vec<f32>],
    rank: u32,
) -> Vec<u8> {
    let (source, topk) = (rank as usize, shape.topk as usize);
    let dtype: Dtype = shape.dtype.combined();
    let mut out = vec![];
    for (token, ids) in routing.ids[source].chunks(topk).enumerate() {
        let mut sum = vec![0f32; shape.hidden as usize];
        for owner in 0..shape.ranks {
            let mut piece = None;
            for (k, &id) in ids.iter().enumerate() {
                let index = token * topk + k;
                match output(shape, grouped, y, Entry { source, index, id }) {
                    Some((o, row)) if o == owner => {
                        let piece = piece.get_or_insert_with(|| vec![0f32; shape.hidden as usize]);
                        add(piece, routing.weights[source][index], row);
                    }
                    _ => {}
                }
            }
            if let Some(piece) = piece {
                add(&mut sum, 1.0, &round(dtype, &piece));
            }
        }
        out.extend(encode(dtype, &sum));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::{Tokens, decode, dispatch};
    use super::*;
    use crate::moe::RowDtype;

    const SHAPE: MoeShape =
        MoeShape { hidden: 8, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Bf16 };

    /// Rank 0 has two tokens, the second fully masked; experts 0 and 1 are rank 0's, 2 and 3 rank 1's.
    fn tiny(weights: [f32; 3]) -> (Routing, Vec<Grouped>) {
        let ids = vec![vec![1, 3, 0, -1, 9, -1], vec![]];
        let weights = vec![[weights, [5.0; 3]].concat(), vec![]];
        let sent = vec![Tokens { rows: vec![0; 32], scales: vec![] }, Tokens::default()];
        let routing = Routing { ids, weights };
        let grouped = (0..2).map(|r| dispatch(&SHAPE, &routing, &sent, r)).collect();
        (routing, grouped)
    }

    #[test]
    fn weighted_sums_and_zeros_for_masked_tokens() {
        let (routing, grouped) = tiny([0.5, 0.25, 2.0]);
        // Rank 0's rows: entry k = 2 (expert 0), then k = 0 (expert 1). Rank 1's: k = 1.
        let y = [[[1.0; 8], [4.0; 8]].concat(), vec![8.0; 8]];
        let want = [[6.0; 8], [0.0; 8]].concat();
        assert_eq!(decode(Dtype::Bf16, &in_order(&SHAPE, &routing, &grouped, &y, 0)), want);
        assert_eq!(decode(Dtype::Bf16, &by_owner(&SHAPE, &routing, &grouped, &y, 0)), want);
        assert!(in_order(&SHAPE, &routing, &grouped, &y, 1).is_empty());
    }

    #[test]
    fn owners_round_their_piece() {
        let (routing, grouped) = tiny([1.0, 1.0, 1.0]);
        // Rank 0's piece is 256 + 1.5, which rounds to 258; with rank 1's -256 in order nothing is lost.
        let y = [[[1.5; 8], [256.0; 8]].concat(), vec![-256.0; 8]];
        let first = |bytes: Vec<u8>| decode(Dtype::Bf16, &bytes)[0];
        assert_eq!(first(in_order(&SHAPE, &routing, &grouped, &y, 0)), 1.5);
        assert_eq!(first(by_owner(&SHAPE, &routing, &grouped, &y, 0)), 2.0);
    }
}
