use std::sync::atomic::Ordering;

use super::*;
use crate::families::moe::{MoeShape, RowDtype};
use crate::runtime::mock::{Machine as Mocked, MockGpu, Uncompiled};
use crate::runtime::{Launched, WorldOptions};

const SHAPE: MoeShape =
    MoeShape { hidden: 64, experts: 8, topk: 2, tokens: 4, ranks: 2, dtype: RowDtype::Fp8 };

const OPTIONS: BenchOptions = BenchOptions { iterations: 5, rounds: 3, flush_l2: true, check: false };

fn case() -> Case {
    let problem = MoeProblem::uniform(SHAPE, &[4, 1], 9).unwrap();
    Case { problem, tuning: MoeTuning::defaults(&SHAPE).unwrap() }
}

fn bench(mocked: &Arc<Mocked>, cases: &[Case], options: &BenchOptions) -> Result<Bench, BenchError> {
    let world = Arc::new(World::of_gpus(&MockGpu::all(mocked, 2), &WorldOptions::default()).unwrap());
    let mut done = 0;
    let bench = run(cases, options, "uniform", &world, &Uncompiled, &mut || done += 1);
    assert!(bench.is_err() || done == cases.len());
    bench
}

#[test]
fn everything_is_timed_and_nothing_is_left() {
    let mocked = Arc::new(Mocked::default());
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let bench = bench(&mocked, &[case(), case()], &OPTIONS).unwrap();
    assert_eq!(mocked.alive(), 0);
    assert_eq!((bench.cases.len(), bench.machine.gpus.len()), (2, 2));
    let minute = 60e6;
    assert_eq!((bench.floor_us.median, bench.floor_us.p99), (minute, minute));
    let first = &bench.cases[0];
    assert_eq!(first.tokens_per_rank, [4, 1]);
    let times: Vec<_> = first.times.iter().map(|t| (t.what, t.us.median, t.rank_spread_us)).collect();
    let [d, c, r, m, ..] = What::ALL;
    assert_eq!(times, [(d, minute, 0.0), (c, minute, 0.0), (r, minute, 0.0), (m, minute / 3.0, 0.0)]);
    // Of mocks no limit is known.
    assert_eq!(first.times[0].limit, None);
    let bytes = first.wire.busiest(d) as f64;
    assert!(bytes > 0.0 && (first.times[0].gbps - bytes / minute / 1e3).abs() < 1e-12);

    // The floor, and for each case dispatch with combine, a round, and rounds: on both ranks, the warm-up too.
    let iterations = u64::from(WARMUP + OPTIONS.iterations);
    assert_eq!(mocked.graphs.load(Ordering::Relaxed), 2 * iterations * (1 + 2 * (2 + 1 + 1)));
    // Outside of graphs there are aligning kernels only, one for each graph; captured are the idle kernel, and
    // dispatch and combine in 1 + 1 + 3 rounds.
    let launches = mocked.launches.lock().unwrap().len() as u64;
    assert_eq!(launches, mocked.graphs.load(Ordering::Relaxed) + 2 * (1 + 2 * 2 * (1 + 1 + 3)));
}

#[test]
fn rounds_in_one_launch_are_timed_where_a_case_has_them() {
    let mocked = Arc::new(Mocked::default());
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let fused = Case { tuning: case().tuning.with_round_trip().unwrap(), ..case() };
    let bench = bench(&mocked, &[fused], &OPTIONS).unwrap();
    assert_eq!(mocked.alive(), 0);
    let times = &bench.cases[0].times;
    assert_eq!(times.iter().map(|t| t.what).collect::<Vec<_>>(), What::ALL);
    let minute = 60e6;
    assert_eq!([times[4].us.median, times[5].us.median], [minute, minute / 3.0]);
    assert!(bench.cases[0].variants[2].starts_with("moe_round_trip_"));
}

#[test]
fn a_host_that_is_never_ahead_is_told() {
    let mocked = Arc::new(Mocked::default());
    // Nanoseconds: no host is that fast.
    mocked.gap.store(1, Ordering::Relaxed);
    let said = bench(&mocked, &[case()], &OPTIONS).unwrap_err().to_string();
    assert!(said.starts_with("time to launch an iteration = "), "{said}");
    assert_eq!(mocked.alive(), 0);
}

