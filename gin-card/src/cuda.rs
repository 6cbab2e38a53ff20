//! Copies between a GPU and shared memory, by the driver, which is loaded when it is first needed.
//!
//! Copies run on two streams beside the kernel that waits for them. The end of a batch is a number that its stream writes to
//! the segment's header. Nothing here waits for a stream while a kernel runs, except where it says so.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cudarc::driver::sys as cu;

use crate::error::CardError;
use crate::segment::{APPLIED, Mapping, SENT};

fn check(call: &'static str, result: cu::CUresult) -> Result<(), CardError> {
    result.result().map_err(|e| CardError::Cuda { call, reason: e.to_string() })
}

/// One direction: from windows to the segment, or back.
struct Lane {
    stream: cu::CUstream,
    /// The word in the header where the stream counts.
    word: usize,
    /// Batches that ended.
    batches: u64,
}

/// The GPU of this process's rank.
pub struct Gpu {
    context: cu::CUcontext,
    header: Arc<Mapping>,
    /// Address of the header for the GPU.
    header_on_gpu: cu::CUdeviceptr,
    sent: Lane,
    applied: Lane,
    pinned: Vec<*mut u8>,
}

// SAFETY: the driver's objects are used from any thread, one at a time.
unsafe impl Send for Gpu {}

