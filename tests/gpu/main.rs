//! The runtime on real GPUs: `cargo test --release --test gpu -- --nocapture`. Where there is one GPU, both ranks share it. Without
//! any, every test says that it was skipped.
//!
//! Each test prints one line of JSON with what it found.

mod alone;
mod cases;
mod collectives;
mod endurance;
mod every_bit;
mod far;
mod missing;
mod op_families;
mod ops;
mod processes;
mod products;
mod soak;
mod streams;

use std::sync::{Arc, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use cudarc::driver::CudaContext;
use peerwarp::codegen::family::Family;
use peerwarp::codegen::ir::{Access, Kernel, Place};
use peerwarp::codegen::print::SiteKind;
use peerwarp::families::moe::kernels::{Hook, Layout, Protocol, RoundTrip};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::slices::TokenSlices;
use peerwarp::families::moe::{MoeAllToAll, Tokens};
use peerwarp::families::moe::{MoeProblem, MoeShape, Routing, RowDtype};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::trace::clock::ClockLine;
use peerwarp::harness::trace::clocks::Clocks;
use peerwarp::harness::trace::{Trace, matches};
use peerwarp::runtime::cache::ModuleCache;
use peerwarp::runtime::gpu::Gpu;
use peerwarp::runtime::handles::{Buffer, Stream};
use peerwarp::runtime::image::Jit;
use peerwarp::runtime::op::{LaunchSpec, Operation};
use peerwarp::runtime::status::Aborted;
use peerwarp::runtime::{RuntimeError, World, WorldOptions, cuda};
use serde_json::json;

/// Kernels of two tests would wait for each other's GPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Held by the test that has the GPUs.
type Alone = MutexGuard<'static, ()>;

/// How long a wait may last where one is to run out of time.
const SHORT: Duration = Duration::from_millis(300);

/// The GPUs of the ranks, two at least: where there is one, it is that of both.
fn gpus() -> Option<(Alone, Vec<Arc<dyn Gpu>>)> {
    let alone = || ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    match cuda::gpus() {
        Ok(gpus) if gpus.len() >= 2 => Some((alone(), gpus)),
        Ok(gpus) if gpus.len() == 1 => {
            static SAID: Once = Once::new();
            SAID.call_once(|| eprintln!("there is one GPU: both ranks share it"));
            Some((alone(), vec![Arc::clone(&gpus[0]); 2]))
        }
        Ok(_) => {
            eprintln!("skipped: there is no GPU");
            None
        }
        Err(why) => {
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// A world of two ranks.
fn two(gpus: &[Arc<dyn Gpu>], options: &WorldOptions) -> Arc<World> {
    Arc::new(World::of_gpus(&gpus[..2], options).unwrap())
}

fn options() -> WorldOptions {
    let form_timeout = Duration::from_secs(60);
    WorldOptions { form_timeout, share_gpus: true, ..WorldOptions::default() }
}

fn short() -> WorldOptions {
    WorldOptions { wait_budget: SHORT, ..options() }
}

fn jit() -> Jit {
    Jit::new(ModuleCache::of_user()).expect("NVRTC")
}

fn shape(hidden: u32, tokens: u32, dtype: RowDtype) -> MoeShape {
    MoeShape { hidden, experts: 16, topk: 4, tokens, ranks: 2, dtype }
}

fn report(test: &str, found: serde_json::Value) {
    println!("{}", json!({ "test": test, "found": found }));
}

/// What a rank that has no tokens passes.
#[derive(Debug)]
struct Nothing {
    stream: Stream,
    zero: Buffer,
}

impl Nothing {
    fn new(gpu: &Arc<dyn Gpu>, shape: &MoeShape) -> Nothing {
        let bytes = u64::from(shape.tokens) * u64::from(shape.row_bytes().max(shape.topk * 4));
        let zero = Buffer::new(gpu, bytes).unwrap();
        zero.write(0, &vec![0u8; bytes as usize]).unwrap();
        Nothing { stream: Stream::new(gpu).unwrap(), zero }
    }

    fn tokens(&self) -> Tokens {
        let zero = self.zero.ptr();
        Tokens { x: zero, x_scale: zero, rows_there: 0, n: zero, ids: zero, weights: zero }
    }
}

/// A wait of a kernel for other ranks.
#[derive(Clone, Debug, PartialEq)]
struct WaitSite {
    role: String,
    flag: String,
    line: u32,
}

/// All waits of a kernel for other ranks. Its plan decides which they are.
fn wait_sites(kernel: &Kernel) -> Vec<WaitSite> {
    let mut sites = vec![];
    for role in &kernel.roles {
        kernel.walk(&role.body, &mut |_, op| {
            for accessed in op.kind.accesses() {
                let (Access::Wait | Access::Take, Place::Param(flag)) = (accessed.access, accessed.place)
                else {
                    continue;
                };
                let flag = kernel.params[flag.index()].name.clone();
                sites.push(WaitSite { role: role.name.clone(), flag, line: op.loc.line });
            }
        });
    }
    sites
}

fn aborted(result: Result<(), RuntimeError>) -> Aborted {
    match result.unwrap_err() {
        RuntimeError::Aborted(aborted) => *aborted,
        other => panic!("{other}"),
    }
}

/// Rounds with routing of their own each, in memory full of NaNs: every bit will be compared.
fn session(world: &Arc<World>, rounds: MoeRounds) -> GpuSession {
    GpuSession::new(Arc::new(rounds), world, &jit()).unwrap().poisoned()
}

/// A problem with routing of its own in each round.
fn drawn(shape: MoeShape, n: &[u32], rounds: u32, seed: u64) -> MoeProblem {
    let routing = (0..u64::from(rounds)).map(|round| Routing::uniform(&shape, n, 100 * seed + round));
    MoeProblem::with_rounds(shape, routing.collect(), seed).unwrap()
}

fn apart(world: &Arc<World>, tuning: &MoeTuning, n: &[u32], rounds: u32, seed: u64) -> GpuSession {
    let problem = drawn(tuning.key.shape, n, rounds, seed);
    session(world, MoeRounds::new(&problem, &fitting(world, tuning), rounds).unwrap())
}

/// With as many blocks as there is room for where ranks share a GPU.
fn fitting(world: &World, tuning: &MoeTuning) -> MoeTuning {
    world.blocks_per_launch().map_or_else(|| tuning.clone(), |blocks| tuning.clone().within(blocks))
}

/// The defaults of rounds in one launch each, with as many blocks as there is room for.
fn one_launch(world: &World, shape: &MoeShape) -> RoundTrip {
    let config = RoundTrip::defaults(shape).unwrap();
    world.blocks_per_launch().map_or_else(|| config.clone(), |blocks| config.clone().within(blocks))
}

/// Rounds in one launch each.
fn in_one_launch(world: &Arc<World>, shape: &MoeShape, n: &[u32], rounds: u32, seed: u64) -> GpuSession {
    let (problem, config) = (drawn(*shape, n, rounds, seed), one_launch(world, shape));
    session(world, MoeRounds::in_one_launch(&problem, &config, rounds).unwrap())
}

/// Runs a problem in a world, and has every bit compared.
fn every_bit(world: &Arc<World>, tuning: &MoeTuning, n: &[u32], rounds: u32, replays: u32, seed: u64) {
    right(&mut apart(world, tuning, n, rounds, seed), replays);
}

fn right(rounds: &mut GpuSession, replays: u32) {
    let ran = rounds.run(replays).unwrap();
    assert!(ran.ok, "{ran:?}");
    assert_eq!(ran.replayed.map_or(0, |r| r.replays), replays);
}

/// Rounds over the end of epochs, looked at one by one and in a graph; `rounds` makes so many from a seed. With one expert a
/// token most flags have never been set when they are waited for first: an epoch of 0 would find them set.
fn epochs_wrap(rounds: impl Fn(u32, u64) -> GpuSession) {
    let mut by_one = rounds(7, 5);
    by_one.start_after(u32::MAX - 3).unwrap();
    right(&mut by_one, 0);
    let mut in_a_graph = rounds(3, 6);
    // After the three rounds that are looked at, the last epoch is the second of the first replay.
    in_a_graph.start_after(u32::MAX - 5).unwrap();
    right(&mut in_a_graph, 5);
}

#[test]
fn epochs_that_wrap_around_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let shared = WorldOptions { share_sms: true, ..options() };
    let world = two(&gpus, &shared);
    let shape = MoeShape { topk: 1, ..shape(2048, 64, RowDtype::Bf16) };
    let mut cases = 0;
    for (dedup, split, protocol, layout) in [
        (true, false, Protocol::Flags, Layout::ExpertMajor),
        (false, true, Protocol::Flags, Layout::ExpertMajor),
        (true, false, Protocol::Packets, Layout::ExpertMajor),
        (false, true, Protocol::Packets, Layout::ExpertMajor),
        (true, false, Protocol::Flags, Layout::RankMajor),
        (true, true, Protocol::Packets, Layout::RankMajor),
    ] {
        let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor)
            .unwrap()
            .with_hook(Hook::Expert);
        let tuning = tuning.with_dedup(dedup).with_split(split).with_protocol(protocol).with_layout(layout);
        epochs_wrap(|rounds, seed| apart(&world, &tuning, &[64, 33], rounds, seed));
        cases += 1;
    }
    epochs_wrap(|rounds, seed| in_one_launch(&world, &shape, &[64, 33], rounds, seed));
    report("epoch wrap", json!({ "cases": cases }));
}

#[test]
fn timelines_are_whole_and_in_order() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let shape = shape(1024, 16, RowDtype::Bf16);
    let problem = MoeProblem::uniform(shape, &[16, 5], 3).unwrap();
    let mut clocks = Clocks::new(&world, &jit().with_timeline(Clocks::slots(2))).unwrap();
    let mut found = vec![];
    for split in [false, true] {
        let tuning = fitting(
            &world,
            &MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().with_split(split),
        );
        let rounds = Arc::new(MoeRounds::new(&problem, &tuning, 3).unwrap());
        let mut moe = GpuSession::new(rounds, &world, &jit().with_timeline(256)).unwrap();
        assert!(moe.run(0).unwrap().ok);
        let before = clocks.measure().unwrap();
        let rounds: Vec<_> = (0..20).map(|_| moe.record(2).unwrap()).collect();
        let lines = before.into_iter().zip(clocks.measure().unwrap());
        let lines: Vec<_> = lines.map(|(before, after)| ClockLine { before, after }).collect();
        let error = lines.iter().map(ClockLine::error_ns).max().unwrap() as i64;
        let mut waits = 0;
        for recordings in rounds {
            let trace = Trace::new(recordings, &lines);
            assert_eq!(trace.dropped(), 0);
            let all = matches(&trace);
            for m in all.iter().filter(|m| m.waiting.site(m.wait.site).kind == SiteKind::Wait) {
                let peers = m.wait.peers(m.waiting.site(m.wait.site), 2);
                assert_eq!(m.signals.len(), peers.len(), "{:?}", m.wait);
                let late = |s: &i64| s - m.wait.end_ns > error;
                let begins = m.signals.iter().map(|s| s.2.begin_ns);
                assert_eq!(begins.filter(late).count(), 0, "{m:?}, clocks to {error} ns");
                waits += 1;
            }
        }
        assert!(waits > 0);
        found.push(json!({ "split": split, "waits": waits, "clocks": lines }));
    }
    report("timelines", json!(found));
}

#[test]
fn masked_repeated_and_skewed_ids_are_right_to_the_bit() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let shape = shape(512, 24, RowDtype::Bf16);
    let ids = |of: &dyn Fn(usize) -> i32| vec![(0..24 * 4).map(of).collect(), (0..17 * 4).map(of).collect()];
    let all = [
        ids(&|i| if i % 3 == 0 { -1 } else { (i % 16) as i32 }),
        ids(&|_| 5),
        ids(&|i| (i % 2 * 9) as i32),
        ids(&|_| -1),
    ];
    for ids in all {
        for dedup in [true, false] {
            let problem = MoeProblem::new(shape, Routing::with_weights(&shape, ids.clone(), 3), 3).unwrap();
            let tuning = fitting(
                &world,
                &MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().with_dedup(dedup),
            );
            right(&mut session(&world, MoeRounds::new(&problem, &tuning, 3).unwrap()), 0);
            if dedup {
                let config = one_launch(&world, &shape);
                right(&mut session(&world, MoeRounds::in_one_launch(&problem, &config, 3).unwrap()), 0);
            }
        }
    }
    report("ids", json!({ "cases": 8 }));
}

