//! One NVIDIA GPU.

use std::ffi::{CString, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use peerwarp_codegen::ir::Dtype;
use peerwarp_codegen::print::{TENSOR_MAP_BYTES, TensorMap};

use super::api::Api;
use super::{cuda_version, memory, target, text};
use crate::runtime::gpu::{
    DevicePtr, Gpu, GpuInfo, LaunchConfig, PeerLink, RawEvent, RawFunction, RawGraph, RawModule, RawStream,
    ShareHandle, SharedBlock, Sharing,
};
use crate::runtime::{RuntimeError, module};

/// `CUDA_ERROR_NOT_READY`.
const NOT_READY: i32 = 600;

type Result<T> = std::result::Result<T, RuntimeError>;

/// An NVIDIA GPU. It works in the device's primary context, which it shares with the CUDA runtime, with PyTorch and with
/// cudarc's safe API, so that their pointers and streams can be used with it.
#[derive(Debug)]
pub struct CudaGpu {
    api: &'static Api,
    info: GpuInfo,
    device: sys::CUdevice,
    context: sys::CUcontext,
    sharing: Vec<Sharing>,
}

// SAFETY: contexts may be used from any thread; each call makes it current on its own.
unsafe impl Send for CudaGpu {}
// SAFETY: as above; nothing of it changes after it was opened.
unsafe impl Sync for CudaGpu {}

/// Calls a function of the driver in this GPU's context.
macro_rules! cu {
    ($gpu:expr, $call:ident($($argument:expr),* $(,)?)) => {{
        let (api, at) = ($gpu.api(), Some($gpu.info().ordinal));
        // SAFETY: handles and pointers come from this GPU and are alive, as the trait demands.
        $gpu.enter().and_then(|()| api.check(stringify!($call), at, unsafe { (api.$call)($($argument),*) }))
    }};
}
pub(super) use cu;

impl CudaGpu {
    /// The GPU with this number among those that the driver shows. The driver has been initialised.
    pub(super) fn open(api: &'static Api, ordinal: u32) -> Result<Arc<CudaGpu>> {
        let at = Some(ordinal);
        let mut device = 0;
        // SAFETY: the driver is initialised, and writes the one number.
        api.check("cuDeviceGet", at, unsafe { (api.cuDeviceGet)(&mut device, ordinal as i32) })?;
        let info = info(api, ordinal, device)?;
        let sharing = memory::sharing(api, ordinal, device)?;
        let mut context = null_mut();
        // SAFETY: the driver gave the device, and writes the one handle.
        api.check("cuDevicePrimaryCtxRetain", at, unsafe {
            (api.cuDevicePrimaryCtxRetain)(&mut context, device)
        })?;
        Ok(Arc::new(CudaGpu { api, info, device, context, sharing }))
    }

    /// Makes its context the current one of this thread.
    pub(super) fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained for as long as `self` lives.
        let entered = unsafe { (self.api.cuCtxSetCurrent)(self.context) };
        self.api.check("cuCtxSetCurrent", Some(self.info.ordinal), entered)
    }

    /// The driver's calls.
    pub(super) fn api(&self) -> &'static Api {
        self.api
    }

    /// Its context.
    pub(super) fn context(&self) -> sys::CUcontext {
        self.context
    }

    /// The driver's number of the device.
    pub(super) fn device(&self) -> sys::CUdevice {
        self.device
    }
}

