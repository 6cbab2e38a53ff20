//! Timelines that emitted kernels record, executed on the CPU: nothing is recorded that did not happen, nothing is missing,
//! and what waits for something ends after it has begun.

use peerwarp::codegen::family::Family;
use peerwarp::codegen::print::{SiteKind, TimelineSite};
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, RowDtype};
use peerwarp::harness::trace::clock::{ClockLine, ClockOffset, offsets};
use peerwarp::harness::trace::sync::ClockSync;
use peerwarp::harness::trace::{Trace, matches};
use peerwarp::runtime::{Event, Recording};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, WAIT_BUDGET_NS, timeline_of};
use crate::moe::{MoeHost, Plan, traced};

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 6, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };

fn host(language: Language, slots: u32, split: bool, protocol: Protocol) -> MoeHost {
    let problem = MoeProblem::uniform(SHAPE, &[3, 0, 2], 5).unwrap();
    let mut tuning = MoeTuning::defaults_with(&SHAPE, Hook::None, Layout::ExpertMajor)
        .unwrap()
        .small()
        .with_split(split)
        .with_protocol(protocol);
    (tuning.plan.dispatch.warps, tuning.plan.dispatch.group_warps) = (4, 2);
    MoeHost::new(&problem, &tuning, Plan { timeline: Some(slots), ..Plan::new(language, 2) })
}

/// Has every rank read its timelines at the end; where they begin in what it reads.
fn read_timelines(job: &mut Job, emitted: &[Emitted], ranks: u32) -> Vec<usize> {
    let before = job.read_bytes();
    for rank in 0..ranks {
        for e in emitted {
            let bytes = e.source.timeline.as_ref().expect("emitted with one").bytes;
            job.read(rank, &timeline_of(&e.source.entry), 0..bytes);
        }
    }
    before
}

/// The timelines of a rank, from what it read at the end.
fn recordings(emitted: &[Emitted], rank: u32, mut read: &[u8]) -> Result<Vec<Recording>, String> {
    let mut all = vec![];
    for e in emitted {
        let timeline = e.source.timeline.as_ref().expect("emitted with one");
        let (own, rest) = read.split_at(timeline.bytes as usize);
        read = rest;
        // Halves of an operation are called what it is called.
        let (label, name) = (&e.kernel.name, &e.source.entry);
        all.push(Recording::read(label, name, rank, timeline, own).map_err(|e| e.to_string())?);
    }
    Ok(all)
}

/// All ranks have the host's clock.
fn one_clock(ranks: u32) -> Vec<ClockLine> {
    let zero =
        |rank| ClockOffset { rank, offset_ns: 0, error_ns: 0, round_trip_ns: 0, resolution_ns: 1, at_ns: 0 };
    (0..ranks).map(|rank| ClockLine { before: zero(rank), after: zero(rank) }).collect()
}