#[test]
fn ranks_may_launch_whenever_they_like() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let shape = shape(64, 4, RowDtype::Bf16);
    let tuning =
        MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().with_hook(Hook::Expert);
    let mut op = MoeAllToAll::new(&world, &tuning, &jit()).unwrap();
    let in_one = LaunchSpec::new("round trip", RoundTrip::defaults(&shape).unwrap().into_variant());
    let mut in_one = Operation::new(&world, &[in_one], &jit()).unwrap();
    // Nothing is allocated while kernels wait: a driver may let that wait for them.
    let places: Vec<Nothing> = op.ranks().iter().map(|rank| Nothing::new(rank.gpu(), &shape)).collect();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for ((rank, in_one), place) in op.ranks_mut().iter_mut().zip(in_one.ranks_mut()).zip(&places) {
            scope.spawn(move || {
                let operands = in_one.operands().len();
                let y = rank.buffer("rows").unwrap().0;
                let mut seed = u64::from(rank.rank()) + 1;
                for _ in 0..2000 {
                    // SAFETY: there are no tokens, and the buffers live as long as the stream.
                    unsafe {
                        let routed = rank.dispatch_raw(&place.tokens(), place.stream.raw()).unwrap();
                        rank.combine_raw(routed, y, place.zero.ptr(), place.stream.raw()).unwrap();
                        let zeros = vec![place.zero.ptr(); operands];
                        in_one.launch_raw(0, &zeros, place.stream.raw()).unwrap();
                    }
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let pause = Duration::from_nanos(seed >> 48);
                    let until = Instant::now() + pause;
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                place.stream.synchronize().unwrap();
            });
        }
    });
    world.check().unwrap();
    drop((op, in_one));
    every_bit(&world, &tuning, &[3, 4], 3, 101, 1);
    right(&mut in_one_launch(&world, &shape, &[3, 4], 3, 1), 101);
    report("random delays", json!({ "rounds": 2000, "seconds": start.elapsed().as_secs_f64() }));
}

