//! Rounds without end, and a rank that fails. A few of each by default; all of them with
//! `PEERWARP_ROUNDS=10000000 PEERWARP_FAULTS=50 cargo test --release --test gpu endurance -- --nocapture`.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::process::Child;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use peerwarp::families::collectives::{AllGather, AllReduce, ReduceScatter};
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol, Quantise, ReturnDtype};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeAllToAll, MoeKey, RowDtype};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Problem, Workload};
use peerwarp::runtime::handles::Buffer;
use peerwarp::runtime::status::Aborted;
use peerwarp::runtime::{Member, RuntimeError, World};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::processes::{await_ready, free_address, options_of, process, rank_0, tuning_of};
use super::{
    Nothing, SHORT, aborted, apart, drawn as problem_of, every_bit, fitting, gpus, in_one_launch, options,
    report, shape, two,
};

/// What the environment asks for.
pub fn asked<T: FromStr<Err: Debug>>(variable: &str, otherwise: T) -> T {
    std::env::var(variable).map_or(otherwise, |given| given.parse().unwrap())
}

/// Rounds of a graph.
const ROUNDS: u32 = 6;

/// Sizes, layouts and protocols, with routing of its own in each round.
fn sessions(world: &Arc<World>, random: &mut StdRng) -> Vec<GpuSession> {
    let mut all = vec![];
    for (hidden, tokens) in [(64, 1), (520, 9), (1024, 24), (2880, 37), (7168, 64)] {
        let shape = shape(hidden, tokens, RowDtype::Bf16);
        for layout in [Layout::ExpertMajor, Layout::RankMajor] {
            for protocol in [Protocol::Flags, Protocol::Packets] {
                let n = [random.random_range(0..=tokens), tokens];
                let tuning = MoeTuning::defaults_with(&shape, Hook::Expert, layout).unwrap();
                let tuning = tuning.with_protocol(protocol);
                all.push(apart(world, &tuning, &n, ROUNDS, random.random_range(0..1000)));
            }
        }
        all.push(in_one_launch(world, &shape, &[tokens, 0], ROUNDS, random.random_range(0..1000)));
    }
    all
}

/// Bytes that this process and the GPUs of a world have in use.
fn in_use(world: &World) -> (u64, Vec<u64>) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    let of_gpu = |member: &Member| {
        let context = CudaContext::new(member.gpu.info().ordinal as usize).unwrap();
        let (free, total) = context.mem_get_info().unwrap();
        (total - free) as u64
    };
    (pages * rustix::param::page_size() as u64, world.members().iter().map(of_gpu).collect())
}

/// The memory that is in use now is what was in use early.
fn flat(world: &World, (host, devices): (u64, Vec<u64>)) -> serde_json::Value {
    let (host_now, devices_now) = in_use(world);
    // What allocators and the driver keep for themselves is less than any buffer that each turn would leave behind adds up to.
    const SLACK: u64 = 64 << 20;
    assert!(host_now < host + SLACK, "{host} bytes of the host are {host_now}");
    let grown = devices_now.iter().zip(&devices).all(|(now, before)| *now < before + SLACK);
    assert!(grown, "{devices:?} bytes of the GPUs are {devices_now:?}");
    json!({ "host_bytes": [host, host_now], "device_bytes": [devices, devices_now] })
}

#[test]
fn rounds_of_changing_sizes_and_delays_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let goal: u64 = asked("PEERWARP_ROUNDS", 200_000);
    let world = two(&gpus, &options());
    let mut random = StdRng::seed_from_u64(asked("PEERWARP_SEED", 1));
    let mut sessions = sessions(&world, &mut random);
    let replays = u32::try_from(goal / 25 / u64::from(ROUNDS)).unwrap().clamp(100, 3000);
    let (start, mut done, mut compared, mut early) = (Instant::now(), 0, 0, None);
    let mut turns = 0;
    while done < goal || turns < 2 * sessions.len() {
        // Each in its turn first, which warms everything up; then any.
        let which = if turns < sessions.len() { turns } else { random.random_range(0..sessions.len()) };
        let session = &mut sessions[which];
        session.delay(random.random());
        // Graphs of either parity.
        let ran = session.run(replays + turns as u32 % 2).unwrap();
        assert!(ran.ok, "turn {turns}: {ran:?}");
        let replayed = ran.replayed.unwrap();
        done += u64::from(replayed.replays * ROUNDS);
        compared += replayed.verdict.compared;
        turns += 1;
        if turns == sessions.len() {
            early = Some(in_use(&world));
        }
    }
    let memory = flat(&world, early.unwrap());
    let found = json!({
        "rounds": done, "turns": turns, "values_compared": compared, "seconds": start.elapsed().as_secs_f64(),
        "memory": memory,
    });
    report("endurance", found);
}

