//! Counts of ranks, and work counters of blocks.

use peerwarp_codegen::dsl::prelude::*;

use crate::page::Page;

pub fn page() -> Page {
    Page {
        file: "counting",
        title: "Counting",
        intro: "Several blocks complete one request: each adds to a count of the receiver, and the receiver takes the count when it is complete. \
                Counters are of one rank: they deal work under dynamic scheduling, and tell the last group of a role ([Group::last](control.md)). \
                Atomics of plain memory stand with [pointers](memory.md) and [shared memory](shared.md). An entry without **Orders** orders \
                nothing."
            .into(),
        kinds: &["Counts", "CountsFrom", "Counters", "Counter"],
        examples: examples(),
        source: SOURCE,
    }
}

examples! {
    completes_a_request ["Parcel::count", "Counts::from", "CountsFrom::take"]
    (x: Ptr<u32>[128] = |r, i| i + r, pool: Sym<u32>[128], sent: Counts[1], all: Flags[4], word: EpochWord[1], out: Ptr<u32>[128])
    -> (out: |r, i| i + 1 - r)
    {
        let (epoch, peer) = (word.begin(), 1 - rank());
        role("push", 2, |b| {
            let at = b.index() * 64;
            let mut page = send_to(Peers::rank(peer));
            page.put(&pool, at, x.load(at, 64));
            page.count(&sent, 0, 1);
        });
        role("take", 1, |_| {
            let both = sent.from(peer).take(0, 2);
            out.store(0, pool.load(&both, 0, 128));
            let _ = all.meet(epoch);
        });
    }

    adds_bare ["Counts::add", "Counts::len"]
    (done: Counts[1], out: Ptr<u32>[1]) -> (out: |_, _| 1)
    {
        assert_eq!(done.len(), 1);
        role("add", 2, |_| done.add(Peers::rank(1 - rank()), 0, 1));
        role("take", 1, |_| {
            let _ = done.from(1 - rank()).take(0, 2);
            out.set(0, 1);
        });
    }

    deals_work ["Counters::counter"]
    (next: Counters[2], x: Ptr<u32>[8] = |_, i| i, out: Ptr<u32>[8]) -> (out: |_, i| i + 1)
    {
        role("main", 2, |b| {
            for i in b.dynamic(8u32, Some(next.counter(1))) {
                out.set(i, x.get(i) + 1);
            }
        });
    }
}
