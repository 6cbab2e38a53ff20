//! Worlds that go on without a rank, and graphs that were captured before it left. `PEERWARP_EPISODES` says how many processes are killed,
//! stopped, slow and replaced each, in worlds of two ranks, and of four where there are two GPUs.

use std::io::Write;
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::families::moe::kernels::{Layout, RoundTrip};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::verdict::Verdict;
use peerwarp::harness::workload::{Inputs, Problem, Workload};
use peerwarp::runtime::gpu::Gpu;
use peerwarp::runtime::handles::Graph;
use peerwarp::runtime::{RuntimeError, World};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::endurance::asked;
use super::processes::{await_ready, free_address, options_of, process, rank_0};
use super::{SHORT, gpus, jit, options, report, shape, two};

/// Times that a process is killed, stopped, slow or replaced.
fn episodes() -> u32 {
    asked("PEERWARP_EPISODES", 3)
}

/// How long the first right round may take beyond the budget of a wait, where nothing else runs.
const PROMPT: f64 = 0.1;

/// Graphs that are launched without the rank.
const REPLAYS: u32 = 51;

/// How often all rounds and so many graphs run while a process that was stopped comes back.
const LOOPS: u32 = 20;

/// MoE in one launch, of all ranks of a world.
fn session(world: &Arc<World>) -> GpuSession {
    let shape = MoeShape { ranks: world.ranks(), ..shape(1024, 8, RowDtype::Bf16) };
    let tokens: Vec<u32> = [8, 5].into_iter().cycle().take(world.ranks() as usize).collect();
    let routings = (0..3).map(|seed| Routing::uniform(&shape, &tokens, seed)).collect();
    let problem = MoeProblem::with_rounds(shape, routings, 5).unwrap();
    let rounds = MoeRounds::in_one_launch(&problem, &RoundTrip::defaults(&shape).unwrap(), 3).unwrap();
    GpuSession::new(Arc::new(rounds), world, &jit()).unwrap()
}

/// A process that is killed, or stopped and comes back when the others have gone on.
pub fn as_the_rank_that_leaves(world: &Arc<World>) {
    let mut session = session(world);
    let (verdict, _graphs) = session.run_before(true).unwrap();
    assert!(verdict.ok(), "{verdict:?}");
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    // Its kernels store to memory that the others had, and wait in vain.
    let gave_up = session.run_before(false).unwrap_err();
    assert!(matches!(gave_up, RuntimeError::Aborted(_)), "{gave_up}");
    let refused = world.go_on().unwrap_err();
    assert!(matches!(refused, RuntimeError::Inactive { .. }), "{refused}");
    println!("gone");
}

/// A process that takes the place of one that was killed, and runs with the others until it hears no more of them.
pub fn as_the_rank_that_comes(world: &Arc<World>) {
    let mut session = session(world);
    world.replace(world.members()[0].rank).unwrap();
    let (verdict, graphs) = session.run_before(true).unwrap();
    assert!(verdict.ok(), "{verdict:?}");
    run_on(&mut session, &graphs);
    println!("done");
}

/// A process that goes on without rank 1; and then with a process in its place, if one comes.
pub fn as_a_rank_that_stays(world: &Arc<World>, is_replaced: bool) {
    let mut session = session(world);
    let (verdict, graphs) = session.run_before(true).unwrap();
    assert!(verdict.ok(), "{verdict:?}");
    println!("ready");
    assert!(session.run_before(false).is_err());
    go_on(world, &mut session);
    if is_replaced {
        world.replace(1).unwrap();
        right(&session.run_after(&graphs, 1).unwrap());
    }
    run_on(&mut session, &graphs);
    println!("done");
}

/// A process whose launches come late, by less than waits may last.
pub fn as_a_slow_rank(world: &Arc<World>) {
    let mut session = session(world);
    assert!(session.run_before(true).unwrap().0.ok());
    println!("ready");
    for _ in 0..episodes() {
        std::thread::sleep(SHORT / 3);
        right(&session.run_before(false).unwrap().0);
    }
    println!("done");
}

#[track_caller]
fn right(verdict: &Verdict) {
    assert!(verdict.ok() && verdict.compared > 0, "{verdict:?}");
}

/// Goes on without rank 1, and runs all rounds.
fn go_on(world: &World, session: &mut GpuSession) {
    assert_eq!(world.go_on().unwrap(), [1]);
    right(&session.run_after(&[], 0).unwrap());
}

/// Graphs of before, while a rank that left stores to memory that no rank has any more.
fn run_on(session: &mut GpuSession, graphs: &[Graph]) {
    (0..LOOPS).for_each(|_| right(&session.run_after(graphs, REPLAYS).unwrap()));
}

/// A world of processes whose other ranks leave it.
struct Begun {
    address: String,
    children: Vec<Child>,
    world: Arc<World>,
    session: GpuSession,
    graphs: Vec<Graph>,
}

