//! A kernel over one far channel, with a mistake or none, and its runs.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::{Kernel, Planted, verify};
use peerwarp_codegen::sim::{Bindings, Compiled, Findings, Machine, Options, Strategy};

pub const RANKS: u32 = 3;
pub const ROWS: u32 = 3;
pub const ROW: u32 = 16;

/// A mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slip {
    None,
    SettleFirst,
    SettleElsewhere,
    SettleSometimes,
    SettleLate,
    SendAgain,
    WaitForMore,
    WaitForFewer,
    PutFewer,
    Prefix,
    OneByOne,
    WaitTwice,
    PublishFirst,
    PublishBeforeLast,
    PublishElsewhere,
    PublishFewer,
    HalfARow,
    OldRow,
}

/// Rows of each rank to each rank.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    pub publish: Publish,
    pub banks: u32,
    pub credits: bool,
    /// Whether a row goes to all ranks, and is the same there.
    pub gathers: bool,
    /// Whether rank 0 alone sends.
    pub one_sends: bool,
    pub slip: Slip,
}

impl Post {
    pub fn new(publish: Publish) -> Post {
        Post { publish, banks: 2, credits: true, gathers: false, one_sends: false, slip: Slip::None }
    }
}

#[derive(KernelArgs)]
#[args(config = Post)]
pub struct PostArgs {
    #[len(|_| u64::from(RANKS * ROWS * ROW))]
    x: Ptr<f32>,
    #[len(|_| u64::from(RANKS * ROWS * ROW))]
    out: Ptr<f32>,
    /// Rows of all ranks.
    #[channel(|c| {
        let shape = ChannelShape::new(Transport::Far, RANKS, Slots::BySender(ROWS));
        shape.publish(c.publish).banks(c.banks).credits(c.credits).read_many()
    })]
    #[len(|_| ROW)]
    rows: Channel<f32>,
    #[len(|_| 1)]
    put: BlockFlags,
    epoch: EpochWord,
}

/// Sends rows to each rank, and stores what arrives in the order of ranks.
#[kernel]
fn post(c: &Post, a: &PostArgs) {
    let epoch = a.epoch.begin();
    let rows = a.rows.open(epoch);
    let senders = if c.one_sends { 1 } else { RANKS };
    role("send", 1, |b| {
        if c.slip == Slip::SettleFirst {
            rows.settle();
        }
        let rounds = if c.gathers { 1 } else { RANKS };
        let sends = rank() < senders;
        for peer in b.strided(sends.select(rounds, 0)) {
            let to = if c.gathers { Peers::all() } else { Peers::rank(peer) };
            if c.slip == Slip::PublishFirst {
                rows.publish(to, ROWS); // slip: publish first
            }
            let last = if c.slip == Slip::PutFewer { ROWS - 1 } else { ROWS };
            for i in 0..last {
                if c.slip == Slip::PublishBeforeLast && i + 1 == last {
                    rows.publish(to, ROWS - 1);
                }
                let row = rows.to(to).slot(i);
                let width = if c.slip == Slip::HalfARow { ROW / 2 } else { ROW };
                row.put(0, a.x.load((peer * ROWS + i) * ROW, width)); // slip: store
                row.done(); // slip: put
            }
            if c.slip == Slip::SendAgain {
                let row = rows.to(to).slot(0);
                row.put(0, a.x.load(0, ROW)); // slip: send again
                row.done();
            }
            let kept = [Slip::PublishFirst, Slip::PublishElsewhere, Slip::PublishBeforeLast];
            if c.publish == Publish::Batch && !kept.contains(&c.slip) {
                let n = if c.slip == Slip::PublishFewer { ROWS - 1 } else { ROWS };
                rows.publish(to, n); // slip: publish fewer
            }
        }
        if c.slip == Slip::PublishElsewhere {
            a.put.signal(0, epoch);
        }
        if c.slip == Slip::SettleSometimes {
            if a.x.get(0) < -1.0 {
                rows.settle();
            }
        } else if ![Slip::SettleFirst, Slip::SettleElsewhere, Slip::SettleLate].contains(&c.slip) {
            rows.settle();
        }
        if c.slip == Slip::SettleLate {
            let row = rows.to(Peers::rank(0)).slot(0);
            row.put(0, a.x.load(0, ROW)); // slip: settle late
            rows.settle();
            row.done();
        }
    });
    if c.slip == Slip::PublishElsewhere {
        role("publish", 1, |_| {
            a.put.from(0).wait(0, epoch);
            for peer in 0..RANKS {
                rows.publish(Peers::rank(peer), ROWS);
            }
        });
    }
    role("receive", if c.slip == Slip::WaitTwice { 2 } else { 1 }, |b| {
        if c.slip == Slip::SettleElsewhere {
            rows.settle();
        }
        for from in 0..senders {
            let n = match c.slip {
                Slip::WaitTwice => 2 - b.index(),
                Slip::WaitForMore => (ROWS + 1).val(),
                Slip::WaitForFewer | Slip::OldRow => (ROWS - 1).val(),
                Slip::Prefix | Slip::OneByOne => 1u32.val(),
                _ => ROWS.val(),
            };
            let arrived = rows.from(from).wait(n); // slip: wait
            let last = if c.slip == Slip::WaitForFewer || c.slip == Slip::PutFewer { ROWS - 1 } else { ROWS };
            for i in 0..last {
                let to = (from * ROWS + i) * ROW;
                if c.slip == Slip::OneByOne && i > 0 {
                    let next = rows.from(from).wait(1);
                    a.out.store(to, next.slot(i).load(0, ROW));
                } else {
                    a.out.store(to, arrived.slot(i).load(0, ROW)); // slip: read
                }
            }
            if c.slip == Slip::Prefix {
                let _rest = rows.from(from).wait(ROWS - 1);
            }
        }
    });
    rows.credits();
}

