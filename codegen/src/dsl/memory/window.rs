//! Windows: memory of its owner that peers reach where it is: they read what the owner publishes, or put into it.

use std::ops::Deref;

use super::args::{Arg, Bound, ErasedArg, TypedArg};
use super::buffer::{Buf, cast};
use super::index::IntoIndex;
use super::mem::{AnyPtr, Epoch, Flags, Ptr, param_of, received, received_f32};
use crate::dsl::comm::{
    Arrived, Peers,
    protocol::{no_such_rank, send_to_at},
};
use crate::dsl::trace::{Trace, TraceError, tracer::attempt};
use crate::dsl::values::{
    AnyTile, Element, FromRaw, IntoTile, IntoVal, Operand, Raw, Tile, Val, any::load_if, val::host,
};
use crate::ir::{CommOp, Const, Dtype, Loc, OpKind, ParamKind, Place, ReceiptId, ReduceOp, ValueId, Wait};

/// A buffer of `T` that every rank has, that its owner writes, and that peers read where it is. To its owner it is as a
/// [`Ptr`]; a peer reads it through [`Window::of`], with the receipt of a wait for the owner's signal.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (x, out): (Ptr<f32>, Ptr<f32>) = (p.arg("x", 256), p.arg("out", 256));
/// # let (window, ready): (Window<f32>, Flags) = (p.arg("window", 512), p.arg("ready", 16));
/// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// role("reduce", 1, |_| {
///     // A slow peer may still read the other half, and wait for the other flags.
///     let (half, flags) = (epoch.parity() * 256, epoch.parity() * 8);
///     window.store(half, x.load(0, 256));
///     window.signal(Peers::all(), &ready, flags + rank(), epoch); // after all that this group has stored
///     let mut sum = splat(0f32, 256);
///     for peer in 0..8 {
///         let got = ready.from(peer).wait(flags + peer, epoch);
///         sum = sum + window.of(peer).load(&got, half, 256);
///     }
///     out.store(0, sum);
/// });
/// # }).unwrap();
/// ```
///
/// The next launch overwrites a window while a slow peer may still be reading it. Use its halves in turn, and wait for all
/// peers in each launch, as above: a signal of launch `n + 1` says that its rank has ended launch `n`. Or let readers signal back.
///
/// Peers may write it instead: parcels [put](crate::dsl::Parcel::put) into a window as into a [`Sym`](crate::dsl::Sym). Its owner reads it
/// by plain loads after the wait, in this launch or a later one. With `#[inout]` the memory is the caller's own, such as the pool
/// of a KV cache, and nothing is copied again. The owner says when a page may be written, as with any inbox: by a signal at the
/// beginning of a launch, after everything that read the page.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 2, 32, 4), |p| {
/// # let (pool, out): (Window<u32>, Ptr<u32>) = (p.arg("pool", 512), p.arg("out", 256));
/// # let (sent, free): (Counts, Flags) = (p.arg("sent", 1), p.arg("free", 4));
/// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// role("read", 1, |_| {
///     free.signal(Peers::all(), epoch.parity() * 2 + rank(), epoch);
///     let _all = sent.from(rank() ^ 1).take(0, 2);
///     out.store(0, pool.load(256, 256));
/// });
/// role("push", 2, |b| {
///     let _free = free.wait_all(epoch.parity() * 2, 2, 1, epoch);
///     let (page, place) = (b.index() * 128, b.index() * 128 + 256);
///     let mut parcel = send_to(Peers::rank(rank() ^ 1));
///     parcel.put(&pool, place, pool.load(page, 128)); // from pages to pages
///     parcel.count(&sent, 0, 1);
/// });
/// # }).unwrap();
/// ```
///
/// Without a receipt there is no reading a peer's:
///
/// ```compile_fail
/// # use peerwarp_codegen::dsl::prelude::*;
/// fn peek(window: Window<u32>) -> Val<u32> {
///     window.of(1).get(0)
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Window<T: Element> {
    own: Ptr<T>,
}

/// A window as a parameter, and to its owner.
macro_rules! owned {
    ([$($bound:tt)*] $window:ty, $own:ty) => {
        impl $($bound)* Arg for $window {
            const KIND: ParamKind = ParamKind::Window;
            fn bind(b: Bound) -> Self {
                Self { own: <$own>::bind(b) }
            }
        }

        /// This rank's own instance.
        impl $($bound)* Deref for $window {
            type Target = $own;
            fn deref(&self) -> &$own {
                &self.own
            }
        }
    };
}
pub(crate) use owned;
owned!([<T: Element>] Window<T>, Ptr<T>);
owned!([] AnyWindow, AnyPtr);

impl<T: Element> TypedArg for Window<T> {
    const DTYPE: Dtype = T::DTYPE;
}

