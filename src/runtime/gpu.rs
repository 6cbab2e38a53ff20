//! What the runtime asks of a GPU: the trait that CUDA, HIP and the mock of the tests implement.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::time::Duration;

use peerwarp_codegen::family::Target;
use peerwarp_codegen::print::{LaunchShape, TENSOR_MAP_BYTES, TensorMap};

use super::RuntimeError;

/// An address in a GPU's memory, valid in this process.
pub type DevicePtr = u64;

type Result<T> = std::result::Result<T, RuntimeError>;

macro_rules! raw {
    ($($(#[$m:meta])* $name:ident),+ $(,)?) => {$(
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name(u64);

        impl $name {
            /// From the driver's handle.
            ///
            /// # Safety
            /// It has to be a handle of this kind, of the GPU that it is used with, and to stay alive while it is in use.
            pub const unsafe fn from_raw(handle: u64) -> $name {
                $name(handle)
            }

            /// The driver's handle.
            pub const fn raw(self) -> u64 {
                self.0
            }
        }
    )+};
}
raw!(
    /// An event.
    RawEvent,
    /// A loaded module.
    RawModule,
    /// A kernel of a module.
    RawFunction,
    /// A graph that is ready to be launched.
    RawGraph,
);

/// A stream that is alive for `'a`: `CUstream`, `cudaStream_t` or `hipStream_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RawStream<'a>(u64, PhantomData<&'a ()>);

impl<'a> RawStream<'a> {
    /// The default stream.
    pub const DEFAULT: RawStream<'static> = RawStream(0, PhantomData);

    /// From the driver's handle.
    ///
    /// # Safety
    /// It has to be a stream of the GPU that it is used with, and to stay alive for `'a`.
    pub const unsafe fn from_raw(handle: u64) -> RawStream<'a> {
        RawStream(handle, PhantomData)
    }

    /// The driver's handle.
    pub const fn raw(self) -> u64 {
        self.0
    }
}

/// What is known about a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuInfo {
    /// Its number among those that the driver shows to this process.
    pub ordinal: u32,
    /// The vendor's name for it.
    pub name: String,
    /// Where it sits, `0000:18:00.0`: the same in every process, whatever the numbers are.
    pub bus_id: String,
    /// What to compile for.
    pub target: Target,
    /// SMs, or compute units.
    pub sms: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Version of the driver, in its own words.
    pub driver: String,
}

/// How memory is shared with other GPUs and other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// The driver's virtual memory management: physical memory, passed on as a file descriptor.
    Vmm,
    /// Plain memory with peer access, passed on as an IPC handle.
    Ipc,
}

/// Memory that several GPUs can reach, mapped in this process.
#[derive(Debug)]
pub struct SharedBlock {
    /// Where it starts.
    pub ptr: DevicePtr,
    /// Its size: what was asked for, rounded up to what can be mapped.
    pub bytes: u64,
    /// How it is shared.
    pub sharing: Sharing,
    /// Whether it is another process's memory.
    pub imported: bool,
}

/// What joins two GPUs, as far as their driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerLink {
    /// NVLink, with or without a switch.
    NvLink,
    /// xGMI.
    Xgmi,
    /// PCIe.
    Pcie,
    /// It does not say.
    Unknown,
}

/// What another process needs to map a [`SharedBlock`].
#[derive(Debug)]
pub enum ShareHandle {
    /// A file descriptor of the physical memory.
    Fd(OwnedFd),
    /// An IPC handle.
    Ipc(Vec<u8>),
}

/// How a kernel is launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Blocks.
    pub grid: u32,
    /// Threads a block.
    pub block_threads: u32,
    /// Dynamic shared memory a block, in bytes.
    pub shared_bytes: u32,
    /// So many bytes instead, where the GPU has an SM for each block.
    pub exclusive_sm_bytes: Option<u32>,
    /// Whether the driver has to guarantee that all blocks are resident at once.
    pub cooperative: bool,
    /// Blocks of a cluster; none without clusters.
    pub cluster: Option<u32>,
    /// Whether blocks may start before the launch before on the stream has ended.
    pub overlaps_previous: bool,
    /// Whether blocks may run one after the other: no block waits.
    pub runs_in_parts: bool,
}

impl From<&LaunchShape> for LaunchConfig {
    fn from(shape: &LaunchShape) -> LaunchConfig {
        let LaunchShape { grid, block_threads, shared_bytes, exclusive_sm_bytes, .. } = *shape;
        let LaunchShape { overlaps_previous, waits, .. } = *shape;
        let plain = LaunchConfig { overlaps_previous, runs_in_parts: !waits, ..LaunchConfig::default() };
        LaunchConfig { grid, block_threads, shared_bytes, exclusive_sm_bytes, ..plain }
    }
}

