//! Traces as Chrome's trace-event JSON, which Perfetto (<https://ui.perfetto.dev>) opens: a process for each rank, a thread for
//! each warp of each launch that records something, a slice for each record, and an arrow from the last signal of a wait to the wait's end.

use peerwarp_codegen::print::{SiteKind, SitePeers};
use serde::Serialize;

use super::clock::ClockLine;
use super::{Event, Recording, Trace, Warp, matches};

/// The file.
#[derive(Debug, Serialize)]
pub struct File<'a> {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: About<'a>,
    #[serde(rename = "traceEvents")]
    events: Vec<Item>,
}

#[derive(Debug, Serialize)]
struct About<'a> {
    generator: &'static str,
    variants: Vec<&'a str>,
    /// How the ranks' clocks were put together.
    clocks: &'a [ClockLine],
    /// Records that had no room.
    dropped: u64,
}

#[derive(Debug, Default, Serialize)]
struct Item {
    ph: &'static str,
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    /// Of an arrow, which joins its two ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bp: Option<&'static str>,
    #[serde(skip_serializing_if = "Args::is_empty")]
    args: Args,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Args {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sort_index: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    peer: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    peers: Vec<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped: Option<u32>,
}

impl Args {
    fn is_empty(&self) -> bool {
        *self == Args::default()
    }
}

/// The file of some rounds, by the clocks that they were put together with.
pub fn file<'a>(traces: &'a [Trace], clocks: &'a [ClockLine]) -> File<'a> {
    let mut events = vec![];
    let start_ns = traces.iter().map(|t| t.start_ns).min().unwrap_or(0);
    for (round, trace) in traces.iter().enumerate() {
        let writer = Writer { start_ns, ranks: trace.ranks() };
        if round == 0 {
            (0..trace.ranks())
                .for_each(|rank| events.push(meta("process_name", rank, 0, format!("rank {rank}"))));
        }
        for (launch, recording) in launches(trace) {
            for warp in recording.warps.iter().filter(|w| w.warp == 0 || !w.events.is_empty()) {
                if round == 0 {
                    events.extend(writer.names(launch, recording, warp));
                }
                events.push(writer.whole(launch, recording, warp));
                events.extend(warp.events.iter().map(|e| writer.slice(launch, recording, warp, e)));
            }
        }
        events.extend(writer.arrows(trace, round));
    }
    let mut variants: Vec<&str> = vec![];
    for recording in traces.iter().flat_map(|t| &t.recordings) {
        if !variants.contains(&recording.kernel.as_str()) {
            variants.push(&recording.kernel);
        }
    }
    let dropped = traces.iter().map(Trace::dropped).sum();
    let generator = concat!("peerwarp ", env!("CARGO_PKG_VERSION"));
    File { unit: "ns", about: About { generator, variants, clocks, dropped }, events }
}

/// Recordings with the number of their launch in the round.
fn launches(trace: &Trace) -> impl Iterator<Item = (u64, &Recording)> {
    trace.recordings.iter().map(|r| (launch_of(trace, r), r))
}

fn launch_of(trace: &Trace, recording: &Recording) -> u64 {
    let mut before = trace.recordings.iter().take_while(|r| !std::ptr::eq(*r, recording));
    let mut labels: Vec<&str> = vec![];
    for r in before.by_ref() {
        if !labels.contains(&r.label.as_str()) {
            labels.push(&r.label);
        }
    }
    labels.iter().position(|l| *l == recording.label).unwrap_or(labels.len()) as u64
}

struct Writer {
    start_ns: i64,
    ranks: u32,
}

impl Writer {
    fn micros(&self, ns: i64) -> f64 {
        (ns - self.start_ns) as f64 / 1e3
    }

    fn names(&self, launch: u64, recording: &Recording, warp: &Warp) -> [Item; 2] {
        let role = &recording.site(warp.role).role;
        let tid = thread(launch, warp);
        let name = format!("{} {role} block {} warp {}", recording.label, warp.block, warp.warp);
        let mut order = meta("thread_sort_index", recording.rank, tid, String::new());
        order.args = Args { sort_index: Some(tid), ..Args::default() };
        [meta("thread_name", recording.rank, tid, name), order]
    }

    fn item(&self, launch: u64, rank: u32, warp: &Warp, begin_ns: i64, end_ns: i64) -> Item {
        Item {
            ph: "X",
            pid: rank,
            tid: thread(launch, warp),
            ts: Some(self.micros(begin_ns)),
            dur: Some((end_ns - begin_ns) as f64 / 1e3),
            ..Item::default()
        }
    }

    fn whole(&self, launch: u64, recording: &Recording, warp: &Warp) -> Item {
        let site = recording.site(warp.role);
        let dropped = (warp.dropped > 0).then_some(warp.dropped);
        let args = Args { line: Some(site.place()), dropped, ..Args::default() };
        let item = self.item(launch, recording.rank, warp, warp.begin_ns, warp.end_ns);
        let name = format!("{} {}", recording.label, site.role);
        Item { name, cat: Some(site.kind.name()), args, ..item }
    }

    fn slice(&self, launch: u64, recording: &Recording, warp: &Warp, event: &Event) -> Item {
        let site = recording.site(event.site);
        let peers = event.peers(site, self.ranks);
        let mut args = Args {
            parameter: site.parameter.clone(),
            index: Some(event.index),
            line: Some(site.place()),
            ..Args::default()
        };
        match site.peers {
            SitePeers::None => {}
            SitePeers::Rank => args.peer = Some(event.peers as u32),
            SitePeers::Set => args.peers = peers.iter().map(|p| p.0).collect(),
            SitePeers::Flags { .. } | SitePeers::Some { .. } => {
                args.peers = peers.iter().map(|p| p.0).collect();
                args.peers.dedup();
                args.flags = Some(peers.len());
            }
        }
        let item = self.item(launch, recording.rank, warp, event.begin_ns, event.end_ns);
        let name = match (&site.parameter, site.kind) {
            (Some(parameter), kind) => format!("{} {parameter}", kind.name()),
            (None, SiteKind::Group) => format!("group {}", event.index),
            (None, kind) => kind.name().to_owned(),
        };
        Item { name, cat: Some(site.kind.name()), args, ..item }
    }

    /// From the last signal of every wait to the wait's end.
    fn arrows(&self, trace: &Trace, round: usize) -> Vec<Item> {
        let mut all = vec![];
        for (i, found) in matches(trace).iter().enumerate() {
            let Some((from, warp, signal)) = found.last() else { continue };
            let end = |recording: &Recording, warp: &Warp, ns: i64, ph, bp| Item {
                ph,
                name: found.waiting.site(found.wait.site).parameter.clone().unwrap_or_default(),
                cat: Some("signal"),
                pid: recording.rank,
                tid: thread(launch_of(trace, recording), warp),
                ts: Some(self.micros(ns)),
                id: Some((round as u64) << 32 | i as u64),
                bp,
                ..Item::default()
            };
            all.push(end(from, warp, signal.begin_ns, "s", None));
            all.push(end(found.waiting, found.warp, found.wait.end_ns, "f", Some("e")));
        }
        all
    }
}

fn thread(launch: u64, warp: &Warp) -> u64 {
    launch * 1_000_000 + u64::from(warp.block) * 100 + u64::from(warp.warp)
}

fn meta(what: &str, pid: u32, tid: u64, name: String) -> Item {
    let args = Args { name: Some(name), ..Args::default() };
    Item { ph: "M", name: what.to_owned(), pid, tid, args, ..Item::default() }
}
