//! Parcels, signals, waits and receipts.

use std::marker::PhantomData;

use super::counts::Counts;
use crate::dsl::memory::{
    Buf, Epoch, Flags, Index, IntoIndex,
    buffer::cast,
    inbox::{AnyInbox, Inbox},
    mem::param_of,
    window::{AnyWindow, Window},
};
use crate::dsl::trace::{
    Made, Nameable, Thing, Trace, TraceError,
    scope::require_role,
    tracer::{attempt, with},
};
use crate::dsl::values::{Element, FromRaw, IntoTile, IntoVal, Raw, Val, val::host};
use crate::dsl::{bit, local_rank};
use crate::ir::{
    CommOp, Const, Loc, OpKind, ParamId, ParcelId, Put, ReceiptId, Signal, SignalOrder, Target, ValueId,
    Wait, WaitAll,
};

/// Whom a parcel goes to.
#[derive(Clone, Copy, Debug)]
pub struct Peers {
    target: Raw,
    whom: Whom,
}

/// What a target is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whom {
    /// The number of a rank.
    One,
    /// A mask of ranks.
    Some,
    /// The mask of all ranks.
    All,
    /// The mask of all ranks but this one.
    Others,
}

impl Peers {
    /// One rank, by its number among those of its node, or on a far channel among those of its [ranks](crate::dsl::ChannelShape::rail). It may be this one.
    ///
    /// # Errors
    /// Ends the trace for a constant that is no rank.
    #[track_caller]
    pub fn rank(rank: impl IntoVal<u32>) -> Peers {
        let loc = Loc::caller();
        let target = rank.val().to_raw();
        attempt(loc, |t| match t.constant_of(target) {
            Some(Const::U32(r)) if r >= t.builder.kernel.all_ranks() => Err(no_such_rank(t, r, loc)),
            _ => Ok(()),
        });
        Peers { target, whom: Whom::One }
    }

    /// Every rank of the node whose bit is set; bit `i` is rank `i`. May be none, may include this rank.
    ///
    /// # Errors
    /// Ends the trace for a constant with the bit of no rank.
    #[track_caller]
    pub fn mask(mask: impl IntoVal<u64>) -> Peers {
        let loc = Loc::caller();
        let target = mask.val().to_raw();
        attempt(loc, |t| match t.constant_of(target) {
            Some(Const::U64(m)) if t.builder.kernel.ranks < 64 && m >> t.builder.kernel.ranks != 0 => {
                Err(no_such_rank(t, 63 - m.leading_zeros(), loc))
            }
            _ => Ok(()),
        });
        Peers { target, whom: Whom::Some }
    }

    /// As an operation's operand.
    pub(crate) fn target(self, t: &Trace, loc: Loc) -> Result<Target, TraceError> {
        let id = t.use_value(self.target.trace, self.target.id, loc)?;
        Ok(if self.whom == Whom::One { Target::Rank(id) } else { Target::Mask(id) })
    }

    /// The rank of a far put, none for every rank, and whether this one is left out then.
    pub(crate) fn far(self, t: &Trace, loc: Loc) -> Result<(Option<ValueId>, bool), TraceError> {
        match (self.whom, self.target(t, loc)?) {
            (Whom::All, _) => Ok((None, false)),
            (Whom::Others, _) => Ok((None, true)),
            (Whom::One | Whom::Some, Target::Rank(rank)) => Ok((Some(rank), false)),
            (Whom::One | Whom::Some, Target::Mask(_)) => {
                let message = "a far message to some ranks, which are a mask";
                let help = "a put goes to one rank, `Peers::rank(rank)`, or to every rank, `Peers::all()`, or to every other one, \
                            `Peers::others()`: loop over the ranks";
                Err(TraceError::new(loc, message, help))
            }
        }
    }

    /// A rank that is one.
    pub(crate) fn one(target: Raw) -> Peers {
        Peers { target, whom: Whom::One }
    }

    pub(crate) fn is_one(self) -> bool {
        self.whom == Whom::One
    }

    /// The rank of [`Peers::rank`].
    pub(crate) fn raw(self) -> Raw {
        self.target
    }

    /// Every rank, this one too: of the node, or of a far channel's [ranks](crate::dsl::ChannelShape::rail).
    #[track_caller]
    pub fn all() -> Peers {
        Peers::all_at(Loc::caller())
    }

    pub(crate) fn all_at(loc: Loc) -> Peers {
        Peers { target: host(every_rank(loc), loc).to_raw(), whom: Whom::All }
    }

