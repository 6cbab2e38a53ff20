//! What every rank starts a round with, and what it has to end up with.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use peerwarp_codegen::ir::Dtype;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::families::moe::SCALE_BLOCK;
use crate::families::moe::kernels::{Hook, Quantise, ScaleRounding};
use crate::families::moe::reference::{self, Entry, Grouped, Tokens};
use crate::families::moe::{MoeKey, MoeProblem, MoeShape, Placement, Routing, RowDtype};
use crate::harness::blocks::{Blocks, Scaling};
use crate::harness::bytes::{quantise_fnuz, quantise_int8};
use crate::harness::{elements, fp8};

/// What the results of a round depend on, beside the problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Semantics {
    /// What the problem asks. Of an operation that is split, as if it were not.
    pub key: MoeKey,
    /// Whether owners sum their rows of a token.
    pub dedup: bool,
    /// Whether rows arrive in their places.
    pub in_place: bool,
    /// Whether their scales do, too.
    pub scales_in_place: bool,
    /// Whether what a rank has of its own tokens stays where it is, and is summed from there.
    pub keeps_own: bool,
}

impl Semantics {
    /// The buffers in which dispatch yields rows and their scales.
    pub fn rows(&self) -> [&'static str; 2] {
        let rows = if self.in_place { "inbox" } else { "rows" };
        [rows, if self.scales_in_place { "inbox_scale" } else { "row_scale" }]
    }

    /// Whether combine takes the rows that dispatch yields, as a hook made the experts' outputs of them. Rank-major, combine then yields
    /// the plain sums of the owners' rows, unless it is weighted: a hook applies no weights.
    pub fn y_is_rows(&self) -> bool {
        self.key.hook != Hook::None
    }

    /// Whether combine or the experts apply the weights.
    pub fn weighs(&self) -> bool {
        self.key.layout.by_expert() || self.key.weighted || !self.y_is_rows()
    }

    /// A row as the rank that sums it has it, given whether its owner is that rank.
    fn returned(&self, is_own: bool, row: Vec<f32>) -> Vec<f32> {
        if is_own && self.keeps_own { row } else { reference::returned(self.key.combine_dtype, row) }
    }

    /// The routing with the weights that are applied, given what dispatch has to bring each rank.
    fn applied(&self, shape: &MoeShape, routing: &Routing, grouped: &[Grouped]) -> Routing {
        let mut routing = routing.clone();
        if self.key.layout.room(shape, self.key.max_rows).drops {
            for grouped in grouped {
                let placed = grouped.rows.iter().zip(self.places(shape, &grouped.counts));
                for (entry, _) in placed.filter(|(_, place)| place.is_none()) {
                    let at = (entry.token * shape.topk + entry.k) as usize;
                    routing.weights[entry.source as usize][at] = 0.0;
                }
            }
        }
        if self.weighs() {
            return routing;
        }
        // One row comes from each owner, whichever of its entries it is of.
        for (ids, weights) in routing.ids.iter().zip(&mut routing.weights) {
            let topk = shape.topk as usize;
            for (ids, weights) in ids.chunks(topk).zip(weights.chunks_mut(topk)) {
                let owners: Vec<_> = ids.iter().map(|&id| shape.map().owner(id)).collect();
                for (k, weight) in weights.iter_mut().enumerate() {
                    *weight = if owners[..k].contains(&owners[k]) { 0.0 } else { 1.0 };
                }
            }
        }
        routing
    }
}

