//! Memory that every rank has and every rank can reach.

use std::ops::Range;
use std::sync::Arc;

use super::RuntimeError;
use super::gpu::{DevicePtr, Gpu, RawStream, ShareHandle, SharedBlock, Sharing};
use super::handles::Buffer;
use super::net::FormError;
use super::net::processes::Processes;

/// A rank of this process.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its number in the world.
    pub rank: u32,
    /// Its GPU.
    pub gpu: Arc<dyn Gpu>,
}

/// A block mapped by one of this process's GPUs; unmapped when dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    gpu: Arc<dyn Gpu>,
    block: SharedBlock,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // No caller is left to tell, and the driver unmaps everything at the end of the process.
        // SAFETY: its own, for the last time.
        let _ = unsafe { self.gpu.free_shared(&self.block) };
    }
}

/// A block that other processes map too; given up when dropped.
#[derive(Debug)]
struct Exported {
    allocation: u32,
    own: Option<Mapping>,
    processes: Arc<Processes>,
}

impl Drop for Exported {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            self.processes.give_up(self.allocation, own);
        }
    }
}

/// The same allocation on every rank, mapped for every rank of this process.
#[derive(Debug)]
pub struct Symmetric {
    bytes: u64,
    /// `[member][rank of its node]`.
    bases: Vec<Vec<DevicePtr>>,
    /// `[member]`.
    own: Vec<DevicePtr>,
    /// Other processes' memory first: fields are dropped in order.
    _imported: Vec<Mapping>,
    _here: Vec<Mapping>,
    _exported: Option<Exported>,
    /// Memory of ranks without peers, which are alone on their nodes.
    _alone: Vec<Buffer>,
}

impl Symmetric {
    /// For ranks that are all in this process, `near` of them on each node. Zeroed.
    pub(super) fn local(
        members: &[Member],
        near: u32,
        bytes: u64,
        sharing: Sharing,
    ) -> Result<Symmetric, RuntimeError> {
        if near == 1 {
            let own = members.iter().map(|alone| Buffer::new(&alone.gpu, bytes));
            let alone = own.collect::<Result<Vec<_>, _>>()?;
            alone.iter().try_for_each(|own| own.clear(0))?;
            let own: Vec<DevicePtr> = alone.iter().map(Buffer::ptr).collect();
            let bases = own.iter().map(|own| vec![*own]).collect();
            let (imported, here) = (vec![], vec![]);
            return Ok(Symmetric {
                bytes,
                bases,
                own,
                _imported: imported,
                _here: here,
                _exported: None,
                _alone: alone,
            });
        }
        let (mut here, mut bases) = (vec![], vec![]);
        for node in members.chunks(near as usize) {
            let peers: Vec<u32> = node.iter().map(|m| m.gpu.info().ordinal).collect();
            let own = node.iter().map(|m| allocate(m, bytes, sharing, &peers));
            let own = own.collect::<Result<Vec<_>, _>>()?;
            let of_node: Vec<DevicePtr> = own.iter().map(|m| m.block.ptr).collect();
            bases.extend(vec![of_node; node.len()]);
            here.extend(own);
        }
        let own = here.iter().map(|m| m.block.ptr).collect();
        let imported = vec![];
        Ok(Symmetric { bytes, bases, own, _imported: imported, _here: here, _exported: None, _alone: vec![] })
    }