    /// Every rank but this one: of the node, or of a far channel's [ranks](crate::dsl::ChannelShape::rail).
    #[track_caller]
    pub fn others() -> Peers {
        let loc = Loc::caller();
        Peers { target: (every_rank(loc) & !bit(local_rank())).to_raw(), whom: Whom::Others }
    }
}

pub(crate) fn no_such_rank(t: &Trace, rank: u32, loc: Loc) -> TraceError {
    let ranks = t.builder.kernel.all_ranks();
    TraceError::new(
        loc,
        format!("rank {rank} in a world of {ranks} ranks"),
        format!("ranks go from 0 to {}: check the config that this was computed from", ranks - 1),
    )
}

fn every_rank(loc: Loc) -> u64 {
    let ranks = with(loc, |t| t.builder.kernel.ranks);
    u64::MAX >> (64 - ranks)
}

/// What the tracer knows about a parcel.
#[derive(Debug)]
pub(crate) struct ParcelState {
    pub made: Made,
    /// The buffers put to and the windows published, and where.
    pub puts: Vec<(ParamId, Made)>,
    pub signalled: Option<ParamId>,
}

impl ParcelState {
    /// Checks that a signal at the current place publishes every put, on every path.
    fn check_signal(&self, t: &Trace, loc: Loc) -> Result<(), TraceError> {
        if self.puts.is_empty() {
            return Err(TraceError::new(
                loc,
                "signalling what was not sent: nothing was put into this parcel",
                "put the data into the parcel before signalling it; a signal without data is `flags.signal(peers, i, epoch)`",
            )
            .note(self.made.loc, "the parcel is opened here"));
        }
        match self.puts.iter().find(|(_, put)| !t.is_inside(put.scope)) {
            None => Ok(()),
            Some((_, put)) => Err(TraceError::new(
                loc,
                "a signal in a branch or loop that a put of its parcel is not in",
                "on some paths the put would not be published, or twice: signal where the parcel is opened, or open \
                 another parcel in the branch",
            )
            .note(put.loc, "the put is here")),
        }
    }
}

/// Stores to one target's symmetric buffers, published together by one signal. Opened by [`send_to`]; what is put is
/// visible to a receiver once its wait for the signal returns, and not before.
///
/// ```
/// # use peerwarp_codegen::dsl::{prelude::*, TraceMeta, trace};
/// # trace(TraceMeta::new("demo", 8, 32, 4), |p| {
/// # let (x, out): (Ptr<u32>, Ptr<u32>) = (p.arg("x", 256), p.arg("out", 2048));
/// # let (inbox, flag): (Sym<u32>, Flags) = (p.arg("inbox", 2048), p.arg("flag", 8));
/// let epoch = p.arg::<EpochWord>("epoch", 1).begin();
/// role("send", 1, |_| {
///     let mut row = send_to(Peers::all());
///     row.put(&inbox, rank() * 256, x.load(0, 256));
///     row.signal(&flag, rank(), epoch);            // consumes the parcel
/// });
/// role("receive", 8, |b| {
///     let from = b.index();
///     let got = flag.from(from).wait(from, epoch); // the receipt
///     out.store(from * 256, inbox.load(&got, from * 256, 256));
/// });
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "put something into the parcel and signal it"]
pub struct Parcel {
    parcel: ParcelId,
    trace: u32,
    _here: PhantomData<*const ()>,
}

/// Opens a parcel to the given ranks.
///
/// # Errors
/// Ends the trace outside a role, and where the parcel is never signalled.
#[track_caller]
pub fn send_to(peers: Peers) -> Parcel {
    send_to_at(peers, Loc::caller())
}

/// Opens a parcel to all ranks, this one too, each of whose puts is one store that the switch between the GPUs multiplies
/// (`multimem.st`). Only NVIDIA's GPUs from `sm_90` on that share multicast memory can. What is put is tiles of `f32`, `f16` or
/// `bf16`; tiles and indices are of whole 16 bytes.
///
/// # Errors
/// Printing for another target fails. Ends the trace where the parcel is never signalled.
#[track_caller]
pub fn multicast() -> Parcel {
    let loc = Loc::caller();
    let parcel = send_to_at(Peers::all_at(loc), loc);
    attempt(loc, |t| {
        t.builder.kernel.parcels[parcel.parcel.index()].multicast = true;
        Ok(())
    });
    parcel
}

pub(crate) fn send_to_at(peers: Peers, loc: Loc) -> Parcel {
    require_role(loc, "a parcel");
    attempt(loc, |t| {
        let target = peers.target(t, loc)?;
        let parcel = t.builder.parcel(target, loc);
        let made = t.made(loc);
        t.parcels.push(ParcelState { made, puts: vec![], signalled: None });
        t.yielded.push(Nameable::Nothing);
        Ok(Parcel { parcel, trace: t.id, _here: PhantomData })
    })
}

