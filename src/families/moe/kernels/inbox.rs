//! The channel that rows of dispatch take to the ranks of their experts.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;

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
    rows: OpenChannel<'a, Row>,
    message: Incoming<'a, Row>,
    /// Which part of the row it is.
    pub part: Val<u32>,
}

impl<'a> Received<'a> {
    /// A part of the row of slot `slot` of rank `source`; waits for its flag, where it has one.
    pub fn wait(a: &'a InboxArgs, source: Val<u32>, slot: Val<u32>, part: Val<u32>, epoch: Epoch) -> Self {
        let rows = a.rows.open(epoch);
        Received { rows, message: rows.from(source).slot(slot), part }
    }

    /// A piece of the row.
    pub fn piece(&self, start: Val<u32>, len: u32) -> AnyTile {
        self.message.field(self.rows.row).load(start.to_u64(), len)
    }

    /// The scales of the row from word `first` on, so many as they travel, where rows have some.
    pub fn scales(&self, first: Val<u32>, sent: u32) -> Option<AnyTile> {
        self.rows.scales.map(|scales| self.message.field(scales).load(first.to_u64(), sent))
    }
}
