//! What grouped products are run on, and what must come out.

use std::ops::Range;

use peerwarp_codegen::ir::Dtype;
use serde_json::json;

use super::order::result;
use super::reference::{Matrix, ScaledProduct, looked_at, operand_row};
use super::workload::{
    BASELINES, Epilogue, bias, contents, flops, left, operand, product_work, quantised_row, right, row_of,
    scale_inputs, scales_of,
};
use super::{GroupedMatmul, Output};
use crate::harness::elements::{encode, loops, mixed};
use crate::harness::verdict::Expected;
use crate::harness::workload::{Baseline, Contents, Turn, Work, Workload, fields_of};

/// How rows are shared among groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Routing {
    /// All groups have equally many, but for one more in the first ones.
    Even,
    /// Each row goes to any group with equal odds.
    Random,
    /// Each row goes to a group in proportion to one over the group's popularity rank; the seed decides how popular a group is.
    Zipf,
    /// Any counts, of more rows than there are.
    Excess,
}

/// What rounds are routed by, in turn.
const ROUTINGS: [Routing; 4] = [Routing::Random, Routing::Zipf, Routing::Even, Routing::Excess];

/// What rounds are routed by where times are taken, and the seed that decides about it.
const TIMED: (Routing, u64) = (Routing::Random, 0);

impl Routing {
    /// Rows of each of `groups`, of `rows` in all but for [`Routing::Excess`].
    fn counts(self, seed: u64, groups: u32, rows: u32) -> Vec<u32> {
        let drawn = |i: u64| mixed(mixed(seed ^ 0x5eed << 40) ^ i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        match self {
            Routing::Even => (0..groups).map(|g| rows / groups + u32::from(g < rows % groups)).collect(),
            Routing::Excess => (0..groups.into()).map(|g| drawn(g) as u32 >> (drawn(!g) % 32)).collect(),
            Routing::Random | Routing::Zipf => {
                let mut by_popularity: Vec<usize> = (0..groups as usize).collect();
                by_popularity.sort_by_key(|g| drawn(!(*g as u64)));
                let odds = |rank: u32| if self == Routing::Zipf { 1.0 / f64::from(rank + 1) } else { 1.0 };
                let sums = (0..groups).scan(0.0, |sum, rank| {
                    *sum += odds(rank);
                    Some(*sum)
                });
                let sums: Vec<f64> = sums.collect();
                let all = sums.last().copied().unwrap_or_default();
                let mut counts = vec![0; groups as usize];
                for row in 0..u64::from(rows) {
                    let at = (drawn(row) >> 11) as f64 / (1u64 << 53) as f64 * all;
                    let rank = sums.partition_point(|sum| *sum <= at).min(groups as usize - 1);
                    counts[by_popularity[rank]] += 1;
                }
                counts
            }
        }
    }
}

/// The rows that each group has of `rows`: one behind the other if groups begin at multiples of `align`, or all `stride` rows.
fn spans(counts: &[u32], align: u32, stride: u32, rows: u32) -> Vec<Range<u32>> {
    if stride > 0 {
        let starts = (0..).map(|group| group * stride);
        return starts.zip(counts).map(|(start, count)| start..start + stride.min(*count)).collect();
    }
    let next = |start: &mut u32, count: &u32| {
        let end = start.saturating_add(*count).min(rows);
        let span = *start..end;
        *start = end.next_multiple_of(align).min(rows);
        Some(span)
    };
    counts.iter().scan(0, next).collect()
}

impl GroupedMatmul {
    /// Rows that groups have together, so that the gaps between them fit.
    fn routed(&self) -> u32 {
        self.rows.saturating_sub(self.groups.saturating_mul(self.align - 1))
    }

    /// The counts of a round: some rows may be of no group.
    fn counts(&self, turn: Turn) -> Vec<u32> {
        let seed = mixed(turn.seed ^ u64::from(turn.rank) << 40 ^ u64::from(turn.round) << 20);
        let left_out = (seed % u64::from(self.routed() / 8 + 1)) as u32;
        let routing = ROUTINGS[(turn.seed + u64::from(turn.round)) as usize % ROUTINGS.len()];
        routing.counts(seed, self.groups, self.routed() - left_out)
    }

    /// Those where times are taken, none above the rows that a group has room for.
    fn timed_counts(&self) -> Vec<u32> {
        let counts = TIMED.0.counts(TIMED.1, self.groups, self.routed());
        self.spans(&counts).iter().map(|span| span.len() as u32).collect()
    }

    fn spans(&self, counts: &[u32]) -> Vec<Range<u32>> {
        spans(counts, self.align, self.stride, self.rows)
    }

    /// The row of `x` that each row of the result is of: some of them never, others often.
    fn index(&self, turn: Turn) -> Vec<u32> {
        let seed = mixed(turn.seed ^ u64::from(turn.rank) << 40 ^ u64::from(turn.round) << 20 ^ 0x1dec << 44);
        let drawn = |row: u64| (mixed(seed ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15)) >> 20) as u32;
        (0..self.rows.into()).map(|row| drawn(row) % self.gather.max(1)).collect()
    }

