//! Where the time of some rounds went.

use std::collections::BTreeMap;

use peerwarp_codegen::print::{SiteKind, TimelineSite};
use serde::Serialize;

use super::{Recording, Trace, matches};

/// One launch on one rank. Microseconds from the rank's first warp's begin unless said otherwise; medians over rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct KernelRow {
    /// What the launch is called.
    pub kernel: String,
    /// The rank.
    pub rank: u32,
    /// When its first warp began, from the first warp of any rank in this launch: how late the rank was.
    pub skew_us: f64,
    /// When its last warp began.
    pub last_start_us: f64,
    /// When the first parcel or packet was opened.
    pub first_send_us: f64,
    /// When the last one had been signalled.
    pub last_send_us: f64,
    /// When the last wait or take ended.
    pub last_wait_us: f64,
    /// When the last warp ended.
    pub end_us: f64,
    /// From the last wait's end to the last warp's end.
    pub tail_us: f64,
}

/// What a role did at one place, on one rank. Microseconds as above.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SiteRow {
    /// What the launch is called.
    pub kernel: String,
    /// The rank.
    pub rank: u32,
    /// The role.
    pub role: String,
    /// What it did: role, group, send, signal, wait or take.
    pub what: &'static str,
    /// The flags or packets.
    pub parameter: String,
    /// Line of the author's file.
    pub line: u32,
    /// How often.
    pub count: f64,
    /// By how many warps.
    pub warps: f64,
    /// All together.
    pub total_us: f64,
    /// On average.
    pub mean_us: f64,
    /// The longest.
    pub longest_us: f64,
    /// When the first began.
    pub first_begin_us: f64,
    /// When the last ended.
    pub last_end_us: f64,
}

/// The waits of a rank for flags or packets of one parameter: whether they were there when they were looked at. What is between
/// ranks is known to what their clocks are. Microseconds; medians over rounds of medians over waits.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FlagRow {
    /// What the launch that waits is called.
    pub kernel: String,
    /// The rank that waits.
    pub rank: u32,
    /// The flags or packets.
    pub parameter: String,
    /// Waits whose signals are known.
    pub waits: f64,
    /// Those of them that began before their last signal had ended.
    pub waited: f64,
    /// Of those: from the last signal's begin to the wait's end.
    pub arrival_us: f64,
    /// Of the others: from the last signal's end to the wait's begin.
    pub unseen_us: f64,
}

/// Where the time of some rounds went.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Rounds that medians are taken of.
    pub rounds: usize,
    /// Records that had no room, over all rounds.
    pub dropped: u64,
    /// Launches in order, rank by rank.
    pub kernels: Vec<KernelRow>,
    /// What waits were for, launch by launch and rank by rank.
    pub flags: Vec<FlagRow>,
    /// What roles did, launch by launch and rank by rank, in the order of the source.
    pub sites: Vec<SiteRow>,
}

impl Summary {
    /// Of rounds of the same launches.
    pub fn of(traces: &[Trace]) -> Summary {
        let mut kernels = Medians::default();
        let mut sites = Medians::default();
        let mut flags = Medians::default();
        for trace in traces {
            for (i, recording) in trace.recordings.iter().enumerate() {
                kernels.add((i, 0), kernel(trace, recording));
                for (site, values) in by_site(recording) {
                    sites.add((i, site), values);
                }
            }
            for (key, values) in by_parameter(trace) {
                flags.add(key, values);
            }
        }
        let Some(first) = traces.first() else {
            return Summary { rounds: 0, dropped: 0, kernels: vec![], flags: vec![], sites: vec![] };
        };
        let kernel_row = |((i, _), v): ((usize, u32), [f64; 7])| {
            let r = &first.recordings[i];
            let [skew_us, last_start_us, first_send_us, last_send_us, last_wait_us, end_us, tail_us] = v;
            let (kernel, rank) = (r.label.clone(), r.rank);
            KernelRow {
                kernel,
                rank,
                skew_us,
                last_start_us,
                first_send_us,
                last_send_us,
                last_wait_us,
                end_us,
                tail_us,
            }
        };
        let flag_row = |((i, number), v): ((usize, u32), [f64; 4])| {
            let r = &first.recordings[i];
            let [waits, waited, arrival_us, unseen_us] = v;
            let parameter = r.site(number).parameter.clone().unwrap_or_default();
            FlagRow { kernel: r.label.clone(), rank: r.rank, parameter, waits, waited, arrival_us, unseen_us }
        };
        let site_row = |((i, number), v): ((usize, u32), [f64; 7])| {
            let r = &first.recordings[i];
            let site = r.site(number);
            let [count, warps, total_us, mean_us, longest_us, first_begin_us, last_end_us] = v;
            SiteRow {
                kernel: r.label.clone(),
                rank: r.rank,
                role: site.role.clone(),
                what: site.kind.name(),
                parameter: site.parameter.clone().unwrap_or_default(),
                line: site.line,
                count,
                warps,
                total_us,
                mean_us,
                longest_us,
                first_begin_us,
                last_end_us,
            }
        };
        Summary {
            rounds: traces.len(),
            dropped: traces.iter().map(Trace::dropped).sum(),
            kernels: kernels.rows().map(kernel_row).collect(),
            flags: flags.rows().map(flag_row).collect(),
            sites: sites.rows().map(site_row).collect(),
        }
    }
}

