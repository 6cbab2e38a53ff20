//! Problems of several launches as emitted text: rounds back to back on the CPU, in both languages, against plain Rust.

use std::collections::BTreeMap;

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
    Language::ALL.iter().for_each(|&language| run_in(problem, language, 0));
}

/// Runs it where some ranks, a mask of them, are not active.
#[track_caller]
pub fn run_without(problem: &dyn Problem, inactive: u64) {
    assert!(!problem.host_writes(), "{}", problem.title());
    let problem = problem.without(inactive).unwrap_or_else(|| panic!("{}", problem.title()));
    Language::ALL.iter().for_each(|&language| run_in(&*problem, language, inactive));
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

/// The rounds of a problem on every rank, with a look at what each leaves, and the sources of its launches.
pub fn job_of(problem: &dyn Problem, language: Language, wait_budget_ns: u64) -> (Job, Vec<Text>) {
    job_without(problem, language, wait_budget_ns, 0)
}

/// The same where some ranks, a mask of them, are not active.
fn job_without(
    problem: &dyn Problem,
    language: Language,
    wait_budget_ns: u64,
    inactive: u64,
) -> (Job, Vec<Text>) {
    let launches = problem.launches();
    let emitted: Vec<Emitted> = launches.iter().map(|l| traced(&*l.variant, language)).collect();
    let mut job = Job::without(language, problem.ranks(), inactive);
    for (launch, emitted) in launches.iter().zip(&emitted) {
        job.buffers_of(&emitted.kernel, |name| launch.buffer(name).to_owned());
    }
    // A launch for each choice of the numbers that it is passed.
    let mut known: BTreeMap<(usize, Vec<Vec<u8>>), usize> = BTreeMap::new();
    for rank in (0..problem.ranks()).filter(|rank| inactive >> rank & 1 == 0) {
        for (launch, emitted) in launches.iter().zip(&emitted) {
            let words = emitted.kernel.params.iter().filter(|p| p.kind == ParamKind::EpochWord);
            words.for_each(|p| job.write(rank, launch.buffer(&p.name), 0, &[u32::MAX - 1, 0]));
        }
        for round in 0..problem.rounds() {
            problem.inputs(rank, round).iter().for_each(|c| job.write(rank, &c.buffer, c.at, &c.bytes));
            let numbers = problem.numbers(rank, round);
            for (at, (launch, emitted)) in launches.iter().zip(&emitted).enumerate() {
                let name = |param: &str| launch.buffer(param).to_owned();
                let number = |param: &str| bytes_of(&numbers, launch.buffer(param));
                let scalars = emitted.kernel.params.iter().filter(|p| p.kind == ParamKind::Scalar);
                let passed = scalars.map(|p| number(&p.name)).collect();
                let new = || job.launch(emitted, name, number, wait_budget_ns);
                let launch = *known.entry((at, passed)).or_insert_with(new);
                job.run_on(rank, launch);
            }
            for e in problem.expected(rank, round) {
                job.read(rank, &e.buffer, e.at..e.at + e.bytes.len() as u64);
            }
        }
    }
    let texts = emitted.iter().map(|e| Text::of(&e.source, language)).collect();
    (job, texts)
}

/// How what a rank has read compares with what its rounds have to leave.
pub fn compare(problem: &dyn Problem, rank: u32, mut read: &[u8], verdict: &mut Verdict) {
    for round in 0..problem.rounds() {
        for expected in problem.expected(rank, round) {
            let (found, rest) = read.split_at(expected.bytes.len().min(read.len()));
            problem.compare(rank, round, &expected, found, verdict);
            read = rest;
        }
    }
}

#[track_caller]
fn run_in(problem: &dyn Problem, language: Language, inactive: u64) {
    let (job, texts) = job_without(problem, language, WAIT_BUDGET_NS, inactive);
    for run in job.run(&Program::new(&texts, Mode::Checked), 0..2) {
        let mut verdict = Verdict::default();
        for (rank, read) in (0..).zip(&run.read).filter(|(rank, _)| inactive >> rank & 1 == 0) {
            compare(problem, rank, read, &mut verdict);
        }
        let (title, seed) = (problem.title(), run.seed);
        assert_eq!(run.findings, Vec::<String>::new(), "{language:?}, {title}, seed {seed}");
        assert!(verdict.ok() && verdict.compared > 0, "{language:?}, {title}, seed {seed}: {verdict:?}");
    }
}
