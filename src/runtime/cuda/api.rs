//! The functions of NVIDIA's driver that are used, found in `libcuda` when it is loaded.
//!
//! Results are numbers: a newer driver answers with numbers that an enum of today lacks.

use std::ffi::{OsStr, c_char, c_void};
use std::ptr::null;
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::INSTALL;
use crate::build::library::{self, MissingCall, Unloadable, calls};
use crate::runtime::{RuntimeError, remedy};

calls! {
    /// The driver's functions, by the driver's names. Each returns a `CUresult`, and is in all drivers from CUDA 12.4 on.
    pub(in crate::runtime) struct Api {
        cuDriverGetVersion(version: *mut i32);
        cuInit(flags: u32);
        cuGetErrorName(error: i32, text: *mut *const c_char);
        cuGetErrorString(error: i32, text: *mut *const c_char);
        cuDeviceGetCount(count: *mut i32);
        cuDeviceGet(device: *mut sys::CUdevice, ordinal: i32);
        cuDeviceGetName(name: *mut c_char, length: i32, device: sys::CUdevice);
        cuDeviceGetPCIBusId(text: *mut c_char, length: i32, device: sys::CUdevice);
        cuDeviceTotalMem_v2(bytes: *mut usize, device: sys::CUdevice);
        cuDeviceGetAttribute(value: *mut i32, attribute: sys::CUdevice_attribute, device: sys::CUdevice);
        cuDeviceGetP2PAttribute(
            value: *mut i32, attribute: sys::CUdevice_P2PAttribute, from: sys::CUdevice, to: sys::CUdevice
        );
        cuDeviceCanAccessPeer(can: *mut i32, device: sys::CUdevice, peer: sys::CUdevice);
        cuDevicePrimaryCtxRetain(context: *mut sys::CUcontext, device: sys::CUdevice);
        cuDevicePrimaryCtxRelease_v2(device: sys::CUdevice);
        cuCtxSetCurrent(context: sys::CUcontext);
        cuCtxEnablePeerAccess(peer_context: sys::CUcontext, flags: u32);
        cuCtxSynchronize();
        cuMemAlloc_v2(ptr: *mut sys::CUdeviceptr, bytes: usize);
        cuMemFree_v2(ptr: sys::CUdeviceptr);
        cuMemHostRegister_v2(first: *mut c_void, bytes: usize, flags: u32);
        cuMemHostGetDevicePointer_v2(ptr: *mut sys::CUdeviceptr, first: *mut c_void, flags: u32);
        cuMemHostUnregister(first: *mut c_void);
        cuMemcpyHtoD_v2(to: sys::CUdeviceptr, from: *const c_void, bytes: usize);
        cuMemcpyDtoH_v2(to: *mut c_void, from: sys::CUdeviceptr, bytes: usize);
        cuMemcpyPeerAsync(
            to: sys::CUdeviceptr, to_context: sys::CUcontext, from: sys::CUdeviceptr,
            from_context: sys::CUcontext, bytes: usize, stream: sys::CUstream
        );
        cuMemsetD8Async(to: sys::CUdeviceptr, value: u8, count: usize, stream: sys::CUstream);
        cuMemGetAllocationGranularity(
            granularity: *mut usize, properties: *const sys::CUmemAllocationProp,
            option: sys::CUmemAllocationGranularity_flags
        );
        cuMemCreate(
            handle: *mut sys::CUmemGenericAllocationHandle, size: usize,
            properties: *const sys::CUmemAllocationProp, flags: u64
        );
        cuMemRelease(handle: sys::CUmemGenericAllocationHandle);
        cuMemAddressReserve(
            ptr: *mut sys::CUdeviceptr, size: usize, alignment: usize, address: sys::CUdeviceptr,
            flags: u64
        );
        cuMemAddressFree(ptr: sys::CUdeviceptr, size: usize);
        cuMemMap(
            ptr: sys::CUdeviceptr, size: usize, offset: usize, handle: sys::CUmemGenericAllocationHandle,
            flags: u64
        );
        cuMemUnmap(ptr: sys::CUdeviceptr, size: usize);
        cuMemSetAccess(ptr: sys::CUdeviceptr, size: usize, access: *const sys::CUmemAccessDesc, count: usize);
        cuMemRetainAllocationHandle(handle: *mut sys::CUmemGenericAllocationHandle, address: *mut c_void);
        cuMemExportToShareableHandle(
            shareable_handle: *mut c_void, handle: sys::CUmemGenericAllocationHandle,
            handle_type: sys::CUmemAllocationHandleType, flags: u64
        );
        cuMemImportFromShareableHandle(
            handle: *mut sys::CUmemGenericAllocationHandle, os_handle: *mut c_void,
            sh_handle_type: sys::CUmemAllocationHandleType
        );
        cuIpcGetMemHandle(handle: *mut sys::CUipcMemHandle, ptr: sys::CUdeviceptr);
        cuIpcOpenMemHandle_v2(ptr: *mut sys::CUdeviceptr, handle: sys::CUipcMemHandle, flags: u32);
        cuIpcCloseMemHandle(ptr: sys::CUdeviceptr);
        cuModuleLoadData(module: *mut sys::CUmodule, image: *const c_void);
        cuModuleUnload(module: sys::CUmodule);
        cuModuleGetFunction(function: *mut sys::CUfunction, module: sys::CUmodule, name: *const c_char);
        cuFuncLoad(function: sys::CUfunction);
        cuFuncSetAttribute(function: sys::CUfunction, attribute: sys::CUfunction_attribute, value: i32);
        cuFuncGetAttribute(value: *mut i32, attribute: sys::CUfunction_attribute, function: sys::CUfunction);
        cuOccupancyMaxActiveClusters(
            clusters: *mut i32, function: sys::CUfunction, config: *const sys::CUlaunchConfig
        );
        cuOccupancyMaxActiveBlocksPerMultiprocessor(
            blocks: *mut i32, function: sys::CUfunction, threads: i32, shared: usize
        );
        cuTensorMapEncodeTiled(
            tensor_map: *mut sys::CUtensorMap, tensor_data_type: sys::CUtensorMapDataType,
            tensor_rank: u32, global_address: *mut c_void, global_dim: *const u64,
            global_strides: *const u64, box_dim: *const u32, element_strides: *const u32,
            interleave: sys::CUtensorMapInterleave, swizzle: sys::CUtensorMapSwizzle,
            l2_promotion: sys::CUtensorMapL2promotion, oob_fill: sys::CUtensorMapFloatOOBfill
        );
        cuLaunchKernelEx(
            config: *const sys::CUlaunchConfig, function: sys::CUfunction, kernel_params: *mut *mut c_void,
            extra: *mut *mut c_void
        );
        cuStreamCreate(stream: *mut sys::CUstream, flags: u32);
        cuStreamDestroy_v2(stream: sys::CUstream);
        cuStreamQuery(stream: sys::CUstream);
        cuStreamSynchronize(stream: sys::CUstream);
        cuStreamBeginCapture_v2(stream: sys::CUstream, mode: sys::CUstreamCaptureMode);
        cuStreamEndCapture(stream: sys::CUstream, graph: *mut sys::CUgraph);
        cuEventCreate(event: *mut sys::CUevent, flags: u32);
        cuEventDestroy_v2(event: sys::CUevent);
        cuEventRecord(event: sys::CUevent, stream: sys::CUstream);
        cuEventElapsedTime(milliseconds: *mut f32, start: sys::CUevent, end: sys::CUevent);
        cuGraphInstantiateWithFlags(ready: *mut sys::CUgraphExec, graph: sys::CUgraph, flags: u64);
        cuGraphDestroy(graph: sys::CUgraph);
        cuGraphLaunch(ready: sys::CUgraphExec, stream: sys::CUstream);
        cuGraphExecDestroy(ready: sys::CUgraphExec);
    }
}

