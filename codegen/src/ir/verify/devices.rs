//! Limits of devices: shared memory and resident blocks that no supported device has.

use std::collections::BTreeSet;

use super::*;
use crate::device::Device;

pub(super) fn check(report: &mut Report<'_>) {
    let k = report.kernel;
    let devices = || Device::all().filter(|d| d.warp_size == k.warp_size);
    // Arrays of different roles may share a place, and rooms of copies and products are used where a target wants them: what
    // one block takes for certain is its largest other array.
    let rooms: BTreeSet<SharedId> = k.ops.iter().filter_map(|op| room(&op.kind)).collect();
    let arrays = (0..).zip(&k.shared).filter(|(id, _)| !rooms.contains(&SharedId(*id)));
    let largest = arrays.map(|(_, shared)| shared).max_by_key(|shared| bytes(shared));
    let least = largest.map_or(0, bytes);
    if let Some(most) = devices().max_by_key(|d| d.block_shared_bytes)
        && least > most.block_shared_bytes.into()
        && let Some(largest) = largest
    {
        report.add(
            largest.loc,
            Problem::SharedBytes {
                found: k.shared_bytes(),
                shared: largest.name.clone(),
                bytes: bytes(largest),
                device: most.name,
                limit: most.block_shared_bytes,
            },
        );
        return;
    }
    let (blocks, threads) = (k.grid_blocks(), (k.block_warps + k.beside_warps()) * k.warp_size);
    let resident = |d: &Device| d.resident_blocks(threads, u32::try_from(least).unwrap_or(u32::MAX));
    if let Some(most) = devices().max_by_key(resident)
        && blocks > resident(&most)
        && k.waits()
    {
        let (device, limit) = (most.name, resident(&most));
        report.add(k.loc, Problem::ResidentBlocks { blocks, threads, shared_bytes: least, device, limit });
    }
}

/// The array that an operation stages what it moves or multiplies in.
fn room(kind: &OpKind) -> Option<SharedId> {
    if let OpKind::Comm(CommOp::BulkCopy(BulkCopy { room, .. }))
    | OpKind::Matrix(MatrixOp::Dot(Dot { room, .. })) = kind
    {
        return Some(*room);
    }
    None
}

/// Bytes of an array's copies, each rounded up to 16.
fn bytes(s: &Shared) -> u64 {
    (u64::from(s.len) * u64::from(s.dtype.bytes())).next_multiple_of(16) * u64::from(s.copies)
}