impl Begun {
    /// With what rank 0 has run and captured there; what rank 1 does, and what the others do.
    fn new(gpus: &[Arc<dyn Gpu>], ranks: usize, first: &str, others: &str) -> Begun {
        let address = free_address();
        let part = |rank| if rank == 1 { first } else { others };
        let children = (1..ranks).map(|rank| process(&address, rank, ranks, part(rank), &[])).collect();
        let world = rank_0(gpus, ranks, &address, &options_of("leaves"));
        let mut session = session(&world);
        let (verdict, graphs) = session.run_before(true).unwrap();
        assert!(verdict.ok() && graphs.len() == 1, "{verdict:?}");
        let mut begun = Begun { address, children, world, session, graphs };
        begun.children.iter_mut().for_each(|child| await_ready(child, "ready"));
        begun
    }

    /// Kills or stops rank 1, and lets the others go on: seconds from its end to right results of all rounds.
    fn without_rank_1(&mut self, how: Signal) -> f64 {
        let child = &mut self.children[0];
        kill_process(Pid::from_child(child), how).unwrap();
        if how == Signal::KILL {
            child.wait().unwrap();
        }
        let begun = Instant::now();
        let aborted = self.session.run_before(false).unwrap_err();
        assert!(matches!(aborted, RuntimeError::Aborted(_)), "{aborted}");
        go_on(&self.world, &mut self.session);
        let took = begun.elapsed();
        assert!(took < SHORT + Duration::from_secs(5), "{took:?}");
        took.as_secs_f64()
    }

    /// Runs on, while rank 1 comes back if it was stopped, and lets all processes end.
    fn ends(mut self, how: Signal) {
        let (first, others) = self.children.split_first_mut().unwrap();
        if how == Signal::STOP {
            kill_process(Pid::from_child(first), Signal::CONT).unwrap();
            first.stdin.as_mut().unwrap().write_all(b"come back\n").unwrap();
        }
        run_on(&mut self.session, &self.graphs);
        if how == Signal::STOP {
            await_ready(first, "gone");
        }
        assert_eq!(first.wait().unwrap().success(), how == Signal::STOP);
        for other in others {
            await_ready(other, "done");
            assert!(other.wait().unwrap().success());
        }
    }
}

/// The sizes of worlds: two ranks share a GPU in the larger one, where there are two.
fn worlds(gpus: &[Arc<dyn Gpu>]) -> impl Iterator<Item = usize> {
    let are_two = gpus[0].info().ordinal != gpus[1].info().ordinal;
    [2, 4].into_iter().filter(move |ranks| *ranks == 2 || are_two)
}

/// The signals that end or stop a process, by name.
const HOW: [(&str, Signal); 2] = [("killed", Signal::KILL), ("stopped", Signal::STOP)];

/// A process is killed or stopped, the others go on without it, and then with another one in its place; a process that was stopped comes
/// back then. Seconds from its end to right results of all rounds with the new one.
fn replacement(gpus: &[Arc<dyn Gpu>], ranks: usize, how: Signal) -> f64 {
    let mut all = Begun::new(gpus, ranks, "leaves", "stays, replaced");
    let begun = Instant::now();
    all.without_rank_1(how);
    let mut newcomer = process(&all.address, 1, ranks, "replaces", &[]);
    all.world.replace(1).unwrap();
    assert_eq!(all.world.inactive(), 0);
    // As the newcomer: all rounds, then a graph of them, which is that of before here.
    right(&all.session.run_after(&all.graphs, 1).unwrap());
    let took = begun.elapsed();
    all.ends(how);
    await_ready(&mut newcomer, "done");
    assert!(newcomer.wait().unwrap().success());
    took.as_secs_f64()
}

#[test]
fn a_new_process_takes_the_place_of_one_that_is_killed_or_stopped() {
    let Some((_one, gpus)) = gpus() else { return };
    for ranks in worlds(&gpus) {
        for (name, how) in HOW {
            let seconds: Vec<f64> = (0..episodes()).map(|_| replacement(&gpus, ranks, how)).collect();
            let found = json!({ "how": name, "ranks": ranks, "episodes": seconds.len(), "seconds": seconds });
            report("processes that are replaced", found);
        }
    }
}

/// The others go on while rank 1 is gone, or stopped: seconds from its end to right results of all rounds, beyond the budget of a wait.
fn episode(gpus: &[Arc<dyn Gpu>], ranks: usize, how: Signal) -> f64 {
    let mut all = Begun::new(gpus, ranks, "leaves", "stays");
    let took = all.without_rank_1(how);
    all.ends(how);
    took - SHORT.as_secs_f64()
}

#[test]
fn processes_go_on_without_one_that_is_killed_or_stopped() {
    let Some((_one, gpus)) = gpus() else { return };
    for ranks in worlds(&gpus) {
        for (name, how) in HOW {
            let seconds: Vec<f64> = (0..episodes()).map(|_| episode(&gpus, ranks, how)).collect();
            let found = json!({
                "how": name, "ranks": ranks, "episodes": seconds.len(),
                "seconds_beyond_the_budget": seconds.iter().copied().fold(0.0, f64::max),
                "of_them_within_100_ms": seconds.iter().filter(|seconds| **seconds <= PROMPT).count(),
            });
            report("processes go on", found);
        }
    }
}