#[test]
fn slices_of_cudarc_are_checked_and_used() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &options());
    let shape = shape(64, 2, RowDtype::Bf16);
    let tuning =
        MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap().with_hook(Hook::Expert);
    let mut op = MoeAllToAll::new(&world, &tuning, &jit()).unwrap();
    let ordinals = [0, 1].map(|i: usize| gpus[i].info().ordinal as usize);
    let streams = ordinals.map(|gpu| CudaContext::new(gpu).unwrap().new_stream().unwrap());
    // Each rank has one token of ones (0x3f80 in bf16), for the first expert of either rank.
    let held: Vec<_> = streams
        .iter()
        .map(|s| {
            let x = s.clone_htod(&vec![0x3f80u16; 2 * 64]).unwrap();
            let n = s.clone_htod(&vec![1u32]).unwrap();
            let ids = s.clone_htod(&vec![0i32, 8, -1, -1, -1, -1, -1, -1]).unwrap();
            let weights = s.clone_htod(&vec![0.5f32; 8]).unwrap();
            (x, n, ids, weights)
        })
        .collect();
    let (mut routed, mut out) = (vec![], vec![]);
    for ((rank, stream), (x, n, ids, weights)) in op.ranks_mut().iter_mut().zip(&streams).zip(&held) {
        let tokens = TokenSlices { x, x_scale: None, n: Some(n), ids, weights };
        let short = stream.clone_htod(&vec![1i32; 7]).unwrap();
        let said = rank.dispatch(TokenSlices { ids: &short, ..tokens }, stream).unwrap_err().to_string();
        assert!(said.starts_with("bytes of ids = 28: 32 or more"), "{said}");
        routed.push(rank.dispatch(tokens, stream).unwrap());
    }
    let said = op.ranks_mut()[0].dispatch(
        TokenSlices {
            x: &held[1].0,
            x_scale: None,
            n: Some(&held[1].1),
            ids: &held[1].2,
            weights: &held[1].3,
        },
        &streams[1],
    );
    let said = said.unwrap_err().to_string();
    let other = if world.ranks_per_gpu() > 1 { "stream = " } else { "GPU of the stream = 1" };
    assert!(said.starts_with(other), "{said}");
    for ((rank, stream), routed) in op.ranks_mut().iter_mut().zip(&streams).zip(routed) {
        // An expert that doubles: dispatch multiplied by 1 + rank, which is not looked at here.
        let y = stream.clone_htod(&vec![0x4000u16; 2 * 2 * 4 * 64]).unwrap();
        let mut sum = stream.alloc_zeros::<u16>(2 * 64).unwrap();
        rank.combine(routed, &y, &mut sum).unwrap();
        out.push(sum);
    }
    for (stream, sum) in streams.iter().zip(&out) {
        let sum = stream.clone_dtoh(sum).unwrap();
        // 0.5 * 2 from either owner.
        assert_eq!(sum[..64], [0x4000; 64]);
    }
    world.check().unwrap();
    report("slices", json!({ "ranks": 2 }));
}

