//! One AMD GPU.

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::time::Duration;

use peerwarp_codegen::family::{HipArch, Target};

use super::UNTESTED;
use super::api::{Api, IpcByValue, IpcHandle};
use crate::runtime::gpu::{
    DevicePtr, Gpu, GpuInfo, LaunchConfig, PeerLink, RawEvent, RawFunction, RawGraph, RawModule, RawStream,
    ShareHandle, SharedBlock, Sharing,
};
use crate::runtime::{RuntimeError, module};

type Result<T> = std::result::Result<T, RuntimeError>;

/// `hipDeviceAttributeMultiprocessorCount`.
const MULTIPROCESSORS: i32 = 63;
/// Bytes of `hipDeviceProp_tR0600`, and room for what later versions add.
const PROPERTIES: usize = 4096;
/// Where its `gcnArchName` starts: `gfx942:sramecc+:xnack-`.
const ARCH: usize = 1160;
/// `hipDeviceMallocFinegrained`: other GPUs see stores, and are seen, while a kernel runs.
const FINE_GRAINED: u32 = 1;
/// `hipStreamNonBlocking`.
const NON_BLOCKING: u32 = 1;
/// `hipIpcMemLazyEnablePeerAccess`.
const LAZY_PEER_ACCESS: u32 = 1;
/// `hipStreamCaptureModeThreadLocal`.
const THREAD_LOCAL: i32 = 1;
/// `hipErrorNotReady`.
const NOT_READY: i32 = 600;
/// `hipErrorPeerAccessAlreadyEnabled`.
const ALREADY_ENABLED: i32 = 704;
/// `hipErrorPeerAccessUnsupported`.
const UNSUPPORTED: i32 = 217;
/// `HSA_AMD_LINK_INFO_TYPE_PCIE`.
const LINK_PCIE: u32 = 2;
/// `HSA_AMD_LINK_INFO_TYPE_XGMI`.
const LINK_XGMI: u32 = 4;

/// An AMD GPU.
#[derive(Debug)]
pub struct HipGpu {
    api: Api,
    info: GpuInfo,
}

/// Calls a function of HIP with this GPU as the thread's device.
/// `hipHostRegisterPortable`: for all contexts.
const HOST_PORTABLE: u32 = 1;
/// `hipHostRegisterMapped`: kernels reach it.
const HOST_MAPPED: u32 = 2;

macro_rules! hip {
    ($gpu:expr, $call:ident($($argument:expr),* $(,)?)) => {{
        let (api, at) = (&$gpu.api, Some($gpu.info.ordinal));
        // SAFETY: handles and pointers come from this GPU and are alive, as the trait demands.
        $gpu.enter().and_then(|()| api.check(stringify!($call), at, unsafe { (api.$call)($($argument),*) }))
    }};
}

fn at(ptr: u64) -> *mut c_void {
    ptr as *mut c_void
}

impl HipGpu {
    /// The GPU with this number among those that HIP shows.
    pub(super) fn open(api: Api, ordinal: u32) -> Result<HipGpu> {
        let (device, gpu) = (ordinal as i32, Some(ordinal));
        let check = |call, result| api.check(call, gpu, result);
        let mut properties = [0u8; PROPERTIES];
        let (mut sms, mut memory, mut driver) = (0, 0, 0);
        let mut bus_id: [c_char; 32] = [0; 32];
        // SAFETY: all buffers are as large as HIP expects.
        unsafe {
            let into = properties.as_mut_ptr().cast::<c_void>();
            check("hipGetDeviceProperties", (api.hipGetDevicePropertiesR0600)(into, device))?;
            let found = (api.hipDeviceGetAttribute)(&mut sms, MULTIPROCESSORS, device);
            check("hipDeviceGetAttribute", found)?;
            check("hipDeviceGetPCIBusId", (api.hipDeviceGetPCIBusId)(bus_id.as_mut_ptr(), 32, device))?;
            check("hipDeviceTotalMem", (api.hipDeviceTotalMem)(&mut memory, device))?;
            check("hipDriverGetVersion", (api.hipDriverGetVersion)(&mut driver))?;
        }
        let (name, arch) = (text(&properties[..256]), text(&properties[ARCH..]));
        let bus_id: Vec<u8> = bus_id.iter().map(|&c| c as u8).collect();
        let info = GpuInfo {
            ordinal,
            target: target(ordinal, &name, &arch)?,
            name,
            bus_id: text(&bus_id),
            sms: sms as u32,
            memory: memory as u64,
            driver: format!("HIP {}.{}", driver / 10_000_000, driver / 100_000 % 100),
        };
        Ok(HipGpu { api, info })
    }

