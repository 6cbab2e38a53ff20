//! Processes that take the places of others that are gone.

use std::path::Path;
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};

use super::super::mock::{Machine, MockGpu};
use super::super::net::free_address;
use super::going_on_tests::{Started, hear, process, say};
use super::tests::{options, read_own, word, write_all};
use super::*;

const CHILD: &str = "runtime::world::replacing_tests::child";

/// What a process does as one rank. Not a test of its own.
#[test]
#[ignore = "run by other tests, in processes of their own"]
fn child() {
    let Some(Started { launched, gpus, gone, how, folder }) = Started::here() else { return };
    let how = &*how;
    let is_new = how.starts_with("new");
    let world = match is_new {
        true => World::in_place_of(&gpus, &launched, &options()).unwrap(),
        false => {
            let options = match how {
                // So long one waits for a process that does not come.
                "killed, and none comes" => {
                    WorldOptions { form_timeout: Duration::from_secs(6), ..options() }
                }
                _ => options(),
            };
            World::of_process(&gpus, &launched, &options).unwrap()
        }
    };
    if !is_new {
        // Memory that is gone when the new process comes has no place there.
        drop(world.allocate(32).unwrap());
    }
    let block = world.allocate(if how == "newly otherwise" { 128 } else { 64 }).unwrap();
    let kept = world.share(64).unwrap();
    match (launched.rank == gone, how) {
        (true, "killed" | "killed, and none comes") => std::process::abort(),
        (true, "stopped") => return stopped(&world, &block, &folder),
        (false, _) => leave_behind(&world, &gpus, &kept, gone, how, &folder),
        (true, _) => assert!(world.usable().is_ok() && !world.is_active(gone), "it has no place yet"),
    }
    let replaced = world.replace(gone);
    if how == "killed, and none comes" {
        let said = replaced.unwrap_err().to_string();
        assert!(said.contains(&format!("there was nothing of rank {gone}")), "{said}");
        assert_eq!(world.go_on().unwrap(), [0u32; 0], "the others are there");
        world.agree(Ok(())).unwrap();
        return;
    }
    if folder.join("otherwise").exists() {
        let said = replaced.unwrap_err().to_string();
        assert!(
            said.contains(&format!("bytes of allocations of rank {gone}")) && said.contains("128"),
            "{said}"
        );
        if !is_new {
            assert!(matches!(world.replace(gone).unwrap_err(), RuntimeError::Poisoned { .. }));
            assert_eq!(world.go_on().unwrap(), [0u32; 0], "the others are there");
            assert!(!world.is_active(gone));
        }
        return;
    }
    replaced.unwrap();
    assert_eq!((world.inactive(), world.usable().is_ok()), (0, true));
    all_write_and_read(&world, &block);
    let mut held = [0];
    // SAFETY: memory of the world.
    unsafe { gpus[launched.rank as usize].download(kept.own(0), &mut held).unwrap() };
    assert_eq!(held, [if is_new { 0 } else { 7 }], "what is the caller's stays");
    if how.ends_with("stopped") {
        say(&folder, &format!("on{}", launched.rank));
        hear(&folder, "come back");
        let want: Vec<u64> = (0..launched.ranks).map(|from| word(from, launched.rank)).collect();
        assert_eq!(read_own(&world, 0, &block), want, "the process that had the rank reaches nothing");
    }
    all_write_and_read(&world, &world.allocate(64).unwrap());
    assert_eq!(world.go_on().unwrap(), [0u32; 0], "all are there");
    all_write_and_read(&world, &block);
    drop((block, kept));
    world.leave().unwrap();
}

/// The ranks that stay go on without the one that does not.
fn leave_behind(world: &World, gpus: &[Arc<dyn Gpu>], kept: &Symmetric, gone: u32, how: &str, folder: &Path) {
    let rank = world.members()[0].rank;
    // SAFETY: memory of the world.
    unsafe { gpus[rank as usize].upload(kept.own(0), &[7]).unwrap() };
    if how == "stopped" {
        hear(folder, "stopping");
        // One rank says that it waits for it in vain.
        match rank {
            0 => world.deactivate(gone).unwrap(),
            _ => assert_eq!(world.go_on().unwrap(), [gone]),
        }
    } else {
        assert_eq!(world.go_on().unwrap(), [gone]);
    }
    let said = world.replace(rank).unwrap_err().to_string();
    assert!(
        said.contains(&format!("rank to replace = {rank}: one without which the world goes on, of {gone}")),
        "{said}"
    );
    say(folder, &format!("without{rank}"));
}

