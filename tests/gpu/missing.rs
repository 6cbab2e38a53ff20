//! Worlds that go on without a rank, and graphs that were captured before it left.

use std::sync::Arc;

use peerwarp::families::collectives::{
    AllGather, AllReduce, AllToAll, Broadcast, RaggedAllToAll, ReduceScatter, RegisteredAllReduce,
};
use peerwarp::families::moe::kernels::{Layout, RoundTrip};
use peerwarp::families::moe::run::MoeRounds;
use peerwarp::families::moe::{MoeKey, MoeProblem, Routing, RowDtype};
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Problem, Workload};
use peerwarp::runtime::RuntimeError;
use serde_json::json;

use super::{gpus, jit, options, report, shape, two};

/// Graphs that are launched without the rank.
const REPLAYS: u32 = 51;

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
                    let tuning = MoeKey { layout, ..MoeKey::new(shape) }.defaults().unwrap();
                    found.run(rank, Box::new(MoeRounds::new(&problem, &tuning, 3).unwrap()));
                }
                let config = RoundTrip::defaults(&shape).unwrap();
                found.run(rank, Box::new(MoeRounds::in_one_launch(&problem, &config, 3).unwrap()));
            }
        }
    }
    found.report("moe_without_a_rank");
}
