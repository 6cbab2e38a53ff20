use peerwarp_codegen::print::{SiteKind, SitePeers, Timeline, TimelineSite};

use super::clock::{ClockError, ClockLine, ClockOffset, offsets};
use super::sync::ClockSync;
use super::*;
use crate::harness::kinds;
use crate::runtime::op::LaunchSpec;
use peerwarp_codegen::family::Family;

/// How far rank 1's clock is ahead.
const AHEAD: u64 = 5_000;

fn site(kind: SiteKind, role: &str, parameter: &str, peers: SitePeers, line: u32) -> TimelineSite {
    let parameter = (!parameter.is_empty()).then(|| parameter.to_owned());
    TimelineSite { kind, role: role.into(), parameter, peers, file: "src/kernel.rs".into(), line }
}

/// Two blocks of a warp each, the first of which sends.
fn timeline(slots: u32) -> Timeline {
    let sites = vec![
        site(SiteKind::Role, "send", "", SitePeers::None, 10),
        site(SiteKind::Role, "recv", "", SitePeers::None, 11),
        site(SiteKind::Send, "send", "row_flag", SitePeers::Set, 20),
        site(SiteKind::Signal, "send", "row_flag", SitePeers::Set, 20),
        site(SiteKind::Wait, "recv", "row_flag", SitePeers::Flags { per_rank: 1 }, 30),
    ];
    Timeline { slots, warps: 1, slices: 2, bytes: 2 * u64::from(1 + slots) * 32, sites }
}

/// A record: begin, end, peers, index, site.
type Raw = (u64, u64, u64, u32, u32);

fn bytes(timeline: &Timeline, slices: [Vec<Raw>; 2]) -> Vec<u8> {
    let mut all = vec![];
    for mut slice in slices {
        slice.resize(1 + timeline.slots as usize, (0, 0, 0, 0, 0));
        for (begin, end, peers, index, site) in slice {
            [begin, end, peers].iter().for_each(|n| all.extend(n.to_ne_bytes()));
            [index, site].iter().for_each(|n| all.extend(n.to_ne_bytes()));
        }
    }
    all
}

/// A rank that sends to both, beginning at `at`, and waits for both until `seen`.
fn recording(rank: u32, at: u64, seen: u64) -> Recording {
    let timeline = timeline(4);
    let send = vec![
        (at, at + 900, 0, 2, 0),
        (at + 500, at + 800, 0b11, rank, 3),
        (at + 100, at + 850, 0b11, rank, 2),
    ];
    let recv = vec![(at + 40, seen + 250, 0, 1, 1), (at + 60, seen, 2, 0, 4)];
    Recording::read("scatter", "scatter_sample", rank, &timeline, &bytes(&timeline, [send, recv])).unwrap()
}

fn offset(rank: u32, offset_ns: i64, at_ns: i64) -> ClockOffset {
    ClockOffset { rank, offset_ns, error_ns: 200, round_trip_ns: 1500, resolution_ns: 32, at_ns }
}

fn clocks() -> Vec<ClockLine> {
    let line = |rank, ahead| ClockLine { before: offset(rank, ahead, 0), after: offset(rank, ahead, 90_000) };
    vec![line(0, 0), line(1, AHEAD as i64)]
}

/// Rank 1 begins 700 ns after rank 0, whose wait it ends.
pub(crate) fn sample() -> Trace {
    Trace::new(vec![recording(0, 20_000, 22_400), recording(1, 20_700 + AHEAD, 21_900 + AHEAD)], &clocks())
}

#[test]
fn ranks_are_put_on_one_clock() {
    let trace = sample();
    assert_eq!((trace.start_ns, trace.ranks(), trace.dropped()), (20_000, 2, 0));
    let begins: Vec<i64> = trace.recordings.iter().map(|r| r.warps[0].begin_ns).collect();
    assert_eq!(begins, [20_000, 20_700]);
    assert_eq!(trace.micros(21_500), 1.5);
    let even = ClockLine { before: offset(1, 100, 1_000), after: offset(1, 300, 2_001_000) };
    assert_eq!(
        [even.common(1_000), even.common(1_001_000), even.common(2_001_000)],
        [900, 1_000_800, 2_000_700]
    );
}

