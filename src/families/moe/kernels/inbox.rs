//! A slot of the inbox that rows of dispatch travel to, whichever way they travel.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::at;
use super::protocol::Protocol;

/// What rows of dispatch arrive in.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct InboxArgs {
    /// Rows as they arrive with flags, `[source][slot][row]`. Out, where rows arrive in their places.
    #[len(|c| c.inbox_rows(Protocol::Flags) * u64::from(c.row()))]
    #[dtype(|c| c.moved())]
    pub inbox: Option<AnySym>,
    /// Scales as they arrive with flags, `[source][slot][scale]`.
    #[len(|c| c.inbox_rows(Protocol::Flags) * u64::from(c.scales()))]
    pub inbox_scale: Option<Sym<f32>>,
    /// A row has arrived, `[source][slot]`.
    #[len(|c| c.inbox_rows(Protocol::Flags))]
    pub row_flag: Option<Flags>,
    /// Rows as packets, `[parity][source][slot][row]`.
    #[len(|c| c.inbox_rows(Protocol::Packets) * u64::from(c.row()))]
    #[dtype(|c| c.moved())]
    pub inbox_packets: Option<AnyPackets>,
    /// Scales as packets, `[parity][source][slot][scale]`, each row's ending in zeros that fill a packet.
    #[len(|c| c.inbox_rows(Protocol::Packets) * u64::from(c.sent_scales()))]
    pub scale_packets: Option<Packets<f32>>,
}

/// Where the row of a source's slot is on the ranks that it goes to.
#[derive(Clone, Copy)]
pub(super) struct Inbox<'a> {
    a: &'a InboxArgs,
    /// Its number among all rows of the inbox.
    pub row: Val<u32>,
    /// Its first element.
    first: Val<u64>,
    /// Its first scale.
    first_scale: Val<u64>,
    /// Elements of the row that have a scale together.
    scaled: u32,
    /// Says that it has arrived, where rows need that.
    pub flag: Option<Flags>,
}

impl<'a> Inbox<'a> {
    /// The place of slot `slot` of rank `source`.
    pub fn new(c: &Dispatch, a: &'a InboxArgs, source: Val<u32>, slot: Val<u32>, epoch: Epoch) -> Self {
        let row = source * c.slots() + slot;
        let row = if a.inbox_packets.is_some() { row + epoch.parity() * (c.ranks * c.slots()) } else { row };
        let (first, first_scale) = (at(row, c.row()), at(row, c.sent_scales()));
        Inbox { a, row, first, first_scale, scaled: c.scaled(), flag: a.row_flag }
    }

    /// Sends a piece of the row, in a parcel if there is one.
    pub fn send(&self, to: Peers, parcel: &mut Option<Parcel>, start: Val<u32>, x: AnyTile) {
        let first = self.first + start.to_u64();
        if let Some(packets) = self.a.inbox_packets {
            packets.send(to, first, x);
        }
        if let (Some(inbox), Some(parcel)) = (self.a.inbox, parcel) {
            parcel.put_any(&inbox, first, x);
        }
    }

    /// Copies the whole row in bulk, in a parcel.
    pub fn copy(&self, parcel: &mut Parcel, x: &AnyPtr, from: Val<u64>, len: u32) {
        let inbox = self.a.inbox.expect("rows that are copied come with flags");
        parcel.copy_any(&inbox, self.first, x, from, len);
    }

    /// Sends the scales of a piece of the row, in a parcel if there is one.
    pub fn send_scales(&self, to: Peers, parcel: &mut Option<Parcel>, start: Val<u32>, scales: Tile<f32>) {
        let first = self.first_scale(start);
        if let Some(packets) = self.a.scale_packets {
            packets.send(to, first, scales);
        }
        if let (Some(inbox), Some(parcel)) = (self.a.inbox_scale, parcel) {
            parcel.put(&inbox, first, scales);
        }
    }

    /// The first scale of a piece of the row.
    fn first_scale(&self, start: Val<u32>) -> Val<u64> {
        self.first_scale + (start / self.scaled).to_u64()
    }
}

/// A part of a row at the rank that it goes to.
pub(super) struct Received<'a> {
    /// Its place.
    pub inbox: Inbox<'a>,
    /// The rank that it comes from.
    pub source: Val<u32>,
    /// Which part of the row it is.
    pub part: Val<u32>,
    /// The receipt of the row's flag, where rows have one.
    arrived: Option<Arrived>,
}

impl<'a> Received<'a> {
    /// A part of the row of slot `slot` of rank `source`; waits for its flag, where it has one.
    pub fn wait(
        c: &Dispatch,
        a: &'a InboxArgs,
        source: Val<u32>,
        slot: Val<u32>,
        part: Val<u32>,
        epoch: Epoch,
    ) -> Self {
        let inbox = Inbox::new(c, a, source, slot, epoch);
        let arrived = inbox.flag.map(|flag| flag.from(source).wait(inbox.row, epoch));
        Received { inbox, source, part, arrived }
    }

    /// A piece of the row.
    pub fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        let first = self.inbox.first + start.to_u64();
        match (self.inbox.a.inbox, &self.arrived, self.inbox.a.inbox_packets) {
            (Some(inbox), Some(arrived), _) => inbox.load(arrived, first, len),
            (_, _, Some(packets)) => packets.take(first, len, self.source),
            _ => unreachable!("rows come with flags or as packets"),
        }
    }

    /// The scales of a piece of the row, as they travel.
    pub fn scales(&self, c: &Dispatch, start: Val<u32>, len: u32) -> Tile<f32> {
        let (first, len) = (self.inbox.first_scale(start), c.sent_scales_of(len));
        match (self.inbox.a.inbox_scale, &self.arrived, self.inbox.a.scale_packets) {
            (Some(scales), Some(arrived), _) => scales.load(arrived, first, len),
            (_, _, Some(scales)) => scales.take(first, len, self.source),
            _ => unreachable!("scales come as rows do"),
        }
    }
}