impl LaunchConfig {
    /// As it is launched on a GPU with so many SMs.
    #[must_use]
    pub fn on(self, sms: u32) -> LaunchConfig {
        let alone = self.exclusive_sm_bytes.filter(|_| self.grid <= sms);
        LaunchConfig { shared_bytes: alone.unwrap_or(self.shared_bytes), ..self }
    }
}

/// One GPU. Methods may be called from any thread; each makes the GPU's context current on its thread.
///
/// Handles given to a method are of this GPU and alive. The types of [`crate::runtime::handles`] own them and see to that: use
/// those. What ends a handle's life, and what takes an address, is unsafe here.
///
/// # Safety
/// What it gives out is what it says, and stays so until it is given back.
pub unsafe trait Gpu: Send + Sync + fmt::Debug {
    /// What is known about it.
    fn info(&self) -> &GpuInfo;
    /// What users must know where its backend has not run on hardware yet, in one sentence; none of a backend that has.
    fn untested(&self) -> Option<&'static str> {
        None
    }
    /// Whether it can reach the memory of another GPU of this process.
    fn can_access(&self, peer: u32) -> Result<bool>;
    /// What joins it with another GPU of this process.
    fn peer_link(&self, _peer: u32) -> Result<PeerLink> {
        Ok(PeerLink::Unknown)
    }
    /// Waits until everything on it has ended.
    fn synchronize(&self) -> Result<()>;

    /// Allocates memory, aligned to 256 bytes.
    fn alloc(&self, bytes: u64) -> Result<DevicePtr>;
    /// Frees what [`Gpu::alloc`] gave.
    ///
    /// # Safety
    /// It is that, nothing uses it any more, and it is freed once.
    unsafe fn free(&self, ptr: DevicePtr) -> Result<()>;
    /// Copies to the GPU; returns when it is there.
    ///
    /// # Safety
    /// There is so much memory at that address, which nothing else uses meanwhile.
    unsafe fn upload(&self, to: DevicePtr, bytes: &[u8]) -> Result<()>;
    /// Copies from the GPU; returns when it is here. Does not wait for streams.
    ///
    /// # Safety
    /// There is so much memory at that address.
    unsafe fn download(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<()>;
    /// Sets every byte, in the order of a stream.
    ///
    /// # Safety
    /// There is so much memory at that address, until this has ended.
    unsafe fn fill(&self, to: DevicePtr, bytes: u64, value: u8, stream: RawStream) -> Result<()>;

    /// Lets kernels reach pages of this process's memory; returns where.
    ///
    /// # Safety
    /// There is so much memory at that address, until it is unmapped.
    unsafe fn map_host(&self, _first: *mut c_void, bytes: u64) -> Result<DevicePtr> {
        let allowed = "none: its kernels reach no memory of the host";
        Err(RuntimeError::invalid("memory of the host", format!("{bytes} bytes"), allowed))
    }
    /// Takes back what [`Gpu::map_host`] allowed.
    ///
    /// # Safety
    /// It was mapped from this address, nothing uses it any more, and it is unmapped once.
    unsafe fn unmap_host(&self, _first: *mut c_void) -> Result<()> {
        Ok(())
    }

    /// Copies from this GPU's memory to that of another GPU of this process, in the order of a stream of this one: by a copy
    /// engine, and through the host's memory where there is no peer access.
    ///
    /// # Safety
    /// There is so much memory at both addresses, until this has ended.
    unsafe fn copy_to_peer(
        &self,
        peer: u32,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        stream: RawStream,
    ) -> Result<()>;

    /// How memory can be shared, the best way first.
    fn sharing(&self) -> &[Sharing];
    /// Allocates memory that GPUs `peers` of this process, and itself, can reach.
    fn alloc_shared(&self, bytes: u64, sharing: Sharing, peers: &[u32]) -> Result<SharedBlock>;
    /// What another process needs to map a block of this GPU.
    fn export(&self, block: &SharedBlock) -> Result<ShareHandle>;
    /// Maps `bytes` bytes of another process for this GPU: the size of the block over there.
    fn import(&self, handle: ShareHandle, bytes: u64) -> Result<SharedBlock>;
    /// Unmaps a block; its memory is free when no process maps it any more.
    ///
    /// # Safety
    /// It is of this GPU, nothing uses it any more, and it is unmapped once.
    unsafe fn free_shared(&self, block: &SharedBlock) -> Result<()>;

    /// Gives a block of this GPU other memory, at the addresses that it has: with the same bytes if `keeps`, else any. What other processes have
    /// mapped is the memory that it had.
    ///
    /// # Errors
    /// Blocks of this GPU cannot be mapped anew, or memory runs out.
    ///
    /// # Safety
    /// Nothing that runs uses the block.
    unsafe fn renew(&self, _block: &SharedBlock, _keeps: bool) -> Result<()> {
        Err(fixed(self.info()))
    }
    /// Maps another process's memory, of the size of a block that was imported, at the addresses of that block.
    ///
    /// # Errors
    /// As of [`Gpu::renew`]. The block has no memory then.
    ///
    /// # Safety
    /// As of [`Gpu::renew`].
    unsafe fn remap(&self, _block: &SharedBlock, _handle: ShareHandle) -> Result<()> {
        Err(fixed(self.info()))
    }
    /// Maps memory that no rank looks at at the addresses of a block that was imported.
    ///
    /// # Errors
    /// As of [`Gpu::renew`]. The block has no memory then.
    ///
    /// # Safety
    /// As of [`Gpu::renew`].
    unsafe fn detach(&self, _block: &SharedBlock) -> Result<()> {
        Err(fixed(self.info()))
    }

    /// Loads a compiled module.
    ///
    /// # Safety
    /// It is one that a compiler has written: drivers believe what it says of itself.
    unsafe fn load(&self, image: &[u8]) -> Result<RawModule>;
    /// Unloads a module.
    ///
    /// # Safety
    /// Nothing of it is used any more, and it is unloaded once.
    unsafe fn unload(&self, module: RawModule) -> Result<()>;
    /// A kernel of a module, loaded to the last: a first launch must not have to wait for the GPU to be idle.
    fn function(&self, module: RawModule, entry: &str, shared_bytes: u32) -> Result<RawFunction>;
    /// How many blocks of a kernel an SM can hold at once.
    fn blocks_per_sm(&self, function: RawFunction, config: &LaunchConfig) -> Result<u32>;
    /// How many blocks it can hold at once of a kernel whose blocks are compiled to be in clusters; none of other kernels.
    fn clustered_blocks(&self, _function: RawFunction, _config: &LaunchConfig) -> Result<Option<u32>> {
        Ok(None)
    }
    /// How a matrix in its memory is cut in boxes, as kernels take it.
    fn tensor_map(
        &self,
        _matrix: DevicePtr,
        map: &TensorMap,
    ) -> Result<[u64; TENSOR_MAP_BYTES as usize / 8]> {
        let allowed = "none: its kernels do not bring boxes of matrices";
        Err(RuntimeError::invalid(format!("map of {}", map.of), &self.info().name, allowed))
    }
    /// Launches a kernel with one argument, passed by value.
    ///
    /// # Safety
    /// `args` has to be what the kernel takes, and its pointers valid for what the kernel does with them.
    unsafe fn launch(
        &self,
        function: RawFunction,
        config: &LaunchConfig,
        args: &[u64],
        stream: RawStream,
    ) -> Result<()>;

    /// Makes a stream that does not wait for the default one.
    fn create_stream(&self) -> Result<RawStream<'static>>;
    /// Destroys a stream.
    ///
    /// # Safety
    /// It is not used any more, and destroyed once.
    unsafe fn destroy_stream(&self, stream: RawStream) -> Result<()>;
    /// Whether everything on a stream has ended.
    fn stream_done(&self, stream: RawStream) -> Result<bool>;
    /// Waits until everything on a stream has ended.
    fn synchronize_stream(&self, stream: RawStream) -> Result<()>;

    /// Makes an event that takes the time.
    fn create_event(&self) -> Result<RawEvent>;
    /// Destroys an event.
    ///
    /// # Safety
    /// It is not used any more, and destroyed once.
    unsafe fn destroy_event(&self, event: RawEvent) -> Result<()>;
    /// Records an event on a stream.
    fn record(&self, event: RawEvent, stream: RawStream) -> Result<()>;
    /// Time between two events that have both happened.
    fn elapsed(&self, start: RawEvent, end: RawEvent) -> Result<Duration>;

    /// Begins to record what is launched on a stream instead of launching it.
    fn begin_capture(&self, stream: RawStream) -> Result<()>;
    /// Ends it; what was recorded can then be launched as a whole.
    fn end_capture(&self, stream: RawStream) -> Result<RawGraph>;
    /// Launches a graph.
    ///
    /// # Safety
    /// What was captured in it may be launched, and it is not being launched by another thread.
    unsafe fn launch_graph(&self, graph: RawGraph, stream: RawStream) -> Result<()>;
    /// Destroys a graph.
    ///
    /// # Safety
    /// It is not used any more, and destroyed once.
    unsafe fn destroy_graph(&self, graph: RawGraph) -> Result<()>;
}

/// The error of a GPU whose blocks stay where they are mapped.
pub(super) fn fixed(gpu: &GpuInfo) -> RuntimeError {
    RuntimeError::invalid(
        "memory of a world that goes on without a process",
        &gpu.name,
        "shared by VMM, on NVIDIA's GPUs",
    )
}
