//! The kernel on simulated ranks, against plain Rust.

use std::sync::Arc;

use add_all_gather::config::AddAllGather;
use peerwarp::codegen::sim::{Options, Strategy};
use peerwarp::harness::session::SimSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::{Inputs, Turn};
use peerwarp::prelude::*;
use proptest::prelude::*;

/// So that banks are used again.
const ROUNDS: u32 = 5;

fn agrees(config: &AddAllGather, seed: u64, strategy: Strategy) {
    let inputs = Inputs { seed, rounds: ROUNDS, ..Inputs::default() };
    let problem = suite::of::<AddAllGather>().problem(&[config.clone().into_variant()], &inputs).unwrap();
    let session = SimSession::new(Arc::from(problem)).unwrap();
    let options = Options { seed, strategy, ..Options::default() };
    let ran = session.run(&options).unwrap_or_else(|findings| panic!("{config:?}: {findings}"));
    assert!(ran.verdict.ok(), "{config:?}: {:?}", ran.verdict);
    let (rounds, ranks) = (u64::from(ROUNDS), u64::from(config.ranks));
    assert_eq!(ran.verdict.compared, rounds * u64::from(config.gathered()) * ranks);
    // Everything goes once to every other rank: what the limit of `bench` is made of.
    let [metric] = &session.problem().metrics()[..] else { panic!("one launch") };
    let bytes: u64 = metric.work.bytes.iter().flatten().sum();
    assert_eq!(bytes, u64::from(config.gathered()) * u64::from(config.dtype.bytes()) * (ranks - 1));
    // LL elements are half epochs.
    let bytes = if config.protocol == Transport::Ll { 2 * bytes } else { bytes };
    assert_eq!(ran.report.bytes_on_wire(), rounds * bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn any_variant_agrees_with_plain_rust(
        elements in 1u32..2000,
        ranks in 2u32..6,
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::Bf16, Dtype::Fp16]),
        chunk in prop::sample::select(vec![256u32, 1024]),
        protocol in prop::sample::select(vec![Transport::Flags, Transport::Packets, Transport::Ll]),
        (send_blocks, recv_blocks) in prop::sample::select(vec![(1u32, 4u32), (4, 1), (2, 8)]),
        seed: u64,
    ) {
        // Packets and LL words are whole.
        let together = match protocol {
            Transport::Packets => 8,
            Transport::Ll => dtype.per_ll_word().unwrap(),
            Transport::Flags | Transport::Bulk | Transport::Far => 1,
        };
        let elements = elements.next_multiple_of(together);
        let config =
            AddAllGather { elements, ranks, dtype, warps: 2, protocol, chunk, send_blocks, recv_blocks };
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            agrees(&config, seed, strategy);
        }
    }
}

#[test]
fn inputs_vary_and_sums_are_plain() {
    let config = AddAllGather::from_text("elements=300 ranks=2 dtype=f32").unwrap();
    let turn = Turn { seed: 1, rank: 0, round: 0 };
    let [x, y] = config.vectors(turn);
    let x_of = |turn| config.vectors(turn)[0].clone();
    assert!(x != y);
    for other in [Turn { seed: 2, ..turn }, Turn { rank: 1, ..turn }, Turn { round: 1, ..turn }] {
        assert_ne!(x, x_of(other), "{other:?}");
    }
    assert_eq!(config.sums(turn)[..300], x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>());
}
