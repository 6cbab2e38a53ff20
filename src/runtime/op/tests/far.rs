//! Kernels with far channels.

use std::ptr::NonNull;
use std::time::Duration;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::FAR_MEMORY;
use peerwarp_fabric::{Command, LIBRARY_VARIABLE, Memory, Op, Ring, UNIT, Words, library_version};

use super::*;
use crate::runtime::far::FarPlan;
use crate::runtime::mock::MockGpu;
use crate::runtime::net::free_address;
use crate::runtime::world::process_tests::{port, process_of};
use crate::runtime::{Launched, WorldOptions};

/// A row for the next rank, which may be on another machine.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "mail", kernel = mail, args = MailArgs, warps = warps)]
struct Mail {
    #[key(short = "r", range = 2..=8, ranks)]
    ranks: u32,
    #[tune(short = "w", values = [1])]
    warps: u32,
}

impl Legal for Mail {
    fn legal(&self) -> Result<(), Illegal> {
        Ok(())
    }
}

#[derive(KernelArgs)]
#[args(config = Mail)]
struct MailArgs {
    #[input]
    #[len(|_| 64)]
    x: Ptr<f32>,
    #[output]
    #[len(|_| 64)]
    out: Ptr<f32>,
    #[channel(|c| ChannelShape::new(Transport::Far, c.ranks, Slots::BySender(1)))]
    #[len(|_| 64)]
    rows: Channel<f32>,
    epoch: EpochWord,
}

#[kernel]
fn mail(c: &Mail, a: &MailArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", 1, |_| {
        let row = rows.to(Peers::rank((rank() + 1) % c.ranks)).slot(0);
        row.put(0, a.x.load(0, 64));
        row.done();
        rows.settle();
    });
    role("receive", 1, |_| {
        let row = rows.from((rank() + c.ranks - 1) % c.ranks).wait(1).slot(0);
        a.out.store(0, row.load(0, 64));
    });
    rows.credits();
}

/// Whether there is a libfabric to test with. Where PEERWARP_LIBFABRIC names one, it has to be.
fn library_is_there() -> bool {
    std::env::var_os(LIBRARY_VARIABLE).is_some() || library_version().is_ok()
}

fn operation(machine: &Machine) -> Result<Operation, RuntimeError> {
    let spec = LaunchSpec::new("mail", Mail { ranks: 2, warps: 1 }.into_variant());
    Operation::new(&world(machine), &[spec], &Uncompiled)
}

/// The address that a rank's last launch has at a member of the argument struct, and so many bytes behind it.
fn address(machine: &Machine, rank: usize, member: &str, at: usize) -> usize {
    let image = Mail { ranks: 2, warps: 1 }.into_variant();
    let image = Uncompiled.image(&*image, "cuda:sm_90a".parse().unwrap()).unwrap();
    let field = image.args.fields.iter().find(|f| f.name == member).unwrap();
    machine.launches.lock().unwrap()[rank].args[field.offset as usize / 8 + at] as usize
}

/// Memory that a launch was given.
fn memory(address: usize, bytes: usize) -> Memory {
    let first = NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
    // SAFETY: the operation of the test has it, and is alive.
    unsafe { Memory::from_raw(first, bytes, Box::new(())).unwrap() }
}

#[test]
fn what_a_kernel_commands_arrives() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    let machine = Machine::default();
    let mut op = operation(&machine).unwrap();
    for rank in op.ranks_mut() {
        // SAFETY: nothing runs on mocks.
        unsafe { rank.launch_raw(0, &[0x1000, 0x2000], RawStream::DEFAULT).unwrap() };
    }
    // Rank 0's kernel stores a row to its outbox, and puts it where it goes on rank 1.
    let [from, base] = [("rows_outbox", 0), ("far", 2)].map(|(member, at)| address(&machine, 0, member, at));
    let row: Vec<u64> = (0..32).map(|i| i * 0x0101).collect();
    memory(from, 256).write(0, &row);
    let to = address(&machine, 1, "rows", 0);
    let unit = |address: usize, base: usize| ((address - base) / UNIT) as u32;
    let there = unit(to, address(&machine, 1, "far", 2));
    let put =
        Command { op: Op::PutAndCount, channel: 0, peer: 1, from: unit(from, base), to: there, units: 16 };
    let words =
        |rank| Words::new(memory(address(&machine, rank, "far", 1), Words::bytes(3, 2)), 3, 2).unwrap();
    let ring = Ring::new(memory(address(&machine, 0, "far", 0), Ring::bytes(4096)), 0, 4096).unwrap();
    let long = Duration::from_secs(20);
    ring.push(&put, &words(0), long).unwrap();
    assert_eq!(words(1).wait_count(0, 0, 1, long), Ok(1));
    let mut arrived = vec![0; 32];
    memory(to, 256).read(0, &mut arrived);
    assert_eq!(arrived, row);
    ring.wait_delivered(1, &words(0), long).unwrap();
    // All channels are there: two banks and the credits.
    ring.push(&Command { channel: 2, units: 1, from: 0, to: 0, ..put }, &words(0), long).unwrap();
    assert_eq!(words(1).wait_count(2, 0, 1, long), Ok(1));
}

