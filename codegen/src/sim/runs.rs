//! What is the same for ranges of elements.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that don't overlap, with something that holds for each.
#[derive(Debug)]
pub(super) struct Runs<S> {
    /// By first element.
    runs: BTreeMap<u64, Run<S>>,
}

#[derive(Clone, Debug)]
struct Run<S> {
    end: u64,
    /// Where it began when it was set.
    origin: u64,
    state: S,
}

/// A part of a run.
#[derive(Debug, PartialEq)]
pub(super) struct Part<'r, S> {
    pub range: Range<u64>,
    /// Elements of what was set as one that stand before this part.
    pub skipped: u64,
    pub state: &'r S,
}

impl<S> Default for Runs<S> {
    fn default() -> Runs<S> {
        Runs { runs: BTreeMap::new() }
    }
}

impl<S: Clone> Runs<S> {
    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &S)> + '_ {
        self.runs.iter().map(|(&from, run)| (from..run.end, &run.state))
    }

    /// The run that an element is in.
    pub fn at(&self, element: u64) -> Option<(Range<u64>, &S)> {
        let (&from, run) = self.runs.range(..=element).next_back()?;
        (run.end > element).then_some((from..run.end, &run.state))
    }

    /// The runs that meet a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Part<'_, S>> + '_ {
        // Most of the time somebody asks for a range that is a run.
        let whole = self.runs.get(&range.start).filter(|run| run.end == range.end);
        let several = whole.is_none().then(|| {
            let first = self.runs.range(..range.start).next_back().filter(|(_, run)| run.end > range.start);
            first.into_iter().chain(self.runs.range(range.clone()))
        });
        let whole = whole.map(|run| (range.start, run));
        let several = several.into_iter().flatten().map(|(&from, run)| (from, run));
        whole.into_iter().chain(several).map(move |(from, run)| {
            let from = from.max(range.start);
            Part { range: from..run.end.min(range.end), skipped: from - run.origin, state: &run.state }
        })
    }

    /// Puts a range into a run of its own.
    pub fn set(&mut self, range: Range<u64>, state: S) {
        let set = Run { end: range.end, origin: range.start, state };
        // Most of what happens to a range happens to the same range next.
        if let Some(old) = self.runs.get_mut(&range.start).filter(|run| run.end == range.end) {
            *old = set;
            return;
        }
        let before = self.runs.range(..range.start).next_back().filter(|(_, run)| run.end > range.start);
        let cut: Vec<u64> = before.into_iter().chain(self.runs.range(range.clone())).map(|r| *r.0).collect();
        for from in cut {
            let Some(old) = self.runs.remove(&from) else { continue };
            if old.end > range.end {
                self.runs.insert(range.end, old.clone());
            }
            if from < range.start {
                self.runs.insert(from, Run { end: range.start, ..old });
            }
        }
        self.runs.insert(range.start, set);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_knows_what_stood_before_it() {
        let mut runs = Runs::default();
        runs.set(2..10, 'a');
        runs.set(4..6, 'b');
        let all: Vec<_> = runs.within(3..9).map(|part| (part.range, part.skipped, *part.state)).collect();
        assert_eq!(all, [(3..4, 1, 'a'), (4..6, 0, 'b'), (6..9, 4, 'a')]);
        let whole: Vec<_> = runs.within(6..10).map(|part| (part.range, part.skipped, *part.state)).collect();
        assert_eq!(whole, [(6..10, 4, 'a')]);
        let at: Vec<_> = [1, 2, 5, 9, 10].into_iter().map(|e| runs.at(e).map(|run| run.0)).collect();
        assert_eq!(at, [None, Some(2..4), Some(4..6), Some(6..10), None]);
        runs.set(0..20, 'c');
        assert_eq!(runs.iter().collect::<Vec<_>>(), [(0..20, &'c')]);
    }
}