impl Drop for CudaGpu {
    fn drop(&mut self) {
        // SAFETY: it was retained once, when this was opened, and is released once.
        let _ = unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// A device's attribute.
pub(super) fn attribute(
    api: &Api,
    ordinal: u32,
    device: sys::CUdevice,
    attribute: CUdevice_attribute,
) -> Result<u32> {
    let mut value = 0;
    // SAFETY: the driver gave the device, and writes the one number.
    let got = unsafe { (api.cuDeviceGetAttribute)(&mut value, attribute, device) };
    api.check("cuDeviceGetAttribute", Some(ordinal), got)?;
    Ok(value as u32)
}

fn info(api: &Api, ordinal: u32, device: sys::CUdevice) -> Result<GpuInfo> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as SMS,
    };
    let at = Some(ordinal);
    let (mut name, mut bus_id) = ([0; 128], [0; 32]);
    let check = |call, result| api.check(call, at, result);
    let (mut memory, mut driver) = (0, 0);
    // SAFETY: the driver named this device. A call writes one number, or no more bytes than its length allows.
    unsafe {
        check("cuDeviceGetName", (api.cuDeviceGetName)(name.as_mut_ptr(), 128, device))?;
        check("cuDeviceGetPCIBusId", (api.cuDeviceGetPCIBusId)(bus_id.as_mut_ptr(), 32, device))?;
        check("cuDeviceTotalMem", (api.cuDeviceTotalMem_v2)(&mut memory, device))?;
        check("cuDriverGetVersion", (api.cuDriverGetVersion)(&mut driver))?;
    }
    let attribute = |of| attribute(api, ordinal, device, of);
    let (major, minor) = (attribute(MAJOR)?, attribute(MINOR)?);
    let name = text(&name);
    let target = target(major, minor).ok_or_else(|| RuntimeError::Unsupported {
        gpu: ordinal,
        name: name.clone(),
        arch: format!("sm_{major}{minor}"),
        allowed: "sm_80 and newer are".into(),
    })?;
    Ok(GpuInfo {
        ordinal,
        name,
        bus_id: text(&bus_id),
        target,
        sms: attribute(SMS)?,
        memory: memory as u64,
        driver: cuda_version(driver),
    })
}

