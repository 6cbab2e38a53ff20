//! Problems of several launches as emitted text: rounds back to back on the CPU, in both languages, against plain Rust.

use peerwarp::codegen::family::DynKernel;
use peerwarp::codegen::ir::{Const, ParamKind, verify};
use peerwarp::codegen::print::{EmitInfo, emit};
use peerwarp::harness::verdict::Verdict;
use peerwarp::harness::workload::Problem;

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, WAIT_BUDGET_NS};

/// Runs a problem without steps of the host that later launches need, in both languages.
#[track_caller]
pub fn run(problem: &dyn Problem) {
    assert!(!problem.host_writes(), "{}", problem.title());
    Language::ALL.iter().for_each(|&language| run_in(problem, language));
}

fn traced(variant: &dyn DynKernel, language: Language) -> Emitted {
    let (target, name) = (language.target(), variant.variant_name());
    let kernel = variant.trace(target.warp_size()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let kernel = verify(kernel).unwrap_or_else(|e| panic!("{name}: {e}"));
    let info = EmitInfo { command: format!("peerwarp show {name} --target {target}") };
    let source = emit(&kernel, target, &info).unwrap_or_else(|e| panic!("{name}: {e}"));
    Emitted { kernel: kernel.into_kernel(), source }
}

/// The bytes of a number that a launch is passed.
fn bytes_of(numbers: &[(String, Const)], name: &str) -> Vec<u8> {
    let (_, value) =
        numbers.iter().find(|(own, _)| own == name).unwrap_or_else(|| panic!("no number `{name}`"));
    match *value {
        Const::U32(value) => value.to_le_bytes().into(),
        Const::I32(value) => value.to_le_bytes().into(),
        other => panic!("a number `{name}` of another type: {other:?}"),
    }
}

#[track_caller]
fn run_in(problem: &dyn Problem, language: Language) {
    let launches = problem.launches();
    let emitted: Vec<Emitted> = launches.iter().map(|l| traced(&*l.variant, language)).collect();
    let mut job = Job::new(language, problem.ranks());
    for (launch, emitted) in launches.iter().zip(&emitted) {
        job.buffers_of(&emitted.kernel, |name| launch.buffer(name).to_owned());
    }
    for rank in 0..problem.ranks() {
        for (launch, emitted) in launches.iter().zip(&emitted) {
            let words = emitted.kernel.params.iter().filter(|p| p.kind == ParamKind::EpochWord);
            words.for_each(|p| job.write(rank, launch.buffer(&p.name), 0, &[u32::MAX - 1, 0]));
        }
        for round in 0..problem.rounds() {
            problem.inputs(rank, round).iter().for_each(|c| job.write(rank, &c.buffer, c.at, &c.bytes));
            let numbers = problem.numbers(rank, round);
            for (launch, emitted) in launches.iter().zip(&emitted) {
                let name = |param: &str| launch.buffer(param).to_owned();
                let number = |param: &str| bytes_of(&numbers, launch.buffer(param));
                let launch = job.launch(emitted, name, number, WAIT_BUDGET_NS);
                job.run_on(rank, launch);
            }
            for e in problem.expected(rank, round) {
                job.read(rank, &e.buffer, e.at..e.at + e.bytes.len() as u64);
            }
        }
    }
    let texts: Vec<Text> = emitted.iter().map(|e| Text::of(&e.source, language)).collect();
    for run in job.run(&Program::new(&texts, Mode::Checked), 0..2) {
        let mut verdict = Verdict::default();
        for (rank, mut read) in (0..).zip(run.read.iter().map(Vec::as_slice)) {
            for round in 0..problem.rounds() {
                for expected in problem.expected(rank, round) {
                    let (found, rest) = read.split_at(expected.bytes.len().min(read.len()));
                    problem.compare(rank, round, &expected, found, &mut verdict);
                    read = rest;
                }
            }
        }
        let (title, seed) = (problem.title(), run.seed);
        assert_eq!(run.findings, Vec::<String>::new(), "{language:?}, {title}, seed {seed}");
        assert!(verdict.ok() && verdict.compared > 0, "{language:?}, {title}, seed {seed}: {verdict:?}");
    }
}
