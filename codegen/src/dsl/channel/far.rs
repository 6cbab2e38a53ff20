//! Far channels: messages to ranks of other machines, put by a network card.
//!
//! A message is stored to an outbox of the channel and put when it is finished, up to the last element that is stored: one put for each of
//! its fields. Everything that
//! near channels do implicitly has a word here, as a card does none of it: [`OpenChannel::publish`] ends a batch,
//! [`Inbound::wait`] waits for a count, [`OpenChannel::settle`] waits for local completion, and [`OpenChannel::credits`] gives banks back.

use std::cell::RefCell;

use super::open::{Places, plus, times};
use super::receive::{Incoming, Reading};
use super::shape::Declared;
use super::{Hub, OpenChannel, Payload, Store, Transport};
use crate::dsl::comm::protocol::{Arrived, Peers, arrive};
use crate::dsl::groups::group::{local_rank_at, rank_at};
use crate::dsl::memory::buffer::Buf;
use crate::dsl::memory::index::Index;
use crate::dsl::memory::mem::param_of;
use crate::dsl::trace::error::{TraceError, fail_at};
use crate::dsl::trace::scope::require_role;
use crate::dsl::trace::tracer::attempt;
use crate::dsl::values::val::{FromRaw, IntoVal, Raw, Val, host};
use crate::ir::{CommOp, Const, FarPublish, FarPut, FarReach, FarSettle, FarWait, Loc, OpKind};

/// When the puts of a far channel count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Publish {
    /// Each put counts itself, after its own bytes. Every card does this, and EFA does nothing else.
    #[default]
    Each,
    /// A [publish](OpenChannel::publish) counts the puts of its group, behind them. It needs a card that orders these.
    Batch,
}

/// Messages of a far channel from one rank that have all arrived; made by [`Inbound::wait`](super::Inbound::wait).
#[must_use = "choose a slot"]
pub struct InboundFar<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    sender: Val<u32>,
    arrived: Arrived,
}

/// Messages of a far channel from all other ranks that have all arrived; made by [`OpenChannel::wait_others`].
#[must_use = "choose a rank and a slot"]
pub struct InboundOthers<'a, T: Payload> {
    open: OpenChannel<'a, T>,
    arrived: Arrived,
}

/// A far message on its way: where it stands in the outbox, and the counter that it adds to.
#[derive(Debug)]
pub(super) struct Posted {
    /// Of each field, in the outbox.
    places: Places,
    counter: Val<u32>,
    /// Of each field, elements up to which something is stored; all of them where an offset is the device's.
    ends: RefCell<Vec<u32>>,
}

impl Posted {
    /// The place of a message to some ranks in a slot.
    pub fn of<T: Payload>(
        open: &OpenChannel<'_, T>,
        peers: Peers,
        slot: Val<u32>,
        loc: Loc,
    ) -> Option<Posted> {
        open.hub().far.as_ref()?;
        let Declared { name, shape, .. } = &*open.hub().declared;
        let (row, counter) = (peers.far_rank(name, loc), open.far_counter(loc));
        let number = match (shape.to_all, row) {
            (true, Some(_)) => {
                let message = format!("a message to one rank of channel `{name}`, whose messages go to all");
                fail_at(
                    loc,
                    message,
                    "say `Peers::all()` or `Peers::others()`, or leave `.to_all()` out of its `#[channel(..)]`",
                );
            }
            (true, None) => open.in_outbox(slot, loc),
            // What goes to all ranks stands where a message to this one would.
            (false, row) => open.number(row, slot, loc),
        };
        let ends = RefCell::new(vec![0; open.hub().stores.len()]);
        Some(Posted { places: Places::of(open.hub(), number, loc), counter, ends })
    }

    /// Stores elements of a field to the outbox.
    pub fn store(&self, store: &Store, offset: Index, value: Raw, loc: Loc) {
        if let Some(outbox) = store.outbox {
            let end = attempt(loc, |t| {
                let len = t.ty(t.use_value(value.trace, value.id, loc)?).len.unwrap_or(1);
                Ok(match t.constant_of(offset.raw) {
                    Some(Const::U32(first)) => first.saturating_add(len).min(store.len),
                    _ => store.len,
                })
            });
            let ends = &mut self.ends.borrow_mut()[store.field];
            *ends = end.max(*ends);
            outbox.store(self.places.at(store, offset, loc), value, None, loc);
        }
    }

