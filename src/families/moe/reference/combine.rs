//! Combine: every token's expert outputs, weighted and summed in f32.

use std::collections::BTreeMap;

use peerwarp_codegen::ir::Dtype;

use super::Entry;
use crate::families::moe::kernels::ReturnDtype;
use crate::families::moe::{MoeShape, Routing, SCALE_BLOCK};
use crate::harness::blocks::{Blocks, Scaling};
use crate::harness::elements::loops::{add_weighted, scale};
use crate::harness::elements::{encode, round};
use crate::harness::fp8;

/// The benchmark's stand-in expert, `x * (1 + rank)`, in the type that rows are combined in.
pub fn stand_in_expert(combined: Dtype, rank: u32, row: &[f32]) -> Vec<f32> {
    let mut output = row.to_vec();
    scale(&mut output, 1.0 + rank as f32);
    round(combined, output)
}

/// The combined row of a token, by its rank and number, as bytes: the sum over k, in order, in f32, rounded at the end.
/// `output` is what the expert of an entry makes of its row, on the rank that owns it; rows are combined in `combined`.
pub fn in_order<'o>(
    (shape, combined): (&MoeShape, Dtype),
    routing: &Routing,
    (source, token): (u32, u32),
    output: impl Fn(u32, Entry) -> &'o [f32],
) -> Vec<u8> {
    let mut sum = vec![0f32; shape.hidden as usize];
    for (owner, weight, entry) in entries_of(shape, routing, source, token) {
        add_weighted(&mut sum, weight, output(owner, entry));
    }
    encode(combined, &sum)
}

/// What the experts of one rank make of one token: the sum over those of its entries that are there, in the order of k, with
/// the weights, in f32.
pub fn of_owner<'o>(
    shape: &MoeShape,
    routing: &Routing,
    owner: u32,
    (source, token): (u32, u32),
    output: impl Fn(u32, Entry) -> &'o [f32],
) -> Vec<f32> {
    let mut piece = vec![0f32; shape.hidden as usize];
    for (_, weight, entry) in entries_of(shape, routing, source, token).iter().filter(|e| e.0 == owner) {
        add_weighted(&mut piece, *weight, output(owner, *entry));
    }
    piece
}

/// A row as its receiver has it: numbers of few bits times their scales.
pub fn returned(combine_dtype: ReturnDtype, row: Vec<f32>) -> Vec<f32> {
    let block = match combine_dtype {
        ReturnDtype::Combined => return row,
        ReturnDtype::Fp8 => SCALE_BLOCK,
        ReturnDtype::Fp8Token => row.len() as u32,
        ReturnDtype::Nvfp4 => {
            // By the scale of the row, that of the largest block is the largest e4m3.
            let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
            let tensor = if largest == 0.0 { 1.0 } else { largest / (6.0 * 448.0) };
            let (bytes, scales) = Blocks::Nvfp4.quantise(&row, Scaling { tensor, ..Scaling::default() });
            return Blocks::Nvfp4.dequantise(&bytes, &scales).iter().map(|x| x * tensor).collect();
        }
    };
    let (bytes, scales) = fp8::quantise(&row, block);
    fp8::dequantise(&bytes, &scales, block)
}

/// As [`in_order`], but summed as the deduplicating kernels do it: each owner sums its own entries and rounds once,
/// then the owners' pieces are added in the order of ranks, each as `back` has it of its owner's.
pub fn by_owner<'o>(
    (shape, combined): (&MoeShape, Dtype),
    routing: &Routing,
    at: (u32, u32),
    output: impl Fn(u32, Entry) -> &'o [f32],
    back: impl Fn(u32, Vec<f32>) -> Vec<f32>,
) -> Vec<u8> {
    let mut entries = entries_of(shape, routing, at.0, at.1);
    // Those of one owner stay in the order of k. An owner without any would add zeros.
    entries.sort_by_key(|entry| entry.0);
    let (mut sum, mut piece) = (vec![0f32; shape.hidden as usize], vec![0f32; shape.hidden as usize]);
    for of_owner in entries.chunk_by(|a, b| a.0 == b.0) {
        piece.fill(0.0);
        of_owner
            .iter()
            .for_each(|&(owner, weight, entry)| add_weighted(&mut piece, weight, output(owner, entry)));
        piece = back(of_owner[0].0, round(combined, piece));
        add_weighted(&mut sum, 1.0, &piece);
    }
    encode(combined, &sum)
}

/// The sum of the owners' rows of a token, in the order of ranks, each times the sum of the token's weights there, rounded: `row` is
/// what an owner sends back.
pub fn weighted_rows<'o>(
    (shape, combined): (&MoeShape, Dtype),
    routing: &Routing,
    (source, token): (u32, u32),
    row: impl Fn(u32) -> &'o [f32],
) -> Vec<u8> {
    let mut weights = BTreeMap::<u32, f32>::new();
    for (owner, weight, _) in entries_of(shape, routing, source, token) {
        *weights.entry(owner).or_insert(0.0) += weight;
    }
    let mut sum = vec![0f32; shape.hidden as usize];
    for (owner, weight) in weights {
        sum.iter_mut().zip(row(owner)).for_each(|(sum, x)| *sum += x * weight);
    }
    encode(combined, &sum)
}

