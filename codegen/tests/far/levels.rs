//! Mistakes in a sum of two levels: lanes of a rail between nodes, then near messages within each.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::{Verified, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Finding, FindingKind, Machine, Options, Strategy};

use super::world::explored;

/// Elements of a tile.
const TILE: u32 = 16;
/// Tiles of a vector.
const TILES: u32 = 4;
/// Blocks, each with a lane.
const LANES: u32 = 2;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    None,
    /// Waits for what another block's lane counts.
    OtherLane,
    /// Waits before it puts what the others wait for.
    WaitFirst,
    /// Settles in launches that do not come.
    NeverSettled,
    /// Waits for fewer tiles than each other node puts.
    WaitFewer,
    /// Waits for more.
    WaitMore,
    /// Sends a near message to a number that only the world has.
    NearByWorld,
    /// Puts to a node by the number of a rank of the world.
    RailByWorld,
    /// Puts twice to one node, and not to the other.
    OneNodeTwice,
    /// Stores all tiles to one slot of the outbox.
    OneSlot,
    /// Puts without a lane.
    NoLane,
    /// Has one lane for both blocks.
    OneLane,
    /// Counts lanes from 1.
    LaneBeyond,
    /// Reads a tile of this node from the inbox.
    OwnTile,
    /// Reads the other block's tile.
    OtherTile,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    nodes: u32,
    local: u32,
    banks: u32,
    credits: bool,
    slip: Slip,
}

const CLEAN: Sum = Sum { nodes: 3, local: 2, banks: 2, credits: true, slip: Slip::None };

#[derive(KernelArgs)]
#[args(config = Sum)]
struct SumArgs {
    #[input]
    #[len(|_| u64::from(TILES * TILE))]
    x: Ptr<u32>,
    #[output]
    #[len(|_| u64::from(TILES * TILE))]
    out: Ptr<u32>,
    /// Tiles of the ranks of this number on all nodes.
    #[channel(|c| {
        let shape = ChannelShape::new(Transport::Far, c.nodes, Slots::BySender(TILES));
        shape.rail(c.local).lanes(LANES).banks(c.banks).credits(c.credits)
    })]
    #[len(|_| TILE)]
    rail: Channel<u32>,
    /// Sums over nodes, of each rank of this one.
    #[channel(|c| ChannelShape::new(Transport::Flags, c.local, Slots::BySender(TILES)))]
    #[len(|_| TILE)]
    near: Channel<u32>,
    epoch: EpochWord,
}

/// Sums vectors over all ranks of all nodes.
#[kernel]
fn sum(c: &Sum, a: &SumArgs) {
    let epoch = a.epoch.begin();
    let (rail, near) = (a.rail.open(epoch), a.near.open(epoch));
    role("sum", LANES, |b| {
        let first = if c.slip == Slip::LaneBeyond { 1 } else { 0 };
        let lane = if c.slip == Slip::OneLane { rail.lane(0) } else { rail.lane(b.index() + first) };
        let awaited = if c.slip == Slip::OtherLane { rail.lane(1 - b.index()) } else { lane };
        let each = match c.slip {
            Slip::WaitFewer => TILES / LANES - 1,
            Slip::WaitMore => TILES / LANES + 1,
            _ => TILES / LANES,
        };
        if c.slip == Slip::WaitFirst {
            let _others = awaited.wait_others(each); // slip: wait first
        }
        let put = if c.slip == Slip::NoLane { rail } else { lane };
        for tile in b.strided(TILES) {
            let slot = if c.slip == Slip::OneSlot { b.index() } else { tile };
            let next = (node() + 1) % c.nodes;
            let to = match c.slip {
                Slip::OneNodeTwice => vec![Peers::rank(next), Peers::rank(next)],
                Slip::RailByWorld => vec![Peers::rank(rank())],
                _ => vec![Peers::others()],
            };
            for peers in to {
                let row = put.to(peers).slot(slot);
                row.put(0, a.x.load(tile * TILE, TILE)); // slip: store
                row.done(); // slip: put
            }
        }
        let others = awaited.wait_others(if c.slip == Slip::WaitFirst { 0 } else { each }); // slip: wait
        for tile in b.strided(TILES) {
            let own = a.x.load(tile * TILE, TILE);
            let mut sum = splat(0u32, TILE);
            for from in 0..c.nodes {
                let slot = if c.slip == Slip::OtherTile { tile ^ 1 } else { tile };
                let row = others.slot(from, slot);
                sum = sum
                    + if c.slip == Slip::OwnTile {
                        row.load(0, TILE) // slip: own
                    } else {
                        if from == node() { own } else { row.load(0, TILE) } // slip: read
                    };
            }
            let to = if c.slip == Slip::NearByWorld { Peers::rank(rank()) } else { Peers::others() };
            let row = near.to(to).slot(tile);
            row.put(0, sum); // slip: near
            row.done();
            let mut all = splat(0u32, TILE);
            for from in 0..c.local {
                all = all + if from == local_rank() { sum } else { near.from(from).slot(tile).load(0, TILE) };
            }
            a.out.store(tile * TILE, all);
        }
        if c.slip == Slip::NeverSettled {
            if a.x.get(0) == 0 {
                lane.settle();
            }
        } else {
            lane.settle();
        }
    });
    rail.credits();
    near.credits();
}

