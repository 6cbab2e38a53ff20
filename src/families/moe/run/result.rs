//! What a run of an MoE problem yields.

use peerwarp_codegen::sim::{Findings, Report};
use serde::Serialize;

use super::Traffic;

/// How far combined rows are from a loop over k in f32.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Errors {
    /// Elements compared.
    pub compared: u64,
    /// Elements that differ in any bit from what the kernels have to compute: the sum over k in order or, with
    /// deduplication, over owners that round their part of it.
    pub wrong: u64,
    /// The first of those, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_wrong: Option<String>,
    /// Largest absolute difference from the sum over k in order.
    pub max_abs_err: f64,
    /// Largest difference from the sum over k in order, relative to the largest element of the row.
    pub max_rel_err: f64,
}

impl Errors {
    /// Compares rows of `hidden` elements: `got` with what must come out bit for bit, and with the sum over k in order.
    pub(super) fn of(
        got: &[f32],
        want: &[f32],
        in_order: &[f32],
        hidden: usize,
        place: impl Fn(usize) -> String,
    ) -> Errors {
        let mut errors = Errors { compared: got.len() as u64, ..Errors::default() };
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            if g.to_bits() != w.to_bits() {
                errors.wrong += 1;
                errors.first_wrong.get_or_insert_with(|| format!("{}: {g}, {w} is right", place(i)));
            }
        }
        for (got, want) in got.chunks(hidden).zip(in_order.chunks(hidden)) {
            let off = |(g, w): (&f32, &f32)| (f64::from(*g) - f64::from(*w)).abs();
            // Unlike f64::max, this keeps a NaN.
            let larger = |a: f64, b: f64| if a >= b { a } else { b };
            let off = got.iter().zip(want).map(off).fold(0.0, larger);
            let largest = want.iter().fold(0.0, |m, w| larger(m, f64::from(w.abs())));
            errors.max_abs_err = larger(errors.max_abs_err, off);
            if largest > 0.0 {
                errors.max_rel_err = larger(errors.max_rel_err, off / largest);
            }
        }
        errors
    }

    pub(super) fn merge(self, other: Errors) -> Errors {
        Errors {
            compared: self.compared + other.compared,
            wrong: self.wrong + other.wrong,
            first_wrong: self.first_wrong.or(other.first_wrong),
            max_abs_err: self.max_abs_err.max(other.max_abs_err),
            max_rel_err: self.max_rel_err.max(other.max_rel_err),
        }
    }
}

/// What a run yields.
#[derive(Clone, Debug, Serialize)]
pub struct MoeRun {
    /// Whether nothing was found and every bit is right.
    pub ok: bool,
    /// Names of the kernels in the order of their launches in a round.
    pub variants: Vec<String>,
    /// Rounds of dispatch and combine. All numbers below are over all of them.
    pub rounds: u32,
    /// Seed of the schedule.
    pub seed: u64,
    /// How the combined rows compare; none when the run did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Errors>,
    /// What the routing demands.
    pub traffic: Traffic,
    /// Bytes that left their rank.
    pub bytes_on_wire: u64,
    /// Bytes stored, `[from][to]`; the diagonal is what a rank stores to itself.
    pub link_bytes: Vec<Vec<u64>>,
    /// Flags signalled, `[from][to]`.
    pub link_flags: Vec<Vec<u64>>,
    /// Instructions executed.
    pub steps: u64,
    /// What the checker found.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub findings: Option<Box<Findings>>,
}

impl MoeRun {
    pub(super) fn links(report: &Report, ranks: u32) -> (Vec<Vec<u64>>, Vec<Vec<u64>>) {
        let table = |count: &dyn Fn(u32, u32) -> u64| -> Vec<Vec<u64>> {
            (0..ranks).map(|from| (0..ranks).map(|to| count(from, to)).collect()).collect()
        };
        (table(&|from, to| report.link_bytes(from, to)), table(&|from, to| report.link_signals(from, to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_exact_where_bits_count_and_relative_to_rows_where_sums_do() {
        let (want, in_order) = ([1.0, -4.0, 0.0, 0.0], [1.0, -4.0, 0.5, 0.0]);
        let errors = Errors::of(&[1.0, -4.5, 0.0, 0.0], &want, &in_order, 2, |i| format!("element {i}"));
        assert_eq!(errors.first_wrong.as_deref(), Some("element 1: -4.5, -4 is right"));
        assert_eq!((errors.compared, errors.wrong), (4, 1));
        assert_eq!((errors.max_abs_err, errors.max_rel_err), (0.5, 1.0));
        let more = errors.clone().merge(Errors { wrong: 2, max_abs_err: 7.0, ..Errors::default() });
        assert_eq!((more.wrong, more.max_abs_err, more.max_rel_err), (3, 7.0, 1.0));
        assert_eq!(more.first_wrong, errors.first_wrong);
    }
}