impl Parcel {
    /// Stores a tile to the elements from element `i` on of the targets' instance of `buffer`.
    ///
    /// # Orders
    /// Nothing by itself: the parcel's signal says that the data is there.
    ///
    /// # Errors
    /// Ends the trace beyond the buffer's end, and inside a split for a parcel of the block.
    #[track_caller]
    pub fn put<T: Element>(&mut self, buffer: &impl Inbox<T>, i: impl IntoIndex, tile: impl IntoTile<T>) {
        self.store(&buffer.inbox(), i.index(), tile.tile().to_raw(), None, Loc::caller());
    }

    /// Stores a tile to the elements from element `i` on, where `mask` holds.
    ///
    /// # Orders
    /// As [`Parcel::put`].
    #[track_caller]
    pub fn put_where<T: Element>(
        &mut self,
        buffer: &impl Inbox<T>,
        i: impl IntoIndex,
        tile: impl IntoTile<T>,
        mask: impl IntoTile<bool>,
    ) {
        self.store(
            &buffer.inbox(),
            i.index(),
            tile.tile().to_raw(),
            Some(mask.tile().to_raw()),
            Loc::caller(),
        );
    }

    /// Stores a scalar to element `i`.
    ///
    /// # Orders
    /// As [`Parcel::put`].
    #[track_caller]
    pub fn put_value<T: Element>(
        &mut self,
        buffer: &impl Inbox<T>,
        i: impl IntoIndex,
        value: impl IntoVal<T>,
    ) {
        self.store(&buffer.inbox(), i.index(), value.val().to_raw(), None, Loc::caller());
    }

    /// Stores an `f32` tile to the elements from element `i` on, rounded to the buffer's element type.
    ///
    /// # Orders
    /// As [`Parcel::put`].
    #[track_caller]
    pub fn put_f32(&mut self, buffer: &impl AnyInbox, i: impl IntoIndex, tile: impl IntoTile<f32>) {
        let loc = Loc::caller();
        let (i, tile) = (i.index(), tile.tile().to_raw());
        let buffer = buffer.inbox();
        self.store(&buffer, i, cast(tile, buffer.dtype, loc), None, loc);
    }

    /// Publishes what this group has stored to a window so far, too: the targets may read this rank's instance with the
    /// receipt of a wait for the parcel's signal. So does what is ordered before it: what the groups of a split stored that
    /// has ended, and what the kernels before this one stored.
    ///
    /// # Orders
    /// The parcel's signal comes after these stores.
    #[track_caller]
    pub fn publish<T: Element>(&mut self, window: &Window<T>) {
        self.publish_buf(&window.buf, Loc::caller());
    }

    /// [`Parcel::publish`] of a window whose element type the config chooses.
    ///
    /// # Orders
    /// As [`Parcel::publish`].
    #[track_caller]
    pub fn publish_any(&mut self, window: &AnyWindow) {
        self.publish_buf(&window.buf, Loc::caller());
    }

    pub(crate) fn publish_buf(&mut self, window: &Buf, loc: Loc) {
        attempt(loc, |t| {
            self.check(t, loc)?;
            window.check(t, loc)?;
            let window = param_of(window).expect("a window is a parameter");
            let made = t.made(loc);
            t.parcels[self.parcel.index()].puts.push((window, made));
            let windows = &mut t.builder.kernel.parcels[self.parcel.index()].windows;
            if !windows.contains(&window) {
                windows.push(window);
            }
            Ok(())
        });
    }

    /// Publishes the parcel: stores the epoch to flag `i` of `flags` on every target, after all puts of all lanes. Each
    /// of the parcel's puts must be on every path to it, or in a branch or loop before it.
    ///
    /// # Orders
    /// All that this group did before comes before all that the waiting group does after its wait: puts, stores, loads,
    /// and what this group itself waited for.
    ///
    /// # Errors
    /// Ends the trace where nothing was put, and in a branch or loop that one of the puts is not in.
    #[track_caller]
    pub fn signal(self, flags: &Flags, i: impl IntoIndex, epoch: Epoch) {
        let loc = Loc::caller();
        self.signal_at(flags, i.index(), epoch, loc);
    }

    /// Publishes the parcel: adds `amount` to count `i` of `counts` on every target, after all puts of all lanes, as
    /// [`Parcel::signal`] stores an epoch. Several blocks may count up one: see [`Counts`].
    ///
    /// # Orders
    /// As [`Parcel::signal`], for the group that takes the count.
    ///
    /// # Errors
    /// As [`Parcel::signal`].
    #[track_caller]
    pub fn count(self, counts: &Counts, i: impl IntoIndex, amount: impl IntoVal<u32>) {
        let loc = Loc::caller();
        self.signal_with(&counts.buf, i.index(), amount.val().to_raw(), loc);
    }