fn traced(c: &Sum) -> Verified {
    let meta = TraceMeta { nodes: c.nodes, ..TraceMeta::new("sum", c.nodes * c.local, 32, 2) };
    let kernel = trace_args::<SumArgs>(meta, c, sum).unwrap_or_else(|e| panic!("{e}"));
    verify(kernel).unwrap_or_else(|e| panic!("{e:?}"))
}

fn value(launch: u32, rank: u32, i: u32) -> u32 {
    (launch + 1) << 16 | rank << 8 | i
}

/// Launches with other vectors each.
fn machine(c: &Sum, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::new(traced(c)));
    let ranks = c.nodes * c.local;
    let mut machine = Machine::of_nodes(c.nodes, c.local);
    machine.buffers_of(kernel.kernel()).unwrap();
    for launch in 0..launches {
        for rank in 0..ranks {
            machine
                .host(rank, "vector", move |memory| {
                    let x: Vec<u32> = (0..TILES * TILE).map(|i| value(launch, rank, i)).collect();
                    memory.write("x", 0, &x).map_err(|e| e.to_string())
                })
                .unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
            machine
                .host(rank, "result", move |memory| {
                    let all = 0..u64::from(TILES * TILE);
                    let out = memory.read::<u32>("out", all).map_err(|e| e.to_string())?;
                    let sum = |i| (0..ranks).map(|rank| value(launch, rank, i)).sum();
                    let want: Vec<u32> = (0..TILES * TILE).map(sum).collect();
                    if out == want { Ok(()) } else { Err(format!("rank {rank} has {out:?}")) }
                })
                .unwrap();
        }
    }
    machine
}

#[test]
fn vectors_of_all_nodes_are_summed() {
    for (nodes, local) in [(3, 2), (2, 1), (2, 3)] {
        if let Some(found) = explored(&machine(&Sum { nodes, local, ..CLEAN }, 4), 6) {
            panic!("{nodes} nodes of {local}: {found}");
        }
    }
}

/// The line of the kernel that a comment marks.
fn line(mark: &str) -> Option<u32> {
    let marked = |text: &str| text.ends_with(&format!("// slip: {mark}"));
    (1..).zip(include_str!("levels.rs").lines()).find(|(_, text)| marked(text)).map(|(n, _)| n)
}

/// Asserts that every schedule finds the kind as a cause, at a marked line.
#[track_caller]
fn found(c: &Sum, kind: FindingKind, mark: &str) {
    let (machine, at) = (machine(c, 5), line(mark));
    assert!(at.is_some(), "no line is marked `{mark}`");
    for seed in 0..4 {
        for strategy in [Strategy::Random, Strategy::Adversarial] {
            let run = machine.run(&Options { seed, strategy, ..Options::default() });
            let found = run.err().unwrap_or_else(|| panic!("nothing is found with {strategy:?}: {c:?}"));
            let here = |f: &Finding| f.kind == kind && f.at.loc.map(|loc| loc.line) == at;
            assert!(found.list[..found.causes].iter().any(here), "{c:?}: no {kind} at `{mark}`: {found}");
        }
    }
}

#[test]
fn a_mistake_with_lanes_is_found() {
    for (slip, kind, mark) in [
        (Slip::OtherLane, FindingKind::DataRace, "read"),
        (Slip::OtherTile, FindingKind::DataRace, "read"),
        (Slip::OneLane, FindingKind::PrefixAssumed, "read"),
        (Slip::NoLane, FindingKind::PrefixAssumed, "read"),
        (Slip::NoLane, FindingKind::Deadlock, "wait"),
        (Slip::LaneBeyond, FindingKind::OutOfBounds, "put"),
        (Slip::WaitFewer, FindingKind::PrefixAssumed, "read"),
        (Slip::WaitMore, FindingKind::CountMismatch, "wait"),
        (Slip::WaitFirst, FindingKind::Deadlock, "wait first"),
    ] {
        found(&Sum { slip, ..CLEAN }, kind, mark);
    }
}

#[test]
fn a_mistake_with_nodes_is_found() {
    for (slip, kind, mark) in [
        (Slip::NearByWorld, FindingKind::OutOfBounds, "near"),
        (Slip::RailByWorld, FindingKind::OutOfBounds, "store"),
        (Slip::OneNodeTwice, FindingKind::Deadlock, "wait"),
        (Slip::OneSlot, FindingKind::OutboxReused, "store"),
        (Slip::NeverSettled, FindingKind::UnflushedEnd, "store"),
        (Slip::OwnTile, FindingKind::UninitializedRead, "own"),
    ] {
        found(&Sum { slip, ..CLEAN }, kind, mark);
    }
}

/// Every rank waits for all others of its rail in each launch: two banks need no credits, and credits do not save one.
#[test]
fn a_rail_with_one_bank_has_no_credit() {
    for credits in [false, true] {
        found(&Sum { banks: 1, credits, ..CLEAN }, FindingKind::NoCredit, "put");
    }
    assert!(explored(&machine(&Sum { credits: false, ..CLEAN }, 5), 6).is_none());
}
