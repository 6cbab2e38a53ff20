//! Accesses that all pointers have alike, in the simulator's tests and as emitted text.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::dsl::{TraceMeta, trace};
use peerwarp_codegen::ir::{Dtype, Kernel};

/// Elements of each buffer.
pub const LEN: u32 = 64;

#[derive(Clone, Copy)]
struct Args {
    x: AnyPtr,
    bias: Ptr<f32>,
    inbox: AnySym,
    sent: Flags,
    turned: AnyPtr,
    gathered: Ptr<f32>,
    rows: AnyMatrix,
    most: AnyMatrix,
}

/// Turns a vector by a scatter, gathers it from symmetric memory, and stores a row's maximum as one number.
pub fn alike(warp_size: u32) -> Kernel {
    let mut meta = TraceMeta::new("alike", 1, warp_size, 4);
    meta.doc = "Gathers and scatters floats.".into();
    trace(meta, |p| {
        let a = Args {
            x: p.erased("x", LEN.into(), Dtype::Bf16),
            bias: p.arg("bias", LEN.into()),
            inbox: p.erased("inbox", LEN.into(), Dtype::Fp16),
            sent: p.arg("sent", 1),
            turned: p.erased("turned", LEN.into(), Dtype::Bf16),
            gathered: p.arg("gathered", LEN.into()),
            rows: p.matrix("rows", [LEN, LEN], Dtype::F32),
            most: p.matrix("most", [LEN, 1], Dtype::Bf16),
        };
        let epoch = p.arg::<EpochWord>("epoch", 1).begin();
        role("alike", 1, |_| body(a, epoch));
    })
    .unwrap_or_else(|e| panic!("{e}"))
}

#[kernel]
fn body(a: Args, epoch: Epoch) {
    let lane = arange(LEN);
    let back = splat(LEN - 1, LEN) - lane;
    let x = a.x.gather_f32(lane, lane.lt(LEN - 8), -1.0f32);
    a.turned.scatter_f32(back, x * 2.0, true);
    let mut parcel = send_to(Peers::all());
    parcel.put_f32(&a.inbox, 0, x);
    parcel.signal(&a.sent, 0, epoch);
    let got = a.sent.from(0).wait(0, epoch);
    a.gathered.store(0, a.inbox.gather_f32(&got, back, lane.gt(0), 0.5f32));
    let sums = a.inbox.load_rows_f32(&got, 0, [LEN, LEN]) + a.bias.load_rows_f32(0, [LEN, LEN]);
    a.rows.rows(0, LEN).store_f32(0, sums);
    a.most.rows(0, LEN).store_f32(0, sums.row_max());
}