/// One round of a problem: its inputs, and the reference's results.
#[derive(Clone, Debug)]
pub struct Round {
    /// Its number, from 0 on.
    pub number: u32,
    /// The problem's shape, with slots for experts where a table places these.
    pub shape: MoeShape,
    /// How it is computed.
    pub semantics: Semantics,
    /// Who sends what where: where a table places experts, with their slots for ids.
    pub routing: Routing,
    /// By rank, the ids that it is given: callers know nothing of ranks that are not active.
    pub given: Vec<Vec<i32>>,
    /// By rank, its table, where one places experts.
    pub placements: Vec<Placement>,
    /// By rank, what it sends.
    pub tokens: Vec<Tokens>,
    /// By rank, what dispatch has to bring it.
    pub grouped: Vec<Grouped>,
    /// By rank, the bytes that combine has to yield.
    pub out: Vec<Vec<u8>>,
    /// By rank, the sum over k in order in f32: the same when nothing is deduplicated.
    pub in_order: Vec<Vec<u8>>,
    /// What is computed within each node, of several.
    pub(super) nodes: Vec<Round>,
    /// The first expert, as ids number all nodes'.
    pub(super) first_expert: u32,
    /// As [`Round::empty_id`].
    pub(super) no_expert: i32,
}

/// What the buffers hold that a rank sends from. Kernels may load what they hold of rows that are no tokens, but must not act on
/// it: an expert, and NaN. Nothing is beyond the rows.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// Rows that there are.
    pub rows_there: u32,
    /// Tokens among them; all of them if it is larger.
    pub n: u32,
    /// Bytes of their rows.
    pub x: Vec<u8>,
    /// Bytes of their rows' scales.
    pub x_scale: Vec<u8>,
    /// The scale of all rows, where dispatch quantises them with one.
    pub tensor_scale: Option<f32>,
    /// Expert ids, `[token][k]`.
    pub ids: Vec<i32>,
    /// Weights of the entries, `[token][k]`.
    pub weights: Vec<f32>,
}

fn padded<T: Copy>(values: &[T], len: u32, pad: T) -> Vec<T> {
    let mut all = values.to_vec();
    all.resize(len as usize, pad);
    all
}

impl Round {
    /// A round of a problem, by its number from 0 on, as it is to be computed.
    pub fn new(problem: &MoeProblem, semantics: Semantics, round: u32) -> Round {
        Round::without(problem, semantics, round, 0)
    }

    /// The same in a world that goes on without some ranks, a mask of them: they have no tokens, and their experts are none.
    pub fn without(problem: &MoeProblem, semantics: Semantics, round: u32, inactive: u64) -> Round {
        let (given, placements) = (problem.routing(round), placements(problem, &semantics.key, round));
        let shape = problem.shape.with_slots(semantics.key.expert_slots);
        let mut routing = placed(given, &placements, (problem.shape, shape));
        let is_inactive = |rank: u32| inactive >> rank & 1 != 0;
        for (rank, ids) in (0..).zip(&mut routing.ids) {
            if is_inactive(rank) {
                ids.clear();
                routing.weights[rank as usize].clear();
            }
            let lost = |id: &&mut i32| shape.map().owner(**id).is_some_and(is_inactive);
            ids.iter_mut().filter(lost).for_each(|id| *id = -1);
        }
        let n = routing.tokens_per_rank(shape.topk);
        let random =
            |rank| random_tokens(&semantics.key, n[rank as usize], stream(problem.seed, round, rank));
        let tokens: Vec<Tokens> = (0..shape.ranks).into_par_iter().map(random).collect();
        let all = Round::of((round, shape), semantics, routing, tokens);
        let all = Round { given: given.ids.clone(), placements, ..all };
        if semantics.key.nodes > 1 { all.over_nodes() } else { all }
    }