#[test]
fn failures_leave_nothing() {
    for (call, good) in
        [("alloc", 9), ("launch", 30), ("synchronize_stream", 20), ("load", 5), ("alloc_shared", 3)]
    {
        let mocked = Arc::new(Mocked::default());
        mocked.gap.store(60_000_000_000, Ordering::Relaxed);
        mocked.fail(call, good);
        let said = bench(&mocked, &[case()], &OPTIONS).unwrap_err().to_string();
        assert_eq!((said, mocked.alive()), (format!("{call} failed: told to"), 0));
    }
    let mut wrong = case();
    wrong.tuning.combine.dedup = false;
    let said = bench(&Arc::new(Mocked::default()), &[], &OPTIONS).map(|b| b.cases.len());
    assert!(said.is_err(), "without a sleep there is no floor");
    let mocked = Arc::new(Mocked::default());
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let said = bench(&mocked, &[wrong], &OPTIONS).unwrap_err().to_string();
    assert!(said.starts_with("combine = moe_combine_"), "{said}");
}

/// The same with a thread in place of each process, and a machine of mocks for each.
fn bench_in_processes(mocked: [&Arc<Mocked>; 2], options: &BenchOptions) -> [Result<Bench, BenchError>; 2] {
    let address = crate::runtime::net::free_address();
    let process = |rank: u32| {
        let (address, options) = (address.clone(), options.clone());
        let gpus = MockGpu::all(mocked[rank as usize], 2);
        std::thread::spawn(move || {
            let launched = Launched { launcher: "torchrun", rank, ranks: 2, local_rank: rank, address };
            let world = World::of_process(&gpus, &launched, &WorldOptions::default()).unwrap();
            run(&[case()], &options, "uniform", &Arc::new(world), &Uncompiled, &mut || ())
        })
    };
    [0, 1].map(process).map(|process| process.join().unwrap())
}

#[test]
fn every_process_gets_the_times_of_all() {
    let mocked = [60_000_000_000, 61_000_000_000].map(|gap| {
        let mocked = Arc::new(Mocked::default());
        mocked.gap.store(gap, Ordering::Relaxed);
        mocked
    });
    let [zero, one] = bench_in_processes(mocked.each_ref(), &OPTIONS).map(Result::unwrap);
    assert_eq!(mocked.each_ref().map(|m| m.alive()), [0, 0]);
    assert_eq!(zero, one);
    assert!(zero.method.process_per_rank);
    assert_eq!(zero.machine.gpus, ["mock", "mock"]);
    let (slower, second) = (61e6, 1e6);
    assert_eq!(zero.floor_us.median, slower);
    let times: Vec<_> = zero.cases[0].times.iter().map(|t| (t.us.median, t.rank_spread_us)).collect();
    let many = (times[3].0 * 3.0 - slower).abs() < 0.01;
    assert!(times[..3].iter().all(|t| *t == (slower, second)) && many, "{times:?}");
}

#[test]
fn an_error_of_one_process_is_one_of_all() {
    let mocked = [(); 2].map(|()| Arc::new(Mocked::default()));
    mocked.iter().for_each(|m| m.gap.store(60_000_000_000, Ordering::Relaxed));
    let wrong = bench_in_processes(mocked.each_ref(), &BenchOptions { check: true, ..OPTIONS });
    assert!(wrong.iter().all(|w| matches!(w, Err(BenchError::Wrong { .. }))), "{wrong:?}");
    mocked[1].fail("synchronize_stream", 5);
    let said = bench_in_processes(mocked.each_ref(), &OPTIONS).map(|b| b.unwrap_err().to_string());
    let why = "synchronize_stream failed: told to";
    assert_eq!(said, [format!("rank 1 failed: {why}"), why.into()]);
    assert_eq!(mocked.each_ref().map(|m| m.alive()), [0, 0]);
}

#[test]
fn what_is_wrong_is_not_timed() {
    // Mocks compute nothing, which the comparison sees.
    let mocked = Arc::new(Mocked::default());
    mocked.gap.store(60_000_000_000, Ordering::Relaxed);
    let said = bench(&mocked, &[case()], &BenchOptions { check: true, ..OPTIONS }).unwrap_err();
    assert!(matches!(said, BenchError::Wrong { .. }), "{said}");
    assert_eq!(mocked.alive(), 0);
}
