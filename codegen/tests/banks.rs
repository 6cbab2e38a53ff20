//! The number of banks that a kernel is found to have, however it counts its launches.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::analysis::banks;

/// What a kernel counts with: an epoch, and words that it keeps.
struct Counts {
    turns: Ptr<u32>,
    epoch: Epoch,
}

impl Counts {
    /// How many launches there have been.
    fn launches(&self) -> Val<u32> {
        let e = self.turns.get(0);
        self.turns.set(0, e + 1);
        e
    }

    fn kept(&self, next: impl FnOnce(Val<u32>) -> Val<u32>) -> Val<u32> {
        let t = self.turns.get(1);
        self.turns.set(1, next(t));
        t
    }
}

fn banks_of(bank: impl Fn(&Counts) -> Val<u32>) -> u32 {
    let body = |p: &mut Binder| {
        let counts = Counts { turns: p.arg("turns", 4), epoch: p.arg::<EpochWord>("epoch", 1).begin() };
        let (x, inbox) = (p.arg::<Ptr<f32>>("x", 64), p.arg::<Sym<f32>>("inbox", 4096));
        let sent = p.arg::<Flags>("sent", 64);
        role("all", 1, |_| {
            let bank = bank(&counts);
            let mut parcel = send_to(Peers::others());
            parcel.put(&inbox, bank * 32 + rank() * 16, x.load(0, 16));
            parcel.signal(&sent, bank, counts.epoch);
        });
    };
    banks(&trace(TraceMeta::new("banks", 2, 32, 1), body).unwrap_or_else(|e| panic!("{e}")))
}

#[kernel]
fn reset(c: &Counts) -> Val<u32> {
    let t = c.turns.get(1);
    if t == 4 {
        c.turns.set(1, 0u32);
    } else {
        c.turns.set(1, t + 1);
    }
    t
}

#[kernel]
fn subtracted(c: &Counts) -> Val<u32> {
    let mut t = var(c.launches());
    while t >= 5 {
        t -= 5u32;
    }
    t.get()
}

#[kernel]
fn counted_by_rank(c: &Counts) -> Val<u32> {
    let t = c.turns.get(1);
    if rank() == 1 {
        c.turns.set(1, (t + 1) % 6);
    }
    t
}

#[test]
fn however_a_kernel_counts_its_banks_are_known() {
    type Bank = fn(&Counts) -> Val<u32>;
    let cases: [(&str, u32, Bank); 22] = [
        ("none", 1, |_| 0u32.val()),
        ("parity", 2, |c| c.epoch.parity()),
        ("% 5", 5, |c| c.launches() % 5),
        ("& 7", 8, |c| c.launches() & 7),
        ("e - e / 6 * 6", 6, |c| {
            let e = c.launches();
            e - e / 6 * 6
        }),
        ("(e >> 1) & 3", 8, |c| (c.launches() >> 1) & 3),
        ("(e * 3) % 5", 5, |c| (c.launches() * 3) % 5),
        ("min % 6", 6, |c| (c.launches() + 2).min(1000) % 6),
        ("(e % 10) / 2", 10, |c| (c.launches() % 10) / 2),
        ("in 64 bits", 5, |c| (c.launches().to_u64() % 5).to_u32()),
        ("% 3 and parity", 6, |c| (c.launches() % 3) * 2 + c.epoch.parity()),
        ("a ring", 4, |c| c.kept(|t| (t + 1) % 4)),
        ("a choice", 5, |c| c.kept(|t| t.eq_to(4).select(0u32, t + 1))),
        ("a reset", 5, reset),
        ("an atomic", 5, |c| c.turns.atomic_add(1, 1u32) % 5),
        ("two by exclusive or", 2, |c| c.kept(|t| t ^ 4)),
        ("a loop", 5, subtracted),
        ("by one rank", 6, counted_by_rank),
        ("63 banks", 63, |c| c.launches() % 63),
        ("64 banks", 64, |c| c.launches() % 64),
        ("a hash", 1, |c| c.launches() % 1009),
        ("a number of launches", 1, |c| c.launches() / 3),
    ];
    for (what, count, bank) in cases {
        assert_eq!(banks_of(bank), count, "{what}");
    }
}
