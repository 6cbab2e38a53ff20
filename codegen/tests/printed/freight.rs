//! Copies in bulk in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Ranks of [`freight`].
pub const FREIGHT_RANKS: u32 = 4;
/// Elements of a row.
pub const FREIGHT_ROW: u32 = 200;
/// Rows that go to all ranks at once, and as many to one rank with one flag.
pub const FREIGHT_ROWS: u32 = 3;

/// What each rank has, on all ranks: rows to all ranks, each with a flag, and rows to the next rank with one flag for all.
pub fn freight(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("freight", FREIGHT_RANKS, warp_size, 4);
    meta.doc =
        "Copies rows in bulk: to every rank, and to the next one; each rank gathers what comes.".into();
    let kernel = trace(meta, |p| {
        let freight = Freight::bind(p);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 2, |b| {
            b.split(1, |g| to_all(g, freight, epoch));
            to_next(b, freight, epoch);
        });
        role("recv", 2, |b| gather(b, freight, epoch));
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

#[derive(Clone, Copy)]
struct Freight {
    x: AnyPtr,
    words: Ptr<u32>,
    inbox: AnySym,
    arrived: Flags,
    crates: Sym<u32>,
    loaded: Flags,
    notes: Sym<u32>,
    here: Flags,
    out: AnyPtr,
    crates_out: Ptr<u32>,
}

impl Freight {
    fn bind(p: &mut Binder) -> Freight {
        let row = u64::from(FREIGHT_ROW * FREIGHT_ROWS);
        let ranks = u64::from(FREIGHT_RANKS);
        Freight {
            x: p.erased("x", row, Dtype::Bf16),
            words: p.arg("words", row),
            inbox: p.erased("inbox", 2 * ranks * row, Dtype::Bf16),
            arrived: p.arg("arrived", 2 * ranks * u64::from(FREIGHT_ROWS)),
            crates: p.arg("crates", 2 * row),
            loaded: p.arg("loaded", 2),
            notes: p.arg("notes", 2 * ranks),
            here: p.arg("here", 2 * ranks),
            out: p.erased("out", ranks * row, Dtype::Bf16),
            crates_out: p.arg("crates_out", row),
        }
    }
}

/// Each row with a flag of its own.
#[kernel]
fn to_all(g: Group, a: Freight, epoch: Epoch) {
    for row in g.strided(FREIGHT_ROWS) {
        let place = (epoch.parity() * FREIGHT_RANKS + rank()) * FREIGHT_ROWS + row;
        let mut parcel = send_to(Peers::all());
        parcel.copy_any(&a.inbox, place * FREIGHT_ROW, &a.x, row * FREIGHT_ROW, FREIGHT_ROW);
        parcel.signal(&a.arrived, place, epoch);
    }
}

/// Rows to the next rank, one after the other through the same room, with one flag.
#[kernel]
fn to_next(b: Group, a: Freight, epoch: Epoch) {
    if b.index() == 0 {
        // No rank is more than a launch ahead of another.
        let mut note = send_to(Peers::all());
        note.put_value(&a.notes, epoch.parity() * FREIGHT_RANKS + rank(), 1u32.val());
        note.signal(&a.here, epoch.parity() * FREIGHT_RANKS + rank(), epoch);
        let mut parcel = send_to(Peers::rank((rank() + 1) % FREIGHT_RANKS));
        for row in 0..FREIGHT_ROWS.val() {
            let place = (epoch.parity() * FREIGHT_ROWS + row) * FREIGHT_ROW;
            parcel.copy(&a.crates, place, &a.words, row * FREIGHT_ROW, FREIGHT_ROW);
        }
        parcel.signal(&a.loaded, epoch.parity(), epoch);
    }
}

#[kernel]
fn gather(b: Group, a: Freight, epoch: Epoch) {
    let all = a.here.wait_all(epoch.parity() * FREIGHT_RANKS, FREIGHT_RANKS, 1, epoch);
    let noted = a.notes.load(&all, epoch.parity() * FREIGHT_RANKS, FREIGHT_RANKS);
    for i in b.strided(FREIGHT_RANKS * FREIGHT_ROWS) {
        if noted.sum() == FREIGHT_RANKS {
            let place = epoch.parity() * (FREIGHT_RANKS * FREIGHT_ROWS) + i;
            let got = a.arrived.from(i / FREIGHT_ROWS).wait(place, epoch);
            a.out.store(i * FREIGHT_ROW, a.inbox.load(&got, place * FREIGHT_ROW, FREIGHT_ROW));
        }
    }
    if b.index() == 1 {
        let from = (rank() + (FREIGHT_RANKS - 1)) % FREIGHT_RANKS;
        let got = a.loaded.from(from).wait(epoch.parity(), epoch);
        let first = epoch.parity() * (FREIGHT_ROWS * FREIGHT_ROW);
        a.crates_out.store(0, a.crates.load(&got, first, FREIGHT_ROWS * FREIGHT_ROW));
    }
}
