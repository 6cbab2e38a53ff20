//! What collectives have in common: limits, and what they do unless somebody says otherwise.

use peerwarp_codegen::family::Illegal;
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::inbox::Wire;

/// Blocks that a launch has at most by default: with one more, each has one of an H200's 132 SMs to itself.
const BLOCKS: u32 = 128;

/// Both halves of the inbox are indexed with 32 bits.
pub(super) fn inbox(wire: &Wire, elements: u32) -> Result<(), Illegal> {
    let most = u64::from(u32::MAX) / 2;
    let allowed = || {
        let fit = u128::from(elements) * u128::from(most) / u128::from(wire.elements);
        format!("at most about {fit} with {} ranks, so that 32 bits index what arrives", wire.ranks)
    };
    Illegal::unless(wire.elements <= most, "elements", elements, allowed)
}

/// Tiles are kept in registers: 64 elements a thread.
pub(super) fn tile(field: &'static str, elements: u32, warps: u32) -> Result<(), Illegal> {
    let most = 64 * 32 * warps;
    let allowed = || format!("at most {most} with {warps} warps");
    Illegal::unless(elements <= most, field, elements, allowed)
}

/// Elements of a tile where so many elements are shared among the blocks of each of `roles` roles. At least four warps of packets
/// of 16-bit elements: more and smaller blocks gain nothing.
pub(super) fn chunk(elements: u32, roles: u32) -> u32 {
    elements.div_ceil(BLOCKS / roles).next_power_of_two().clamp(1024, 8192)
}

/// Warps, so that each thread has a packet of a tile, up to 16; more only where threads could not hold a tile.
pub(super) fn warps(tile: u32, dtype: Dtype) -> u32 {
    let packets = (tile * dtype.bytes()).div_ceil(PACKET_BYTES * 32).next_power_of_two();
    packets.clamp(4, if tile > 64 * 32 * 16 { 32 } else { 16 })
}

/// A block of each of `roles` roles for each tile, up to the most.
pub(super) fn blocks(elements: u32, chunk: u32, roles: u32) -> u32 {
    elements.div_ceil(chunk).next_power_of_two().min(BLOCKS / roles)
}
