//! Owners of what a [`Gpu`] hands out: freed when dropped.
//!
//! A failure to free reaches no caller; it is ignored, as the driver frees everything at the end of the process.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytemuck::Pod;

use super::RuntimeError;
use super::gpu::{DevicePtr, Gpu, LaunchConfig, RawEvent, RawFunction, RawGraph, RawModule, RawStream};
use super::symmetric::{Member, Symmetric};

/// Memory of one GPU.
#[derive(Debug)]
pub struct Buffer {
    gpu: Arc<dyn Gpu>,
    ptr: DevicePtr,
    bytes: u64,
    /// Whether something may still be on a stream that writes to it.
    filling: AtomicBool,
    /// The symmetric memory that it is a part of, which then owns it.
    part_of: Option<Arc<Symmetric>>,
}

impl Buffer {
    /// Allocates `bytes` bytes with any contents.
    pub fn new(gpu: &Arc<dyn Gpu>, bytes: u64) -> Result<Buffer, RuntimeError> {
        let ptr = gpu.alloc(bytes.max(1))?;
        Ok(Buffer { gpu: Arc::clone(gpu), ptr, bytes, filling: AtomicBool::new(false), part_of: None })
    }

    /// A rank's own part of symmetric memory, of the member with this index.
    pub(crate) fn part(memory: &Arc<Symmetric>, member: &Member, index: usize) -> Buffer {
        Buffer {
            gpu: Arc::clone(&member.gpu),
            ptr: memory.own(index),
            bytes: memory.bytes(),
            filling: AtomicBool::new(false),
            part_of: Some(Arc::clone(memory)),
        }
    }

    /// Where it starts.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies `values` to byte `at` on.
    pub fn write<T: Pod>(&self, at: u64, values: &[T]) -> Result<(), RuntimeError> {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.check(at, bytes.len())?;
        // SAFETY: checked to be within memory that this owns.
        unsafe { self.gpu.upload(self.ptr + at, bytes) }
    }

    /// `count` values from byte `at` on.
    pub fn read<T: Pod>(&self, at: u64, count: usize) -> Result<Vec<T>, RuntimeError> {
        let mut values = vec![T::zeroed(); count];
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        self.check(at, bytes.len())?;
        // SAFETY: checked to be within memory that this owns.
        unsafe { self.gpu.download(self.ptr + at, bytes)? };
        Ok(values)
    }

    /// Sets every byte, in the order of a stream.
    pub fn fill(&self, value: u8, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        if self.bytes == 0 {
            return Ok(());
        }
        self.filling.store(true, Ordering::Relaxed);
        // SAFETY: all of what this owns, which it frees after the stream has ended.
        unsafe { self.gpu.fill(self.ptr, self.bytes, value, stream) }
    }