    /// What follows from what ranks send, as on one node.
    pub(super) fn of(
        (number, shape): (u32, MoeShape),
        semantics: Semantics,
        routing: Routing,
        tokens: Vec<Tokens>,
    ) -> Round {
        let ranks = (0..shape.ranks).into_par_iter();
        let n = routing.tokens_per_rank(shape.topk);
        let grouped: Vec<Grouped> =
            ranks.clone().map(|rank| reference::dispatch(&shape, &routing, rank)).collect();
        let combined = semantics.key.combined.dtype();
        let applied = semantics.applied(&shape, &routing, &grouped);
        let sums = |rank: u32| {
            let (mut out, mut in_order) = (vec![], vec![]);
            for token in 0..n[rank as usize] {
                let tokens = &tokens[rank as usize];
                let outputs = experts_outputs((&shape, semantics), &routing, tokens, (rank, token));
                let output = |owner: u32, _| &outputs[&owner][..];
                in_order.extend(reference::in_order((&shape, combined), &applied, (rank, token), output));
                let back = |owner: u32, row: Vec<f32>| semantics.returned(owner == rank, row);
                let returned = || -> BTreeMap<u32, Vec<f32>> {
                    outputs.iter().map(|(&owner, row)| (owner, back(owner, row.clone()))).collect()
                };
                let (shape, at) = ((&shape, combined), (rank, token));
                if semantics.key.weighted {
                    let rows = returned();
                    out.extend(reference::weighted_rows(shape, &applied, at, |owner| &rows[&owner]));
                } else if semantics.dedup {
                    out.extend(reference::by_owner(shape, &applied, at, output, back));
                } else if semantics.key.combine_dtype.quantises() {
                    let rows = returned();
                    out.extend(reference::in_order(shape, &applied, at, |owner, _| &rows[&owner]));
                }
            }
            let plain = !semantics.dedup && !semantics.key.combine_dtype.quantises();
            if plain { (in_order.clone(), in_order) } else { (out, in_order) }
        };
        let (out, in_order) = ranks.map(sums).unzip();
        let (nodes, first_expert, no_expert) = (vec![], 0, empty_id(&shape, number));
        let (given, placements) = (routing.ids.clone(), vec![]);
        Round {
            number,
            shape,
            semantics,
            routing,
            given,
            placements,
            tokens,
            grouped,
            out,
            in_order,
            nodes,
            first_expert,
            no_expert,
        }
    }

    /// The id of no expert: -1 in even rounds, the number of all experts in odd ones.
    pub fn empty_id(&self) -> i32 {
        self.no_expert
    }

    /// What a rank has to do with those of its node, and its number there.
    pub(super) fn within_node(&self, rank: u32) -> (&Round, u32) {
        let local = self.shape.ranks / self.semantics.key.nodes;
        match self.nodes.get((rank / local) as usize) {
            None => (self, rank),
            Some(node) => (node, rank % local),
        }
    }

    /// How many rows a rank has for its tokens. Three kinds of callers alternate: callers that have just their tokens, callers that have as
    /// many rows as there can be tokens, and others in between.
    pub fn rows_there(&self, rank: u32) -> u32 {
        rows_there(&self.shape, &self.routing, self.number, rank)
    }

    /// What a rank sends. Where all rows are tokens, the number of tokens says so or is larger, in turn.
    pub fn inputs(&self, rank: u32) -> Inputs {
        let (shape, at) = (&self.shape, rank as usize);
        let (tokens, ids, given) = (&self.tokens[at], &self.routing.ids[at], &self.given[at]);
        let (n, rows_there) = (ids.len() as u32 / shape.topk, self.rows_there(rank));
        let entries = rows_there * shape.topk;
        let (rows, row_bytes, scales, scale_bytes) = match self.semantics.key.quantise.from() {
            Some(from) => (&tokens.given, shape.hidden * from.bytes(), &vec![], 0),
            None => (&tokens.rows, shape.row_bytes(), &tokens.scales, shape.scale_bytes()),
        };
        let host_knows = n == rows_there && (self.number + rank).is_multiple_of(2);
        Inputs {
            rows_there,
            n: if host_knows { u32::MAX } else { n },
            x: padded(rows, rows_there * row_bytes, u8::MAX),
            x_scale: padded(scales, rows_there * scale_bytes, u8::MAX),
            tensor_scale: self.semantics.key.has_tensor_scale().then_some(TENSOR_SCALE),
            ids: padded(&given[..ids.len()], entries, 0),
            weights: padded(&self.routing.weights[at], entries, f32::NAN),
        }
    }

