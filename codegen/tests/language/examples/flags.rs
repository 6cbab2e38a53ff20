//! Parcels, flags, receipts and epochs.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "flags",
        title: "Parcels, flags and epochs",
        intro: "A parcel stores to memory of other ranks, and its signal says that all of it is there. The receiver waits for the signal, and reads with \
                the receipt that the wait returns. A flag holds the epoch of the launch that signalled it, so that no flag is ever cleared. Packets, \
                LL elements ([Packets and LL](messages.md)) and windows ([Windows](windows.md)) need other waits; a channel \
                ([Channels](channels.md)) chooses between them.\n\nThe checker knows what each wait orders: it reports reads that nothing orders \
                (`data-race`), signals of another launch (`epoch-confusion`, `lost-signal`) and waits without an end (`deadlock`). An entry \
                without **Orders** orders nothing."
            .into(),
        kinds: &[
            "Peers",
            "Parcel",
            "Inbox",
            "AnyInbox",
            "Sym",
            "AnySym",
            "Arrived",
            "Flags",
            "FlagsFrom",
            "BlockFlags",
            "BlockFlagsFrom",
            "EpochWord",
            "Epoch",
        ],
        examples: examples(),
        source: SOURCE,
    }
}

fn own(r: u32, i: u32) -> u32 {
    i + 100 * r
}

fn theirs(r: u32, i: u32) -> u32 {
    own(1 - r, i)
}

fn half(r: u32, i: u32) -> bf16 {
    bf16::from_f32(own(r, i) as f32)
}

fn half_of_theirs(r: u32, i: u32) -> bf16 {
    half(1 - r, i)
}

