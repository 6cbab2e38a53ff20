//! Roles whose blocks go on as another role: all blocks deal with its work, in every order of events, and what cannot work is found.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::mutate::{Mutation, Site, mutate};
use peerwarp_codegen::ir::{Kernel, Planted, explain, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, FindingKind, Findings, HostMemory, Machine, Options};

const RANKS: u32 = 2;
const ROWS: u32 = 13;
const ROW: u32 = 64;
const LAUNCHES: u32 = 3;

/// Ranks swap rows. Two blocks send; they and one of its own receive, in groups of another size.
#[kernel]
fn swap(x: Ptr<u32>, inbox: Sym<u32>, arrived: Flags, out: Ptr<u32>, epoch: Epoch) {
    let bank = epoch.parity() * ROWS;
    let peer = rank() ^ 1;
    role("send", 2, |b| {
        b.split(1, |g| {
            let room = shared::<u32>("room", ROW);
            for row in g.strided(ROWS) {
                room.store(0, x.load(row * ROW, ROW) + 1);
                let mut parcel = send_to(Peers::rank(peer));
                parcel.put(&inbox, (bank + row) * ROW, room.load(0, ROW));
                parcel.signal(&arrived, bank + row, epoch);
            }
        });
        b.goes_on_as("recv");
    });
    role("recv", 1, |b| {
        assert_eq!((b.blocks(), b.count()), (3, 3));
        b.split(2, |g| {
            assert_eq!(g.count(), 6);
            let seen = shared::<u32>("seen", ROW);
            for row in g.strided(ROWS) {
                let got = arrived.from(peer).wait(bank + row, epoch);
                seen.store(0, inbox.load(&got, (bank + row) * ROW, ROW));
                out.store(row * ROW, seen.load(0, ROW) * 2);
            }
        });
    });
}

fn traced(warp_size: u32) -> Kernel {
    let body = |p: &mut Binder| {
        let x = p.arg("x", (ROWS * ROW).into());
        let inbox = p.arg("inbox", (2 * ROWS * ROW).into());
        let arrived = p.arg("arrived", (2 * ROWS).into());
        let out = p.arg("out", (ROWS * ROW).into());
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        swap(x, inbox, arrived, out, epoch);
    };
    trace(TraceMeta::new("swap", RANKS, warp_size, 4), body).unwrap_or_else(|e| panic!("{e}"))
}

fn x(rank: u32) -> Vec<u32> {
    (0..ROWS * ROW).map(|i| rank * 10_000 + i).collect()
}

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
                let out = memory.read::<u32>("out", 0..(ROWS * ROW).into()).map_err(|e| e.to_string())?;
                let want: Vec<u32> = x(rank ^ 1).into_iter().map(|x| (x + 1) * 2).collect();
                if out == want { Ok(()) } else { Err(format!("{out:?}")) }
            };
            machine.host(rank, "check", check).unwrap();
        }
    }
    machine
}

fn run(kernel: &Kernel, seed: u64) -> Result<(), Box<Findings>> {
    machine(kernel.clone()).run(&Options::default().with_seed(seed)).map(|_| ())
}

#[test]
fn blocks_of_both_roles_deal_with_all_of_the_second_one() {
    for warp_size in [32, 64] {
        let kernel = traced(warp_size);
        verify(kernel.clone()).unwrap();
        for seed in 0..24 {
            run(&kernel, seed).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
    }
}

#[test]
fn what_a_block_does_as_another_role_is_reported_as_that_role() {
    let relaxed = mutate(&traced(32), &Mutation::Relax(Site::signal("send", "arrived"))).unwrap();
    let findings = (0..24).filter_map(|seed| run(&relaxed, seed).err());
    let mut readers: Vec<(String, u32)> = vec![];
    for found in findings.flat_map(|f| f.list.clone()).filter(|f| f.kind == FindingKind::DataRace) {
        readers.extend(
            [Some(found.at), found.other]
                .into_iter()
                .flatten()
                .filter_map(|p| Some((p.role.filter(|role| role == "recv")?, p.block?))),
        );
    }
    assert!(readers.iter().any(|(_, block)| *block == 0), "{readers:?}");
    assert!(readers.iter().any(|(_, block)| *block > 0), "of blocks that have sent: {readers:?}");
}

/// A role that waits for what its own blocks do later.
#[kernel]
fn too_late(done: Flags, y: Ptr<u32>, epoch: Epoch) {
    role("first", 1, |b| {
        let _both = done.wait_all(0, 2, 1, epoch);
        y.set(0, 1u32);
        b.goes_on_as("second");
    });
    role("second", 1, |b| {
        for i in b.strided(2u32) {
            done.signal(Peers::rank(i), rank(), epoch);
        }
    });
}

#[test]
fn a_role_that_waits_for_its_blocks_later_work_never_ends() {
    let body = |p: &mut Binder| {
        let (done, y) = (p.arg("done", 2), p.arg("y", 1));
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        too_late(done, y, epoch);
    };
    let kernel = trace(TraceMeta::new("too_late", RANKS, 32, 1), body).unwrap();
    let kernel = Arc::new(Compiled::planted(Planted::new(kernel).unwrap()));
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    machine.launch_all(&kernel, &Bindings::new()).unwrap();
    for seed in 0..8 {
        let found = machine.run(&Options::default().with_seed(seed)).map(|_| ()).unwrap_err();
        let deadlock = found.list.iter().find(|f| f.kind == FindingKind::Deadlock);
        let text = deadlock.unwrap_or_else(|| panic!("{found}")).to_string();
        assert!(text.contains("first"), "{text}");
    }
}

#[test]
fn what_is_reported_of_it() {
    let kernel = traced(32);
    let text = explain(&kernel).to_string();
    assert!(text.contains("Role `send`: 2 blocks, 0 to 1, which go on as `recv`"), "{text}");
    assert!(text.contains("Role `recv`: block 2, and those of `send` when they are done"), "{text}");
    assert!(format!("{kernel}").contains("role send: 2 blocks, 0..2, then recv"));
}

#[test]
fn blocks_meet_before_they_go_on_and_are_numbered_after_the_others() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let target: Target = target.parse().unwrap();
        let kernel = verify(traced(target.warp_size())).unwrap();
        let text = emit(&kernel, target, &EmitInfo { command: "cargo test".into() }).unwrap().text;
        let entry = &text[text.find("u32 nth_of_recv").unwrap()..];
        let lines: Vec<&str> = entry.lines().map(|l| l.split("//").next().unwrap().trim()).take(10).collect();
        assert_eq!(
            lines,
            [
                "u32 nth_of_recv = ~0u;",
                "if (block_in_grid() < 2) {",
                "send_role(args, epoch, bank, peer);",
                "Block(0).sync();",
                "nth_of_recv = block_in_grid() + 1;",
                "} else {",
                "nth_of_recv = block_in_grid() - 2;",
                "}",
                "if (nth_of_recv < 3) {",
                "recv_role(args, epoch, bank, peer, nth_of_recv);",
            ],
            "{target}"
        );
        assert!(text.contains("group.number * 3 + block.index"), "{target}");
    }
}
