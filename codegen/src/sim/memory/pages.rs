//! Pages of shadow memory: what happened to which bytes.

use smallvec::SmallVec;

use super::shadow::{DataEpoch, Event, Who};
use crate::sim::schedule::clock::AgentNo;

/// Marks the site of an atomic among the readers.
pub(crate) const ATOMIC: u32 = 1 << 31;

/// Room in a list of readers at first.
const READERS: usize = 8;
/// The shortest list that is not searched for an earlier reading of the same agent at each one.
const SEARCHED: usize = 16;

#[derive(Clone, Debug)]
pub(crate) enum Readers {
    None,
    One(Event),
    Many(Vec<Event>),
}

impl Readers {
    pub fn as_slice(&self) -> &[Event] {
        match self {
            Readers::None => &[],
            Readers::One(e) => std::slice::from_ref(e),
            Readers::Many(list) => list,
        }
    }

    /// Whether two are known to be the same. Long lists are not compared: they would cost more than the segments.
    fn same(&self, other: &Readers) -> bool {
        match (self, other) {
            (Readers::None, Readers::None) => true,
            (Readers::One(a), Readers::One(b)) => a == b,
            (Readers::None | Readers::One(_) | Readers::Many(_), _) => false,
        }
    }

    /// Adds a reader (or atomic), and drops those of its sort that it makes redundant, now or later: an access that is ordered after the new
    /// one is ordered after them too. (A reader does not stand for an atomic: they clash with different accesses.)
    pub fn add(&mut self, who: Who<'_>, atomic: bool) {
        let mut event = who.event;
        event.site |= if atomic { ATOMIC } else { 0 };
        let redundant = |old: &Event| who.after(*old) && (old.site ^ event.site) & ATOMIC == 0;
        match self {
            Readers::None => *self = Readers::One(event),
            Readers::One(old) if redundant(old) => *old = event,
            Readers::One(old) => {
                let mut list = Vec::with_capacity(READERS);
                list.extend([*old, event]);
                *self = Readers::Many(list);
            }
            Readers::Many(list) => {
                // The last reader often reads again.
                if let Some(last) =
                    list.last_mut().filter(|last| last.agent == event.agent && redundant(last))
                {
                    *last = event;
                    return;
                }
                // To ask a clock about each costs a cache miss each, so that is done when the list has doubled; and a long list is
                // not even searched before.
                if list.len().is_power_of_two() {
                    list.retain(|old| !redundant(old));
                    if list.len() >= SEARCHED {
                        keep_last(list);
                    }
                } else if list.len() < SEARCHED && list.iter().any(|old| old.agent == event.agent) {
                    list.retain(|old| old.agent != event.agent || !redundant(old));
                }
                list.push(event);
                if list.len() == 1 {
                    *self = Readers::One(event);
                }
            }
        }
    }
}

/// Keeps the last event of each agent and sort.
fn keep_last(list: &mut Vec<Event>) {
    list.sort_by_key(|e| (e.agent, e.site & ATOMIC));
    list.dedup_by(|later, kept| {
        let same = later.agent == kept.agent && (later.site ^ kept.site) & ATOMIC == 0;
        if same {
            *kept = *later;
        }
        same
    });
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub from: u16,
    pub to: u16,
    pub written: bool,
    /// Whether there may be atomics among the readers.
    pub atomics: bool,
    pub data_epoch: DataEpoch,
    pub write: Event,
    pub readers: Readers,
}

impl Segment {
    fn unwritten(from: u16, to: u16) -> Segment {
        let never = Event { agent: AgentNo::new(0, 0), time: 0, site: 0 };
        Segment {
            from,
            to,
            written: false,
            atomics: false,
            data_epoch: DataEpoch::default(),
            write: never,
            readers: Readers::None,
        }
    }

    fn same_history(&self, other: &Segment) -> bool {
        self.readers.same(&other.readers)
            && self.written == other.written
            && self.write == other.write
            && self.data_epoch == other.data_epoch
            && self.atomics == other.atomics
    }
}

pub(crate) const PAGE_BITS: u32 = 9;
pub(crate) const PAGE: u64 = 1 << PAGE_BITS;

