//! Worlds that go on without a rank, and graphs that were captured before it left.

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
use peerwarp::harness::workload::{Inputs, Problem, Workload};
use peerwarp::runtime::gpu::Gpu;
use peerwarp::runtime::handles::Graph;
use peerwarp::runtime::{RuntimeError, World};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::processes::{await_ready, free_address, options_of, process, rank_0};
use super::{SHORT, gpus, jit, options, report, shape, two};

/// Times that a process is killed, and that one is stopped.
const EPISODES: u32 = 3;

/// Graphs that are launched without the rank.
const REPLAYS: u32 = 51;

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
    session.run_after(&graphs, REPLAYS).unwrap();
    println!("done");
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
    /// With what rank 0 has run and captured there.
    fn new(gpus: &[Arc<dyn Gpu>], ranks: usize) -> Begun {
        let address = free_address();
        let children = (1..ranks).map(|rank| process(&address, rank, ranks, "leaves", &[])).collect();
        let world = rank_0(gpus, ranks, &address, &options_of("leaves"));
        let mut session = session(&world);
        let (verdict, graphs) = session.run_before(true).unwrap();
        assert!(verdict.ok() && graphs.len() == 1, "{verdict:?}");
        Begun { address, children, world, session, graphs }
    }
}

/// A process is killed, the others go on without it, and then with another one in its place: seconds from its end to results of all rounds
/// with the new one.
fn replacement(gpus: &[Arc<dyn Gpu>], ranks: usize) -> f64 {
    let Begun { address, mut children, world, mut session, graphs } = Begun::new(gpus, ranks);
    await_ready(&mut children[0], "ready");
    let begun = Instant::now();
    kill_process(Pid::from_child(&children[0]), Signal::KILL).unwrap();
    children[0].wait().unwrap();
    assert!(session.run_before(false).is_err());
    assert_eq!(world.go_on().unwrap(), [1]);
    let verdict = session.run_after(&[], 0).unwrap();
    assert!(verdict.ok() && verdict.compared > 0, "{verdict:?}");
    let mut newcomer = process(&address, 1, ranks, "replaces", &[]);
    world.replace(1).unwrap();
    assert_eq!(world.inactive(), 0);
    // As the newcomer: all rounds, then a graph of them, which is that of before here.
    let verdict = session.run_after(&graphs, 1).unwrap();
    let took = begun.elapsed();
    assert!(verdict.ok() && verdict.compared > 0, "{verdict:?}");
    let verdict = session.run_after(&graphs, REPLAYS).unwrap();
    assert!(verdict.ok(), "{verdict:?}");
    await_ready(&mut newcomer, "done");
    assert!(newcomer.wait().unwrap().success());
    took.as_secs_f64()
}

#[test]
fn a_new_process_takes_the_place_of_one_that_is_killed() {
    let Some((_one, gpus)) = gpus() else { return };
    let seconds: Vec<f64> = (0..EPISODES).map(|_| replacement(&gpus, 2)).collect();
    report("processes that are replaced", json!({ "episodes": EPISODES, "seconds": seconds }));
}

/// The others go on while the last rank is gone, or stopped: seconds from its end to results of all rounds.
fn episode(gpus: &[Arc<dyn Gpu>], ranks: usize, how: Signal) -> f64 {
    let Begun { mut children, world, mut session, graphs, .. } = Begun::new(gpus, ranks);
    let child = &mut children[0];
    await_ready(child, "ready");
    kill_process(Pid::from_child(child), how).unwrap();
    let begun = Instant::now();
    let aborted = session.run_before(false).unwrap_err();
    assert!(matches!(aborted, RuntimeError::Aborted(_)), "{aborted}");
    assert_eq!(world.go_on().unwrap(), [1]);
    let verdict = session.run_after(&[], 0).unwrap();
    let took = begun.elapsed();
    assert!(verdict.ok() && verdict.compared > 0, "{verdict:?}");
    assert!(took < SHORT + Duration::from_secs(5), "{took:?}");
    if how == Signal::STOP {
        kill_process(Pid::from_child(child), Signal::CONT).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"come back\n").unwrap();
    }
    // The graph of before, while the rank that left stores to memory that no rank has any more.
    for _ in 0..20 {
        let verdict = session.run_after(&graphs, REPLAYS).unwrap();
        assert!(verdict.ok() && verdict.compared > 0, "{verdict:?}");
    }
    if how == Signal::STOP {
        await_ready(child, "gone");
    }
    assert_eq!(child.wait().unwrap().success(), how == Signal::STOP);
    took.as_secs_f64() - SHORT.as_secs_f64()
}

#[test]
fn processes_go_on_without_one_that_is_killed_or_stopped() {
    let Some((_one, gpus)) = gpus() else { return };
    for (name, how) in [("killed", Signal::KILL), ("stopped", Signal::STOP)] {
        let seconds: Vec<f64> = (0..EPISODES).map(|_| episode(&gpus, 2, how)).collect();
        let longest = seconds.iter().copied().fold(0.0, f64::max);
        report(
            "processes go on",
            json!({ "how": name, "episodes": EPISODES, "seconds_beyond_the_budget": longest }),
        );
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