    /// The bytes of a row of a rank after dispatch.
    pub fn row(&self, rank: u32, entry: Entry) -> Cow<'_, [u8]> {
        match self.semantics.key.hook {
            Hook::None => self.tokens[entry.source as usize].row(&self.shape, entry.token).into(),
            Hook::Expert | Hook::Custom => self.expert_row(rank, entry).into(),
        }
    }

    /// The bytes of the expert's output for a row of a rank.
    pub fn expert_row(&self, rank: u32, entry: Entry) -> Vec<u8> {
        elements::encode(self.semantics.key.combined.dtype(), &self.expert_output(rank, entry))
    }

    /// What the expert makes of a row of a rank.
    pub(super) fn expert_output(&self, rank: u32, entry: Entry) -> Vec<f32> {
        let row = self.tokens[entry.source as usize].values(&self.shape, entry.token);
        reference::stand_in_expert(self.semantics.key.combined.dtype(), rank, &row)
    }

    /// The bytes of a row's scales after dispatch.
    pub fn scales(&self, entry: Entry) -> &[u8] {
        self.tokens[entry.source as usize].row_scales(&self.shape, entry.token)
    }
}

/// The tables of a round, if some place experts: one for each rank, for only its own entries go by it.
pub(super) fn placements(problem: &MoeProblem, key: &MoeKey, round: u32) -> Vec<Placement> {
    let ranks = if key.expert_slots > 0 { problem.shape.ranks } else { 0 };
    let of = |rank| {
        let mut rng = stream(problem.seed ^ 0x706c616365, round, rank);
        Placement::random(problem.shape.experts, key.replicas, key.map().experts, &mut rng)
    };
    (0..ranks).map(of).collect()
}

/// What stands for the slot of an entry whose expert has none.
pub(super) const NO_SLOT: i32 = -2;

/// A routing with slots for ids, if tables place experts.
pub(super) fn placed(
    given: &Routing,
    placements: &[Placement],
    (experts, slots): (MoeShape, MoeShape),
) -> Routing {
    let mut routing = given.clone();
    for ((rank, placement), ids) in (0..).zip(placements).zip(&mut routing.ids) {
        for (entry, id) in (0..).zip(ids) {
            let expert = u32::try_from(*id).ok().filter(|&id| id < experts.experts);
            let slot = |expert| placement.slot(expert, (rank, entry / experts.topk), slots.experts);
            *id = expert.map_or(-1, |expert| slot(expert).map_or(NO_SLOT, |slot| slot as i32));
        }
    }
    routing
}

/// As [`Round::rows_there`].
pub(super) fn rows_there(shape: &MoeShape, routing: &Routing, round: u32, rank: u32) -> u32 {
    let n = routing.ids[rank as usize].len() as u32 / shape.topk;
    match (round + rank) % 3 {
        0 => n,
        1 => shape.tokens,
        _ => n + (shape.tokens - n) / 2,
    }
}

/// As [`Round::empty_id`], of all nodes' shape.
pub(super) fn empty_id(shape: &MoeShape, round: u32) -> i32 {
    if round.is_multiple_of(2) { -1 } else { shape.experts as i32 }
}

/// What the experts make of a token, by rank and number, on each of the ranks that own any of them: the same for all its entries
/// there. The stand-in expert goes by a rank's number on its node.
fn experts_outputs(
    (shape, semantics): (&MoeShape, Semantics),
    routing: &Routing,
    tokens: &Tokens,
    (rank, token): (u32, u32),
) -> BTreeMap<u32, Vec<f32>> {
    let (row, topk) = (tokens.values(shape, token), shape.topk as usize);
    let ids = &routing.ids[rank as usize][token as usize * topk..][..topk];
    let owners: BTreeSet<u32> = ids.iter().filter_map(|&id| shape.map().owner(id)).collect();
    let (combined, local) = (semantics.key.combined.dtype(), shape.ranks / semantics.key.nodes);
    let output = |owner| (owner, reference::stand_in_expert(combined, owner % local, &row));
    owners.into_iter().map(output).collect()
}

pub(super) fn stream(seed: u64, round: u32, rank: u32) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(u64::from(round) << 32 | u64::from(rank));
    rng
}

