//! Kernels over nodes: near channels within each, far ones between all ranks or along rails.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace, trace_args};
use peerwarp_codegen::family::Target;
use peerwarp_codegen::ir::{FAR_RANKS, Verified, explain, verify};
use peerwarp_codegen::print::{EmitInfo, emit};
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options, SimError};

use super::world::explored;

/// Elements of a row.
const ROW: u32 = 16;

/// Rows of all ranks on each, over the rail and then within the node.
#[derive(Clone, Copy, Debug)]
struct Gather {
    nodes: u32,
    local: u32,
    transport: Transport,
    slip: Slip,
}

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slip {
    None,
    /// Passes on the row of another node than it has waited for.
    OtherNode,
    /// Sends to a number that only the world has.
    NoSuchPeer,
}

const CLEAN: Gather = Gather { nodes: 3, local: 2, transport: Transport::Ll, slip: Slip::None };

#[derive(KernelArgs)]
#[args(config = Gather)]
struct GatherArgs {
    #[input]
    #[len(|_| ROW.into())]
    x: Ptr<u32>,
    #[output]
    #[len(|c| u64::from(c.nodes * c.local * ROW))]
    out: Ptr<u32>,
    /// A row of each node's rank of the same number.
    #[channel(|c| ChannelShape::new(Transport::Far, c.nodes, Slots::BySender(1)).rail(c.local))]
    #[len(|_| ROW)]
    rail: Channel<u32>,
    /// The rows of all nodes, of each rank of this one.
    #[channel(|c| ChannelShape::new(c.transport, c.local, Slots::BySender(c.nodes)))]
    #[len(|_| ROW)]
    near: Channel<u32>,
    epoch: EpochWord,
}

/// Brings the rows of all ranks to each.
#[kernel]
fn gather(c: &Gather, a: &GatherArgs) {
    let epoch = a.epoch.begin();
    let (rail, near) = (a.rail.open(epoch), a.near.open(epoch));
    role("send", 1, |b| {
        for to in b.strided(c.nodes) {
            let row = rail.to(Peers::rank(to)).slot(0);
            row.put(0, a.x.load(0, ROW));
            row.done();
        }
        rail.settle();
    });
    role("pass", c.nodes, |b| {
        let from = b.index();
        let arrived = if c.slip == Slip::OtherNode { (from + 1) % c.nodes } else { from };
        let row = rail.from(arrived).wait(1);
        let to = if c.slip == Slip::NoSuchPeer { Peers::rank(rank()) } else { Peers::all() };
        let passed = near.to(to).slot(from);
        passed.put(0, row.slot(0).load(0, ROW));
        passed.done();
    });
    role("receive", 1, |b| {
        for from in b.strided(ranks()) {
            let row = near.from(from % c.local).slot(from / c.local);
            a.out.store(from * ROW, row.load(0, ROW));
        }
    });
    rail.credits();
    near.credits();
}

fn meta(c: &Gather) -> TraceMeta {
    TraceMeta { nodes: c.nodes, ..TraceMeta::new("gather", c.nodes * c.local, 32, 2) }
}

fn traced(c: &Gather) -> Verified {
    let kernel = trace_args::<GatherArgs>(meta(c), c, gather).unwrap_or_else(|e| panic!("{e}"));
    verify(kernel).unwrap_or_else(|e| panic!("{e:?}"))
}

fn value(launch: u32, rank: u32, i: u32) -> u32 {
    launch << 24 | rank << 8 | i
}

/// Launches with other rows each.
fn machine(c: &Gather, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::new(traced(c)));
    let ranks = c.nodes * c.local;
    let mut machine = Machine::of_nodes(c.nodes, c.local);
    machine.buffers_of(kernel.kernel()).unwrap();
    for launch in 0..launches {
        for rank in 0..ranks {
            machine
                .host(rank, "row", move |memory| {
                    let x: Vec<u32> = (0..ROW).map(|i| value(launch, rank, i)).collect();
                    memory.write("x", 0, &x).map_err(|e| e.to_string())
                })
                .unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
            machine
                .host(rank, "result", move |memory| {
                    let out =
                        memory.read::<u32>("out", 0..u64::from(ranks * ROW)).map_err(|e| e.to_string())?;
                    let want: Vec<u32> = (0..ranks * ROW).map(|n| value(launch, n / ROW, n % ROW)).collect();
                    if out == want { Ok(()) } else { Err(format!("rank {rank} has {out:?}")) }
                })
                .unwrap();
        }
    }
    machine
}

