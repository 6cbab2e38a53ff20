//! Kernels over nodes in four processes that play two: near by memory that both processes of a node map, far over libfabric.

use std::fs;
use std::time::Duration;

use peerwarp::families::collectives::AllReduceNodes;
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::suite;
use peerwarp::harness::verdict::Verdict;
use peerwarp::harness::workload::{Inputs, Problem};
use peerwarp::prelude::*;

use super::parent::Processes;
use super::rank::Task;
use super::{SHM, TCP, memory, result, there};
use crate::build::{Language, Mode, Program};
use crate::problem::{compare, job_of};

const RANKS: u16 = 4;
/// Ranks of a node.
const LOCAL: u16 = 2;
const ROUNDS: u32 = 1000;

/// Runs a problem of two nodes with two ranks each, a process a rank, and compares what all its rounds leave.
fn run(problem: &dyn Problem, (provider, language): (&'static str, Language)) {
    if !there::library_is_there() {
        return;
    }
    let budget = Duration::from_secs(10);
    let (job, texts) = job_of(problem, language, 2 * budget.as_nanos() as u64);
    let program = Program::new(&texts, Mode::Fast).path;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("job");
    let engine = job.write_for_processes(&path, 2);
    let task = |rank: u16| {
        let first = rank / LOCAL * LOCAL;
        let others = (first..first + LOCAL).filter(|other| *other != rank);
        let files = [rank].into_iter().chain(others).map(|of| (of, memory(&folder, of))).collect();
        Task {
            rank,
            ranks: RANKS,
            provider: provider.into(),
            budget,
            program: program.clone(),
            job: path.clone(),
            result: result(&folder, rank),
            files,
            engine: engine.clone(),
            tells_at: None,
        }
    };
    let tasks = (0..RANKS).map(|rank| [task(rank).variable()]);
    let mut processes = Processes::start("processes::child", tasks);
    processes.tell_all("go");
    processes.hear_all("ended");
    processes.tell_all("drain");
    processes.hear_all("ran ");
    processes.tell_all("close");
    processes.hear_all("closed ");
    processes.end(&(0..RANKS).collect::<Vec<_>>());
    let mut verdict = Verdict::default();
    for rank in 0..RANKS {
        let run = job.parse(&fs::read(result(&folder, rank)).unwrap()).swap_remove(0);
        assert_eq!(run.findings, Vec::<String>::new(), "rank {rank} over {provider}");
        compare(problem, rank.into(), &run.read[usize::from(rank)], &mut verdict);
    }
    assert!(verdict.ok() && verdict.compared > u64::from(ROUNDS), "{provider}, {language:?}: {verdict:?}");
}

fn moe() -> MoeRounds {
    let shape = MoeShape { hidden: 16, experts: 8, topk: 2, tokens: 2, ranks: 4, dtype: RowDtype::Bf16 };
    let key = MoeKey { nodes: 2, hook: Hook::Expert, layout: Layout::ExpertMajor, ..MoeKey::new(shape) };
    let mut tuning = key.defaults().unwrap().small().with_protocol(Protocol::Flags);
    (tuning.plan.dispatch.send_blocks, tuning.plan.dispatch.recv_blocks) = (1, 1);
    (tuning.plan.combine.send_blocks, tuning.plan.combine.recv_blocks) = (1, 1);
    let tokens = |round: u32| [2, round % 3, 1, (round + 1) % 3];
    let routings = (0..ROUNDS).map(|round| Routing::uniform(&shape, &tokens(round), round.into()));
    let problem = MoeProblem::with_rounds(shape, routings.collect(), 3).unwrap();
    MoeRounds::new(&problem, &tuning, ROUNDS).unwrap()
}

#[test]
fn moe_is_right_over_tcp() {
    run(&moe(), TCP);
}

#[test]
fn moe_is_right_over_shared_memory() {
    run(&moe(), SHM);
}

fn all_reduce() -> Box<dyn Problem> {
    let key =
        "elements=130 ranks=4 nodes=2 dtype=f32 levels=node-first protocol=flags warps=4 chunk=256 blocks=1";
    let config = AllReduceNodes::from_text(key).unwrap();
    let inputs = Inputs { seed: 1, rounds: ROUNDS, ..Inputs::default() };
    suite::of::<AllReduceNodes>().problem(&[config.into_variant()], &inputs).unwrap()
}

#[test]
fn an_all_reduce_is_right_over_tcp() {
    run(&*all_reduce(), TCP);
}

#[test]
fn an_all_reduce_is_right_over_shared_memory() {
    run(&*all_reduce(), SHM);
}