    /// The row of `x` that a row of the result is of.
    fn x_row(&self, index: &[u32], at: u32) -> u32 {
        if self.gather > 0 { index[at as usize] } else { at }
    }

    /// What the index has for rows: those of no group are not there, or not of `x`.
    fn index_of(&self, turn: Turn, spans: &[Range<u32>]) -> Contents {
        let mut index = self.index(turn);
        let of_group = |row: u32| spans.iter().any(|span| span.contains(&row));
        let others = (0..).zip(&mut index).filter(|(row, _)| !of_group(*row));
        others.for_each(|(row, number)| *number = [u32::MAX, self.gather][row as usize % 2]);
        Contents::of("index", &index)
    }

    fn epilogue(&self, turn: Turn) -> Epilogue {
        let bias = self.bias.then(|| bias(turn, self.groups * self.n));
        let weights = self.weighted.then(|| Matrix { turn, which: 6, columns: self.rows }.scales());
        Epilogue { weights, ..Epilogue::new(bias, self.activation, result(self.dtype)) }
    }

    /// Scales of `x` and of `w`, and those of all elements.
    fn all_scales(&self) -> ([u64; 2], u64) {
        (self.scale_counts(), self.scales.alphas(self.groups))
    }

    /// What a row of the result holds before the launch.
    fn unwritten(&self) -> Vec<f32> {
        (0..self.columns()).map(|column| -(f32::from(column as u8 % 64) + 100.0)).collect()
    }

    /// What the scales of a row of the result are before the launch.
    fn unwritten_scales(&self) -> Vec<f32> {
        (0..self.out_scales() / self.rows).map(|block| -(block as f32 + 1.0)).collect()
    }

    /// A row of the result that is of no group, and its scales.
    fn unwritten_rows(&self, at: u32) -> Vec<Expected> {
        match self.out {
            Output::Wide => vec![row_of("out", at, result(self.dtype), &self.unwritten())],
            Output::Fp8 => quantised_row(at, &self.unwritten(), &self.unwritten_scales(), self.rows),
        }
    }
}

/// Elements of operands that are timed, which are repeated.
const PATTERN: u32 = 1 << 20;

impl Workload for GroupedMatmul {
    fn baselines() -> Option<Baseline> {
        Some(BASELINES)
    }

    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        let counts = self.counts(turn);
        // A product with a row of no group is no number.
        let (spans, index) = (self.spans(&counts), self.index(turn));
        let (k, rows) = (self.k as usize, left(turn, self.k));
        let mut x = vec![f32::NAN; self.x_rows() as usize * k];
        for row in spans.iter().cloned().flatten().map(|at| self.x_row(&index, at)) {
            x[row as usize * k..][..k].copy_from_slice(&loops::floats(&rows.row(row)));
        }
        let index = (self.gather > 0).then(|| self.index_of(turn, &spans));
        let unwritten = encode(self.out.dtype(self.dtype), &self.unwritten());
        let scales_there = self.unwritten_scales().into_iter().flat_map(|x| vec![x; self.rows as usize]);
        let out_scales = contents("out_scales", Dtype::F32, &scales_there.collect::<Vec<_>>());
        let all = [
            operand("x", self.dtype, &x),
            Contents::of("counts", &counts),
            operand("w", self.dtype, &right(turn, self.k).rows(self.groups * self.n)),
            Contents::new("out", unwritten.repeat(self.rows as usize)),
        ];
        let shape = [self.x_rows(), self.groups * self.n, self.k];
        let scales = scales_of(turn, self.scales, self.all_scales(), shape);
        let scales = scale_inputs(self.scales, scales, shape);
        let out_scales = (self.out == Output::Fp8).then_some(out_scales);
        all.into_iter()
            .chain(index)
            .chain(out_scales)
            .chain(self.epilogue(turn).inputs())
            .chain(scales)
            .collect()
    }

    fn timing_inputs(&self, turn: Turn) -> Vec<Contents> {
        let pattern = |of: Matrix| Contents::repeated("", encode(self.dtype, &of.rows(1)));
        let of = |buffer: &str, matrix| Contents { buffer: buffer.to_owned(), ..pattern(matrix) };
        let counts = Contents::of("counts", &self.timed_counts());
        let index = (self.gather > 0).then(|| Contents::of("index", &self.index(turn)));
        let all = [of("x", left(turn, PATTERN)), counts, of("w", right(turn, PATTERN))];
        all.into_iter().chain(index).collect()
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let spans = self.spans(&self.counts(turn));
        let group_of = |row: u32| spans.iter().position(|span| span.contains(&row));
        let rows = looked_at(turn.seed, self.rows, u64::from(self.n) * u64::from(self.k));
        let mut weights: (Option<usize>, Vec<Vec<i32>>) = (None, vec![]);
        let of_all = [self.x_rows(), self.groups * self.n, self.k];
        let scales = scales_of(turn, self.scales, self.all_scales(), of_all);
        let all = self.epilogue(turn);
        let (shape, n) = ([self.x_rows(), self.n, self.k], self.n as usize);
        let index = self.index(turn);
        let of = |at: u32| {
            let Some(group) = group_of(at) else {
                return self.unwritten_rows(at);
            };
            if weights.0 != Some(group) {
                let first = group as u32 * self.n;
                let rows =
                    (first..first + self.n).map(|row| operand_row(self.scales, right(turn, self.k).row(row)));
                weights = (Some(group), rows.collect());
            }
            let Epilogue { bias, weights: of_rows, activation, dtype } = &all;
            let (activation, dtype) = (*activation, *dtype);
            let bias = bias.as_ref().map(|bias| bias[group * n..][..n].to_vec());
            let epilogue = Epilogue { bias, weights: of_rows.clone(), activation, dtype };
            let product = ScaledProduct { scales: self.scales, of: &scales, shape, group, activation };
            let x = self.x_row(&index, at);
            let left = operand_row(self.scales, left(turn, self.k).row(x));
            let sums = product.row(x, &left, &weights.1);
            epilogue.rows(at, sums, self.out, self.rows)
        };
        rows.into_iter().flat_map(of).collect()
    }

    fn work(&self) -> Work {
        let counts = self.timed_counts();
        let rows = counts.iter().sum();
        let read = counts.iter().filter(|count| **count > 0).count() as u64;
        let columns = u64::from(self.scales.columns(self.k));
        let weights = read * u64::from(self.n) * columns * u64::from(self.dtype.bytes());
        product_work(self.ranks, self.dtype, flops(rows, self.n, self.k), weights)
    }

    fn baseline_case(&self) -> serde_json::Value {
        let mut case = fields_of(self);
        case.insert("counts".to_owned(), json!(self.timed_counts()));
        case.into()
    }
}