/// What happens to rank 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    /// Its process is killed.
    Killed,
    /// Its process is stopped.
    Stopped,
    /// It launches a round late, by more than waits may last.
    Late,
    /// Its rounds take a thousand times as long, which is less than waits may last.
    Slow,
}

/// The fault of an episode, and the round it comes in: both ranks draw the same.
fn drawn(episode: u64) -> (Fault, u32) {
    let mut random = StdRng::seed_from_u64(episode);
    let all = [Fault::Killed, Fault::Stopped, Fault::Late, Fault::Slow];
    (all[random.random_range(0..all.len())], random.random_range(1..500))
}

/// How long a slow round takes: others take some 20 us.
const SLOW: Duration = Duration::from_millis(20);

/// How many rounds of an episode without an error are slow.
const SLOW_ROUNDS: u32 = 10;

/// One rank of this process, and rounds on it.
struct Rank {
    world: Arc<World>,
    tuning: MoeTuning,
    op: MoeAllToAll,
    place: Nothing,
    sums: Buffer,
}

impl Rank {
    fn new(world: &Arc<World>) -> Rank {
        let tuning = tuning_of(world);
        let op = MoeAllToAll::new(world, &tuning, &super::jit()).unwrap();
        let shape = tuning.key.shape;
        let gpu = Arc::clone(op.ranks()[0].gpu());
        let sums = Buffer::new(&gpu, u64::from(shape.tokens * shape.row_bytes())).unwrap();
        Rank { world: Arc::clone(world), tuning, op, place: Nothing::new(&gpu, &shape), sums }
    }

    /// A dispatch and a combine, with the host waiting for them.
    fn round(&mut self) -> Result<(), RuntimeError> {
        let rank = &mut self.op.ranks_mut()[0];
        let y = rank.buffer("rows").unwrap().0;
        let stream = self.place.stream.raw();
        // SAFETY: there are no tokens, and the buffers live as long as the stream.
        unsafe {
            let routed = rank.dispatch_raw(&self.place.tokens(), stream)?;
            rank.combine_raw(routed, y, self.sums.ptr(), stream)?;
        }
        self.world.finish(0, stream)
    }

    /// Rounds until one fails.
    fn until_an_error(&mut self, mut before: impl FnMut(u32)) -> Aborted {
        let failed = (0..).find_map(|number| {
            before(number);
            self.round().err()
        });
        aborted(Err(failed.unwrap()))
    }

    /// Rounds of values, every bit of which is compared.
    fn every_bit(&self, seed: u64) {
        every_bit(&self.world, &self.tuning, &[5, 8], 3, 11, seed);
    }
}

/// What rank 1 does, from the episode on that it was started for.
pub fn as_rank_1(world: &Arc<World>) {
    let mut rank = Rank::new(world);
    println!("ready");
    for episode in asked("PEERWARP_TEST_EPISODE", 0)..asked("PEERWARP_TEST_EPISODES", 0) {
        match drawn(episode) {
            (Fault::Slow, _) => (0..SLOW_ROUNDS).for_each(|_| {
                std::thread::sleep(SLOW);
                rank.round().unwrap();
            }),
            (Fault::Late, at) => {
                rank.until_an_error(|round| {
                    if round == at {
                        std::thread::sleep(2 * SHORT);
                    }
                });
                world.reset().unwrap();
            }
            (Fault::Killed | Fault::Stopped, _) => {
                rank.until_an_error(|_| ());
                world.reset().unwrap();
            }
        }
        rank.every_bit(episode);
    }
}

/// Turns of a process until it dies.
fn life() -> u64 {
    asked("PEERWARP_LIFE", 25)
}

