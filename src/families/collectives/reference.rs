//! What collectives compute, in plain Rust: nothing of the kernels is in it.

use std::ops::Range;

use peerwarp_codegen::ir::Dtype;

use super::{Length, Lengths, Reduction};
use crate::harness::elements::{encode, loops, mixed, round};
use crate::harness::fp8::{E4M3_MAX, e4m3_from_f32};
use crate::harness::workload::Turn;

/// The vector of a rank in a round: representable in the element type, of both signs and of several sizes. Integers have at most 18
/// bits, so that `f32` has their sums, and many are -1, whose bits are all ones. Of `fp8`, which is only moved, these are the bytes.
pub fn vector(Turn { seed, rank, round: turn }: Turn, elements: u32, dtype: Dtype) -> Vec<f32> {
    let drawn = loops::of_all_sizes(seed ^ u64::from(turn) << 48 ^ u64::from(rank) << 32, elements);
    let whole = |bits: u32| if bits & 7 == 0 { -1.0 } else { ((bits << 9) as i32 >> 14) as f32 };
    match dtype {
        Dtype::I32 => drawn.into_iter().map(|x| whole(x.to_bits())).collect(),
        Dtype::Fp8 => drawn.into_iter().map(|x| (x.to_bits() & 255) as f32).collect(),
        _ => round(dtype, drawn),
    }
}

/// The bytes of a vector.
pub fn bytes(dtype: Dtype, values: &[f32]) -> Vec<u8> {
    match dtype {
        Dtype::I32 => values.iter().flat_map(|x| (*x as i32).to_le_bytes()).collect(),
        Dtype::Fp8 => values.iter().map(|x| *x as u8).collect(),
        _ => encode(dtype, values),
    }
}

/// The vectors of all ranks.
pub fn vectors(turn: Turn, ranks: u32, elements: u32, dtype: Dtype) -> Vec<Vec<f32>> {
    (0..ranks).map(|rank| vector(Turn { rank, ..turn }, elements, dtype)).collect()
}

/// The same where some ranks, a mask of them, are not active: zeros for those.
pub fn vector_without(turn: Turn, inactive: u64, elements: u32, dtype: Dtype) -> Vec<f32> {
    match inactive >> turn.rank & 1 {
        0 => vector(turn, elements, dtype),
        _ => vec![0.0; elements as usize],
    }
}

/// The vector of a rank that is reduced. What extremes are taken of has NaNs: some elements of one rank, others of all ranks.
pub fn reduced(op: Reduction, turn: Turn, ranks: u32, elements: u32, dtype: Dtype) -> Vec<f32> {
    let mut vector = vector(turn, elements, dtype);
    if dtype != Dtype::I32 && !matches!(op, Reduction::Sum | Reduction::Avg) {
        let seed = turn.seed ^ u64::from(turn.round) << 48 ^ 0x7fc0 << 32;
        for (i, x) in (0..).zip(&mut vector) {
            let drawn = mixed(seed ^ i);
            let of_one = u64::from(turn.rank) == (drawn >> 20) % u64::from(ranks);
            if drawn >> 60 == 0 || drawn >> 61 == 1 && of_one {
                *x = f32::NAN;
            }
        }
    }
    vector
}

/// The vectors of the active ranks, which are reduced.
pub fn active_vectors(
    op: Reduction,
    turn: Turn,
    (ranks, inactive): (u32, u64),
    elements: u32,
    dtype: Dtype,
) -> Vec<Vec<f32>> {
    let active = (0..ranks).filter(|rank| inactive >> rank & 1 == 0);
    active.map(|rank| reduced(op, Turn { rank, ..turn }, ranks, elements, dtype)).collect()
}

/// Element by element the reduction over all ranks: in `f32`, in the order of ranks, rounded once.
pub fn reduction(op: Reduction, vectors: &[Vec<f32>], dtype: Dtype) -> Vec<f32> {
    let mut all = vectors.iter();
    let mut sum = all.next().cloned().unwrap_or_default();
    for vector in all {
        match op {
            Reduction::Sum | Reduction::Avg => loops::add(&mut sum, vector),
            Reduction::Max => loops::max(&mut sum, vector),
            Reduction::Min => loops::min(&mut sum, vector),
            Reduction::MaxNan => keep(&mut sum, vector, |most, x| most >= x),
            Reduction::MinNan => keep(&mut sum, vector, |least, x| least <= x),
        }
    }
    if op == Reduction::Avg {
        sum.iter_mut().for_each(|x| *x /= vectors.len() as f32);
    }
    if dtype == Dtype::I32 { sum } else { round(dtype, sum) }
}

