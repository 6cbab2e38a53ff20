//! Packets and LL elements.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "messages",
        title: "Packets and LL elements",
        intro: "Packets and LL elements show by their content that they have arrived: one trip over the link, where a parcel and its flag take three. \
                Receiving waits for what it reads, and orders nothing but these elements. Before an element is sent again, a flag or a barrier \
                must tell the sender that it was read. The checker reports elements that are overwritten unread or taken twice (`lost-packet`)."
            .into(),
        kinds: &["Packets", "AnyPackets", "Ll", "AnyLl", "LlElement"],
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

fn half(r: u32, i: u32) -> bf16 {
    bf16::from_f32(own(r, i))
}

fn half_of_theirs(r: u32, i: u32) -> bf16 {
    half(1 - r, i)
}

examples! {
    packets ["Packets::send", "Packets::take"]
    (x: Ptr<f32>[64] = own, inbox: Packets<f32>[64], out: Ptr<f32>[64]) -> (out: theirs)
    {
        role("main", 1, |_| {
            let peer = 1 - rank();
            inbox.send(Peers::rank(peer), 0, x.load(0, 64));
            out.store(0, inbox.take(0, 64, peer));
        });
    }

    several_packets ["Packets::take_each"]
    (x: Ptr<f32>[64] = own, inbox: Packets<f32>[128], out: Ptr<f32>[64]) -> (out: |r, i| own(r, i) + theirs(r, i))
    {
        role("main", 1, |_| {
            inbox.send(Peers::all(), rank() * 64, x.load(0, 64));
            let both = inbox.take_each([(0, 0), (64, 1)], 64, 3u64);
            out.store(0, both[0] + both[1]);
        });
    }

    any_packets ["AnyPackets::send", "AnyPackets::take", "AnyPackets::dtype"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, inbox: AnyPackets[Dtype::Bf16, 64], out: AnyPtr[Dtype::Bf16, 64]) -> (out: half_of_theirs)
    {
        assert_eq!(inbox.dtype(), x.dtype());
        role("main", 1, |_| {
            let peer = 1 - rank();
            inbox.send(Peers::rank(peer), 0, x.load(0, 64));
            out.store(0, inbox.take(0, 64, peer));
        });
    }

    several_any_packets ["AnyPackets::send_f32", "AnyPackets::take_each"]
    (x: Ptr<f32>[64] = own, inbox: AnyPackets[Dtype::Bf16, 128], out: Ptr<f32>[64]) -> (out: |r, i| own(r, i) + theirs(r, i))
    {
        role("main", 1, |_| {
            inbox.send_f32(Peers::all(), rank() * 64, x.load(0, 64));
            let both = inbox.take_each([(0, 0), (64, 1)], 64, 3u64);
            out.store(0, both[0].to_f32() + both[1].to_f32());
        });
    }

    ll_elements ["Ll::send", "Ll::load", "Ll::gather"]
    (x: Ptr<f32>[64] = own, inbox: Ll<f32>[64], word: EpochWord[1], out: Ptr<f32>[64]) -> (out: |r, i| theirs(r, i) + theirs(r, 63 - i))
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            let peer = 1 - rank();
            inbox.send(Peers::rank(peer), 0, x.load(0, 64), epoch);
            let back = inbox.gather(63 - arange(64), peer, true, epoch);
            out.store(0, inbox.load(0, 64, peer, epoch) + back);
        });
    }

    any_ll_elements ["AnyLl::send", "AnyLl::load", "AnyLl::dtype"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, inbox: AnyLl[Dtype::Bf16, 64], word: EpochWord[1], out: AnyPtr[Dtype::Bf16, 64])
    -> (out: half_of_theirs)
    {
        let epoch = word.begin();
        assert_eq!(inbox.dtype(), x.dtype());
        role("main", 1, |_| {
            let peer = 1 - rank();
            inbox.send(Peers::rank(peer), 0, x.load(0, 64), epoch);
            out.store(0, inbox.load(0, 64, peer, epoch));
        });
    }

    rounded_ll_elements ["AnyLl::send_f32", "AnyLl::gather"]
    (x: Ptr<f32>[64] = own, inbox: AnyLl[Dtype::F32, 64], word: EpochWord[1], out: Ptr<f32>[64]) -> (out: |r, i| theirs(r, 63 - i))
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            let peer = 1 - rank();
            inbox.send_f32(Peers::rank(peer), 0, x.load(0, 64), epoch);
            out.store(0, inbox.gather(63 - arange(64), peer, true, epoch).to_f32());
        });
    }
}
