//! Windows, and all ranks at once by the switch.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "windows",
        title: "Windows and multicast",
        intro: "A window is memory of its owner that peers reach where it is: they read what the owner publishes, or put into it. To its owner it has the methods of a \
                pointer. A peer reads it with the receipt of a wait for the owner's signal. Where GPUs share multicast memory, the switch between them stores to \
                all ranks at once, and reads and adds all ranks' windows at once. An entry without **Orders** orders nothing."
            .into(),
        kinds: &["Window", "PeerWindow", "AnyWindow", "AnyPeerWindow", "ReduceOp"],
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
    multicasts ["multicast"]
    (x: Ptr<f32>[64] = own, inbox: Sym<f32>[128], arrived: Flags[2], word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| own(r, i) + theirs(r, i))
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            let mut parcel = multicast();
            parcel.put(&inbox, rank() * 64, x.load(0, 64));
            parcel.signal(&arrived, rank(), epoch);
            let got = arrived.wait_all(0, 2, 1, epoch);
            out.store(0, inbox.load(&got, 0, 64) + inbox.load(&got, 64, 64));
        });
    }

    publishes ["Window::signal", "Window::of", "PeerWindow::load", "PeerWindow::get"]
    (x: Ptr<f32>[64] = own, window: Window<f32>[64], ready: Flags[1], word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, i) + theirs(r, 3))
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            window.store(0, x.load(0, 64));
            window.signal(Peers::rank(peer), &ready, 0, epoch);
            let got = ready.from(peer).wait(0, epoch);
            let there = window.of(peer);
            out.store(0, there.load(&got, 0, 64) + there.get(&got, 3));
        });
    }

    publishes_with_a_parcel ["Parcel::publish", "PeerWindow::load_where", "PeerWindow::gather"]
    (x: Ptr<f32>[64] = own, window: Window<f32>[64], inbox: Sym<u32>[1], ready: Flags[1], word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| theirs(r, 63 - i) + if i < 40 { theirs(r, i) } else { 0.0 })
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            window.store(0, x.load(0, 64));
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put_value(&inbox, 0, 40u32);
            parcel.publish(&window);
            parcel.signal(&ready, 0, epoch);
            let got = ready.from(peer).wait(0, epoch);
            let (there, i) = (window.of(peer), arange(64));
            let first = there.load_where(&got, 0, i.lt(inbox.get(&got, 0)), 0.0);
            out.store(0, first + there.gather(&got, 63 - i, true, 0.0));
        });
    }

    reads_all_at_once ["Window::load_reduce"]
    (x: Ptr<f32>[64] = own, window: Window<f32>[64], ready: Flags[2], word: EpochWord[1], out: Ptr<f32>[64])
    -> (out: |r, i| own(r, i) + theirs(r, i))
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            window.store(0, x.load(0, 64));
            window.signal(Peers::all(), &ready, rank(), epoch);
            let got = ready.wait_all(0, 2, 1, epoch);
            out.store(0, window.load_reduce(ReduceOp::Sum, &got, 0, 64));
        });
    }

    any_windows ["AnyWindow::signal", "AnyWindow::of", "AnyPeerWindow::load", "AnyPeerWindow::load_f32", "AnyPeerWindow::get_f32"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, window: AnyWindow[Dtype::Bf16, 64], ready: Flags[1], word: EpochWord[1],
     out: AnyPtr[Dtype::Bf16, 64], sums: Ptr<f32>[64])
    -> (out: half_of_theirs, sums: |r, i| theirs(r, i) + theirs(r, 3))
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |_| {
            window.store(0, x.load(0, 64));
            window.signal(Peers::rank(peer), &ready, 0, epoch);
            let got = ready.from(peer).wait(0, epoch);
            let there = window.of(peer);
            out.store(0, there.load(&got, 0, 64));
            sums.store(0, there.load_f32(&got, 0, 64) + there.get_f32(&got, 3));
        });
    }

    any_windows_under_masks ["Parcel::publish_any", "AnyPeerWindow::load_where", "AnyPeerWindow::load_if", "AnyPeerWindow::load_where_f32", "AnyPeerWindow::gather_f32"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, window: AnyWindow[Dtype::Bf16, 64], inbox: Sym<u32>[1], ready: Flags[1], word: EpochWord[1],
     out: AnyPtr[Dtype::Bf16, 64], sums: Ptr<f32>[64])
    -> (out: |r, i| if i < 40 { half_of_theirs(r, i) } else { bf16::ZERO }, sums: |r, i| theirs(r, 63 - i) + if i < 40 { theirs(r, i) } else { 9.0 })
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("main", 1, |b| {
            window.store(0, x.load(0, 64));
            let mut parcel = send_to(Peers::rank(peer));
            parcel.put_value(&inbox, 0, 40u32);
            parcel.publish_any(&window);
            parcel.signal(&ready, 0, epoch);
            let got = ready.from(peer).wait(0, epoch);
            let (there, i) = (window.of(peer), arange(64));
            let first = i.lt(inbox.get(&got, 0));
            let whole = there.load_if(&got, 0, 64, b.index().eq_to(0));
            out.store(0, b.index().eq_to(9).select(whole, there.load_where(&got, 0, first)));
            let back = there.gather_f32(&got, 63 - i, true, 0.0);
            sums.store(0, back + there.load_where_f32(&got, 0, first, 9.0));
        });
    }

    any_windows_at_once ["AnyWindow::load_reduce"]
    (x: AnyPtr[Dtype::Bf16, 64] = half, window: AnyWindow[Dtype::Bf16, 64], ready: Flags[2], word: EpochWord[1],
     out: AnyPtr[Dtype::Bf16, 64])
    -> (out: |r, i| if r == 0 { half_of_theirs(r, i) } else { half(r, i) })
    {
        let epoch = word.begin();
        role("main", 1, |_| {
            window.store(0, x.load(0, 64));
            window.signal(Peers::all(), &ready, rank(), epoch);
            let got = ready.wait_all(0, 2, 1, epoch);
            out.store(0, window.load_reduce(ReduceOp::Max, &got, 0, 64));
        });
    }
}
