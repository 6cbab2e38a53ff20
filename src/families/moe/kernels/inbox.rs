//! The channel that rows of dispatch take to the ranks of their experts.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::at;
use super::dispatch::TokenArgs;
use super::send::scales_to_send;

/// A row on its way.
#[derive(Message)]
#[message(config = Dispatch)]
pub struct Row {
    /// Rows as they arrive, `[source][slot][row]`, as packets in two banks. Out, where rows arrive in their places.
    #[len(|c| c.row())]
    #[dtype(|c| c.moved())]
    pub row: AnyField,
    /// Scales as they arrive, `[source][slot][scale]`: as packets in two banks, each row's ending in zeros that fill a packet.
    #[len(|c| c.sent_scales())]
    #[dtype(|c| c.scale())]
    pub scales: Option<AnyField>,
}

/// What rows of dispatch arrive in.
#[derive(KernelArgs)]
#[args(config = Dispatch)]
pub struct InboxArgs {
    /// Rows on their way to the ranks of their experts: a slot's.
    #[channel(|c| c.arrivals())]
    pub rows: Channel<Row>,
}

/// Puts a piece of a row.
pub(super) fn put_row(rows: &OpenChannel<'_, Row>, row: &Outgoing<'_, Row>, start: Val<u32>, x: AnyTile) {
    row.field(rows.row).put(start.to_u64(), x);
}

/// Puts scales of a row from word `first` on, where rows have some.
pub(super) fn put_scales(
    rows: &OpenChannel<'_, Row>,
    row: &Outgoing<'_, Row>,
    first: Val<u32>,
    scales: AnyTile,
) {
    if let Some(field) = rows.scales {
        row.field(field).put(first.to_u64(), scales);
    }
}

/// A part of a row at the rank that it goes to.
pub(super) struct Received<'a> {
    c: &'a Dispatch,
    origin: Origin<'a>,
    /// Which part of the row it is.
    pub part: Val<u32>,
}

/// Where a row is that has come.
enum Origin<'a> {
    /// In the inbox.
    Inbox(OpenChannel<'a, Row>, Incoming<'a, Row>),
    /// Where this rank's own tokens are: one of them.
    Given(&'a TokenArgs, Val<u32>),
}

impl<'a> Received<'a> {
    /// A part of the row of slot `slot` of rank `source`; waits for its flag, where it has one.
    pub fn wait(
        c: &'a Dispatch,
        a: &'a InboxArgs,
        source: Val<u32>,
        slot: Val<u32>,
        part: Val<u32>,
        epoch: Epoch,
    ) -> Self {
        let rows = a.rows.open(epoch);
        Received { c, origin: Origin::Inbox(rows, rows.from(source).slot(slot)), part }
    }

    /// A part of the row of a token of this rank's own, which stays where it is.
    pub fn given(c: &'a Dispatch, a: &'a TokenArgs, token: Val<u32>, part: Val<u32>) -> Self {
        Received { c, origin: Origin::Given(a, token), part }
    }

    /// A piece of the row.
    pub fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        match &self.origin {
            Origin::Inbox(rows, message) => message.field(rows.row).load(start.to_u64(), len),
            Origin::Given(a, token) => a.x.load(at(*token, self.c.row()) + start.to_u64(), len),
        }
    }

    /// `n` scales of the row from word `first` on, where rows have some, and after them what travels with them, up to `sent`.
    pub fn scales(&self, first: Val<u32>, n: u32, sent: u32) -> Option<AnyTile> {
        match &self.origin {
            Origin::Inbox(rows, message) => {
                rows.scales.map(|scales| message.field(scales).load(first.to_u64(), sent))
            }
            Origin::Given(a, token) => {
                a.x_scale.map(|scales| scales_to_send(self.c, &scales, *token, first, n, sent))
            }
        }
    }
}