#[test]
fn an_engine_that_cannot_be_made_leaves_nothing() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    for good in 0..6 {
        let machine = Machine::default();
        machine.fail("map_host", good);
        let said = operation(&machine).unwrap_err().to_string();
        assert!(said.contains("map_host"), "{said}");
    }
    // Three regions a rank.
    let machine = Machine::default();
    machine.fail("map_host", 6);
    operation(&machine).unwrap();
}

/// Rings, counts and proxies begin anew on all ranks, wherever an abort has left them.
#[test]
fn a_world_with_far_channels_is_reset() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    let machine = Machine::default();
    let mut op = operation(&machine).unwrap();
    for rank in op.ranks_mut() {
        // SAFETY: nothing runs on mocks.
        unsafe { rank.launch_raw(0, &[0x1000, 0x2000], RawStream::DEFAULT).unwrap() };
    }
    let words =
        |rank| Words::new(memory(address(&machine, rank, "far", 1), Words::bytes(3, 2)), 3, 2).unwrap();
    let ring =
        |rank| Ring::new(memory(address(&machine, rank, "far", 0), Ring::bytes(4096)), 0, 4096).unwrap();
    let sent = |rank: usize| address(&machine, rank, "far", 3) as u64;
    let put = |peer| Command { op: Op::PutAndCount, channel: 0, peer, from: 0, to: 0, units: 1 };
    let long = Duration::from_secs(20);
    for reset in 0..3u64 {
        // More puts on one rank than on the other, which also names a rank that is not there: its proxy has a fault.
        for n in 0..3 {
            ring(0).push(&put(1), &words(0), long).unwrap();
            assert_eq!(words(1).wait_count(0, 0, n + 1, long), Ok(n + 1), "counts begin at 0, reset {reset}");
        }
        ring(1).push(&put(0), &words(1), long).unwrap();
        assert_eq!(words(0).wait_count(0, 1, 1, long), Ok(1));
        if reset == 1 {
            ring(1).push(&put(1023), &words(1), long).unwrap();
            assert!(words(1).wait_count(0, 0, 9, long).is_err());
            assert!(words(1).status().is_some(), "a fault");
        }
        let gpu = &op.world().members()[0].gpu;
        // SAFETY: the operation's counter of commands, as kernels leave it.
        unsafe { gpu.upload(sent(0), &3u64.to_ne_bytes()).unwrap() };
        op.world().reset().unwrap();
        let mut left = [9; 8];
        // SAFETY: as above.
        unsafe { gpu.download(sent(0), &mut left).unwrap() };
        assert_eq!(u64::from_ne_bytes(left), 0);
        for rank in 0..2 {
            assert_eq!((words(rank).status(), words(rank).count(0, 1 - rank as u16)), (None, 0));
        }
    }
    assert_eq!(op.world().resets(), 3);
}

const CHILD: &str = "runtime::op::tests::far::child";

