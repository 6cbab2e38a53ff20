//! Where what peers send arrives, whichever way it travels.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

/// How tiles travel.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Packets of 16 bytes, each of which is there after one trip.
    Packets,
    /// Stores, then a flag of the block that is released after them: three trips until all of it is there.
    Flags,
}

/// What one kernel exchanges: it decides what memory that takes.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// World size.
    pub ranks: u32,
    /// Type of the elements that travel.
    pub dtype: Dtype,
    /// How they travel.
    pub protocol: Protocol,
    /// Elements that arrive at a rank in a launch.
    pub elements: u64,
    /// Flags that say so.
    pub flags: u32,
    /// Whether every rank waits for every other one in each launch, whatever else it does.
    pub all_wait: bool,
}

impl Wire {
    /// A row of every rank, in one exchange of `blocks` blocks, in which everybody waits for everybody.
    pub(super) fn rows(ranks: u32, dtype: Dtype, protocol: Protocol, row: u32, blocks: u32) -> Wire {
        let elements = u64::from(ranks) * u64::from(row);
        Wire { ranks, dtype, protocol, elements, flags: ranks * blocks, all_wait: true }
    }

    fn only(&self, protocol: Protocol, count: u64) -> u64 {
        if self.protocol == protocol { count } else { 0 }
    }

    /// Flags by which a rank says that it has begun. Packets order nothing, and a rank that receives nothing waits for nobody.
    fn ready(&self) -> u64 {
        let needed = self.protocol == Protocol::Packets || !self.all_wait;
        if needed { 2 * u64::from(self.ranks) } else { 0 }
    }
}

/// Memory that peers write to.
#[derive(KernelArgs)]
#[args(config = Wire)]
pub struct InboxArgs {
    /// What arrives as packets, `[parity][element]`.
    #[len(|w| w.only(Protocol::Packets, 2 * w.elements))]
    #[dtype(|w| w.dtype)]
    pub packets: Option<AnyPackets>,
    /// What arrives with flags, `[parity][element]`.
    #[len(|w| w.only(Protocol::Flags, 2 * w.elements))]
    #[dtype(|w| w.dtype)]
    pub inbox: Option<AnySym>,
    /// All that a block sends has arrived, `[parity][exchange][block][source]`.
    #[len(|w| w.only(Protocol::Flags, 2 * u64::from(w.flags)))]
    pub arrived: Option<Flags>,
    /// A rank has begun this launch, so that it has taken all that came in earlier ones, `[parity][source]`.
    #[len(|w| w.ready())]
    pub ready: Option<Flags>,
}

/// The half of the inbox that this launch uses. A rank may be one launch ahead of another one, which must find what it still reads
/// or waits for as it was; it cannot be two ahead. So two halves in turn are enough.
#[derive(Clone, Copy)]
pub(super) struct Inbox<'a> {
    a: &'a InboxArgs,
    ranks: u32,
    bank: Val<u32>,
    flags: Val<u32>,
    epoch: Epoch,
}

impl<'a> Inbox<'a> {
    /// Before the roles.
    pub fn new(w: Wire, a: &'a InboxArgs, epoch: Epoch) -> Self {
        let elements =
            u32::try_from(w.elements).expect("legal configurations have an inbox that 32 bits index");
        let (bank, flags) = (epoch.parity() * elements, epoch.parity() * w.flags);
        Inbox { a, ranks: w.ranks, bank, flags, epoch }
    }

    /// Begins to send to some ranks.
    pub fn send_to(&self, to: Peers) -> Sending<'a> {
        Sending { inbox: *self, to, parcel: self.a.arrived.map(|_| send_to(to)) }
    }

    /// Waits until all has come that the ranks of `only` send under the flags from `flag` on, one for each rank. What travels as
    /// packets is waited for where it is taken.
    pub fn wait(&self, flag: Val<u32>, only: Val<u64>) -> Receipt<'a> {
        let wait = |flags: Flags| flags.wait_some(self.flags + flag, self.ranks, only, 1, self.epoch);
        Receipt { inbox: *self, arrived: self.a.arrived.map(wait) }
    }

    /// The role by which ranks stay within one launch of each other, and by which what a launch takes comes before what the next
    /// but one sends. Nothing else waits for it.
    pub fn ready(&self) {
        let Some(ready) = self.a.ready else { return };
        role("ready", 1, |_| {
            let _everybody = ready.meet(self.epoch);
        });
    }
}

/// Tiles on their way to some ranks.
pub(super) struct Sending<'a> {
    inbox: Inbox<'a>,
    to: Peers,
    parcel: Option<Parcel>,
}

impl Sending<'_> {
    /// Sends a tile to the elements from `place` on.
    pub fn tile(&mut self, place: Val<u32>, tile: AnyTile) {
        let place = self.inbox.bank + place;
        match (self.inbox.a.packets, self.inbox.a.inbox, &mut self.parcel) {
            (Some(packets), _, _) => packets.send(self.to, place, tile),
            (_, Some(inbox), Some(parcel)) => parcel.put_any(&inbox, place, tile),
            _ => unreachable!("tiles travel as packets or with flags"),
        }
    }

    /// Says that all is sent, where that has to be said.
    pub fn signal(self, flag: Val<u32>) {
        if let (Some(parcel), Some(arrived)) = (self.parcel, self.inbox.a.arrived) {
            parcel.signal(&arrived, self.inbox.flags + flag, self.inbox.epoch);
        }
    }
}

/// What has come, or comes as packets.
pub(super) struct Receipt<'a> {
    inbox: Inbox<'a>,
    arrived: Option<Arrived>,
}

impl Receipt<'_> {
    /// The tile that rank `from` sent to the elements from `place` on.
    pub fn take(&self, place: Val<u32>, len: u32, from: Val<u32>) -> AnyTile {
        let place = self.inbox.bank + place;
        match (self.inbox.a.packets, self.inbox.a.inbox, &self.arrived) {
            (Some(packets), _, _) => packets.take(place, len, from),
            (_, Some(inbox), Some(arrived)) => inbox.load(arrived, place, len),
            _ => unreachable!("tiles travel as packets or with flags"),
        }
    }

    /// As [`Receipt::take`] for several tiles at once, given by their places and who sent them; this rank's own is zeros.
    pub fn take_others(&self, tiles: Vec<(Val<u32>, Val<u32>)>, len: u32) -> Vec<AnyTile> {
        let bank = self.inbox.bank;
        match (self.inbox.a.packets, self.inbox.a.inbox, &self.arrived) {
            (Some(packets), _, _) => {
                let first = tiles[0].1;
                let mask = !bit(rank()) >> first.to_u64() & (u64::MAX >> (64 - tiles.len()));
                packets.take_each(tiles.into_iter().map(|(place, from)| (bank + place, from)), len, mask)
            }
            (_, Some(inbox), Some(arrived)) => tiles
                .into_iter()
                .map(|(place, from)| inbox.load_if(arrived, bank + place, len, from.ne_to(rank())))
                .collect(),
            _ => unreachable!("tiles travel as packets or with flags"),
        }
    }
}
