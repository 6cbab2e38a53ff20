//! Shadow memory: the last writer and the readers since, for ranges of bytes as they are accessed.
//!
//! A buffer is cut into pages; a page holds a short sorted list of segments, split where accesses begin and end and
//! joined again where neighbours have the same short history. Rows of many kilobytes cost a handful of segments, single
//! elements cost one each only while their histories differ.

use std::ops::Range;

use super::pages::{ATOMIC, PAGE, PAGE_BITS, Page, Readers, Segment, carve, join};
use crate::sim::schedule::{Clock, clock::AgentNo};

/// An action: who, when, and where in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub agent: AgentNo,
    pub time: u32,
    /// Number of the operation; see `World::locate`.
    pub site: u32,
}

/// Who accesses memory now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Who<'a> {
    pub clock: &'a Clock,
    pub event: Event,
}

impl Who<'_> {
    /// Whether an earlier action is ordered before this one.
    pub fn after(&self, e: Event) -> bool {
        e.agent == self.event.agent || self.clock.covers(e.agent, e.time)
    }
}

/// The epoch that a write belongs to, or that a reader waits for: the value of an epoch word, the flags that carry it, and
/// the age of what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataEpoch {
    /// Buffer of the epoch word plus one; 0 where there is no epoch.
    pub word: u16,
    /// Buffer of the flags plus one. Two kernels with epoch words of their own mean the same by the value of a flag.
    pub flag: u16,
    pub epoch: u32,
    /// Of a put: the step of the writer's program that launches the same kernel on the same buffers again, from which on the
    /// data is old. 0 where no step does.
    pub again: u32,
}

impl DataEpoch {
    /// Whether both count in one way.
    fn counts_like(self, other: DataEpoch) -> bool {
        self.word != 0 && other.word != 0 && (self.word == other.word || self.flag == other.flag)
    }
}

/// What a wait tells its agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    pub epoch: DataEpoch,
    /// The ranks that the wait is for, as a mask of those of its machine, and the first of these.
    pub heard: u64,
    pub first: u32,
    /// The earliest step of their programs that signalled one of the flags; 0 where a flag holds a later epoch than the
    /// wait asks for.
    pub step: u32,
    /// Of a far wait, its number plus one; 0 of others.
    pub far: u32,
}

impl Receipt {
    /// Whether the wait is for a rank.
    pub fn heard_of(&self, rank: usize) -> bool {
        let number = rank.checked_sub(self.first as usize).filter(|number| *number < 64);
        number.is_some_and(|number| self.heard >> number & 1 != 0)
    }

    /// Whether data belongs to another epoch than the one that the wait is for. Where the epochs do not compare, the age of
    /// the data decides: the writer signalled in a step that should have written it again.
    fn mismatch(&self, data: DataEpoch, write: Event) -> Option<ClashKind> {
        if self.epoch.counts_like(data) {
            let (written, epoch) = (write, data.epoch);
            return (self.epoch.epoch != epoch).then_some(ClashKind::Epoch { written, epoch });
        }
        let is_old = data.again != 0 && data.again <= self.step && self.heard_of(write.agent.rank());
        is_old.then_some(ClashKind::Age { written: write, again: data.again })
    }
}

/// What an access clashes with, for a range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clash {
    pub from: u64,
    pub to: u64,
    pub kind: ClashKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClashKind {
    /// A read of memory that was never written.
    Unwritten,
    /// Nothing orders the two.
    Race { with: Event, was: Action },
    /// The data belongs to another epoch than the reader waited for.
    Epoch { written: Event, epoch: u32 },
    /// The writer's launch of the step `again` should have written the data anew, and the signal came from it or from a later
    /// launch.
    Age { written: Event, again: u32 },
}

/// What an earlier access did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Atomic,
}

/// Pages that come into being together, at the first access to one of them.
const CHUNK: usize = 64;

/// The shadow of one buffer.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    chunks: Vec<Option<Box<[Page]>>>,
    /// How many pages there are: the last chunk may have few. Every block has small arrays of its own.
    pages: usize,
}