#[test]
fn processes_that_are_slow_stay() {
    let Some((_one, gpus)) = gpus() else { return };
    for ranks in worlds(&gpus) {
        let Begun { mut children, world, mut session, .. } = Begun::new(&gpus, ranks, "slow", "slow");
        let begun = Instant::now();
        for _ in 0..episodes() {
            right(&session.run_before(false).unwrap().0);
        }
        let took = begun.elapsed();
        assert!(took >= episodes() * (SHORT / 3), "{took:?}");
        world.check().unwrap();
        assert_eq!(world.inactive(), 0);
        for child in &mut children {
            await_ready(child, "done");
            assert!(child.wait().unwrap().success());
        }
        let found = json!({ "ranks": ranks, "episodes": episodes(), "seconds": took.as_secs_f64() });
        report("processes that are slow", found);
    }
}

/// What the tests of a name found.
#[derive(Default)]
struct Found {
    compared: u64,
    longest_us: u128,
}

impl Found {
    fn run(&mut self, rank: u32, problem: Box<dyn Problem>) {
        let Some((_one, gpus)) = gpus() else { return };
        let (title, results) = (problem.title(), problem.expected(0, 0));
        // What replaces its input begins with what it left before.
        let in_place = problem.inputs(0, 0).iter().any(|x| results.iter().any(|y| x.buffer == y.buffer));
        let replays = if in_place { 0 } else { REPLAYS };
        let world = two(&gpus, &options());
        let mut session = match GpuSession::new(Arc::from(problem), &world, &jit()) {
            Ok(session) => session,
            Err(RuntimeError::NotResidentTogether { .. }) => return,
            Err(e) => panic!("{title}: {e}"),
        };
        let (verdict, took) = session.run_without(rank, replays).unwrap_or_else(|e| panic!("{title}: {e}"));
        assert!(verdict.ok() && verdict.compared > 0, "{title}, without rank {rank}: {verdict:?}");
        assert!(!world.is_active(rank));
        self.compared += verdict.compared;
        self.longest_us = self.longest_us.max(took.as_micros());
    }

    fn family<F: Workload>(&mut self, settings: &str) {
        let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
        for rank in [0, 1] {
            let inputs = Inputs { seed: 5, rounds: 3, ..Inputs::default() };
            let problem = suite::of::<F>().problem(&[config.clone().into_variant()], &inputs).unwrap();
            self.run(rank, problem);
        }
    }

    fn report(self, test: &str) {
        report(test, json!({ "compared": self.compared, "longest_us": self.longest_us }));
    }
}

#[test]
fn collectives_go_on_without_a_rank() {
    let mut found = Found::default();
    for elements in [1031, 1 << 20] {
        let key = format!("elements={elements} ranks=2 dtype=bf16");
        for how in ["one-shot protocol=packets", "two-shot protocol=packets", "two-shot protocol=flags"] {
            found.family::<AllReduce>(&format!("{key} algorithm={how} senders=0"));
        }
        found.family::<AllReduce>(&format!("{key} algorithm=pull-two-shot protocol=flags senders=0 op=max"));
        found.family::<RegisteredAllReduce>(&format!("{key} shots=two op=min"));
        found.family::<AllGather>(&key);
        found.family::<ReduceScatter>(&format!("{key} op=max"));
        found.family::<AllToAll>(&key);
        found.family::<Broadcast>(&key);
        found.family::<RaggedAllToAll>(&format!("capacity={elements} ranks=2 dtype=f32"));
    }
    found.report("collectives_without_a_rank");
}

#[test]
fn moe_goes_on_without_a_rank() {
    let mut found = Found::default();
    for dtype in [RowDtype::Bf16, RowDtype::Fp8] {
        for tokens in [8, 128] {
            let shape = shape(1024, tokens, dtype);
            let routings = (0..3).map(|seed| Routing::uniform(&shape, &[tokens, tokens / 2], seed)).collect();
            let problem = MoeProblem::with_rounds(shape, routings, 5).unwrap();
            for rank in [0, 1] {
                for layout in [Layout::RankMajor, Layout::ExpertMajor] {
                    let tuning = MoeKey { layout, missing: true, ..MoeKey::new(shape) }.defaults().unwrap();
                    found.run(rank, Box::new(MoeRounds::new(&problem, &tuning, 3).unwrap()));
                }
                let config = RoundTrip { missing: true, ..RoundTrip::defaults(&shape).unwrap() };
                found.run(rank, Box::new(MoeRounds::in_one_launch(&problem, &config, 3).unwrap()));
            }
        }
    }
    found.report("moe_without_a_rank");
}
