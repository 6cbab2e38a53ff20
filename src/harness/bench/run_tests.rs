use std::ops::Range;
use std::sync::atomic::Ordering;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::*;
use crate::harness::suite;
use crate::harness::verdict::Expected;
use crate::harness::workload::Contents;
use crate::runtime::mock::{Machine as Mocked, MockGpu, Uncompiled, world};
use crate::runtime::op::LaunchSpec;
use crate::runtime::{Launched, WorldOptions};

/// A stranger's family, of which nothing is known but its parameters.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "tiny", kernel = tiny, args = TinyArgs, warps = warps)]
pub struct Tiny {
    /// Elements of each rank.
    #[key(short = "n", range = 1..=4096)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 2], default = 1)]
    pub warps: u32,
}

impl Legal for Tiny {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

/// Parameters of [`tiny`](tiny()).
#[derive(KernelArgs)]
#[args(config = Tiny)]
pub struct TinyArgs {
    /// What goes to all ranks.
    #[input]
    #[len(|c| u64::from(c.elements))]
    pub x: Ptr<u32>,
    /// The last rank's.
    #[output]
    #[len(|c| u64::from(c.elements))]
    pub out: Ptr<u32>,
    /// Where it arrives, `[parity][rank]`.
    #[len(|c| 2 * u64::from(c.ranks))]
    pub inbox: Sym<u32>,
    /// It has, `[parity][rank]`.
    #[len(|c| 2 * u64::from(c.ranks))]
    pub arrived: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends a word to all ranks.
#[kernel]
pub fn tiny(c: &Tiny, a: &TinyArgs) {
    let epoch = a.epoch.begin();
    let bank = epoch.parity() * c.ranks;
    role("tiny", 1, |_| {
        let mut parcel = send_to(Peers::all());
        parcel.put_value(&a.inbox, bank + rank(), a.x.get(0));
        parcel.signal(&a.arrived, bank + rank(), epoch);
        let _ = a.arrived.wait_all(bank, c.ranks, 1, epoch);
        a.out.set(0, a.x.get(0));
    });
}

const CONFIG: Tiny = Tiny { elements: 4, ranks: 2, warps: 1 };

const OPTIONS: BenchOptions =
    BenchOptions { iterations: 5, rounds: 3, flush_l2: true, check: false, limits: Err(String::new()) };

const MINUTE: f64 = 60e6;

/// A round of two launches: there, and back with twice as many bytes.
#[derive(Debug)]
struct Pair {
    launches: Vec<LaunchSpec>,
    /// Launches of `there`, if it is not just the first.
    there: Range<usize>,
    expected: Vec<u8>,
}

impl Pair {
    fn new() -> Pair {
        let variant = CONFIG.into_variant();
        let mut back = LaunchSpec::new("back", variant.clone());
        for own in ["inbox", "arrived", "epoch"] {
            back = back.with_buffer(own, &format!("back_{own}"));
        }
        let launches = vec![LaunchSpec::new("there", variant), back];
        // Mocks compute nothing, and what is new has all bits set.
        Pair { launches, there: 0..1, expected: vec![0xff; 16] }
    }
}

impl Problem for Pair {
    fn ranks(&self) -> u32 {
        2
    }
    fn rounds(&self) -> u32 {
        1
    }
    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }
    fn inputs(&self, rank: u32, _round: u32) -> Vec<Contents> {
        vec![Contents::of("x", &[rank; 4])]
    }
    fn expected(&self, _rank: u32, _round: u32) -> Vec<Expected> {
        vec![Expected::exactly("out", Dtype::U32, self.expected.clone())]
    }
    fn metrics(&self) -> Vec<Metric> {
        let there = Work::all_to_all(2, 1000);
        let back = Work { least: Some(there.bytes.clone()), ..Work::all_to_all(2, 2000) };
        vec![
            Metric { name: "there".into(), launches: self.there.clone(), work: there },
            Metric { name: "back".into(), launches: self.there.end..2, work: back },
        ]
    }
    fn round_name(&self) -> String {
        "round trip".into()
    }
    fn title(&self) -> String {
        "there and back".into()
    }
    fn facts(&self) -> Vec<(String, serde_json::Value)> {
        vec![("words".into(), 4.into())]
    }
}

fn case_of(problem: impl Problem + 'static) -> Case {
    Case { problem: Arc::new(problem) }
}

fn case() -> Case {
    case_of(Pair::new())
}

/// Of a family without a workload.
fn stranger() -> Case {
    let inputs = Inputs { seed: 1, rounds: 1, ..Inputs::default() };
    let problem = suite::plain::<Tiny>().problem(&[CONFIG.into_variant()], &inputs).unwrap();
    Case { problem: problem.into() }
}

/// Whose launches take so many nanoseconds.
fn mocks(gap: u64) -> Arc<Mocked> {
    let mocked = Arc::new(Mocked::default());
    mocked.gap.store(gap, Ordering::Relaxed);
    mocked
}

fn slow() -> Arc<Mocked> {
    mocks(60_000_000_000)
}

fn inputs() -> Inputs {
    let given = [("routing".to_owned(), "uniform".to_owned())];
    Inputs { seed: 7, rounds: 1, ragged: false, given: given.into() }
}

fn bench(mocked: &Arc<Mocked>, cases: &[Case], options: &BenchOptions) -> Result<Bench, BenchError> {
    let world = world(mocked);
    let mut done = 0;
    let bench = run(cases, options, &inputs(), &world, &Uncompiled, &mut || done += 1);
    assert!(bench.is_err() || done == cases.len());
    bench
}

#[test]
fn everything_is_timed_and_nothing_is_left() {
    let mocked = slow();
    let bench = bench(&mocked, &[case(), case()], &OPTIONS).unwrap();
    assert_eq!(mocked.alive(), 0);
    assert_eq!((bench.cases.len(), bench.machine.gpus.len()), (2, 2));
    assert_eq!((bench.floor_us.median, bench.floor_us.p99), (MINUTE, MINUTE));
    assert_eq!((bench.method.seed, bench.method.given["routing"].as_str()), (7, "uniform"));
    let first = &bench.cases[0];
    assert_eq!((first.title.as_str(), first.check), ("there and back", Check::Skipped));
    assert_eq!((&first.key["elements"], &first.facts["words"]), (&4.into(), &4.into()));
    assert!(!first.key.contains_key("warps"), "{:?}", first.key);
    let times = first.times.iter().map(|t| (t.metric.as_str(), t.rounds, t.us.median, t.rank_spread_us));
    let expected = [
        ("there", 1, MINUTE, 0.0),
        ("back", 1, MINUTE, 0.0),
        ("round trip", 1, MINUTE, 0.0),
        ("round trip", 3, MINUTE / 3.0, 0.0),
    ];
    assert_eq!(times.collect::<Vec<_>>(), expected);
    // Of mocks no limit is known.
    assert_eq!(first.times[0].limit, None);
    let bytes: Vec<_> = first.times.iter().map(|t| t.bytes).collect();
    assert_eq!(bytes, [Some(1000), Some(2000), Some(3000), Some(3000)]);
    assert!((first.times[0].gbps.unwrap() - 1000.0 / MINUTE / 1e3).abs() < 1e-12);
    assert_eq!(first.wire["round trip"].iter().map(|r| r.out).collect::<Vec<_>>(), [3000, 3000]);

    // The floor, and for each case there with back, a round, and rounds: on both ranks, the warm-up too.
    let iterations = u64::from(WARMUP + OPTIONS.iterations);
    assert_eq!(mocked.graphs.load(Ordering::Relaxed), 2 * iterations * (1 + 2 * (2 + 1 + 1)));
    // Outside of graphs there are aligning kernels only, one for each graph; captured are the idle kernel, and there and back
    // in 1 + 1 + 3 rounds.
    let launches = mocked.launches.lock().unwrap().len() as u64;
    assert_eq!(launches, mocked.graphs.load(Ordering::Relaxed) + 2 * (1 + 2 * 2 * (1 + 1 + 3)));
}

#[test]
fn a_family_without_a_workload_is_timed_and_not_compared() {
    let mocked = slow();
    let bench = bench(&mocked, &[stranger()], &BenchOptions { check: true, ..OPTIONS }).unwrap();
    assert_eq!(mocked.alive(), 0);
    let case = &bench.cases[0];
    assert_eq!((case.title.as_str(), case.check), ("tiny: elements 4, ranks 2", Check::NoReference));
    let times: Vec<_> = case.times.iter().map(|t| (t.metric.as_str(), t.rounds, t.us.median)).collect();
    assert_eq!(times, [("tiny", 1, MINUTE), ("tiny", 3, MINUTE / 3.0)]);
    let unknown = |t: &Timing| (t.bytes, t.gbps, t.limit) == (None, None, None);
    assert!(case.times.iter().all(unknown) && case.wire.is_empty(), "{case:?}");
    let results =
        crate::harness::bench::report::facts(&bench).into_iter().find(|(name, _)| *name == "results");
    assert_eq!(results.unwrap().1, "not compared: the family has no reference");
}

#[test]
fn one_round_at_a_time_is_timed_once() {
    let bench = bench(&slow(), &[stranger()], &BenchOptions { rounds: 1, ..OPTIONS }).unwrap();
    assert_eq!(bench.cases[0].times.len(), 1);
}

#[test]
fn results_that_are_right_are_told() {
    let mocked = slow();
    let bench = bench(&mocked, &[case()], &BenchOptions { check: true, ..OPTIONS }).unwrap();
    assert_eq!(bench.cases[0].check, Check::Right { exact: true, max_abs_err: 0.0 });
    assert_eq!(mocked.alive(), 0);
}

#[test]
fn what_is_wrong_is_not_timed() {
    let mocked = slow();
    let wrong = case_of(Pair { expected: vec![0; 16], ..Pair::new() });
    let error = bench(&mocked, &[wrong], &BenchOptions { check: true, ..OPTIONS }).unwrap_err();
    assert!(matches!(error, BenchError::Wrong { .. }), "{error}");
    assert!(error.to_string().starts_with("tiny_n4_r2"), "{error}");
    assert_eq!((mocked.alive(), mocked.graphs.load(Ordering::Relaxed)), (0, 2 * 8));
}

#[test]
fn metrics_are_all_of_a_round_in_order() {
    let refused = |there| {
        let mocked = slow();
        let error = bench(&mocked, &[case_of(Pair { there, ..Pair::new() })], &OPTIONS).unwrap_err();
        assert_eq!(mocked.alive(), 0);
        error.to_string()
    };
    assert_eq!(refused(1..2), "metric there = 1..2: launches from 0 on, up to 2 at most");
    assert_eq!(refused(0..2), "metric back = 2..2: launches from 2 on, up to 2 at most");
    assert_eq!(refused(0..3), "metric there = 0..3: launches from 0 on, up to 2 at most");
}

/// Inputs that no launch takes.
#[derive(Debug)]
struct Misnamed(Pair);

impl Problem for Misnamed {
    fn ranks(&self) -> u32 {
        2
    }
    fn rounds(&self) -> u32 {
        1
    }
    fn launches(&self) -> &[LaunchSpec] {
        &self.0.launches
    }
    fn inputs(&self, _rank: u32, _round: u32) -> Vec<Contents> {
        vec![Contents::of("z", &[0u32])]
    }
    fn expected(&self, _rank: u32, _round: u32) -> Vec<Expected> {
        vec![]
    }
    fn metrics(&self) -> Vec<Metric> {
        vec![]
    }
    fn title(&self) -> String {
        String::new()
    }
}

#[test]
fn inputs_of_no_launch_are_refused() {
    let error = bench(&slow(), &[case_of(Misnamed(Pair::new()))], &OPTIONS).unwrap_err().to_string();
    assert!(error.contains("z is no operand, which are x, out"), "{error}");
}

#[test]
fn a_host_that_is_never_ahead_is_reported() {
    // Nanoseconds: no host is that fast.
    let mocked = mocks(1);
    let error = bench(&mocked, &[case()], &OPTIONS).unwrap_err().to_string();
    assert!(error.starts_with("time to launch an iteration = "), "{error}");
    assert_eq!(mocked.alive(), 0);
}

#[test]
fn failures_leave_nothing() {
    for (call, good) in
        [("alloc", 9), ("launch", 30), ("synchronize_stream", 20), ("load", 5), ("alloc_shared", 3)]
    {
        let mocked = slow();
        mocked.fail(call, good);
        let error = bench(&mocked, &[case()], &OPTIONS).unwrap_err().to_string();
        assert_eq!((error, mocked.alive()), (format!("{call} failed: told to"), 0));
    }
    let without_sleep = bench(&Arc::new(Mocked::default()), &[], &OPTIONS).map(|b| b.cases.len());
    assert!(without_sleep.is_err(), "without a sleep there is no floor");
    let mocked = slow();
    let three = suite::plain::<Tiny>()
        .problem(&[Tiny { ranks: 3, ..CONFIG }.into_variant()], &inputs())
        .map(|problem| Case { problem: problem.into() });
    let error = bench(&mocked, &[three.unwrap()], &OPTIONS).unwrap_err().to_string();
    assert!(error.starts_with("ranks of tiny_n4_r3"), "{error}");
    assert_eq!(mocked.alive(), 0);
}

/// The same with a thread in place of each process, and a machine of mocks for each.
fn bench_in_processes(
    mocked: [&Arc<Mocked>; 2],
    options: &BenchOptions,
    case: fn(u32) -> Case,
) -> [Result<Bench, BenchError>; 2] {
    let address = crate::runtime::net::free_address();
    let process = |rank: u32| {
        let (address, options) = (address.clone(), options.clone());
        let gpus = MockGpu::all(mocked[rank as usize], 2);
        std::thread::spawn(move || {
            let secret = crate::runtime::net::secret();
            let launched = Launched {
                launcher: "torchrun",
                rank,
                ranks: 2,
                local_rank: rank,
                node: None,
                address,
                secret,
            };
            let world = World::of_process(&gpus, &launched, &WorldOptions::default()).unwrap();
            run(&[case(rank)], &options, &inputs(), &Arc::new(world), &Uncompiled, &mut || ())
        })
    };
    [0, 1].map(process).map(|process| process.join().unwrap())
}

#[test]
fn every_process_gets_the_times_of_all() {
    let mocked = [60_000_000_000, 61_000_000_000].map(mocks);
    let [zero, one] = bench_in_processes(mocked.each_ref(), &OPTIONS, |_| case()).map(Result::unwrap);
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
    let mocked = [(); 2].map(|()| slow());
    // What is wrong on one rank is wrong on all.
    let wrong =
        |rank: u32| case_of(Pair { expected: vec![if rank == 1 { 0 } else { 0xff }; 16], ..Pair::new() });
    let checked = BenchOptions { check: true, ..OPTIONS };
    let found = bench_in_processes(mocked.each_ref(), &checked, wrong);
    assert!(found.iter().all(|f| matches!(f, Err(BenchError::Wrong { .. }))), "{found:?}");
    mocked[1].fail("synchronize_stream", 5);
    let told =
        bench_in_processes(mocked.each_ref(), &OPTIONS, |_| case()).map(|b| b.unwrap_err().to_string());
    let why = "synchronize_stream failed: told to";
    assert_eq!(told, [format!("rank 1 failed: {why}"), why.into()]);
    assert_eq!(mocked.each_ref().map(|m| m.alive()), [0, 0]);
}
