//! Far channels as emitted, in processes of their own: each rank is a program that runs its kernels, and a proxy that carries what they
//! put over libfabric.

mod all_reduce;
#[path = "../../../fabric/tests/processes/lines.rs"]
mod lines;
mod nodes;
#[path = "../../../fabric/tests/processes/parent.rs"]
mod parent;
mod rank;
#[path = "../../../fabric/tests/there/mod.rs"]
mod there;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use peerwarp::codegen::ir::{FarPart, Kernel, ParamKind, verify};
use peerwarp::codegen::print::{EmitInfo, emit};
use peerwarp_fabric::library_version;
use rustix::process::{Signal, kill_process};

use crate::build::{Language, Mode, Program, Text};
use crate::job::{Emitted, Job, Run, STATUS};
use crate::waits::Status;
use all_reduce::{PART, RANKS, input, kernel, output};
use parent::Processes;
use rank::Task;

/// Providers, each with the language that is run over it.
const TCP: (&str, Language) = ("tcp", Language::Cuda);
const SHM: (&str, Language) = ("shm", Language::Hip);
const ROUNDS: u32 = 1000;
/// What a survivor may need to end on a machine that does other things, beyond the budget of its waits.
const SLACK: Duration = Duration::from_secs(4);
const OUT_BYTES: usize = (RANKS * PART) as usize * 4;

/// Launches on every rank, each with an input of its own, and a look at what it leaves and at the record of waits.
fn job(language: Language, rounds: u32, wait_budget: Duration) -> (Job, Text, Kernel) {
    let target = language.target();
    let kernel = verify(kernel(target.warp_size())).unwrap();
    let source = emit(&kernel, target, &EmitInfo { command: "a test".into() }).unwrap();
    let text = Text::of(&source, language);
    let emitted = Emitted { kernel: kernel.into_kernel(), source };
    let mut job = Job::new(language, RANKS);
    job.buffers_of(&emitted.kernel, str::to_owned);
    let budget = wait_budget.as_nanos() as u64;
    let run = job.launch(&emitted, str::to_owned, |name| panic!("no scalar `{name}`"), budget);
    for rank in 0..RANKS {
        for round in 0..rounds {
            job.write(rank, "x", 0, &input(round, rank));
            job.run_on(rank, run);
            job.read(rank, "out", 0..OUT_BYTES as u64);
        }
        job.read(rank, STATUS, 0..size_of::<Status>() as u64);
    }
    (job, text, emitted.kernel)
}

/// A world of processes, with a folder for what they read and write.
struct World {
    job: Job,
    kernel: Kernel,
    processes: Processes,
    folder: tempfile::TempDir,
}

/// How a world is run.
struct Plan {
    provider: &'static str,
    language: Language,
    rounds: u32,
    /// For a peer to answer a proxy. Kernels wait for twice as long, so that the proxy names a dead rank first.
    budget: Duration,
    /// The rank that says so when its first ring has given so many commands.
    victim: Option<(u16, u64)>,
}

impl Plan {
    fn new((provider, language): (&'static str, Language)) -> Plan {
        Plan { provider, language, rounds: ROUNDS, budget: Duration::from_secs(10), victim: None }
    }
}

impl World {
    /// Starts all ranks, with a text that may be edited.
    fn start(plan: &Plan, edited: impl FnOnce(Text) -> Text) -> World {
        let (job, text, kernel) = job(plan.language, plan.rounds, plan.budget * 2);
        let program = Program::new(&[edited(text)], Mode::Fast).path;
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = folder.path().join("job");
        // An even seed slows no rank down: the system does.
        let engine = job.write_for_processes(&path, 2);
        let task = |rank| Task {
            rank,
            ranks: RANKS as u16,
            provider: plan.provider.into(),
            budget: plan.budget,
            program: program.clone(),
            job: path.clone(),
            result: result(&folder, rank),
            files: vec![(rank, memory(&folder, rank))],
            engine: engine.clone(),
            tells_at: plan.victim.filter(|(victim, _)| *victim == rank).map(|(_, commands)| commands),
        };
        let tasks = (0..RANKS as u16).map(|rank| [task(rank).variable()]);
        let mut processes = Processes::start("processes::child", tasks);
        processes.tell_all("go");
        World { job, kernel, processes, folder }
    }

