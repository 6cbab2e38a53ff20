//! Channels.

use peerwarp_codegen::dsl::Spare;
use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::example::Sizes;
use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "channels",
        title: "Channels",
        intro: "A channel is one parameter for messages between ranks: it owns inboxes, banks, flags and credits. The kernel says what goes to whom in \
                which slot; the transport, which the configuration chooses, decides how it travels. The same kernel runs over every transport.\n\nWith \
                flags a message is there when its wait returns, and the wait orders all that its sender's group did before. Without flags, loading \
                waits for what it loads and orders nothing else. An entry without **Orders** orders nothing."
            .into(),
        kinds: &[
            "Channel",
            "AnyChannel",
            "Any",
            "ChannelShape",
            "Slots",
            "Transport",
            "Spare",
            "OpenChannel",
            "Outbound",
            "Outgoing",
            "OutgoingField",
            "Batch",
            "BatchSlot",
            "Inbound",
            "Incoming",
            "IncomingField",
            "InboundSome",
            "IncomingSome",
            "IncomingSomeField",
            "IncomingEach",
            "IncomingEachField",
            "Message",
            "Payload",
            "Field",
            "AnyField",
        ],
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

fn both(r: u32, i: u32) -> f32 {
    own(r, i) + theirs(r, i)
}

fn half(r: u32, i: u32) -> bf16 {
    bf16::from_f32(own(r, i))
}

fn half_of_theirs(r: u32, i: u32) -> bf16 {
    half(1 - r, i)
}

/// A row and its scale.
#[derive(Message)]
#[message(config = Sizes)]
pub struct Row {
    #[len(|c| c.row)]
    #[dtype(|_| Dtype::Bf16)]
    row: AnyField,
    #[len(|_| 1)]
    scale: Field<f32>,
}

