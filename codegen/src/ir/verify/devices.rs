//! Limits of devices: shared memory and resident blocks that no supported device has.

use super::*;
use crate::device::Device;

pub(super) fn check(report: &mut Report<'_>) {
    let k = report.kernel;
    let devices = || Device::all().filter(|d| d.warp_size == k.warp_size);
    let shared_bytes = k.shared_bytes();
    if let Some(most) = devices().max_by_key(|d| d.block_shared_bytes)
        && shared_bytes > most.block_shared_bytes.into()
        && let Some(largest) = k.shared.iter().max_by_key(|s| bytes(s))
    {
        report.add(
            largest.loc,
            Problem::SharedBytes {
                found: shared_bytes,
                shared: largest.name.clone(),
                bytes: bytes(largest),
                device: most.name,
                limit: most.block_shared_bytes,
            },
        );
        return;
    }
    let (blocks, threads) = (k.grid_blocks(), (k.block_warps + k.beside_warps()) * k.warp_size);
    let resident = |d: &Device| {
        let taken = u32::try_from(shared_bytes).unwrap_or(u32::MAX).saturating_add(d.reserved_shared_bytes);
        let by_shared = d.sm_shared_bytes.checked_div(taken).unwrap_or(u32::MAX);
        d.sms * by_shared.min(d.sm_threads / threads.max(1)).min(d.sm_blocks)
    };
    if let Some(most) = devices().max_by_key(resident)
        && blocks > resident(&most)
        && k.waits()
    {
        let (device, limit) = (most.name, resident(&most));
        report.add(k.loc, Problem::ResidentBlocks { blocks, threads, shared_bytes, device, limit });
    }
}

fn bytes(s: &Shared) -> u64 {
    u64::from(s.len) * u64::from(s.dtype.bytes()) * u64::from(s.copies)
}