/// Keeps elements that are NaN, and those that a comparison with the other row's prefers; takes the others from that row.
fn keep(kept: &mut [f32], row: &[f32], prefers: impl Fn(f32, f32) -> bool) {
    for (kept, x) in kept.iter_mut().zip(row) {
        if !(kept.is_nan() || prefers(*kept, *x)) {
            *kept = *x;
        }
    }
}

/// What the residual becomes: the reduction is rounded before it is added, and the sum after.
pub fn added(reduction: &[f32], residual: &[f32], dtype: Dtype) -> Vec<f32> {
    let mut sum = reduction.to_vec();
    loops::add(&mut sum, residual);
    round(dtype, sum)
}

/// Rows of as many elements as `weight` has, normalised by their root mean square.
pub fn rms_norm(rows: &[f32], weight: &[f32], eps: f32, dtype: Dtype) -> Vec<f32> {
    let row = |row: &[f32]| {
        let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        row.iter()
            .zip(weight)
            .map(|(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32)
            .collect::<Vec<f32>>()
    };
    round(dtype, rows.chunks(weight.len()).flat_map(row).collect())
}

/// The same in `f32`, step by step, for rows whose squares any order of additions sums exactly. Of weights less 1, `plus_one`.
pub fn rms_norm_of_exact(
    rows: &[f32],
    (weight, plus_one): (&[f32], bool),
    eps: f32,
    dtype: Dtype,
) -> Vec<f32> {
    let row = |row: &[f32]| {
        let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f32>() / row.len() as f32 + eps).sqrt();
        let weighted = |(x, w): (&f32, &f32)| x * scale * if plus_one { w + 1.0 } else { *w };
        row.iter().zip(weight).map(weighted).collect::<Vec<f32>>()
    };
    round(dtype, rows.chunks(weight.len()).flat_map(row).collect())
}

/// A rank's vector of multiples of a number, which a sum of few ranks' and its squares keep exactly: from minus four times it to four
/// times it.
pub fn multiples(turn: Turn, elements: u32, of: f32) -> Vec<f32> {
    let drawn = vector(turn, elements, Dtype::F32).into_iter();
    drawn.map(|x| ((x.to_bits() >> 9) % 9) as f32 * of - 4.0 * of).collect()
}

/// e4m3 of rows over a scale of all of them.
pub fn fp8_of_tensor(rows: &[f32], scale: f32) -> Vec<u8> {
    let inverse = 1.0 / scale;
    rows.iter().map(|x| e4m3_from_f32(x * inverse)).collect()
}

/// e4m3 of rows over a scale of each, and these scales.
pub fn fp8_of_rows(rows: &[f32], hidden: usize) -> (Vec<u8>, Vec<f32>) {
    let scale = |row: &[f32]| match row.iter().fold(0f32, |most, x| most.max(x.abs())) {
        0.0 => 1.0,
        most => most / E4M3_MAX,
    };
    let scales: Vec<f32> = rows.chunks(hidden).map(scale).collect();
    let each = rows.chunks(hidden).zip(&scales);
    (each.flat_map(|(row, scale)| row.iter().map(move |x| e4m3_from_f32(x / scale))).collect(), scales)
}

/// How many elements a rank says that it sends to each: nothing, a row, something between, and now and then more than a row has.
pub fn counts(Turn { seed, rank, round }: Turn, ranks: u32, capacity: u32) -> Vec<u32> {
    let turn = Turn { seed: seed ^ 0xc0de, rank, round };
    let drawn = vector(turn, 2 * ranks, Dtype::F32).into_iter().map(|x| x.to_bits() >> 3);
    let (how, many): (Vec<u32>, Vec<u32>) =
        (drawn.clone().step_by(2).collect(), drawn.skip(1).step_by(2).collect());
    let count = |(how, many): (&u32, &u32)| match how % 8 {
        0 => 0,
        1 => capacity,
        2 => capacity.saturating_add(many % 1000),
        _ => many % (capacity + 1),
    };
    how.iter().zip(&many).map(count).collect()
}

/// What a launch says of lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    /// Rows of this rank.
    pub rows: u32,
    /// Rows of all ranks together.
    pub all_rows: u32,
    /// The words on the GPU.
    pub n: Vec<u32>,
}

