//! What dispatch, combine and round trips allow alike.

use peerwarp_codegen::device::Device;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::print::MOST_NAMED_BARRIERS;

use super::deliver::Hook;
use super::layout::Layout;
use super::protocol::Protocol;
use crate::families::moe::{MoeShape, RowDtype};

/// Blocks that may wait for each other must all be resident: at most one for each SM of an H200, the smallest part of
/// the machines that the defaults are for.
pub(super) const MAX_BLOCKS: u32 = Device::measured().sms;

pub(super) use crate::families::MAX_SHARED_BYTES;

/// Whether rows can stand so, by expert in at most `max_rows` places unless that is 0.
pub(super) fn layout_of(layout: Layout, shape: &MoeShape, max_rows: u32, dedup: bool) -> Result<(), Illegal> {
    Illegal::unless(
        (layout.by_expert() && layout != Layout::ExpertStrided) || dedup,
        "layout",
        layout.name(),
        || "expert-major, where `dedup` is off: each entry then has a row of its own, stored by expert",
    )?;
    let without = layout.room(shape, 0);
    if max_rows > 0 {
        let illegal = |allowed: String| Err(Illegal::new("max_rows", max_rows, allowed));
        let most = layout.most_rows(shape);
        match layout.align() {
            _ if !layout.by_expert() => {
                return illegal("0 for rank-major rows, which have room for every token".to_owned());
            }
            _ if !dedup => {
                return illegal(
                    "0 where `dedup` is off: combine then waits for a row of every entry".to_owned(),
                );
            }
            Some(align) if !max_rows.is_multiple_of(align) => {
                return illegal(format!(
                    "a multiple of {align} for {}, as experts' first rows are",
                    layout.name()
                ));
            }
            _ if u64::from(max_rows) > most => {
                return illegal(format!("at most {most}: there are never more rows, so that 0 does as well"));
            }
            _ => {}
        }
    }
    // A row's number is a positive i32, also of one that has no place.
    let places = without.places.max(layout.room(shape, max_rows).places);
    Illegal::unless(places < 1 << 31, "layout", layout.name(), || {
        format!("one with fewer places than {places}: a rank numbers 2^31 rows")
    })
}

/// Whether rows of so many elements can be moved so, and looked into if there is a hook.
pub(super) fn rows_of(dtype: RowDtype, hidden: u32, hook: Hook, protocol: Protocol) -> Result<(), Illegal> {
    dtype.check(hidden).map_err(|(field, value, allowed)| Illegal::new(field, value, allowed))?;
    Illegal::unless(hook == Hook::None || dtype.dispatched().is_some(), "hook", hook.name(), || {
        format!("raw where rows are {dtype}, of which kernels move the bytes")
    })?;
    let legal = protocol != Protocol::Packets || dtype.survives_packets();
    Illegal::unless(legal, "protocol", protocol.name(), || {
        format!(
            "flags or bulk for {dtype}: a packet that ends in all ones stands for one that has not arrived"
        )
    })
}

pub(super) fn topk_of(topk: u32, experts: u32) -> Result<(), Illegal> {
    Illegal::unless(topk <= experts, "topk", topk, || format!("at most the number of experts, {experts}"))
}

/// Whether a table can place experts in so many slots of a rank, in as many of all ranks' at once: a record has the number of a slot in
/// half a word.
pub(super) fn slots_of(expert_slots: u32, replicas: u32, ranks: u32) -> Result<(), Illegal> {
    let most = MoeShape::MOST_EXPERTS / ranks;
    Illegal::unless(expert_slots <= most, "expert_slots", expert_slots, || {
        format!("at most {most}: {ranks} ranks have {} slots together at most", MoeShape::MOST_EXPERTS)
    })?;
    Illegal::unless(expert_slots > 0 || replicas == 1, "replicas", replicas, || {
        "1 without `expert_slots`: where no table places experts, each is in one place".to_owned()
    })
}

/// Groups number the parts of all ranks' rows in 32 bits; with one bit to spare, no number wraps.
pub(super) fn numbers_of(tokens: u32, slots: u32, ranks: u32, parts: u32) -> Result<(), Illegal> {
    let each = u64::from(slots) * u64::from(ranks) * u64::from(parts);
    let most = (1u64 << 31) / each;
    Illegal::unless(u64::from(tokens) <= most, "tokens", tokens, || {
        format!(
            "at most {most}: each is {slots} rows of {parts} parts on each of {ranks} ranks, and a launch numbers 2^31"
        )
    })
}

pub(super) fn groups_of(group_warps: u32, warps: u32) -> Result<(), Illegal> {
    Illegal::unless(group_warps <= warps, "group_warps", group_warps, || {
        format!("at most `warps`, {warps}")
    })?;
    Illegal::unless(group_warps == with_barriers(group_warps, warps), "group_warps", group_warps, || {
        format!(
            "1 or at least {}: a block has named barriers for {MOST_NAMED_BARRIERS} groups of several warps",
            with_barriers(group_warps, warps)
        )
    })
}

/// The fewest warps a group, but no fewer than so many, of which a block of `warps` has barriers for all groups.
pub(super) fn with_barriers(group_warps: u32, warps: u32) -> u32 {
    let meets = |group: &u32| *group == 1 || warps / group <= MOST_NAMED_BARRIERS;
    (0..).map(|doubled| group_warps << doubled).find(meets).expect("one group needs one barrier")
}

/// Of 32 warps a thread has 64 registers: enough where rows are passed on as they are, without polling for them.
pub(super) fn warps_of(warps: u32, passes_on: bool) -> Result<(), Illegal> {
    let why =
        "at most 16, unless rows by token go with flags and without a hook: a thread would have 64 registers";
    Illegal::unless(warps <= 16 || passes_on, "warps", warps, || why.to_owned())
}

/// Makes the largest of these the power of two before it; false if there is none.
pub(super) fn fewer<const N: usize>(counts: [&mut u32; N]) -> bool {
    match counts.into_iter().max_by_key(|count| **count) {
        Some(largest) if *largest > 1 => {
            *largest = 1 << (*largest - 1).ilog2();
            true
        }
        _ => false,
    }
}

pub(super) fn resident(field: &str, value: u32, blocks: u32, together: u32) -> Result<(), Illegal> {
    Illegal::unless(blocks <= together, field, value, || {
        let most = (value + together).saturating_sub(blocks);
        format!("at most {most}: blocks that wait for each other are resident together, {together} of them")
    })
}
