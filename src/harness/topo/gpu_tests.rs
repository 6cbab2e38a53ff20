use std::sync::atomic::Ordering;

use super::super::measure::{measure, steps};
use super::*;
use crate::runtime::WorldOptions;
use crate::runtime::mock::{Machine, MockGpu, Uncompiled};

/// Longer than a host takes to launch anything, so that no iteration is repeated; each time is longer than the one before.
fn slower_and_slower(machine: &Machine) {
    machine.gap.store(60_000_000_000, Ordering::Relaxed);
    machine.growth.store(1000, Ordering::Relaxed);
}

fn probe(machine: &Machine, count: u32, bytes: u64) -> OnGpus {
    let gpus = MockGpu::all_ipc(machine, count);
    let world = Arc::new(World::of_gpus(&gpus, &WorldOptions::default()).unwrap());
    OnGpus::new(&gpus, Some((world, &Uncompiled)), bytes, 2).unwrap()
}

/// All that is measured, on GPUs that compute nothing.
#[test]
fn mocks_are_measured_from_end_to_end() {
    let machine = Machine::default();
    slower_and_slower(&machine);
    let mut probe = probe(&machine, 3, 1 << 20);
    let mut ticks = 0;
    let profile = measure(&mut probe, 1 << 20, &mut || ticks += 1).unwrap();
    assert_eq!((ticks, profile.pairs.len(), profile.gpus.len()), (steps(3), 6, 3));
    for pair in &profile.pairs {
        let known = [pair.gbps.stores, pair.gbps.bulk, pair.gbps.copies, pair.packet_us, pair.signal_us];
        assert!(known.iter().all(|x| x.is_some_and(|x| x > 0.0 && x.is_finite())), "{pair:?}");
        assert!(pair.peer_access && pair.gbps.loads.is_none());
    }
    for gpu in &profile.gpus {
        assert!(gpu.one_to_all.stores.is_some() && gpu.all_to_all.copies.is_some(), "{gpu:?}");
    }
    // Six pairs, then two from each GPU, then all six: one copy to come up and eight in each of two iterations.
    assert_eq!(machine.calls("copy_to_peer"), (6 + 3 * 2 + 6) * (1 + 2 * COPIES));
    drop(probe);
}

/// What the kernels read says who sends to whom, and how much.
#[test]
fn the_plan_of_a_pattern_is_written_to_every_rank() {
    let machine = Machine::default();
    slower_and_slower(&machine);
    let mut probe = probe(&machine, 3, 100_000);
    let rates = probe.gbps(Way::Bulk, &[(0, 2), (1, 0), (1, 2)]).unwrap();
    assert!(rates[0] > 0.0 && rates[1] > rates[0] && rates[2] == 0.0, "{rates:?}");
    let kernels = probe.kernels().unwrap();
    let read = |rank: usize, name: &str| {
        let own = kernels.bulk.ready.operands[rank].iter().find(|(own, _)| own == name).unwrap();
        own.1.read::<u64>(0, own.1.bytes() as usize / 8).unwrap()
    };
    assert_eq!([0, 1, 2].map(|rank| read(rank, "plan")), [[0b100, 0b010], [0b101, 0], [0, 0b011]]);
    let chunks: u32 =
        kernels.bulk.ready.operands[1].iter().find(|(own, _)| own == "chunks").unwrap().1.read(0, 1).unwrap()
            [0];
    // 100000 bytes are four chunks of 32 KiB.
    assert_eq!((chunks, kernels.bulk.chunks), (4, 4));
    probe.latency(2, 1).unwrap();
    let kernels = probe.kernels().unwrap();
    let game: Vec<u32> = kernels.signals.operands[0][0].1.read(0, 3).unwrap();
    assert_eq!(game, [2, 1, FEW + ROUNDS]);
    drop(probe);
}