#[cfg(test)]
mod tests {
    use peerwarp_codegen::family::Family;

    use super::*;

    #[test]
    fn rows_are_routed_to_groups() {
        let counts = |routing: Routing, seed| routing.counts(seed, 8, 1003);
        assert_eq!(counts(Routing::Even, 5), [126, 126, 126, 125, 125, 125, 125, 125]);
        for routing in [Routing::Random, Routing::Zipf] {
            let all = [1, 2, 3].map(|seed| counts(routing, seed));
            assert!(all.iter().all(|c| c.iter().sum::<u32>() == 1003) && all[0] != all[1], "{all:?}");
            assert_eq!(counts(routing, 1), all[0]);
        }
        // A half of all odds is 1.36 of 2.72, which the first has 1 of; the least popular one has a twentieth.
        let mut zipf = counts(Routing::Zipf, 1);
        zipf.sort_unstable();
        assert!((300..450).contains(&zipf[7]) && (20..80).contains(&zipf[0]), "{zipf:?}");
        assert!(counts(Routing::Random, 1).iter().all(|c| (90..170).contains(c)));
        assert_eq!(Routing::Random.counts(1, 3, 0), [0, 0, 0]);
        let excess = Routing::Excess.counts(1, 64, 8);
        assert!(excess.iter().any(|c| *c > 1 << 20) && excess.iter().any(|c| *c < 1 << 10), "{excess:?}");
    }

    #[test]
    fn groups_begin_where_they_are_aligned() {
        assert_eq!(spans(&[3, 0, 5], 1, 0, 9), [0..3, 3..3, 3..8]);
        assert_eq!(spans(&[3, 0, 5, 1], 4, 0, 12), [0..3, 4..4, 4..9, 12..12]);
        assert_eq!(spans(&[3, u32::MAX, 2], 1, 0, 9), [0..3, 3..9, 9..9]);
        assert_eq!(spans(&[3, u32::MAX, 2], 1, 4, 13), [0..3, 4..8, 8..10]);
    }

    #[test]
    fn limits_are_of_weights_or_of_operations() {
        let us = |key: &str| {
            let c = GroupedMatmul::from_text(&format!("{key} n=4096 k=7168 dtype=bf16")).unwrap();
            c.work().steps[0].1
        };
        // All 32 groups have some of 4096 rows: 1.88 GB. Of 2^19 rows operations take longer.
        assert!((us("groups=32 rows=4096") - 437.0).abs() < 0.1, "{}", us("groups=32 rows=4096"));
        assert!((us("groups=32 rows=524288") - 38482.9).abs() < 0.1, "{}", us("groups=32 rows=524288"));
        // One row has one group's.
        assert!((us("groups=32 rows=1") - 13.66).abs() < 0.1, "{}", us("groups=32 rows=1"));
    }

    #[test]
    fn baselines_get_the_counts_that_are_timed() {
        let c = GroupedMatmul::from_text("groups=3 rows=40 n=8 k=8 dtype=bf16").unwrap();
        let case = c.baseline_case();
        assert_eq!((case["family"].as_str(), case["align"].as_str()), (Some("grouped_matmul"), Some("1")));
        let counts: Vec<u64> = case["counts"].as_array().unwrap().iter().filter_map(|n| n.as_u64()).collect();
        assert_eq!((counts.len(), counts.iter().sum::<u64>()), (3, 40));
    }
}