/// Formats, placements, and collectives whose lengths change from round to round; with whether graphs of them may be launched again.
fn all_kinds(world: &Arc<World>) -> Vec<(GpuSession, bool)> {
    let mut all: Vec<(Box<dyn Problem>, bool)> = vec![];
    for (dtype, layout, quantise, combine_dtype) in [
        (RowDtype::Bf16, Layout::RankMajor, Quantise::None, ReturnDtype::Combined),
        (RowDtype::Bf16, Layout::ExpertMajor, Quantise::None, ReturnDtype::Fp8),
        (RowDtype::Fp16, Layout::RankMajor, Quantise::None, ReturnDtype::Nvfp4),
        (RowDtype::Fp8, Layout::ExpertMajor128, Quantise::Bf16, ReturnDtype::Combined),
        (RowDtype::Nvfp4, Layout::RankMajor, Quantise::Bf16, ReturnDtype::Combined),
        (RowDtype::Mxfp8, Layout::ExpertMajor, Quantise::Bf16, ReturnDtype::Combined),
    ] {
        for (expert_slots, replicas) in [(0, 1), (12, 3)] {
            let shape = shape(1024, 24, dtype);
            let key =
                MoeKey { layout, quantise, combine_dtype, expert_slots, replicas, ..MoeKey::new(shape) };
            let tuning = fitting(world, &MoeKey { missing: true, ..key }.defaults().unwrap());
            let problem = problem_of(shape, &[24, 11], ROUNDS, all.len() as u64);
            all.push((Box::new(MoeRounds::new(&problem, &tuning, ROUNDS).unwrap()), false));
        }
    }
    let key = "ranks=2 length=device row=8";
    all.push((collective::<AllReduce>(&format!("{key} elements=65536 dtype=bf16")), true));
    all.push((collective::<ReduceScatter>(&format!("{key} elements=65536 dtype=f32 op=max")), true));
    all.push((collective::<AllGather>("ranks=2 length=each row=8 elements=65536 dtype=bf16"), true));
    // Ranks that share a GPU may have no room for the blocks of both.
    let session = |(problem, replays): (Box<dyn Problem>, bool)| match GpuSession::new(
        Arc::from(problem),
        world,
        &super::jit(),
    ) {
        Ok(session) => Some((session, replays)),
        Err(RuntimeError::NotResidentTogether { .. }) => None,
        Err(e) => panic!("{e}"),
    };
    all.into_iter().filter_map(session).collect()
}

fn collective<F: Workload>(settings: &str) -> Box<dyn Problem> {
    let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let inputs = Inputs { seed: 5, rounds: ROUNDS, ..Inputs::default() };
    suite::of::<F>().problem(&[config.into_variant()], &inputs).unwrap()
}

/// A turn, the same on both ranks: each kind in its turn first, and then any. How many rounds it has, and what was compared.
fn turn(kinds: &mut [(GpuSession, bool)], number: u64) -> Result<(u64, u64), RuntimeError> {
    let mut random = StdRng::seed_from_u64(number);
    let drawn = random.random_range(0..kinds.len());
    let (session, replays) =
        &mut kinds[usize::try_from(number).unwrap().min(drawn + kinds.len()) % kinds.len()];
    session.delay(random.random());
    let replays = if *replays { 50 + number as u32 % 2 } else { 0 };
    let ran = session.run(replays)?;
    assert!(ran.ok && ran.verdict.compared > 0, "turn {number}: {ran:?}");
    Ok((u64::from((1 + replays) * ROUNDS), ran.verdict.compared))
}

/// The kind that runs without rank 1, and with the next process, after a death in a turn.
fn after_a_death(number: u64) -> usize {
    number as usize % 2
}

/// What rank 1 does of it until it dies, or rank 0 has enough.
pub fn as_rank_1_of_all(world: &Arc<World>) {
    let (mut kinds, first) = (all_kinds(world), asked("PEERWARP_TEST_EPISODE", 0));
    if first > 0 {
        world.replace(1).unwrap();
        assert!(kinds[after_a_death(first - 1)].0.run_before(false).unwrap().0.ok());
    }
    for number in first.. {
        if number % life() == life() - 1 {
            std::process::abort();
        }
        turn(&mut kinds, number).unwrap();
        if world.agree(Ok(())).is_err() {
            return;
        }
    }
}