#[test]
fn waits_meet_their_signals() {
    let trace = sample();
    let found = matches(&trace);
    assert_eq!(found.iter().map(|m| m.signals.len()).collect::<Vec<_>>(), [2, 2]);
    for m in &found {
        let (from, _, signal) = m.last().unwrap();
        assert_eq!((from.rank, signal.index), (1, 1));
    }
}

/// Two launches with flags of the same name, the second of which comes later.
fn two_launches() -> Trace {
    let mut recordings: Vec<Recording> = vec![];
    for (label, at) in [("first", 1_000), ("second", 20_000)] {
        for rank in 0..2 {
            let start = at + AHEAD * u64::from(rank);
            recordings.push(Recording { label: label.into(), ..recording(rank, start, start + 2_000) });
        }
    }
    Trace::new(recordings, &clocks())
}

/// For each wait, the launch that waits, and the launches whose signals it is for.
fn labels(trace: &Trace) -> Vec<(&str, Vec<&str>)> {
    let of = |m: Match<'_>| {
        let from: Vec<&str> = trace
            .recordings
            .iter()
            .filter(|r| m.signals.iter().any(|s| std::ptr::eq(s.0, *r)))
            .map(|r| r.label.as_str())
            .collect();
        (trace.recordings.iter().find(|r| std::ptr::eq(*r, m.waiting)).expect("its own").label.as_str(), from)
    };
    matches(trace).into_iter().map(of).collect()
}

#[test]
fn launches_whose_parameters_are_other_buffers_are_told_apart() {
    let spec = |label: &str| LaunchSpec::new(label, ClockSync { ranks: 2, rounds: 1 }.into_variant());
    let launches = [spec("first"), spec("second").with_buffer("row_flag", "row_flag of the second")];
    let trace = two_launches().with_buffers(Buffers::of(&launches));
    let found = labels(&trace);
    assert_eq!(found.len(), 4);
    for (waiting, from) in found {
        assert_eq!(from, [waiting; 2]);
    }
}

#[test]
fn launches_whose_parameters_are_one_buffer_signal_each_other() {
    let spec = |label: &str| LaunchSpec::new(label, ClockSync { ranks: 2, rounds: 1 }.into_variant());
    let named = spec("first").with_buffer("row_flag", "flags");
    let same = Buffers::of(&[named.clone(), spec("second").with_buffer("row_flag", "flags")]);
    // The last signal of a flag of one buffer is the second launch's, for every wait.
    for trace in [two_launches(), two_launches().with_buffers(same)] {
        assert!(labels(&trace).iter().all(|(_, from)| from == &["second"; 2]), "{:?}", labels(&trace));
    }
    let one = two_launches().with_buffers(Buffers::of(&[named, spec("second")]));
    assert!(labels(&one).iter().all(|(waiting, from)| from == &[*waiting; 2]));
}

#[test]
fn takes_meet_the_packets_that_were_sent() {
    let mut trace = sample();
    for recording in &mut trace.recordings {
        recording.timeline.sites[4].kind = SiteKind::Take;
        recording.timeline.sites[4].peers = SitePeers::Rank;
        recording.timeline.sites[3].parameter = Some("another".into());
        let rank = recording.rank;
        let take = recording.warps[1].events.iter_mut().find(|e| e.site == 4).unwrap();
        (take.peers, take.index) = (u64::from(1 - rank), 1 - rank);
    }
    let found = matches(&trace);
    let kinds = found.iter().flat_map(|m| &m.signals).map(|(r, _, e)| (r.rank, r.site(e.site).kind));
    assert_eq!(kinds.collect::<Vec<_>>(), [(1, SiteKind::Send), (0, SiteKind::Send)]);
}