/// What is wrong with the timelines of a round.
fn wrong(trace: &Trace, emitted: &[Emitted]) -> Result<(), String> {
    for r in &trace.recordings {
        let kernel = &emitted.iter().find(|e| e.source.entry == r.kernel).expect("is one of these").kernel;
        let at = |what: &str| format!("{} of rank {}: {what}", r.kernel, r.rank);
        let warps: u32 = kernel.roles.iter().map(|role| role.blocks * kernel.block_warps).sum();
        if r.warps.len() != warps as usize {
            return Err(at("warps are missing"));
        }
        let mut first = 0;
        for role in &kernel.roles {
            let of = |w: &&peerwarp::runtime::Warp| (first..first + role.blocks).contains(&w.block);
            if r.warps.iter().filter(of).any(|w| r.site(w.role).role != role.name) {
                return Err(at("a warp has another role"));
            }
            first += role.blocks;
        }
        for (warp, e) in r.events() {
            let site = r.site(e.site);
            if !(warp.begin_ns <= e.begin_ns && e.begin_ns <= e.end_ns && e.end_ns <= warp.end_ns) {
                return Err(at(&format!(
                    "{site:?} is outside of its warp: {e:?}, {} to {}",
                    warp.begin_ns, warp.end_ns
                )));
            }
            if site.role != r.site(warp.role).role {
                return Err(at(&format!("{site:?} is another role's")));
            }
            let Some(parameter) = &site.parameter else { continue };
            if kernel.params.iter().all(|p| p.name != *parameter) || site.line == 0 {
                return Err(at(&format!("there is no such site: {site:?}")));
            }
        }
        // Packets are sent without a signal, and a signal may be without data.
        let signalled = |e: &Event| {
            let has = |kind| {
                let of = |s: &TimelineSite| s.kind == kind && s.parameter == r.site(e.site).parameter;
                r.timeline.sites.iter().any(of)
            };
            has(SiteKind::Send) && has(SiteKind::Signal)
        };
        let of_kind = |e: &&Event, kind| r.site(e.site).kind == kind && signalled(e);
        let ended = |kind| r.events().filter(|(_, e)| of_kind(e, kind)).count();
        let signals = |w: &peerwarp::runtime::Warp| {
            let of = |kind| w.events.iter().filter(move |e| of_kind(e, kind));
            of(SiteKind::Send).zip(of(SiteKind::Signal)).all(|(a, b)| {
                (a.index, a.peers) == (b.index, b.peers) && a.begin_ns <= b.begin_ns && a.end_ns >= b.end_ns
            })
        };
        if ended(SiteKind::Send) != ended(SiteKind::Signal) || !r.warps.iter().all(signals) {
            return Err(at("parcels are not signalled once each"));
        }
    }
    for found in matches(trace) {
        let site = found.waiting.site(found.wait.site);
        // Of packets only those of the first tile are named, which a mask may leave out.
        if site.kind != SiteKind::Wait {
            continue;
        }
        if found.signals.len() != found.wait.peers(site, trace.ranks()).len() {
            return Err(format!("the signals of {site:?} are missing: {:?}", found.wait));
        }
        if let Some((_, _, signal)) = found.signals.iter().find(|s| s.2.begin_ns > found.wait.end_ns) {
            return Err(format!("{site:?} ends at {} and is for {signal:?}", found.wait.end_ns));
        }
    }
    match trace.dropped() {
        0 => Ok(()),
        n => Err(format!("{n} records had no room")),
    }
}

/// Runs a host's job, and says for each seed what is wrong with it.
fn run(mut host: MoeHost, texts: &[Text], mode: Mode) -> Vec<Result<Trace, String>> {
    let before = read_timelines(&mut host.job, &host.emitted, SHAPE.ranks);
    let program = Program::new(texts, mode);
    let trace = |run: &crate::job::Run| {
        let problems = host.wrong(run);
        if !problems.is_empty() {
            return Err(problems.join("\n"));
        }
        let ranks = 0..SHAPE.ranks;
        let all = ranks.map(|r| recordings(&host.emitted, r, &run.read[r as usize][before[r as usize]..]));
        let all = all.collect::<Result<Vec<_>, _>>()?;
        let trace = Trace::new(all.concat(), &one_clock(SHAPE.ranks));
        wrong(&trace, &host.emitted).map(|()| trace)
    };
    host.job.run(&program, 0..3).iter().map(trace).collect()
}

#[test]
fn all_that_happens_is_recorded() {
    for language in Language::ALL {
        for (split, protocol) in [(false, Protocol::Flags), (true, Protocol::Packets)] {
            let host = host(language, 64, split, protocol);
            let texts = host.texts.clone();
            for trace in run(host, &texts, Mode::Checked) {
                let trace = trace.unwrap_or_else(|e| panic!("{language:?}, {protocol:?}: {e}"));
                let kinds = |kind| {
                    let of = |r: &Recording| r.events().filter(|(_, e)| r.site(e.site).kind == kind).count();
                    trace.recordings.iter().map(of).sum::<usize>()
                };
                assert!(
                    kinds(SiteKind::Group) > 0 && kinds(SiteKind::Signal) > 0 && kinds(SiteKind::Wait) > 0
                );
                assert_eq!(matches(&trace).len(), kinds(SiteKind::Wait) + kinds(SiteKind::Take));
            }
        }
    }
}

