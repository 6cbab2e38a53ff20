//! Memory that several NVIDIA GPUs can reach. Multicast objects are never made.

use std::ffi::c_void;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use cudarc::driver::sys::{self, CUdevice_attribute};

use super::api::Api;
use super::gpu::{CudaGpu, attribute, cu};
use crate::runtime::RuntimeError;
use crate::runtime::gpu::{Gpu, RawStream, ShareHandle, SharedBlock, Sharing, fixed};

type Result<T> = std::result::Result<T, RuntimeError>;

const FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
const ALREADY_ENABLED: i32 = 704;
/// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
const UNSUPPORTED: i32 = 217;
/// Bytes of the pages that an IPC handle stands for.
const IPC_PAGE: u64 = 2 << 20;

/// How a device's memory can be shared.
pub(super) fn sharing(api: &Api, ordinal: u32, device: sys::CUdevice) -> Result<Vec<Sharing>> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as FDS,
        CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED as VMM,
    };
    let has = |of| Ok::<bool, RuntimeError>(attribute(api, ordinal, device, of)? != 0);
    let vmm = has(VMM)? && has(FDS)?;
    Ok(if vmm { vec![Sharing::Vmm, Sharing::Ipc] } else { vec![Sharing::Ipc] })
}

/// Physical memory of this GPU, mapped for `peers` too.
pub(super) fn create_vmm(gpu: &CudaGpu, bytes: u64, peers: &[u32]) -> Result<SharedBlock> {
    let props = properties(gpu);
    let bytes = padded(gpu, &props, bytes)?;
    let mut handle = 0;
    cu!(gpu, cuMemCreate(&mut handle, bytes as usize, &props, 0))?;
    mapped(gpu, handle, bytes, peers, false)
}

fn properties(gpu: &CudaGpu) -> sys::CUmemAllocationProp {
    // SAFETY: a struct of plain numbers, for which zero is a value.
    let mut props: sys::CUmemAllocationProp = unsafe { zeroed() };
    props.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.requestedHandleTypes = FD;
    props.location = location(gpu.device());
    props
}

fn location(device: sys::CUdevice) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn padded(gpu: &CudaGpu, props: &sys::CUmemAllocationProp, bytes: u64) -> Result<u64> {
    let mut unit = 0;
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    cu!(gpu, cuMemGetAllocationGranularity(&mut unit, props, minimum))?;
    Ok(bytes.max(1).next_multiple_of(unit as u64))
}

/// Maps physical memory and gives up the handle, which the mapping keeps alive; also when it fails.
fn mapped(
    gpu: &CudaGpu,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    peers: &[u32],
    imported: bool,
) -> Result<SharedBlock> {
    let block = map(gpu, handle, bytes, peers, imported);
    let released = cu!(gpu, cuMemRelease(handle));
    let block = block?;
    match released {
        Ok(()) => Ok(block),
        Err(e) => {
            let _ = free(gpu, &block);
            Err(e)
        }
    }
}

fn map(
    gpu: &CudaGpu,
    handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    peers: &[u32],
    imported: bool,
) -> Result<SharedBlock> {
    let size = bytes as usize;
    let mut ptr = 0;
    cu!(gpu, cuMemAddressReserve(&mut ptr, size, 0, 0, 0))?;
    if let Err(e) = cu!(gpu, cuMemMap(ptr, size, 0, handle, 0)) {
        let _ = cu!(gpu, cuMemAddressFree(ptr, size));
        return Err(e);
    }
    let block = SharedBlock { ptr, bytes, sharing: Sharing::Vmm, imported };
    if let Err(e) = allow(gpu, &block, peers) {
        let _ = free(gpu, &block);
        return Err(e);
    }
    Ok(block)
}

/// Lets this GPU and `peers` read and write a mapping.
fn allow(gpu: &CudaGpu, block: &SharedBlock, peers: &[u32]) -> Result<()> {
    let own = gpu.info().ordinal;
    let mut devices = vec![gpu.device()];
    for &peer in peers.iter().filter(|&&peer| peer != own) {
        let mut device = 0;
        cu!(gpu, cuDeviceGet(&mut device, peer as i32))?;
        devices.push(device);
    }
    let flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let access: Vec<sys::CUmemAccessDesc> =
        devices.into_iter().map(|d| sys::CUmemAccessDesc { location: location(d), flags }).collect();
    cu!(gpu, cuMemSetAccess(block.ptr, block.bytes as usize, access.as_ptr(), access.len()))
}