#[test]
fn waits_that_had_to_are_told_from_those_that_had_not() {
    let early = recording(0, 20_000, 22_400);
    let mut late = recording(1, 20_700 + AHEAD, 21_900 + AHEAD);
    late.warps[1].events[0].begin_ns += 1_000;
    let flags = Summary::of(&[Trace::new(vec![early, late], &clocks())]).flags;
    let rows: Vec<_> = flags.iter().map(|f| (f.rank, f.waits, f.waited)).collect();
    assert_eq!(rows, [(0, 1.0, 1.0), (1, 1.0, 0.0)]);
    // The last signal is rank 1's, from 21200 to 21500; the waits are from 20060 to 22400 and from 21760 on.
    assert_eq!((flags[0].arrival_us, flags[1].unseen_us), (1.2, 0.26));
    assert!(flags[0].unseen_us.is_nan() && flags[1].arrival_us.is_nan());
}

#[test]
fn perfetto_gets_processes_threads_slices_and_arrows() {
    let (traces, clocks) = ([sample()], clocks());
    let file = chrome::file(&traces, &clocks);
    insta::assert_snapshot!(kinds::of_json(&file));
}

#[test]
fn the_summary_has_medians_of_rounds() {
    let one = Summary::of(&[sample()]);
    insta::assert_snapshot!(kinds::of_json(&one));
    let longer = |by: u64| {
        let late = recording(0, 20_000, 22_400 + by);
        Trace::new(vec![late, recording(1, 20_700 + AHEAD, 21_900 + AHEAD)], &clocks())
    };
    let three = Summary::of(&[longer(0), longer(300), longer(9_000)]);
    assert_eq!((three.rounds, three.kernels[0].last_wait_us), (3, 2.7));
    assert_eq!(Summary::of(&[]).rounds, 0);
}

#[test]
fn what_no_kernel_can_have_written_is_refused() {
    let timeline = timeline(1);
    let read = |slices| {
        let bytes = bytes(&timeline, slices);
        Recording::read("d", "k", 1, &timeline, &bytes).map_err(|e| e.to_string())
    };
    let whole = (5, 9, 0, 1, 1);
    let said = |slice: Vec<Raw>| read([slice, vec![(5, 9, 0, 0, 1)]]).unwrap_err();
    let begin = "the timeline of k on rank 1: block 0, warp 0: ";
    let left = "it has not ended, or has left because the world is aborted";
    assert_eq!(said(vec![]), format!("{begin}{left}"));
    assert_eq!(said(vec![(5, 9, 0, 0, 4)]), format!("{begin}site 4 is no role"));
    assert_eq!(said(vec![whole, (6, 7, 0, 0, 1)]), format!("{begin}there is no site 1"));
    assert_eq!(said(vec![whole, (6, 7, 0, 0, 9)]), format!("{begin}there is no site 9"));
    assert_eq!(said(vec![whole, (7, 6, 0, 0, 4)]), format!("{begin}something ends at 6 and begins at 7"));
    let dropped = read([vec![(5, 9, 0, 3, 1), (6, 7, 2, 0, 4)], vec![(5, 9, 0, 0, 1)]]).unwrap();
    assert_eq!((dropped.dropped(), dropped.warps[0].events.len()), (2, 1));
    let short = Recording::read("d", "k", 1, &timeline, &[0; 64]).unwrap_err().to_string();
    assert_eq!(short, "the timeline of k on rank 1: 64 bytes, not 128");
}

#[test]
fn peers_are_ranks_with_their_flags() {
    let event = |peers, index| Event { begin_ns: 0, end_ns: 0, peers, index, site: 0 };
    let of = |how, event: Event| event.peers(&site(SiteKind::Wait, "r", "f", how, 1), 4);
    assert_eq!(of(SitePeers::Rank, event(3, 17)), [(3, 17)]);
    assert_eq!(of(SitePeers::Set, event(0b1010, 17)), [(1, 17), (3, 17)]);
    assert_eq!(of(SitePeers::Flags { per_rank: 2 }, event(3, 6)), [(3, 6), (3, 7), (0, 8)]);
    assert_eq!(of(SitePeers::Some { per_rank: 1 }, event(0b101, 6)), [(2, 6), (0, 8)]);
    assert_eq!(of(SitePeers::None, event(3, 6)), []);
}

