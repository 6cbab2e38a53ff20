//! Storing rows that have come where they belong.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::at;
use super::dispatch::DispatchArgs;
use super::hook::{Hook, RowHook};
use super::inbox::Received;
use super::layout::Places;

/// Stores a part of a slot's row where it belongs, as it is or as the hook makes it.
#[kernel]
pub(super) fn deliver(
    c: &Dispatch,
    a: &DispatchArgs,
    places: &Places,
    received: &Received<'_>,
    scales: Option<Shared<f32>>,
    hook: RowHook<'_>,
) {
    let rows = a.rows.expect("what is moved has somewhere to go");
    if c.hook == Hook::None {
        move_row(c, a, &rows, places, received);
    } else {
        c.pieces().each(received.part, |start, len| {
            let y = hooked(c, received, scales, hook, start, len);
            places.each(|row| rows.store_f32(at(row, c.row()) + start.to_u64(), y));
        });
    }
}

/// Stores a part of a row as it is, and its scales.
#[kernel]
fn move_row(c: &Dispatch, a: &DispatchArgs, rows: &AnyPtr, places: &Places, received: &Received<'_>) {
    c.pieces().each(received.part, |start, len| {
        let x = received.piece(start, len);
        places.each(|row| rows.store(at(row, c.row()) + start.to_u64(), x));
        if c.scales_apart() {
            let (n, sent) = (c.scales_of(len), c.sent_scales_of(len));
            move_scales(c, a, places, received, start / c.scaled(), n, sent);
        }
    });
    if a.row_scale.is_some() && !c.scales_apart() {
        let (n, sent) = (c.scales(), c.sent_scales());
        c.pieces().once(received.part, || move_scales(c, a, places, received, 0u32.val(), n, sent));
    }
}

/// Stores `n` words of a row's scales from word `first` on, where rows have some, of which `sent` have travelled.
#[kernel]
fn move_scales(
    c: &Dispatch,
    a: &DispatchArgs,
    places: &Places,
    received: &Received<'_>,
    first: Val<u32>,
    n: u32,
    sent: u32,
) {
    if let (Some(row_scale), Some(scales)) = (a.row_scale, received.scales(first, n, sent)) {
        places.each(|row| {
            let to = at(row, c.scales()) + first.to_u64();
            if sent == n {
                row_scale.store(to, scales);
            } else {
                row_scale.store_where(to, scales, arange(sent) < n);
            }
        });
    }
}

/// Room for the scales of a piece that a hook looks into, where rows have some: each lane needs those of its elements.
pub(super) fn scales_at_hand(c: &Dispatch) -> Option<Shared<f32>> {
    (c.scales_at_hand() > 0).then(|| shared::<f32>("scales", c.scales_at_hand()))
}

/// What the hook makes of a piece of a row.
#[kernel]
pub(super) fn hooked(
    c: &Dispatch,
    received: &Received<'_>,
    scales: Option<Shared<f32>>,
    hook: RowHook<'_>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let x = received.piece(start, len).to_f32();
    let (n, sent) = (c.scales_of(len), c.sent_scales_of(len));
    hook(match (scales, received.scales(start / c.scaled(), n, sent)) {
        (Some(scales), Some(arrived)) => {
            scales.store(0, arrived.to_f32());
            x * scales.gather(arange(len) / c.scaled(), true, 0.0)
        }
        _ => x,
    })
}
