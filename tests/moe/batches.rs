//! Two batches in turn: two operations of one world, of which one sends while the other's rows are with the experts.

use std::sync::Arc;

use peerwarp::codegen::ir::Const;
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::families::moe::kernels::{Layout, Protocol};
use peerwarp::families::moe::run::{MoeRounds, MoeTuning};
use peerwarp::families::moe::{MoeProblem, MoeShape};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::verdict::{Expected, Verdict};
use peerwarp::harness::workload::{Contents, Metric, Problem, RankMemory};
use peerwarp::runtime::op::LaunchSpec;

use crate::support::{shape, small};

/// What the second batch's buffers and numbers begin with.
const OTHER: &str = "other_";

/// A dispatch of each, then a combine of each.
#[derive(Debug)]
struct TwoBatches {
    batches: [MoeRounds; 2],
    launches: Vec<LaunchSpec>,
}

impl TwoBatches {
    /// All that the second has is its own, but for one buffer if it is named.
    fn new(batches: [MoeRounds; 2], shared: Option<&str>) -> TwoBatches {
        let mut launches = vec![];
        for half in 0..2 {
            launches.push(batches[0].launches()[half].clone());
            launches.push(apart(batches[1].launches()[half].clone(), shared));
        }
        TwoBatches { batches, launches }
    }
}

/// The launch with buffers and numbers of its own.
fn apart(mut launch: LaunchSpec, shared: Option<&str>) -> LaunchSpec {
    for param in launch.variant.params().iter().filter(|param| Some(&*param.name) != shared) {
        let buffer = format!("{OTHER}{}", launch.buffer(&param.name));
        launch = launch.with_buffer(&param.name, &buffer);
    }
    launch
}

/// A rank's memory as the second batch knows it.
struct Others<'a>(&'a mut dyn RankMemory);

impl RankMemory for Others<'_> {
    fn rank(&self) -> u32 {
        self.0.rank()
    }
    fn read(&mut self, buffer: &str, at: u64, bytes: usize) -> Result<Vec<u8>, String> {
        self.0.read(&format!("{OTHER}{buffer}"), at, bytes)
    }
    fn write(&mut self, buffer: &str, at: u64, bytes: &[u8]) -> Result<(), String> {
        self.0.write(&format!("{OTHER}{buffer}"), at, bytes)
    }
    fn size(&self, buffer: &str) -> Result<u64, String> {
        self.0.size(&format!("{OTHER}{buffer}"))
    }
    fn poison(&self) -> Option<u8> {
        self.0.poison()
    }
}

impl Problem for TwoBatches {
    fn ranks(&self) -> u32 {
        self.batches[0].ranks()
    }
    fn rounds(&self) -> u32 {
        self.batches[0].rounds()
    }
    fn launches(&self) -> &[LaunchSpec] {
        &self.launches
    }
    fn inputs(&self, rank: u32, round: u32) -> Vec<Contents> {
        let [first, second] = &self.batches;
        let renamed = |one: Contents| Contents { buffer: format!("{OTHER}{}", one.buffer), ..one };
        let second = second.inputs(rank, round).into_iter().map(renamed);
        first.inputs(rank, round).into_iter().chain(second).collect()
    }
    fn numbers(&self, rank: u32, round: u32) -> Vec<(String, Const)> {
        let [first, second] = &self.batches;
        let renamed = |(name, value)| (format!("{OTHER}{name}"), value);
        let second = second.numbers(rank, round).into_iter().map(renamed);
        first.numbers(rank, round).into_iter().chain(second).collect()
    }
    fn has_host_steps(&self) -> bool {
        true
    }
    fn after_launch(&self, launch: usize, round: u32, memory: &mut dyn RankMemory) -> Result<(), String> {
        match launch % 2 {
            0 => self.batches[0].after_launch(launch / 2, round, memory),
            _ => self.batches[1].after_launch(launch / 2, round, &mut Others(memory)),
        }
    }
    fn expected(&self, rank: u32, round: u32) -> Vec<Expected> {
        let [first, second] = &self.batches;
        let renamed = |one: Expected| Expected { buffer: format!("{OTHER}{}", one.buffer), ..one };
        let second = second.expected(rank, round).into_iter().map(renamed);
        first.expected(rank, round).into_iter().chain(second).collect()
    }
    fn compare(&self, rank: u32, round: u32, expected: &Expected, found: &[u8], verdict: &mut Verdict) {
        let batch = usize::from(expected.buffer.starts_with(OTHER));
        self.batches[batch].compare(rank, round, expected, found, verdict);
    }
    fn metrics(&self) -> Vec<Metric> {
        vec![]
    }
    fn title(&self) -> String {
        "two batches".into()
    }
}

/// Rounds of a batch that differs from others by its seed.
fn batch(shape: &MoeShape, layout: Layout, protocol: Protocol, seed: u64) -> MoeRounds {
    let tuning: MoeTuning = small(shape).with_layout(layout).with_protocol(protocol);
    let n: Vec<u32> = (0..shape.ranks).map(|rank| (rank + seed as u32) % (shape.tokens + 1)).collect();
    let problem = MoeProblem::uniform(*shape, &n, seed).unwrap();
    MoeRounds::new(&problem, &tuning, 3).unwrap()
}

fn session(layout: Layout, protocol: Protocol, shared: Option<&str>) -> SimSession {
    let shape = shape(64, 6, 2, 3, 3);
    let batches = [1, 2].map(|seed| batch(&shape, layout, protocol, seed));
    SimSession::new(Arc::new(TwoBatches::new(batches, shared))).unwrap()
}

#[test]
fn operations_of_a_world_take_turns() {
    for protocol in [Protocol::Packets, Protocol::Flags] {
        for layout in [Layout::RankMajor, Layout::ExpertMajor] {
            let sim = session(layout, protocol, None);
            for strategy in [Strategy::Random, Strategy::Adversarial] {
                for seed in 0..4 {
                    let options = Options::default().with_seed(seed).with_strategy(strategy);
                    let ran =
                        sim.run(&options).unwrap_or_else(|found| panic!("{layout:?}, {protocol:?}: {found}"));
                    assert!(ran.verdict.ok() && ran.verdict.compared > 0, "{:?}", ran.verdict);
                }
            }
        }
    }
}

/// Numbers have names of their own too: rows of the second batch are as many as its own number says.
#[test]
fn rows_are_as_many_as_their_own_number_says() {
    let sim = session(Layout::RankMajor, Protocol::Flags, None);
    let buffers = sim.problem().buffers().unwrap();
    let number =
        |name: &str| buffers.iter().find(|b| b.name == name)?.param.rows.clone().map(|rows| rows.scalar);
    assert_eq!(
        [number("x"), number("other_x")],
        ["rows_there", "other_rows_there"].map(|name| Some(name.into()))
    );
}

/// What would be seen if they were not apart.
#[test]
fn operations_that_share_where_rows_arrive_are_found() {
    let sim = session(Layout::RankMajor, Protocol::Flags, Some("inbox"));
    let failed = |seed: &u64| match sim.run(&Options::default().with_seed(*seed)) {
        Err(_) => true,
        Ok(ran) => !ran.verdict.ok(),
    };
    assert!((0..4).all(|seed| failed(&seed)));
}
