//! What both kernels compute on the device.

use peerwarp_codegen::dsl::prelude::*;

use crate::families::moe::ExpertMap;

/// The rank that owns an expert.
#[kernel]
pub(super) fn owner(map: ExpertMap, expert: Val<u32>) -> Val<u32> {
    let (few, larger) = (map.at_least(), map.larger_ranks());
    let in_larger = larger * (few + 1);
    if larger == 0 {
        expert / few
    } else if few == 0 {
        expert
    } else {
        (expert < in_larger).select(expert / (few + 1), (expert - in_larger) / few + larger)
    }
}

/// The first expert of a rank.
pub(super) fn first_expert(map: ExpertMap, rank: Val<u32>) -> Val<u32> {
    let first = rank * map.at_least();
    if map.larger_ranks() == 0 { first } else { first + rank.min(map.larger_ranks()) }
}

/// How many experts a rank owns.
#[kernel]
pub(super) fn owned_experts(map: ExpertMap, rank: Val<u32>) -> Val<u32> {
    let (few, larger) = (map.at_least(), map.larger_ranks());
    if larger == 0 { few.val() } else { (rank < larger).select(few + 1, few) }
}

/// The numbers of experts among those of this rank, and which are this rank's.
#[kernel]
pub(super) fn local_experts(map: ExpertMap, expert: Tile<u32>) -> (Tile<u32>, Tile<bool>) {
    let (local, mine) = experts_of(map, rank(), expert);
    (local, mine)
}

/// The numbers of experts among those of a rank, and which are that rank's.
#[kernel]
pub(super) fn experts_of(map: ExpertMap, rank: Val<u32>, expert: Tile<u32>) -> (Tile<u32>, Tile<bool>) {
    // An expert below the rank's first one wraps to a large number.
    let local = expert - first_expert(map, rank);
    let owned = local < owned_experts(map, rank);
    (local, owned)
}

/// The expert that an id names. One that names none becomes too large, a negative one too.
pub(super) fn expert(id: Val<i32>) -> Val<u32> {
    id.cast::<u32>()
}

/// The ranks that own any of `count` entries from entry `first` on, a bit each.
#[kernel]
pub(super) fn owners(map: ExpertMap, ids: &Ptr<i32>, first: Val<u32>, count: u32) -> Val<u64> {
    let mut mask = var(0u64);
    for k in 0..count.val() {
        let id = ids.get(first + k);
        let expert = expert(id);
        if expert < map.experts {
            mask |= bit(owner(map, expert));
        }
    }
    mask.get()
}

/// First element of row `i` when rows have `row` elements; there may be more than 2^32 elements.
pub(super) fn at(i: Val<u32>, row: u32) -> Val<u64> {
    i.to_u64() * u64::from(row)
}