impl Gpu {
    /// The GPU whose context is current, or nothing if there is no driver or no context. Pins the segment.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn current(header: &Arc<Mapping>) -> Result<Option<Gpu>, CardError> {
        // SAFETY: looks for the library, which has no initialiser that matters.
        if !unsafe { cu::is_culib_present() } {
            return Ok(None);
        }
        let mut context = null_mut();
        // SAFETY: the result is a local of the right type.
        match unsafe { cu::cuCtxGetCurrent(&mut context) } {
            cu::CUresult::CUDA_ERROR_NOT_INITIALIZED => return Ok(None),
            result => check("cuCtxGetCurrent", result)?,
        }
        if context.is_null() {
            return Ok(None);
        }
        let lane = |word| Lane { stream: null_mut(), word, batches: 0 };
        let mut gpu = Gpu {
            context,
            header: Arc::clone(header),
            header_on_gpu: 0,
            sent: lane(SENT),
            applied: lane(APPLIED),
            pinned: vec![],
        };
        gpu.pin(header.address(), header.bytes())?;
        let address = header.address().cast::<c_void>();
        // SAFETY: the memory is pinned, and the result is a field of the right type.
        let result = unsafe { cu::cuMemHostGetDevicePointer_v2(&mut gpu.header_on_gpu, address, 0) };
        check("cuMemHostGetDevicePointer", result)?;
        for lane in [&mut gpu.sent, &mut gpu.applied] {
            let flags = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the result is a field of the right type.
            check("cuStreamCreate", unsafe { cu::cuStreamCreate(&mut lane.stream, flags) })?;
        }
        // What a stream needs is made now, and not beside a kernel that waits.
        gpu.end_sent()?;
        gpu.end_applied()?;
        gpu.settle()?;
        Ok(Some(gpu))
    }

    /// Pins shared memory, so that copies from and to it do not wait. It is unpinned with the GPU.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn pin(&mut self, address: *mut u8, bytes: usize) -> Result<(), CardError> {
        let flags = cu::CU_MEMHOSTREGISTER_PORTABLE | cu::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller's memory is mapped.
        check("cuMemHostRegister", unsafe { cu::cuMemHostRegister_v2(address.cast(), bytes, flags) })?;
        self.pinned.push(address);
        Ok(())
    }

    /// Makes the GPU's context current on this thread, which may be one of NCCL's.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn enter(&self) -> Result<(), CardError> {
        let mut current = null_mut();
        // SAFETY: the result is a local of the right type.
        check("cuCtxGetCurrent", unsafe { cu::cuCtxGetCurrent(&mut current) })?;
        if current != self.context {
            // SAFETY: the context lives as long as NCCL uses it.
            check("cuCtxSetCurrent", unsafe { cu::cuCtxSetCurrent(self.context) })?;
        }
        Ok(())
    }

    /// Reads bytes of the GPU into pinned memory; they are there when the batch is sent.
    ///
    /// # Safety
    /// Both places have so many bytes until the batch is sent, and `to` is not used before.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub unsafe fn read(&self, to: *mut u8, from: NonNull<u8>, bytes: usize) -> Result<(), CardError> {
        let from = from.as_ptr().addr() as cu::CUdeviceptr;
        // SAFETY: as the caller says.
        check("cuMemcpyDtoHAsync", unsafe {
            cu::cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, self.sent.stream)
        })
    }

    /// Writes bytes of pinned memory to the GPU; they have been read when the batch is applied.
    ///
    /// # Safety
    /// Both places have so many bytes until the batch is applied, and `from` is not written before.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub unsafe fn write(&self, to: NonNull<u8>, from: *const u8, bytes: usize) -> Result<(), CardError> {
        let to = to.as_ptr().addr() as cu::CUdeviceptr;
        // SAFETY: as the caller says.
        let result = unsafe { cu::cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, self.applied.stream) };
        check("cuMemcpyHtoDAsync", result)
    }

    /// Writes a word to the GPU, after all bytes that were written before.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn write_word(&self, to: NonNull<u8>, value: u64) -> Result<(), CardError> {
        self.write_value(&self.applied, to.as_ptr().addr() as cu::CUdeviceptr, value)
    }

    /// A word of the GPU, after all that was written before. Waits for the stream.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn read_word(&self, from: NonNull<u8>) -> Result<u64, CardError> {
        let mut value = 0u64;
        let (to, from) = (std::ptr::from_mut(&mut value).cast(), from.as_ptr().addr() as cu::CUdeviceptr);
        // SAFETY: the stream is waited for before `value` goes.
        let result = unsafe { cu::cuMemcpyDtoHAsync_v2(to, from, 8, self.applied.stream) };
        check("cuMemcpyDtoHAsync", result)?;
        self.settle()?;
        Ok(value)
    }

    /// Waits until all that was asked for is done.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn settle(&self) -> Result<(), CardError> {
        for lane in [&self.sent, &self.applied] {
            // SAFETY: the stream lives as long as `self`.
            check("cuStreamSynchronize", unsafe { cu::cuStreamSynchronize(lane.stream) })?;
        }
        Ok(())
    }

    /// Uses a word of a region in both directions, which keeps its value, so that nothing is set up beside a kernel.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn warm(&self, word: NonNull<u8>) -> Result<(), CardError> {
        let value = self.read_word(word)?;
        let (to, from) = (word.as_ptr().addr() as cu::CUdeviceptr, std::ptr::from_ref(&value).cast());
        // SAFETY: the stream is waited for before `value` goes.
        check("cuMemcpyHtoDAsync", unsafe { cu::cuMemcpyHtoDAsync_v2(to, from, 8, self.applied.stream) })?;
        self.settle()
    }

    /// Ends a batch of reads, and returns its number.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn end_sent(&mut self) -> Result<u64, CardError> {
        self.sent.batches += 1;
        self.end(&self.sent)
    }

    /// Ends a batch of writes, and returns its number.
    ///
    /// # Errors
    /// [`CardError::Cuda`].
    pub fn end_applied(&mut self) -> Result<u64, CardError> {
        self.applied.batches += 1;
        self.end(&self.applied)
    }

    fn end(&self, lane: &Lane) -> Result<u64, CardError> {
        self.write_value(lane, self.header_on_gpu + 8 * lane.word as u64, lane.batches)?;
        Ok(lane.batches)
    }

    fn write_value(&self, lane: &Lane, to: cu::CUdeviceptr, value: u64) -> Result<(), CardError> {
        // SAFETY: callers name an aligned word that the GPU can write.
        check("cuStreamWriteValue64", unsafe { cu::cuStreamWriteValue64_v2(lane.stream, to, value, 0) })
    }

    /// The number of the last batch of reads that is done.
    pub fn sent(&self) -> u64 {
        self.header.words()[self.sent.word].load(Ordering::Acquire)
    }

    /// The number of the last batch of writes that is done.
    pub fn applied(&self) -> u64 {
        self.header.words()[self.applied.word].load(Ordering::Acquire)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Where a call fails, the rest is still given back.
        let _ = self.enter();
        for lane in [&self.sent, &self.applied].into_iter().filter(|lane| !lane.stream.is_null()) {
            // SAFETY: the stream is this one's, and is not used again.
            let _ = unsafe { (cu::cuStreamSynchronize(lane.stream), cu::cuStreamDestroy_v2(lane.stream)) };
        }
        for address in &self.pinned {
            // SAFETY: pinned by `pin`, and no stream uses it any more.
            let _ = unsafe { cu::cuMemHostUnregister(address.cast()) };
        }
    }
}