/// Lengths of a round: nothing, all rows, more than there is room for, and something between, in turn.
pub fn said(Turn { seed, rank, round }: Turn, l: Lengths) -> Said {
    let drawn =
        |what: u32| (mixed(seed ^ u64::from(round) << 40 ^ u64::from(what) << 8 ^ 0x1e57) >> 16) as u32;
    let count = |of: u32| match (seed as u32).wrapping_add(round + of) % 4 {
        0 => 0,
        1 => l.most,
        2 => l.most.saturating_add(drawn(of) % 1000),
        _ => drawn(of) % (l.most + 1),
    };
    let some = drawn(100).is_multiple_of(3);
    match l.length {
        Length::Whole | Length::Host => Said { rows: count(0).min(l.most), all_rows: 0, n: vec![] },
        Length::Device => {
            let rows = if some { drawn(101) % (l.most + 1) } else { l.most };
            Said { rows, all_rows: 0, n: vec![count(0)] }
        }
        Length::Each => {
            let n: Vec<u32> = (0..l.ranks).map(count).collect();
            let own = n[rank as usize].min(l.most);
            let rows = if drawn(200 + rank).is_multiple_of(5) { own / 2 } else { own };
            let all_rows: u32 = n.iter().map(|n| n.min(&l.most)).sum();
            Said { rows, all_rows: if some { all_rows / 4 * 3 } else { all_rows }, n }
        }
    }
}

/// All rows, wherever a launch says how many.
pub fn all_said(l: Lengths) -> Said {
    let words = match l.length {
        Length::Whole | Length::Host => 0,
        Length::Device => 1,
        Length::Each => l.ranks as usize,
    };
    Said { rows: l.most, all_rows: l.most.saturating_mul(l.ranks), n: vec![l.most; words] }
}

/// Elements of a rank's vector, or of a part, where all have one length.
pub fn launched(turn: Turn, l: Lengths, capacity: u32) -> u32 {
    let Said { rows, n, .. } = said(turn, l);
    if l.length == Length::Whole { capacity } else { n.into_iter().fold(rows, u32::min) * l.row }
}

/// A rank's part among all of them, where each has a length of its own: where it begins, what of it its owner has, and what of it the
/// tensor of all ranks has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// First element.
    pub first: u32,
    /// Elements that the owner has.
    pub own: u32,
    /// Elements that others have.
    pub held: u32,
}

/// The parts of all ranks.
pub fn shares(turn: Turn, l: Lengths) -> Vec<Share> {
    let mut first = 0;
    let share = |rank| {
        let Said { rows, all_rows, n } = said(Turn { rank, ..turn }, l);
        let count = n[rank as usize].min(l.most);
        let held = count.min(all_rows.saturating_sub(first));
        let share = Share { first: first * l.row, own: held.min(rows) * l.row, held: held * l.row };
        first += count;
        share
    };
    (0..l.ranks).map(share).collect()
}

