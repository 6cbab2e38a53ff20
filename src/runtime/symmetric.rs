//! Memory that every rank has and every rank can reach.

use std::sync::Arc;

use super::RuntimeError;
use super::gpu::{DevicePtr, Gpu, RawStream, SharedBlock, Sharing};

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
struct Mapping {
    gpu: Arc<dyn Gpu>,
    block: SharedBlock,
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Nobody is left to tell, and the driver unmaps everything at the end of the process.
        let _ = self.gpu.free_shared(&self.block);
    }
}

/// The same allocation on every rank, mapped for every rank of this process.
#[derive(Debug)]
pub struct Symmetric {
    bytes: u64,
    /// `[member][rank]`.
    bases: Vec<Vec<DevicePtr>>,
    _own: Vec<Mapping>,
}

impl Symmetric {
    /// For ranks that are all in this process. Zeroed.
    pub(super) fn local(members: &[Member], bytes: u64, sharing: Sharing) -> Result<Symmetric, RuntimeError> {
        let own = allocate(members, bytes, sharing)?;
        let bases: Vec<DevicePtr> = own.iter().map(|m| m.block.ptr).collect();
        Ok(Symmetric { bytes, bases: vec![bases; members.len()], _own: own })
    }

    /// Its size on each rank, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it starts on every rank, as the member with this index sees it.
    pub fn bases(&self, member: usize) -> &[DevicePtr] {
        &self.bases[member]
    }

    /// Where byte `at` is on every rank, as the member with this index sees it.
    pub fn pointers(&self, member: usize, at: u64) -> Vec<DevicePtr> {
        self.bases[member].iter().map(|base| base + at).collect()
    }
}

fn allocate(members: &[Member], bytes: u64, sharing: Sharing) -> Result<Vec<Mapping>, RuntimeError> {
    let peers: Vec<u32> = members.iter().map(|m| m.gpu.info().ordinal).collect();
    let mut own = vec![];
    for member in members {
        let block = member.gpu.alloc_shared(bytes, sharing, &peers)?;
        let mapping = Mapping { gpu: Arc::clone(&member.gpu), block };
        member.gpu.fill(mapping.block.ptr, bytes, 0, RawStream::DEFAULT)?;
        member.gpu.synchronize()?;
        own.push(mapping);
    }
    Ok(own)
}
