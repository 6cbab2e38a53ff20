//! What families over several nodes share: their ranks, their rails, and the order of nodes.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Illegal;
use peerwarp_codegen::ir::FAR_MEMORY;

/// Each node has as many ranks, which one of its near channels reaches.
pub(super) fn divide(ranks: u32, nodes: u32) -> Result<(), Illegal> {
    let allowed = || format!("a multiple of the {nodes} nodes, which have at most 64 ranks each");
    Illegal::unless(ranks.is_multiple_of(nodes) && ranks / nodes <= 64, "ranks", ranks, allowed)
}

/// A card reaches all outboxes and inboxes along a rail.
pub(super) fn rail((field, value): (&str, u32), nodes: u32, bytes: u64) -> Result<(), Illegal> {
    let allowed =
        || format!("fewer: {nodes} nodes take {bytes} bytes for messages on their way, of {FAR_MEMORY}");
    Illegal::unless(bytes < FAR_MEMORY, field, value, allowed)
}

/// Does something for each other node. The next one is the first, so that not all send to the same one.
#[kernel]
pub(super) fn each_other_node(mut act: impl FnMut(Val<u32>)) {
    for i in 1..nodes().val() {
        act((node() + i) % nodes());
    }
}
