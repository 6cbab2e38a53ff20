//! Several capacities in one operation: what a call costs and takes follows the tokens that it is for, and not the most there can be.

use std::sync::Arc;

use crate::families::moe::{MoeAllToAll, MoeRank, MoeShape, MoeTuning};
use crate::runtime::image::Images;
use crate::runtime::{RuntimeError, World};

impl MoeAllToAll {
    /// Dispatch and combine for several capacities: variants of one shape in one layout, of which each takes more tokens than the one
    /// before. Each has memory of its own ([`MoeAllToAll::memory_bytes`]), so that calls of different capacities may follow each
    /// other in any order, and rows of one stay when another is called. In a world of several processes all construct it in the same
    /// order.
    ///
    /// Inboxes are not shared. A slot of one capacity is several sources' of another, and who stores to it has heard of its own rows
    /// only that they were read: the checker finds the race (`tests/moe/ladder.rs`). Slots at the largest capacity's places would
    /// be the same source's in all, but rank-major rows, which arrive where they belong, would no longer be `[source * tokens + token]`.
    /// All smaller capacities together take less than the largest where each is at least twice the one before: a seventh of it if
    /// each is eight times as large.
    ///
    /// # Errors
    /// As of [`MoeAllToAll::new`]; or there are no variants, they are of several shapes or layouts, or their tokens do not ascend.
    pub fn with_capacities(
        world: &Arc<World>,
        tunings: &[MoeTuning],
        images: &dyn Images,
    ) -> Result<MoeAllToAll, RuntimeError> {
        ascending(tunings)?;
        let steps = tunings.iter().map(|tuning| MoeAllToAll::step(world, tuning, images));
        Ok(MoeAllToAll { steps: steps.collect::<Result<_, _>>()?, world: Arc::clone(world) })
    }

    /// The capacities: the most tokens of a rank that each step takes, the smallest first.
    pub fn capacities(&self) -> Vec<u32> {
        self.steps.iter().filter_map(|step| most_tokens(step)).collect()
    }

    /// Bytes that each capacity has on each GPU, the smallest first. Callers' tensors are beside.
    pub fn memory_bytes(&self) -> Vec<u64> {
        self.steps.iter().filter_map(|step| step.first().map(MoeRank::memory_bytes)).collect()
    }

    /// The ranks of this process in the smallest capacity that takes `tokens` tokens of a rank. That is a number which all ranks know,
    /// such as the most tokens that any rank has, or the size of a batch that was padded: all ranks take the same capacity for a
    /// dispatch and its combine. Which one it is does not depend on anything else, so that it may be captured in a graph.
    ///
    /// # Errors
    /// No capacity takes so many.
    pub fn ranks_for(&mut self, tokens: u32) -> Result<&mut [MoeRank], RuntimeError> {
        let has_room = |step: &Vec<MoeRank>| most_tokens(step).is_some_and(|most| most >= tokens);
        match self.steps.iter().position(has_room) {
            Some(step) => Ok(&mut self.steps[step]),
            None => {
                let known: Vec<String> = self.capacities().iter().map(u32::to_string).collect();
                let allowed = format!("at most the largest capacity of {}", known.join(", "));
                Err(RuntimeError::invalid("tokens", tokens, allowed))
            }
        }
    }
}

/// The most tokens of a rank that a capacity takes; none where no rank is of this process.
fn most_tokens(step: &[MoeRank]) -> Option<u32> {
    step.first().map(|rank| rank.shape().tokens)
}

/// Whether variants differ in their tokens, in ascending order, and in nothing else that callers see.
fn ascending(tunings: &[MoeTuning]) -> Result<(), RuntimeError> {
    if tunings.is_empty() {
        return Err(RuntimeError::invalid("capacities", "none", "one or more"));
    }
    for pair in tunings.windows(2) {
        let [before, next] =
            [&pair[0], &pair[1]].map(|tuning| (tuning.key.shape, tuning.key.layout, tuning.key.combined));
        let (few, many) = (before.0.tokens, next.0.tokens);
        if many <= few {
            return Err(RuntimeError::invalid(
                "capacities",
                many,
                format!("more than {few}, the one before"),
            ));
        }
        if (MoeShape { tokens: few, ..next.0 }, next.1, next.2) != before {
            let allowed =
                format!("of the shape and layout of the one before, {:?} of {}", before.1, before.0);
            return Err(RuntimeError::invalid("capacities", format!("{:?} of {}", next.1, next.0), allowed));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::moe::RowDtype;
    use crate::families::moe::kernels::Layout;
    use crate::families::moe::op::Tokens;
    use crate::runtime::gpu::RawStream;
    use crate::runtime::mock::{Machine, Uncompiled, world};

    fn tuning(tokens: u32) -> MoeTuning {
        let shape = MoeShape { hidden: 64, experts: 8, topk: 2, tokens, ranks: 2, dtype: RowDtype::Bf16 };
        MoeTuning::defaults(&shape).unwrap()
    }

    fn ladder(world: &Arc<World>, tunings: &[MoeTuning]) -> Result<MoeAllToAll, RuntimeError> {
        MoeAllToAll::with_capacities(world, tunings, &Uncompiled)
    }

    #[test]
    fn a_call_takes_the_smallest_capacity_that_has_room() {
        let machine = Machine::default();
        let world = world(&machine);
        let mut op = ladder(&world, &[8, 64, 512].map(tuning)).unwrap();
        assert_eq!(op.capacities(), [8, 64, 512]);
        for (tokens, capacity) in [(0, 8), (8, 8), (9, 64), (64, 64), (65, 512), (512, 512)] {
            let ranks = op.ranks_for(tokens).unwrap();
            assert_eq!(ranks.iter().map(|rank| rank.shape().tokens).collect::<Vec<_>>(), [capacity; 2]);
        }
        let said = op.ranks_for(513).unwrap_err().to_string();
        assert_eq!(said, "tokens = 513: at most the largest capacity of 8, 64, 512");
        let bytes = op.memory_bytes();
        assert!(bytes[0] < bytes[1] && bytes[1] < bytes[2], "{bytes:?}");
        assert_eq!(op.ranks()[0].shape().tokens, 512);

        let tokens = Tokens { x: 16, x_scale: 0, rows_there: 3, n: 0, ids: 16, weights: 16 };
        // SAFETY: nothing runs on mocks.
        unsafe {
            let few = op.ranks_for(3).unwrap()[0].dispatch_raw(&tokens, RawStream::DEFAULT).unwrap();
            let said = op.ranks_for(9).unwrap()[0].combine_raw(few, 16, 16, RawStream::DEFAULT).unwrap_err();
            assert!(said.to_string().starts_with("routed = 1 of rank 0 of another operation"), "{said}");
        }
        drop((op, world));
        assert_eq!(machine.alive(), 0);
    }

    #[test]
    fn capacities_ascend_and_differ_in_nothing_else() {
        let machine = Machine::default();
        let world = world(&machine);
        let said = |tunings: &[MoeTuning]| ladder(&world, tunings).unwrap_err().to_string();
        assert_eq!(said(&[]), "capacities = none: one or more");
        assert_eq!(said(&[64, 8].map(tuning)), "capacities = 8: more than 64, the one before");
        assert_eq!(said(&[8, 8].map(tuning)), "capacities = 8: more than 8, the one before");
        let other = said(&[tuning(8), tuning(64).with_layout(Layout::ExpertMajor)]);
        assert!(
            other.starts_with("capacities = ExpertMajor of ") && other.contains("RankMajor of "),
            "{other}"
        );
    }
}
