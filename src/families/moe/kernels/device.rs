//! What both kernels compute on the device.

use peerwarp_codegen::dsl::prelude::*;

use super::ids::Ids;
use crate::families::moe::ExpertMap;

/// How ranks own experts.
pub(super) trait Owning {
    /// The rank that owns an expert.
    fn owner(&self, expert: Val<u32>) -> Val<u32>;

    /// The same of each of several.
    fn owner_of_each(&self, expert: Tile<u32>) -> Tile<u32>;

    /// The first expert of a rank.
    fn first(&self, rank: Val<u32>) -> Val<u32>;

    /// How many experts a rank owns.
    fn owned(&self, rank: Val<u32>) -> Val<u32>;
}

/// How ranks own experts.
pub(super) fn owning(map: ExpertMap) -> Box<dyn Owning> {
    match (map.at_least(), map.larger_ranks()) {
        (each, 0) => Box::new(Equal(each)),
        (few, larger) => Box::new(Larger { few, larger }),
    }
}

/// Each rank owns as many.
struct Equal(u32);

impl Owning for Equal {
    #[kernel]
    fn owner(&self, expert: Val<u32>) -> Val<u32> {
        expert / self.0
    }

    #[kernel]
    fn owner_of_each(&self, expert: Tile<u32>) -> Tile<u32> {
        expert / self.0
    }

    fn first(&self, rank: Val<u32>) -> Val<u32> {
        rank * self.0
    }

    #[kernel]
    fn owned(&self, _: Val<u32>) -> Val<u32> {
        self.0.val()
    }
}

/// The first ranks own one more than the others.
struct Larger {
    few: u32,
    larger: u32,
}

impl Owning for Larger {
    #[kernel]
    fn owner(&self, expert: Val<u32>) -> Val<u32> {
        let Larger { few, larger } = *self;
        let in_larger = larger * (few + 1);
        (expert < in_larger).select(expert / (few + 1), (expert - in_larger) / few.max(1) + larger)
    }

    #[kernel]
    fn owner_of_each(&self, expert: Tile<u32>) -> Tile<u32> {
        let Larger { few, larger } = *self;
        let in_larger = larger * (few + 1);
        (expert < in_larger).select(expert / (few + 1), (expert - in_larger) / few.max(1) + larger)
    }

    fn first(&self, rank: Val<u32>) -> Val<u32> {
        rank * self.few + rank.min(self.larger)
    }

    #[kernel]
    fn owned(&self, rank: Val<u32>) -> Val<u32> {
        (rank < self.larger).select(self.few + 1, self.few)
    }
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
    let owning = owning(map);
    let local = expert - owning.first(rank);
    let owned = local < owning.owned(rank);
    (local, owned)
}

/// The ranks that own any of `count` entries from entry `first` on, a bit each.
#[kernel]
pub(super) fn owners(map: ExpertMap, ids: &Ids<'_>, first: Val<u32>, count: u32, g: Group) -> Val<u64> {
    if count > 1 && g.reduces_at_once(map.ranks) {
        let expert = ids.of(first, count);
        let there = expert < map.experts;
        let owner = owning(map).owner_of_each(there.select(expert, 0));
        there.select(splat(1u32, count) << owner, 0).or_all().to_u64()
    } else if count == 1 {
        let expert = ids.of_one(first);
        let there = expert < map.experts;
        there.select(bit(owning(map).owner(there.select(expert, 0))), 0u64)
    } else {
        let mut mask = var(0u64);
        for k in 0..count.val() {
            let id = ids.get(first + k);
            let expert = ids.where_is(id, || first + k);
            if expert < map.experts {
                mask |= bit(owning(map).owner(expert));
            }
        }
        mask.get()
    }
}

