//! Runs of hand-built kernels.

mod build;
mod clean;
mod contracts;
mod mistakes;
mod misuse;
mod ops;
mod protocol;
mod speed;
mod tokens;

use std::sync::Arc;

use super::*;

/// Both strategies, several seeds each.
fn schedules() -> impl Iterator<Item = Options> {
    (0..40).flat_map(|seed| {
        [Strategy::Random, Strategy::Adversarial].map(|strategy| Options {
            seed,
            strategy,
            ..Options::default()
        })
    })
}