    pub(crate) fn signal_at(self, flags: &Flags, i: Index, epoch: Epoch, loc: Loc) {
        self.signal_with(&flags.buf, i, epoch.value.to_raw(), loc);
    }

    pub(crate) fn signal_with(self, flags: &Buf, i: Index, value: Raw, loc: Loc) {
        let parcel = self.parcel;
        attempt(loc, |t| {
            self.check(t, loc)?;
            t.parcels[parcel.index()].check_signal(t, loc)?;
            let flag = param_of(flags).expect("flags are a parameter");
            let index = flags.at(t, i, 1, loc)?;
            let value = t.use_value(value.trace, value.id, loc)?;
            t.parcels[parcel.index()].signalled = Some(flag);
            let order = SignalOrder::Release;
            t.push(CommOp::Signal(Signal { parcel, flag, index, value, order }), loc);
            Ok(())
        });
    }

    pub(crate) fn store(&self, buf: &Buf, index: Index, value: Raw, mask: Option<Raw>, loc: Loc) {
        let parcel = self.parcel;
        attempt(loc, |t| {
            self.check(t, loc)?;
            let (value, mask) = index.part.masked(t, value, mask, loc)?;
            let count = if mask.is_some() { 0 } else { t.ty(value).len.unwrap_or(1).into() };
            let index = buf.at(t, index, count, loc)?;
            let buffer = param_of(buf).expect("symmetric memory is a parameter");
            self.note(t, buffer, loc);
            t.push(CommOp::Put(Put { parcel, buffer, index, value, mask }), loc);
            Ok(())
        });
    }

    /// Remembers that something is put into a buffer.
    pub(crate) fn note(&self, t: &mut Trace, buffer: ParamId, loc: Loc) {
        let made = t.made(loc);
        t.parcels[self.parcel.index()].puts.push((buffer, made));
    }

    pub(crate) fn id(&self) -> ParcelId {
        self.parcel
    }

    pub(crate) fn check(&self, t: &Trace, loc: Loc) -> Result<(), TraceError> {
        t.same_trace(self.trace, Thing::Parcel, loc)?;
        let made = t.parcels[self.parcel.index()].made;
        t.reachable(made, Thing::Parcel, loc)?;
        match t.split_since(made.scope) {
            None => Ok(()),
            Some((_, split)) => Err(TraceError::new(
                loc,
                "a parcel of the block used inside a split",
                "a signal orders the puts of its own group only: open the parcel inside the split with `send_to`",
            )
            .note(made.loc, "the parcel is opened here")
            .note(split, "the split begins here")),
        }
    }
}

pub(crate) fn epoch_value(t: &Trace, epoch: Epoch, loc: Loc) -> Result<crate::ir::ValueId, TraceError> {
    let raw = epoch.value.to_raw();
    t.use_value(raw.trace, raw.id, loc)
}

/// The receipt of a wait: what reading an inbox requires.
#[derive(Clone, Copy, Debug)]
#[must_use = "read the inbox with the receipt"]
pub struct Arrived {
    pub(crate) receipt: ReceiptId,
    pub(crate) trace: u32,
    _here: PhantomData<*const ()>,
}

/// Which signals end a wait for flags.
#[derive(Clone, Copy)]
pub(crate) enum Until {
    /// Those of this epoch.
    Exactly(Epoch),
    /// Those of this epoch and of later ones.
    OrLater(Epoch),
}

/// Flags that a given rank signals; made by [`Flags::from`].
#[derive(Clone, Copy, Debug)]
pub struct FlagsFrom {
    flags: Flags,
    from: Val<u32>,
}

impl Flags {
    /// The same flags, as signalled by rank `from`: the rank that a timed-out wait blames.
    #[track_caller]
    pub fn from(&self, from: impl IntoVal<u32>) -> FlagsFrom {
        FlagsFrom { flags: *self, from: from.val() }
    }

    /// Waits until the `count` flags from flag `i` on are signalled with this epoch. Flag `i` is signalled by rank
    /// `i / per_rank % ranks`.
    ///
    /// # Orders
    /// All that the signalling groups did before their signals comes before what this group does next. The receipt
    /// reads what their parcels carried.
    ///
    /// # Errors
    /// Ends the trace for a `per_rank` of 0 and beyond the last flag. On a GPU a wait that outlasts its budget aborts
    /// the launch and names the rank.
    #[track_caller]
    pub fn wait_all(
        &self,
        i: impl IntoIndex,
        count: impl IntoVal<u32>,
        per_rank: u32,
        epoch: Epoch,
    ) -> Arrived {
        self.wait_for(i.index(), count.val().to_raw(), None, per_rank, Until::Exactly(epoch), Loc::caller())
    }

