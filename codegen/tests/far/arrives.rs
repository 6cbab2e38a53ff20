//! What is put arrives, in every launch and on every schedule.

use std::sync::Arc;

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace_args};
use peerwarp_codegen::ir::verify;
use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options, Strategy};

use super::world::{Post, RANKS, Slip, explored, machine};

fn clean(config: &Post) {
    if let Some(found) = explored(&machine(config, 5), 12) {
        panic!("{config:?}: {found}");
    }
}

#[test]
fn rows_arrive_in_five_launches() {
    for publish in [Publish::Each, Publish::Batch] {
        for gathers in [false, true] {
            for one_sends in [false, true] {
                clean(&Post { gathers, one_sends, ..Post::new(publish) });
            }
        }
    }
}

#[test]
fn other_orders_do_as_well() {
    for publish in [Publish::Each, Publish::Batch] {
        // What every rank puts in a launch comes after what it read in the one before.
        clean(&Post { credits: false, ..Post::new(publish) });
        // The bank is stored to again two launches later: any settling in between does.
        clean(&Post { slip: Slip::SettleFirst, ..Post::new(publish) });
        clean(&Post { slip: Slip::SettleElsewhere, ..Post::new(publish) });
    }
}

#[derive(Message)]
#[message(config = Publish)]
struct Scaled {
    #[len(|_| 32)]
    row: Field<f32>,
    #[len(|_| 1)]
    scale: Field<f32>,
}

#[derive(KernelArgs)]
#[args(config = Publish)]
struct ScaledArgs {
    #[len(|_| 32)]
    x: Ptr<f32>,
    #[len(|_| u64::from(32 * RANKS))]
    out: Ptr<f32>,
    #[channel(|c| ChannelShape::new(Transport::Far, RANKS, Slots::ByNumber(1)).publish(*c))]
    rows: Channel<Scaled>,
    epoch: EpochWord,
}

/// Sends a row and its scale to all ranks.
#[kernel]
fn scaled(c: &Publish, a: &ScaledArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", 1, |_| {
        let row = rows.to(Peers::all()).slot(0);
        row.field(rows.row).copy(0, &a.x, 0, 32);
        row.field(rows.scale).put(0, splat(0.5f32, 1));
        row.done();
        if *c == Publish::Batch {
            rows.publish(Peers::all(), 1);
        }
        rows.settle();
    });
    role("receive", RANKS, |b| {
        let from = b.index();
        let row = rows.from(from).wait(1).slot(0);
        let scale = row.field(rows.scale).load(0, 1).sum();
        a.out.store(from * 32, row.field(rows.row).load(0, 32) * scale);
    });
    rows.credits();
}

#[test]
fn a_message_of_several_fields_is_a_put_for_each() {
    for publish in [Publish::Each, Publish::Batch] {
        let kernel =
            trace_args::<ScaledArgs>(TraceMeta::new("scaled", RANKS, 32, 2), &publish, scaled).unwrap();
        let kernel = Arc::new(Compiled::new(verify(kernel).unwrap()));
        let mut machine = Machine::new(RANKS);
        machine.buffers_of(kernel.kernel()).unwrap();
        for rank in 0..RANKS {
            machine.write(rank, "x", 0, &[rank as f32 + 1.0; 32]).unwrap();
        }
        (0..4).for_each(|_| machine.launch_all(&kernel, &Bindings::new()).unwrap());
        for seed in 0..8 {
            for strategy in [Strategy::Random, Strategy::Adversarial] {
                let outcome = machine.run(&Options { seed, strategy, ..Options::default() });
                let outcome = outcome.unwrap_or_else(|e| panic!("{e}"));
                for (i, got) in
                    outcome.memory.read::<f32>(seed as u32 % RANKS, "out").unwrap().iter().enumerate()
                {
                    assert_eq!(*got, (i / 32 + 1) as f32 / 2.0);
                }
            }
        }
    }
}