/// Plain memory, with peer access for `peers`.
pub(super) fn create_ipc(gpu: &CudaGpu, bytes: u64, peers: &[u32]) -> Result<SharedBlock> {
    let own = gpu.info().ordinal;
    for &peer in peers.iter().filter(|&&peer| peer != own) {
        let peer = CudaGpu::open(gpu.api(), peer)?;
        peer.enable_access_to(gpu)?;
    }
    // A handle shares the whole pages that the memory is in: nothing else must be in them.
    let bytes = bytes.max(1).next_multiple_of(IPC_PAGE);
    let ptr = gpu.alloc(bytes)?;
    Ok(SharedBlock { ptr, bytes, sharing: Sharing::Ipc, imported: false })
}

impl CudaGpu {
    /// Lets this GPU reach the plain memory of another one.
    fn enable_access_to(&self, other: &CudaGpu) -> Result<()> {
        self.enter()?;
        // SAFETY: the other context is retained for as long as `other` lives.
        match unsafe { (self.api().cuCtxEnablePeerAccess)(other.context(), 0) } {
            ALREADY_ENABLED => Ok(()),
            UNSUPPORTED => {
                let (from, to) = (self.info().ordinal, other.info().ordinal);
                Err(RuntimeError::NoPeerAccess { from, to, together: vec![] })
            }
            result => self.api().check("cuCtxEnablePeerAccess", Some(self.info().ordinal), result),
        }
    }
}

/// Gives a block other physical memory, at the addresses that it has.
pub(super) fn renew(gpu: &CudaGpu, block: &SharedBlock, keeps: bool) -> Result<()> {
    if block.sharing == Sharing::Ipc {
        return Err(fixed(gpu.info()));
    }
    let (props, size) = (properties(gpu), block.bytes as usize);
    let mut handle = 0;
    cu!(gpu, cuMemCreate(&mut handle, size, &props, 0))?;
    let copied = if keeps { copy_to(gpu, handle, block) } else { Ok(()) };
    let replaced =
        copied.and_then(|()| replace(gpu, block, |at, bytes| cu!(gpu, cuMemMap(at, bytes, 0, handle, 0))));
    replaced.and(cu!(gpu, cuMemRelease(handle)))
}

/// Copies a block to physical memory of its size, which is mapped for as long.
fn copy_to(gpu: &CudaGpu, handle: sys::CUmemGenericAllocationHandle, block: &SharedBlock) -> Result<()> {
    let other = map(gpu, handle, block.bytes, &[], false)?;
    let own = gpu.info().ordinal;
    // SAFETY: both are mapped, of that size, and nothing else uses them.
    let copied = unsafe { gpu.copy_to_peer(own, other.ptr, block.ptr, block.bytes, RawStream::DEFAULT) };
    let copied = copied.and_then(|()| gpu.synchronize());
    copied.and(free(gpu, &other))
}

/// Maps another process's physical memory at the addresses of a block.
pub(super) fn remap(gpu: &CudaGpu, block: &SharedBlock, handle: ShareHandle) -> Result<()> {
    let ShareHandle::Fd(fd) = handle else {
        let allowed = "a file descriptor: memory that goes by IPC stays where it is mapped";
        return Err(RuntimeError::invalid("handle of a block", "of IPC", allowed));
    };
    let mut physical = 0;
    // The driver wants the descriptor's number in place of a pointer, and keeps no hold of it.
    let number = fd.as_raw_fd() as usize as *mut c_void;
    cu!(gpu, cuMemImportFromShareableHandle(&mut physical, number, FD))?;
    let replaced = replace(gpu, block, |at, bytes| cu!(gpu, cuMemMap(at, bytes, 0, physical, 0)));
    replaced.and(cu!(gpu, cuMemRelease(physical)))
}

