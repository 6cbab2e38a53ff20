//! Roles that some ranks have: what runs where, in simulation and in emitted text; and what is refused.

use crate::findings;
use crate::printed::{emitted, gather};

use std::sync::Arc;

use gather::{RANKS, ROW, gather};
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::mutate::{Access, Mutation, Operand, Site, Slot, mutate};
use peerwarp_codegen::ir::{Kernel, Planted, explain::explain};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, HostMemory, Machine, Options};

fn row(rank: u32, launch: u32) -> Vec<u32> {
    (0..ROW).map(|i| rank * 10_000 + launch * 1_000 + i + 1).collect()
}

/// Three launches, each of which has other rows, and finds what the one before left.
fn machine(kernel: &Kernel) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel.clone()).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for launch in 0..3 {
        for rank in 0..RANKS {
            let fill = move |memory: &mut HostMemory<'_, '_>| {
                memory.write("x", 0, &row(rank, launch)).map_err(|e| e.to_string())
            };
            machine.host(rank, "fill", fill).unwrap();
        }
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        for rank in 0..RANKS {
            machine.host(rank, "check", move |memory| check(memory, rank, launch)).unwrap();
        }
    }
    machine
}

fn check(memory: &mut HostMemory<'_, '_>, rank: u32, launch: u32) -> Result<(), String> {
    let sum = memory.read::<u32>("sum", 0..1).map_err(|e| e.to_string())?[0];
    if sum != row(rank, launch).iter().sum::<u32>() {
        return Err(format!("rank {rank} sums its row to {sum}"));
    }
    for from in (1..RANKS).filter(|_| rank == 0) {
        let at = u64::from(from * ROW);
        let got = memory.read::<u32>("out", at..at + u64::from(ROW)).map_err(|e| e.to_string())?;
        if got != row(from, launch) {
            return Err(format!("the row of rank {from} is {got:?}"));
        }
    }
    Ok(())
}

fn found(kernel: &Kernel) -> Vec<FindingKind> {
    findings::kinds(&machine(kernel), 24)
}

#[test]
fn each_rank_runs_its_roles() {
    for warp_size in [32, 64] {
        let kernel = gather(warp_size);
        assert_eq!(found(&kernel), []);
        let outcome = machine(&kernel).run(&Options::default()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(outcome.report.max_resident_blocks, 5);
        assert_eq!((0..RANKS).map(|rank| kernel.blocks_of(rank)).collect::<Vec<_>>(), [5, 2, 2, 2]);
        assert_eq!(kernel.grid_blocks(), 5);
    }
}

#[test]
fn mistakes_are_found() {
    let kernel = gather(32);
    let arrived = || Site::wait("receive", "sent");
    let number = |site, slot, n| Mutation::Replace { site, slot, with: Operand::Number(n) };
    let planted = [
        ("no wait for a row", Mutation::Drop(arrived())),
        ("no wait until the bank is free", Mutation::Drop(Site::wait("send", "free"))),
        ("a row for a rank that receives none", number(Site::signal("send", "sent"), Slot::Index, 0)),
        ("a wait for a rank that sends none", number(arrived(), Slot::From, 0)),
        (
            "a row of another one",
            Mutation::Offset {
                site: Site::new("receive", Access::Load, "inbox"),
                slot: Slot::Index,
                by: ROW.into(),
            },
        ),
    ];
    for (what, mutation) in planted {
        let mutated = mutate(&kernel, &mutation).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!found(&mutated.into_kernel()).is_empty(), "{what}");
    }
}

#[test]
fn a_wait_for_a_rank_without_the_role_is_named() {
    let body = |p: &mut Binder| {
        let flag = p.arg::<Flags>("flag", 2);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role_on([0], "send", 1, |_| flag.signal(Peers::all(), rank(), epoch));
        role("wait", 1, |_| {
            let _all = flag.wait_all(0, 2, 1, epoch);
        });
    };
    let kernel = trace(TraceMeta::new("half", 2, 32, 1), body).unwrap_or_else(|e| panic!("{e}"));
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(2);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    let findings = machine.run(&Options::default()).unwrap_err().to_string();
    assert!(findings.contains("nothing that rank 1 runs signals flag"), "{findings}");
}

#[test]
fn what_is_reported_of_them() {
    let kernel = gather(32);
    let roles = |text: &str, word: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.contains(word));
        lines.map(|line| line.split(" // ").next().unwrap().trim().to_owned()).collect()
    };
    assert_eq!(
        roles(&explain(&kernel).to_string(), "Role `"),
        [
            "## Role `receive`: 3 blocks, 0 to 2 on rank 0",
            "## Role `send`: block 0 on ranks 1 to 3",
            "## Role `sum`: block 3 on rank 0; 1 on ranks 1 to 3",
            "## Role `free`: block 4 on rank 0",
        ]
    );
    assert_eq!(
        roles(&kernel.to_string(), "role "),
        [
            "role receive: 3 blocks, 0..3 of rank 0 {",
            "role send: block 0 of ranks 1 to 3 {",
            "role sum: block 3 of rank 0; 1 of ranks 1 to 3 {",
            "role free: block 4 of rank 0 {",
        ]
    );
}

#[test]
fn a_grid_has_room_for_the_rank_with_most_blocks() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let source = emitted(gather, target).unwrap();
        assert_eq!(source.launch.grid, 5, "{target}");
        assert!(source.text.contains("begin_epoch(args, args.epoch, 5)"), "{target}");
    }
}

/// A kernel that declares roles as a test asks for.
fn refused(roles: impl FnOnce(Ptr<u32>)) -> String {
    let body = |p: &mut Binder| roles(p.arg("y", 64));
    trace(TraceMeta::new("wrong", RANKS, 32, 4), body).unwrap_err().to_string()
}

#[test]
fn ranks_that_the_world_does_not_have_are_refused() {
    let set = |y: Ptr<u32>| move |_: Group| y.set(0, 1u32);
    let unknown = refused(|y| role_on([1, 4], "some", 1, set(y)));
    assert!(unknown.contains("role `some` on rank 4, which the world does not have"), "{unknown}");
    assert!(unknown.contains("name ranks of 0 to 3"), "{unknown}");
    let none = refused(|y| role_on([], "none", 1, set(y)));
    assert!(none.contains("role `none` on no rank"), "{none}");
}

#[test]
fn a_role_of_all_ranks_is_a_plain_one() {
    let traced = |declare: fn(Ptr<u32>)| {
        trace(TraceMeta::new("same", RANKS, 32, 4), |p: &mut Binder| declare(p.arg("y", 64))).unwrap().roles
            [0]
        .ranks
        .clone()
    };
    assert_eq!(traced(|y| role_on(0..RANKS, "all", 1, |_| y.set(0, 1u32))), None);
    assert_eq!(traced(|y| role_on([3, 1], "two", 1, |_| y.set(0, 1u32))), Some(vec![1, 3]));
}
