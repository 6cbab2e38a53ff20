//! Processes that go on without others: one is killed, one is stopped and comes back.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::super::mock::{Machine, MockGpu};
use super::super::net::FormError;
use super::super::net::free_address;
use super::super::net::ledger::tests::{DIES, POINTS};
use super::process_tests::{port, process_of};
use super::tests::{launched, options, read_own, word, write_all};
use super::*;

const CHILD: &str = "runtime::world::going_on_tests::child";

/// How long a process waits for a file of another one.
const LONG: Duration = Duration::from_secs(60);

pub(super) fn process(
    child: &str,
    (rank, ranks): (u32, u32),
    address: &str,
    part: &str,
    folder: &Path,
) -> Child {
    let mut command = process_of(child, "", rank, ranks, port(address));
    command.env("PEERWARP_TEST_PART", part).env("PEERWARP_TEST_FOLDER", folder).spawn().unwrap()
}

/// Says something to the other processes.
pub(super) fn say(folder: &Path, what: &str) {
    std::fs::write(folder.join(what), "").unwrap();
}

/// Waits for what another process says.
pub(super) fn hear(folder: &Path, what: &str) {
    let begun = Instant::now();
    while !folder.join(what).exists() {
        assert!(begun.elapsed() < LONG, "no process says `{what}`");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What a process was started for.
pub(super) struct Started {
    pub launched: Launched,
    pub gpus: Vec<Arc<dyn Gpu>>,
    /// The rank that leaves.
    pub gone: u32,
    /// How it leaves, or what this process does.
    pub how: String,
    /// Where processes say things.
    pub folder: PathBuf,
}

impl Started {
    pub fn here() -> Option<Started> {
        let launched = Launched::here().ok().flatten()?;
        let part = std::env::var("PEERWARP_TEST_PART").unwrap_or_default();
        let (gone, how) = part.split_once(' ').unwrap();
        let (gone, how) = (gone.parse().unwrap(), how.to_owned());
        let folder = PathBuf::from(std::env::var("PEERWARP_TEST_FOLDER").unwrap_or_default());
        let gpus = MockGpu::all(&Machine::default(), launched.ranks);
        Some(Started { launched, gpus, gone, how, folder })
    }
}

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    let Some(Started { launched, gpus, gone, how, folder }) = Started::here() else { return };
    let world = World::of_process(&gpus, &launched, &options()).unwrap();
    let block = world.allocate(64).unwrap();
    let kept = world.share(64).unwrap();
    write_all(&world, 0, &block);
    world.agree(Ok(())).unwrap();
    // SAFETY: memory of the world.
    unsafe { gpus[launched.rank as usize].upload(kept.own(0), &[7]).unwrap() };
    match (launched.rank == gone, &*how) {
        (true, "killed") => std::process::abort(),
        (true, how) if how.starts_with("dies ") => std::process::abort(),
        (true, _) => return stopped(&world, &block, &folder),
        _ => {}
    }
    if how.starts_with("dies ") {
        return goes_on_twice(&world, &block, gone, &how);
    }
    let left = match (launched.rank, &*how) {
        // Who waits in vain for a process that is there says so.
        (0, "stopped") => {
            hear(&folder, "stopping");
            world.deactivate(gone).map(|()| vec![gone])
        }
        _ => world.go_on(),
    };
    assert_eq!(left.unwrap(), [gone]);
    assert_eq!((world.inactive(), world.is_active(gone)), (1 << gone, false));
    assert_eq!(read_own(&world, 0, &block), [0, 0, 0, 0][..launched.ranks as usize], "it is other memory");
    world.agree(Ok(())).unwrap();
    write_all(&world, 0, &block);
    world.agree(Ok(())).unwrap();
    if how == "stopped" {
        say(&folder, &format!("on{}", launched.rank));
        hear(&folder, "come back");
    }
    let from = |from: u32| if from == gone { 0 } else { word(from, launched.rank) };
    let want: Vec<u64> = (0..launched.ranks).map(from).collect();
    assert_eq!(read_own(&world, 0, &block), want, "the rank that left reaches nothing");
    let mut held = [0];
    // SAFETY: memory of the world.
    unsafe { gpus[launched.rank as usize].download(kept.own(0), &mut held).unwrap() };
    assert_eq!(held, [7], "what is the caller's stays");
    // Memory that comes later, and another rank that leaves.
    let later = world.allocate(64).unwrap();
    write_all(&world, 0, &later);
    world.agree(Ok(())).unwrap();
    assert_eq!(read_own(&world, 0, &later), want);
    assert_eq!(world.gather(Ok(launched.rank)).unwrap().len() as u32, launched.ranks - 1);
    assert_eq!(world.go_on().unwrap(), [0u32; 0], "all are there");
}

/// A rank that is stopped, and goes on when the others have gone on without it.
fn stopped(world: &World, block: &Symmetric, folder: &Path) {
    say(folder, "stopping");
    kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
    // A stop comes a moment after it was asked for.
    hear(folder, "woken");
    // As a kernel that went on would.
    write_all(world, 0, block);
    let refused = world.go_on().unwrap_err();
    assert!(matches!(refused, RuntimeError::Inactive { rank: 1 }), "{refused}");
    assert!(world.usable().is_err());
}

/// Goes on without a rank that is killed, and without the next one, which dies as it goes on.
fn goes_on_twice(world: &World, block: &Symmetric, gone: u32, how: &str) {
    let (own, ranks, begun) = (world.members()[0].rank, world.ranks(), Instant::now());
    let dies = (gone + 1) % ranks;
    if own == dies {
        DIES.set(POINTS.into_iter().find(|point| how.ends_with(*point)).unwrap()).unwrap();
        // It comes last, so that it decides.
        std::thread::sleep(Duration::from_millis(50));
    }
    let inactive = 1 << gone | 1 << dies;
    let mut calls = 0;
    while world.inactive() != inactive || world.usable().is_err() {
        calls += 1;
        assert!(calls < 10 && begun.elapsed() < SOON, "{calls} calls in {:?}: {how}", begun.elapsed());
        // A rank may die when all others run: a kernel then waits for it in vain.
        if let Err(e) = world.go_on() {
            assert!(matches!(e, RuntimeError::Form(FormError::Lost { .. })), "{e}");
        }
    }
    let from = |from: u32| if inactive >> from & 1 != 0 { 0 } else { word(from, own) };
    world.agree(Ok(())).unwrap();
    write_all(world, 0, block);
    world.agree(Ok(())).unwrap();
    assert_eq!(read_own(world, 0, block), (0..ranks).map(from).collect::<Vec<_>>());
    world.agree(Ok(())).unwrap();
}

/// No rank waits so long for one that died.
const SOON: Duration = Duration::from_secs(5);

#[test]
fn others_go_on_without_a_process_that_dies_as_it_goes_on() {
    for (at, point) in POINTS.into_iter().enumerate() {
        let (ranks, gone) = (4, at as u32 % 4);
        let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
        let start =
            |rank| process(CHILD, (rank, ranks), &address, &format!("{gone} dies {point}"), folder.path());
        let children: Vec<Child> = (0..ranks).map(start).collect();
        for (rank, mut child) in (0..).zip(children) {
            let dies = [gone, (gone + 1) % ranks].contains(&rank);
            assert_eq!(child.wait().unwrap().success(), !dies, "rank {rank} of {ranks}, {point}");
        }
    }
}

#[test]
fn others_go_on_without_a_process_that_is_killed() {
    for (ranks, gone) in [(2, 1), (3, 0), (4, 2)] {
        let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
        let start = |rank| process(CHILD, (rank, ranks), &address, &format!("{gone} killed"), folder.path());
        let children: Vec<Child> = (0..ranks).map(start).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            assert_eq!(child.wait().unwrap().success(), rank != gone, "rank {rank} of {ranks}");
        }
    }
}

