//! The kernel on real GPUs, to the bit: `cargo test --release -p add-all-gather --test gpu`. Where there is one GPU, both
//! ranks share it; without any, every test says that it was skipped.

use std::sync::{Arc, Mutex, MutexGuard};

use add_all_gather::AddAllGather;
use peerwarp::harness::session::GpuSession;
use peerwarp::harness::suite;
use peerwarp::harness::workload::Inputs;
use peerwarp::prelude::*;
use peerwarp::runtime::cache::ModuleCache;
use peerwarp::runtime::image::Jit;
use peerwarp::runtime::{self, World, WorldOptions};

/// Kernels of two tests would wait for each other's GPUs.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The GPUs of one test: a world of two, and the compiler for them.
struct Pair {
    world: Arc<World>,
    jit: Jit,
    _one: MutexGuard<'static, ()>,
}

fn pair() -> Option<Pair> {
    let gpus = match runtime::gpus() {
        Ok(gpus) => gpus.into_iter().cycle().take(2).collect::<Vec<_>>(),
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let one = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
    let options = WorldOptions { share_gpus: true, ..WorldOptions::default() };
    let world = Arc::new(World::of_gpus(&gpus, &options).unwrap());
    let jit = Jit::for_target(gpus[0].info().target, ModuleCache::of_user()).unwrap();
    Some(Pair { world, jit, _one: one })
}

fn config(elements: u32, dtype: Dtype, settings: &[(&str, &str)]) -> AddAllGather {
    let (elements, dtype) = (elements.to_string(), dtype.to_string());
    let key = [("elements", elements.as_str()), ("ranks", "2"), ("dtype", dtype.as_str())];
    AddAllGather::from_settings(&[&key[..], settings].concat()).unwrap()
}

impl Pair {
    /// Rounds of a variant, in memory full of NaNs.
    fn session(&self, config: &AddAllGather, rounds: u32, seed: u64) -> GpuSession {
        let inputs = Inputs { seed, rounds, ..Inputs::default() };
        let variant = config.clone().into_variant();
        let problem = suite::of::<AddAllGather>().problem(&[variant], &inputs).unwrap();
        GpuSession::new(Arc::from(problem), &self.world, &self.jit).unwrap().poisoned()
    }

    /// Runs rounds one after the other, then all of them as a graph so often; every bit is compared.
    fn every_bit(&self, config: &AddAllGather, rounds: u32, replays: u32, seed: u64) {
        let ran = self.session(config, rounds, seed).run(replays).unwrap();
        assert!(ran.ok, "{config:?}: {ran:?}");
        let compared = u64::from(rounds) * 2 * u64::from(config.gathered());
        assert_eq!(ran.verdict.compared, compared, "{config:?}");
        assert_eq!(ran.replayed.is_some(), replays > 0);
    }
}

#[test]
fn every_dtype_and_size_is_right_to_the_bit() {
    let Some(pair) = pair() else { return };
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Fp16] {
        // One element, a rest only, full chunks only, both, and many chunks for each block.
        for elements in [1, 255, 1024, 2500, 1 << 20, (1 << 20) + 3] {
            for protocol in [&[][..], &[("protocol", "flags")]] {
                pair.every_bit(&config(elements, dtype, protocol), 2, 0, u64::from(elements));
            }
        }
    }
}

#[test]
fn tuned_variants_are_right_to_the_bit() {
    let Some(pair) = pair() else { return };
    let variants = [
        ("2", "256", "1", "64"),
        ("4", "8192", "64", "1"),
        ("8", "16384", "32", "32"),
        ("16", "16384", "64", "64"),
        ("16", "512", "16", "2"),
    ];
    for (warps, chunk, send_blocks, recv_blocks) in variants {
        let blocks: u32 = [send_blocks, recv_blocks].iter().map(|n| n.parse::<u32>().unwrap()).sum();
        if pair.world.blocks_per_launch().is_some_and(|most| blocks > most) {
            eprintln!("skipped: {blocks} blocks of two ranks do not fit on one GPU");
            continue;
        }
        let settings = [
            ("protocol", "flags"),
            ("warps", warps),
            ("chunk", chunk),
            ("send_blocks", send_blocks),
            ("recv_blocks", recv_blocks),
        ];
        pair.every_bit(&config(100_001, Dtype::Bf16, &settings), 3, 3, 7);
    }
}

/// Rounds are launched without barriers, and graphs of them over and over without the host.
#[test]
fn rounds_back_to_back_and_graphs_are_right_to_the_bit() {
    let Some(pair) = pair() else { return };
    for (elements, seed) in [(300, 1), (40_000, 2), (1 << 21, 3)] {
        for protocol in ["flags", "packets"].into_iter().filter(|p| *p == "flags" || elements % 8 == 0) {
            pair.every_bit(&config(elements, Dtype::Bf16, &[("protocol", protocol)]), 7, 51, seed);
        }
    }
}

#[test]
fn packets_are_right_to_the_bit() {
    let Some(pair) = pair() else { return };
    for (elements, warps, chunk, blocks) in [
        (8, "4", "256", "1"),
        (1000, "8", "256", "4"),
        (65_536, "8", "1024", "32"),
        (1 << 20, "16", "4096", "16"),
    ] {
        let settings = [
            ("protocol", "packets"),
            ("warps", warps),
            ("chunk", chunk),
            ("send_blocks", blocks),
            ("recv_blocks", blocks),
        ];
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::Fp16] {
            pair.every_bit(&config(elements, dtype, &settings), 5, 21, 3);
        }
    }
}

/// Epochs are 32 bits wide: flags are right when they start over.
#[test]
fn epochs_wrap() {
    let Some(pair) = pair() else { return };
    let mut session = pair.session(&config(5_000, Dtype::F32, &[]), 6, 11);
    session.start_after(u32::MAX - 3).unwrap();
    let ran = session.run(5).unwrap();
    assert!(ran.ok, "{ran:?}");
}
