//! Memory that every rank has and every rank can reach.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

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
    allocation: AtomicU32,
    own: Option<Mapping>,
    processes: Arc<Processes>,
}

impl Drop for Exported {
    fn drop(&mut self) {
        if let Some(own) = self.own.take() {
            self.processes.give_up(self.allocation.load(Ordering::Relaxed), own);
        }
    }
}

/// Memory that ranks of several processes have mapped of each other.
#[derive(Debug)]
pub(super) struct Across {
    member: Member,
    /// What was asked for: blocks are larger.
    bytes: u64,
    /// Whether it is the caller's: what it holds stays when it is mapped anew.
    keeps: AtomicBool,
    /// Other processes' memory first: fields are dropped in order.
    imported: Vec<(u32, Mapping)>,
    exported: Exported,
}

impl Across {
    /// Its number among all allocations.
    pub fn number(&self) -> u32 {
        self.exported.allocation.load(Ordering::Relaxed)
    }

    /// Gives it the number that the others of its world give it.
    pub fn renumber(&self, number: u32) {
        self.exported.allocation.store(number, Ordering::Relaxed);
    }

    /// Its size on each rank, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the block other memory, zeroed unless it is the caller's, and maps that of the ranks that go on, which do the same. What other
    /// ranks had mapped is not looked at any more. All addresses stay.
    pub fn renew(&self) -> Result<(), RuntimeError> {
        let (gpu, processes) = (&self.member.gpu, &self.exported.processes);
        let Some(own) = &self.exported.own else { return Ok(()) };
        let keeps = self.keeps.load(Ordering::Relaxed);
        // SAFETY: the ranks that go on are idle.
        unsafe { gpu.renew(&own.block, keeps)? };
        if !keeps {
            // SAFETY: the block is mapped, of that size.
            unsafe { gpu.fill(own.block.ptr, own.block.bytes, 0, RawStream::DEFAULT)? };
            gpu.synchronize()?;
        }
        let mut links = processes.links();
        let peers = links.near_ranks();
        let handles = peers.iter().map(|_| gpu.export(&own.block)).collect::<Result<Vec<_>, _>>()?;
        let mut taken = links.exchange(&handles, own.block.bytes)?.into_iter();
        for (rank, mapping) in &self.imported {
            let handle = if peers.contains(rank) { taken.next() } else { None };
            match handle {
                // SAFETY: the ranks that go on are idle.
                Some((_, _, handle)) => unsafe { gpu.remap(&mapping.block, handle)? },
                // SAFETY: as above.
                None => unsafe { gpu.detach(&mapping.block)? },
            }
        }
        Ok(())
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
    _here: Vec<Mapping>,
    across: Option<Arc<Across>>,
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
            return Ok(Symmetric { bytes, bases, own, _here: vec![], across: None, _alone: alone });
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
        Ok(Symmetric { bytes, bases, own, _here: here, across: None, _alone: vec![] })
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
            let peers = processes.links().near_ranks();
            let handles = peers.iter().map(|_| member.gpu.export(&own.block));
            let handles = handles.collect::<Result<Vec<_>, _>>()?;
            Ok((own, handles))
        });
        let (own, handles) = agree_on_size(allocation, bytes, exported, processes)?;
        let (base, size) = (own.block.ptr, own.block.bytes);
        // From here on others may have it mapped, whatever fails.
        let exported =
            Exported { allocation: allocation.into(), own: Some(own), processes: Arc::clone(processes) };
        let taken = processes.links().exchange(&handles, size);
        let mapped = taken.and_then(|taken| import(member, size, taken));
        let mapped = mapped.and_then(|mapped| with_nowhere(member, near.clone(), &exported, mapped));
        let mapped = processes.links().agree(mapped)?;
        let mut bases = vec![base; near.len()];
        for (rank, mapping) in &mapped {
            bases[(*rank - near.start) as usize] = mapping.block.ptr;
        }
        let (member, keeps) = (member.clone(), AtomicBool::new(false));
        let across = Some(Arc::new(Across { member, bytes, keeps, imported: mapped, exported }));
        Ok(Symmetric { bytes, bases: vec![bases], own: vec![base], _here: vec![], across, _alone: vec![] })
    }

    /// What processes have mapped of each other; none if all ranks are in this one.
    pub(super) fn mapped_across(&self) -> Option<&Arc<Across>> {
        self.across.as_ref()
    }

    /// Lets it hold what it holds when a world goes on without ranks: it is the caller's.
    pub(super) fn keep(&self) {
        if let Some(across) = &self.across {
            across.keeps.store(true, Ordering::Relaxed);
        }
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

/// Adds memory that no rank looks at, in place of that of ranks without which the world goes on.
fn with_nowhere(
    member: &Member,
    near: Range<u32>,
    exported: &Exported,
    mut mapped: Vec<(u32, Mapping)>,
) -> Result<Vec<(u32, Mapping)>, RuntimeError> {
    let Some(own) = &exported.own else { return Ok(mapped) };
    let gpu = &member.gpu;
    for rank in near.filter(|rank| *rank != member.rank) {
        if mapped.iter().all(|(other, _)| *other != rank) {
            let block = gpu.import(gpu.export(&own.block)?, own.block.bytes)?;
            let mapping = Mapping { gpu: Arc::clone(gpu), block };
            // SAFETY: mapped just now, nothing uses it.
            unsafe { gpu.detach(&mapping.block)? };
            mapped.push((rank, mapping));
        }
    }
    Ok(mapped)
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