    /// Puts the message: of each field the elements up to the last that is stored.
    pub fn put(&self, hub: &Hub, peers: Peers, inbox: &Places, loc: Loc) {
        let Some(counts) = hub.far else { return };
        let counted = hub.declared.shape.publish == Publish::Each;
        let zero = Index::whole(host(0u32, loc).to_raw());
        for store in &hub.stores {
            let Some(outbox) = store.outbox else { continue };
            let (from, index) = (self.places.at(store, zero, loc), inbox.at(store, zero, loc));
            let counter = Index::whole(self.counter.to_raw());
            let (peers, rail) = (peers.on_rail(hub, loc), hub.declared.shape.rail.is_some());
            attempt(loc, |t| {
                let (peer, others) = peers.far(t, loc)?;
                // Where nothing is stored, the checker says so.
                let len = Some(self.ends.borrow()[store.field]).filter(|end| *end > 0).unwrap_or(store.len);
                let from = outbox.at(t, from, len.into(), loc)?;
                let index = store.buf.at(t, index, len.into(), loc)?;
                let counter = counts.at(t, counter, 1, loc)?;
                let (outbox, inbox, counts) = (part(&outbox), part(&store.buf), part(&counts));
                t.push(
                    CommOp::FarPut(FarPut {
                        peer,
                        outbox,
                        from,
                        inbox,
                        index,
                        len,
                        counts,
                        counter,
                        counted,
                        reach: FarReach { rail, others },
                    }),
                    loc,
                );
                Ok(())
            });
        }
    }
}

fn part(buf: &Buf) -> crate::ir::ParamId {
    param_of(buf).expect("parts of channels are parameters")
}

/// Adds to a counter of ranks behind what the group put.
fn publish(counts: &Buf, (peers, rail): (Peers, bool), counter: Index, adds: Raw, loc: Loc) {
    require_role(loc, "a publish");
    attempt(loc, |t| {
        let (peer, others) = peers.far(t, loc)?;
        let counter = counts.at(t, counter, 1, loc)?;
        let adds = t.use_value(adds.trace, adds.id, loc)?;
        let (counts, reach) = (part(counts), FarReach { rail, others });
        t.push(CommOp::FarPublish(FarPublish { peer, counts, counter, adds, reach }), loc);
        Ok(())
    });
}

/// Counters that are awaited: the first, that of rank `from`, and how many there are.
struct Awaited {
    counter: Index,
    from: Raw,
    count: u32,
    reach: FarReach,
}

/// Takes `value` from each of some counters.
fn wait(counts: &Buf, Awaited { counter, from, count, reach }: Awaited, value: Raw, loc: Loc) -> Arrived {
    require_role(loc, "a wait");
    let number = host(count, loc).to_raw();
    attempt(loc, |t| {
        let (step, _) = reach.of(&t.builder.kernel);
        let counter = counts.at(t, counter, u64::from(count.saturating_sub(1) * step) + 1, loc)?;
        let [count, from, value] = [number, from, value].map(|raw| t.use_value(raw.trace, raw.id, loc));
        let (count, from, value) = (count?, from?, value?);
        arrive(counts, t, loc, |receipt, counts| {
            OpKind::Comm(CommOp::FarWait(FarWait { receipt, counts, counter, count, from, value, reach }))
        })
    })
}

impl<'a, T: Payload> OpenChannel<'a, T> {
    /// The counter of this rank's puts, in this launch's bank.
    fn far_counter(&self, loc: Loc) -> Val<u32> {
        self.counter_of(rank_at(loc), loc)
    }

    /// The counter of a rank's puts, in this launch's bank, by the lane.
    fn counter_of(&self, rank: Val<u32>, loc: Loc) -> Val<u32> {
        let ranks = self.hub().declared.shape.far_ranks() as u32;
        let in_lane = match self.lane {
            None => rank,
            Some(lane) => plus(times(lane, ranks, loc), rank, loc),
        };
        self.in_flags(in_lane, loc)
    }