impl Shadow {
    pub fn new(bytes: u64) -> Shadow {
        let pages = bytes.div_ceil(PAGE) as usize;
        Shadow { chunks: (0..pages.div_ceil(CHUNK)).map(|_| None).collect(), pages }
    }

    fn for_pages(&mut self, from: u64, to: u64, mut f: impl FnMut(&mut Page, u64, u16, u16)) {
        let mut at = from;
        while at < to {
            let base = at & !(PAGE - 1);
            let end = to.min(base + PAGE);
            let page = (at >> PAGE_BITS) as usize;
            let of_chunk = CHUNK.min(self.pages - page / CHUNK * CHUNK);
            let chunk = self.chunks[page / CHUNK]
                .get_or_insert_with(|| std::iter::repeat_with(Page::new).take(of_chunk).collect());
            f(&mut chunk[page % CHUNK], base, (at - base) as u16, (end - base) as u16);
            at = end;
        }
    }

    /// The bytes that were written, as ranges in order.
    pub fn written(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = vec![];
        let chunks = self.chunks.iter().enumerate().filter_map(|(at, chunk)| Some((at, chunk.as_ref()?)));
        let pages = chunks.flat_map(|(at, chunk)| chunk.iter().zip((at * CHUNK) as u64..));
        for (page, number) in pages {
            let base = number << PAGE_BITS;
            for segment in page.segments.iter().filter(|segment| segment.written) {
                let (from, to) = (base + u64::from(segment.from), base + u64::from(segment.to));
                match ranges.last_mut() {
                    Some(last) if last.end == from => last.end = to,
                    _ => ranges.push(from..to),
                }
            }
        }
        ranges
    }

    /// Records a read of the bytes `from..to` and returns what it clashes with. `receipt` is of the reader's wait.
    pub fn read(&mut self, from: u64, to: u64, who: Who<'_>, receipt: Receipt, clashes: &mut Vec<Clash>) {
        self.for_pages(from, to, |page, base, from, to| {
            let (first, end) = carve(page, from, to);
            for s in &mut page.segments[first..end] {
                let mut clash = |kind| {
                    clashes.push(Clash { from: base + u64::from(s.from), to: base + u64::from(s.to), kind });
                };
                if !s.written {
                    clash(ClashKind::Unwritten);
                } else if !who.after(s.write) {
                    clash(ClashKind::Race { with: s.write, was: Action::Write });
                } else if let Some(mismatch) = receipt.mismatch(s.data_epoch, s.write) {
                    clash(mismatch);
                }
                if s.atomics {
                    for e in s.readers.as_slice() {
                        if e.site & ATOMIC != 0 && !who.after(*e) {
                            clash(ClashKind::Race { with: plain(*e), was: Action::Atomic });
                        }
                    }
                }
                s.readers.add(who, false);
            }
            join(page, first, end);
        });
    }

    /// Records a write of the bytes `from..to` and returns what it clashes with.
    pub fn write(
        &mut self,
        from: u64,
        to: u64,
        who: Who<'_>,
        data_epoch: DataEpoch,
        clashes: &mut Vec<Clash>,
    ) {
        self.for_pages(from, to, |page, base, from, to| {
            let (first, end) = carve(page, from, to);
            for s in &page.segments[first..end] {
                let mut clash = |with, was| {
                    let kind = ClashKind::Race { with, was };
                    clashes.push(Clash { from: base + u64::from(s.from), to: base + u64::from(s.to), kind });
                };
                if s.written && !who.after(s.write) {
                    clash(s.write, Action::Write);
                }
                for e in s.readers.as_slice() {
                    if !who.after(*e) {
                        clash(plain(*e), if e.site & ATOMIC == 0 { Action::Read } else { Action::Atomic });
                    }
                }
            }
            let write = who.event;
            let readers = Readers::None;
            let written = Segment { from, to, written: true, atomics: false, data_epoch, write, readers };
            page.replace(first, end, written);
            join(page, first, first + 1);
        });
    }

