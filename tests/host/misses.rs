//! One lane of a group misses what all others have: the record names what it misses and who sends it, and no lane goes on.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::print::{EmitInfo, emit};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run, STATUS, WAIT_BUDGET_NS};

use crate::waits::Status;

const RANKS: u32 = 2;
const BLOCK_WARPS: u32 = 2;
/// What a lane that goes on does not leave.
const UNTOUCHED: f32 = -1.0;

/// What lanes wait for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Ll,
    Packets,
}

/// A kernel with one block, whose groups each read a word a lane, or two tiles of a packet a lane.
struct Case {
    kind: Kind,
    emitted: Emitted,
    program: Program,
    language: Language,
    /// Groups of the block, and lanes of each.
    groups: u32,
    lanes: u32,
    /// Where the kernel waits.
    line: u32,
}

impl Case {
    fn new(kind: Kind, language: Language, warps: u32, mode: Mode, edit: impl Fn(Text) -> Text) -> Case {
        let target = language.target();
        let (groups, lanes) = (BLOCK_WARPS / warps, warps * target.warp_size());
        let meta = TraceMeta::new("misses", RANKS, target.warp_size(), BLOCK_WARPS);
        let mut line = 0;
        let kernel = trace(meta, |p: &mut Binder| {
            let n = u64::from(groups * lanes);
            let ll = p.arg::<Ll<f32>>("ll", n);
            let packets = p.arg::<Packets<f32>>("packets", 8 * n);
            let out = p.arg::<Ptr<f32>>("out", 4 * n);
            let epoch = p.arg::<EpochWord>("epoch", 1).begin();
            role("take", 1, |b| {
                b.split(warps, |g| match kind {
                    Kind::Ll => {
                        let i = arange(lanes) + g.index() * lanes;
                        line = line!() + 1;
                        let got = ll.gather(i, i % RANKS, true, epoch);
                        out.store(g.index() * lanes, got);
                    }
                    Kind::Packets => {
                        let tiles = (0..RANKS).map(|from| ((g.index() * RANKS + from) * 4 * lanes, from));
                        line = line!() + 1;
                        let got = packets.take_each(tiles, 4 * lanes, 0b11u64);
                        out.store(g.index() * 4 * lanes, got[0] + got[1]);
                    }
                });
            });
        });
        let kernel = verify(kernel.unwrap_or_else(|e| panic!("{e}"))).unwrap_or_else(|e| panic!("{e}"));
        let info = EmitInfo { command: "a test".into() };
        let source = emit(&kernel, target, &info).unwrap_or_else(|e| panic!("{e}"));
        // Clocks as far apart as can be: those of every other lane are twice as fast. When they say that the time is over,
        // the lane between them, which may be the one that misses something, has half of it left.
        let (clock, rate) = match language {
            Language::Cuda | Language::Blackwell => {
                ("%globaltimer;\" : \"=l\"(t));\n    return t", "(1 + thread_in_block() % 2)")
            }
            Language::Hip => ("return __builtin_amdgcn_s_memrealtime() * 10", "(1 + thread_in_block() % 2)"),
            Language::Gfx12 => {
                ("return __builtin_amdgcn_s_sendmsg_rtnl(0x83) * 10", "(1 + thread_in_block() % 2)")
            }
        };
        let text = Text::of(&source, language).edited(clock, &format!("{clock} * {rate}"), 1);
        let program = Program::new(&[edit(text)], mode);
        let emitted = Emitted { kernel: kernel.into_kernel(), source };
        Case { kind, emitted, program, language, groups, lanes, line }
    }

    fn every(mode: Mode) -> Vec<Case> {
        let kinds = [Kind::Ll, Kind::Packets].into_iter();
        let warps = kinds.flat_map(|kind| (1..=BLOCK_WARPS).map(move |warps| (kind, warps)));
        warps
            .flat_map(|(kind, warps)| Language::ALL.map(|l| Case::new(kind, l, warps, mode, |text| text)))
            .collect()
    }

    fn name(&self) -> String {
        format!("{:?}, {:?}, groups of {} lanes", self.kind, self.language, self.lanes)
    }

    /// Floats that a group leaves.
    fn left(&self) -> usize {
        (self.lanes * if self.kind == Kind::Ll { 1 } else { 4 }) as usize
    }

