//! The functions of AMD's HIP runtime that are used, found in `libamdhip64` when it is loaded.

use std::ffi::{OsStr, c_char, c_void};

use crate::build::library::{self, MissingCall, Unloadable, calls};
use crate::runtime::{RuntimeError, remedy};

/// An IPC handle: `hipIpcMemHandle_t`.
pub(in crate::runtime) type IpcHandle = [u8; 64];

/// `hipIpcMemHandle_t` is passed by value.
#[repr(C)]
#[derive(Clone, Copy)]
pub(in crate::runtime) struct IpcByValue(pub IpcHandle);

macro_rules! api {
    ($($name:ident($($argument:ident: $ty:ty),*);)*) => {
        calls! {
            /// HIP's functions, by HIP's names. All but one return an error's number, 0 for success.
            pub(in crate::runtime) struct Api {
                $($name($($argument: $ty),*);)*
                hipGetErrorString(error: i32) -> *const c_char;
            }
        }

        #[cfg(test)]
        impl Api {
            /// Functions that only write down that they were called.
            pub fn fake() -> Api {
                $(
                    #[allow(non_snake_case)]
                    // SAFETY: it reads none of its arguments.
                    unsafe extern "C" fn $name($(_: $ty),*) -> i32 {
                        super::tests::called(stringify!($name))
                    }
                )*
                // SAFETY: it reads none of its arguments.
                unsafe extern "C" fn words(_: i32) -> *const c_char {
                    c"told to".as_ptr()
                }
                Api { $($name,)* hipGetErrorString: words }
            }
        }
    };
}

type Ptr = *mut c_void;

api! {
    hipInit(flags: u32);
    hipGetDeviceCount(count: *mut i32);
    hipSetDevice(device: i32);
    hipGetDevicePropertiesR0600(properties: Ptr, device: i32);
    hipDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32);
    hipDeviceGetPCIBusId(text: *mut c_char, length: i32, device: i32);
    hipDeviceTotalMem(bytes: *mut usize, device: i32);
    hipDriverGetVersion(version: *mut i32);
    hipDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32);
    hipDeviceEnablePeerAccess(peer: i32, flags: u32);
    hipExtGetLinkTypeAndHopCount(device: i32, peer: i32, link: *mut u32, hops: *mut u32);
    hipMemcpyPeerAsync(to: Ptr, to_device: i32, from: Ptr, from_device: i32, bytes: usize, stream: Ptr);
    hipDeviceSynchronize();
    hipMalloc(ptr: *mut Ptr, bytes: usize);
    hipExtMallocWithFlags(ptr: *mut Ptr, bytes: usize, flags: u32);
    hipFree(ptr: Ptr);
    hipHostRegister(first: Ptr, bytes: usize, flags: u32);
    hipHostGetDevicePointer(ptr: *mut Ptr, first: Ptr, flags: u32);
    hipHostUnregister(first: Ptr);
    hipMemcpyHtoD(to: Ptr, from: Ptr, bytes: usize);
    hipMemcpyDtoH(to: Ptr, from: Ptr, bytes: usize);
    hipMemsetD8Async(to: Ptr, value: u8, count: usize, stream: Ptr);
    hipIpcGetMemHandle(handle: *mut IpcHandle, ptr: Ptr);
    hipIpcOpenMemHandle(ptr: *mut Ptr, handle: IpcByValue, flags: u32);
    hipIpcCloseMemHandle(ptr: Ptr);
    hipModuleLoadData(module: *mut Ptr, image: *const c_void);
    hipModuleUnload(module: Ptr);
    hipModuleGetFunction(function: *mut Ptr, module: Ptr, name: *const c_char);
    hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: Ptr, threads: i32, shared: usize);
    hipModuleLaunchKernel(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, parameters: *mut Ptr, extra: *mut Ptr
    );
    hipModuleLaunchCooperativeKernel(
        function: Ptr, grid_x: u32, grid_y: u32, grid_z: u32, block_x: u32, block_y: u32, block_z: u32, shared: u32,
        stream: Ptr, parameters: *mut Ptr
    );
    hipStreamCreateWithFlags(stream: *mut Ptr, flags: u32);
    hipStreamDestroy(stream: Ptr);
    hipStreamQuery(stream: Ptr);
    hipStreamSynchronize(stream: Ptr);
    hipEventCreate(event: *mut Ptr);
    hipEventDestroy(event: Ptr);
    hipEventRecord(event: Ptr, stream: Ptr);
    hipEventElapsedTime(milliseconds: *mut f32, start: Ptr, end: Ptr);
    hipStreamBeginCapture(stream: Ptr, mode: i32);
    hipStreamEndCapture(stream: Ptr, graph: *mut Ptr);
    hipGraphInstantiateWithFlags(ready: *mut Ptr, graph: Ptr, flags: u64);
    hipGraphLaunch(graph: Ptr, stream: Ptr);
    hipGraphDestroy(graph: Ptr);
    hipGraphExecDestroy(graph: Ptr);
}

/// What to install where HIP is not.
const INSTALL: &str = "install ROCm 6.0 or newer with the amdgpu driver (in a container: run it with `--device /dev/kfd \
                       --device /dev/dri`)";

impl Api {
    /// Loads HIP. It is never unloaded.
    pub fn load() -> Result<Api, RuntimeError> {
        Api::find(&["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"])
    }

    /// Finds the calls in the first of these libraries that can be loaded.
    pub fn find<N: AsRef<OsStr>>(names: &[N]) -> Result<Api, RuntimeError> {
        // SAFETY: AMD's library does nothing when it is loaded that could harm.
        let library = unsafe { library::open(names) }.map_err(|why| RuntimeError::NotInstalled {
            what: match why {
                Unloadable::Absent => "HIP (libamdhip64.so)".into(),
                Unloadable::Refused(reason) => format!("a HIP runtime that can be loaded ({reason})"),
            },
            install: INSTALL.into(),
        })?;
        // SAFETY: those are HIP's functions. `hipGetDevicePropertiesR0600` is there since HIP 6 only.
        unsafe { Api::of(library) }.map_err(|MissingCall(call)| RuntimeError::MissingCall {
            library: "HIP (libamdhip64.so)",
            call,
            install: INSTALL,
        })
    }

    /// The result of a call, with HIP's words and what to do.
    pub fn check(&self, call: &'static str, gpu: Option<u32>, result: i32) -> Result<(), RuntimeError> {
        if result == 0 {
            return Ok(());
        }
        // SAFETY: HIP's words are constants; for a number that it does not know it has words too.
        let text = unsafe { library::words((self.hipGetErrorString)(result)) };
        let text = text.unwrap_or_else(|| "HIP has no words for it".into());
        let reason = format!("{text} (error {result}): {}", remedy::hip(result));
        Err(RuntimeError::Driver { call, gpu, reason })
    }
}