/// `CU_MEMHOSTREGISTER_PORTABLE`: for all contexts.
const HOST_PORTABLE: u32 = 1;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`: kernels reach it.
const HOST_MAPPED: u32 = 2;

/// The attributes of a launch; unused ones are at the end.
fn attributes(config: &LaunchConfig) -> ([sys::CUlaunchAttribute; 3], u32) {
    use sys::CUlaunchAttributeID as Id;
    // SAFETY: a struct of plain numbers, for which zero is a value.
    let mut all: [sys::CUlaunchAttribute; 3] = unsafe { zeroed() };
    let mut count = 0;
    let mut next = |id| {
        all[count].id = id;
        count += 1;
        count - 1
    };
    let cooperative = config.cooperative.then(|| next(Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE));
    let cluster = config.cluster.map(|blocks| (next(Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION), blocks));
    let overlaps =
        config.overlaps_previous.then(|| next(Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION));
    if let Some(at) = cooperative {
        all[at].value.cooperative = 1;
    }
    if let Some((at, x)) = cluster {
        all[at].value.clusterDim = sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y: 1, z: 1 };
    }
    if let Some(at) = overlaps {
        all[at].value.programmaticStreamSerializationAllowed = 1;
    }
    (all, count as u32)
}

/// A launch on the stream of no name.
fn driver_config(
    config: &LaunchConfig,
    attributes: &mut [sys::CUlaunchAttribute],
    count: u32,
) -> sys::CUlaunchConfig {
    sys::CUlaunchConfig {
        gridDimX: config.grid,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: config.block_threads,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: config.shared_bytes,
        hStream: null_mut(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: count,
    }
}

fn stream(raw: RawStream) -> sys::CUstream {
    raw.raw() as sys::CUstream
}

fn event(raw: RawEvent) -> sys::CUevent {
    raw.raw() as sys::CUevent
}

fn function(raw: RawFunction) -> sys::CUfunction {
    raw.raw() as sys::CUfunction
}

// SAFETY: it gives out what the driver gave, and keeps it until it is given back.
unsafe impl Gpu for CudaGpu {
    fn info(&self) -> &GpuInfo {
        &self.info
    }

    fn can_access(&self, peer: u32) -> Result<bool> {
        if peer == self.info.ordinal {
            return Ok(true);
        }
        let (mut device, mut can) = (0, 0);
        cu!(self, cuDeviceGet(&mut device, peer as i32))?;
        cu!(self, cuDeviceCanAccessPeer(&mut can, self.device, device))?;
        Ok(can != 0)
    }

    fn peer_link(&self, peer: u32) -> Result<PeerLink> {
        let native = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
        let (mut device, mut has) = (0, 0);
        cu!(self, cuDeviceGet(&mut device, peer as i32))?;
        cu!(self, cuDeviceGetP2PAttribute(&mut has, native, self.device, device))?;
        // Atomics of a peer work over NVLink and not over PCIe.
        Ok(if has != 0 { PeerLink::NvLink } else { PeerLink::Pcie })
    }

    fn synchronize(&self) -> Result<()> {
        cu!(self, cuCtxSynchronize())
    }

    fn alloc(&self, bytes: u64) -> Result<DevicePtr> {
        let mut ptr = 0;
        cu!(self, cuMemAlloc_v2(&mut ptr, bytes as usize))?;
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: DevicePtr) -> Result<()> {
        cu!(self, cuMemFree_v2(ptr))
    }

    unsafe fn upload(&self, to: DevicePtr, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        cu!(self, cuMemcpyHtoD_v2(to, bytes.as_ptr().cast::<c_void>(), bytes.len()))?;
        // It returns when the bytes are on their way: streams that do not wait for the default one could still read the old ones.
        cu!(self, cuStreamSynchronize(stream(RawStream::DEFAULT)))
    }

    unsafe fn download(&self, from: DevicePtr, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        cu!(self, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast::<c_void>(), from, bytes.len()))
    }

    unsafe fn fill(&self, to: DevicePtr, bytes: u64, value: u8, on: RawStream) -> Result<()> {
        cu!(self, cuMemsetD8Async(to, value, bytes as usize, stream(on)))
    }

    unsafe fn map_host(&self, first: *mut c_void, bytes: u64) -> Result<DevicePtr> {
        let mut ptr = 0;
        cu!(self, cuMemHostRegister_v2(first, bytes as usize, HOST_PORTABLE | HOST_MAPPED))?;
        cu!(self, cuMemHostGetDevicePointer_v2(&mut ptr, first, 0))?;
        Ok(ptr)
    }

    unsafe fn unmap_host(&self, first: *mut c_void) -> Result<()> {
        cu!(self, cuMemHostUnregister(first))
    }

    unsafe fn copy_to_peer(
        &self,
        peer: u32,
        to: DevicePtr,
        from: DevicePtr,
        bytes: u64,
        on: RawStream,
    ) -> Result<()> {
        // Holds the context that the target is in, which its owner holds too.
        let peer = CudaGpu::open(self.api, peer)?;
        cu!(self, cuMemcpyPeerAsync(to, peer.context, from, self.context, bytes as usize, stream(on)))
    }

    fn sharing(&self) -> &[Sharing] {
        &self.sharing
    }

    fn alloc_shared(&self, bytes: u64, sharing: Sharing, peers: &[u32]) -> Result<SharedBlock> {
        match sharing {
            Sharing::Vmm => memory::create_vmm(self, bytes, peers),
            Sharing::Ipc => memory::create_ipc(self, bytes, peers),
        }
    }

    fn export(&self, block: &SharedBlock) -> Result<ShareHandle> {
        memory::export(self, block)
    }

    fn import(&self, handle: ShareHandle, bytes: u64) -> Result<SharedBlock> {
        memory::import(self, handle, bytes)
    }

    unsafe fn renew(&self, block: &SharedBlock, keeps: bool) -> Result<()> {
        self.enter()?;
        memory::renew(self, block, keeps)
    }

    unsafe fn remap(&self, block: &SharedBlock, handle: ShareHandle) -> Result<()> {
        self.enter()?;
        memory::remap(self, block, handle)
    }

    unsafe fn detach(&self, block: &SharedBlock) -> Result<()> {
        self.enter()?;
        memory::detach(self, block)
    }

    unsafe fn free_shared(&self, block: &SharedBlock) -> Result<()> {
        memory::free(self, block)
    }

    unsafe fn load(&self, image: &[u8]) -> Result<RawModule> {
        module::check(image)?;
        let mut module = null_mut();
        cu!(self, cuModuleLoadData(&mut module, image.as_ptr().cast::<c_void>()))?;
        // SAFETY: the driver just gave it.
        Ok(unsafe { RawModule::from_raw(module as u64) })
    }

    unsafe fn unload(&self, module: RawModule) -> Result<()> {
        cu!(self, cuModuleUnload(module.raw() as sys::CUmodule))
    }

    fn function(&self, module: RawModule, entry: &str, shared_bytes: u32) -> Result<RawFunction> {
        let mut found = null_mut();
        let name =
            CString::new(entry).map_err(|_| RuntimeError::invalid("entry", entry, "a name without NUL"))?;
        cu!(self, cuModuleGetFunction(&mut found, module.raw() as sys::CUmodule, name.as_ptr()))?;
        // Loading waits for the GPU to be idle, and must not happen while another kernel waits for this one.
        cu!(self, cuFuncLoad(found))?;
        let shared = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        cu!(self, cuFuncSetAttribute(found, shared, shared_bytes as i32))?;
        // SAFETY: the driver just gave it.
        Ok(unsafe { RawFunction::from_raw(found as u64) })
    }

    fn blocks_per_sm(&self, of: RawFunction, config: &LaunchConfig) -> Result<u32> {
        let mut blocks = 0;
        let (threads, shared) = (config.block_threads as i32, config.shared_bytes as usize);
        cu!(self, cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, function(of), threads, shared))?;
        Ok(blocks as u32)
    }

    fn clustered_blocks(&self, of: RawFunction, config: &LaunchConfig) -> Result<Option<u32>> {
        let (mut width, mut clusters) = (0, 0);
        let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH;
        cu!(self, cuFuncGetAttribute(&mut width, attribute, function(of)))?;
        if width == 0 {
            return Ok(None);
        }
        let launch = driver_config(config, &mut [], 0);
        cu!(self, cuOccupancyMaxActiveClusters(&mut clusters, function(of), &launch))?;
        Ok(Some((clusters * width) as u32))
    }

    fn tensor_map(&self, matrix: DevicePtr, map: &TensorMap) -> Result<[u64; TENSOR_MAP_BYTES as usize / 8]> {
        let mut made = sys::CUtensorMap { opaque: [0; TENSOR_MAP_BYTES as usize / 8] };
        let dtype = match map.dtype {
            Dtype::Fp16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Dtype::Bf16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            Dtype::Fp8 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
            Dtype::U32 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT32,
            other => {
                return Err(RuntimeError::invalid(format!("type of {}", map.of), other, "bf16, fp16 or fp8"));
            }
        };
        let sizes = [map.columns, map.rows];
        let strides = [map.columns * u64::from(map.dtype.bytes())];
        let (boxes, steps) = ([map.box_columns(), map.box_rows], [1, 1]);
        cu!(
            self,
            cuTensorMapEncodeTiled(
                &mut made,
                dtype,
                2,
                matrix as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                boxes.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        )?;
        Ok(made.opaque)
    }

    unsafe fn launch(
        &self,
        of: RawFunction,
        config: &LaunchConfig,
        args: &[u64],
        on: RawStream,
    ) -> Result<()> {
        let (mut attributes, count) = attributes(config);
        let launch =
            sys::CUlaunchConfig { hStream: stream(on), ..driver_config(config, &mut attributes, count) };
        // The driver copies as many bytes as the kernel's parameter has.
        let mut parameters = [args.as_ptr().cast_mut().cast::<c_void>()];
        cu!(self, cuLaunchKernelEx(&launch, function(of), parameters.as_mut_ptr(), null_mut()))
    }

    fn create_stream(&self) -> Result<RawStream<'static>> {
        let mut made = null_mut();
        cu!(self, cuStreamCreate(&mut made, sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32))?;
        // SAFETY: the driver just gave it.
        Ok(unsafe { RawStream::from_raw(made as u64) })
    }

    unsafe fn destroy_stream(&self, raw: RawStream) -> Result<()> {
        cu!(self, cuStreamDestroy_v2(stream(raw)))
    }

    fn stream_done(&self, raw: RawStream) -> Result<bool> {
        self.enter()?;
        // SAFETY: the stream is alive, as its owner asks.
        match unsafe { (self.api.cuStreamQuery)(stream(raw)) } {
            NOT_READY => Ok(false),
            other => self.api.check("cuStreamQuery", Some(self.info.ordinal), other).map(|()| true),
        }
    }

    fn synchronize_stream(&self, raw: RawStream) -> Result<()> {
        cu!(self, cuStreamSynchronize(stream(raw)))
    }

    fn create_event(&self) -> Result<RawEvent> {
        let mut made = null_mut();
        cu!(self, cuEventCreate(&mut made, sys::CUevent_flags::CU_EVENT_DEFAULT as u32))?;
        // SAFETY: the driver just gave it.
        Ok(unsafe { RawEvent::from_raw(made as u64) })
    }

    unsafe fn destroy_event(&self, raw: RawEvent) -> Result<()> {
        cu!(self, cuEventDestroy_v2(event(raw)))
    }

    fn record(&self, raw: RawEvent, on: RawStream) -> Result<()> {
        cu!(self, cuEventRecord(event(raw), stream(on)))
    }

    fn elapsed(&self, start: RawEvent, end: RawEvent) -> Result<Duration> {
        let mut milliseconds = 0f32;
        cu!(self, cuEventElapsedTime(&mut milliseconds, event(start), event(end)))?;
        Ok(Duration::from_nanos((f64::from(milliseconds) * 1e6).max(0.0) as u64))
    }

    fn begin_capture(&self, on: RawStream) -> Result<()> {
        // Calls of other threads are none of this capture's business.
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        cu!(self, cuStreamBeginCapture_v2(stream(on), mode))
    }

    fn end_capture(&self, on: RawStream) -> Result<RawGraph> {
        let (mut graph, mut ready) = (null_mut(), null_mut());
        cu!(self, cuStreamEndCapture(stream(on), &mut graph))?;
        let made = cu!(self, cuGraphInstantiateWithFlags(&mut ready, graph, 0));
        let _ = cu!(self, cuGraphDestroy(graph));
        // SAFETY: the driver just gave it.
        made.map(|()| unsafe { RawGraph::from_raw(ready as u64) })
    }

    unsafe fn launch_graph(&self, graph: RawGraph, on: RawStream) -> Result<()> {
        cu!(self, cuGraphLaunch(graph.raw() as sys::CUgraphExec, stream(on)))
    }

    unsafe fn destroy_graph(&self, graph: RawGraph) -> Result<()> {
        cu!(self, cuGraphExecDestroy(graph.raw() as sys::CUgraphExec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_asked_for_becomes_an_attribute() {
        use sys::CUlaunchAttributeID as Id;
        assert_eq!(attributes(&LaunchConfig::default()).1, 0);
        let config = LaunchConfig { cooperative: true, overlaps_previous: true, ..LaunchConfig::default() };
        let (all, count) = attributes(&config);
        assert_eq!(count, 2);
        assert_eq!(all[0].id, Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE);
        assert_eq!(all[1].id, Id::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION);
        // SAFETY: written as these members.
        unsafe {
            assert_eq!(all[0].value.cooperative, 1);
            assert_eq!(all[1].value.programmaticStreamSerializationAllowed, 1);
        }
        let (all, count) = attributes(&LaunchConfig { cluster: Some(4), ..LaunchConfig::default() });
        // SAFETY: written as this member.
        assert_eq!((count, unsafe { all[0].value.clusterDim.x }), (1, 4));
    }
}