    /// The first element that a lane of the last group waits for, of those that the last rank sends to it.
    fn index(&self, lane: u32) -> u32 {
        match self.kind {
            Kind::Ll => (self.groups - 1) * self.lanes + lane,
            Kind::Packets => 4 * ((self.groups * RANKS - 1) * self.lanes + lane),
        }
    }

    /// A rank's program, with all that it waits for there from the start, but for what a lane misses.
    fn run_on(&self, job: &mut Job, rank: u32, misses: Option<u32>, launch: usize) {
        match self.kind {
            Kind::Ll => {
                let word = |i: u32| u64::from((i as f32).to_bits()) | 1 << 32;
                let mut words: Vec<u64> = (0..self.groups * self.lanes).map(word).collect();
                if let Some(lane) = misses {
                    words[self.index(lane) as usize] = SEEN << 32;
                }
                job.write(rank, "ll", 0, &words);
            }
            Kind::Packets => {
                let there: Vec<f32> = (0..self.groups * RANKS * 4 * self.lanes).map(|i| i as f32).collect();
                let cut = misses.map_or(there.len(), |lane| self.index(lane) as usize);
                job.write(rank, "packets", 0, &there[..cut]);
                let after = there.len().min(cut + 4);
                job.write(rank, "packets", 4 * after as u64, &there[after..]);
            }
        }
        job.write(rank, "out", 0, &vec![UNTOUCHED; self.left() * self.groups as usize]);
        job.run_on(rank, launch);
        job.read(rank, "out", 0..4 * u64::from(self.groups) * self.left() as u64);
        job.read(rank, STATUS, 0..size_of::<Status>() as u64);
    }

    /// What a program reads: by group what it left, and the record.
    fn parse(&self, read: &[u8]) -> (Vec<Vec<f32>>, Status) {
        let (out, status) = read.split_at(read.len() - size_of::<Status>());
        let out: Vec<f32> = out.chunks(4).map(bytemuck::pod_read_unaligned).collect();
        (out.chunks(self.left()).map(<[f32]>::to_vec).collect(), bytemuck::pod_read_unaligned(status))
    }

    /// What a group leaves that misses nothing.
    fn whole(&self, group: u32) -> Vec<f32> {
        let n = self.left() as u32;
        let each = |i: u32| match self.kind {
            Kind::Ll => (group * n + i) as f32,
            Kind::Packets => (2 * (group * RANKS * n + i) + n) as f32,
        };
        (0..n).map(each).collect()
    }

    fn job(&self) -> Job {
        let mut job = Job::new(self.language, RANKS);
        job.buffers_of(&self.emitted.kernel, str::to_owned);
        job
    }

    fn launch(&self, job: &mut Job, budget_ns: u64) -> usize {
        job.launch(&self.emitted, str::to_owned, |_| vec![], budget_ns)
    }

    /// The record of a wait in which a lane of the last group missed something.
    fn record(&self, lane: u32, rank: u32) -> Status {
        let name = if self.kind == Kind::Ll { "ll" } else { "packets" };
        let flag = self.emitted.kernel.params.iter().position(|p| p.name == name);
        let (peer, expected, seen) = match self.kind {
            Kind::Ll => (lane % RANKS, 1, SEEN as u32),
            Kind::Packets => (RANKS - 1, 0, u32::MAX),
        };
        let index = self.index(lane).into();
        let site = self.emitted.source.waits.iter().position(|wait| wait.line == self.line);
        let flag = flag.expect("the kernel has it") as u32;
        Status {
            aborted: 1 + rank,
            filled: 1,
            kernel: 0,
            index,
            rank,
            role: 0,
            block: 0,
            peer,
            flag,
            site: site.expect("it waits there") as u32,
            expected,
            seen,
        }
    }
}

/// The epoch of the word that is missed: not the one that is waited for.
const SEEN: u64 = 9;