/// A [`Window`] whose element type the config chooses (`#[dtype(|c| ..)]`). To its owner it is as an [`AnyPtr`].
#[derive(Clone, Copy, Debug)]
pub struct AnyWindow {
    own: AnyPtr,
}

impl ErasedArg for AnyWindow {}

/// A rank's instance of a [`Window`].
#[derive(Clone, Copy, Debug)]
pub struct PeerWindow<T: Element> {
    window: Window<T>,
    rank: Val<u32>,
}

/// A rank's instance of an [`AnyWindow`].
#[derive(Clone, Copy, Debug)]
pub struct AnyPeerWindow {
    window: AnyWindow,
    rank: Val<u32>,
}

/// Publishes a window, by a signal to those ranks.
pub(crate) fn publish(window: &Buf, peers: Peers, flags: &Flags, i: impl IntoIndex, epoch: Epoch, loc: Loc) {
    let mut parcel = send_to_at(peers, loc);
    parcel.publish_buf(window, loc);
    parcel.signal_at(flags, i.index(), epoch, loc);
}

impl<T: Element> Window<T> {
    /// A rank's instance, to be read; it may be this one.
    ///
    /// # Errors
    /// Reading ends the trace for a constant that is no rank, and with the receipt of another rank's signal.
    #[track_caller]
    pub fn of(&self, rank: impl IntoVal<u32>) -> PeerWindow<T> {
        PeerWindow { window: *self, rank: rank.val() }
    }

    /// The `len` elements from element `i` on of all ranks' instances as one. The switch between the GPUs adds them in `f32` and rounds
    /// once, or takes the smallest or largest (`multimem.ld_reduce`). Only NVIDIA's GPUs from `sm_90` on that share multicast memory can.
    /// The receipt is of a wait for the signals of all ranks. Tiles and indices are of whole 16 bytes. `f32` can be added; `f16` and
    /// `bf16` have a smallest and largest, too.
    ///
    /// The order in which a switch adds is not defined. A reader may hand its result on, but two readers of one element may see different
    /// last bits. The simulator adds in the order of ranks.
    ///
    /// # Errors
    /// Ends the trace with the receipt of one rank's signal. Printing for a target without multicast fails.
    #[track_caller]
    pub fn load_reduce(&self, op: ReduceOp, receipt: &Arrived, i: impl IntoIndex, len: u32) -> Tile<T> {
        Tile::from_raw(reduced(&self.buf, op, receipt, i, len, Loc::caller()))
    }

    /// Publishes it: stores the epoch to flag `i` of `flags` on those ranks, after all that this group has stored to it. A
    /// parcel can publish it together with what it carries: [`Parcel::publish`](crate::dsl::Parcel::publish).
    ///
    /// # Orders
    /// All that this group did before comes before what the waiting group does after its wait.
    #[track_caller]
    pub fn signal(&self, peers: Peers, flags: &Flags, i: impl IntoIndex, epoch: Epoch) {
        publish(&self.buf, peers, flags, i, epoch, Loc::caller());
    }
}

impl AnyWindow {
    /// As [`Window::load_reduce`].
    #[track_caller]
    pub fn load_reduce(&self, op: ReduceOp, receipt: &Arrived, i: impl IntoIndex, len: u32) -> AnyTile {
        AnyTile::new(reduced(&self.buf, op, receipt, i, len, Loc::caller()))
    }

    /// As [`Window::of`].
    #[track_caller]
    pub fn of(&self, rank: impl IntoVal<u32>) -> AnyPeerWindow {
        AnyPeerWindow { window: *self, rank: rank.val() }
    }

    /// As [`Window::signal`].
    ///
    /// # Orders
    /// As [`Window::signal`].
    #[track_caller]
    pub fn signal(&self, peers: Peers, flags: &Flags, i: impl IntoIndex, epoch: Epoch) {
        publish(&self.buf, peers, flags, i, epoch, Loc::caller());
    }
}

/// What all ranks' instances are at once, reduced, for a read with this receipt.
fn reduced(window: &Buf, op: ReduceOp, receipt: &Arrived, i: impl IntoIndex, len: u32, loc: Loc) -> Raw {
    let all = attempt(loc, |t| {
        t.same_trace(receipt.trace, crate::dsl::trace::scope::Thing::Receipt, loc)?;
        let param = param_of(window).expect("a window is a parameter");
        let one = awaited(t, receipt.receipt);
        if let Some(from) = one.filter(|_| t.builder.kernel.ranks > 1) {
            let from = match t.constant(from) {
                Some(Const::U32(rank)) => format!("rank {rank}"),
                _ => "one rank".to_owned(),
            };
            return Err(TraceError::new(
                loc,
                format!("all ranks' windows at once with the receipt of a signal of {from}"),
                "all ranks have to have published theirs: wait for all with `flags.wait_all(..)`",
            )
            .note(t.builder.kernel.receipts[receipt.receipt.index()].loc, "the receipt is of this wait"));
        }
        Ok(window.placed(Place::All(param, op)))
    });
    all.load(i.index(), Some(len), Some(receipt), loc)
}

