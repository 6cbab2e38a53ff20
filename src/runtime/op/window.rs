//! What callers pass for windows: memory of a world that every rank has a part of, and every rank can reach.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};

use super::stream::{Kept, StreamRef};
use super::tensor::{Element, Held, Readable, TensorInfo, Writable};
use crate::runtime::gpu::DevicePtr;
use crate::runtime::handles::Buffer;
use crate::runtime::symmetric::Member;
use crate::runtime::{RuntimeError, Symmetric, World};

/// What waits for the GPUs of this process before memory is given up.
#[derive(Debug)]
struct Shared {
    memory: Option<Arc<Symmetric>>,
    members: Vec<Member>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Any rank's kernels may still read any part of it. Kernels of other processes have it mapped themselves.
        let ended = self.members.iter().all(|m| m.gpu.synchronize().is_ok());
        if !ended {
            // They may not have ended: it must not become another owner's memory.
            std::mem::forget(self.memory.take());
        }
    }
}

/// A rank's part of memory that all ranks of a world can reach: `len` elements of `T`. Launches take it for any tensor, and
/// nothing else for a parameter that is a window. Made by [`World::symmetric`].
///
/// All ranks pass parts of the same memory, from the same element on: where a peer's part is follows from one's own. Launches
/// with a part are on one stream, but for those that are captured, whose order their maker sees to. The
/// memory is freed when the last part in this process has been dropped, after all that its GPUs run has ended.
#[derive(Debug)]
pub struct SymmetricPart<T: Element> {
    // The last part waits in `shared`, which goes last.
    buffer: Buffer,
    rank: u32,
    device: u32,
    /// The stream of the launches that use it.
    stream: Mutex<Option<Kept>>,
    _shared: Arc<Shared>,
    _t: PhantomData<fn() -> T>,
}

impl World {
    /// Memory for `len` elements on every rank, zeroed: the parts of this process's ranks, in the order of
    /// [`World::members`]. All ranks have to make it in the same order, with the same length.
    ///
    /// # Errors
    /// `len` is 0 or too large, memory runs out, or another rank's length differs.
    pub fn symmetric<T: Element>(&self, len: u64) -> Result<Vec<SymmetricPart<T>>, RuntimeError> {
        let bytes =
            len.checked_mul(size_of::<T>() as u64).filter(|bytes| (1..=i64::MAX as u64).contains(bytes));
        let bytes = bytes.ok_or_else(|| {
            let most = i64::MAX as u64 / size_of::<T>() as u64;
            RuntimeError::invalid("elements of symmetric memory", len, format!("1 to {most}"))
        })?;
        let memory = self.share(bytes)?;
        let members = self.members();
        let shared = Arc::new(Shared { memory: Some(Arc::clone(&memory)), members: members.to_vec() });
        let part = |(index, member): (usize, &Member)| SymmetricPart {
            buffer: Buffer::part(&memory, member, index),
            rank: member.rank,
            device: member.gpu.info().ordinal,
            stream: Mutex::default(),
            _shared: Arc::clone(&shared),
            _t: PhantomData,
        };
        Ok(members.iter().enumerate().map(part).collect())
    }
}

impl<T: Element> SymmetricPart<T> {
    /// The rank that it is of.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// Number of elements.
    #[allow(clippy::len_without_is_empty)] // none is empty
    pub fn len(&self) -> u64 {
        self.buffer.bytes() / size_of::<T>() as u64
    }

    /// Its address, for a launch on this stream. Nothing orders launches on different ones.
    fn on(&self, stream: &StreamRef<'_>) -> Result<DevicePtr, RuntimeError> {
        let mut used = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        if stream.captured() || used.get_or_insert_with(|| stream.keep()).is(stream) {
            return Ok(self.buffer.ptr());
        }
        let allowed = format!("that of the earlier launches with this part, of rank {}", self.rank);
        Err(RuntimeError::invalid("stream", format!("{:#x}", stream.raw().raw()), allowed))
    }

    /// Its memory, for the host to read and write while no kernel uses it.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }
}

// SAFETY: the memory is of that GPU, and is freed after everything on the GPUs of this process has ended.
unsafe impl<T: Element> Readable for SymmetricPart<T> {
    fn info(&self) -> TensorInfo {
        TensorInfo { bytes: self.buffer.bytes(), device: self.device, dtypes: T::DTYPES }
    }

    fn read<'a>(&'a self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        Ok((self.on(stream)?, Held::default()))
    }
}

// SAFETY: as above; launches that use it are on one stream, and the kernels order what peers read.
unsafe impl<T: Element> Writable for SymmetricPart<T> {
    fn write<'a>(&'a mut self, stream: &StreamRef<'a>) -> Result<(DevicePtr, Held<'a>), RuntimeError> {
        Ok((self.on(stream)?, Held::default()))
    }
}
