//! The last word on which pair wins: all that are left, in turn, on the same GPUs in the same minute.

use crate::harness::bench::Stats;

/// By how much a pair has to be faster to win against one that comes before it: less is not told from noise.
pub const MARGIN: f64 = 0.01;

/// Which of `times[pair][iteration]` wins. The first is the one to beat, the default; a later one wins if in the median
/// over iterations it takes at least [`MARGIN`] less than the winner so far did right before or after it.
pub fn winner(times: &[Vec<f64>]) -> usize {
    (1..times.len()).fold(0, |best, pair| if beats(&times[pair], &times[best]) { pair } else { best })
}

fn beats(challenger: &[f64], best: &[f64]) -> bool {
    let ratios: Vec<f64> = challenger.iter().zip(best).map(|(c, b)| c / b).collect();
    !ratios.is_empty() && Stats::of(&ratios).median <= 1.0 - MARGIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_wins_ties_and_what_is_within_the_margin() {
        let default = vec![100.0, 101.0, 99.0, 100.0, 100.0];
        let by = |part: f64| default.iter().map(|t| t * part).collect::<Vec<_>>();
        assert_eq!(winner(&[default.clone(), default.clone()]), 0);
        assert_eq!(winner(&[default.clone(), by(0.995)]), 0);
        assert_eq!(winner(&[default.clone(), by(0.98)]), 1);
        // The runner-up has to be better than the best, too.
        assert_eq!(winner(&[default.clone(), by(0.9), by(0.895)]), 1);
        assert_eq!(winner(&[default.clone(), by(0.9), by(0.8)]), 2);
        assert_eq!(winner(&[default.clone(), by(1.1), by(0.9)]), 2);
        assert_eq!(winner(&[default]), 0);
    }

    #[test]
    fn iterations_are_compared_with_each_other() {
        // The machine becomes slower by far more than the pairs differ.
        let default: Vec<f64> = (0..10).map(|i| 100.0 + 50.0 * f64::from(i)).collect();
        let faster: Vec<f64> = default.iter().map(|t| t * 0.97).collect();
        assert_eq!(winner(&[default.clone(), faster]), 1);
        // A few slow iterations decide nothing.
        let mut once = default.clone();
        once[0] *= 0.1;
        assert_eq!(winner(&[default, once]), 0);
    }
}
