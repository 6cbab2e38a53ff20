//! Roles beside another one: their warps run side by side with those of the block, in every order of events, and mistakes are found.

use crate::printed::relay;

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::mutate::{Access, Mutation, Site, Slot, mutate};
use peerwarp_codegen::ir::{Kernel, Planted, explain, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, HostMemory, Machine, Options};
use relay::{RANKS, ROW, ROWS, expected, relay, x};

const LAUNCHES: u32 = 4;
const SEEDS: u64 = 24;

fn machine(kernel: Kernel) -> Machine {
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..RANKS {
        machine.write(rank, "x", 0, &x(rank)).unwrap();
    }
    for _ in 0..LAUNCHES {
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        for rank in 0..RANKS {
            let check = move |memory: &mut HostMemory<'_, '_>| {
                let read = |memory: &mut HostMemory<'_, '_>, name, len| {
                    memory.read::<f32>(name, 0..len).map_err(|e| e.to_string())
                };
                let found = [read(memory, "out", u64::from(ROWS * ROW))?, read(memory, "sum", 1)?];
                if found == expected(rank) { Ok(()) } else { Err(format!("{found:?}")) }
            };
            machine.host(rank, "check", check).unwrap();
        }
    }
    machine
}

/// The kinds of what is found under any seed.
fn found(kernel: &Kernel, options: &Options) -> Vec<FindingKind> {
    let machine = machine(kernel.clone());
    let runs = (0..SEEDS).filter_map(|seed| machine.run(&options.clone().with_seed(seed)).err());
    runs.flat_map(|findings| findings.list.iter().map(|f| f.kind).collect::<Vec<_>>()).collect()
}

#[test]
fn all_roles_of_a_block_run_side_by_side() {
    for warp_size in [32, 64] {
        let kernel = relay(warp_size, EpochWord::begin);
        verify(kernel.clone()).unwrap();
        assert_eq!(found(&kernel, &Options::default()), [], "warps of {warp_size}");
    }
}

#[test]
fn all_roles_of_a_block_have_one_place() {
    for (room, most) in [(None, 3), (Some(2), 2), (Some(1), 1)] {
        let options = Options { resident_blocks: room, ..Options::default() };
        let outcome =
            machine(relay(32, EpochWord::begin)).run(&options).unwrap_or_else(|e| panic!("{room:?}: {e}"));
        assert_eq!(outcome.report.max_resident_blocks, most, "{room:?}");
    }
}

#[test]
fn mistakes_between_them_are_found() {
    let kernel = relay(32, EpochWord::begin);
    let done = || Site::wait("send", "done");
    let offset = |site, by| Mutation::Offset { site, slot: Slot::Index, by };
    let planted = [
        ("a signal that says nothing of what came before", Mutation::Relax(Site::signal("double", "done"))),
        ("no wait for the block", Mutation::Drop(done())),
        ("a wait for another row", offset(done(), 1)),
        ("another row", offset(Site::new("send", Access::Load, "doubled"), ROW.into())),
        ("no signal to the other rank", Mutation::Drop(Site::signal("send", "arrived"))),
    ];
    for (what, mutation) in planted {
        let mutated = mutate(&kernel, &mutation).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(!found(&mutated.into_kernel(), &Options::default()).is_empty(), "{what}");
    }
}

#[test]
fn what_is_reported_of_them() {
    let kernel = relay(32, EpochWord::begin);
    let text = explain(&kernel).to_string();
    assert!(text.contains("Role `take`: 2 warps beside `double` in each of 2 blocks, 1 to 2"), "{text}");
    assert!(text.contains("with 3 blocks of 224 threads (7 warps of 32 lanes)"), "{text}");
    assert!(format!("{kernel}").contains("role send: 2 blocks, 1..3, 1 warp beside double"), "{kernel}");
}

#[test]
fn their_warps_come_behind_those_of_the_block() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let target: Target = target.parse().unwrap();
        let kernel = verify(relay(target.warp_size(), EpochWord::begin)).unwrap();
        let source = emit(&kernel, target, &EmitInfo { command: "cargo test".into() }).unwrap();
        assert_eq!((source.launch.grid, source.launch.block_threads), (3, 7 * target.warp_size()));
        let entry = &source.text[source.text.find("if (block_in_grid() < 1)").unwrap()..];
        let lines: Vec<&str> = entry.lines().map(|l| l.split("//").next().unwrap().trim()).take(11).collect();
        assert_eq!(
            lines,
            [
                "if (block_in_grid() < 1) {",
                "if (in_block()) add_role(args);",
                "} else {",
                "if (Beside<4, 1, 0>::has_this()) {",
                "send_role(args, epoch, bank);",
                "} else if (Beside<5, 2, 1>::has_this()) {",
                "take_role(args, epoch, bank);",
                "} else {",
                "double_role(args, epoch, bank);",
                "}",
                "}",
            ],
            "{target}"
        );
    }
}

/// A kernel that declares roles as a test asks for.
fn refused(roles: impl FnOnce(Ptr<u32>)) -> String {
    let body = |p: &mut Binder| roles(p.arg("y", 64));
    trace(TraceMeta::new("wrong", RANKS, 32, 4), body).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_is_refused() {
    let set = |y: Ptr<u32>| move |_: Group| y.set(0, 1u32);
    let all = [
        refused(|y| role_beside("first", "second", 1, set(y))),
        refused(|y| {
            role("first", 1, set(y));
            role_beside("first", "second", 0, set(y));
        }),
        refused(|y| {
            role("first", 1, set(y));
            role_beside("first", "second", 1, set(y));
            role_beside("second", "third", 1, set(y));
        }),
        refused(|y| {
            role("before", 1, |b| b.goes_on_as("first"));
            role("first", 1, set(y));
            role_beside("first", "second", 1, set(y));
        }),
        refused(|y| {
            role("first", 1, set(y));
            role_beside("first", "second", 2, |b| b.split(1, set(y)));
        }),
        refused(|y| {
            role("first", 1, set(y));
            role_beside("first", "second", 1, |b| b.goes_on_as("third"));
        }),
    ];
    insta::assert_snapshot!(all.join("\n\n"));
}
