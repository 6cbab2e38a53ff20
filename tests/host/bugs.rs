//! Printer bugs, planted one at a time in the emitted text: each must be caught. What they are planted in is clean over
//! the same seeds and more.

use peerwarp::families::moe::kernels::{Hook, Layout, Protocol};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use rayon::prelude::*;

use crate::build::{Language, Mode, Program, Text};
use crate::moe::{MoeHost, Plan};

/// Seeds under which a bug is caught: ranks of one pace, and ranks of different paces.
const SEEDS: std::ops::Range<u64> = 0..2;
/// Seeds under which the texts without bugs are clean.
const CLEAN_SEEDS: std::ops::Range<u64> = 0..4;

/// How many warps a group has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Groups {
    OfOneWarp,
    OfTwoWarps,
}

/// How rows travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rows {
    WithFlags,
    AsPackets,
    /// In bulk, with a flag for two of them on their way back.
    InBulk,
}

/// Replaces all occurrences of a text in one kernel. `WARP` in it stands for the warp size.
struct Bug {
    name: &'static str,
    language: Language,
    groups: Groups,
    rows: Rows,
    /// Dispatch or combine.
    kernel: usize,
    from: &'static str,
    to: &'static str,
    /// How often `from` occurs.
    count: usize,
    /// A part of what must be found; nothing when any race will do, or a read of what was never written.
    caught: &'static str,
}

const DISPATCH: usize = 0;
const COMBINE: usize = 1;

impl Bug {
    fn new(name: &'static str, kernel: usize, from: &'static str, to: &'static str) -> Bug {
        let (language, groups) = (Language::Cuda, Groups::OfTwoWarps);
        Bug { name, language, groups, rows: Rows::WithFlags, kernel, from, to, count: 1, caught: "" }
    }

    fn in_hip(self) -> Bug {
        Bug { language: Language::Hip, ..self }
    }

    fn in_one_warp(self) -> Bug {
        Bug { groups: Groups::OfOneWarp, ..self }
    }

    fn with_packets(self) -> Bug {
        Bug { rows: Rows::AsPackets, ..self }
    }

    fn in_bulk(self) -> Bug {
        Bug { rows: Rows::InBulk, ..self }
    }

    fn twice(self) -> Bug {
        Bug { count: 2, ..self }
    }

    fn caught_by(self, caught: &'static str) -> Bug {
        Bug { caught, ..self }
    }

    fn plant(&self, texts: &[Text]) -> Vec<Text> {
        let size = self.language.target().warp_size().to_string();
        let [from, to] = [self.from, self.to].map(|t| t.replace("WARP", &size));
        let mut texts = texts.to_vec();
        texts[self.kernel] = texts[self.kernel].clone().edited(&from, &to, self.count);
        texts
    }
}

/// Three ranks; rank 1 has no tokens in the first round and some in the others; masked, repeated and own experts.
fn problem() -> MoeProblem {
    let shape = MoeShape { hidden: 72, experts: 6, topk: 2, tokens: 3, ranks: 3, dtype: RowDtype::Bf16 };
    let first = vec![vec![0, 2, 4, 5, 3, 3], vec![], vec![1, 2, 0, 5]];
    let second = vec![vec![0, 1, -1, 2], vec![3, 0, 1, 2, 2, 9], vec![4, 5]];
    let rounds = [first, second].map(|ids| Routing::with_weights(&shape, ids, 1));
    MoeProblem::with_rounds(shape, rounds.into(), 1).unwrap()
}

fn host(language: Language, groups: Groups, rows: Rows) -> MoeHost {
    let protocol = match rows {
        Rows::WithFlags => Protocol::Flags,
        Rows::AsPackets => Protocol::Packets,
        Rows::InBulk => Protocol::Bulk,
    };
    let problem = problem();
    let mut tuning =
        MoeTuning::defaults_with(&problem.shape, Hook::None, Layout::ExpertMajor).unwrap().small();
    if rows == Rows::InBulk {
        tuning = tuning.with_layout(Layout::RankMajor);
        tuning.plan.combine.batch = 2;
    }
    let mut tuning = tuning.with_protocol(protocol);
    let warps = if groups == Groups::OfOneWarp { 1 } else { 2 };
    let (dispatch, combine) = (&mut tuning.plan.dispatch, &mut tuning.plan.combine);
    (dispatch.warps, dispatch.group_warps, dispatch.chunk) = (2 * warps, warps, 1);
    (combine.warps, combine.group_warps) = (2 * warps, warps);
    (dispatch.send_blocks, dispatch.recv_blocks) = (1, 2);
    (combine.send_blocks, combine.recv_blocks) = (2, 1);
    // A bank of packets is used again two rounds later: in four rounds each is, and who comes too late for one finds what the other held.
    let rounds = if rows == Rows::AsPackets { 4 } else { 3 };
    MoeHost::new(&problem, &tuning, Plan::new(language, rounds))
}