fn all_write_and_read(world: &World, block: &Symmetric) {
    let own = world.members()[0].rank;
    write_all(world, 0, block);
    world.agree(Ok(())).unwrap();
    let want: Vec<u64> = (0..world.ranks()).map(|from| word(from, own)).collect();
    assert_eq!(read_own(world, 0, block), want);
    world.agree(Ok(())).unwrap();
}

/// A rank that is stopped, and goes on when another process has its place.
fn stopped(world: &World, block: &Symmetric, folder: &Path) {
    say(folder, "stopping");
    kill_process(rustix::process::getpid(), Signal::STOP).unwrap();
    // A stop comes a moment after it was asked for.
    hear(folder, "woken");
    // As a kernel that went on would.
    let nothing = vec![0xffu8; 64];
    for base in block.bases(0) {
        // SAFETY: memory of the world.
        unsafe { world.members()[0].gpu.upload(*base, &nothing).unwrap() };
    }
    let refused = world.go_on().unwrap_err();
    assert!(matches!(refused, RuntimeError::Inactive { rank: 1 }), "{refused}");
}

fn wait_for_all(children: Vec<(u32, Child)>, but: &[usize]) {
    for (at, (rank, mut child)) in children.into_iter().enumerate() {
        assert_eq!(child.wait().unwrap().success(), !but.contains(&at), "rank {rank}, process {at}");
    }
}

#[test]
fn a_new_process_takes_the_place_of_one_that_is_killed() {
    for (ranks, gone) in [(2, 0), (3, 1), (4, 3)] {
        let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
        let start =
            |rank, how| process(CHILD, (rank, ranks), &address, &format!("{gone} {how}"), folder.path());
        let mut all: Vec<_> = (0..ranks).map(|rank| (rank, start(rank, "killed"))).collect();
        (0..ranks)
            .filter(|rank| *rank != gone)
            .for_each(|rank| hear(folder.path(), &format!("without{rank}")));
        all.push((gone, start(gone, "new")));
        wait_for_all(all, &[gone as usize]);
    }
}

#[test]
fn a_process_that_was_stopped_finds_its_place_taken() {
    let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
    let start = |rank, how| process(CHILD, (rank, 3), &address, &format!("1 {how}"), folder.path());
    let mut all: Vec<_> = (0..3).map(|rank| (rank, start(rank, "stopped"))).collect();
    [0, 2].iter().for_each(|rank| hear(folder.path(), &format!("without{rank}")));
    all.push((1, start(1, "new, as one is stopped")));
    (0..3).for_each(|rank| hear(folder.path(), &format!("on{rank}")));
    kill_process(Pid::from_child(&all[1].1), Signal::CONT).unwrap();
    say(folder.path(), "woken");
    let (_, mut old) = all.remove(1);
    assert!(old.wait().unwrap().success(), "the process that was stopped");
    say(folder.path(), "come back");
    wait_for_all(all, &[]);
}

#[test]
fn a_new_process_with_other_memory_is_refused_and_the_others_go_on() {
    let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
    say(folder.path(), "otherwise");
    let start = |rank, how| process(CHILD, (rank, 3), &address, &format!("2 {how}"), folder.path());
    let mut all: Vec<_> = (0..3).map(|rank| (rank, start(rank, "killed"))).collect();
    [0, 1].iter().for_each(|rank| hear(folder.path(), &format!("without{rank}")));
    all.push((2, start(2, "newly otherwise")));
    wait_for_all(all, &[2]);
}

#[test]
fn ranks_say_which_process_did_not_come_and_go_on() {
    let (address, folder) = (free_address(), tempfile::tempdir().unwrap());
    let start = |rank| process(CHILD, (rank, 3), &address, "0 killed, and none comes", folder.path());
    wait_for_all((0..3).map(|rank| (rank, start(rank))).collect(), &[0]);
}

#[test]
fn a_rank_of_one_process_is_active_again() {
    let machine = Machine::default();
    let world = World::of_gpus(&MockGpu::all(&machine, 3), &options()).unwrap();
    let said = world.replace(1).unwrap_err().to_string();
    assert!(
        said.contains("rank to replace = 1: one without which the world goes on: all are active"),
        "{said}"
    );
    world.deactivate(1).unwrap();
    world.deactivate(2).unwrap();
    assert!(world.replace(3).unwrap_err().to_string().contains("of 1, 2"));
    world.replace(1).unwrap();
    assert_eq!((world.inactive(), world.is_active(1)), (0b100, true));
}