    /// For a world of several processes, of which this one has one rank, with these ranks on its node. Zeroed, here and on all others.
    pub(super) fn across(
        member: &Member,
        near: Range<u32>,
        bytes: u64,
        sharing: Sharing,
        processes: &Arc<Processes>,
    ) -> Result<Symmetric, RuntimeError> {
        let allocation = processes.next_allocation()?;
        let exported = allocate(member, bytes, sharing, &[]).and_then(|own| {
            let handles = near.clone().skip(1).map(|_| member.gpu.export(&own.block));
            let handles = handles.collect::<Result<Vec<_>, _>>()?;
            Ok((own, handles))
        });
        let (own, handles) = agree_on_size(allocation, bytes, exported, processes)?;
        let (base, size) = (own.block.ptr, own.block.bytes);
        // From here on others may have it mapped, whatever fails.
        let own = Exported { allocation, own: Some(own), processes: Arc::clone(processes) };
        let taken = processes.links().exchange(&handles, size);
        let mapped = taken.and_then(|taken| import(member, size, taken));
        let mapped = processes.links().agree(mapped)?;
        let mut bases = vec![base; near.len()];
        for (rank, mapping) in &mapped {
            bases[(*rank - near.start) as usize] = mapping.block.ptr;
        }
        let imported = mapped.into_iter().map(|(_, mapping)| mapping).collect();
        Ok(Symmetric {
            bytes,
            bases: vec![bases],
            own: vec![base],
            _imported: imported,
            _here: vec![],
            _exported: Some(own),
            _alone: vec![],
        })
    }

    /// Its size on each rank, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it starts on a member's own rank.
    pub(super) fn own(&self, member: usize) -> DevicePtr {
        self.own[member]
    }

    /// Where it starts on every rank of a node, as its member with this index sees it.
    pub fn bases(&self, member: usize) -> &[DevicePtr] {
        &self.bases[member]
    }

    /// Where byte `at` is on every rank of its node, as the member with this index sees it.
    pub fn pointers(&self, member: usize, at: u64) -> Vec<DevicePtr> {
        self.bases[member].iter().map(|base| base + at).collect()
    }
}

fn allocate(member: &Member, bytes: u64, sharing: Sharing, peers: &[u32]) -> Result<Mapping, RuntimeError> {
    let block = member.gpu.alloc_shared(bytes, sharing, peers)?;
    let mapping = Mapping { gpu: Arc::clone(&member.gpu), block };
    // SAFETY: just allocated, of that size.
    unsafe { member.gpu.fill(mapping.block.ptr, bytes, 0, RawStream::DEFAULT)? };
    match member.gpu.synchronize() {
        Ok(()) => Ok(mapping),
        Err(e) => {
            // It may not have been filled yet: it must not become another owner's memory.
            std::mem::forget(mapping);
            Err(e)
        }
    }
}

/// What this rank has allocated, once all ranks have, and all the same size: others compute addresses from their own.
fn agree_on_size<T>(
    allocation: u32,
    bytes: u64,
    exported: Result<T, RuntimeError>,
    processes: &Processes,
) -> Result<T, RuntimeError> {
    let (own, said) = match exported {
        Ok(own) => (Some(own), Ok(bytes)),
        Err(e) => (None, Err(e)),
    };
    let sizes: Vec<u64> = processes.links().gather(said)?;
    // The same on all ranks, as is what they are told.
    let other = (0..).zip(&sizes).find(|(_, size)| **size != sizes[0]);
    if let Some((rank, size)) = other {
        let field = format!("size in bytes of allocation {allocation}");
        let (value, other) = (size.to_string(), sizes[0].to_string());
        return Err(FormError::Mismatch { field, rank, value, other_rank: 0, other }.into());
    }
    Ok(own.expect("an error here is an error of all"))
}

fn import(
    member: &Member,
    size: u64,
    handles: Vec<(u32, u64, ShareHandle)>,
) -> Result<Vec<(u32, Mapping)>, RuntimeError> {
    let import = |(rank, bytes, handle): (u32, u64, ShareHandle)| {
        if bytes != size {
            let (field, value, other) =
                ("size in bytes of a block".into(), bytes.to_string(), size.to_string());
            let other_rank = member.rank;
            return Err(FormError::Mismatch { field, rank, value, other_rank, other }.into());
        }
        let block = member.gpu.import(handle, bytes)?;
        Ok((rank, Mapping { gpu: Arc::clone(&member.gpu), block }))
    };
    handles.into_iter().map(import).collect()
}