/// Bugs that are the same text in both languages.
fn of_both() -> Vec<Bug> {
    vec![
        Bug::new(
            "lane 0 posts before the group's stores",
            COMBINE,
            "group.sync();\n    if (group.lane == 0) store_release_system",
            "if (group.lane == 0) store_release_system",
        ),
        Bug::new(
            "lanes post before the group's stores",
            DISPATCH,
            "group.sync();\n#pragma unroll 1\n    for (u32 turn = group.lane;",
            "for (u32 turn = group.lane;",
        ),
        Bug::new("no barrier after a poll", COMBINE, "return group.all(arrived);", "return true;"),
        Bug::new(
            "some owners are not waited for",
            COMBINE,
            "if (((only >> i) & 1) == 0) continue;",
            "if (i == 0 || ((only >> i) & 1) == 0) continue;",
        ),
        Bug::new(
            "others than the owners are waited for",
            COMBINE,
            "if (((only >> i) & 1) == 0) continue;",
            "if (((only >> i) & 1) != 0) continue;",
        ),
        Bug::new(
            "no barrier after polls side by side",
            DISPATCH,
            "u32(index / per_rank % ranks), expected, site);\n    }\n    return group.all(arrived);",
            "u32(index / per_rank % ranks), expected, site);\n    }\n    return true;",
        ),
        Bug::new(
            "the words of a scan are read while they are written",
            DISPATCH,
            "ours[group.lane / WARP] = total;\n        group.sync();",
            "ours[group.lane / WARP] = total;",
        ),
        Bug::new(
            "counts are put before all are in shared memory",
            DISPATCH,
            "+ lower;\n        }\n        group.sync();",
            "+ lower;\n        }",
        ),
        Bug::new("the epoch stays", DISPATCH, "(both, u64(next)", "(both, u64(next - 1)")
            .caught_by("wrong result: "),
        Bug::new(
            "the epoch advances with the first block",
            COMBINE,
            "(before >> 32) + 1 == blocks",
            "(before >> 32) == 0",
        ),
        Bug::new(
            "flags of the wrong rank",
            COMBINE,
            "args.return_flag[source] + return_flag_index",
            "args.return_flag[args.rank] + return_flag_index",
        )
        .caught_by("wrong result: "),
        Bug::new(
            "packets are not emptied",
            COMBINE,
            "if (all && mine(i, step)) store_packet(place(i, step), emptied(seen[i][step]));",
            "",
        )
        .with_packets()
        .caught_by("wrong result: "),
        Bug::new(
            "a missing element is taken for one that came",
            DISPATCH,
            "mine = mine && !missing[i];",
            "mine = true;",
        )
        .with_packets()
        .caught_by("wrong result: "),
        Bug::new("taken without a barrier", DISPATCH, "return group.all(all);", "return true;")
            .with_packets()
            .twice(),
        Bug::new(
            "a missing packet is taken for one that came",
            COMBINE,
            "arrived = arrived && !missing(i, step);",
            "arrived = true;",
        )
        .with_packets()
        .caught_by("wrong result: "),
    ]
}

fn of_cuda() -> Vec<Bug> {
    vec![
        Bug::new("rows without release", DISPATCH, "st.release.sys", "st.relaxed.sys"),
        Bug::new("returns without release", COMBINE, "st.release.sys", "st.relaxed.sys"),
        Bug::new("rows without acquire", DISPATCH, "fence.acquire.sys;", ""),
        Bug::new("returns without acquire", COMBINE, "fence.acquire.sys;", ""),
        Bug::new("release at gpu scope", COMBINE, "st.release.sys", "st.release.gpu"),
        Bug::new("acquire at gpu scope", DISPATCH, "fence.acquire.sys", "fence.acquire.gpu"),
        Bug::new("polls at gpu scope", COMBINE, "ld.relaxed.sys", "ld.relaxed.gpu")
            .caught_by("the scope of one of them"),
        Bug::new("two groups meet at one barrier", COMBINE, "Meeting<N>{1 + number}", "Meeting<N>{1}")
            .twice(),
        Bug::new("a group's barrier waits for the block", DISPATCH, "\"n\"(N * WARP)", "\"n\"(2 * N * WARP)")
            .twice()
            .caught_by("deadlock: "),
        Bug::new(
            "the epoch is read before it is there",
            COMBINE,
            "__syncthreads();\n    return epoch;",
            "return epoch;",
        ),
        Bug::new(
            "a vote that orders nothing",
            COMBINE,
            "__syncwarp();\n        return every;",
            "return every;",
        )
        .in_one_warp(),
        Bug::new("a flag before bulk copies are there", DISPATCH, "    bulk_done();\n", "\n").in_bulk(),
        Bug::new("copied on before it arrived", COMBINE, "\"cp.async.wait_all;\"", "\"\"")
            .in_bulk()
            .caught_by("wrong result: "),
        Bug::new(
            "copied on before all lanes have brought theirs",
            DISPATCH,
            "fence.proxy.async.shared::cta;\" ::: \"memory\");\n    group.sync();",
            "fence.proxy.async.shared::cta;\" ::: \"memory\");",
        )
        .in_bulk(),
        Bug::new(
            "the room is filled again before it has been read",
            COMBINE,
            "asm volatile(\"cp.async.bulk.wait_group.read 0;\" ::: \"memory\");\n    group.sync();",
            "",
        )
        .in_bulk()
        .caught_by("wrong result: "),
        Bug::new(
            "bulk copies are read, and not waited for",
            DISPATCH,
            "asm volatile(\"cp.async.bulk.wait_group 0;\"",
            "asm volatile(\"cp.async.bulk.wait_group.read 0;\"",
        )
        .in_bulk()
        .caught_by("copies: "),
    ]
}

