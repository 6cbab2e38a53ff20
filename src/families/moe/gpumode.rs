//! The shapes of the gpu-mode all-to-all task.

use std::sync::LazyLock;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Deserialize;

/// One of the task's shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub struct GpuModeShape {
    /// Experts of all ranks together.
    pub num_experts: u32,
    /// Expert ids a token.
    pub experts_per_token: u32,
    /// Elements a row.
    pub hidden_dim: u32,
    /// Tokens a rank at most.
    pub max_num_tokens: u32,
}

/// All five, in the task's order.
pub fn gpumode() -> &'static [GpuModeShape] {
    #[derive(Deserialize)]
    struct Table {
        all2all: Vec<GpuModeShape>,
    }
    static TABLE: LazyLock<Vec<GpuModeShape>> = LazyLock::new(|| {
        let table: Table =
            serde_json::from_str(include_str!("gpumode.json")).expect("the embedded table is well-formed");
        table.all2all
    });
    &TABLE
}

impl GpuModeShape {
    /// Tokens of each rank: 1 to one less than the most, all equally likely, as the task draws them. The task's own
    /// numbers come from another generator.
    pub fn tokens(&self, ranks: u32, seed: u64) -> Vec<u32> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        (0..ranks).map(|_| rng.random_range(1..self.max_num_tokens)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_the_tasks() {
        let last =
            GpuModeShape { num_experts: 256, experts_per_token: 8, hidden_dim: 7168, max_num_tokens: 256 };
        assert_eq!((gpumode().len(), gpumode()[4]), (5, last));
        let tokens = gpumode()[0].tokens(8, 1);
        assert!(
            tokens.iter().all(|n| (1..16).contains(n)) && tokens.iter().any(|n| *n != tokens[0]),
            "{tokens:?}"
        );
        assert_eq!(tokens, gpumode()[0].tokens(8, 1));
    }
}