/// What is wrong with each run in which a lane of rank 0's last group misses something, or none does.
fn wrong(case: &Case, lane: Option<u32>) -> Vec<Option<String>> {
    let mut job = case.job();
    let launch = case.launch(&mut job, WAIT_BUDGET_NS);
    case.run_on(&mut job, 0, lane, launch);
    let wrong = |run: Run| {
        if !run.findings.is_empty() {
            return Some(run.findings.join("\n"));
        }
        let (out, status) = case.parse(&run.read[0]);
        let group = (0..).zip(out).find(|(group, left)| {
            let fails = lane.is_some() && *group == case.groups - 1;
            *left != if fails { vec![UNTOUCHED; case.left()] } else { case.whole(*group) }
        });
        if let Some((group, left)) = group {
            return Some(format!("group {group} leaves {left:?}"));
        }
        let want = lane.map_or(bytemuck::Zeroable::zeroed(), |lane| case.record(lane, 0));
        let status = Status { kernel: 0, ..status };
        (status != want).then(|| format!("{status:?} instead of {want:?}"))
    };
    job.run(&case.program, 0..4).into_iter().map(wrong).collect()
}

#[test]
fn what_one_lane_misses_is_named_and_no_lane_goes_on() {
    for case in Case::every(Mode::Checked) {
        // On either side of the clocks, and at both ends.
        for lane in [None, Some(0), Some(6), Some(13), Some(case.lanes - 1)] {
            for (seed, wrong) in wrong(&case, lane).into_iter().enumerate() {
                assert_eq!(wrong, None, "{}, lane {lane:?}, seed {seed}", case.name());
            }
        }
    }
}

/// A part of the polls' text and what stands in its place; `GIVE_UP` is the call up to what it names.
struct Bug {
    name: &'static str,
    from: &'static str,
    to: &'static str,
}

const BUGS: [Bug; 5] = [
    Bug { name: "no wait gives up", from: "GIVE_UP", to: "if (false) GIVE_UP" },
    Bug {
        name: "lanes leave as their own time is over",
        from: "if (warp_all(now_ns() - start <= args.wait_budget_ns)) continue;",
        to: "if (now_ns() - start <= args.wait_budget_ns) continue;",
    },
    Bug {
        name: "only lanes whose own time is over give up",
        from: "GIVE_UP",
        to: "if (now_ns() - start > args.wait_budget_ns) GIVE_UP",
    },
    Bug { name: "lanes leave as they have theirs", from: "all = warp_all(", to: "all = bool(" },
    Bug { name: "warps do not meet", from: "return group.all(all);", to: "return all;" },
];

#[test]
fn mistakes_in_who_leaves_when_are_caught() {
    for Bug { name, from, to } in BUGS {
        for (kind, language) in [(Kind::Ll, Language::Cuda), (Kind::Packets, Language::Hip)] {
            let give_up = match kind {
                Kind::Ll => "give_up(args, site, index[i]",
                Kind::Packets => "give_up(args, site, u64(",
            };
            let [from, to] = [from, to].map(|t| t.replace("GIVE_UP", give_up));
            let plant = |text: Text| text.edited(&from, &to, 1);
            let case = Case::new(kind, language, BLOCK_WARPS, Mode::Fast, plant);
            for (seed, wrong) in wrong(&case, Some(6)).into_iter().enumerate() {
                println!("{name}, {}, seed {seed}: {wrong:?}", case.name());
                assert_ne!(wrong, None, "{name}, {}, seed {seed}", case.name());
            }
        }
    }
}

/// One whose own time is not over leaves without a record when another rank ends the world.
#[test]
fn lanes_leave_together_when_the_world_ends() {
    // Not checked: a rank's host looks at a record that another rank may still write to.
    for case in Case::every(Mode::Fast) {
        let (mut job, lane) = (case.job(), 6);
        for (rank, budget) in [(0, WAIT_BUDGET_NS / 4), (1, 2 * WAIT_BUDGET_NS)] {
            let launch = case.launch(&mut job, budget);
            case.run_on(&mut job, rank, Some(lane), launch);
        }
        for run in job.run(&case.program, 0..4) {
            let name = format!("{}, seed {}", case.name(), run.seed);
            assert_eq!(run.findings, Vec::<String>::new(), "{name}");
            let [first, second] = [0, 1].map(|rank| case.parse(&run.read[rank]));
            assert_eq!(Status { kernel: 0, ..first.1 }, case.record(lane, 0), "{name}");
            let told = Status { aborted: 1, ..bytemuck::Zeroable::zeroed() };
            assert_eq!(second.1, told, "{name}");
            let untouched = vec![UNTOUCHED; case.left()];
            assert_eq!((first.0.last(), second.0.last()), (Some(&untouched), Some(&untouched)), "{name}");
        }
    }
}