/// A rank's instance of a window, for a read with this receipt.
pub(crate) fn instance(window: &Buf, rank: Val<u32>, receipt: &Arrived, loc: Loc) -> Buf {
    attempt(loc, |t| {
        let param = param_of(window).expect("a window is a parameter");
        let raw = rank.to_raw();
        let rank = t.use_value(raw.trace, raw.id, loc)?;
        if let Some(Const::U32(r)) = t.constant(rank) {
            if r >= t.builder.kernel.ranks {
                return Err(no_such_rank(t, r, loc));
            }
            signalled_by(t, receipt, r, loc)?;
        }
        Ok(window.placed(Place::Peer(param, rank)))
    })
}

/// Whether the receipt can be of a signal of that rank.
fn signalled_by(t: &Trace, receipt: &Arrived, rank: u32, loc: Loc) -> Result<(), TraceError> {
    t.same_trace(receipt.trace, crate::dsl::trace::scope::Thing::Receipt, loc)?;
    let from = awaited(t, receipt.receipt).and_then(|from| t.constant(from));
    match from {
        Some(Const::U32(from)) if from != rank => Err(TraceError::new(
            loc,
            format!("the window of rank {rank} with the receipt of a signal of rank {from}"),
            "a rank's window may be read after that rank's own signal: wait for it",
        )
        .note(t.builder.kernel.receipts[receipt.receipt.index()].loc, "the receipt is of this wait")),
        _ => Ok(()),
    }
}

/// The rank that a wait waits for, if it is for one.
fn awaited(t: &Trace, of: ReceiptId) -> Option<ValueId> {
    t.builder.kernel.ops.iter().rev().find_map(|op| {
        let OpKind::Comm(CommOp::Wait(Wait { receipt, from, .. })) = &op.kind else { return None };
        (*receipt == of).then_some(*from)
    })
}

impl<T: Element> PeerWindow<T> {
    fn instance(&self, receipt: &Arrived, loc: Loc) -> Buf {
        instance(&self.window.buf, self.rank, receipt, loc)
    }
}
received!(
    PeerWindow,
    /// Element `i`, covered by the receipt of a wait for the rank's signal.
    get,
    /// The `len` elements from element `i` on.
    load
);

received_f32!(
    AnyPeerWindow,
    /// The `len` elements from element `i` on, as `f32`, covered by the receipt of a wait for the rank's signal.
    load_f32
);

impl AnyPeerWindow {
    fn instance(&self, receipt: &Arrived, loc: Loc) -> Buf {
        instance(&self.window.buf, self.rank, receipt, loc)
    }

    /// The `len` elements from element `i` on, as they are.
    #[track_caller]
    pub fn load(&self, receipt: &Arrived, i: impl IntoIndex, len: u32) -> AnyTile {
        let loc = Loc::caller();
        AnyTile::new(self.instance(receipt, loc).load(i.index(), Some(len), Some(receipt), loc))
    }

    /// As [`AnyPtr::load_where`].
    #[track_caller]
    pub fn load_where(&self, receipt: &Arrived, i: impl IntoIndex, mask: impl IntoTile<bool>) -> AnyTile {
        let (loc, i, mask) = (Loc::caller(), i.index(), mask.tile().to_raw());
        let zero = cast(host(0f32, loc).to_raw(), self.window.buf.dtype, loc);
        AnyTile::new(self.instance(receipt, loc).load_masked(i, mask, zero, Some(receipt), loc))
    }

    /// As [`AnyPtr::load_if`].
    #[track_caller]
    pub fn load_if(
        &self,
        receipt: &Arrived,
        i: impl IntoIndex,
        len: u32,
        cond: impl IntoVal<bool>,
    ) -> AnyTile {
        let loc = Loc::caller();
        let (i, cond) = (i.index(), cond.val().to_raw());
        load_if(&self.instance(receipt, loc), i, len, cond, Some(receipt), loc)
    }

    /// The elements from element `i` on where `mask` holds, as `f32`, else `other`, rounded to the element type.
    #[track_caller]
    pub fn load_where_f32(
        &self,
        receipt: &Arrived,
        i: impl IntoIndex,
        mask: impl IntoTile<bool>,
        other: impl Operand<f32>,
    ) -> Tile<f32> {
        let loc = Loc::caller();
        let (i, mask) = (i.index(), mask.tile().to_raw());
        let other = cast(other.raw(), self.window.buf.dtype, loc);
        let raw = self.instance(receipt, loc).load_masked(i, mask, other, Some(receipt), loc);
        Tile::from_raw(cast(raw, Dtype::F32, loc))
    }
}