/// What a process does as one of two ranks: each puts to the other, then both reset the world, again and again. Not a test of its own.
#[test]
#[ignore = "run by another test, in processes of their own"]
fn child() {
    let Ok(Some(launched)) = Launched::here() else { return };
    let (machine, long) = (Machine::default(), Duration::from_secs(20));
    let world = World::of_process(&MockGpu::all(&machine, 2), &launched, &WorldOptions::default()).unwrap();
    let spec = LaunchSpec::new("mail", Mail { ranks: 2, warps: 1 }.into_variant());
    let mut op = Operation::new(&Arc::new(world), &[spec], &Uncompiled).unwrap();
    // SAFETY: nothing runs on mocks.
    unsafe { op.ranks_mut()[0].launch_raw(0, &[0x1000, 0x2000], RawStream::DEFAULT).unwrap() };
    let (own, peer) = (launched.rank as u16, 1 - launched.rank as u16);
    let words = Words::new(memory(address(&machine, 0, "far", 1), Words::bytes(3, 2)), 3, 2).unwrap();
    let ring = Ring::new(memory(address(&machine, 0, "far", 0), Ring::bytes(4096)), 0, 4096).unwrap();
    let put = Command { op: Op::PutAndCount, channel: 0, peer, from: 0, to: 0, units: 1 };
    let puts = |rank: u16| 3 + 2 * u64::from(rank);
    for reset in 0..3 {
        for _ in 0..puts(own) {
            ring.push(&put, &words, long).unwrap();
        }
        assert_eq!(words.wait_count(0, peer, puts(peer), long), Ok(puts(peer)), "reset {reset}");
        if (reset, own) == (1, 0) {
            // A fault of one rank alone: there is no such peer.
            ring.push(&Command { peer: 1023, ..put }, &words, long).unwrap();
            assert!(words.wait_count(0, peer, 99, long).is_err() && words.status().is_some());
        }
        op.world().reset().unwrap();
        assert_eq!((words.status(), words.count(0, peer)), (None, 0));
        // The other rank puts no more before both have looked.
        op.world().agree(Ok(())).unwrap();
    }
}

#[test]
fn processes_reset_a_world_with_far_channels() {
    if !library_is_there() {
        return println!("skipped: libfabric is not installed, and PEERWARP_LIBFABRIC is not set");
    }
    // Without a name it is tcp, which libfabric 1.17 does not find by that one.
    for provider in [None, Some("shm")] {
        let address = free_address();
        let start = |rank| {
            let mut process = process_of(CHILD, "", rank, 2, port(&address));
            provider.map(|name| process.env("FI_PROVIDER", name));
            process.spawn().unwrap()
        };
        for mut child in [start(0), start(1)] {
            assert!(child.wait().unwrap().success(), "{provider:?}");
        }
    }
}

/// The sum over launches is refused by the names of those with far channels.
#[test]
fn launches_have_no_more_than_commands_can_name() {
    let mut plan = FarPlan::default();
    plan.add("small", 1 << 20);
    plan.check(&["mail"]).unwrap();
    plan.add("rows", FAR_MEMORY);
    let said = plan.check(&["mail", "more mail"]).unwrap_err().to_string();
    assert!(
        said.starts_with(
            "far channels of mail, more mail: 68720525568 bytes of outboxes and inboxes together"
        ),
        "{said}"
    );
    assert!(said.contains(&format!("of at most {FAR_MEMORY} an operation")), "{said}");
    // 22 launches of three channels each.
    let machine = Machine::default();
    let spec = |n: u32| {
        let launch = LaunchSpec::new(format!("mail{n}"), Mail { ranks: 2, warps: 1 }.into_variant());
        let own = ["rows", "rows_outbox", "rows_arrived", "rows_ready"];
        own.into_iter().fold(launch, |launch, part| launch.with_buffer(part, &format!("{part}{n}")))
    };
    let many: Vec<LaunchSpec> = (0..22).map(spec).collect();
    let said = Operation::new(&world(&machine), &many, &Uncompiled).unwrap_err().to_string();
    assert!(
        said.contains("mail0, mail1, ") && said.contains("66 channels together, of at most 64"),
        "{said}"
    );
}

#[test]
fn launches_that_count_apart_do_not_share_a_far_channel() {
    let machine = Machine::default();
    let spec = |label| LaunchSpec::new(label, Mail { ranks: 2, warps: 1 }.into_variant());
    let both = [spec("mail"), spec("again").with_buffer("epoch", "other_epoch")];
    let said = Operation::new(&world(&machine), &both, &Uncompiled).unwrap_err().to_string();
    assert!(said.starts_with("far channel with rows of again = shared: a channel of each launch"), "{said}");
}

/// Two launches with all far channels and the epoch in common are one after the other.
#[test]
fn halves_share_their_far_channels() {
    let spec = |label| LaunchSpec::new(label, Mail { ranks: 2, warps: 1 }.into_variant());
    let renamed = ["rows", "rows_outbox", "rows_arrived", "rows_ready"];
    let apart =
        renamed.iter().fold(spec("apart"), |spec, name| spec.with_buffer(name, &format!("other_{name}")));
    let plan = Plan::new(&[spec("send"), spec("receive"), apart]).unwrap();
    // Two banks, and one for credits.
    assert_eq!([0, 1, 2].map(|launch| plan.far.channel(launch)), [0, 0, 3]);
}