    /// The far channel's counters.
    ///
    /// # Errors
    /// Ends the trace of a near channel.
    fn far_counts(&self, what: &str, help: &str, loc: Loc) -> Buf {
        let hub = self.hub();
        hub.far.unwrap_or_else(|| {
            fail_at(loc, format!("{what} of channel `{}`, which is near", hub.declared.name), help)
        })
    }

    /// Puts of so many messages: one for each field.
    fn puts(&self, messages: Val<u32>, loc: Loc) -> Val<u32> {
        times(messages, self.hub().stores.len() as u32, loc)
    }

    /// Ends a batch on a far channel with [`Publish::Batch`]. It counts `messages` messages at the ranks, behind the puts that this group
    /// made to each of them since its last publish in this launch.
    ///
    /// # Orders
    /// This group's messages come before what a receiver does that has waited for all of them, and so does what the group did before the last
    /// of them. Messages of other groups, and those put afterwards, do not.
    ///
    /// # Errors
    /// Ends the trace of a near channel, of one whose puts count themselves, outside a role, and for a mask of ranks.
    #[track_caller]
    pub fn publish(&self, peers: Peers, messages: impl IntoVal<u32>) {
        let (loc, messages) = (Loc::caller(), messages.val());
        let counts =
            self.far_counts("a publish", "leave it out: each message of a near channel is signalled", loc);
        let (channel, declared) = (self.hub().channel, &self.hub().declared);
        if declared.shape.publish == Publish::Each {
            let message = format!("a publish of channel `{}`, whose puts count themselves", declared.name);
            fail_at(loc, message, "leave it out; or say `.publish(Publish::Batch)` in its `#[channel(..)]`");
        }
        let adds = self.puts(messages, loc).to_raw();
        let rail = self.hub().declared.shape.rail.is_some();
        let peers = (peers.on_rail(self.hub(), loc), rail);
        publish(&counts, peers, Index::whole(self.far_counter(loc).to_raw()), adds, loc);
        attempt(loc, |t| {
            t.channels[channel].published = true;
            Ok(())
        });
    }

    /// Waits for local completion: the card has read the far messages that this group has put, and those of other groups and launches
    /// whose puts come before. Their outbox may be stored to again. They need not have arrived.
    ///
    /// # Orders
    /// The reading of the messages comes before what this group does next.
    ///
    /// # Errors
    /// Ends the trace of a near channel, and outside a role.
    #[track_caller]
    pub fn settle(&self) {
        let loc = Loc::caller();
        self.far_counts("a settling", "leave it out: a near channel has no outbox", loc);
        require_role(loc, "a settling");
        let hub = self.hub();
        for outbox in hub.stores.iter().filter_map(|store| store.outbox) {
            attempt(loc, |t| {
                outbox.check(t, loc)?;
                t.push(CommOp::FarSettle(FarSettle { outbox: part(&outbox) }), loc);
                t.channels[hub.channel].settled = true;
                Ok(())
            });
        }
    }

    /// Waits until a sender's far messages of this launch have arrived.
    pub(super) fn wait_far(self, sender: Val<u32>, messages: Val<u32>, loc: Loc) -> InboundFar<'a, T> {
        let counts = self.far_counts(
            "a wait for a number of messages",
            "take each from its slot: `channel.from(rank).slot(slot)`",
            loc,
        );
        let rank = rail_rank(sender, self.hub().declared.shape.rail, loc);
        let counter = Index::whole(self.counter_of(rank, loc).to_raw());
        let value = self.puts(messages, loc).to_raw();
        let awaited = Awaited { counter, from: rank.to_raw(), count: 1, reach: FarReach::default() };
        let arrived = wait(&counts, awaited, value, loc);
        InboundFar { open: self, sender, arrived }
    }

    /// Waits until the `messages` messages that each other rank puts in this launch have arrived, of a far channel. One group waits for
    /// a sender.
    ///
    /// # Orders
    /// As [`Inbound::wait`](super::Inbound::wait), for all other ranks of the channel.
    ///
    /// # Errors
    /// Ends the trace of a near channel, and outside a role.
    #[track_caller]
    pub fn wait_others(&self, messages: impl IntoVal<u32>) -> InboundOthers<'a, T> {
        let (loc, messages) = (Loc::caller(), messages.val());
        let counts = self.far_counts(
            "a wait for messages of all other ranks",
            "take each from its slot: `channel.from(rank).slot(slot)`",
            loc,
        );
        let shape = &self.hub().declared.shape;
        let first = rail_rank(host(0, loc), shape.rail, loc);
        let counter = Index::whole(self.counter_of(first, loc).to_raw());
        let reach = FarReach { rail: shape.rail.is_some(), others: true };
        let awaited = Awaited { counter, from: first.to_raw(), count: shape.ranks, reach };
        let arrived = wait(&counts, awaited, self.puts(messages, loc).to_raw(), loc);
        InboundOthers { open: *self, arrived }
    }

    /// Fails for a far channel.
    pub(super) fn require_near(&self, what: &str, loc: Loc) {
        let declared = &self.hub().declared;
        if declared.shape.transport == Transport::Far {
            let message = format!("{what} of channel `{}`, which is far", declared.name);
            let help = "wait for all that a rank puts in the launch, then read: `channel.from(rank).wait(n)`, and `.slot(slot)` of that";
            fail_at(loc, message, help);
        }
    }
}

