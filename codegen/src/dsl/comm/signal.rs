//! Signals without data, and barriers made of them.

use super::protocol::{Arrived, ParcelState, Peers};
use crate::dsl::memory::{Buf, Epoch, Flags, Index, IntoIndex, mem::param_of};
use crate::dsl::trace::{TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{FromRaw, IntoVal, Raw};
use crate::dsl::{local_rank, local_ranks};
use crate::ir::{CommOp, Const, Loc, Signal, SignalOrder};

/// Signals a flag or count of ranks without data.
pub(crate) fn signal_bare(flags: &Buf, to: Peers, i: Index, value: Raw, loc: Loc) {
    require_role(loc, "a signal");
    attempt(loc, |t| {
        let target = to.target(t, loc)?;
        let flag = param_of(flags).expect("flags are a parameter");
        let index = flags.at(t, i, 1, loc)?;
        let value = t.use_value(value.trace, value.id, loc)?;
        let parcel = t.builder.bare_parcel(target, loc);
        let made = t.made(loc);
        t.parcels.push(ParcelState { made, puts: vec![], signalled: Some(flag) });
        let order = SignalOrder::Release;
        t.push(CommOp::Signal(Signal { parcel, flag, index, value, order }), loc);
        Ok(())
    });
}

impl Flags {
    /// Signals ranks without sending them anything: stores the epoch to flag `i` on each of them. For data, there is
    /// [`Parcel::signal`](crate::dsl::Parcel::signal).
    ///
    /// A signal says "I have read what you sent", or "I have started this launch, so that the one before it is over". Its receipt
    /// reads no inbox: data belongs into a parcel.
    ///
    /// # Orders
    /// All that this group did before comes before what the waiting group does next: loads, stores, puts, takes, and what this
    /// group waited for. Earlier launches of this rank come before the signal as well. Other groups of this launch do not.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let ready: Flags = p.arg("ready", 16);
    /// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    /// role("ready", 1, |_| {
    ///     let first = epoch.parity() * ranks();
    ///     ready.signal(Peers::others(), first + rank(), epoch);
    ///     let next = (rank() + 1) % ranks();
    ///     let _ = ready.from(next).wait(first + next, epoch);
    /// });
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn signal(&self, to: Peers, i: impl IntoIndex, epoch: Epoch) {
        self.signal_at(to, i.index(), epoch, Loc::caller());
    }

    pub(crate) fn signal_at(&self, to: Peers, i: Index, epoch: Epoch, loc: Loc) {
        signal_bare(&self.buf, to, i, epoch.value.to_raw(), loc);
    }

    /// A barrier of all ranks of a node: signals every one and waits for every one.
    ///
    /// # Orders
    /// What any rank's group did before its `meet` comes before what any rank's group does after its own.
    ///
    /// # Errors
    /// Ends the trace where the array has fewer than two flags a rank for each barrier.
    ///
    /// # Use
    /// One group of each rank calls it, once a launch. It needs two flags a rank, which launches use in turn. A rank may be in the next
    /// launch's barrier while another has yet to see its flag of this one.
    ///
    /// ```
    /// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
    /// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
    /// # let all: Flags = p.arg("all", 16);
    /// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
    /// role("meet", 1, |_| {
    ///     let _all_ranks = all.meet(epoch);
    /// });
    /// # }).unwrap();
    /// ```
    #[track_caller]
    pub fn meet(&self, epoch: Epoch) -> Arrived {
        self.meet_at(0, epoch)
    }

    /// As [`Flags::meet`], one of several barriers of a launch, or of groups that meet apart: each has a number, and two flags
    /// a rank, those from `2 * barrier * ranks` on.
    ///
    /// # Orders
    /// As [`Flags::meet`].
    #[track_caller]
    pub fn meet_at(&self, barrier: impl IntoVal<u32>, epoch: Epoch) -> Arrived {
        let loc = Loc::caller();
        require_role(loc, "a barrier");
        let (barrier, each) = (barrier.val(), local_ranks());
        attempt(loc, |t| {
            let before = match t.constant_of(FromRaw::to_raw(barrier)) {
                Some(Const::U32(n)) => n.into(),
                _ => 0,
            };
            let need = 2 * u64::from(each) * (before + 1);
            if self.buf.len >= need {
                return Ok(());
            }
            let name = self.buf.name(t);
            let has = self.buf.len;
            let message = format!("barrier {before} of {each} ranks on `{name}`, which has {has} flags");
            let help = format!(
                "each barrier takes two flags a rank, which launches use in turn: `{name}` has to have {need}"
            );
            Err(TraceError::new(loc, message, help))
        });
        let first = (barrier * 2 + epoch.parity()) * each;
        self.signal_at(Peers::all(), (first + local_rank()).index(), epoch, loc);
        self.wait_all(first, each, 1, epoch)
    }
}