/// Maps one piece of memory of this GPU over and over at the addresses of a block.
pub(super) fn detach(gpu: &CudaGpu, block: &SharedBlock) -> Result<()> {
    let props = properties(gpu);
    let piece = padded(gpu, &props, 1)?;
    let mut handle = 0;
    cu!(gpu, cuMemCreate(&mut handle, piece as usize, &props, 0))?;
    let replaced = replace(gpu, block, |at, bytes| {
        let pieces = (0..bytes as u64).step_by(piece as usize);
        { pieces }.try_for_each(|from| {
            let bytes = piece.min(bytes as u64 - from);
            cu!(gpu, cuMemMap(at + from, bytes as usize, 0, handle, 0))
        })
    });
    replaced.and(cu!(gpu, cuMemRelease(handle)))
}

/// Unmaps what is at the addresses of a block, and maps something else there for this GPU.
fn replace(
    gpu: &CudaGpu,
    block: &SharedBlock,
    map: impl FnOnce(sys::CUdeviceptr, usize) -> Result<()>,
) -> Result<()> {
    cu!(gpu, cuMemUnmap(block.ptr, block.bytes as usize))?;
    map(block.ptr, block.bytes as usize)?;
    allow(gpu, block, &[])
}

/// What another process needs to map a block.
pub(super) fn export(gpu: &CudaGpu, block: &SharedBlock) -> Result<ShareHandle> {
    match block.sharing {
        Sharing::Vmm => {
            let mut handle = 0;
            cu!(gpu, cuMemRetainAllocationHandle(&mut handle, block.ptr as *mut c_void))?;
            let mut fd: RawFd = -1;
            let exported =
                cu!(gpu, cuMemExportToShareableHandle((&raw mut fd).cast::<c_void>(), handle, FD, 0));
            let _ = cu!(gpu, cuMemRelease(handle));
            exported?;
            // SAFETY: the driver just made it for us.
            Ok(ShareHandle::Fd(unsafe { OwnedFd::from_raw_fd(fd) }))
        }
        Sharing::Ipc => {
            // SAFETY: a struct of plain bytes.
            let mut handle: sys::CUipcMemHandle = unsafe { zeroed() };
            cu!(gpu, cuIpcGetMemHandle(&mut handle, block.ptr))?;
            Ok(ShareHandle::Ipc(handle.reserved.iter().map(|&b| b as u8).collect()))
        }
    }
}

/// Maps a block of another process.
pub(super) fn import(gpu: &CudaGpu, handle: ShareHandle, bytes: u64) -> Result<SharedBlock> {
    match handle {
        ShareHandle::Fd(fd) => {
            let mut physical = 0;
            // The driver wants the descriptor's number in place of a pointer, and keeps no hold of it.
            let number = fd.as_raw_fd() as usize as *mut c_void;
            cu!(gpu, cuMemImportFromShareableHandle(&mut physical, number, FD))?;
            mapped(gpu, physical, bytes, &[], true)
        }
        ShareHandle::Ipc(raw) => {
            // SAFETY: a struct of plain bytes.
            let mut handle: sys::CUipcMemHandle = unsafe { zeroed() };
            if raw.len() != handle.reserved.len() {
                let allowed = format!("{} bytes", handle.reserved.len());
                return Err(RuntimeError::invalid("IPC handle", format!("{} bytes", raw.len()), allowed));
            }
            for (to, from) in handle.reserved.iter_mut().zip(raw) {
                *to = from as _;
            }
            let mut ptr = 0;
            let lazy = sys::CUipcMem_flags::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
            cu!(gpu, cuIpcOpenMemHandle_v2(&mut ptr, handle, lazy))?;
            Ok(SharedBlock { ptr, bytes, sharing: Sharing::Ipc, imported: true })
        }
    }
}

/// Unmaps a block.
pub(super) fn free(gpu: &CudaGpu, block: &SharedBlock) -> Result<()> {
    match (block.sharing, block.imported) {
        (Sharing::Vmm, _) => {
            let size = block.bytes as usize;
            cu!(gpu, cuMemUnmap(block.ptr, size))?;
            cu!(gpu, cuMemAddressFree(block.ptr, size))
        }
        // SAFETY: as the caller says.
        (Sharing::Ipc, false) => unsafe { gpu.free(block.ptr) },
        (Sharing::Ipc, true) => cu!(gpu, cuIpcCloseMemHandle(block.ptr)),
    }
}