/// Recordings of the clocks' kernel: rounds of ping's and pong's way, in nanoseconds, on clocks with steps of 32.
fn ping_pong(rounds: &[(u64, u64)], ahead: u64) -> Vec<Recording> {
    let steps = |ns: u64| ns / 32 * 32;
    let of = |parameter| [(SiteKind::Signal, parameter), (SiteKind::Wait, parameter)];
    let mut sites = vec![site(SiteKind::Role, "clock", "", SitePeers::None, 1)];
    let each = of("ping").into_iter().chain(of("pong"));
    sites.extend(each.map(|(kind, parameter)| site(kind, "clock", parameter, SitePeers::Rank, 2)));
    let slots = 2 * rounds.len() as u32;
    let bytes_of = |events: &[Raw]| {
        let timeline = Timeline {
            slots,
            warps: 1,
            slices: 2,
            bytes: 2 * u64::from(1 + slots) * 32,
            sites: sites.clone(),
        };
        let whole = vec![(32, 64, 0, 0, 0)];
        let head = vec![(events[0].0, events[0].1 + 1_000_000, 0, events.len() as u32, 0)];
        (timeline.clone(), bytes(&timeline, [[head, events.to_vec()].concat(), whole]))
    };
    let (mut zero, mut one, mut now) = (vec![], vec![], 1_000_003);
    for (index, (there, back)) in (0..).zip(rounds) {
        let (seen, answered) = (now + there, now + there + 777);
        let home = answered + back;
        zero.extend([
            (steps(now), steps(now) + 64, 1, index, 1),
            (steps(now) + 64, steps(home), 1, index, 4),
        ]);
        let ahead = |ns: u64| steps(ns + ahead);
        one.extend([
            (ahead(seen) - 32, ahead(seen), 0, index, 2),
            (ahead(answered), ahead(answered) + 64, 0, index, 3),
        ]);
        now = home + 501;
    }
    let read = |(rank, events): (u32, &[Raw])| {
        let (timeline, bytes) = bytes_of(events);
        Recording::read("clocks", "clock_sync", rank, &timeline, &bytes).unwrap()
    };
    [(0, &zero[..]), (1, &one[..])].map(read).into()
}

#[test]
fn clocks_are_bounded_by_the_shortest_ways_of_either_direction() {
    let rounds = [(900, 2_000), (700, 1_500), (2_500, 800), (1_000, 1_000)];
    for ahead in [0, 5_000, 1_234_567] {
        let found = offsets(&ping_pong(&rounds, ahead)).unwrap()[1];
        assert!(found.offset_ns.abs_diff(ahead as i64) <= found.error_ns, "{found:?}");
        // Half of 700 + 800, a step, and the steps that either way may lose.
        assert!((700..=850).contains(&found.error_ns), "{found:?}");
        assert!((1_900..=2_100).contains(&found.round_trip_ns), "{found:?}");
        assert_eq!(found.resolution_ns % 32, 0);
    }
}

#[test]
fn clocks_that_cannot_be_compared_are_told() {
    let mut none = ping_pong(&[(900, 900)], 0);
    none[1].warps[0].events.clear();
    assert_eq!(offsets(&none), Err(ClockError::NoRound { rank: 1 }));
    let mut jumps = ping_pong(&[(900, 900), (900, 900)], 1_000);
    for event in &mut jumps[1].warps[0].events[2..] {
        (event.begin_ns, event.end_ns) = (event.begin_ns - 90_000, event.end_ns - 90_000);
    }
    assert!(
        matches!(offsets(&jumps), Err(ClockError::Contradiction { rank: 1, .. })),
        "{:?}",
        offsets(&jumps)
    );
}
