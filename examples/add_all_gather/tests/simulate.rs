//! The kernel on simulated ranks, against plain Rust.

use std::sync::Arc;

use add_all_gather::AddAllGather;
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;
use proptest::prelude::*;

fn agrees(config: &AddAllGather, seed: u64, strategy: Strategy) {
    let inputs = Inputs { seed, rounds: 3, ..Inputs::default() };
    let suite = suite::of::<AddAllGather>();
    let problem = suite.problem(&[config.clone().into_variant()], &inputs).unwrap();
    let prepared = SimSession::new(Arc::from(problem)).unwrap();
    let options = Options { seed, strategy, ..Options::default() };
    let ran = prepared.run(&options).unwrap_or_else(|findings| panic!("{config:?}: {findings}"));
    assert!(ran.verdict.ok(), "{config:?}: {:?}", ran.verdict);
    assert_eq!(ran.verdict.compared, 3 * u64::from(config.gathered()) * u64::from(config.ranks));
    // Everything goes once to every other rank.
    let rows = u64::from(config.gathered()) * u64::from(config.dtype.bytes());
    assert_eq!(ran.report.bytes_on_wire(), 3 * rows * u64::from(config.ranks - 1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_variant_agrees_with_plain_rust(
        elements in 1u32..2000,
        ranks in 2u32..6,
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::Fp16]),
        chunk in prop::sample::select(vec![256u32, 1024]),
        blocks in prop::sample::select(vec![1u32, 4]),
        seed: u64,
    ) {
        let config = AddAllGather { elements, ranks, dtype, warps: 2, chunk, send_blocks: blocks, recv_blocks: 5 - blocks };
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            agrees(&config, seed, strategy);
        }
    }
}

#[test]
fn inputs_vary_and_sums_are_plain() {
    let settings = [("elements", "300"), ("ranks", "2"), ("dtype", "f32")];
    let config = AddAllGather::from_settings(&settings).unwrap();
    let [x, y] = config.vectors(1, 0, 0);
    assert!(x != y && x != config.vectors(2, 0, 0)[0] && x != config.vectors(1, 1, 0)[0]);
    assert_eq!(config.sums(1, 0)[..300], x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>());
}
