//! Credits: what says that a rank is done with the launches before.

use super::far::FarCredits;
use super::shape::{ChannelShape, Transport};
use super::{OpenChannel, Payload};
use crate::dsl::comm::{Peers, protocol::Until};
use crate::dsl::groups::group::{local_rank_at, role_at};
use crate::dsl::memory::buffer::Buf;
use crate::dsl::memory::{Epoch, Flags, Index, args::Binder};
use crate::dsl::trace::tracer::attempt;
use crate::dsl::values::{
    FromRaw,
    val::{binary, host},
};
use crate::ir::{BinaryOp, Loc};

/// What ranks tell each other by that they have begun a launch, `[rank]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) enum Credits {
    /// By flags.
    Near(NearCredits),
    /// By counters.
    Far(FarCredits),
}

/// Flags by which ranks tell each other that they have begun a launch, `[rank]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) struct NearCredits {
    ready: Flags,
    ranks: u32,
    /// How many launches ago ranks have to have begun: what they did in the one before that is over, and the next launch sends to its
    /// bank.
    lag: u32,
}

impl Credits {
    pub fn bind(binder: &mut Binder, shape: &ChannelShape) -> Credits {
        let ranks = shape.ranks;
        match shape.transport {
            Transport::Far => {
                let (ready, rail) = (Buf::param(binder.next_part()), shape.rail);
                Credits::Far(FarCredits { ready, ranks, rail })
            }
            Transport::Flags | Transport::Bulk | Transport::Packets | Transport::Ll => {
                Credits::Near(NearCredits { ready: binder.next(), ranks, lag: shape.lag() })
            }
        }
    }

    fn exchange(&self, epoch: Epoch, loc: Loc) {
        match self {
            Credits::Near(near) => {
                near.notify(epoch, loc);
                near.wait(epoch, loc);
            }
            Credits::Far(far) => far.exchange(loc),
        }
    }
}

impl NearCredits {
    /// Tells every rank that this one has begun the launch: what it did in earlier ones is over.
    fn notify(&self, epoch: Epoch, loc: Loc) {
        self.ready.signal_at(Peers::all_at(loc), Index::whole(local_rank_at(loc).to_raw()), epoch, loc);
    }

    /// Waits until every rank has begun the launch, or with three banks the one before: what the next launch sends comes after what
    /// they did before that. In the first launch there is nothing to wait for. Where epochs wrap around it waits for this launch.
    fn wait(&self, epoch: Epoch, loc: Loc) {
        let value = match self.lag {
            0 => epoch.value,
            lag => binary(BinaryOp::Sub, epoch.value.to_raw(), host(lag, loc).to_raw(), loc),
        };
        let (first, ranks) = (Index::whole(host(0u32, loc).to_raw()), host(self.ranks, loc).to_raw());
        let _all_ranks = self.ready.wait_for(first, ranks, None, 1, Until::OrLater(Epoch { value }), loc);
    }
}

impl<T: Payload> OpenChannel<'_, T> {
    /// A role of one block that gives and awaits the channel's credits, where it has some; beside the other roles. It tells every
    /// rank that this one has begun the launch, and waits until every rank has. No other block waits for it. With three banks it waits
    /// until every rank has begun the launch before, which takes no time unless a rank is late.
    ///
    /// # Orders
    /// What every rank received in earlier launches comes before what this rank sends in the next one.
    #[track_caller]
    pub fn credits(&self) {
        let loc = Loc::caller();
        let Some(credits) = self.hub().credits else { return };
        let (channel, epoch) = (self.hub().channel, self.epoch);
        let name = attempt(loc, |t| {
            t.channels[channel].credits = true;
            Ok(format!("{}_ready", t.channels[channel].declared.name))
        });
        role_at(&name, 1, loc, |_| {
            credits.exchange(epoch, loc);
        });
    }
}
