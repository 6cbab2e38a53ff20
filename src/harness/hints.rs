//! Hints: what the channels of kernels have and do not need, as far as explorations show.

use std::fmt;

use peerwarp_codegen::dsl::Spare;
use peerwarp_codegen::family::Variant;
use serde::Serialize;

use super::check::{Exploration, explore_without};
use super::workload::Suite;

/// Something that a channel has and a kernel is clean without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Hint {
    /// The channel.
    pub channel: String,
    /// What it is.
    pub spare: Spare,
    /// How many seeds showed nothing wrong without it.
    pub seeds: u64,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hint { channel, spare, seeds } = self;
        let (what, without) = match spare {
            Spare::Credits => ("the credits of", "are not needed: the kernel is clean without them"),
            Spare::SecondBank => ("the second bank of", "is not needed: the kernel is clean with one"),
        };
        write!(f, "{what} `{channel}` {without} in {seeds} seeds")
    }
}

/// What channels need not have, each by itself: leave one out, and look again before another. Each is explored as the kernels
/// themselves are, which are clean. `tick` is called for each that is done.
pub fn hints(
    suite: &dyn Suite,
    variants: &[Variant],
    exploration: &Exploration,
    tick: impl Fn() + Sync,
) -> Vec<Hint> {
    let mut all = vec![];
    for (channel, spare) in spares(variants) {
        // A kernel that cannot even be traced without it needs it.
        let clean = matches!(explore_without(suite, variants, exploration, (&channel, spare)), Ok(None));
        all.extend(clean.then_some(Hint { channel, spare, seeds: exploration.seeds }));
        tick();
    }
    all
}

/// What the channels of variants have, each once. Halves of one operation share channels.
pub fn spares(variants: &[Variant]) -> Vec<(String, Spare)> {
    let mut all: Vec<(String, Spare)> = vec![];
    for param in variants.iter().flat_map(|v| v.params()) {
        let Some((channel, shape)) = param.channel() else { continue };
        for spare in shape.spares() {
            let found = (channel.to_owned(), spare);
            if !all.contains(&found) {
                all.push(found);
            }
        }
    }
    all
}