/// The part of a vector that belongs to a rank: all parts but the last ones are of one length.
pub fn part(elements: u32, ranks: u32, rank: u32) -> Range<usize> {
    let len = elements.div_ceil(ranks);
    let at = |rank: u32| (u64::from(rank) * u64::from(len)).min(elements.into()) as usize;
    at(rank)..at(rank + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_in_the_order_of_ranks_and_rounded_once() {
        let vectors = [vec![1e8, -0.0], vec![1.0, -0.0], vec![-1e8, -0.0]];
        let sum = reduction(Reduction::Sum, &vectors, Dtype::F32);
        assert_eq!(sum[0].to_bits(), 0f32.to_bits(), "1 is lost in 1e8");
        assert_eq!(sum[1].to_bits(), (-0f32).to_bits());
        // 1 + 2^-9 + 2^-9 is 1 + 2^-8, which bf16 has no bits for: half of its last one, to even.
        let tiny = 1.0 / 512.0;
        let sum = reduction(Reduction::Sum, &[vec![1.0], vec![tiny], vec![tiny], vec![tiny]], Dtype::Bf16);
        assert_eq!(sum, [1.0 + 1.0 / 128.0]);
        assert_eq!(reduction(Reduction::Max, &[vec![1.0], vec![3.0], vec![2.0]], Dtype::F32), [3.0]);
        assert_eq!(reduction(Reduction::Avg, &[vec![2.0], vec![1.0], vec![4.0]], Dtype::F32), [7.0 / 3.0]);
        assert_eq!(reduction(Reduction::Min, &[vec![2.0], vec![1.0], vec![3.0]], Dtype::F32), [1.0]);
    }

    #[test]
    fn nans_lose_or_win_as_the_operation_says() {
        let (nan, other) = (f32::NAN, f32::from_bits(0x7fc0_0001));
        let vectors = [vec![1.0, nan, 2.0, nan], vec![3.0, 1.0, other, other], vec![2.0, -1.0, 4.0, nan]];
        let of = |op| reduction(op, &vectors, Dtype::F32);
        let most = of(Reduction::Max);
        assert!(most[..3] == [3.0, 1.0, 4.0] && most[3].is_nan());
        let least = of(Reduction::Min);
        assert!(least[..3] == [1.0, -1.0, 2.0] && least[3].is_nan());
        let bits = |op| of(op).into_iter().map(f32::to_bits).collect::<Vec<_>>();
        let nans = [nan.to_bits(), other.to_bits(), nan.to_bits()];
        assert!(bits(Reduction::MaxNan)[1..] == nans && of(Reduction::MaxNan)[0] == 3.0);
        assert!(bits(Reduction::MinNan)[1..] == nans && of(Reduction::MinNan)[0] == 1.0);
    }

    #[test]
    fn what_extremes_are_taken_of_has_nans_of_one_rank_and_of_all() {
        let turn = Turn { seed: 3, rank: 0, round: 1 };
        let of = |op| active_vectors(op, turn, (4, 0), 1000, Dtype::Bf16);
        assert!(of(Reduction::Sum).concat().iter().all(|x| x.is_finite()));
        let vectors = of(Reduction::Max);
        let times =
            |nans| (0..1000).filter(|i| vectors.iter().filter(|v| v[*i].is_nan()).count() == nans).count();
        assert!(times(1) > 50 && times(4) > 30 && times(0) > 700 && times(2) + times(3) == 0);
    }

    #[test]
    fn parts_cover_a_vector_and_the_last_ones_may_be_empty() {
        assert_eq!((0..4).map(|r| part(9, 4, r)).collect::<Vec<_>>(), [0..3, 3..6, 6..9, 9..9]);
        assert_eq!((0..3).map(|r| part(7, 3, r)).collect::<Vec<_>>(), [0..3, 3..6, 6..7]);
    }

    #[test]
    fn counts_are_of_all_kinds() {
        let all: Vec<u32> =
            (0..20).flat_map(|seed| counts(Turn { seed, rank: 1, round: 2 }, 4, 100)).collect();
        assert_eq!(all.len(), 80);
        for kind in [|n| n == 0, |n| n == 100, |n| n > 100, |n: u32| (1..100).contains(&n)] {
            assert!(all.iter().any(|n| kind(*n)), "{all:?}");
        }
    }

    /// Also of ranks: what one of them says is less than what another one needs.
    #[test]
    fn lengths_are_of_all_kinds() {
        let of = |length| Lengths { length, row: 8, most: 50, ranks: 4 };
        let turns = (0..40).map(|i| Turn { seed: i / 8, rank: 0, round: (i % 8) as u32 });
        let launched = |length| turns.clone().map(move |t| launched(t, of(length), 400)).collect::<Vec<_>>();
        assert_eq!(launched(Length::Whole), [400; 40]);
        for length in [Length::Host, Length::Device] {
            let all = launched(length);
            assert!(all.contains(&0) && all.contains(&400) && all.iter().any(|n| (8..400).contains(n)));
            assert!(all.iter().all(|n| n % 8 == 0 && *n <= 400));
        }
        let all: Vec<Share> = turns.clone().flat_map(|t| shares(t, of(Length::Each))).collect();
        assert!(all.iter().any(|s| s.own < s.held) && all.iter().any(|s| s.own == 400 && s.held == 400));
        assert!(all.iter().any(|s| s.held == 0 && s.first > 0));
        assert!(turns.clone().any(|t| said(t, of(Length::Each)).n.iter().any(|n| *n > 50)));
    }

    #[test]
    fn rows_have_a_root_mean_square_of_one() {
        let rows = rms_norm(&[3.0, 4.0, -6.0, 8.0], &[1.0, 2.0], 0.0, Dtype::F32);
        let root = 12.5f32.sqrt();
        let want = [3.0 / root, 8.0 / root, -3.0 / root, 8.0 / root];
        assert!(rows.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-6), "{rows:?}");
        assert_eq!(rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-5, Dtype::F32), [0.0, 0.0]);
        assert_eq!(added(&[1.0], &[1.0 / 512.0], Dtype::Bf16), [1.0]);
    }

    #[test]
    fn vectors_differ_by_seed_rank_and_round_and_have_both_signs() {
        let turn = Turn { seed: 1, rank: 0, round: 0 };
        let own = vector(turn, 100, Dtype::F32);
        for other in [Turn { seed: 2, ..turn }, Turn { rank: 1, ..turn }, Turn { round: 1, ..turn }] {
            assert_ne!(own, vector(other, 100, Dtype::F32), "{other:?}");
        }
        assert!(own.iter().any(|x| *x > 0.0) && own.iter().any(|x| *x < 0.0));
        assert!(own.iter().all(|x| (1.0 / 128.0..2.0).contains(&x.abs())));
    }
}
