//! Limits of devices: shared memory and resident blocks that no supported device has.

use std::collections::{BTreeSet, HashMap};

use super::*;
use crate::device::Device;

pub(super) fn check(report: &mut Report<'_>) {
    let k = report.kernel;
    let devices = || Device::all().filter(|d| d.warp_size == k.warp_size);
    let placed = placed(k);
    let fullest = placed.iter().max_by_key(|(_, bytes)| *bytes);
    let least = fullest.map_or(0, |(_, bytes)| *bytes);
    if let Some(most) = devices().max_by_key(|d| d.block_shared_bytes)
        && least > most.block_shared_bytes.into()
        && let Some((arrays, found)) = fullest
        && let Some(largest) = arrays.iter().map(|s| &k.shared[s.index()]).max_by_key(|shared| bytes(shared))
    {
        let each = |s: &SharedId| (k.shared[s.index()].name.as_str(), bytes(&k.shared[s.index()]));
        let arrays = arrays.iter().map(each).map(|(name, bytes)| format!("`{name}` {bytes}"));
        report.add(
            largest.loc,
            Problem::SharedBytes {
                found: *found,
                arrays: arrays.collect::<Vec<_>>().join(" and "),
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

/// The arrays of each kind of block, and the bytes that these take for certain, placed as printers do: a block is of one role and those
/// beside it, and an array of several roles keeps its place. Rooms of copies and products are used where a target wants them.
fn placed(k: &Kernel) -> Vec<(BTreeSet<SharedId>, u64)> {
    let rooms: BTreeSet<SharedId> = k.ops.iter().filter_map(|op| room(&op.kind)).collect();
    let ids = (0..k.shared.len() as u32).map(SharedId).filter(|id| !rooms.contains(id));
    // Each array by itself, also where nothing uses it.
    let alone = ids.map(|id| (BTreeSet::from([id]), bytes(&k.shared[id.index()])));
    let mut blocks: Vec<(&str, BTreeSet<SharedId>, u64)> = vec![];
    let mut starts: HashMap<SharedId, u64> = HashMap::new();
    for role in &k.roles {
        let name = role.beside.as_ref().map_or(role.name.as_str(), |beside| &beside.role);
        let at = blocks.iter().position(|block| block.0 == name).unwrap_or_else(|| {
            blocks.push((name, BTreeSet::new(), 0));
            blocks.len() - 1
        });
        let mut used = BTreeSet::new();
        k.walk(&role.body, &mut |_, op| {
            used.extend(op.kind.accesses().into_iter().filter_map(|a| a.place.shared()))
        });
        let (_, arrays, end) = &mut blocks[at];
        for &id in used.difference(&rooms) {
            let start = *starts.entry(id).or_insert(*end);
            *end = (*end).max(start + bytes(&k.shared[id.index()]));
            arrays.insert(id);
        }
    }
    alone.chain(blocks.into_iter().map(|(_, arrays, end)| (arrays, end))).collect()
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
