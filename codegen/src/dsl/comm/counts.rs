//! Counting signals: several blocks complete one request.

use super::protocol::{Arrived, Peers, wait_for_one};
use super::signal::signal_bare;
use crate::dsl::memory::{Arg, Bound, Buf, IntoIndex, TypedArg, mem::words_arg};
use crate::dsl::values::{FromRaw, IntoVal, Val};
use crate::ir::{Dtype, Loc, ParamKind};

/// A symmetric array of counts, for requests that several blocks of a rank complete. Each block adds to the count when its part is there.
/// One group of the receiver takes the complete count, which sets it back to zero.
///
/// - **Order.** [`Parcel::count`](crate::dsl::Parcel::count) comes after all that its group did before, as a signal does. The take comes
///   after every addition that it counts, and after what they came after.
/// - **Reuse.** A rank adds to a count again only once it knows of the take, by a signal or a barrier: the checker reports
///   `lost-signal` where nothing orders the two. A count that goes past the awaited one is `epoch-confusion`, one that never gets
///   there a `deadlock`, and one that is never taken an `unwaited-signal`.
/// - **Targets.** CUDA adds with `red.release.sys`, HIP with a fence and an atomic addition. GPUs need atomics on each other's memory,
///   which NVLink and XGMI have and PCIe has not: there, the wait expires.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 2, 32, 4), |p| {
/// # let (pages, pool, out): (Ptr<u32>, Sym<u32>, Ptr<u32>) = (p.arg("pages", 1024), p.arg("pool", 1024), p.arg("out", 1024));
/// # let (sent, free): (Counts, Flags) = (p.arg("sent", 1), p.arg("free", 4));
/// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// role("push", 4, |b| {
///     let mut page = send_to(Peers::rank(rank() ^ 1));
///     page.put(&pool, b.index() * 256, pages.load(b.index() * 256, 256));
///     page.count(&sent, 0, 1);                       // four blocks, one request
/// });
/// role("decode", 1, |_| {
///     let all = sent.from(rank() ^ 1).take(0, 4);    // the receipt of all four
///     out.store(0, pool.load(&all, 0, 1024));
///     let _ = free.meet(epoch);                      // the next launch may count again
/// });
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub(crate) buf: Buf,
}

words_arg!(Counts, "Number of counts.");

/// Counts that a given rank adds to; made by [`Counts::from`].
#[derive(Clone, Copy, Debug)]
pub struct CountsFrom {
    counts: Counts,
    from: Val<u32>,
}

impl Counts {
    /// Adds `amount` to count `i` on each of some ranks without sending them anything, after all that this group did before:
    /// `sent.add(Peers::rank(0), i, 1)`. With data, it is [`Parcel::count`](crate::dsl::Parcel::count).
    ///
    /// # Orders
    /// All that this group did before comes before what the taking group does after its take.
    #[track_caller]
    pub fn add(&self, to: Peers, i: impl IntoIndex, amount: impl IntoVal<u32>) {
        signal_bare(&self.buf, to, i.index(), amount.val().to_raw(), Loc::caller());
    }

    /// The same counts, as rank `from` adds to them: the rank that a timed-out wait blames.
    #[track_caller]
    pub fn from(&self, from: impl IntoVal<u32>) -> CountsFrom {
        CountsFrom { counts: *self, from: from.val() }
    }
}

impl CountsFrom {
    /// Waits until count `i` is exactly `count`, and sets it back to zero. One group does so: another one would wait for ever. The receipt
    /// covers what was put before each addition.
    ///
    /// # Orders
    /// All that the adding groups did before their additions comes before what this group does next.
    ///
    /// # Errors
    /// Ends the trace for a constant that is no rank. The checker reports a count that goes past `count`
    /// (`epoch-confusion`).
    #[track_caller]
    pub fn take(&self, i: impl IntoIndex, count: impl IntoVal<u32>) -> Arrived {
        wait_for_one(&self.counts.buf, self.from.to_raw(), i.index(), count.val().to_raw(), Loc::caller())
    }
}
