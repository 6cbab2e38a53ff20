//! Packets in the printer's and the simulator's tests.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{Binder, TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Rows as packets to all ranks; receivers add up what comes from those that have a row.
pub fn mail(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("mail", 4, warp_size, 4);
    meta.doc = "Sends rows as packets; each rank sums them.".into();
    let kernel = trace(meta, |p| {
        let mail = Mail::bind(p);
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("send", 2, |b| send_mail(b, mail, epoch));
        role("recv", 2, |b| take_mail(b, mail, epoch));
    });
    kernel.unwrap_or_else(|e| panic!("{e}"))
}

/// Elements of a row of [`mail`]: 90 packets.
pub const MAIL_ROW: u32 = 720;
/// Most rows of a rank in [`mail`].
pub const MAIL_ROWS: u32 = 6;

#[derive(Clone, Copy)]
struct Mail {
    x: AnyPtr,
    n: Ptr<u32>,
    inbox: AnyPackets,
    counts: Sym<u32>,
    answered: Flags,
    out: AnyPtr,
}

impl Mail {
    fn bind(p: &mut Binder) -> Mail {
        let row = u64::from(MAIL_ROW * MAIL_ROWS);
        Mail {
            x: p.erased("x", row, Dtype::Bf16),
            n: p.arg("n", 1),
            inbox: p.erased("inbox", 2 * 4 * row, Dtype::Bf16),
            counts: p.arg("counts", 8),
            answered: p.arg("answered", 8),
            out: p.erased("out", row, Dtype::Bf16),
        }
    }
}

/// Where a source's row goes.
#[kernel]
fn mail_slot(epoch: Epoch, source: Val<u32>, row: Val<u32>) -> Val<u32> {
    ((epoch.parity() * 4 + source) * MAIL_ROWS + row) * MAIL_ROW
}

#[kernel]
fn send_mail(b: Group, mail: Mail, epoch: Epoch) {
    let n = mail.n.get(0);
    if b.index() == 0 {
        let mut note = send_to(Peers::all());
        note.put_value(&mail.counts, epoch.parity() * 4 + rank(), n);
        note.signal(&mail.answered, epoch.parity() * 4 + rank(), epoch);
    }
    b.split(1, |g| {
        for row in g.strided(n) {
            mail.inbox.send(
                Peers::all(),
                mail_slot(epoch, rank(), row),
                mail.x.load(row * MAIL_ROW, MAIL_ROW),
            );
        }
    });
}

#[kernel]
fn take_mail(b: Group, mail: Mail, epoch: Epoch) {
    let answered = mail.answered.wait_all(epoch.parity() * 4, 4, 1, epoch);
    let counts = mail.counts.load(&answered, epoch.parity() * 4, 4);
    let rows = counts.max();
    b.split(1, |g| {
        for row in g.strided(rows) {
            let mut have = var(0u64);
            for source in 0..4 {
                let n = mail.counts.get(&answered, epoch.parity() * 4 + source);
                if row < n {
                    have |= bit(source.val());
                }
            }
            let slots = (0..4u32).map(|source| (mail_slot(epoch, source.val(), row), source));
            let taken = mail.inbox.take_each(slots, MAIL_ROW, have.get());
            let mut sum = var(splat(0f32, MAIL_ROW));
            for tile in taken {
                sum += tile.to_f32();
            }
            mail.out.store_f32(row * MAIL_ROW, &sum);
        }
    });
}
