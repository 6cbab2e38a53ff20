//! Stores rows where they belong.

use peerwarp_codegen::dsl::prelude::*;

use super::config::Dispatch;
use super::device::at;
use super::dispatch::DispatchArgs;
use super::hook::{Hook, RowHook};
use super::layout::Places;
use super::scales::Words;
use super::wire::Arriving;

/// Stores a part of a slot's row where it belongs, as it is or as the hook makes it.
#[kernel]
pub(super) fn deliver(
    c: &Dispatch,
    a: &DispatchArgs,
    places: &Places,
    (row, part): (&dyn Arriving, Val<u32>),
    scales: Option<Shared<f32>>,
    hook: RowHook<'_>,
) {
    let rows = a.rows.expect("what is moved has somewhere to go");
    if c.hook == Hook::None {
        move_row(c, a, &rows, places, (row, part));
    } else {
        c.pieces().each(part, |start, len| {
            let y = hooked(c, row, scales, hook, start, len);
            places.each(|row| rows.store_f32(at(row, c.row()) + start.to_u64(), y));
        });
    }
}

/// Stores a part of a row as it is, and its scales.
#[kernel]
fn move_row(
    c: &Dispatch,
    a: &DispatchArgs,
    rows: &AnyPtr,
    places: &Places,
    (row, part): (&dyn Arriving, Val<u32>),
) {
    let scaling = a.row_scale.map(|to| (c.scaling(), to));
    let store = |to: &AnyPtr, words: Words| {
        if let Some(scales) = row.scales(words) {
            places.each(|row| words.store(c, to, row, scales));
        }
    };
    c.pieces().each(part, |start, len| {
        let x = row.piece(start, len);
        places.each(|row| rows.store(at(row, c.row()) + start.to_u64(), x));
        if let Some((scaling, to)) = &scaling {
            scaling.with_piece(start, len, &|words| store(to, words));
        }
    });
    if let Some((scaling, to)) = &scaling {
        scaling.with_row(part, &|words| store(to, words));
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
    row: &dyn Arriving,
    scales: Option<Shared<f32>>,
    hook: RowHook<'_>,
    start: Val<u32>,
    len: u32,
) -> Tile<f32> {
    let x = row.piece(start, len).to_f32();
    hook(match (scales, row.scales(Words::of_piece(c, start, len))) {
        (Some(scales), Some(arrived)) => {
            scales.store(0, arrived.to_f32());
            x * scales.gather(arange(len) / c.scaled(), true, 0.0)
        }
        _ => x,
    })
}
