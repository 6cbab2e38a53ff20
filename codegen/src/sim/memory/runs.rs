//! What is the same for ranges of elements.

use std::ops::Range;

use smallvec::SmallVec;

/// Ranges that don't overlap, with something that holds for each.
///
/// A tree of them would be searched at several places in memory for each packet that is sent, arrives or is taken. Here one look
/// finds the run that begins at an element.
#[derive(Debug)]
pub(crate) struct Runs<S> {
    /// By [`GRANULE`] elements, one of the runs that begin there, which knows the next one; zero where none does, and else the
    /// number in `all` plus one.
    begins: Vec<u32>,
    all: Vec<Run<S>>,
    unused: Vec<u32>,
    /// The most elements that a run has had.
    longest: u64,
}

const GRANULE: u64 = 16;

#[derive(Clone, Debug)]
struct Run<S> {
    /// Empty for one that is not used.
    range: Range<u64>,
    /// Where it began when it was set.
    origin: u64,
    next: u32,
    state: S,
}

/// A part of a run.
#[derive(Debug, PartialEq)]
pub(crate) struct Part<'r, S> {
    pub range: Range<u64>,
    /// Elements of what was set as one that stand before this part.
    pub skipped: u64,
    pub state: &'r S,
}

impl<S> Default for Runs<S> {
    fn default() -> Runs<S> {
        Runs { begins: vec![], all: vec![], unused: vec![], longest: 0 }
    }
}

impl<S: Clone> Runs<S> {
    /// All runs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<u64>, &S)> + '_ {
        let mut all: Vec<&Run<S>> = self.all.iter().filter(|run| !run.range.is_empty()).collect();
        all.sort_unstable_by_key(|run| run.range.start);
        all.into_iter().map(|run| (run.range.clone(), &run.state))
    }

    /// The run that an element is in.
    pub fn at(&self, element: u64) -> Option<(Range<u64>, &S)> {
        let run = &self.all[self.around(element)?];
        Some((run.range.clone(), &run.state))
    }

    /// The runs that meet a range, cut to it, in order.
    pub fn within(&self, range: Range<u64>) -> impl Iterator<Item = Part<'_, S>> + '_ {
        self.meeting(range.clone()).map(move |at| {
            let run = &self.all[at];
            let from = run.range.start.max(range.start);
            let to = run.range.end.min(range.end);
            Part { range: from..to, skipped: from - run.origin, state: &run.state }
        })
    }

    /// Puts a range into a run of its own.
    pub fn set(&mut self, range: Range<u64>, state: S) {
        let origin = range.start;
        // Most of what happens to a range happens to the same range next.
        if let Some(run) = self.beginning(range.start).map(|at| &mut self.all[at])
            && run.range.end == range.end
        {
            (run.origin, run.state) = (origin, state);
            return;
        }
        let cut: SmallVec<[usize; 4]> = self.meeting(range.clone()).collect();
        for at in cut {
            let old = self.remove(at);
            if old.range.end > range.end {
                self.insert(range.end..old.range.end, old.origin, old.state.clone());
            }
            if old.range.start < range.start {
                self.insert(old.range.start..range.start, old.origin, old.state);
            }
        }
        self.insert(range, origin, state);
    }

    /// Numbers of the runs that meet a range, in order.
    fn meeting(&self, range: Range<u64>) -> impl Iterator<Item = usize> + '_ {
        let first = (!range.is_empty()).then(|| self.around(range.start)).flatten();
        let first = first.or_else(|| self.after(range.clone()));
        std::iter::successors(first, move |&at| {
            let end = self.all[at].range.end;
            (end < range.end).then(|| self.beginning(end).or_else(|| self.after(end..range.end))).flatten()
        })
    }

    /// Those that begin in a granule.
    fn of_granule(&self, granule: u64) -> impl Iterator<Item = usize> + '_ {
        let first = self.begins.get(granule as usize).and_then(|first| first.checked_sub(1));
        std::iter::successors(first, |&at| self.all[at as usize].next.checked_sub(1)).map(|at| at as usize)
    }

    /// The one that begins at an element.
    fn beginning(&self, element: u64) -> Option<usize> {
        self.of_granule(element / GRANULE).find(|&at| self.all[at].range.start == element)
    }

    /// The one that an element is in.
    fn around(&self, element: u64) -> Option<usize> {
        if let Some(at) = self.beginning(element) {
            return Some(at);
        }
        let start = |at: &usize| self.all[*at].range.start;
        let least = element.saturating_sub(self.longest) / GRANULE;
        let before = |granule| self.of_granule(granule).filter(|at| start(at) <= element).max_by_key(start);
        let last = (least..=element / GRANULE).rev().find_map(before)?;
        self.all[last].range.contains(&element).then_some(last)
    }

    /// The first that begins in a range.
    fn after(&self, range: Range<u64>) -> Option<usize> {
        let start = |at: &usize| self.all[*at].range.start;
        let last = (range.end.div_ceil(GRANULE)).min(self.begins.len() as u64);
        let within =
            |granule| self.of_granule(granule).filter(|at| range.contains(&start(at))).min_by_key(start);
        (range.start / GRANULE..last).find_map(within)
    }

    fn insert(&mut self, range: Range<u64>, origin: u64, state: S) {
        let granule = (range.start / GRANULE) as usize;
        if self.begins.len() <= granule {
            self.begins.resize(granule + 1, 0);
        }
        self.longest = self.longest.max(range.end - range.start);
        let run = Run { range, origin, next: self.begins[granule], state };
        let at = match self.unused.pop() {
            Some(at) => {
                self.all[at as usize] = run;
                at
            }
            None => {
                self.all.push(run);
                self.all.len() as u32 - 1
            }
        };
        self.begins[granule] = at + 1;
    }

    fn remove(&mut self, at: usize) -> Run<S> {
        let old = self.all[at].clone();
        let granule = old.range.start / GRANULE;
        let before = self.of_granule(granule).find(|&run| self.all[run].next as usize == at + 1);
        match before {
            Some(run) => self.all[run].next = old.next,
            None => self.begins[granule as usize] = old.next,
        }
        self.all[at].range = 0..0;
        self.unused.push(at as u32);
        old
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn they_say_of_each_element_what_was_set_last(
            sets in prop::collection::vec((0..400u64, 1..200u64), 1..40), asked in (0..500u64, 0..300u64)
        ) {
            let mut runs = Runs::default();
            // Number and place of what was set last, by element.
            let mut elements: Vec<Option<(usize, u64)>> = vec![None; 900];
            for (i, &(from, len)) in sets.iter().enumerate() {
                runs.set(from..from + len, i);
                elements[from as usize..(from + len) as usize].iter_mut().zip(0..).for_each(|(e, at)| *e = Some((i, at)));
            }
            let range = asked.0..asked.0 + asked.1;
            let mut found = vec![None; 900];
            let mut end = range.start;
            for part in runs.within(range.clone()) {
                prop_assert!(part.range.start >= end && !part.range.is_empty());
                end = part.range.end;
                for element in part.range.clone() {
                    found[element as usize] = Some((*part.state, part.skipped + element - part.range.start));
                }
            }
            prop_assert!(end <= range.end.max(range.start));
            for element in 0..900u64 {
                let want = elements[element as usize];
                prop_assert_eq!(runs.at(element).map(|run| *run.1), want.map(|w| w.0));
                prop_assert_eq!(found[element as usize], want.filter(|_| range.contains(&element)));
            }
            let covered: u64 = runs.iter().map(|(range, _)| range.end - range.start).sum();
            prop_assert_eq!(covered, elements.iter().flatten().count() as u64);
        }
    }
}
