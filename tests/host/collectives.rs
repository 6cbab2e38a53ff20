//! Collectives as emitted text: three rounds back to back on the CPU, in both languages, against plain Rust.

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter,
};
use peerwarp::harness::verdict::Verdict;
use peerwarp::harness::workload::{Turn, Workload};

use crate::build::{Language, Mode, Program, Text};
use crate::job::Job;
use crate::moe::{WAIT_BUDGET_NS, traced};

const ROUNDS: u32 = 3;

#[track_caller]
fn run<F: Workload>(settings: &str) {
    run_as::<F>(&Language::ALL, settings);
}

#[track_caller]
fn run_as<F: Workload>(languages: &[Language], settings: &str) {
    let settings: Vec<(&str, &str)> = settings.split(' ').map(|s| s.split_once('=').unwrap()).collect();
    let config = F::from_settings(&settings).unwrap_or_else(|e| panic!("{settings:?}: {e}"));
    for &language in languages {
        let emitted = traced(&config, language, None);
        let mut job = Job::new(language, config.ranks());
        job.buffers_of(&emitted.kernel, str::to_owned);
        let no_scalars = |name: &str| panic!("no collective has a scalar `{name}`");
        let launch = job.launch(&emitted, str::to_owned, no_scalars, WAIT_BUDGET_NS);
        let turns = |rank| (0..ROUNDS).map(move |round| Turn { seed: 7, rank, round });
        for rank in 0..config.ranks() {
            job.write(rank, "epoch", 0, &[u32::MAX - 1, 0]);
            for turn in turns(rank) {
                config.inputs(turn).iter().for_each(|c| job.write(rank, &c.buffer, c.at, &c.bytes));
                job.run_on(rank, launch);
                for e in config.expected(turn) {
                    job.read(rank, &e.buffer, e.at..e.at + e.bytes.len() as u64);
                }
            }
        }
        let program = Program::new(&[Text::of(&emitted.source, language)], Mode::Checked);
        for run in job.run(&program, 0..2) {
            let mut verdict = Verdict::default();
            for (rank, mut read) in (0..).zip(run.read.iter().map(Vec::as_slice)) {
                for expected in turns(rank).flat_map(|turn| config.expected(turn)) {
                    let (found, rest) = read.split_at(expected.bytes.len().min(read.len()));
                    expected.compare(found, &format!("rank {rank}"), &mut verdict);
                    read = rest;
                }
            }
            let name = &emitted.source.entry;
            assert!(run.findings.is_empty(), "{name}, seed {}:\n{}", run.seed, run.findings.join("\n"));
            assert!(verdict.ok() && verdict.compared > 0, "{name}, seed {}: {verdict:?}", run.seed);
        }
    }
}

#[test]
fn all_reduce() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256";
    run::<AllReduce>(&format!("{key} dtype=bf16 algorithm=one-shot senders=4 blocks=2"));
    run::<AllReduce>(&format!("{key} dtype=fp16 algorithm=one-shot senders=0 blocks=2 in_place=true op=max"));
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=two-shot senders=0 blocks=1"));
    run::<AllReduce>(&format!(
        "{key} dtype=bf16 algorithm=two-shot senders=0 blocks=2 protocol=flags op=min"
    ));
}

#[test]
fn by_windows() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 protocol=flags blocks=2";
    run::<AllReduce>(&format!("{key} dtype=bf16 algorithm=pull"));
    run::<AllReduce>(&format!("{key} dtype=f32 algorithm=pull-two-shot in_place=true"));
    run::<AllGather>(&format!("{key} dtype=fp16 algorithm=pull"));
}

/// Instructions that AMD's GPUs do not have.
#[test]
fn by_the_switch() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 protocol=flags blocks=2 algorithm=multimem";
    for rest in ["dtype=bf16", "dtype=f32 in_place=true", "dtype=fp16 op=max", "dtype=bf16 op=min"] {
        run_as::<AllReduce>(&[Language::Cuda], &format!("{key} {rest}"));
    }
}

#[test]
fn all_reduce_with_a_norm_behind_it() {
    let key = "elements=816 ranks=3 dtype=bf16 hook=rms-norm hidden=136 warps=2";
    run::<AllReduce>(&format!("{key} algorithm=one-shot blocks=2"));
    run::<AllReduce>(&format!("{key} algorithm=two-shot blocks=1"));
}

#[test]
fn others() {
    let key = "elements=1031 ranks=3 warps=2 chunk=256 blocks=2";
    for (protocol, in_place) in [("packets", false), ("packets", true), ("flags", false)] {
        let key = format!("{key} protocol={protocol} in_place={in_place}");
        run::<ReduceScatter>(&format!("{key} dtype=f32"));
        run::<AllGather>(&format!("{key} dtype=bf16"));
        run::<AllToAll>(&format!("{key} dtype=fp16"));
        run::<Broadcast>(&format!("{key} dtype=bf16 root=1"));
        run::<RaggedAllToAll>(&format!("{key} dtype=bf16").replace("elements", "capacity"));
    }
}