/// Values of rounds, by what they are of.
#[derive(Default)]
struct Medians<const N: usize>(BTreeMap<(usize, u32), Vec<[f64; N]>>);

impl<const N: usize> Medians<N> {
    fn add(&mut self, key: (usize, u32), values: [f64; N]) {
        self.0.entry(key).or_default().push(values);
    }

    fn rows(self) -> impl Iterator<Item = ((usize, u32), [f64; N])> {
        self.0.into_iter().map(|(key, rounds)| {
            let column = |c: usize| median(rounds.iter().map(|r| r[c]).filter(|v| !v.is_nan()).collect());
            (key, std::array::from_fn(column))
        })
    }
}

/// Of nothing, not a number.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    match all.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => all[n / 2],
        n => (all[n / 2 - 1] + all[n / 2]) / 2.0,
    }
}

fn micros(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// The columns of a [`KernelRow`]; not a number where nothing was sent or waited for.
fn kernel(trace: &Trace, recording: &Recording) -> [f64; 7] {
    let begin = |r: &Recording| r.warps.iter().map(|w| w.begin_ns).min().unwrap_or(0);
    let same = trace.recordings.iter().filter(|r| r.label == recording.label);
    let first = same.map(begin).min().unwrap_or(0);
    let start = begin(recording);
    let since = |ns: Option<i64>| ns.map_or(f64::NAN, |ns| micros(ns - start));
    let of = |kinds: &'static [SiteKind]| {
        recording.events().map(|(_, e)| e).filter(|e| kinds.contains(&recording.site(e.site).kind))
    };
    const SENDS: &[SiteKind] = &[SiteKind::Send, SiteKind::Signal];
    const WAITS: &[SiteKind] = &[SiteKind::Wait, SiteKind::Take];
    let last_wait = of(WAITS).map(|e| e.end_ns).max();
    let end = recording.warps.iter().map(|w| w.end_ns).max();
    [
        micros(start - first),
        since(recording.warps.iter().map(|w| w.begin_ns).max()),
        since(of(SENDS).map(|e| e.begin_ns).min()),
        since(of(SENDS).map(|e| e.end_ns).max()),
        since(last_wait),
        since(end),
        last_wait.zip(end).map_or(f64::NAN, |(wait, end)| micros(end - wait)),
    ]
}

/// The columns of each [`SiteRow`]. Of a role, every warp is one.
fn by_site(recording: &Recording) -> BTreeMap<u32, [f64; 7]> {
    let start = recording.warps.iter().map(|w| w.begin_ns).min().unwrap_or(0);
    let mut all: BTreeMap<u32, Vec<(usize, i64, i64)>> = BTreeMap::new();
    for (i, warp) in recording.warps.iter().enumerate() {
        all.entry(warp.role).or_default().push((i, warp.begin_ns, warp.end_ns));
        for e in &warp.events {
            all.entry(e.site).or_default().push((i, e.begin_ns, e.end_ns));
        }
    }
    let columns = |spans: Vec<(usize, i64, i64)>| {
        let mut warps: Vec<usize> = spans.iter().map(|s| s.0).collect();
        warps.dedup();
        let lengths = spans.iter().map(|s| s.2 - s.1);
        let (count, total) = (spans.len() as f64, micros(lengths.clone().sum()));
        let first = spans.iter().map(|s| s.1).min().unwrap_or(start);
        let last = spans.iter().map(|s| s.2).max().unwrap_or(start);
        let longest = micros(lengths.max().unwrap_or(0));
        [
            count,
            warps.len() as f64,
            total,
            total / count,
            longest,
            micros(first - start),
            micros(last - start),
        ]
    };
    all.into_iter().map(|(site, spans)| (site, columns(spans))).collect()
}

/// The columns of each [`FlagRow`], by recording and the first site that waits for the parameter.
fn by_parameter(trace: &Trace) -> BTreeMap<(usize, u32), [f64; 4]> {
    // Of each: arrivals of what was waited for, and how long the rest had been there.
    let mut all: BTreeMap<(usize, u32), (Vec<f64>, Vec<f64>)> = BTreeMap::new();
    for found in matches(trace) {
        let Some((_, _, signal)) = found.last() else { continue };
        let recording = trace.recordings.iter().position(|r| std::ptr::eq(r, found.waiting));
        let parameter = &found.waiting.site(found.wait.site).parameter;
        let waits =
            |s: &TimelineSite| matches!(s.kind, SiteKind::Wait | SiteKind::Take) && s.parameter == *parameter;
        let first = found.waiting.timeline.sites.iter().position(waits);
        let (Some(i), Some(first)) = (recording, first) else { continue };
        let (arrivals, unseen) = all.entry((i, first as u32)).or_default();
        match signal.end_ns > found.wait.begin_ns {
            true => arrivals.push(micros(found.wait.end_ns - signal.begin_ns)),
            false => unseen.push(micros(found.wait.begin_ns - signal.end_ns)),
        }
    }
    let columns = |(arrivals, unseen): (Vec<f64>, Vec<f64>)| {
        let (waited, others) = (arrivals.len() as f64, unseen.len() as f64);
        [waited + others, waited, median(arrivals), median(unseen)]
    };
    all.into_iter().map(|(key, waits)| (key, columns(waits))).collect()
}