#[test]
fn a_process_that_was_stopped_comes_back_and_reaches_nothing() {
    let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
    let mut children: Vec<Child> =
        (0..3).map(|rank| process(CHILD, (rank, 3), &address, "1 stopped", folder.path())).collect();
    hear(folder.path(), "on0");
    hear(folder.path(), "on2");
    let stopped = Pid::from_child(&children[1]);
    kill_process(stopped, Signal::CONT).unwrap();
    say(folder.path(), "woken");
    assert!(children[1].wait().unwrap().success(), "rank 1");
    say(folder.path(), "come back");
    for rank in [0, 2] {
        assert!(children[rank].wait().unwrap().success(), "rank {rank}");
    }
}

#[test]
fn worlds_of_one_process_and_memory_of_ipc_do_not_go_on_by_themselves() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 2), &options()).unwrap();
    let refused = world.go_on().unwrap_err().to_string();
    assert!(refused.contains("of one process"), "{refused}");
    drop(world);
    let gpus = MockGpu::all_ipc(&machine, 2);
    let address = free_address();
    let both = [0, 1].map(|rank| {
        let (gpus, launched) = (gpus.clone(), launched(rank, 2, &address));
        std::thread::spawn(move || {
            let world = World::of_process(&gpus, &launched, &options()).unwrap();
            let said = world.go_on().unwrap_err().to_string();
            world.leave().unwrap();
            said
        })
    });
    for said in both.map(|one| one.join().unwrap()) {
        assert!(said.contains("shared by VMM"), "{said}");
    }
}
