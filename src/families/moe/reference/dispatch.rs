//! Dispatch: every token to the ranks that own its experts, grouped by expert.

use peerwarp_codegen::ir::Dtype;

use crate::families::moe::SCALE_BLOCK;
use crate::families::moe::{MoeShape, Routing, RowDtype};
use crate::harness::blocks::Blocks;
use crate::harness::bytes::{dequantise_fnuz, dequantise_int8};
use crate::harness::elements::decode;
use crate::harness::fp8::dequantise;

/// The tokens that one rank sends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tokens {
    /// Rows one after another, as bytes of the dispatched type.
    pub rows: Vec<u8>,
    /// The same as they are given, where they are quantised on their way; else empty.
    pub given: Vec<u8>,
    /// Bytes of the scales of all rows, one after another; empty where no scales travel.
    pub scales: Vec<u8>,
}

impl Tokens {
    /// Bytes of a token's row.
    pub fn row(&self, shape: &MoeShape, token: u32) -> &[u8] {
        let (bytes, token) = (shape.row_bytes() as usize, token as usize);
        &self.rows[token * bytes..(token + 1) * bytes]
    }

    /// Bytes of the scales of a token's row.
    pub fn row_scales(&self, shape: &MoeShape, token: u32) -> &[u8] {
        let (bytes, token) = (shape.scale_bytes() as usize, token as usize);
        &self.scales[token * bytes..(token + 1) * bytes]
    }

    /// Values of a token's row; of nvfp4 over the scale of all rows.
    pub fn values(&self, shape: &MoeShape, token: u32) -> Vec<f32> {
        let (row, scales) = (self.row(shape, token), self.row_scales(shape, token));
        let scaled = |block| dequantise(row, &decode(Dtype::F32, scales), block);
        match shape.dtype {
            RowDtype::Bf16 => decode(Dtype::Bf16, row),
            RowDtype::Fp16 => decode(Dtype::Fp16, row),
            RowDtype::Fp8 => scaled(SCALE_BLOCK),
            RowDtype::Fp8Ue8m0 => Blocks::Fp8Ue8m0.dequantise(row, scales),
            RowDtype::Fp8Token => scaled(shape.hidden),
            RowDtype::Fp8Tensor => decode(Dtype::Fp8, row),
            RowDtype::Fp8Fnuz => dequantise_fnuz(row, &decode(Dtype::F32, scales), SCALE_BLOCK),
            RowDtype::Int8 => dequantise_int8(row, decode(Dtype::F32, scales)[0]),
            RowDtype::Mxfp8 => Blocks::Mxfp8.dequantise(row, scales),
            RowDtype::Nvfp4 => Blocks::Nvfp4.dequantise(row, scales),
            RowDtype::Mxfp4 => Blocks::Mxfp4.dequantise(row, scales),
            RowDtype::Bytes { .. } => {
                (0..shape.hidden as usize).map(|i| some_value(row, scales, i)).collect()
            }
        }
    }
}

/// An element of rows whose bytes mean something to somebody else: one that depends on bytes of all the row.
fn some_value(row: &[u8], scales: &[u8], i: usize) -> f32 {
    let scale = if scales.is_empty() { 0 } else { scales[i % scales.len()] };
    f32::from(row[i % row.len()].wrapping_add(scale)) / 128.0 - 1.0
}

/// One of a token's expert ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Rank that has the token.
    pub source: u32,
    /// The token.
    pub token: u32,
    /// Which of its ids.
    pub k: u32,
}

/// What one rank has after dispatch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grouped {
    /// Whose row each row is: by expert, then source rank, token, k.
    pub rows: Vec<Entry>,
    /// Rows of each of this rank's experts.
    pub counts: Vec<u32>,
    /// `[source][token * topk + k]`: number of the entry's row, -1 when the entry is not this rank's.
    pub pos: Vec<Vec<i32>>,
}

/// Dispatch, as seen by one rank.
pub fn dispatch(shape: &MoeShape, routing: &Routing, rank: u32) -> Grouped {
    let pos = routing.ids.iter().map(|ids| vec![-1; ids.len()]).collect();
    let mut out = Grouped { pos, ..Grouped::default() };
    for expert in shape.map().owned(rank) {
        let before = out.rows.len();
        for (source, ids) in routing.ids.iter().enumerate() {
            for (entry, &id) in ids.iter().enumerate() {
                if id == expert as i32 {
                    out.pos[source][entry] = out.rows.len() as i32;
                    let (token, k) = (entry as u32 / shape.topk, entry as u32 % shape.topk);
                    out.rows.push(Entry { source: source as u32, token, k });
                }
            }
        }
        out.counts.push((out.rows.len() - before) as u32);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::elements::encode;

    /// Two ranks, three experts (two on rank 0), two ids a token, one of them masked, one repeated.
    fn tiny() -> (MoeShape, Routing) {
        let shape = MoeShape { hidden: 8, experts: 3, topk: 2, tokens: 2, ranks: 2, dtype: RowDtype::Fp8 };
        let ids = vec![vec![2, 0, 0, 0], vec![-1, 1]];
        (shape, Routing { ids, weights: vec![vec![1.0; 4], vec![1.0; 2]] })
    }

    fn entry((source, token, k): (u32, u32, u32)) -> Entry {
        Entry { source, token, k }
    }

    #[test]
    fn rows_are_grouped_by_expert_source_token_and_k() {
        let (shape, routing) = tiny();
        let zero = dispatch(&shape, &routing, 0);
        assert_eq!(zero.rows, [(0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 1)].map(entry));
        assert_eq!(zero.counts, [3, 1]);
        assert_eq!(zero.pos, [vec![-1, 0, 1, 2], vec![-1, 3]]);
        let one = dispatch(&shape, &routing, 1);
        assert_eq!(one.rows, [(0, 0, 0)].map(entry));
        assert_eq!(one.counts, [1]);
        assert_eq!(one.pos, [vec![0, -1, -1, -1], vec![-1, -1]]);
    }

    #[test]
    fn nothing_sent_is_nothing_received() {
        let none = Routing { ids: vec![vec![], vec![]], weights: vec![vec![], vec![]] };
        let got = dispatch(&tiny().0, &none, 0);
        assert_eq!(got, Grouped { counts: vec![0, 0], pos: vec![vec![], vec![]], ..Grouped::default() });
    }

    #[test]
    fn rows_have_their_bytes_scales_and_values() {
        let (shape, _) = tiny();
        let tokens = Tokens {
            rows: [[0x38; 8], [0xc0; 8]].concat(),
            scales: encode(Dtype::F32, &[0.5, 0.25]),
            ..Tokens::default()
        };
        assert_eq!(
            (tokens.row(&shape, 1), tokens.row_scales(&shape, 1)),
            (&[0xc0; 8][..], &encode(Dtype::F32, &[0.25])[..])
        );
        assert_eq!(tokens.values(&shape, 0), [0.5; 8]);
        assert_eq!(tokens.values(&shape, 1), [-0.5; 8]);
        let shape = MoeShape { dtype: RowDtype::Bf16, ..shape };
        let tokens = Tokens { rows: [0x80, 0x3f].repeat(8), ..Tokens::default() };
        assert_eq!(tokens.values(&shape, 0), [1.0; 8]);
    }
}