    /// Makes it the device of this thread.
    fn enter(&self) -> Result<()> {
        self.make_current(self.info.ordinal)
    }

    fn make_current(&self, ordinal: u32) -> Result<()> {
        // SAFETY: the function is the library's, which checks the number.
        let entered = unsafe { (self.api.hipSetDevice)(ordinal as i32) };
        self.api.check("hipSetDevice", Some(ordinal), entered)
    }

    /// Lets another GPU reach this one's memory.
    fn allow(&self, peer: u32) -> Result<()> {
        self.make_current(peer)?;
        // SAFETY: the function is the library's, which checks the number.
        match unsafe { (self.api.hipDeviceEnablePeerAccess)(self.info.ordinal as i32, 0) } {
            ALREADY_ENABLED => Ok(()),
            UNSUPPORTED => {
                Err(RuntimeError::NoPeerAccess { from: peer, to: self.info.ordinal, together: vec![] })
            }
            result => self.api.check("hipDeviceEnablePeerAccess", Some(peer), result),
        }
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn target(gpu: u32, name: &str, arch: &str) -> Result<Target> {
    let base = arch.split(':').next().unwrap_or_default();
    let known = HipArch::ALL.iter().find(|known| known.name() == base);
    known.map(|&arch| Target::Hip(arch)).ok_or_else(|| RuntimeError::Unsupported {
        gpu,
        name: name.to_owned(),
        arch: arch.to_owned(),
        allowed: "gfx90a, gfx942, gfx950 and gfx1250 are".into(),
    })
}

// SAFETY: it gives out what the library gave, and keeps it until it is given back.
unsafe impl Gpu for HipGpu {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn untested(&self) -> Option<&'static str> {
        Some(UNTESTED)
    }

    fn can_access(&self, peer: u32) -> Result<bool> {
        let mut can = 0;
        if peer != self.info.ordinal {
            hip!(self, hipDeviceCanAccessPeer(&mut can, self.info.ordinal as i32, peer as i32))?;
        }
        Ok(can != 0 || peer == self.info.ordinal)
    }

    fn peer_link(&self, peer: u32) -> Result<PeerLink> {
        let (mut link, mut hops) = (0, 0);
        let (own, peer) = (self.info.ordinal as i32, peer as i32);
        hip!(self, hipExtGetLinkTypeAndHopCount(own, peer, &mut link, &mut hops))?;
        Ok(match link {
            LINK_PCIE => PeerLink::Pcie,
            LINK_XGMI => PeerLink::Xgmi,
            _ => PeerLink::Unknown,
        })
    }

    fn synchronize(&self) -> Result<()> {
        hip!(self, hipDeviceSynchronize())
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        let mut ptr = null_mut();
        hip!(self, hipMalloc(&mut ptr, bytes as usize))?;
        Ok(ptr as u64)
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        hip!(self, hipFree(at(ptr)))
    }

    unsafe fn upload(&self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        // HIP takes the source as if it were to be written.
        hip!(self, hipMemcpyHtoD(at(to), bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len()))
    }

    unsafe fn download(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        hip!(self, hipMemcpyDtoH(bytes.as_mut_ptr().cast::<c_void>(), at(from), bytes.len()))
    }

    unsafe fn fill(&self, to: DevicePtr, bytes: u64, value: u8, on: RawStream) -> Result<()> {
        hip!(self, hipMemsetD8Async(at(to), value, bytes as usize, at(on.raw())))
    }

    unsafe fn map_host(&self, first: *mut c_void, bytes: u64) -> Result<DevicePtr> {
        let mut ptr = std::ptr::null_mut();
        hip!(self, hipHostRegister(first, bytes as usize, HOST_PORTABLE | HOST_MAPPED))?;
        hip!(self, hipHostGetDevicePointer(&mut ptr, first, 0))?;
        Ok(ptr as DevicePtr)
    }

    unsafe fn unmap_host(&self, first: *mut c_void) -> Result<()> {
        hip!(self, hipHostUnregister(first))
    }

    unsafe fn copy_to_peer(
        &self,
        peer: u32,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        on: RawStream,
    ) -> Result<()> {
        let (own, peer) = (self.info.ordinal as i32, peer as i32);
        hip!(self, hipMemcpyPeerAsync(at(to), peer, at(from), own, bytes as usize, at(on.raw())))
    }

    fn sharing(&self) -> &[Sharing] {
        // Memory of HIP's virtual memory management cannot be fine-grained.
        &[Sharing::Ipc]
    }

    fn alloc_shared(&self, bytes: u64, sharing: Sharing, peers: &[u32]) -> Result<SharedBlock> {
        if sharing != Sharing::Ipc {
            return Err(RuntimeError::invalid("sharing", "vmm", "ipc on AMD GPUs"));
        }
        peers.iter().filter(|&&peer| peer != self.info.ordinal).try_for_each(|&peer| self.allow(peer))?;
        let mut ptr = null_mut();
        hip!(self, hipExtMallocWithFlags(&mut ptr, bytes.max(1) as usize, FINE_GRAINED))?;
        Ok(SharedBlock { ptr: ptr as u64, bytes, sharing, imported: false })
    }

    fn export(&self, block: &SharedBlock) -> Result<ShareHandle> {
        let mut handle: IpcHandle = [0; 64];
        hip!(self, hipIpcGetMemHandle(&mut handle, at(block.ptr)))?;
        Ok(ShareHandle::Ipc(handle.to_vec()))
    }

    fn import(&self, handle: ShareHandle, bytes: u64) -> Result<SharedBlock> {
        let raw = match handle {
            ShareHandle::Ipc(raw) => IpcHandle::try_from(raw).ok(),
            ShareHandle::Fd(_) => None,
        };
        let raw =
            raw.ok_or_else(|| RuntimeError::invalid("handle", "another kind", "an IPC handle of HIP"))?;
        let mut ptr = null_mut();
        hip!(self, hipIpcOpenMemHandle(&mut ptr, IpcByValue(raw), LAZY_PEER_ACCESS))?;
        Ok(SharedBlock { ptr: ptr as u64, bytes, sharing: Sharing::Ipc, imported: true })
    }

    unsafe fn free_shared(&self, block: &SharedBlock) -> Result<()> {
        match block.imported {
            true => hip!(self, hipIpcCloseMemHandle(at(block.ptr))),
            // SAFETY: as the caller says.
            false => unsafe { self.free(block.ptr) },
        }
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        module::check(image)?;
        let mut module = null_mut();
        hip!(self, hipModuleLoadData(&mut module, image.as_ptr().cast::<c_void>()))?;
        // SAFETY: HIP just gave it.
        Ok(unsafe { RawModule::from_raw(module as u64) })
    }

    unsafe fn unload(&self, module: RawModule) -> Result<()> {
        hip!(self, hipModuleUnload(at(module.raw())))
    }

    fn function(&self, module: RawModule, entry: &str, _: u32) -> Result<RawFunction> {
        let name =
            CString::new(entry).map_err(|_| RuntimeError::invalid("entry", entry, "a name without NUL"))?;
        let mut found = null_mut();
        hip!(self, hipModuleGetFunction(&mut found, at(module.raw()), name.as_ptr()))?;
        // SAFETY: HIP just gave it.
        Ok(unsafe { RawFunction::from_raw(found as u64) })
    }

    fn blocks_per_sm(&self, of: RawFunction, config: &LaunchConfig) -> Result<u32> {
        let mut blocks = 0;
        let (threads, shared) = (config.block_threads as i32, config.shared_bytes as usize);
        let of = at(of.raw());
        hip!(self, hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, of, threads, shared))?;
        Ok(blocks as u32)
    }