    /// Sets every byte, and waits until all that its GPU does has ended.
    pub(crate) fn clear(&self, value: u8) -> Result<(), RuntimeError> {
        self.fill(value, RawStream::DEFAULT)?;
        self.gpu.synchronize()?;
        self.filling.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn check(&self, at: u64, bytes: usize) -> Result<(), RuntimeError> {
        match at.checked_add(bytes as u64).is_some_and(|end| end <= self.bytes) {
            true => Ok(()),
            false => {
                let allowed = format!("bytes 0 to {} of the buffer", self.bytes);
                Err(RuntimeError::invalid("range", format!("{bytes} bytes from byte {at} on"), allowed))
            }
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // Drivers free without waiting for streams at times.
        let ended = !self.filling.load(Ordering::Relaxed) || self.gpu.synchronize().is_ok();
        if let Some(memory) = self.part_of.take() {
            if !ended {
                // It may still be being filled: it must not become another owner's memory.
                std::mem::forget(memory);
            }
        } else if ended {
            // SAFETY: its own, for the last time; what it put on streams has ended.
            let _ = unsafe { self.gpu.free(self.ptr) };
        }
    }
}

/// A stream of one GPU. Operations that were launched on it keep the driver's stream alive after this has been dropped.
#[derive(Debug)]
pub struct Stream {
    owned: Arc<OwnedStream>,
}

/// The driver's stream: destroyed when dropped.
#[derive(Debug)]
pub(crate) struct OwnedStream {
    gpu: Arc<dyn Gpu>,
    raw: RawStream<'static>,
    capturing: AtomicBool,
}

impl Stream {
    /// A new stream, which does not wait for the default one.
    pub fn new(gpu: &Arc<dyn Gpu>) -> Result<Stream, RuntimeError> {
        let (raw, capturing) = (gpu.create_stream()?, AtomicBool::new(false));
        Ok(Stream { owned: Arc::new(OwnedStream { gpu: Arc::clone(gpu), raw, capturing }) })
    }

    /// The driver's stream, for as long as this is borrowed.
    pub fn raw(&self) -> RawStream<'_> {
        self.owned.raw
    }

    /// What keeps the driver's stream, and so its handle from being given to another one.
    pub(crate) fn owned(&self) -> &Arc<OwnedStream> {
        &self.owned
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Arc<dyn Gpu> {
        &self.owned.gpu
    }

    /// Whether what is launched on it is recorded instead.
    pub(crate) fn capturing(&self) -> bool {
        self.owned.capturing.load(Ordering::Relaxed)
    }

    /// Waits until everything on it has ended.
    pub fn synchronize(&self) -> Result<(), RuntimeError> {
        self.gpu().synchronize_stream(self.raw())
    }

    /// Whether everything on it has ended.
    pub fn done(&self) -> Result<bool, RuntimeError> {
        self.gpu().stream_done(self.raw())
    }

    /// Records what `launch` launches on this stream, as a graph. Nothing runs.
    pub fn capture(&self, launch: impl FnOnce() -> Result<(), RuntimeError>) -> Result<Graph, RuntimeError> {
        let OwnedStream { gpu, raw, capturing } = &*self.owned;
        gpu.begin_capture(*raw)?;
        capturing.store(true, Ordering::Relaxed);
        // Also after a failure: a stream that is being captured is of no use to anybody.
        let launched = panic::catch_unwind(AssertUnwindSafe(launch));
        capturing.store(false, Ordering::Relaxed);
        let graph = gpu.end_capture(*raw).map(|raw| Graph { gpu: Arc::clone(gpu), raw });
        let launched = launched.unwrap_or_else(|panicked| panic::resume_unwind(panicked));
        launched.and(graph)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        // SAFETY: its own, for the last time: whatever `raw` gave out has been given back.
        let _ = unsafe { self.gpu.destroy_stream(self.raw) };
    }
}

/// Launches recorded by [`Stream::capture`].
#[derive(Debug)]
pub struct Graph {
    gpu: Arc<dyn Gpu>,
    raw: RawGraph,
}

impl Graph {
    /// Launches all of them, on a stream of the same GPU.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// All that they use is still there until they have ended: operations, worlds and buffers. They are in order with other
    /// launches of the same operations, and one thread at a time launches the graph.
    pub unsafe fn launch(&self, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { self.gpu.launch_graph(self.raw, stream) }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: its own, for the last time.
        let _ = unsafe { self.gpu.destroy_graph(self.raw) };
    }
}

/// A point in a stream that takes the time.
#[derive(Debug)]
pub struct Event {
    gpu: Arc<dyn Gpu>,
    raw: RawEvent,
}

impl Event {
    /// A new event.
    pub fn new(gpu: &Arc<dyn Gpu>) -> Result<Event, RuntimeError> {
        Ok(Event { gpu: Arc::clone(gpu), raw: gpu.create_event()? })
    }

    /// Puts it on a stream.
    pub fn record(&self, stream: RawStream<'_>) -> Result<(), RuntimeError> {
        self.gpu.record(self.raw, stream)
    }

    /// Time from an earlier event to this one. Both have to have happened.
    pub fn since(&self, earlier: &Event) -> Result<Duration, RuntimeError> {
        self.gpu.elapsed(earlier.raw, self.raw)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: its own, for the last time.
        let _ = unsafe { self.gpu.destroy_event(self.raw) };
    }
}

/// A kernel that is loaded on one GPU, and how to launch it.
#[derive(Debug)]
pub struct LoadedKernel {
    gpu: Arc<dyn Gpu>,
    module: RawModule,
    function: RawFunction,
    config: LaunchConfig,
    residency: Arc<Residency>,
}

/// How many blocks of a kernel a GPU has to hold at once, and can.
#[derive(Debug)]
pub(crate) struct Residency {
    /// The kernel.
    pub entry: String,
    /// Blocks that have to be resident at once: all of its grid where blocks wait.
    pub blocks: u32,
    /// Blocks that fit on an SM, whatever others are; none of clusters, which need several SMs at once.
    pub per_sm: u32,
}

impl LoadedKernel {
    /// Loads `entry` of a compiled module. It is an error if the kernel's blocks wait and cannot all be resident at once.
    ///
    /// # Safety
    /// The module is one that a compiler has written.
    pub unsafe fn new(
        gpu: &Arc<dyn Gpu>,
        image: &[u8],
        entry: &str,
        config: LaunchConfig,
    ) -> Result<LoadedKernel, RuntimeError> {
        let config = config.on(gpu.info().sms);
        // SAFETY: as the caller says.
        let module = unsafe { gpu.load(image)? };
        let loaded = gpu.function(module, entry, config.shared_bytes).and_then(|function| {
            let per_sm = check_resident(gpu.as_ref(), function, entry, &config)?;
            let blocks = if config.runs_in_parts { 1 } else { config.grid };
            Ok((function, Arc::new(Residency { entry: entry.to_owned(), blocks, per_sm })))
        });
        match loaded {
            Ok((function, residency)) => {
                Ok(LoadedKernel { gpu: Arc::clone(gpu), module, function, config, residency })
            }
            Err(e) => {
                // SAFETY: just loaded, and not used yet.
                let _ = unsafe { gpu.unload(module) };
                Err(e)
            }
        }
    }

    /// How it is launched.
    pub fn config(&self) -> &LaunchConfig {
        &self.config
    }

    /// Its GPU.
    pub(crate) fn gpu(&self) -> &dyn Gpu {
        self.gpu.as_ref()
    }

    /// What it needs of its GPU, as long as it is loaded.
    pub(crate) fn residency(&self) -> &Arc<Residency> {
        &self.residency
    }

    /// Launches it.
    ///
    /// # Safety
    /// `args` has to be what the kernel takes, and its pointers valid for what the kernel does with them. This is not dropped
    /// before the kernel has ended.
    pub unsafe fn launch(&self, args: &[u64], stream: RawStream<'_>) -> Result<(), RuntimeError> {
        // SAFETY: as the caller says.
        unsafe { self.gpu.launch(self.function, &self.config, args, stream) }
    }
}

impl Drop for LoadedKernel {
    fn drop(&mut self) {
        // SAFETY: its own, for the last time: the launching side sees to that it has ended.
        let _ = unsafe { self.gpu.unload(self.module) };
    }
}

/// How many blocks of a kernel fit on an SM, if all that have to fit on the GPU do.
fn check_resident(
    gpu: &dyn Gpu,
    function: RawFunction,
    entry: &str,
    config: &LaunchConfig,
) -> Result<u32, RuntimeError> {
    let per_sm = gpu.blocks_per_sm(function, config)?;
    let sms = gpu.info().sms;
    let blocks = if config.runs_in_parts { 1 } else { config.grid };
    let clustered = gpu.clustered_blocks(function, config)?;
    let resident = clustered.unwrap_or(per_sm.saturating_mul(sms));
    if blocks <= resident {
        return Ok(if clustered.is_some() && !config.runs_in_parts { 0 } else { per_sm });
    }
    let (kernel, gpu) = (entry.to_owned(), gpu.info().ordinal);
    Err(RuntimeError::NotResident { kernel, blocks, gpu, resident, per_sm, sms })
}