#[test]
fn what_has_no_room_is_counted_and_written_nowhere() {
    for language in Language::ALL {
        let host = host(language, 1, false, Protocol::Packets);
        let texts = host.texts.clone();
        for found in run(host, &texts, Mode::Checked) {
            // Signals that are missing may be found missing first.
            let said = found.unwrap_err();
            assert!(
                said.contains("had no room") || said.contains("missing") || said.contains("once each"),
                "{said}"
            );
        }
    }
}

/// What a wrong template or a wrong printer would have written is found.
#[test]
fn planted_bugs_are_found() {
    let edits = [
        ("if (count < timeline_slots) {", "{", 1, 1),
        ("slice[1 + count]", "slice[count]", 64, 2),
        ("begin_at(now_ns());", ";", 64, 1),
        ("opened == 0) opened = now_ns()", "opened == 0) opened = 0", 64, 1),
        ("* (1 + timeline_slots)", "* timeline_slots", 64, 1),
        ("if (group.lane == 0) finish(", "finish(", 64, 1),
        ("slice->index = count;", "slice->index = count - 1;", 64, 1),
        ("if (thread_in_block() % {w} != 0) return;", "", 64, 1),
    ];
    for ((from, to, slots, times), language) in edits.into_iter().zip(Language::ALL.into_iter().cycle()) {
        // Packets have no send that would be recorded.
        let host = host(language, slots, false, Protocol::Flags);
        let from = from.replace("{w}", &language.target().warp_size().to_string());
        let mut texts = host.texts.clone();
        texts[0] = texts[0].clone().edited(&from, to, times);
        for found in run(host, &texts, Mode::Checked) {
            let said = found.err().unwrap_or_else(|| panic!("{language:?}: `{to}` was not found"));
            // With one record a warp, that some are missing is no bug.
            let overflow = ["race", "out of bounds", "is no role", "no site", "has not ended"];
            assert!(slots > 1 || overflow.iter().any(|o| said.contains(o)), "`{to}` was not found: {said}");
        }
    }
}

#[test]
fn clocks_that_are_one_are_found_to_be() {
    for language in Language::ALL {
        let config = ClockSync { ranks: 3, rounds: 4 };
        let emitted = vec![traced(&config, language, Some(config.records()))];
        let mut job = Job::new(language, config.ranks);
        job.buffers_of(&emitted[0].kernel, str::to_owned);
        let launch = job.launch(&emitted[0], str::to_owned, |_| unreachable!(), WAIT_BUDGET_NS);
        for rank in 0..config.ranks {
            // The second launch is the one that is read.
            job.run_on(rank, launch);
            job.run_on(rank, launch);
        }
        read_timelines(&mut job, &emitted, config.ranks);
        let text = Text::of(&emitted[0].source, language);
        for run in job.run(&Program::new(&[text], Mode::Checked), 0..4) {
            assert!(run.findings.is_empty(), "{:?}", run.findings);
            let all =
                (0..config.ranks).map(|r| recordings(&emitted, r, &run.read[r as usize]).unwrap().remove(0));
            let found = offsets(&all.collect::<Vec<_>>()).unwrap();
            for offset in &found[1..] {
                assert!(offset.offset_ns.unsigned_abs() <= offset.error_ns, "{offset:?}");
                assert!(offset.round_trip_ns > 0 && offset.error_ns <= offset.round_trip_ns, "{offset:?}");
            }
        }
        assert_eq!(config.variant_name(), "clock_sync_r3_n4");
    }
}
