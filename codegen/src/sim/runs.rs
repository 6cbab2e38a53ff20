//! What is the same for ranges of elements.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that don't overlap, with something that holds for each.
#[derive(Debug)]
pub(super) struct Runs<S> {
    /// End and content of each run, by its first element.
    runs: BTreeMap<u64, (u64, S)>,
}

impl<S> Default for Runs<S> {
    fn default() -> Runs<S> {
        Runs { runs: BTreeMap::new() }
    }
}

impl<S: Copy> Runs<S> {
    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, S)> + '_ {
        self.runs.iter().map(|(&from, &(to, state))| (from..to, state))
    }

    /// The runs that meet a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, S)> + '_ {
        let first = self.runs.range(..range.start).next_back().filter(|(_, (end, _))| *end > range.start);
        let rest = self.runs.range(range.clone());
        first
            .into_iter()
            .chain(rest)
            .map(move |(&from, &(to, state))| (from.max(range.start)..to.min(range.end), state))
    }

    /// Puts a range into a run of its own.
    pub fn set(&mut self, range: Range<u64>, state: S) {
        // Most of what happens to a range happens to the same range next.
        if let Some((_, old)) = self.runs.get_mut(&range.start).filter(|run| run.0 == range.end) {
            *old = state;
            return;
        }
        let cut: Vec<(u64, (u64, S))> = self
            .runs
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start)
            .into_iter()
            .chain(self.runs.range(range.clone()))
            .map(|(&from, &run)| (from, run))
            .collect();
        for (from, (to, old)) in cut {
            self.runs.remove(&from);
            if from < range.start {
                self.runs.insert(from, (range.start, old));
            }
            if to > range.end {
                self.runs.insert(range.end, (to, old));
            }
        }
        self.runs.insert(range.start, (range.end, state));
    }
}
