//! How many operations a second the simulator executes, race checks on.
//!
//! `cargo bench --bench simulate`. One run is a dispatch and a combine in the shape of DeepSeek-V3 on eight ranks, under one
//! schedule of each sort: what `peerwarp run` and a seed of `peerwarp check` do.

use std::sync::Arc;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::workload::MoeSuite;
use peerwarp::families::moe::{MoeShape, RowDtype};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::workload::{Inputs, Suite};
use peerwarp::prelude::Family;

fn session(tokens: u32) -> SimSession {
    let shape = MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 8, dtype: RowDtype::Bf16 };
    let tuning = MoeTuning::defaults(&shape).expect("legal");
    let dispatch = tuning.dispatch_launches().into_iter().map(Family::into_variant);
    let launches: Vec<_> =
        dispatch.chain(tuning.combine_launches().into_iter().map(Family::into_variant)).collect();
    let problem = MoeSuite.problem(&launches, &Inputs::default()).expect("inputs of its own");
    SimSession::new(Arc::from(problem)).expect("kernels verify")
}

fn simulate(c: &mut Criterion) {
    let mut group = c.benchmark_group("simulated operations");
    group.sample_size(10).measurement_time(Duration::from_secs(20));
    for tokens in [8, 128] {
        let session = session(tokens);
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            let options = Options::default().with_strategy(strategy);
            let machine = session.machine();
            let run = || machine.run(&options).expect("finds nothing");
            group.throughput(Throughput::Elements(run().report.steps));
            group.bench_function(format!("{tokens} tokens, {strategy:?}"), |b| b.iter(run));
        }
    }
    group.finish();
}

criterion_group!(benches, simulate);
criterion_main!(benches);
