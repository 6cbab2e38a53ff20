//! How long it takes from a kernel function to source text.
//!
//! `cargo bench --bench emit`; the whole catalogue runs on two threads.

use criterion::{Criterion, criterion_group, criterion_main};
use peerwarp::build::emit::{self, Job};
use peerwarp::cli::builtin;
use peerwarp::codegen::family::{Family, Registry, Target, Variant};
use peerwarp::codegen::print::EmitOptions;
use peerwarp::families::matmul::{AllGatherMatmul, Matmul, MatmulReduceScatter};
use peerwarp::families::moe::catalogue;
use peerwarp::harness::request::{self, Request};

fn registry() -> Registry {
    Registry::new(builtin().iter().map(|e| e.family()))
}

fn deepseek() -> Vec<Request> {
    let all = catalogue::builtin().problems;
    let tokens = ("tokens".to_owned(), "128".to_owned());
    let wanted = |r: &Vec<Request>| r[0].label == "deepseek-v3" && r[0].key.contains(&tokens);
    all.into_iter().find(wanted).expect("in the built-in catalogue")
}

/// Products of many rows and of few, whose columns blocks share.
fn products() -> Vec<Variant> {
    fn of<F: Family>(settings: &str) -> Variant {
        let all = format!("{settings} ranks=2 dtype=bf16");
        F::from_text(&all).expect("legal").into_variant()
    }
    vec![
        of::<Matmul>("m=8192 n=7168 k=4096"),
        of::<AllGatherMatmul>("m=8192 n=7168 k=4096"),
        of::<MatmulReduceScatter>("m=256 n=4096 k=7168 split=2 tile_columns=128"),
    ]
}

fn one_variant(c: &mut Criterion) {
    let target: Target = "cuda:sm_90a".parse().expect("a target");
    let mut variants: Vec<Variant> = request::resolve(&deepseek(), &registry()).expect("legal");
    variants.extend(products());
    for variant in &variants {
        let mut group = c.benchmark_group(variant.family().name());
        group.bench_function("trace", |b| b.iter(|| variant.trace(32).expect("traces")));
        group.bench_function("trace and verify", |b| {
            b.iter(|| emit::trace(&**variant, 32).expect("verifies"))
        });
        group.bench_function("trace, verify and print", |b| {
            b.iter(|| emit::source("peerwarp", &**variant, target).expect("prints"))
        });
    }
}

fn whole_catalogue(c: &mut Criterion) {
    let registry = registry();
    let catalogue = catalogue::builtin();
    let mut jobs = vec![];
    for requests in &catalogue.problems {
        for &target in &catalogue.targets {
            let variants = request::resolve(requests, &registry).expect("legal");
            let job = |variant| Job { label: requests[0].label.clone(), variant, target };
            jobs.extend(variants.into_iter().map(job));
        }
    }
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
    let mut group = c.benchmark_group("catalogue");
    group.sample_size(10);
    group.bench_function(format!("{} sources on 2 threads", jobs.len()), |b| {
        b.iter(|| {
            pool.install(|| {
                emit::tree("peerwarp", &jobs, &[], &EmitOptions::default(), || ()).expect("emits")
            })
        })
    });
}

criterion_group!(benches, one_variant, whole_catalogue);
criterion_main!(benches);