examples! {
    over_flags
    ["ChannelShape::new", "Channel::open", "OpenChannel::to", "Outbound::slot", "Outgoing::put", "Outgoing::done", "OpenChannel::from",
     "Inbound::slot", "Incoming::load"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1)), 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("send", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
        });
        role("receive", 1, |_| {
            out.store(0, words.from(peer).slot(0).load(0, 64));
        });
    }

    over_ll ["Channel::transport", "Transport::has_flags", "Transport::carries", "OpenChannel::credits", "ChannelShape::credits"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)).credits(true), 64],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: theirs)
    {
        assert!(!words.transport().has_flags() && Transport::Ll.carries(64, Dtype::F32));
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
            out.store(0, words.from(peer).slot(0).load(0, 64));
        });
        words.credits();
    }

    over_packets ["ChannelShape::banks", "Outgoing::elements"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Packets, 2, Slots::BySender(1)).banks(3), 64],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.elements().put(0, x.load(0, 64));
            message.done();
            out.store(0, words.from(peer).slot(0).load(0, 64));
        });
        words.credits();
    }

    in_bulk ["Outgoing::copy", "Outgoing<Any>::copy"]
    (x: Ptr<f32>[64] = own, y: AnyPtr[Dtype::Bf16, 64] = half,
     a: Channel<f32>[ChannelShape::new(Transport::Bulk, 2, Slots::BySender(1)), 64],
     b: AnyChannel[ChannelShape::new(Transport::Bulk, 2, Slots::BySender(1)), Dtype::Bf16, 64], word: EpochWord[1], out: Ptr<f32>[64],
     more: AnyPtr[Dtype::Bf16, 64])
    -> (out: theirs, more: half_of_theirs)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        let (a, b) = (a.open(epoch), b.open(epoch));
        role("main", 1, |_| {
            let message = a.to(Peers::rank(peer)).slot(0);
            message.copy(0, &x, 0, 64);
            message.done();
            let message = b.to(Peers::rank(peer)).slot(0);
            message.copy(0, &y, 0, 64);
            message.done();
            out.store(0, a.from(peer).slot(0).load(0, 64));
            more.store(0, b.from(peer).slot(0).load(0, 64));
        });
    }

    of_any_type ["Outgoing<Any>::put", "Outgoing<Any>::put_f32", "Incoming<Any>::load", "Incoming<Any>::load_f32"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, words: AnyChannel[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1)), Dtype::Bf16, 128],
     word: EpochWord[1], out: AnyPtr[Dtype::Bf16, 64], more: Ptr<f32>[64])
    -> (out: half_of_theirs, more: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.put(0, x.load(0, 64));
            message.put_f32(64, x.load_f32(0, 64));
            message.done();
            let got = words.from(peer).slot(0);
            out.store(0, got.load(0, 64));
            more.store(0, got.load_f32(64, 64));
        });
    }

    of_fields
    ["Outgoing::field", "OutgoingField::put", "OutgoingField<Any>::put_f32", "Incoming::field", "IncomingField::load",
     "IncomingField<Any>::load_f32", "Field::len", "Field::dtype"]
    (x: Ptr<f32>[64] = own, rows: Channel<Row>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1))], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, i) * 2.0)
    {
        let (rows, peer) = (rows.open(word.begin()), 1 - rank());
        assert_eq!((rows.row.len(), rows.row.dtype()), (64, Dtype::Bf16));
        role("main", 1, |_| {
            let message = rows.to(Peers::rank(peer)).slot(0);
            message.field(rows.row).put_f32(0, x.load(0, 64));
            message.field(rows.scale).put(0, splat(2f32, 1));
            message.done();
            let got = rows.from(peer).slot(0);
            let scale = got.field(rows.scale).load(0, 1).sum();
            out.store(0, got.field(rows.row).load_f32(0, 64) * scale);
        });
    }

    of_fields_as_they_are ["OutgoingField<Any>::put", "OutgoingField<Any>::copy", "OutgoingField::copy", "IncomingField<Any>::load"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, scale: Ptr<f32>[1] = own,
     rows: Channel<Row>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(2))], word: EpochWord[1], out: AnyPtr[Dtype::Bf16, 64],
     more: AnyPtr[Dtype::Bf16, 64])
    -> (out: half_of_theirs, more: half_of_theirs)
    {
        let (rows, peer) = (rows.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let message = rows.to(Peers::rank(peer)).slot(0);
            message.field(rows.row).put(0, x.load(0, 64));
            message.field(rows.scale).put(0, scale.load(0, 1));
            message.done();
            let message = rows.to(Peers::rank(peer)).slot(1);
            message.field(rows.row).copy(0, &x, 0, 64);
            message.field(rows.scale).put(0, scale.load(0, 1));
            message.done();
            out.store(0, rows.from(peer).slot(0).field(rows.row).load(0, 64));
            more.store(0, rows.from(peer).slot(1).field(rows.row).load(0, 64));
        });
    }

    in_batches
    ["ChannelShape::batches", "Outbound::batch", "Batch::slot", "BatchSlot::put", "BatchSlot::copy", "BatchSlot::elements", "Batch::done",
     "Inbound::batch"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(3)).batches(2), 64],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, i) * 3.0)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let batch = words.to(Peers::rank(peer)).batch();
            batch.slot(0).put(0, x.load(0, 64));
            batch.slot(1).copy(0, &x, 0, 64);
            batch.slot(2).elements().put(0, x.load(0, 64));
            batch.done(rank());
            let from = words.from(peer);
            let first = from.batch(peer, 0).load(0, 64) + from.batch(peer, 1).load(0, 64);
            out.store(0, first + from.batch(peer, 2).load(0, 64));
        });
    }

    in_batches_of_any_type ["BatchSlot<Any>::put", "BatchSlot<Any>::put_f32", "BatchSlot<Any>::copy"]
    (x: AnyPtr[Dtype::Bf16, 64] = half,
     words: AnyChannel[ChannelShape::new(Transport::Flags, 2, Slots::BySender(3)).batches(2), Dtype::Bf16, 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, i) * 3.0)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let batch = words.to(Peers::rank(peer)).batch();
            batch.slot(0).put(0, x.load(0, 64));
            batch.slot(1).put_f32(0, x.load_f32(0, 64));
            batch.slot(2).copy(0, &x, 0, 64);
            batch.done(rank());
            let from = words.from(peer);
            let first = from.batch(peer, 0).load_f32(0, 64) + from.batch(peer, 1).load_f32(0, 64);
            out.store(0, first + from.batch(peer, 2).load_f32(0, 64));
        });
    }

    in_batches_of_fields ["BatchSlot::field"]
    (x: Ptr<f32>[64] = own, rows: Channel<Row>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1)).batches(2)],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, i) * 2.0)
    {
        let (rows, peer) = (rows.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let batch = rows.to(Peers::rank(peer)).batch();
            let message = batch.slot(0);
            message.field(rows.row).put_f32(0, x.load(0, 64));
            message.field(rows.scale).put(0, splat(2f32, 1));
            batch.done(rank());
            let got = rows.from(peer).batch(peer, 0);
            let scale = got.field(rows.scale).load(0, 1).sum();
            out.store(0, got.field(rows.row).load_f32(0, 64) * scale);
        });
    }

    from_some_ranks ["OpenChannel::from_some", "InboundSome::slot", "IncomingSome::load_each"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1)), 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: both)
    {
        let words = words.open(word.begin());
        role("main", 1, |_| {
            let message = words.to(Peers::all()).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
            let all = words.from_some(3u64).slot(0).load_each(0, 2, 0, 64);
            out.store(0, all[0] + all[1]);
        });
    }

    from_some_in_batches ["InboundSome::batch", "IncomingSome<Any>::load_each"]
    (x: AnyPtr[Dtype::Bf16, 64] = half,
     words: AnyChannel[ChannelShape::new(Transport::Flags, 2, Slots::ByNumber(1)).batches(2), Dtype::Bf16, 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: both)
    {
        let words = words.open(word.begin());
        role("main", 1, |_| {
            let batch = words.to(Peers::all()).batch();
            batch.slot(0).put(0, x.load(0, 64));
            batch.done(rank());
            let all = words.from_some(3u64).batch(0, 0).load_each(0, 2, 0, 64);
            out.store(0, all[0].to_f32() + all[1].to_f32());
        });
    }

    fields_from_some_ranks ["IncomingSome::field", "IncomingSomeField::load_each", "IncomingSomeField<Any>::load_each"]
    (x: Ptr<f32>[64] = own, rows: Channel<Row>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1))], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: |r, i| both(r, i) + 4.0)
    {
        let rows = rows.open(word.begin());
        role("main", 1, |_| {
            let message = rows.to(Peers::all()).slot(0);
            message.field(rows.row).put_f32(0, x.load(0, 64));
            message.field(rows.scale).put(0, splat(2f32, 1));
            message.done();
            let got = rows.from_some(3u64).slot(0);
            let (all, scales) = (got.field(rows.row).load_each(0, 2, 0, 64), got.field(rows.scale).load_each(0, 2, 0, 1));
            out.store(0, all[0].to_f32() + all[1].to_f32() + (scales[0] + scales[1]).sum());
        });
    }

    fields_from_any_slots ["IncomingEach::field", "IncomingEachField::load", "IncomingEachField<Any>::load"]
    (x: Ptr<f32>[64] = own, rows: Channel<Row>[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)).credits(false)],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| both(r, i) + 4.0)
    {
        let rows = rows.open(word.begin());
        role("main", 1, |_| {
            let message = rows.to(Peers::all()).slot(0);
            message.field(rows.row).put_f32(0, x.load(0, 64));
            message.field(rows.scale).put(0, splat(2f32, 1));
            message.done();
            let got = rows.from_each([(0.val(), 0.val()), (1.val(), 0.val())], 3u64);
            let (all, scales) = (got.field(rows.row).load(0, 64), got.field(rows.scale).load(0, 1));
            out.store(0, all[0].to_f32() + all[1].to_f32() + (scales[0] + scales[1]).sum());
        });
    }

    from_any_slots ["OpenChannel::from_each", "IncomingEach::load"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)).credits(false), 64],
     word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: both)
    {
        let words = words.open(word.begin());
        role("main", 1, |_| {
            let message = words.to(Peers::all()).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
            let all = words.from_each([(0.val(), 0.val()), (1.val(), 0.val())], 3u64).load(0, 64);
            out.store(0, all[0] + all[1]);
        });
    }

    from_any_slots_of_any_type ["IncomingEach<Any>::load"]
    (x: AnyPtr[Dtype::Bf16, 64] = half,
     words: AnyChannel[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)).credits(false), Dtype::Bf16, 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: both)
    {
        let words = words.open(word.begin());
        role("main", 1, |_| {
            let message = words.to(Peers::all()).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
            let all = words.from_each([(0.val(), 0.val()), (1.val(), 0.val())], 3u64).load(0, 64);
            out.store(0, all[0].to_f32() + all[1].to_f32());
        });
    }

    read_many_times ["ChannelShape::read_many", "ChannelShape::named", "ChannelShape::banks_for"]
    (x: Ptr<f32>[64] = own,
     words: Channel<f32>[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)).read_many().banks_for(256).named("ready", "done"), 64],
     word: EpochWord[1], out: Ptr<f32>[128])
    -> (out: |r, i| theirs(r, i % 64))
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("send", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
        });
        role("receive", 2, |b| {
            out.store(b.index() * 64, words.from(peer).slot(0).load(0, 64));
        });
        words.credits();
    }

    in_parts ["ChannelShape::parts"]
    (x: Ptr<f32>[128] = own, words: Channel<f32>[ChannelShape::new(Transport::Flags, 2, Slots::BySender(1)).parts(2), 128],
     word: EpochWord[1], out: Ptr<f32>[128])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("send", 2, |b| {
            let part = words.to(Peers::rank(peer)).slot(0);
            part.put(b.index() * 64, x.load(b.index() * 64, 64));
            part.done();
        });
        role("receive", 1, |_| {
            out.store(0, words.from(peer).slot(0).load(0, 128));
        });
    }

    words_of_floats ["ChannelShape::float_words"]
    (x: AnyPtr[Dtype::U32, 64] = |r, i| own(r, i).to_bits(),
     words: AnyChannel[ChannelShape::new(Transport::Packets, 2, Slots::BySender(1)).credits(false).float_words(), Dtype::U32, 64],
     word: EpochWord[1], out: AnyPtr[Dtype::U32, 64])
    -> (out: |r, i| theirs(r, i).to_bits())
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("main", 1, |_| {
            let message = words.to(Peers::rank(peer)).slot(0);
            message.put(0, x.load(0, 64));
            message.done();
            out.store(0, words.from(peer).slot(0).load(0, 64));
        });
    }

    asks_its_shape ["ChannelShape::transport", "ChannelShape::banks_of", "ChannelShape::blocks", "ChannelShape::spares"]
    (out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        let first = ChannelShape::new(Transport::Ll, 2, Slots::Shared(8));
        let other = ChannelShape::new(Transport::Flags, 2, Slots::Shared(8)).banks_of(&first);
        assert_eq!((first.transport(), other.spares()), (Transport::Ll, vec![Spare::SecondBank]));
        role("main", 1, |_| {
            out.set(0, first.blocks());
        });
    }

    what_a_missing_rank_counts_for ["active_ranks", "is_active"]
    (x: Ptr<f32>[64] = own, words: Channel<f32>[ChannelShape::new(Transport::Ll, 2, Slots::BySender(1)), 64], word: EpochWord[1],
     out: Ptr<f32>[64])
    -> (out: theirs)
    {
        let (words, peer) = (words.open(word.begin()), 1 - rank());
        role("exchange", 1, |_| {
            let own = x.load(0, 64);
            let message = words.to(Peers::others()).slot(0);
            message.put(0, own);
            message.done();
            let theirs = words.from(peer).slot(0).load(0, 64);
            let alone = active_ranks() == bit(rank());
            out.store(0, (is_active(peer) & !alone).splat(64).select(theirs, own));
        });
        words.credits();
    }
}
