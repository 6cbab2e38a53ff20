//! What a launch with a timeline left on one rank.

use bytemuck::{Pod, Zeroable};
use peerwarp_codegen::print::{SiteKind, SitePeers, Timeline, TimelineSite};

/// A record as kernels write it: `TimelineEvent` in their source.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
struct Raw {
    begin_ns: u64,
    end_ns: u64,
    peers: u64,
    index: u32,
    site: u32,
}

/// A recording that no kernel can have written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the timeline of {kernel} on rank {rank}: {problem}")]
pub struct TimelineError {
    /// The variant.
    pub kernel: String,
    /// The rank.
    pub rank: u32,
    /// What is wrong.
    pub problem: String,
}

/// Something that a group did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When it began, in nanoseconds.
    pub begin_ns: i64,
    /// When it ended.
    pub end_ns: i64,
    /// With whom: what it is depends on the site.
    pub peers: u64,
    /// The flag, the first packet's first element, or the group in its block.
    pub index: u32,
    /// Number of the site in [`Timeline::sites`].
    pub site: u32,
}

/// What one warp did. A group's first warp records for the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warp {
    /// Its block in the grid.
    pub block: u32,
    /// Its number in the block.
    pub warp: u32,
    /// Number of its role's site.
    pub role: u32,
    /// When it began, in nanoseconds.
    pub begin_ns: i64,
    /// When its role ended.
    pub end_ns: i64,
    /// Records that had no room.
    pub dropped: u32,
    /// In the order in which they ended.
    pub events: Vec<Event>,
}

/// What a launch left on one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// What the launch is called: `all_gather`.
    pub label: String,
    /// The variant.
    pub kernel: String,
    /// The rank.
    pub rank: u32,
    /// What its sites are.
    pub timeline: Timeline,
    /// The warps in order.
    pub warps: Vec<Warp>,
}

impl Recording {
    /// Reads what is in a timeline's memory; times are of the rank's own clock.
    pub fn read(
        label: &str,
        kernel: &str,
        rank: u32,
        timeline: &Timeline,
        bytes: &[u8],
    ) -> Result<Recording, TimelineError> {
        let wrong = |problem: String| TimelineError { kernel: kernel.to_owned(), rank, problem };
        if bytes.len() as u64 != timeline.bytes {
            return Err(wrong(format!("{} bytes, not {}", bytes.len(), timeline.bytes)));
        }
        let raw: Vec<Raw> = bytes.chunks_exact(size_of::<Raw>()).map(bytemuck::pod_read_unaligned).collect();
        let slices = raw.chunks(1 + timeline.slots as usize).zip(0..);
        let warps = slices.map(|(slice, number)| warp(timeline, slice, number).map_err(wrong));
        let (label, kernel) = (label.to_owned(), kernel.to_owned());
        let warps = warps.collect::<Result<_, _>>()?;
        Ok(Recording { label, kernel, rank, timeline: timeline.clone(), warps })
    }

    /// The site with this number.
    pub fn site(&self, number: u32) -> &TimelineSite {
        &self.timeline.sites[number as usize]
    }

    /// Every event with its warp.
    pub fn events(&self) -> impl Iterator<Item = (&Warp, &Event)> {
        self.warps.iter().flat_map(|w| w.events.iter().map(move |e| (w, e)))
    }

    /// Records that had no room.
    pub fn dropped(&self) -> u64 {
        self.warps.iter().map(|w| u64::from(w.dropped)).sum()
    }
}

impl Event {
    /// The ranks that an event is about, of a world of `ranks`: with the flag of each, where it is about flags.
    pub fn peers(&self, site: &TimelineSite, ranks: u32) -> Vec<(u32, u32)> {
        let bits = |set: u64| (0..64).filter(move |i| (set >> i) & 1 == 1);
        let flag = |i: u32, per_rank: u32| (i / per_rank.max(1) % ranks.max(1), i);
        match site.peers {
            SitePeers::None => vec![],
            SitePeers::Rank => vec![(self.peers as u32, self.index)],
            SitePeers::Set => bits(self.peers).map(|rank| (rank, self.index)).collect(),
            SitePeers::Flags { per_rank } => {
                (0..self.peers as u32).map(|i| flag(self.index.wrapping_add(i), per_rank)).collect()
            }
            SitePeers::Some { per_rank } => {
                bits(self.peers).map(|i| flag(self.index.wrapping_add(i), per_rank)).collect()
            }
        }
    }
}

fn warp(timeline: &Timeline, slice: &[Raw], number: u32) -> Result<Warp, String> {
    let (block, warp) = (number / timeline.warps, number % timeline.warps);
    let wrong = |what: &str| Err(format!("block {block}, warp {warp}: {what}"));
    let head = slice[0];
    if head.end_ns == 0 {
        return wrong("it has not ended, or has left because the world is aborted");
    }
    let of_kind = |site: u32, role: bool| {
        timeline.sites.get(site as usize).is_some_and(|s| (s.kind == SiteKind::Role) == role)
    };
    if !of_kind(head.site, true) {
        return wrong(&format!("site {} is no role", head.site));
    }
    let kept = head.index.min(timeline.slots);
    let mut events = vec![];
    for e in &slice[1..=kept as usize] {
        if !of_kind(e.site, false) {
            return wrong(&format!("there is no site {}", e.site));
        }
        if e.begin_ns > e.end_ns {
            return wrong(&format!("something ends at {} and begins at {}", e.end_ns, e.begin_ns));
        }
        let (begin_ns, end_ns) = (e.begin_ns as i64, e.end_ns as i64);
        events.push(Event { begin_ns, end_ns, peers: e.peers, index: e.index, site: e.site });
    }
    let (begin_ns, end_ns) = (head.begin_ns as i64, head.end_ns as i64);
    Ok(Warp { block, warp, role: head.site, begin_ns, end_ns, dropped: head.index - kept, events })
}
