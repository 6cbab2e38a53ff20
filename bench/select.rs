//! How long it takes to select a variant, which every launch of an engine that batches differently each time does, and to choose
//! one.
//!
//! `cargo bench --bench select`

use criterion::{Criterion, criterion_group, criterion_main};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{self, MoeKey, MoeRegistry, MoeShape, RowDtype};
use peerwarp::harness::choose::Device;

fn select(c: &mut Criterion) {
    let shape =
        |hidden, tokens| MoeShape { hidden, experts: 64, topk: 8, tokens, ranks: 8, dtype: RowDtype::Bf16 };
    let hidden = (1..=20).map(|i| i * 128);
    let all = hidden.flat_map(|h| [1, 8, 16, 32, 64, 128, 256, 512].map(|t| shape(h, t)));
    let all = all.map(|s| MoeTuning::defaults(&s).expect("legal"));
    let registry = MoeRegistry::new(all, true);
    let mut group = c.benchmark_group("select of 160 variants");
    for (name, tokens) in [("exact", 64), ("covering", 100), ("none", 1000)] {
        let key = MoeKey::new(shape(1280, tokens));
        group.bench_function(name, |b| b.iter(|| registry.select(std::hint::black_box(&key)).expect("jit")));
    }
}

/// Choosing what to compile, which is done when an operation is made: at most 50 ms.
fn choose(c: &mut Criterion) {
    let device = Device::of_target("cuda:sm_90a".parse().expect("a target"));
    let shape =
        |tokens| MoeShape { hidden: 7168, experts: 256, topk: 8, tokens, ranks: 2, dtype: RowDtype::Bf16 };
    let mut group = c.benchmark_group("choose");
    for (name, tokens) in [("own record", 64), ("nearest record", 100), ("defaults", 10000)] {
        let key = MoeKey::new(shape(tokens));
        group.bench_function(name, |b| {
            b.iter(|| moe::choose(std::hint::black_box(&key), &device).expect("legal"))
        });
    }
}

criterion_group!(benches, select, choose);
criterion_main!(benches);
