//! What the simulator finds.

use peerwarp_codegen::sim::{FindingKind, Machine, Options};

/// The kinds of findings over so many seeds, each once.
pub fn kinds(machine: &Machine, seeds: u64) -> Vec<FindingKind> {
    let runs = (0..seeds).filter_map(|seed| machine.run(&Options::default().with_seed(seed)).err());
    let mut kinds: Vec<_> = runs.flat_map(|f| f.list.into_iter().map(|f| f.kind)).collect();
    kinds.sort();
    kinds.dedup();
    kinds
}
