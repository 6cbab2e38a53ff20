//! Families with a workload as emitted text: three rounds back to back on the CPU, in both languages, against plain Rust.

use std::collections::BTreeMap;
use std::ops::Range;

use peerwarp::harness::verdict::Verdict;
use peerwarp::harness::workload::{Turn, Workload};
use peerwarp_codegen::ir::{Const, Kernel, MatrixOp, OpKind, ParamKind};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Job, Run, WAIT_BUDGET_NS};
use crate::moe::traced;

const ROUNDS: u32 = 3;

#[track_caller]
pub fn run<F: Workload>(settings: &str) {
    run_as::<F>(&Language::ALL, settings);
}

#[track_caller]
pub fn run_as<F: Workload>(languages: &[Language], settings: &str) {
    for &language in languages {
        let as_it_is = |text: Text| {
            let multiplies = text.text.contains("dot_") || text.text.contains("Ring<");
            let in_memory = ["tcgen05.mma", "mma.sync"].map(|name| text.text.contains(name));
            assert!(
                language != Language::Blackwell || !multiplies || in_memory == [true, false],
                "{settings}"
            );
            text
        };
        for outcome in outcomes::<F>(language, settings, 0..2, as_it_is) {
            assert!(outcome.wrong.is_empty(), "{language:?}, {settings}:\n{}", outcome.wrong);
            assert!(outcome.compared > 0, "{language:?}, {settings}: nothing was compared");
        }
    }
}

/// What came of a run.
pub struct Outcome {
    /// Findings and results that differ, in words; nothing if all is well.
    pub wrong: String,
    /// Elements that were looked at.
    pub compared: u64,
}

/// Runs the emitted text of a configuration, after `edit`.
#[track_caller]
pub fn outcomes<F: Workload>(
    language: Language,
    settings: &str,
    seeds: Range<u64>,
    edit: impl FnOnce(Text) -> Text,
) -> Vec<Outcome> {
    outcomes_in::<F>(Mode::Checked, language, settings, seeds, edit)
}

/// Matrices, and their bytes, of which products may read rows that no kernel has written: these hold no numbers.
fn loose(kernel: &Kernel) -> Vec<(String, usize)> {
    let mut found = BTreeMap::new();
    for op in &kernel.ops {
        let OpKind::Matrix(MatrixOp::Dot(dot)) = &op.kind else { continue };
        for rows in [&dot.a, &dot.b].into_iter().filter(|rows| rows.loose) {
            let param = &kernel.params[rows.place.param().expect("a matrix in memory").index()];
            let own =
                param.own.then(|| (param.name.clone(), param.len as usize * param.dtype.bytes() as usize));
            found.extend(own);
        }
    }
    found.into_iter().collect()
}

/// The same, with accesses checked or not.
#[track_caller]
pub fn outcomes_in<F: Workload>(
    mode: Mode,
    language: Language,
    settings: &str,
    seeds: Range<u64>,
    edit: impl FnOnce(Text) -> Text,
) -> Vec<Outcome> {
    let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let emitted = traced(&config, language, None);
    let mut job = Job::new(language, config.ranks());
    job.buffers_of(&emitted.kernel, str::to_owned);
    let launch_of = |job: &mut Job, turn: Turn| {
        let numbers = config.numbers(turn);
        let scalar = |name: &str| match numbers.iter().find(|(known, _)| known == name) {
            Some((_, Const::U32(n))) => n.to_le_bytes().to_vec(),
            other => panic!("no value for the scalar `{name}`: {other:?}"),
        };
        job.launch(&emitted, str::to_owned, scalar, WAIT_BUDGET_NS)
    };
    let by_value = emitted.kernel.params.iter().any(|p| p.kind == ParamKind::Scalar);
    let one = (!by_value).then(|| launch_of(&mut job, Turn { seed: 7, rank: 0, round: 0 }));
    let turns = |rank| (0..ROUNDS).map(move |round| Turn { seed: 7, rank, round });
    for rank in 0..config.ranks() {
        if emitted.kernel.params.iter().any(|p| p.kind == ParamKind::EpochWord) {
            job.write(rank, "epoch", 0, &[u32::MAX - 1, 0]);
        }
        for (name, bytes) in loose(&emitted.kernel) {
            job.write(rank, &name, 0, &vec![0xffu8; bytes]);
        }
        for turn in turns(rank) {
            config.inputs(turn).iter().for_each(|c| job.write(rank, &c.buffer, c.at, &c.bytes));
            let launch = one.unwrap_or_else(|| launch_of(&mut job, turn));
            job.run_on(rank, launch);
            for e in config.expected(turn) {
                job.read(rank, &e.buffer, e.at..e.at + e.bytes.len() as u64);
            }
        }
    }
    let program = Program::new(&[edit(Text::of(&emitted.source, language))], mode);
    let outcome = |run: Run| {
        let mut verdict = Verdict::default();
        for (rank, mut read) in (0..).zip(run.read.iter().map(Vec::as_slice)) {
            for expected in turns(rank).flat_map(|turn| config.expected(turn)) {
                let (found, rest) = read.split_at(expected.bytes.len().min(read.len()));
                expected.compare(found, &format!("rank {rank}"), &mut verdict);
                read = rest;
            }
        }
        let differs = (!verdict.ok()).then(|| format!("seed {}: {verdict:?}", run.seed));
        Outcome {
            wrong: run.findings.into_iter().chain(differs).collect::<Vec<_>>().join("\n"),
            compared: verdict.compared,
        }
    };
    job.run(&program, seeds).into_iter().map(outcome).collect()
}
