//! How long it takes to select a variant: every launch of an engine that batches differently each time does it.
//!
//! `cargo bench --bench select`

use criterion::{Criterion, criterion_group, criterion_main};
use peerwarp::families::moe::run::MoeTuning;
use peerwarp::families::moe::{MoeKey, MoeRegistry};
use peerwarp::families::moe::{MoeShape, RowDtype};

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

criterion_group!(benches, select);
criterion_main!(benches);