    /// Waits until all ranks have ended well. By rank, how many rounds left what they should, up to the first that did not.
    fn end(mut self) -> Vec<u32> {
        self.processes.hear_all("ended");
        self.processes.tell_all("drain");
        let sent = self.processes.hear_all("ran ");
        self.processes.tell_all("close");
        let closed = self.processes.hear_all("closed ");
        let [sent, puts, arrivals] = [(&sent, 0), (&closed, 0), (&closed, 1)].map(|(lines, at)| {
            let number = |line: &String| line.split(' ').nth(at).unwrap().parse::<u64>().unwrap();
            lines.iter().map(number).sum::<u64>()
        });
        // What kernels sent is what was delivered, and what was counted.
        assert_eq!((sent, puts), (puts, arrivals));
        let ranks: Vec<u16> = (0..RANKS as u16).collect();
        self.processes.end(&ranks);
        let whole = |rank: &u16| {
            let (run, out, status) = self.left(*rank);
            assert_eq!((run.findings, status.filled), (vec![], 0), "rank {rank}");
            whole(&out)
        };
        ranks.iter().map(whole).collect()
    }

    /// What a rank's program has left, with what it has read and its record of waits.
    fn left(&self, rank: u16) -> (Run, Vec<u8>, Status) {
        let bytes = fs::read(result(&self.folder, rank)).unwrap();
        let run = self.job.parse(&bytes).swap_remove(0);
        let read = &run.read[usize::from(rank)];
        let (out, status) = read.split_at(read.len() - size_of::<Status>());
        let (out, status) = (out.to_vec(), bytemuck::pod_read_unaligned(status));
        (run, out, status)
    }
}

fn result(folder: &tempfile::TempDir, rank: u16) -> PathBuf {
    folder.path().join(format!("result.{rank}"))
}

/// What a rank shares with its program.
fn memory(folder: &tempfile::TempDir, rank: u16) -> PathBuf {
    folder.path().join(format!("memory.{rank}"))
}

/// Rounds that left what they should, bit for bit, up to the first that did not.
fn whole(out: &[u8]) -> u32 {
    let is_whole = |(round, out): &(u32, &[u8])| *out == bytemuck::cast_slice::<_, u8>(&output(*round));
    (0..).zip(out.chunks(OUT_BYTES)).take_while(is_whole).count() as u32
}

fn all_ranks_sum_the_same(world: (&'static str, Language)) {
    if there::library_is_there() {
        assert_eq!(World::start(&Plan::new(world), |text| text).end(), [ROUNDS; RANKS as usize]);
    }
}

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    if let Some(task) = Task::here() {
        rank::run(&task);
    }
}

#[test]
fn all_ranks_sum_the_same_over_tcp() {
    all_ranks_sum_the_same(TCP);
}

#[test]
fn all_ranks_sum_the_same_over_shared_memory() {
    all_ranks_sum_the_same(SHM);
}

#[test]
fn a_kernel_that_does_not_wait_sums_something_else() {
    if !there::library_is_there() {
        return;
    }
    for world in [TCP, SHM] {
        let wait = "all = poll_proxy(args, arrived + counter, counter, peer, expected, site);";
        let plan = Plan { rounds: 20, ..Plan::new(world) };
        let whole = World::start(&plan, |text| text.edited(wait, "", 1)).end();
        assert!(whole.iter().any(|rounds| *rounds < 20), "{world:?}: {whole:?}");
    }
}

/// The same kernel in one process, where every access is checked.
#[test]
fn the_kernel_is_in_order() {
    for language in Language::ALL {
        let (job, text, _) = job(language, 4, Duration::from_secs(2));
        let program = Program::new(&[text], Mode::Checked);
        for run in job.run(&program, (0..3).chain((0..3).map(|seed| seed + (1 << 32)))) {
            assert_eq!(run.findings, Vec::<String>::new(), "{language:?}, seed {}", run.seed);
            let expected: Vec<f32> = (0..4).flat_map(output).collect();
            for read in &run.read {
                assert_eq!(read[..4 * OUT_BYTES], *bytemuck::cast_slice::<_, u8>(&expected), "{language:?}");
            }
        }
    }
}

/// Whether a dead rank may take other ranks' proxies with it, so that ranks name each other: as in the tests of `fabric/`.
fn spins(provider: &str) -> bool {
    provider == "shm" && library_version().unwrap() < (1, 18)
}

/// A rank's proxy is killed, and its program with it. Every other rank ends within the budget of waits: its record says for whom it
/// waited, and its proxy names the dead rank.
fn a_dead_rank_is_named((provider, language): (&'static str, Language)) {
    if !there::library_is_there() {
        return;
    }
    let victim = 2;
    let budget = Duration::from_secs(2);
    let plan = Plan { budget, victim: Some((victim, 200)), ..Plan::new((provider, language)) };
    let mut world = World::start(&plan, |text| text);
    world.processes.hear(&[victim], "reached");
    kill_process(world.processes.pid(victim), Signal::KILL).unwrap();
    let start = Instant::now();
    let survivors: Vec<u16> = (0..RANKS as u16).filter(|rank| *rank != victim).collect();
    let elapsed = world.processes.hear(&survivors, "ended").1 - start;
    assert!(elapsed < 2 * budget + SLACK, "ended after {elapsed:?} over {provider}");
    world.processes.tell_all("fault");
    let (said, _) = world.processes.hear(&survivors, "fault ");
    for (&rank, said) in survivors.iter().zip(said) {
        let (_, faults) = said.split_once(" | ").unwrap();
        let named = |fault: &str| fault.contains(&format!("rank {victim}"));
        assert!(spins(provider) || faults.split(" | ").all(named), "rank {rank} over {provider}: {said}");
        let (run, out, status) = world.left(rank);
        assert_eq!(run.findings, Vec::<String>::new());
        waited_for_another(&world.kernel, rank.into(), status);
        // What was there before is whole.
        assert!((10..ROUNDS).contains(&whole(&out)), "{} rounds of rank {rank}, {provider}", whole(&out));
    }
    world.processes.tell_all("close");
    world.processes.end(&survivors);
}

/// The record is of a wait that had to end so. Which of several it is depends on who gives up first: the dead rank keeps others from
/// sending, too.
fn waited_for_another(kernel: &Kernel, rank: u32, status: Status) {
    assert_eq!((status.aborted, status.filled, status.rank), (1 + rank, 1, rank), "{status:?}");
    assert!((status.seen.wrapping_sub(status.expected) as i32) < 0, "rank {rank}: {status:?}");
    let ParamKind::Far(part) = kernel.params[status.flag as usize].kind else { panic!("{status:?}") };
    // The bit says that it counts ranks of all nodes.
    let peer = status.peer ^ 1 << 30;
    match part {
        // For a message, or for room in a ring.
        FarPart::Counts | FarPart::Inbox => assert!(peer < RANKS, "{status:?}"),
        // For its own proxy, which delivers commands in their order.
        FarPart::Outbox => assert_eq!(peer, rank, "{status:?}"),
    }
}

#[test]
fn a_dead_rank_is_named_over_tcp() {
    a_dead_rank_is_named(TCP);
}

#[test]
fn a_dead_rank_is_named_over_shared_memory() {
    a_dead_rank_is_named(SHM);
}
