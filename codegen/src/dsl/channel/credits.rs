//! Credits: what says that a rank is done with the launches before.

use super::shape::ChannelShape;
use super::{OpenChannel, Payload};
use crate::dsl::args::Binder;
use crate::dsl::group::{rank_at, role_at};
use crate::dsl::index::Index;
use crate::dsl::mem::{Epoch, Flags};
use crate::dsl::protocol::Peers;
use crate::dsl::trace::attempt;
use crate::dsl::val::{FromRaw, Val, binary, host};
use crate::ir::{BinaryOp, Loc};

use super::open::{plus, times};

/// Flags by which ranks tell each other that they have begun a launch, `[parity][rank]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::dsl) struct Credits {
    ready: Flags,
    ranks: u32,
}

impl Credits {
    pub fn bind(binder: &mut Binder, shape: &ChannelShape) -> Credits {
        Credits { ready: binder.next(), ranks: shape.ranks }
    }

    /// Tells every rank that this one has begun the launch: what it did in earlier ones is over.
    fn notify(&self, epoch: Epoch, loc: Loc) {
        let place = plus(self.first(epoch, loc), rank_at(loc), loc);
        self.ready.signal_at(Peers::all_at(loc), Index::whole(place.to_raw()), epoch, loc);
    }

    /// Waits until every rank has begun the launch: what is sent after it comes after what they did before.
    fn wait(&self, epoch: Epoch, loc: Loc) {
        let (first, ranks) = (self.first(epoch, loc), host(self.ranks, loc));
        let _everybody =
            self.ready.wait_for(Index::whole(first.to_raw()), ranks.to_raw(), None, 1, epoch, loc);
    }

    fn first(&self, epoch: Epoch, loc: Loc) -> Val<u32> {
        let parity = binary(BinaryOp::And, epoch.value.to_raw(), host(1u32, loc).to_raw(), loc);
        times(parity, self.ranks, loc)
    }
}

impl<T: Payload> OpenChannel<'_, T> {
    /// A role of one block that gives and awaits the channel's credits, where it has some; beside the other roles. It tells every
    /// rank that this one has begun the launch, so that it is done with what earlier ones brought, and waits until every rank has: so
    /// sends of the next launch come after that. Nobody else waits for it, and the fence delays nobody.
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
            credits.notify(epoch, loc);
            credits.wait(epoch, loc);
        });
    }
}