    /// As [`Flags::wait_all`] for 64 flags at most, of which only those are waited for whose bit is set in `only`: bit 0 is
    /// flag `i`.
    ///
    /// # Orders
    /// As [`Flags::wait_all`].
    ///
    /// # Errors
    /// As [`Flags::wait_all`], and for more than 64 flags.
    #[track_caller]
    pub fn wait_some(
        &self,
        i: impl IntoIndex,
        count: u32,
        only: impl IntoVal<u64>,
        per_rank: u32,
        epoch: Epoch,
    ) -> Arrived {
        let loc = Loc::caller();
        let (i, only) = (i.index(), only.val().to_raw());
        self.wait_for(i, host(count, loc).to_raw(), Some(only), per_rank, Until::Exactly(epoch), loc)
    }

    pub(crate) fn wait_for(
        &self,
        i: Index,
        count: Raw,
        only: Option<Raw>,
        per_rank: u32,
        until: Until,
        loc: Loc,
    ) -> Arrived {
        require_role(loc, "a wait");
        let (epoch, or_later) = match until {
            Until::Exactly(epoch) => (epoch, false),
            Until::OrLater(epoch) => (epoch, true),
        };
        attempt(loc, |t| {
            if per_rank == 0 {
                let help = "`per_rank` is how many flags each rank signals, at least 1";
                return Err(TraceError::new(loc, "a wait for zero flags of each rank", help));
            }
            let n = match t.constant_of(count) {
                Some(Const::U32(n)) => n.into(),
                _ => 0,
            };
            if only.is_some() && n > 64 {
                let message = format!("{n} flags of which a mask picks some");
                return Err(TraceError::new(loc, message, "a mask has 64 bits: wait for at most 64 flags"));
            }
            let index = self.buf.at(t, i, n, loc)?;
            let count = t.use_value(count.trace, count.id, loc)?;
            let only = only.map(|m| t.use_value(m.trace, m.id, loc)).transpose()?;
            let value = epoch_value(t, epoch, loc)?;
            arrive(&self.buf, t, loc, |receipt, flag| {
                OpKind::Comm(CommOp::WaitAll(WaitAll {
                    receipt,
                    flag,
                    index,
                    count,
                    only,
                    per_rank,
                    value,
                    or_later,
                }))
            })
        })
    }
}

/// Adds a wait for flags to the trace.
pub(crate) fn arrive(
    flags: &Buf,
    t: &mut Trace,
    loc: Loc,
    op: impl FnOnce(ReceiptId, ParamId) -> OpKind,
) -> Result<Arrived, TraceError> {
    let flag = param_of(flags).expect("flags are a parameter");
    let receipt = t.builder.receipt(flag, loc);
    let made = t.made(loc);
    t.receipts.push(made);
    t.push(op(receipt, flag), loc);
    Ok(Arrived { receipt, trace: t.id, _here: PhantomData })
}

/// Waits until a flag or count of a rank has a value.
pub(crate) fn wait_for_one(flags: &Buf, from: Raw, i: Index, value: Raw, loc: Loc) -> Arrived {
    require_role(loc, "a wait");
    attempt(loc, |t| {
        if let Some(Const::U32(r)) = t.constant_of(from)
            && r >= t.builder.kernel.ranks
        {
            return Err(no_such_rank(t, r, loc));
        }
        let index = flags.at(t, i, 1, loc)?;
        let from = t.use_value(from.trace, from.id, loc)?;
        let value = t.use_value(value.trace, value.id, loc)?;
        arrive(flags, t, loc, |receipt, flag| {
            OpKind::Comm(CommOp::Wait(Wait { receipt, flag, index, from, value }))
        })
    })
}

impl FlagsFrom {
    /// Waits until flag `i` is signalled with this epoch.
    ///
    /// # Orders
    /// As [`Flags::wait_all`].
    ///
    /// # Errors
    /// Ends the trace for a constant that is no rank and beyond the last flag.
    #[track_caller]
    pub fn wait(&self, i: impl IntoIndex, epoch: Epoch) -> Arrived {
        let (from, value) = (self.from.to_raw(), epoch.value.to_raw());
        wait_for_one(&self.flags.buf, from, i.index(), value, Loc::caller())
    }
}