pub fn traced(config: &Post) -> Result<Kernel, TraceError> {
    trace_args::<PostArgs>(TraceMeta::new("post", RANKS, 32, 2), config, post)
}

/// What a rank puts in row `i` for `peer` in a launch.
pub fn row(launch: u32, rank: u32, peer: u32, i: u32) -> f32 {
    (1000 * launch + 100 * rank + 10 * peer + i) as f32
}

/// Launches, each of which works on rows of its own and whose result a host step checks.
pub fn launched(kernel: Planted, config: &Post, launches: u32) -> Machine {
    let kernel = Arc::new(Compiled::planted(kernel));
    let Post { gathers, one_sends, .. } = *config;
    let mut machine = Machine::new(RANKS);
    machine.buffers_of(kernel.kernel()).unwrap();
    for launch in 0..launches {
        for rank in 0..RANKS {
            machine
                .host(rank, "rows", move |memory| {
                    let each = |n: u32| row(launch, rank, n / ROWS, n % ROWS);
                    let x: Vec<f32> = (0..RANKS * ROWS * ROW).map(|n| each(n / ROW)).collect();
                    memory.write("x", 0, &x).map_err(|e| e.to_string())
                })
                .unwrap();
            machine.launch(rank, &kernel, &Bindings::new()).unwrap();
            machine
                .host(rank, "result", move |memory| {
                    let senders = if one_sends { 1 } else { RANKS };
                    let all = u64::from(senders * ROWS * ROW);
                    let out = memory.read::<f32>("out", 0..all).map_err(|e| e.to_string())?;
                    for (n, got) in (0..).zip(out) {
                        let (from, i) = (n / ROW / ROWS, n / ROW % ROWS);
                        let want = row(launch, from, if gathers { 0 } else { rank }, i);
                        if got != want {
                            return Err(format!("element {n} is {got}, not {want}"));
                        }
                    }
                    Ok(())
                })
                .unwrap();
        }
    }
    machine
}

/// The findings of the first run that has some, over some seeds of both strategies.
pub fn explored(machine: &Machine, seeds: u64) -> Option<Box<Findings>> {
    let run = |n: u64| {
        let strategy = if n.is_multiple_of(2) { Strategy::Random } else { Strategy::Adversarial };
        machine.run(&Options { seed: n / 2, strategy, ..Options::default() }).err()
    };
    (0..2 * seeds).find_map(run)
}

/// The machine of a configuration.
pub fn machine(config: &Post, launches: u32) -> Machine {
    let kernel = traced(config).unwrap_or_else(|e| panic!("{e}"));
    verify(kernel.clone()).unwrap_or_else(|e| panic!("{e:?}"));
    launched(Planted::new(kernel).unwrap(), config, launches)
}
