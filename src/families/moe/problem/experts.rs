//! Which rank owns which expert.

use std::ops::Range;

/// Experts spread over ranks: contiguous, balanced, the first `experts % ranks` ranks own one more than the others.
/// With fewer experts than ranks, the last ranks own none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertMap {
    /// All experts.
    pub experts: u32,
    /// World size.
    pub ranks: u32,
}

impl ExpertMap {
    /// The slots of ranks that have so many each, numbered as experts are; of 0, the experts themselves.
    #[must_use]
    pub fn with_slots(self, slots: u32) -> ExpertMap {
        let experts = if slots == 0 { self.experts } else { self.ranks * slots };
        ExpertMap { experts, ..self }
    }

    /// How many experts every rank owns at least.
    pub fn at_least(self) -> u32 {
        self.experts / self.ranks
    }

    /// How many ranks own one expert more than [`ExpertMap::at_least`]: the first ones.
    pub fn larger_ranks(self) -> u32 {
        self.experts % self.ranks
    }

    /// The most experts that any rank owns.
    pub fn at_most(self) -> u32 {
        self.experts.div_ceil(self.ranks)
    }

    /// The experts of a rank.
    pub fn owned(self, rank: u32) -> Range<u32> {
        let start = rank * self.at_least() + rank.min(self.larger_ranks());
        start..start + self.at_least() + u32::from(rank < self.larger_ranks())
    }

    /// The rank that owns an expert; `None` for an id that masks its entry (negative, or no expert's).
    pub fn owner(self, id: i32) -> Option<u32> {
        let id = u32::try_from(id).ok().filter(|&id| id < self.experts)?;
        (0..self.ranks).find(|&rank| self.owned(rank).contains(&id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_evenly_with_the_rest_in_front() {
        let map = ExpertMap { experts: 10, ranks: 4 };
        let owned: Vec<_> = (0..4).map(|r| map.owned(r)).collect();
        assert_eq!(owned, [0..3, 3..6, 6..8, 8..10]);
        assert_eq!((map.at_least(), map.larger_ranks(), map.at_most()), (2, 2, 3));
        assert_eq!((map.owner(2), map.owner(3), map.owner(9)), (Some(0), Some(1), Some(3)));
    }

    #[test]
    fn fewer_experts_than_ranks_leave_the_last_ranks_without() {
        let map = ExpertMap { experts: 2, ranks: 3 };
        assert_eq!((0..3).map(|r| map.owned(r).len()).collect::<Vec<_>>(), [1, 1, 0]);
        assert_eq!(map.owner(1), Some(1));
    }

    #[test]
    fn ids_of_no_expert_have_no_owner() {
        let map = ExpertMap { experts: 4, ranks: 2 };
        assert_eq!((map.owner(-1), map.owner(4), map.owner(i32::MIN)), (None, None, None));
    }

    #[test]
    fn every_expert_has_one_owner() {
        for ranks in 2..=9 {
            for experts in 1..40 {
                let map = ExpertMap { experts, ranks };
                let all: Vec<u32> = (0..ranks).flat_map(|r| map.owned(r)).collect();
                assert_eq!(all, (0..experts).collect::<Vec<_>>());
            }
        }
    }
}
