//! Printer bugs, planted one at a time in the emitted text: each must be caught. What they are planted in is clean over
//! the same seeds.

use peerwarp::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::moe_run::MoeTuning;
use rayon::prelude::*;

use crate::build::{Language, Mode, Program, Text};
use crate::moe::{MoeHost, Plan};

const SEEDS: std::ops::Range<u64> = 0..4;

/// Replaces a text that occurs once in one kernel.
struct Bug {
    name: &'static str,
    language: Language,
    /// Dispatch or combine.
    kernel: usize,
    from: &'static str,
    to: &'static str,
    /// A part of what must be said.
    caught: &'static str,
}

const DISPATCH: usize = 0;
const COMBINE: usize = 1;

impl Bug {
    fn new(name: &'static str, kernel: usize, from: &'static str, to: &'static str) -> Bug {
        Bug { name, language: Language::Cuda, kernel, from, to, caught: "race: " }
    }

    fn in_hip(self) -> Bug {
        Bug { language: Language::Hip, ..self }
    }

    fn caught_by(self, caught: &'static str) -> Bug {
        Bug { caught, ..self }
    }

    fn plant(&self, texts: &[Text]) -> Vec<Text> {
        let mut texts = texts.to_vec();
        texts[self.kernel] = texts[self.kernel].clone().edited(self.from, self.to, 1);
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

/// Two groups of two warps a block.
fn host(language: Language) -> MoeHost {
    let problem = problem();
    let mut tuning = MoeTuning::defaults(&problem.shape).unwrap().small();
    let (dispatch, combine) = (&mut tuning.dispatch, &mut tuning.combine);
    (dispatch.warps, dispatch.group_warps, dispatch.chunk) = (4, 2, 1);
    (combine.warps, combine.group_warps) = (4, 2);
    (dispatch.send_blocks, dispatch.recv_blocks) = (1, 2);
    (combine.send_blocks, combine.recv_blocks) = (2, 1);
    MoeHost::new(&problem, &tuning, Plan::new(language, 3))
}

/// Bugs that are the same text in both languages.
fn of_both() -> Vec<Bug> {
    vec![
        Bug::new("no barrier after a poll", COMBINE, "return group.all(arrived);", "return true;"),
        Bug::new(
            "no barrier after polls side by side",
            DISPATCH,
            "u32(index / per_rank % ranks), expected, site);\n    }\n    return group.all(arrived);",
            "u32(index / per_rank % ranks), expected, site);\n    }\n    return true;",
        ),
    ]
}

fn of_cuda() -> Vec<Bug> {
    vec![
        Bug::new("returns without release", COMBINE, "st.release.sys", "st.relaxed.sys"),
        Bug::new("returns without acquire", COMBINE, "fence.acquire.sys;", ""),
        Bug::new("release at gpu scope", COMBINE, "st.release.sys", "st.release.gpu"),
        Bug::new("acquire at gpu scope", DISPATCH, "fence.acquire.sys", "fence.acquire.gpu"),
        Bug::new("polls at gpu scope", COMBINE, "ld.relaxed.sys", "ld.relaxed.gpu")
            .caught_by("the scope of one of them"),
        Bug::new(
            "lane 0 posts before the group's stores",
            COMBINE,
            "group.sync();\n    if (group.lane == 0) store_release_system",
            "if (group.lane == 0) store_release_system",
        ),
        Bug::new(
            "lanes post before the group's stores",
            DISPATCH,
            "group.sync();\n    for (u32 turn = group.lane;",
            "for (u32 turn = group.lane;",
        ),
    ]
}

fn of_hip() -> Vec<Bug> {
    let all = vec![
        Bug::new(
            "returns without release",
            COMBINE,
            "__ATOMIC_RELEASE, __HIP_MEMORY",
            "__ATOMIC_RELAXED, __HIP_MEMORY",
        ),
        Bug::new("returns without acquire", COMBINE, "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");", ""),
        Bug::new(
            "acquire at agent scope",
            DISPATCH,
            "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"\");",
            "__builtin_amdgcn_fence(__ATOMIC_ACQUIRE, \"agent\");",
        ),
        Bug::new(
            "polls at agent scope",
            COMBINE,
            "__ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM",
            "__ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT",
        )
        .caught_by("the scope of one of them"),
        Bug::new(
            "lane 0 posts before the group's stores",
            COMBINE,
            "group.sync();\n    if (group.lane == 0) store_release_system",
            "if (group.lane == 0) store_release_system",
        ),
        Bug::new(
            "lanes post before the group's stores",
            DISPATCH,
            "group.sync();\n    for (u32 turn = group.lane;",
            "for (u32 turn = group.lane;",
        ),
        Bug::new(
            "lane 0 vouches for other warps",
            COMBINE,
            "stores_done();\n    group.sync();",
            "group.sync();",
        ),
    ];
    all.into_iter().map(Bug::in_hip).collect()
}

/// What is wrong about the schedules in which the bug was not caught.
fn missed(bug: &Bug, host: &MoeHost) -> Option<String> {
    let program = Program::new(&bug.plant(&host.texts), Mode::Checked);
    let runs = host.job.run(&program, SEEDS);
    let wrong: Vec<Vec<String>> = runs.iter().map(|run| host.wrong(run)).collect();
    let caught = wrong.iter().filter(|w| w.iter().any(|one| one.contains(bug.caught))).count();
    println!("{:?}, {}: {caught} of {}", bug.language, bug.name, wrong.len());
    (caught < wrong.len())
        .then(|| format!("{:?}, {}: {caught} of {}: {wrong:#?}", bug.language, bug.name, wrong.len()))
}

fn all_are_caught(language: Language, bugs: Vec<Bug>) {
    let host = host(language);
    host.run_clean(&host.program(Mode::Checked), SEEDS);
    let missed: Vec<String> = bugs.par_iter().filter_map(|bug| missed(bug, &host)).collect();
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