#[test]
fn a_rank_that_skips_a_call_is_named_in_time_and_the_world_can_be_used_again() {
    let Some((_one, gpus)) = gpus() else { return };
    let world = two(&gpus, &short());
    let shape = shape(64, 4, RowDtype::Bf16);
    let tuning = MoeTuning::defaults_with(&shape, Hook::None, Layout::ExpertMajor).unwrap();
    for protocol in [tuning.plan.way.out(), Protocol::Flags, Protocol::Packets] {
        skips_a_call(&world, &gpus, &tuning.clone().with_protocol(protocol));
    }
    every_bit(&world, &tuning, &[3, 4], 3, 0, 1);
}

/// Dispatches on rank 0 alone, twice: the error names the wait, and the world can be used again.
fn skips_a_call(world: &Arc<World>, gpus: &[Arc<dyn Gpu>], tuning: &MoeTuning) {
    let shape = tuning.key.shape;
    let sites = wait_sites(&tuning.dispatch().trace(32).unwrap());
    let mut op = MoeAllToAll::new(world, tuning, &jit()).unwrap();
    let place = Nothing::new(&gpus[0], &shape);
    for attempt in 0..2 {
        let start = Instant::now();
        // SAFETY: there are no tokens, and the buffers live as long as the stream.
        let _routed = unsafe { op.ranks_mut()[0].dispatch_raw(&place.tokens(), place.stream.raw()).unwrap() };
        let aborted = aborted(world.finish(0, place.stream.raw()));
        let took = start.elapsed();
        let wait = aborted.wait.clone().unwrap();
        assert_eq!((aborted.rank, wait.peer, aborted.recoverable), (0, 1, true), "{aborted}");
        let site = WaitSite { role: wait.role.clone(), flag: wait.flag.clone(), line: wait.line };
        assert!(sites.contains(&site), "{aborted}: {site:?} is none of {sites:?}");
        assert_eq!((wait.expected, wait.seen), (1, 0), "{aborted}");
        assert_eq!(wait.kernel, tuning.dispatch().variant_name(), "{aborted}");
        assert!(took >= SHORT && took < SHORT * 4, "{took:?}");
        // SAFETY: as above.
        let refused = unsafe { op.ranks_mut()[1].dispatch_raw(&place.tokens(), place.stream.raw()) };
        assert!(matches!(refused, Err(RuntimeError::Poisoned { .. })));
        world.reset().unwrap();
        world.check().unwrap();
        report(
            "skipped call",
            json!({ "attempt": attempt, "error": aborted.to_string(), "seconds": took.as_secs_f64() }),
        );
    }
}
