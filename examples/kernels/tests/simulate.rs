//! The kernels on simulated ranks, against plain Rust.

use std::sync::Arc;

use kernels::{FarGather, Histogram, KvPush, MatmulGelu, RingGather, Ulysses};
use peerwarp::codegen::device::FarPath;
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Workload};
use peerwarp::prelude::*;
use proptest::prelude::*;

/// Runs more launches than a channel has banks.
fn agrees<F: Workload>(settings: &str, seed: u64) {
    let config = F::from_text(settings).unwrap_or_else(|e| panic!("{settings}: {e}"));
    let inputs = Inputs { seed, rounds: 5, ..Inputs::default() };
    let problem = suite::of::<F>().problem(&[config.into_variant()], &inputs).unwrap();
    let session = SimSession::new(Arc::from(problem)).unwrap();
    for strategy in [Strategy::Random, Strategy::Adversarial] {
        let ran = session.run(&Options { seed, strategy, ..Options::default() });
        let ran = ran.unwrap_or_else(|findings| panic!("{settings}: {findings}"));
        assert!(ran.verdict.ok() && ran.verdict.compared > 0, "{settings}: {:?}", ran.verdict);
    }
}

/// The cards' share of a launch, by what a run counts.
fn far_us(elements: u32, path: &FarPath) -> f64 {
    let config = FarGather::from_text(&format!("elements={elements} ranks=4 pieces=4 warps=4")).unwrap();
    let inputs = Inputs { rounds: 3, ..Inputs::default() };
    let problem = suite::of::<FarGather>().problem(&[config.into_variant()], &inputs).unwrap();
    let session = SimSession::new(Arc::from(problem)).unwrap();
    session.run(&Options::default()).unwrap().report.far_us(path)
}

#[test]
fn a_large_far_gather_takes_twice_as_long_with_half_the_bandwidth() {
    let card = FarPath { gbps: 46.9, put_us: 4.0, count_us: 1.0, puts_per_us: 5.0 };
    let half = FarPath { gbps: card.gbps / 2.0, ..card };
    let near = |got: f64, want: f64| assert!((got - want).abs() <= 1e-9 * want, "{got} is not {want}");
    // A row to each of three others, and the way of the last bytes there and of their acknowledgement back.
    let (elements, ways_us) = (1 << 18, 2.0 * card.put_us);
    let bytes_us = 3.0 * f64::from(4 * elements) / card.gbps / 1e3;
    near(far_us(elements, &card), bytes_us + ways_us);
    near(far_us(elements, &half), 2.0 * bytes_us + ways_us);
    // A small one takes the latency and its 15 messages, whatever the bandwidth is.
    near(far_us(64, &card), 15.0 / 5.0 + ways_us);
    near(far_us(64, &half), 15.0 / 5.0 + ways_us);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn rings_of_any_length_gather_all_vectors(
        elements in 1u32..3000,
        ranks in 2u32..6,
        dtype in prop::sample::select(vec!["f32", "bf16", "fp16"]),
        blocks in prop::sample::select(vec![1u32, 4]),
        seed: u64,
    ) {
        agrees::<RingGather>(&format!("elements={elements} ranks={ranks} dtype={dtype} warps=4 blocks={blocks}"), seed);
    }

    #[test]
    fn rows_that_are_put_far_reach_all_ranks(
        elements in 1u32..200,
        ranks in 2u32..6,
        pieces in prop::sample::select(vec![1u32, 4]),
        seed: u64,
    ) {
        let elements = 4 * elements;
        agrees::<FarGather>(&format!("elements={elements} ranks={ranks} pieces={pieces} warps=4"), seed);
    }

    #[test]
    fn numbers_of_all_ranks_are_counted(
        numbers in 1u32..9000,
        bins in 1u32..300,
        ranks in 1u32..4,
        blocks in prop::sample::select(vec![1u32, 4]),
        seed: u64,
    ) {
        agrees::<Histogram>(&format!("numbers={numbers} bins={bins} ranks={ranks} blocks={blocks}"), seed);
    }

    #[test]
    fn pages_of_requests_are_in_the_pools_of_their_readers(
        page in 1u32..5,
        pool in 1u32..24,
        requests in 1u32..7,
        max_pages in 1u32..6,
        ranks in 1u32..5,
        parts in prop::sample::select(vec![1u32, 2]),
        blocks in prop::sample::select(vec![1u32, 4]),
        dtype in prop::sample::select(vec!["bf16", "f32", "fp8"]),
        seed: u64,
    ) {
        let page = 32 * page;
        let key = format!("page={page} pool={pool} requests={requests} max_pages={max_pages} ranks={ranks} dtype={dtype}");
        agrees::<KvPush>(&format!("{key} parts={parts} blocks={blocks}"), seed);
    }

    #[test]
    fn products_have_their_bias_gelu_and_largest_elements(
        m in 1u32..300,
        n in 1u32..5,
        k in 1u32..20,
        dtype in prop::sample::select(vec!["bf16", "fp16"]),
        blocks in prop::sample::select(vec![1u32, 3]),
        seed: u64,
    ) {
        let (n, k) = (64 * n, 8 * k);
        agrees::<MatmulGelu>(&format!("m={m} n={n} k={k} dtype={dtype} blocks={blocks}"), seed);
    }

    #[test]
    fn heads_of_all_tokens_arrive_at_their_ranks(
        own in 1u32..12,
        heads in 1u32..3,
        dim in prop::sample::select(vec![8u32, 24, 128]),
        ranks in 2u32..5,
        seed: u64,
    ) {
        let (tokens, heads) = (own * ranks, heads * ranks);
        agrees::<Ulysses>(&format!("tokens={tokens} heads={heads} dim={dim} ranks={ranks} warps=4 blocks=1"), seed);
    }
}

#[test]
fn tokens_and_heads_that_ranks_do_not_divide_are_refused() {
    let said = |settings: &str| Ulysses::from_text(settings).unwrap_err().to_string();
    let tokens = said("tokens=65 heads=8 dim=16 ranks=2");
    assert!(tokens.contains("`tokens` = 65") && tokens.contains("a multiple of the 2 ranks"), "{tokens}");
    let heads = said("tokens=64 heads=7 dim=16 ranks=2");
    assert!(heads.contains("`heads` = 7") && heads.contains("a multiple of the 2 ranks"), "{heads}");
}