impl<'a, T: Payload> InboundFar<'a, T> {
    /// The message in a slot of the sender's.
    ///
    /// # Errors
    /// Ends the trace for a slot that is not there.
    #[track_caller]
    pub fn slot(&self, slot: impl IntoVal<u32>) -> Incoming<'a, T> {
        let loc = Loc::caller();
        let number = self.open.number(Some(self.sender), slot.val(), loc);
        let places = Places::of(self.open.hub(), number, loc);
        let reading = Reading::new(self.open, Some(self.arrived), loc);
        Incoming::new(reading, self.sender, places)
    }
}

impl<'a, T: Payload> InboundOthers<'a, T> {
    /// The message in a slot of one of the other ranks.
    ///
    /// # Errors
    /// Ends the trace for a slot that is not there.
    #[track_caller]
    pub fn slot(&self, sender: impl IntoVal<u32>, slot: impl IntoVal<u32>) -> Incoming<'a, T> {
        let InboundOthers { open, arrived } = *self;
        InboundFar { open, sender: sender.val(), arrived }.slot(slot)
    }
}

/// The credits of a far channel: a counter for each rank.
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) struct FarCredits {
    pub ready: Buf,
    pub ranks: u32,
    /// Ranks of a node, of a rail.
    pub rail: Option<u32>,
}

impl FarCredits {
    /// Tells every rank that this one has begun the launch, and waits until every rank has.
    pub fn exchange(&self, loc: Loc) {
        let one = host(1u32, loc).to_raw();
        let reach = FarReach { rail: self.rail.is_some(), others: false };
        publish(&self.ready, (Peers::all_at(loc), reach.rail), Index::whole(rank_at(loc).to_raw()), one, loc);
        let from = rail_rank(host(0, loc), self.rail, loc).to_raw();
        let _ranks = wait(
            &self.ready,
            Awaited { counter: Index::whole(from), from, count: self.ranks, reach },
            one,
            loc,
        );
    }
}

/// The rank that a number of a channel's ranks stands for: of a rail, this rank's on that node.
fn rail_rank(number: Val<u32>, rail: Option<u32>, loc: Loc) -> Val<u32> {
    match rail {
        None | Some(1) => number,
        Some(local) => plus(times(number, local, loc), local_rank_at(loc), loc),
    }
}

impl Peers {
    /// The rank that a rail's node stands for.
    fn on_rail(self, hub: &Hub, loc: Loc) -> Peers {
        match hub.declared.shape.rail {
            Some(local) if self.is_one() => {
                Peers::one(rail_rank(Val::from_raw(self.raw()), Some(local), loc).to_raw())
            }
            Some(_) | None => self,
        }
    }

    /// The rank of a put, or none for all ranks.
    fn far_rank(self, channel: &str, loc: Loc) -> Option<Val<u32>> {
        let of_channel = |error: TraceError| TraceError {
            message: format!("{}, of channel `{channel}`", error.message),
            ..error
        };
        let rank = attempt(loc, |t| self.far(t, loc).map_err(of_channel));
        rank.0.map(|_| Val::from_raw(self.raw()))
    }
}
