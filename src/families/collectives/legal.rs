//! What collectives have in common: limits, and what they do unless somebody says otherwise.

use peerwarp_codegen::dsl::Transport;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::exchange::Reduction;

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
    let allowed = || "flags with this algorithm: peers read what a flag publishes";
    Illegal::unless(!read || protocol == Transport::Flags, "protocol", protocol.name(), allowed)
}

/// How tiles travel: as packets, unless all bits of an element count.
pub(super) fn transport(dtype: Dtype) -> Transport {
    match dtype {
        Dtype::F32 | Dtype::Fp16 | Dtype::Bf16 => Transport::Packets,
        Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::Fp8 => Transport::Flags,
    }
}

/// Parts with lengths of their own do not stand where others are read.
pub(super) fn not_in_place(each: bool, in_place: bool) -> Result<(), Illegal> {
    let allowed = || "false where each rank has a length of its own";
    Illegal::unless(!each || !in_place, "in_place", in_place, allowed)
}

/// A packet that ends in all ones comes without one of them: it turns a NaN into another, and an integer or a byte into a wrong one.
pub(super) fn carried(protocol: Transport, dtype: Dtype) -> Result<(), Illegal> {
    let allowed = || format!("flags with {dtype}: packets keep no word of all ones");
    let kept = protocol == Transport::Flags || transport(dtype) == Transport::Packets;
    Illegal::unless(kept, "protocol", protocol.name(), allowed)
}

/// Integers are added and compared.
pub(super) fn reduced(op: Reduction, dtype: Dtype) -> Result<(), Illegal> {
    let known = dtype != Dtype::I32 || matches!(op, Reduction::Sum | Reduction::Max | Reduction::Min);
    Illegal::unless(known, "op", op.name(), || "sum, max or min of i32".to_owned())
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