    unsafe fn launch(
        &self,
        of: RawFunction,
        config: &LaunchConfig,
        args: &[u64],
        on: RawStream,
    ) -> Result<()> {
        let LaunchConfig {
            grid, block_threads, shared_bytes, cooperative, cluster, overlaps_previous, ..
        } = *config;
        if cluster.is_some() || overlaps_previous {
            let allowed = "a launch without clusters that begins when the one before has ended, on AMD GPUs";
            return Err(RuntimeError::invalid("launch", format!("{config:?}"), allowed));
        }
        let (of, on) = (at(of.raw()), at(on.raw()));
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        let parameters = parameters.as_mut_ptr();
        let (threads, shared) = (block_threads, shared_bytes);
        if cooperative {
            let call = hip!(
                self,
                hipModuleLaunchCooperativeKernel(of, grid, 1, 1, threads, 1, 1, shared, on, parameters)
            );
            return call;
        }
        hip!(self, hipModuleLaunchKernel(of, grid, 1, 1, threads, 1, 1, shared, on, parameters, null_mut()))
    }

    fn create_stream(&self) -> Result<RawStream<'static>> {
        let mut made = null_mut();
        hip!(self, hipStreamCreateWithFlags(&mut made, NON_BLOCKING))?;
        // SAFETY: HIP just gave it.
        Ok(unsafe { RawStream::from_raw(made as u64) })
    }

    unsafe fn destroy_stream(&self, raw: RawStream) -> Result<()> {
        hip!(self, hipStreamDestroy(at(raw.raw())))
    }

    fn stream_done(&self, raw: RawStream) -> Result<bool> {
        self.enter()?;
        // SAFETY: the stream is alive, as its owner asks.
        match unsafe { (self.api.hipStreamQuery)(at(raw.raw())) } {
            NOT_READY => Ok(false),
            result => self.api.check("hipStreamQuery", Some(self.info.ordinal), result).map(|()| true),
        }
    }

    fn synchronize_stream(&self, raw: RawStream) -> Result<()> {
        hip!(self, hipStreamSynchronize(at(raw.raw())))
    }

    fn create_event(&self) -> Result<RawEvent> {
        let mut made = null_mut();
        hip!(self, hipEventCreate(&mut made))?;
        // SAFETY: HIP just gave it.
        Ok(unsafe { RawEvent::from_raw(made as u64) })
    }

    unsafe fn destroy_event(&self, raw: RawEvent) -> Result<()> {
        hip!(self, hipEventDestroy(at(raw.raw())))
    }

    fn record(&self, raw: RawEvent, on: RawStream) -> Result<()> {
        hip!(self, hipEventRecord(at(raw.raw()), at(on.raw())))
    }

    fn elapsed(&self, start: RawEvent, end: RawEvent) -> Result<Duration> {
        let mut milliseconds = 0f32;
        hip!(self, hipEventElapsedTime(&mut milliseconds, at(start.raw()), at(end.raw())))?;
        Ok(Duration::from_nanos((f64::from(milliseconds) * 1e6).max(0.0) as u64))
    }

    fn begin_capture(&self, on: RawStream) -> Result<()> {
        hip!(self, hipStreamBeginCapture(at(on.raw()), THREAD_LOCAL))
    }

    fn end_capture(&self, on: RawStream) -> Result<RawGraph> {
        let (mut graph, mut ready) = (null_mut(), null_mut());
        hip!(self, hipStreamEndCapture(at(on.raw()), &mut graph))?;
        let made = hip!(self, hipGraphInstantiateWithFlags(&mut ready, graph, 0));
        let _ = hip!(self, hipGraphDestroy(graph));
        // SAFETY: HIP just gave it.
        made.map(|()| unsafe { RawGraph::from_raw(ready as u64) })
    }

    unsafe fn launch_graph(&self, graph: RawGraph, on: RawStream) -> Result<()> {
        hip!(self, hipGraphLaunch(at(graph.raw()), at(on.raw())))
    }

    unsafe fn destroy_graph(&self, graph: RawGraph) -> Result<()> {
        hip!(self, hipGraphExecDestroy(at(graph.raw())))
    }
}