#[test]
fn limits_of_a_world_are_measured_or_it_is_said_why_not() {
    let machine = Machine::default();
    slower_and_slower(&machine);
    let world = |count: u32, options: &WorldOptions| {
        Arc::new(World::of_gpus(&MockGpu::all_ipc(&machine, count), options).unwrap())
    };
    let plain = world(3, &WorldOptions::default());
    let limits = limits_of(&plain, &Uncompiled).unwrap();
    let all = [limits.first_node_us, limits.hop_us, limits.one_peer_gbps, limits.all_peers_gbps];
    assert!(all.iter().all(|part| *part > 0.0 && part.is_finite()), "{limits:?}");
    assert_eq!(machine.calls("copy_to_peer"), 0);
    // The world is as it was: the next measurement works, too.
    limits_of(&plain, &Uncompiled).unwrap();
    let gpu = MockGpu::all_ipc(&machine, 1).swap_remove(0);
    let shared = WorldOptions { share_gpus: true, ..WorldOptions::default() };
    let shared = Arc::new(World::of_gpus(&[Arc::clone(&gpu), gpu], &shared).unwrap());
    let why = limits_of(&shared, &Uncompiled).unwrap_err();
    assert_eq!(why, "up to 2 ranks share a GPU, and have no link between them");
    let alone = limits_of(&world(1, &WorldOptions::default()), &Uncompiled).unwrap_err();
    assert_eq!(alone, "one rank has no peers, and takes no link");
    let blind = Machine::default();
    blind.gap.store(60_000_000_000, Ordering::Relaxed);
    let blind = World::of_gpus(&MockGpu::all_ipc(&blind, 2), &WorldOptions::default()).unwrap();
    let why = limits_of(&Arc::new(blind), &Uncompiled).unwrap_err();
    assert!(why.starts_with("measuring this machine's links failed: time of 512 rounds"), "{why}");
}

#[test]
fn a_clock_that_tells_nothing_is_an_error() {
    let machine = Machine::default();
    machine.gap.store(60_000_000_000, Ordering::Relaxed);
    let mut probe = probe(&machine, 2, 4096);
    let error = probe.gbps(Way::Stores, &[(0, 1)]).unwrap_err().to_string();
    assert!(
        error.contains("time of 32768 bytes = 0.000 us: more than none") && error.contains("--bytes"),
        "{error}"
    );
    let error = probe.latency(0, 1).unwrap_err().to_string();
    assert!(error.contains("time of 512 rounds"), "{error}");
    drop(probe);
}

#[test]
fn without_a_world_copies_alone_are_measured() {
    let machine = Machine::default();
    slower_and_slower(&machine);
    let mut probe = OnGpus::new(&MockGpu::all_ipc(&machine, 2), None, 4096, 1).unwrap();
    let profile = measure(&mut probe, 4096, &mut || ()).unwrap();
    assert!(profile.pairs.iter().all(|p| p.gbps.copies.is_some() && p.gbps.stores.is_none()));
    assert!(probe.latency(0, 1).unwrap_err().to_string().contains("GPUs that all reach each other"));
    assert!(probe.gbps(Way::Loads, &[(0, 1)]).is_err());
    drop(probe);
}

#[test]
fn places_are_read_from_the_system() {
    let folder = tempfile::tempdir().unwrap();
    let device = folder.path().join("devices/pci0000:16/0000:16:01.0/0000:18:00.0");
    std::fs::create_dir_all(&device).unwrap();
    std::fs::write(device.join("numa_node"), "1\n").unwrap();
    let bus = folder.path().join("bus");
    std::fs::create_dir(&bus).unwrap();
    std::os::unix::fs::symlink(&device, bus.join("0000:18:00.0")).unwrap();
    let want = Place { bridges: vec!["pci0000:16".into(), "0000:16:01.0".into()], node: Some(1) };
    for id in ["0000:18:00.0", "00000000:18:00.0"] {
        assert_eq!(place(&bus, id), Some(want.clone()), "{id}");
    }
    std::fs::write(device.join("numa_node"), "-1\n").unwrap();
    assert_eq!(place(&bus, "0000:18:00.0").unwrap().node, None);
    assert_eq!(place(&bus, "0000:19:00.0"), None);
}