examples! {
    exchange ["send_to", "Peers::rank", "Parcel::put", "Parcel::signal", "Flags::from", "FlagsFrom::wait", "Sym::load"]
    (x: Ptr<u32>[64] = own, inbox: Sym<u32>[64], arrived: Flags[1], word: EpochWord[1], out: Ptr<u32>[64]) -> (out: theirs)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("send", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put(&inbox, 0, x.load(0, 64));
            parcel.signal(&arrived, 0, epoch);
        });
        role("receive", 1, |_| {
            let got = arrived.from(peer).wait(0, epoch);
            out.store(0, inbox.load(&got, 0, 64));
        });
    }

    to_all ["Peers::all", "Flags::wait_all", "Parcel::put_value", "Sym::get"]
    (inbox: Sym<u32>[2], arrived: Flags[2], word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 15)
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::all());
            parcel.put_value(&inbox, rank(), rank() + 7);
            parcel.signal(&arrived, rank(), epoch);
            let got = arrived.wait_all(0, 2, 1, epoch);
            out.set(0, inbox.get(&got, 0) + inbox.get(&got, 1));
        });
    }

    to_some ["Peers::mask", "Flags::wait_some", "Parcel::put_where", "Sym::load_where"]
    (x: Ptr<u32>[64] = own, inbox: Sym<u32>[64], arrived: Flags[2], word: EpochWord[1], out: Ptr<u32>[64])
    -> (out: |r, i| if i < 40 { theirs(r, i) } else { 0 })
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            let first = arange(64).lt(40);
            let mut parcel = send_to(Peers::mask(bit(peer)));
            parcel.put_where(&inbox, 0, x.load(0, 64), first);
            parcel.signal(&arrived, rank(), epoch);
            let got = arrived.wait_some(0, 2, bit(peer), 1, epoch);
            out.store(0, inbox.load_where(&got, 0, first, 0));
        });
    }

    copies ["Parcel::copy", "Sym::gather"]
    (x: Ptr<u32>[64] = own, inbox: Sym<u32>[64], arrived: Flags[1], word: EpochWord[1], out: Ptr<u32>[64])
    -> (out: |r, i| theirs(r, 63 - i))
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.copy(&inbox, 0, &x, 0, 64);
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            out.store(0, inbox.gather(&got, 63 - arange(64), true, 0));
        });
    }

    rounds ["Parcel::put_f32", "AnySym::load_f32", "AnySym::get_f32", "AnySym::gather_f32"]
    (x: Ptr<f32>[64] = |r, i| own(r, i) as f32, inbox: AnySym[Dtype::Bf16, 64], arrived: Flags[1], word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| (theirs(r, i) + theirs(r, 63 - i) + theirs(r, 2)) as f32)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put_f32(&inbox, 0, x.load(0, 64));
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            let back = inbox.gather_f32(&got, 63 - arange(64), true, 0.0);
            out.store(0, inbox.load_f32(&got, 0, 64) + back + inbox.get_f32(&got, 2));
        });
    }

    moves ["Parcel::put_any", "Parcel::copy_any", "AnySym::load", "AnySym::load_if", "AnySym::dtype", "AnySym::len"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, inbox: AnySym[Dtype::Bf16, 128], arrived: Flags[1], word: EpochWord[1],
     out: AnyPtr[Dtype::Bf16, 64], more: AnyPtr[Dtype::Bf16, 64])
    -> (out: half_of_theirs, more: half_of_theirs)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        assert_eq!((inbox.dtype(), inbox.len()), (Dtype::Bf16, 128));
        role("main", 1, |b| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put_any(&inbox, 0, x.load(0, 64));
            parcel.copy_any(&inbox, 64, &x, 0, 64);
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            out.store(0, inbox.load(&got, 0, 64));
            more.store(0, inbox.load_if(&got, 64, 64, b.index().eq_to(0)));
        });
    }

    equal_rows ["Sym::load_rows_f32", "AnySym::load_rows_f32", "Sym::len"]
    (x: Ptr<f32>[64] = |r, i| own(r, i) as f32, a: Sym<f32>[64], b: AnySym[Dtype::Bf16, 64], arrived: Flags[1], word: EpochWord[1],
     out: AnyMatrix[Dtype::F32, 32, 64])
    -> (out: |r, i| (2 * theirs(r, i % 64)) as f32)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put(&a, 0, x.load(0, 64));
            parcel.put_f32(&b, 0, x.load(0, 64));
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            let shape = [32, a.len() as u32];
            out.rows(0, 32).store_f32(0, a.load_rows_f32(&got, 0, shape) + b.load_rows_f32(&got, 0, shape));
        });
    }

    equal_columns ["Sym::load_columns_f32", "AnySym::load_columns_f32"]
    (x: Ptr<f32>[64] = |r, i| own(r, i) as f32, a: Sym<f32>[64], b: AnySym[Dtype::Bf16, 64], arrived: Flags[1], word: EpochWord[1],
     out: AnyMatrix[Dtype::F32, 32, 64])
    -> (out: |r, i| (2 * theirs(r, i / 64)) as f32)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put(&a, 0, x.load(0, 64));
            parcel.put_f32(&b, 0, x.load(0, 64));
            parcel.signal(&arrived, 0, epoch);
            let got = arrived.from(peer).wait(0, epoch);
            let shape = [32, 64];
            out.rows(0, 32).store_f32(0, a.load_columns_f32(&got, 0, shape) + b.load_columns_f32(&got, 0, shape));
        });
    }

    signals_bare ["Flags::signal", "Peers::others", "Flags::len"]
    (ready: Flags[2], word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 2)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            ready.signal(Peers::others(), rank(), epoch);
            let _ = ready.from(peer).wait(peer, epoch);
            out.set(0, ready.len() as u32);
        });
    }

    barriers ["Flags::meet", "Flags::meet_at"]
    (all: Flags[8], word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            let _ = all.meet(epoch);
            let _ = all.meet_at(1, epoch);
            out.set(0, 1);
        });
    }

    between_blocks ["BlockFlags::signal", "BlockFlags::from", "BlockFlagsFrom::wait", "BlockFlags::len"]
    (x: Ptr<u32>[64] = own, part: Ptr<u32>[64], done: BlockFlags[1], word: EpochWord[1], out: Ptr<u32>[1])
    -> (out: |r, _| (0..64).map(|i| own(r, i)).sum::<u32>())
    {
        let epoch = word.begin();
        assert_eq!(done.len(), 1);
        role("copy", 1, |_| {
            part.store(0, x.load(0, 64));
            done.signal(0, epoch);
        });
        role("sum", 1, |_| {
            done.from(0).wait(0, epoch);
            out.set(0, part.load(0, 64).sum());
        });
    }

    between_many_blocks ["BlockFlags::wait_all", "BlockFlagsFrom::wait_all"]
    (part: Ptr<u32>[4], done: BlockFlags[4], word: EpochWord[1], out: Ptr<u32>[2]) -> (out: |_, i| [6, 5][i as usize])
    {
        let epoch = word.begin();
        role("number", 4, |b| {
            part.set(b.index(), b.index());
            done.signal(b.index(), epoch);
        });
        role("sum", 1, |_| {
            done.wait_all(0, 4, 1, epoch);
            out.set(0, part.load(0, 4).sum());
        });
        role("last", 1, |_| {
            done.from(2).wait_all(2, 2, 1, epoch);
            out.set(1, part.get(2) + part.get(3));
        });
    }

    by_whichever_block ["BlockFlags::wait_drawn"]
    (part: Ptr<u32>[4], done: BlockFlags[4], word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 6)
    {
        let epoch = word.begin();
        role("number", 4, |b| {
            part.set(3 - b.index(), b.index());
            done.signal(3 - b.index(), epoch);
        });
        role("sum", 1, |_| {
            done.wait_drawn(0, 4, epoch);
            out.set(0, part.load(0, 4).sum());
        });
    }

    counts_launches ["EpochWord::begin", "Epoch::parity"]
    (word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            out.set(0, epoch.parity());
        });
    }

    begins_early ["EpochWord::begin_early"]
    (word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        let epoch = word.begin_early();
        role("main", 1, |_| {
            out.set(0, epoch.parity());
        });
    }

    looks_at_the_epoch ["EpochWord::peek"]
    (word: EpochWord[1], out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        let epoch = word.peek();
        role("main", 1, |_| {
            out.set(0, epoch.parity());
        });
    }
}