/// The driver's name with the linker. `libcuda.so` is often the toolkit's stub.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

impl Api {
    /// Loads the driver, once in a process.
    pub fn load() -> Result<&'static Api, RuntimeError> {
        static LOADED: OnceLock<Api> = OnceLock::new();
        if let Some(api) = LOADED.get() {
            return Ok(api);
        }
        let api = Api::find(&NAMES)?;
        Ok(LOADED.get_or_init(|| api))
    }

    /// Finds the calls in the first of these libraries that can be loaded.
    pub fn find<N: AsRef<OsStr>>(names: &[N]) -> Result<Api, RuntimeError> {
        // SAFETY: it is the driver, whose initialisers the system trusts.
        let library = unsafe { library::open(names) }.map_err(|why| RuntimeError::NotInstalled {
            what: match why {
                Unloadable::Absent => "the NVIDIA driver (libcuda.so.1)".into(),
                Unloadable::Refused(reason) => format!("an NVIDIA driver that can be loaded ({reason})"),
            },
            install: INSTALL.into(),
        })?;
        let missing = |MissingCall(call)| RuntimeError::MissingCall {
            library: "the NVIDIA driver (libcuda.so.1)",
            call,
            install: INSTALL,
        };
        // Old drivers lack calls: their version says more than the first call that they lack.
        // SAFETY: the call has this type in all versions, and writes the one number.
        unsafe {
            let call = "cuDriverGetVersion";
            let version_of: unsafe extern "C" fn(*mut i32) -> i32 =
                library::call(library, call).map_err(missing)?;
            let mut version = 0;
            if version_of(&mut version) == 0 && version < super::DRIVER {
                return Err(super::too_old(version));
            }
        }
        // SAFETY: those are the driver's functions.
        unsafe { Api::of(library) }.map_err(missing)
    }

    /// The result of a call, with the driver's words and what to do.
    pub fn check(&self, call: &'static str, gpu: Option<u32>, result: i32) -> Result<(), RuntimeError> {
        if result == 0 {
            return Ok(());
        }
        let words = |of: unsafe extern "C" fn(i32, *mut *const c_char) -> i32| {
            let mut text = null();
            // SAFETY: the driver writes null or one of its constants.
            unsafe { if of(result, &mut text) == 0 { library::words(text) } else { None } }
        };
        let text = words(self.cuGetErrorString).unwrap_or_else(|| "the driver has no words for it".into());
        let name = words(self.cuGetErrorName).map_or_else(String::new, |name| format!("{name}, "));
        let reason = format!("{text} ({name}error {result}): {}", remedy::cuda(result));
        Err(RuntimeError::Driver { call, gpu, reason })
    }
}