/// A rail has as many ranks as there are nodes, whatever ranks a node has.
#[test]
fn cards_move_what_goes_along_the_rail() {
    let moved = explain(&traced(&CLEAN)).far.unwrap().moved.unwrap();
    let (nodes, ranks) = (u64::from(CLEAN.nodes), u64::from(CLEAN.nodes * CLEAN.local));
    // A put to a rank that is not known may go to another one each time; credits go to the others of the rail.
    assert_eq!((moved.puts, moved.bytes, moved.credits), (nodes, nodes * u64::from(4 * ROW), nodes - 1));
    let report = machine(&CLEAN, 2).run(&Options::default()).unwrap().report;
    assert_eq!(report.far_puts(), 2 * ranks * 2 * (nodes - 1), "a put and a credit to each other node");
}

/// Rows that ranks of a node have in turn, and one that a block of one rank of each node has beside them.
#[derive(Clone, Copy, Debug)]
struct Turns {
    nodes: u32,
    local: u32,
}

/// Rows of all ranks of a node but for that one.
const TURNS: u32 = 7;

#[derive(KernelArgs)]
#[args(config = Turns)]
struct TurnsArgs {
    #[input]
    #[len(|_| ROW.into())]
    x: Ptr<u32>,
    #[output]
    #[len(|c| u64::from(c.nodes * (TURNS + 1) * ROW))]
    out: Ptr<u32>,
    #[channel(|c| ChannelShape::new(Transport::Far, c.nodes, Slots::BySender(TURNS + 1)).rail(c.local).lanes(2).to_all())]
    #[len(|_| ROW)]
    rail: Channel<u32>,
    epoch: EpochWord,
}

#[kernel]
fn turns(c: &Turns, a: &TurnsArgs) {
    let rail = a.rail.open(a.epoch.begin());
    role("exchange", 2, |b| {
        let rail = rail.lane(b.index());
        let mut sent = var(0u32);
        let put = |row: Val<u32>| {
            let message = rail.to(Peers::others()).slot(row);
            message.put(0, a.x.load(0, ROW));
            message.done();
        };
        for row in b.strided(TURNS) {
            if row % c.local == local_rank() {
                put(row);
                sent.set(sent.get() + 1);
            }
        }
        if b.index() == 1 && local_rank() == 0 {
            put(TURNS.val());
            sent.set(sent.get() + 1);
        }
        let others = rail.wait_others(sent.get());
        for from in 0..c.nodes.val() {
            if from != node() {
                for row in b.strided(TURNS) {
                    if row % c.local == local_rank() {
                        a.out.store((from * (TURNS + 1) + row) * ROW, others.slot(from, row).load(0, ROW));
                    }
                }
            }
        }
        rail.settle();
    });
    rail.credits();
}

