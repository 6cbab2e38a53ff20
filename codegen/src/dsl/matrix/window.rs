//! Matrices in windows: their owner writes them, and peers read them where they are.

use std::ops::Deref;

use super::any::{AnyMatrix, MatrixRows};
use crate::dsl::comm::{Arrived, Peers};
use crate::dsl::memory::{
    Arg, Bound, Epoch, Flags, IntoIndex,
    args::MatrixArg,
    window::{instance, owned, publish},
};
use crate::dsl::values::{IntoVal, Val};
use crate::ir::{Loc, ParamKind};

/// A matrix that every rank has, that its owner writes, and that peers read where it is; the config chooses its shape and element
/// type. To its owner it is as an [`AnyMatrix`]. A peer reads it through [`AnyWindowMatrix::of`], with the receipt of a wait
/// for the owner's signal. When it may be written again, see [`Window`](crate::dsl::Window).
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # use peerwarp_codegen::ir::Dtype;
/// # trace(TraceMeta::new("demo", 2, 32, 8), |p| {
/// # let x: AnyMatrix = p.matrix("x", [128, 512], Dtype::Bf16);
/// # let w: AnyMatrix = p.matrix("w", [128, 512], Dtype::Bf16);
/// # let out: AnyMatrix = p.matrix("out", [128, 128], Dtype::Bf16);
/// # let partial: AnyWindowMatrix = p.matrix("partial", [256, 128], Dtype::Bf16);
/// # let ready: Flags = p.arg("ready", 4);
/// # let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// # #[kernel]
/// # fn body(x: AnyMatrix, w: AnyMatrix, out: AnyMatrix, partial: AnyWindowMatrix, ready: Flags, epoch: Epoch) {
/// role("multiply", 1, |b| {
///     let (bank, peer) = (epoch.parity() * 128, (rank() + 1) % 2);
///     let sums = b.dot(x.rows(0, 128), w.rows(0, 128), 3);
///     partial.rows(bank, 128).store_f32(0, sums);
///     partial.signal(Peers::rank(peer), &ready, epoch.parity(), epoch);
///     let got = ready.from(peer).wait(epoch.parity(), epoch);
///     let theirs = partial.of(peer).rows(&got, bank, 128).load_f32(0, 128);
///     out.rows(0, 128).store_f32(0, sums + theirs);
/// });
/// # }
/// # body(x, w, out, partial, ready, epoch);
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AnyWindowMatrix {
    own: AnyMatrix,
}

owned!([] AnyWindowMatrix, AnyMatrix);
impl MatrixArg for AnyWindowMatrix {}

/// A rank's instance of an [`AnyWindowMatrix`].
#[derive(Clone, Copy, Debug)]
pub struct AnyPeerMatrix {
    window: AnyWindowMatrix,
    rank: Val<u32>,
}

impl AnyWindowMatrix {
    /// A rank's instance, to be read; it may be this one.
    #[track_caller]
    pub fn of(&self, rank: impl IntoVal<u32>) -> AnyPeerMatrix {
        AnyPeerMatrix { window: *self, rank: rank.val() }
    }

    /// Publishes it: stores the epoch to flag `i` of `flags` on those ranks, after all that this group has stored to it.
    ///
    /// # Orders
    /// As [`Window::signal`](crate::dsl::Window::signal).
    #[track_caller]
    pub fn signal(&self, peers: Peers, flags: &Flags, i: impl IntoIndex, epoch: Epoch) {
        publish(&self.own.buf, peers, flags, i, epoch, Loc::caller());
    }
}

impl AnyPeerMatrix {
    /// The `count` rows from row `row` on, covered by the receipt of a wait for the rank's signal.
    #[track_caller]
    pub fn rows(&self, receipt: &Arrived, row: impl IntoVal<u32>, count: u32) -> MatrixRows {
        let theirs = instance(&self.window.own.buf, self.rank, receipt, Loc::caller());
        MatrixRows::new(theirs, row.val(), count, Some(*receipt))
    }
}
