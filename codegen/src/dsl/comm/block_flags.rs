//! Flags between the blocks of a rank.

use super::protocol::epoch_value;
use crate::dsl::memory::{
    Arg, Bound, Buf, Epoch, Index, IntoIndex, TypedArg,
    mem::{param_of, words_arg},
};
use crate::dsl::trace::{TraceError, scope::require_role, tracer::attempt};
use crate::dsl::values::{FromRaw, IntoVal, Raw, Val, val::host};
use crate::ir::{ANY_BLOCK, BlockSignal, BlockWait, CommOp, Dtype, Loc, OpKind, ParamKind, SignalOrder};

/// An array of flags that the blocks of a rank signal to each other, in this rank's memory: other ranks neither see nor signal
/// them. A flag holds the epoch of the last signal, 0 before the first.
///
/// A wait for a flag comes after all that the signalling group did before it signalled. Local buffers that one block stores and
/// another loads need that: nothing else orders blocks.
///
/// All blocks of a launch run at the same time, so a wait for one that has not started yet ends.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (x, scaled, y): (Ptr<f32>, Ptr<f32>, Ptr<f32>) = (p.arg("x", 256), p.arg("scaled", 256), p.arg("y", 256));
/// # let done: BlockFlags = p.arg("done", 4);
/// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// role("scale", 4, |b| {
///     scaled.store(b.index() * 64, x.load(b.index() * 64, 64) * 2.0);
///     done.signal(b.index(), epoch);
/// });
/// role("turn", 1, |_| {
///     done.from(0).wait_all(0, 4, 1, epoch);       // each flag by one block
///     y.store(0, scaled.gather(255 - arange(256), true, 0.0));
/// });
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BlockFlags {
    buf: Buf,
}

words_arg!(BlockFlags, "Number of flags.");

/// Flags that blocks of a rank signal, from a given one on; made by [`BlockFlags::from`].
#[derive(Clone, Copy, Debug)]
pub struct BlockFlagsFrom {
    flags: BlockFlags,
    from: Val<u32>,
}

impl BlockFlags {
    /// Stores the epoch to flag `i`, after all that this group did before.
    ///
    /// # Orders
    /// All that this group did before comes before what a waiting group of this rank does next.
    #[track_caller]
    pub fn signal(&self, i: impl IntoIndex, epoch: Epoch) {
        let loc = Loc::caller();
        require_role(loc, "a signal");
        let i = i.index();
        attempt(loc, |t| {
            let flag = param_of(&self.buf).expect("flags are a parameter");
            let index = self.buf.at(t, i, 1, loc)?;
            let value = epoch_value(t, epoch, loc)?;
            let order = SignalOrder::Release;
            t.push(CommOp::BlockSignal(BlockSignal { flag, index, value, order }), loc);
            Ok(())
        });
    }

    /// Waits until the `count` flags from flag `i` on are signalled with this epoch, as [`Flags::wait_all`](crate::dsl::Flags::wait_all) does
    /// for those of ranks. Flag `i` is signalled by block `i / per_block` of its role; `i` is a multiple of `per_block`.
    ///
    /// # Orders
    /// All that the signalling groups did before their signals comes before what this group does next.
    ///
    /// # Errors
    /// Ends the trace for a `per_block` of 0 and beyond the last flag.
    #[track_caller]
    pub fn wait_all(&self, i: impl IntoVal<u32>, count: impl IntoVal<u32>, per_block: u32, epoch: Epoch) {
        let (loc, i) = (Loc::caller(), i.val());
        let from = BlockFlagsFrom { flags: *self, from: i / per_block.max(1) };
        from.wait_for(i.index(), count.val().to_raw(), per_block, epoch, loc);
    }

    /// Waits until the `count` flags from flag `i` on are signalled with this epoch, each by whichever block. Where blocks draw their work, none
    /// knows which other one has a part. A timed-out wait names the role alone.
    ///
    /// # Orders
    /// As [`BlockFlags::wait_all`].
    #[track_caller]
    pub fn wait_drawn(&self, i: impl IntoIndex, count: impl IntoVal<u32>, epoch: Epoch) {
        let loc = Loc::caller();
        let from = BlockFlagsFrom { flags: *self, from: host(ANY_BLOCK, loc) };
        from.wait_for(i.index(), count.val().to_raw(), u32::MAX, epoch, loc);
    }

    /// The same flags, as signalled by block `block` of its role: the one that a timed-out wait blames.
    #[track_caller]
    pub fn from(&self, block: impl IntoVal<u32>) -> BlockFlagsFrom {
        BlockFlagsFrom { flags: *self, from: block.val() }
    }
}

impl BlockFlagsFrom {
    /// Waits until flag `i` is signalled with this epoch.
    ///
    /// # Orders
    /// As [`BlockFlags::wait_all`].
    #[track_caller]
    pub fn wait(&self, i: impl IntoIndex, epoch: Epoch) {
        let loc = Loc::caller();
        self.wait_for(i.index(), host(1u32, loc).to_raw(), 1, epoch, loc);
    }

    /// Waits until the `count` flags from flag `i` on are signalled with this epoch. The given block signals `per_block` of them, the
    /// next block as many, and so on.
    ///
    /// # Orders
    /// As [`BlockFlags::wait_all`].
    ///
    /// # Errors
    /// As [`BlockFlags::wait_all`].
    #[track_caller]
    pub fn wait_all(&self, i: impl IntoIndex, count: impl IntoVal<u32>, per_block: u32, epoch: Epoch) {
        let loc = Loc::caller();
        self.wait_for(i.index(), count.val().to_raw(), per_block, epoch, loc);
    }

    fn wait_for(&self, i: Index, count: Raw, per_block: u32, epoch: Epoch, loc: Loc) {
        require_role(loc, "a wait");
        let from = self.from.to_raw();
        attempt(loc, |t| {
            if per_block == 0 {
                let help = "`per_block` is how many flags each block signals, at least 1";
                return Err(TraceError::new(loc, "a wait for zero flags of each block", help));
            }
            let n = match t.constant_of(count) {
                Some(crate::ir::Const::U32(n)) => n.into(),
                _ => 0,
            };
            let flag = param_of(&self.flags.buf).expect("flags are a parameter");
            let index = self.flags.buf.at(t, i, n, loc)?;
            let count = t.use_value(count.trace, count.id, loc)?;
            let from = t.use_value(from.trace, from.id, loc)?;
            let value = epoch_value(t, epoch, loc)?;
            let wait = BlockWait { flag, index, count, from, value, per_block };
            t.push(OpKind::Comm(CommOp::BlockWait(wait)), loc);
            Ok(())
        });
    }
}
