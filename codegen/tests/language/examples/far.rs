//! Far channels.

use peerwarp_codegen::dsl::prelude::*;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "far",
        title: "Far channels",
        intro: "A channel with `Transport::Far` carries messages to ranks of other machines by asynchronous puts of a network card. \
                [Far channels](../../explanation/far-channels.md) says what that means and what the checker finds. Far channels reach the ranks of \
                all nodes, all else those of a node.\n\nWhat is put into a message is stored to an outbox, which the channel owns. Finishing the message puts \
                it up to the last element that is stored. An entry without **Orders** orders nothing."
            .into(),
        kinds: &["InboundFar", "InboundOthers", "Publish"],
        examples: examples(),
        source: SOURCE,
    }
}

fn own(r: u32, i: u32) -> f32 {
    (i + 100 * r) as f32
}

fn theirs(r: u32, i: u32) -> f32 {
    own(1 - r, i)
}

examples! {
    each_put_counts ["Inbound::wait", "InboundFar::slot", "OpenChannel::settle"]
    (x: Ptr<f32>[128] = own, words: Channel<f32>[ChannelShape::new(Transport::Far, 2, Slots::BySender(2)), 64], word: EpochWord[1],
     out: Ptr<f32>[128])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("send", 1, |_| {
            for slot in 0..2 {
                let message = words.to(Peers::rank(peer)).slot(slot);
                message.put(0, x.load(slot * 64, 64));
                message.done();
            }
            words.settle();
        });
        role("receive", 1, |_| {
            let all = words.from(peer).wait(2);
            for slot in 0..2 {
                out.store(slot * 64, all.slot(slot).load(0, 64));
            }
        });
        words.credits();
    }

    a_batch_of_puts ["OpenChannel::publish", "ChannelShape::publish"]
    (x: Ptr<f32>[128] = own,
     words: Channel<f32>[ChannelShape::new(Transport::Far, 2, Slots::BySender(2)).publish(Publish::Batch), 64], word: EpochWord[1],
     out: Ptr<f32>[128])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("send", 1, |_| {
            for slot in 0..2 {
                let message = words.to(Peers::rank(peer)).slot(slot);
                message.put(0, x.load(slot * 64, 64));
                message.done();
            }
            words.publish(Peers::rank(peer), 2);
            words.settle();
        });
        role("receive", 1, |_| {
            let all = words.from(peer).wait(2);
            for slot in 0..2 {
                out.store(slot * 64, all.slot(slot).load(0, 64));
            }
        });
        words.credits();
    }

    along_a_rail [
        "node", "nodes", "local_rank", "local_ranks", "ChannelShape::rail", "ChannelShape::lanes", "ChannelShape::to_all", "OpenChannel::lane",
        "OpenChannel::wait_others", "InboundOthers::slot"
    ]
    (x: Ptr<f32>[128] = own,
     words: Channel<f32>[ChannelShape::new(Transport::Far, 2, Slots::BySender(2)).rail(1).lanes(2).to_all(), 64], word: EpochWord[1],
     out: Ptr<f32>[128])
    -> (out: theirs)
    {
        let words = words.open(word.begin());
        role("exchange", 2, |b| {
            let (lane, slot) = (words.lane(b.index()), b.index());
            let message = lane.to(Peers::others()).slot(slot);
            message.put(0, x.load(slot * 64, 64));
            message.done();
            let other = (node() + 1) % nodes() + local_rank() / local_ranks();
            out.store(slot * 64, lane.wait_others(1).slot(other, slot).load(0, 64));
            lane.settle();
        });
        words.credits();
    }
}