fn random_tokens(key: &MoeKey, n: u32, mut rng: ChaCha8Rng) -> Tokens {
    let (shape, from) = (&key.shape, key.quantise.from());
    let mut out = Tokens::default();
    for _ in 0..n {
        let mut row = uniform(shape.hidden, &mut rng);
        if let Some(from) = from {
            // Blocks of every size that the type has, and of zeros.
            let powers = if from == Dtype::Fp16 { -14..15 } else { -60..60 };
            for block in row.chunks_mut(32) {
                let power = rng.random_range(powers.clone());
                let size = if power == 0 { 0.0 } else { 2f32.powi(power) };
                block.iter_mut().for_each(|x| *x *= size);
            }
            let given = elements::encode(from, &row);
            row = elements::decode(from, &given);
            out.given.extend(given);
        }
        let (bytes, scales) = sent_row(shape.dtype, scaling_of(key), &row);
        out.rows.extend(bytes);
        out.scales.extend(scales);
    }
    out
}

/// Numbers from -1 up to 1. They are those that `random_range` draws one by one, and come many at a time: rows are long.
fn uniform(len: u32, rng: &mut ChaCha8Rng) -> Vec<f32> {
    let mut bits = vec![0u32; len as usize];
    rng.fill(&mut bits[..]);
    elements::loops::uniform(&bits)
}

/// The scale of all rows that dispatch quantises, where they have one: blocks of all sizes are in its range and beside it.
pub(super) const TENSOR_SCALE: f32 = 0.37;

/// What the scales of rows depend on.
fn scaling_of(key: &MoeKey) -> Scaling {
    let quantises = key.quantise != Quantise::None;
    let tensor = if quantises { TENSOR_SCALE } else { 1.0 };
    Scaling { up: key.scale_rounding == ScaleRounding::Up, tensor }
}

/// The bytes of a row as it is sent, and of its scales.
fn sent_row(dtype: RowDtype, scaling: Scaling, row: &[f32]) -> (Vec<u8>, Vec<u8>) {
    let scaled = |block| {
        let (bytes, scales) = fp8::quantise(row, block);
        (bytes, elements::encode(Dtype::F32, &scales))
    };
    match dtype {
        RowDtype::Bf16 => (elements::encode(Dtype::Bf16, row), vec![]),
        RowDtype::Fp16 => (elements::encode(Dtype::Fp16, row), vec![]),
        RowDtype::Fp8 => scaled(SCALE_BLOCK),
        RowDtype::Fp8Token => scaled(row.len() as u32),
        RowDtype::Fp8Tensor => (elements::encode(Dtype::Fp8, row), vec![]),
        RowDtype::Fp8Fnuz => {
            let (bytes, scales) = quantise_fnuz(row, SCALE_BLOCK);
            (bytes, elements::encode(Dtype::F32, &scales))
        }
        RowDtype::Int8 => {
            let (bytes, scale) = quantise_int8(row);
            (bytes, scale.to_le_bytes().to_vec())
        }
        RowDtype::Fp8Ue8m0 => Blocks::Fp8Ue8m0.quantise(row, scaling),
        RowDtype::Mxfp8 => Blocks::Mxfp8.quantise(row, scaling),
        RowDtype::Nvfp4 => Blocks::Nvfp4.quantise(row, scaling),
        RowDtype::Mxfp4 => Blocks::Mxfp4.quantise(row, scaling),
        RowDtype::Bytes { row: bytes, scales } => {
            // Every other packet of them ends in all ones, which no packet may carry.
            let byte = |i: u32| match i / 4 % 8 {
                7 => u8::MAX,
                _ => (row[i as usize % row.len()].to_bits() >> 9) as u8,
            };
            ((0..bytes).map(byte).collect(), (bytes..bytes + scales).map(byte).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_numbers_at_once_are_those_drawn_one_by_one() {
        let (mut all, mut each) = (stream(7, 1, 2), stream(7, 1, 2));
        for len in [1, 7168, 3, 0, 64] {
            let drawn: Vec<f32> = (0..len).map(|_| each.random_range(-1.0..1.0)).collect();
            assert_eq!(uniform(len, &mut all), drawn);
        }
        assert_eq!(all, each);
    }
}