    /// Records an atomic update of the bytes `from..to`: atomics don't clash with each other.
    pub fn atomic(&mut self, from: u64, to: u64, who: Who<'_>, clashes: &mut Vec<Clash>) {
        self.for_pages(from, to, |page, base, from, to| {
            let (first, end) = carve(page, from, to);
            for s in &mut page.segments[first..end] {
                let mut clash = |kind| {
                    clashes.push(Clash { from: base + u64::from(s.from), to: base + u64::from(s.to), kind });
                };
                if !s.written {
                    clash(ClashKind::Unwritten);
                    (s.written, s.write) = (true, who.event);
                } else if !who.after(s.write) {
                    clash(ClashKind::Race { with: s.write, was: Action::Write });
                }
                for e in s.readers.as_slice() {
                    if e.site & ATOMIC == 0 && !who.after(*e) {
                        clash(ClashKind::Race { with: *e, was: Action::Read });
                    }
                }
                s.readers.add(who, true);
                s.atomics = true;
            }
        });
    }
}

fn plain(mut e: Event) -> Event {
    e.site &= !ATOMIC;
    e
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const AGENTS: usize = 3;
    const BYTES: u64 = 2 * PAGE + 10;

    /// What one byte remembers, without any cleverness: everything.
    #[derive(Clone, Default)]
    struct Naive {
        write: Option<(Event, DataEpoch)>,
        readers: Vec<(Event, bool)>,
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// An agent accesses a range.
        Access { agent: usize, what: Action, from: u64, len: u64, epoch: u32 },
        /// What the first has done is ordered before what the second will do.
        Order { first: usize, second: usize },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few places, so that ranges meet, around the borders of pages.
        let place = prop_oneof![0..24u64, PAGE - 12..PAGE + 12, 2 * PAGE - 4..2 * PAGE + 4];
        let what = prop_oneof![Just(Action::Read), Just(Action::Write), Just(Action::Atomic)];
        let access =
            (0..AGENTS, what, place, 1..12u64, 1..3u32).prop_map(|(agent, what, from, len, epoch)| {
                Step::Access {
                    agent,
                    what,
                    from: from.min(BYTES - 1),
                    len: len.min(BYTES - from.min(BYTES - 1)),
                    epoch,
                }
            });
        let order = (0..AGENTS, 0..AGENTS).prop_map(|(first, second)| Step::Order { first, second });
        prop::collection::vec(prop_oneof![3 => access, 1 => order], 1..60)
    }

    fn agent_no(agent: usize) -> AgentNo {
        AgentNo::new(0, agent as u32)
    }

    /// Bytes that clash, by kind. With whom is left out: the shadow forgets a reader when a later one is ordered after
    /// it, since an access that clashes with the first clashes with the later one too.
    type Found = std::collections::BTreeSet<(u64, u8)>;

    const UNWRITTEN: u8 = 0;
    const RACE: u8 = 1;
    const EPOCH: u8 = 2;

    fn code(kind: &ClashKind) -> u8 {
        match kind {
            ClashKind::Unwritten => UNWRITTEN,
            ClashKind::Race { .. } => RACE,
            ClashKind::Epoch { .. } | ClashKind::Age { .. } => EPOCH,
        }
    }

    fn naive_access(
        bytes: &mut [Naive],
        from: u64,
        to: u64,
        who: Who<'_>,
        what: Action,
        data_epoch: DataEpoch,
    ) -> Found {
        let mut found = Found::new();
        for at in from..to {
            let b = &mut bytes[at as usize];
            if what != Action::Write && b.write.is_none() {
                found.insert((at, UNWRITTEN));
                if what == Action::Atomic {
                    b.write = Some((who.event, DataEpoch::default()));
                }
            } else if b.write.is_some_and(|(w, _)| !who.after(w)) {
                found.insert((at, RACE));
            } else if what == Action::Read
                && b.write.is_some_and(|(_, s)| s.word != 0 && s.epoch != data_epoch.epoch)
            {
                found.insert((at, EPOCH));
            }
            for &(e, atomic) in &b.readers {
                let clashes = match what {
                    Action::Read => atomic,
                    Action::Write => true,
                    Action::Atomic => !atomic,
                };
                if clashes && !who.after(e) {
                    found.insert((at, RACE));
                }
            }
            match what {
                Action::Write => *b = Naive { write: Some((who.event, data_epoch)), readers: vec![] },
                _ => b.readers.push((who.event, what == Action::Atomic)),
            }
        }
        found
    }

    proptest! {
        #[test]
        fn agrees_with_a_byte_by_byte_model(steps in steps()) {
            let mut shadow = Shadow::new(BYTES);
            let mut naive = vec![Naive::default(); BYTES as usize];
            let mut clocks = vec![Clock::new(1, AGENTS); AGENTS];
            let mut times = [1u32; AGENTS];
            for (site, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Order { first, second } => {
                        clocks[first].set(agent_no(first), times[first]);
                        times[first] += 1;
                        let known = clocks[first].clone();
                        clocks[second].join(&known);
                    }
                    Step::Access { agent, what, from, len, epoch } => {
                        let event = Event { agent: agent_no(agent), time: times[agent], site: site as u32 };
                        let who = Who { clock: &clocks[agent], event };
                        let data_epoch = DataEpoch { word: 1, flag: 1, epoch, again: 0 };
                        let receipt = Receipt { epoch: data_epoch, heard: !0, first: 0, step: 0, far: 0 };
                        let mut clashes = vec![];
                        match what {
                            Action::Read => shadow.read(from, from + len, who, receipt, &mut clashes),
                            Action::Write => shadow.write(from, from + len, who, data_epoch, &mut clashes),
                            Action::Atomic => shadow.atomic(from, from + len, who, &mut clashes),
                        }
                        let found: Found = clashes
                            .iter()
                            .flat_map(|c| (c.from..c.to).map(|at| (at, code(&c.kind))))
                            .collect();
                        let want = naive_access(&mut naive, from, from + len, who, what, data_epoch);
                        prop_assert_eq!(found, want);
                    }
                }
            }
        }
    }

    #[test]
    fn what_was_written_is_in_ranges_across_pages_and_chunks() {
        let clock = Clock::new(1, 1);
        let event = Event { agent: agent_no(0), time: 1, site: 0 };
        let (who, mut clashes) = (Who { clock: &clock, event }, vec![]);
        let chunk = CHUNK as u64 * PAGE;
        let mut shadow = Shadow::new(3 * chunk);
        let mut write = |from, to| shadow.write(from, to, who, DataEpoch::default(), &mut clashes);
        write(2 * chunk + 4, 2 * chunk + 8);
        write(PAGE - 4, PAGE);
        write(PAGE, PAGE + 4);
        write(12, 16);
        shadow.read(16, 20, who, Receipt::default(), &mut clashes);
        assert_eq!(shadow.written(), [12..16, PAGE - 4..PAGE + 4, 2 * chunk + 4..2 * chunk + 8]);
    }

    #[test]
    fn neighbours_of_one_history_are_one_segment() {
        let clock = Clock::new(1, 1);
        let event = Event { agent: agent_no(0), time: 1, site: 0 };
        let (who, mut clashes) = (Who { clock: &clock, event }, vec![]);
        let mut shadow = Shadow::new(PAGE);
        for at in 0..100 {
            shadow.write(at * 4, at * 4 + 4, who, DataEpoch::default(), &mut clashes);
        }
        let segments = |s: &Shadow| s.chunks[0].as_ref().unwrap()[0].segments.len();
        assert_eq!(segments(&shadow), 1);
        for at in (0..100).rev() {
            shadow.read(at * 4, at * 4 + 4, who, Receipt::default(), &mut clashes);
        }
        assert_eq!((segments(&shadow), clashes.len()), (1, 0));
    }
}