/// Conditions on ranks, groups and rounds are decided: each rank is counted by what it puts itself.
#[test]
fn puts_under_a_condition_are_counted_where_it_holds() {
    let c = Turns { nodes: 3, local: 2 };
    let meta = TraceMeta { nodes: c.nodes, ..TraceMeta::new("turns", c.nodes * c.local, 32, 2) };
    let kernel = trace_args::<TurnsArgs>(meta, &c, turns).unwrap_or_else(|e| panic!("{e}"));
    let kernel = verify(kernel).unwrap_or_else(|e| panic!("{e:?}"));
    let told = explain(&kernel);
    // An outbox has a place for each row, an inbox one for each node and row.
    let len = |name: &str| told.buffers.iter().find(|buffer| buffer.name == name).unwrap().len;
    let slots = u64::from(2 * (TURNS + 1) * ROW);
    assert_eq!((len("rail_outbox"), len("rail")), (slots, slots * u64::from(c.nodes)));
    let moved = told.far.as_ref().unwrap().moved.unwrap();
    // Rank 0 of a node has rows 0, 2, 4 and 6, and the last.
    let (others, most) = (u64::from(c.nodes - 1), 5);
    assert_eq!((moved.puts, moved.bytes, moved.credits), (most * others, most * others * 64, others));
    let said = told.to_string();
    assert!(said.contains("from all other ranks of the rail, takes `sent` from each"), "{said}");
    assert!(said.contains("from all ranks of the rail, takes `1` from each"), "{said}");
    let mut machine = Machine::of_nodes(c.nodes, c.local);
    let kernel = Arc::new(Compiled::new(kernel));
    machine.buffers_of(kernel.kernel()).unwrap();
    for rank in 0..c.nodes * c.local {
        let rows = [0u32; ROW as usize];
        machine
            .host(rank, "rows", move |memory| memory.write("x", 0, &rows).map_err(|e| e.to_string()))
            .unwrap();
        machine.launch(rank, &kernel, &Bindings::new()).unwrap();
    }
    let report = machine.run(&Options::default()).unwrap().report;
    let credits = u64::from(c.nodes * c.local) * others;
    assert_eq!(report.far_puts(), u64::from(c.nodes * (TURNS + 1)) * others + credits);
}

#[test]
fn rows_reach_all_ranks_of_all_nodes() {
    for transport in [Transport::Flags, Transport::Bulk, Transport::Ll] {
        for (nodes, local) in [(3, 2), (2, 1), (1, 2), (2, 3)] {
            let c = Gather { nodes, local, transport, ..CLEAN };
            if let Some(found) = explored(&machine(&c, 4), 6) {
                panic!("{c:?}: {found}");
            }
        }
    }
}

#[test]
fn more_nodes_than_a_mask_has_bits() {
    let c = Gather { nodes: 80, local: 2, ..CLEAN };
    machine(&c, 2).run(&Options::default()).unwrap_or_else(|found| panic!("{found}"));
}

#[test]
fn a_slip_is_found_by_its_kind() {
    let found = |slip| {
        let found = explored(&machine(&Gather { slip, transport: Transport::Flags, ..CLEAN }, 2), 6);
        found.unwrap_or_else(|| panic!("{slip:?} is not found")).to_string()
    };
    let other = found(Slip::OtherNode);
    assert!(other.contains("host-failed: host step `result`"), "{other}");
    let peer = found(Slip::NoSuchPeer);
    assert!(peer.contains("of a node does not exist: each node has 2"), "{peer}");
}

#[test]
fn a_machine_is_for_kernels_of_its_nodes() {
    let kernel = Arc::new(Compiled::new(traced(&CLEAN)));
    let mut machine = Machine::of_nodes(2, 3);
    machine.buffers_of(kernel.kernel()).unwrap();
    let refused = machine.launch(0, &kernel, &Bindings::new()).unwrap_err();
    assert!(matches!(refused, SimError::Nodes { wants: 3, has: 2, .. }), "{refused}");
}

fn refused(c: &Gather) -> String {
    trace_args::<GatherArgs>(meta(c), c, gather).unwrap_err().to_string()
}

#[test]
fn nodes_divide_the_ranks() {
    let meta = TraceMeta { nodes: 3, ..TraceMeta::new("gather", 8, 32, 2) };
    let said = trace_args::<GatherArgs>(meta, &CLEAN, gather).unwrap_err().to_string();
    assert!(said.contains("a world of 8 ranks on 3 nodes") && said.contains("divide 8"), "{said}");
    let said = refused(&Gather { nodes: 2, local: 65, ..CLEAN });
    assert!(said.contains("a node of 65 ranks"), "{said}");
    let said = refused(&Gather { nodes: 32, local: 33, ..CLEAN });
    assert!(said.contains(&format!("1 to {FAR_RANKS}")), "{said}");
}

#[derive(KernelArgs)]
#[args(config = Gather)]
#[allow(dead_code)] // refused before it is read
struct AskewArgs {
    /// Too few ranks of a node.
    #[channel(|c| ChannelShape::new(Transport::Far, c.nodes, Slots::BySender(1)).rail(c.local - 1))]
    #[len(|_| ROW)]
    rail: Channel<u32>,
}