/// Rounds of all kinds, among which rank 1 dies and another process takes its place. `PEERWARP_ROUNDS`, `PEERWARP_SECONDS` and
/// `PEERWARP_LIFE` say how many rounds, for how long, and how many turns a process lives.
#[test]
fn rounds_with_all_of_it_and_deaths_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let (goal, seconds): (u64, f64) = (asked("PEERWARP_ROUNDS", 200_000), asked("PEERWARP_SECONDS", 12.0));
    let (address, start) = (free_address(), Instant::now());
    let newcomer =
        |part, from: u64| process(&address, 1, 2, part, &[("PEERWARP_TEST_EPISODE", from.to_string())]);
    let mut child = newcomer("endures all", 0);
    let world = rank_0(&gpus, 2, &address, &options_of("endures all"));
    let mut kinds = all_kinds(&world);
    let (mut done, mut compared, mut deaths, mut early) = (0, 0, 0, None);
    for number in 0.. {
        match turn(&mut kinds, number) {
            Ok((rounds, values)) => (done, compared) = (done + rounds, compared + values),
            Err(error) => {
                assert!(matches!(error, RuntimeError::Aborted(_)), "turn {number}: {error}");
                assert!(!child.wait().unwrap().success());
                assert_eq!(world.go_on().unwrap(), [1]);
                let session = &mut kinds[after_a_death(number)].0;
                let alone = session.run_after(&[], 0).unwrap();
                assert!(alone.ok() && alone.compared > 0, "turn {number}: {alone:?}");
                child = newcomer("endures all, replaced", number + 1);
                world.replace(1).unwrap();
                let both = session.run_after(&[], 0).unwrap();
                assert!(both.ok() && both.compared > 0, "turn {number}: {both:?}");
                deaths += 1;
                continue;
            }
        }
        if number + 1 == kinds.len() as u64 {
            early = Some(in_use(&world));
        }
        let enough = done >= goal || start.elapsed().as_secs_f64() >= seconds;
        if enough && early.is_some() && deaths > 0 {
            break;
        }
        world.agree(Ok(())).unwrap();
    }
    let (field, value, allowed) = ("rounds".into(), done.to_string(), "no more".into());
    assert!(world.agree::<()>(Err(RuntimeError::Invalid { field, value, allowed })).is_err());
    assert!(child.wait().unwrap().success());
    let memory = flat(&world, early.unwrap());
    let found = json!({
        "rounds": done, "values_compared": compared, "deaths": deaths, "seconds": start.elapsed().as_secs_f64(),
        "memory": memory,
    });
    report("endurance with all of it", found);
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// What rank 0 does in an episode: how long it took from the fault to the error.
fn episode(rank: &mut Rank, child: &mut Child, number: u64) -> Duration {
    let (fault, at) = drawn(number);
    if fault == Fault::Slow {
        let start = Instant::now();
        (0..SLOW_ROUNDS).for_each(|_| rank.round().unwrap());
        assert!(start.elapsed() >= (SLOW_ROUNDS - 1) * SLOW);
        return start.elapsed() / SLOW_ROUNDS;
    }
    let mut began = Instant::now();
    let aborted = rank.until_an_error(|round| {
        let (signal, last) = match fault {
            Fault::Killed => (Some(Signal::KILL), at),
            Fault::Stopped => (Some(Signal::STOP), at),
            Fault::Late | Fault::Slow => (None, at),
        };
        // Rank 1 is in the middle of this round then, or before it, or after it.
        if round <= last {
            began = Instant::now();
        }
        if let Some(signal) = signal.filter(|_| round == last) {
            send(child, signal);
        }
    });
    let took = began.elapsed();
    assert_eq!((aborted.rank, aborted.wait.as_ref().unwrap().peer), (0, 1), "{fault:?}: {aborted}");
    assert!(took <= SHORT + Duration::from_secs(1), "{fault:?}: {took:?}");
    if fault == Fault::Killed {
        child.wait().unwrap();
        assert_eq!(rank.world.lost(), Some(1));
        let refused = rank.world.reset().unwrap_err().to_string();
        assert!(refused.contains("rank 1 is gone"), "{refused}");
        return took;
    }
    if fault == Fault::Stopped {
        send(child, Signal::CONT);
    }
    rank.world.reset().unwrap();
    took
}

#[test]
fn a_rank_that_fails_is_named_in_time_and_the_world_goes_on() {
    let Some((_one, gpus)) = gpus() else { return };
    let faults: u64 = asked("PEERWARP_FAULTS", 4);
    let mut longest = BTreeMap::<Fault, (u32, Duration)>::new();
    let mut next = 0;
    while next < faults {
        // A world lasts until its rank 1 is killed.
        let address = free_address();
        let episodes = [("PEERWARP_TEST_EPISODE", next), ("PEERWARP_TEST_EPISODES", faults)]
            .map(|(k, v)| (k, v.to_string()));
        let mut child = process(&address, 1, 2, "endures", &episodes);
        let world = rank_0(&gpus, 2, &address, &options_of("endures"));
        let mut rank = Rank::new(&world);
        await_ready(&mut child, "ready");
        while next < faults {
            let took = episode(&mut rank, &mut child, next);
            let (fault, _) = drawn(next);
            let (times, most) = longest.entry(fault).or_default();
            (*times, *most) = (*times + 1, took.max(*most));
            next += 1;
            if fault == Fault::Killed {
                break;
            }
            rank.every_bit(next - 1);
        }
        if drawn(next - 1).0 != Fault::Killed {
            assert!(child.wait().unwrap().success());
        }
    }
    let found: BTreeMap<String, serde_json::Value> = longest
        .iter()
        .map(|(fault, (times, most))| {
            (format!("{fault:?}"), json!({ "times": times, "longest_seconds": most.as_secs_f64() }))
        })
        .collect();
    report("faults", json!(found));
}