/// Owner, weight and place of each of a token's entries, without masked ones.
fn entries_of(shape: &MoeShape, routing: &Routing, source: u32, token: u32) -> Vec<(u32, f32, Entry)> {
    let first = (token * shape.topk) as usize;
    let (ids, weights) = (&routing.ids[source as usize], &routing.weights[source as usize]);
    let of = |k: u32| {
        let owner = shape.map().owner(ids[first + k as usize])?;
        Some((owner, weights[first + k as usize], Entry { source, token, k }))
    };
    (0..shape.topk).filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;
    use crate::harness::elements::decode;

    const SHAPE: MoeShape =
        MoeShape { hidden: 8, experts: 4, topk: 3, tokens: 2, ranks: 2, dtype: RowDtype::Bf16 };

    /// Rank 0 has two tokens, the second fully masked; experts 0 and 1 are rank 0's, 2 and 3 rank 1's.
    fn tiny(weights: [f32; 3]) -> Routing {
        let ids = vec![vec![1, 3, 0, -1, 9, -1], vec![]];
        Routing { ids, weights: vec![[weights, [5.0; 3]].concat(), vec![]] }
    }

    /// The sums of a token of rank 0, in both ways.
    fn both(routing: &Routing, token: u32, y: [f32; 3]) -> [Vec<f32>; 2] {
        let rows = y.map(|y| [y; 8]);
        let output = |owner: u32, entry: Entry| {
            assert_eq!(owner, u32::from(entry.k == 1));
            &rows[entry.k as usize][..]
        };
        let shape = (&SHAPE, Dtype::Bf16);
        let by_owner = by_owner(shape, routing, (0, token), output, |_, row| row);
        [in_order(shape, routing, (0, token), output), by_owner].map(|bytes| decode(Dtype::Bf16, &bytes))
    }

    #[test]
    fn weighted_sums_and_zeros_for_masked_tokens() {
        assert_eq!(both(&tiny([0.5, 0.25, 2.0]), 0, [4.0, 8.0, 1.0]), [[6.0; 8], [6.0; 8]]);
        assert_eq!(both(&tiny([0.5, 0.25, 2.0]), 1, [4.0, 8.0, 1.0]), [[0.0; 8], [0.0; 8]]);
    }

    #[test]
    fn rows_of_owners_are_weighted_with_the_sum_of_their_weights() {
        let rows = [[4.0; 8], [8.0; 8]];
        let sum = |token| {
            let (shape, routing) = ((&SHAPE, Dtype::Bf16), tiny([0.5, 0.25, 2.0]));
            let bytes = weighted_rows(shape, &routing, (0, token), |owner| &rows[owner as usize][..]);
            decode(Dtype::Bf16, &bytes)
        };
        // Rank 0 has the entries 0 and 2, rank 1 has entry 1.
        assert_eq!(sum(0), [2.5 * 4.0 + 0.25 * 8.0; 8]);
        assert_eq!(sum(1), [0.0; 8]);
    }

    #[test]
    fn owners_round_their_piece() {
        // Rank 0's piece is 256 + 1.5, which rounds to 258; with rank 1's -256 in order nothing is lost.
        let [in_order, by_owner] = both(&tiny([1.0; 3]), 0, [256.0, -256.0, 1.5]);
        assert_eq!((in_order[0], by_owner[0]), (1.5, 2.0));
    }

    #[test]
    fn rows_that_travel_as_fp8_have_a_scale_a_block_or_a_row() {
        // 448 is the largest e4m3 number, and 1 has the smallest step of 1/8 above it.
        let row: Vec<f32> = (0..256).map(|i| if i == 0 { 448.0 } else { 1.0 + 1.0 / 64.0 }).collect();
        let as_blocks = returned(ReturnDtype::Fp8, row.clone());
        let as_row = returned(ReturnDtype::Fp8Token, row.clone());
        assert_eq!((as_blocks[0], as_blocks[1], as_row[1], as_row[200]), (448.0, 1.0, 1.0, 1.0));
        assert!((as_blocks[200] - row[200]).abs() < 1e-6);
        assert_eq!(returned(ReturnDtype::Combined, row.clone()), row);
        assert_eq!(returned(ReturnDtype::Fp8, vec![0.0; 8]), [0.0; 8]);
    }

    #[test]
    fn an_owner_sums_its_own_entries_of_one_token() {
        let routing = tiny([0.5, 0.25, 2.0]);
        let rows = [4.0, 8.0, 1.0].map(|y| [y; 8]);
        let output = |_, entry: Entry| &rows[entry.k as usize][..];
        let of = |owner, token| of_owner(&SHAPE, &routing, owner, (0, token), output)[0];
        assert_eq!([of(0, 0), of(1, 0), of(0, 1)], [4.0, 2.0, 0.0]);
    }

    #[test]
    fn the_stand_in_expert_depends_on_the_rank_and_rounds() {
        let x = [1.0, 1.0 + 1.0 / 128.0];
        assert_eq!(stand_in_expert(Dtype::Bf16, 0, &x), x);
        assert_eq!(stand_in_expert(Dtype::Bf16, 2, &x), [3.0, 3.03125]);
    }
}
