//! What collectives have in common: limits, and what they do unless somebody says otherwise.

use peerwarp_codegen::dsl::Transport;
use peerwarp_codegen::family::Illegal;
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

/// Blocks that a launch has at most by default: with one more, each has one of an H200's 132 SMs to itself.
const BLOCKS: u32 = 128;

/// A vector's root is one of the ranks.
pub(super) fn root(root: u32, ranks: u32) -> Result<(), Illegal> {
    Illegal::unless(root < ranks, "root", root, || format!("a rank: 0 to {}", ranks - 1))
}

/// Tiles are kept in registers: 32 elements a thread, and 16 where a block has more than 16 warps.
pub(super) fn tile(field: &'static str, elements: u32, warps: u32) -> Result<(), Illegal> {
    let most = 32 * 32 * warps.min(16);
    let allowed = || format!("at most {most} with {warps} warps");
    Illegal::unless(elements <= most, field, elements, allowed)
}

/// What ranks read of each other is published by flags: nothing travels as packets.
pub(super) fn flags(read: bool, protocol: Transport) -> Result<(), Illegal> {
    let name = peerwarp_codegen::family::Choice::name(&protocol);
    let allowed = || "flags with this algorithm: peers read what a flag publishes";
    Illegal::unless(!read || protocol == Transport::Flags, "protocol", name, allowed)
}

/// Elements of a tile where so many elements are shared among the blocks of each of `roles` roles. At least four warps of packets
/// of 16-bit elements: more and smaller blocks gain nothing.
pub(super) fn chunk(elements: u32, roles: u32) -> u32 {
    elements.div_ceil(BLOCKS / roles).next_power_of_two().clamp(1024, 8192)
}

/// Warps, so that each thread has a packet of a tile, up to 16.
pub(super) fn warps(tile: u32, dtype: Dtype) -> u32 {
    (tile * dtype.bytes()).div_ceil(PACKET_BYTES * 32).next_power_of_two().clamp(4, 16)
}

/// A block of each of `roles` roles for each tile, up to the most.
pub(super) fn blocks(elements: u32, chunk: u32, roles: u32) -> u32 {
    elements.div_ceil(chunk).next_power_of_two().min(BLOCKS / roles)
}
