//! Which combinations of timed variants have the least sums of times.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeSet, BinaryHeap};

use peerwarp_codegen::family::Variant;

/// All combinations of a variant of each component, the least sum of times first; equal ones as they were given.
pub(super) struct Ranking {
    /// The variants of each component, the fastest first.
    timed: Vec<Vec<(Variant, f64)>>,
    /// Combinations that may come next.
    heap: BinaryHeap<Reverse<Sum>>,
    seen: BTreeSet<Vec<usize>>,
}

/// The sum of a combination: the numbers of its variants.
struct Sum {
    us: f64,
    at: Vec<usize>,
}

impl Ranking {
    pub fn new(mut timed: Vec<Vec<(Variant, f64)>>) -> Ranking {
        timed.iter_mut().for_each(|all| all.sort_by(|a, b| a.1.total_cmp(&b.1)));
        let mut ranking = Ranking { heap: BinaryHeap::new(), seen: BTreeSet::new(), timed };
        ranking.push(vec![0; ranking.timed.len()]);
        ranking
    }

    fn push(&mut self, at: Vec<usize>) {
        let us = at.iter().zip(&self.timed).map(|(&n, all)| Some(all.get(n)?.1)).sum::<Option<f64>>();
        if let Some(us) = us
            && self.seen.insert(at.clone())
        {
            self.heap.push(Reverse(Sum { us, at }));
        }
    }
}

impl Iterator for Ranking {
    type Item = Vec<Variant>;

    fn next(&mut self) -> Option<Vec<Variant>> {
        let Reverse(Sum { at, .. }) = self.heap.pop()?;
        for component in 0..at.len() {
            let mut slower = at.clone();
            slower[component] += 1;
            self.push(slower);
        }
        Some(at.iter().zip(&self.timed).map(|(&n, all)| all[n].0.clone()).collect())
    }
}

impl Ord for Sum {
    fn cmp(&self, other: &Sum) -> Ordering {
        self.us.total_cmp(&other.us).then_with(|| self.at.cmp(&other.at))
    }
}

impl PartialOrd for Sum {
    fn partial_cmp(&self, other: &Sum) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Sum {
    fn eq(&self, other: &Sum) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Sum {}

#[cfg(test)]
mod tests {
    use super::super::example::{KEY, pair};
    use super::*;

    #[test]
    fn combinations_come_by_their_sums_each_once() {
        let variant = pair(KEY).variants()[0].clone();
        let of = |times: &[f64]| times.iter().map(|us| (variant.clone(), *us)).collect::<Vec<_>>();
        let all = vec![of(&[3.0, 1.0]), of(&[10.0, 20.0, 11.5])];
        let mut ranking = Ranking::new(all.clone());
        let mut sums = vec![];
        while let Some(Reverse(Sum { us, .. })) = ranking.heap.peek() {
            sums.push(*us);
            ranking.next();
        }
        assert_eq!(sums, [11.0, 12.5, 13.0, 14.5, 21.0, 23.0]);
        assert_eq!(Ranking::new(vec![all[0].clone(), vec![]]).count(), 0);
    }
}