fn of_hip() -> Vec<Bug> {
    let all = vec![
        Bug::new("rows without release", DISPATCH, "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"\");", ""),
        Bug::new("returns without release", COMBINE, "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"\");", ""),
        Bug::new("rows without acquire", DISPATCH, "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");", ""),
        Bug::new("returns without acquire", COMBINE, "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");", ""),
        Bug::new(
            "release at agent scope",
            COMBINE,
            "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"\");",
            "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"agent\");",
        ),
        Bug::new(
            "acquire at agent scope",
            DISPATCH,
            "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");",
            "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"agent\");",
        ),
        Bug::new(
            "flags are set at agent scope",
            DISPATCH,
            "store(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM",
            "store(p, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT",
        )
        .caught_by("the scope of one of them"),
        Bug::new(
            "polls at agent scope",
            COMBINE,
            "load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM",
            "load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT",
        )
        .caught_by("the scope of one of them"),
        Bug::new(
            "lane 0 vouches for other warps",
            COMBINE,
            "stores_done();\n    group.sync();",
            "group.sync();",
        ),
        Bug::new(
            "a group's barrier that releases nothing",
            COMBINE,
            "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"workgroup\");\n        ++meetings;",
            "++meetings;",
        ),
        Bug::new(
            "a group's barrier that acquires nothing",
            DISPATCH,
            "s_sleep(1);\n        __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");",
            "s_sleep(1);",
        ),
        Bug::new(
            "a group's barrier that waits for one warp less",
            COMBINE,
            "N * meetings",
            "(N - 1) * meetings",
        ),
        Bug::new("a group's counter is not cleared", DISPATCH, "if (lane < 3) meeting.place[lane] = 0;", "")
            .caught_by("uninitialised: "),
        Bug::new(
            "the epoch is read before it is there",
            COMBINE,
            "__builtin_amdgcn_s_barrier();\n    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"workgroup\");\n    return epoch;",
            "return epoch;",
        )
        .in_one_warp(),
        Bug::new(
            "a warp's meeting that releases nothing",
            COMBINE,
            "__builtin_amdgcn_fence(__ATOMIC_RELEASE, \"wavefront\");",
            "",
        )
        .in_one_warp(),
    ];
    all.into_iter().map(Bug::in_hip).collect()
}

/// What is wrong about the schedules in which the bug was not caught.
fn missed(bug: &Bug, host: &MoeHost) -> Option<String> {
    let program = Program::new(&bug.plant(&host.texts), Mode::Checked);
    let runs = host.job.run(&program, SEEDS);
    let wrong: Vec<Vec<String>> = runs.iter().map(|run| host.wrong(run)).collect();
    let found = |one: &String| match bug.caught {
        "" => one.starts_with("race: ") || one.starts_with("uninitialised: "),
        part => one.contains(part),
    };
    let caught = wrong.iter().filter(|w| w.iter().any(found)).count();
    println!("{:?}, {}: {caught} of {}", bug.language, bug.name, wrong.len());
    (caught < wrong.len())
        .then(|| format!("{:?}, {}: {caught} of {}: {wrong:#?}", bug.language, bug.name, wrong.len()))
}

fn all_are_caught(language: Language, bugs: Vec<Bug>) {
    let kinds = [
        (Groups::OfOneWarp, Rows::WithFlags),
        (Groups::OfTwoWarps, Rows::WithFlags),
        (Groups::OfTwoWarps, Rows::AsPackets),
        (Groups::OfTwoWarps, Rows::InBulk),
    ];
    let hosts = kinds.map(|(groups, rows)| {
        let host = host(language, groups, rows);
        host.run_clean(&host.program(Mode::Checked), CLEAN_SEEDS);
        host
    });
    let host_of = |bug: &Bug| {
        let kind = kinds.iter().position(|&k| k == (bug.groups, bug.rows));
        &hosts[kind.expect("every bug's kind is there")]
    };
    let missed: Vec<String> = bugs.par_iter().filter_map(|bug| missed(bug, host_of(bug))).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_bug_in_cuda_is_caught() {
    all_are_caught(Language::Cuda, of_both().into_iter().chain(of_cuda()).collect());
}

#[test]
fn every_bug_in_hip_is_caught() {
    all_are_caught(Language::Hip, of_both().into_iter().map(Bug::in_hip).chain(of_hip()).collect());
}