/// How many of `count` entries from entry `first` on name experts of ranks that are not active, or that have no slot.
#[kernel]
pub(super) fn missing(map: ExpertMap, ids: &Ids<'_>, first: Val<u32>, count: u32) -> Val<u32> {
    let expert = ids.of(first, count);
    let there = expert < map.experts;
    let owner = owning(map).owner_of_each(there.select(expert, 0));
    let active = splat(active_ranks(), count) >> owner.cast::<u64>() & 1u64;
    let lost = there & (active == 0);
    let lost = ids.without_slot(expert).map_or(lost, |without| lost | without);
    lost.select(splat(1u32, count), 0).sum()
}

/// First element of row `i` when rows have `row` elements; there may be more than 2^32 elements.
pub(super) fn at(i: Val<u32>, row: u32) -> Val<u64> {
    i.to_u64() * u64::from(row)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerwarp_codegen::dsl::{TraceMeta, trace};
    use peerwarp_codegen::ir::{Kernel, verify};
    use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

    use super::*;

    const TOKENS: u32 = 24;

    /// Owners of each token's experts, for groups of so many warps.
    #[kernel]
    fn of_tokens(map: ExpertMap, topk: u32, warps: u32, ids: Ptr<i32>, masks: Ptr<u64>) {
        role("all", 2, |b| {
            b.split(warps, |g| {
                for token in g.strided(TOKENS) {
                    masks.set(token, owners(map, &Ids::numbers(ids), token * topk, topk, g));
                }
            });
        });
    }

    fn kernel(map: ExpertMap, topk: u32, warps: u32, warp_size: u32) -> Kernel {
        let kernel = trace(TraceMeta::new("owners", 2, warp_size, 4), |p| {
            let ids = p.arg("ids", (TOKENS * topk).into());
            of_tokens(map, topk, warps, ids, p.arg("masks", TOKENS.into()));
        });
        kernel.unwrap_or_else(|e| panic!("{map:?}, {topk}, {warps}: {e}"))
    }

    /// Experts' ids, and ones that mask an entry: of the first token all.
    fn id(map: ExpertMap, topk: u32, entry: u32) -> i32 {
        match entry % 13 {
            _ if entry < topk => [-1, map.experts as i32][entry as usize % 2],
            2 => -1,
            4 => map.experts as i32,
            7 => i32::MIN,
            9 => i32::MAX,
            _ => (entry * 7 % map.experts) as i32,
        }
    }

    fn check(map: ExpertMap, topk: u32, warps: u32, warp_size: u32) {
        let kernel = kernel(map, topk, warps, warp_size);
        let at_once = kernel.to_string().contains("reduce_or");
        let fits = warps * warp_size == 32 && topk > 1 && map.ranks <= 32;
        assert_eq!(at_once, fits, "{map:?}, {topk}, {warps} warps of {warp_size}");
        let kernel = Arc::new(Compiled::new(verify(kernel).unwrap()));
        let mut machine = Machine::new(2);
        machine.buffers_of(kernel.kernel()).unwrap();
        let ids: Vec<i32> = (0..TOKENS * topk).map(|entry| id(map, topk, entry)).collect();
        (0..2).for_each(|rank| machine.write(rank, "ids", 0, &ids).unwrap());
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let outcome = machine.run(&Options::default()).unwrap_or_else(|e| panic!("{map:?}, {topk}: {e}"));
        let bits =
            |ids: &[i32]| ids.iter().filter_map(|&id| map.owner(id)).fold(0u64, |m, owner| m | 1 << owner);
        let want: Vec<u64> = ids.chunks(topk as usize).map(bits).collect();
        assert_eq!(outcome.memory.read::<u64>(0, "masks").unwrap(), want, "{map:?}, {topk}, {warps} warps");
    }

    /// As many experts on each rank, more on some, none on some; and as many ranks as a word has bits, one more, and the most.
    #[test]
    fn owners_are_those_of_the_map() {
        for (experts, ranks) in [(8, 4), (10, 4), (2, 3), (70, 32), (70, 33), (256, 64)] {
            let map = ExpertMap { experts, ranks };
            for topk in [1, 6, 8, 40] {
                for warps in [1, 2] {
                    check(map, topk, warps, 32);
                }
                check(map, topk, 1, 64);
            }
        }
    }
}