/// Segments in order, and a bit for each byte that one begins at: to search the segments costs a cache miss a step.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Page {
    pub segments: SmallVec<[Segment; 1]>,
    starts: [u64; PAGE as usize / 64],
}

impl Page {
    pub const fn new() -> Page {
        Page { segments: SmallVec::new_const(), starts: [0; PAGE as usize / 64] }
    }

    /// The first segment that ends after a byte.
    fn first_after(&self, at: u16) -> usize {
        let (word, bit) = (usize::from(at / 64), at % 64);
        let before: u32 = self.starts[..word].iter().map(|w| w.count_ones()).sum();
        let begun = (before + (self.starts[word] << (63 - bit)).count_ones()) as usize;
        match begun.checked_sub(1) {
            Some(last) if self.segments[last].to > at => last,
            _ => begun,
        }
    }

    fn insert(&mut self, i: usize, segment: Segment) {
        self.flip(segment.from);
        self.segments.insert(i, segment);
    }

    fn remove(&mut self, i: usize) {
        let from = self.segments.remove(i).from;
        self.flip(from);
    }

    /// Puts one segment in the place of several that cover the same bytes.
    pub fn replace(&mut self, first: usize, end: usize, by: Segment) {
        for i in (first + 1..end).rev() {
            self.remove(i);
        }
        self.segments[first] = by;
    }

    fn flip(&mut self, start: u16) {
        self.starts[usize::from(start / 64)] ^= 1 << (start % 64);
    }
}

/// Makes segment borders at `from` and `to` and fills gaps between them, so that the segments returned (as a range of
/// indices) cover exactly `from..to`.
pub(crate) fn carve(page: &mut Page, from: u16, to: u16) -> (usize, usize) {
    let exactly = |s: &Segment| s.from == from && s.to == to;
    if page.segments.first().is_some_and(exactly) {
        return (0, 1);
    }
    let mut first = page.first_after(from);
    match page.segments.get(first) {
        Some(s) if exactly(s) => return (first, first + 1),
        Some(s) if s.from < from => {
            split(page, first, from);
            first += 1;
        }
        _ => {}
    }
    let (mut i, mut at) = (first, from);
    while at < to {
        let next = page.segments.get(i).map_or(to, |s| s.from.min(to));
        if next > at {
            page.insert(i, Segment::unwritten(at, next));
        } else if page.segments[i].to > to {
            split(page, i, to);
        }
        at = page.segments[i].to;
        i += 1;
    }
    (first, i)
}

/// Cuts a segment in two.
fn split(page: &mut Page, i: usize, at: u16) {
    let mut right = page.segments[i].clone();
    right.from = at;
    page.segments[i].to = at;
    page.insert(i + 1, right);
}

/// Joins the segments from `first` to `last` with neighbours of the same history.
pub(crate) fn join(page: &mut Page, first: usize, last: usize) {
    let mut i = last.min(page.segments.len() - 1);
    while i >= first.max(1) {
        let (left, right) = (&page.segments[i - 1], &page.segments[i]);
        if left.to == right.from && left.same_history(right) {
            page.segments[i - 1].to = right.to;
            page.remove(i);
        }
        i -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::schedule::clock::Clock;

    #[test]
    fn a_long_list_keeps_the_last_reading_of_each() {
        let clock = Clock::new(1, 64);
        let mut readers = Readers::None;
        let event = |agent, time| Event { agent: AgentNo::new(0, agent), time, site: 3 };
        for time in 1..=100 {
            for agent in 0..20 {
                readers.add(Who { clock: &clock, event: event(agent, time) }, agent == 7 && time == 50);
            }
        }
        let list = readers.as_slice();
        assert!(list.len() <= 64, "{}", list.len());
        for agent in 0..20 {
            assert!(list.contains(&event(agent, 100)), "agent {agent}");
        }
        let atomic = Event { site: 3 | ATOMIC, ..event(7, 50) };
        assert_eq!(list.iter().filter(|e| e.site & ATOMIC != 0).collect::<Vec<_>>(), [&atomic]);
    }
}
