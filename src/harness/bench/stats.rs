//! From times of iterations to what is reported.

use serde::{Deserialize, Serialize};

/// What a list of times comes to, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Half of the iterations took at most this long.
    pub median: f64,
    /// A tenth of them.
    pub p10: f64,
    /// Nine tenths.
    pub p90: f64,
    /// 99 of a hundred.
    pub p99: f64,
}

impl Stats {
    /// Of times in any order; zeros if there are none.
    pub fn of(times: &[f64]) -> Stats {
        let mut sorted = times.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |part| quantile(&sorted, part);
        Stats { median: at(0.5), p10: at(0.1), p90: at(0.9), p99: at(0.99) }
    }

    /// Of the slowest rank in each iteration, and the median of how far ranks are apart; `times[rank][iteration]`.
    pub fn of_ranks(times: &[Vec<f64>]) -> (Stats, f64) {
        let iterations = times.iter().map(Vec::len).min().unwrap_or(0);
        let in_iteration = |i: usize| times.iter().map(move |rank| rank[i]);
        let slowest = |i| in_iteration(i).fold(0.0, f64::max);
        let spread = |i| slowest(i) - in_iteration(i).fold(f64::INFINITY, f64::min);
        let values: Vec<f64> = (0..iterations).map(slowest).collect();
        let spreads: Vec<f64> = (0..iterations).map(spread).collect();
        (Stats::of(&values), Stats::of(&spreads).median)
    }
}

/// Between the two neighbours in proportion.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = part * last as f64;
    let (below, above) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    // To a nanosecond: events tell no more.
    ((below + (above - below) * at.fract()) * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_lie_between_neighbours() {
        let times: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        assert_eq!(Stats::of(&times), Stats { median: 50.0, p10: 10.0, p90: 90.0, p99: 99.0 });
        assert_eq!(Stats::of(&[3.0, 1.0]).median, 2.0);
        assert_eq!(Stats::of(&[7.0]), Stats { median: 7.0, p10: 7.0, p90: 7.0, p99: 7.0 });
        assert_eq!(Stats::of(&[]), Stats::default());
    }

    #[test]
    fn the_slowest_rank_counts() {
        let (stats, spread) = Stats::of_ranks(&[vec![1.0, 9.0, 4.0], vec![5.0, 6.0, 4.5]]);
        assert_eq!((stats.median, spread), (5.0, 3.0));
    }
}