#[derive(KernelArgs)]
#[args(config = Gather)]
#[allow(dead_code)] // refused before it is read
struct WideArgs {
    /// All ranks, of which a near channel reaches some.
    #[channel(|c| ChannelShape::new(Transport::Flags, c.nodes * c.local, Slots::BySender(1)))]
    #[len(|_| ROW)]
    near: Channel<u32>,
}

#[test]
fn a_channel_says_whose_ranks_it_counts() {
    let said = trace_args::<AskewArgs>(meta(&CLEAN), &CLEAN, |_, _| {}).unwrap_err().to_string();
    assert!(said.contains("the rail of channel `rail` is for 1 ranks a node, of 2"), "{said}");
    let said = trace_args::<WideArgs>(meta(&CLEAN), &CLEAN, |_, _| {}).unwrap_err().to_string();
    assert!(said.contains("channel `near` is between 6 ranks, in a node of 2"), "{said}");
}

#[test]
fn nodes_that_nothing_connects_are_refused() {
    let apart = trace(meta(&CLEAN), |p| {
        let out: Ptr<u32> = p.arg("out", 1);
        role("store", 1, |_| out.set(0, node()));
    });
    let apart = apart.unwrap_or_else(|e| panic!("{e}"));
    let found = verify(apart).unwrap_err().to_string();
    assert!(found.contains("a kernel for 3 nodes without a far channel"), "{found}");
}

#[test]
fn emitted_text_tells_nodes_from_ranks() {
    let target: Target = "cuda:sm_90a".parse().unwrap();
    let source = emit(&traced(&CLEAN), target, &EmitInfo { command: "cargo test".into() }).unwrap();
    let (text, header) = (source.text, source.abi);
    for said in [
        "inline constexpr u32 ranks = 2;  // of this machine: functions mean these by every rank",
        "raises `aborted` on all ranks of its machine,",
        "A symmetric buffer is one pointer for each rank of this machine, one's own included.",
        "// each rank's status, of this machine",
        "// this rank's number on its machine",
        "inline constexpr u32 all_ranks = 6;  // of 3 machines",
        "{args.far.node * ranks + args.rank, 3, ranks}, 1, {",
        "channel_rail_ready, local_rank, {local_rank, 3, ranks}, 1,",
    ] {
        assert!(text.contains(said), "`{said}` is not in\n{text}");
    }
    for said in [
        "_NODES 3",
        "_RANKS 2 /* of each node */",
        "raises `aborted` on every rank of its machine,",
        "`rank` is not below the number of ranks of a machine",
        "This rank's number on its machine, from 0.",
        "pass a pointer for every rank of this machine,",
    ] {
        assert!(header.contains(said), "`{said}` is not in\n{header}");
    }
}

/// The launcher refuses what would be of another machine, or beyond the proxy's channels.
#[test]
fn launchers_check_what_carries_far_channels() {
    for target in ["cuda:sm_90a", "hip:gfx942"] {
        let c = Gather { local: if target.starts_with("hip") { 1 } else { 2 }, ..CLEAN };
        let meta = TraceMeta { warp_size: if target.starts_with("hip") { 64 } else { 32 }, ..meta(&c) };
        let kernel = verify(trace_args::<GatherArgs>(meta, &c, gather).unwrap_or_else(|e| panic!("{e}")));
        let target: Target = target.parse().unwrap();
        let source = emit(&kernel.unwrap(), target, &EmitInfo { command: "cargo test".into() }).unwrap();
        for said in [
            "if (args.far.node >= 3) return PEERWARP_BAD_NODE;",
            "far.node: it must be below 3, the number of machines",
            "if (args.far.log_slots < 1 || args.far.log_slots > 16) return PEERWARP_BAD_RING;",
            // Two banks and the credits.
            "if (args.far.channel > 61) return PEERWARP_BAD_CHANNEL;",
            "it must be at most 61, as the kernel has 3 of the proxy's 64 channels",
        ] {
            assert!(source.text.contains(said), "`{said}` is not in\n{}", source.text);
        }
        assert!(source.abi.contains("#define PEERWARP_BAD_NODE (-5) "), "{}", source.abi);
    }
}
