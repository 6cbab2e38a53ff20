//! The interface of NCCL's RMA plug-ins, versions 14 to 16, in C's layout. `tests/layout.rs` compares it with NCCL's headers.

use std::ffi::{c_char, c_int, c_ulong, c_void};

/// A result of a call, `ncclResult_t`.
pub type Status = c_int;
/// The call did what it was asked for.
pub const SUCCESS: Status = 0;
/// A call of CUDA failed.
pub const UNHANDLED_CUDA_ERROR: Status = 1;
/// A call of the system failed.
pub const SYSTEM_ERROR: Status = 2;
/// The library is wrong.
pub const INTERNAL_ERROR: Status = 3;
/// An argument is wrong.
pub const INVALID_ARGUMENT: Status = 4;
/// The call is not offered, or not now.
pub const INVALID_USAGE: Status = 5;
/// A peer failed.
pub const REMOTE_ERROR: Status = 6;

/// Type of memory that the host addresses.
pub const HOST_MEMORY: c_int = 1;
/// Type of memory of a GPU.
pub const GPU_MEMORY: c_int = 2;
/// Flag of a region that takes signals.
pub const FORCE_STRONG_ORDER: u64 = 1;
/// Flag of a region whose signals only the card writes.
pub const SIGNAL_NEVER_RESET: u64 = 2;
/// A signal grows by 1.
pub const SIGNAL_INCREMENT: u32 = 1;
/// A signal grows by the call's value.
pub const SIGNAL_ADD: u32 = 2;
/// Bytes of a listener's handle.
pub const HANDLE_BYTES: usize = 128;
/// The type of device that makes NCCL use its proxy for GIN.
pub const GIN_PROXY: c_int = 2;
/// Level of a warning in NCCL's log.
pub const LOG_WARN: c_int = 2;
/// NCCL's subsystem for networks in its log.
pub const LOG_NET: c_ulong = 16;

/// NCCL's log: level, subsystem, file, line, format and its values.
pub type Logger = Option<
    unsafe extern "C" fn(c_int, c_ulong, file: *const c_char, line: c_int, format: *const c_char, ...),
>;

/// The physical devices of a virtual one.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct VirtualDevice {
    /// How many there are.
    pub ndevs: c_int,
    /// Their numbers.
    pub devs: [c_int; 8],
}

/// What a card is, `ncclNetProperties_v12_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "NCCL's fields, in its words")]
pub struct Properties {
    pub name: *const c_char,
    pub pci_path: *const c_char,
    pub guid: u64,
    /// Types of memory, as bits.
    pub ptr_support: c_int,
    pub reg_is_global: c_int,
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    pub max_comms: c_int,
    /// NCCL's queue of a peer and a context takes 32 times as many puts.
    pub max_recvs: c_int,
    pub net_device_type: c_int,
    pub net_device_version: c_int,
    pub v_props: VirtualDevice,
    pub max_p2p_bytes: usize,
    pub max_coll_bytes: usize,
    pub max_multi_request_size: c_int,
    pub rail_id: i16,
    pub plane_id: i16,
}

/// Contexts that a communicator asks for, `ncclRmaConfig_v14_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// How many.
    pub contexts: c_int,
    /// Class of traffic.
    pub traffic_class: c_int,
    /// Distance of ranks that are connected.
    pub rank_stride: c_int,
}

/// What a card's signals promise, `ncclRmaProperties_v16_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RmaProperties {
    /// Whether any signal makes all puts visible that arrived before it.
    pub flushes_all_puts_on_any_signal: bool,
}

/// An object of the card that NCCL holds: a number, not an address.
pub type Handle = *mut c_void;

/// `init(context, communicator, log)`.
pub type Init = unsafe extern "C" fn(*mut Handle, u64, Logger) -> Status;
/// `devices(count)`.
pub type Devices = unsafe extern "C" fn(*mut c_int) -> Status;
/// `getRmaProperties(collective, properties)`.
pub type GetRmaProperties = unsafe extern "C" fn(Handle, *mut RmaProperties) -> Status;
/// `getProperties(device, properties)`.
pub type GetProperties = unsafe extern "C" fn(c_int, *mut Properties) -> Status;

/// Calls that set up and tear down.
#[repr(C)]
pub struct Setup {
    /// `listen(context, device, handle, listener)`.
    pub listen: unsafe extern "C" fn(Handle, c_int, *mut c_void, *mut Handle) -> Status,
    /// `connect(context, handles, ranks, rank, listener, collective)`.
    pub connect: unsafe extern "C" fn(Handle, *mut *mut c_void, c_int, c_int, Handle, *mut Handle) -> Status,
    /// `createContext(collective, config, context)`.
    pub create_context: unsafe extern "C" fn(Handle, *mut Config, *mut Handle) -> Status,
    /// `regMrSym(collective, address, bytes, type, flags, region)`.
    pub register: unsafe extern "C" fn(Handle, *mut c_void, usize, c_int, u64, *mut Handle) -> Status,
    /// `regMrSymDmaBuf(collective, address, bytes, type, offset, file, flags, region)`.
    pub register_dma_buf:
        unsafe extern "C" fn(Handle, *mut c_void, usize, c_int, u64, c_int, u64, *mut Handle) -> Status,
    /// `deregMrSym(collective, region)`.
    pub deregister: unsafe extern "C" fn(Handle, Handle) -> Status,
    /// `destroyContext(context)`.
    pub destroy_context: unsafe extern "C" fn(Handle) -> Status,
    /// `closeColl(collective)`.
    pub close_collective: unsafe extern "C" fn(Handle) -> Status,
    /// `closeListen(listener)`.
    pub close_listener: unsafe extern "C" fn(Handle) -> Status,
}

/// Calls that carry bytes, from version 15 on: with flags for options.
#[repr(C)]
pub struct Puts {
    /// `iput(context, number, from, source, bytes, to, target, rank, options, request)`.
    pub put:
        unsafe extern "C" fn(Handle, c_int, u64, Handle, usize, u64, Handle, u32, u32, *mut Handle) -> Status,
    /// `iputSignal(.., rank, at, signals, value, operation, is_strong, options, request)`.
    pub put_signal: unsafe extern "C" fn(
        Handle,
        c_int,
        u64,
        Handle,
        usize,
        u64,
        Handle,
        u32,
        u64,
        Handle,
        u64,
        u32,
        bool,
        u32,
        *mut Handle,
    ) -> Status,
    /// `iget(context, number, from, source, bytes, to, target, rank, options, request)`.
    pub get:
        unsafe extern "C" fn(Handle, c_int, u64, Handle, usize, u64, Handle, u32, u32, *mut Handle) -> Status,
}

/// Calls that carry bytes, in version 14: without flags for options.
#[repr(C)]
pub struct Puts14 {
    /// As [`Puts::put`].
    pub put: unsafe extern "C" fn(Handle, c_int, u64, Handle, usize, u64, Handle, u32, *mut Handle) -> Status,
    /// As [`Puts::put_signal`].
    pub put_signal: unsafe extern "C" fn(
        Handle,
        c_int,
        u64,
        Handle,
        usize,
        u64,
        Handle,
        u32,
        u64,
        Handle,
        u64,
        u32,
        bool,
        *mut Handle,
    ) -> Status,
    /// As [`Puts::get`].
    pub get: unsafe extern "C" fn(Handle, c_int, u64, Handle, usize, u64, Handle, u32, *mut Handle) -> Status,
}

/// Calls that let puts end.
#[repr(C)]
pub struct Ends {
    /// `iflush(context, number, region, rank, request)`.
    pub flush: unsafe extern "C" fn(Handle, c_int, Handle, u32, *mut Handle) -> Status,
    /// `test(collective, request, done)`.
    pub test: unsafe extern "C" fn(Handle, Handle, *mut c_int) -> Status,
    /// `rmaProgress(context)`.
    pub progress: unsafe extern "C" fn(Handle) -> Status,
    /// `queryLastError(context, has_error)`.
    pub last_error: unsafe extern "C" fn(Handle, *mut bool) -> Status,
    /// `finalize(context)`.
    pub finalize: unsafe extern "C" fn(Handle) -> Status,
}

/// `ncclRma_v16_t`.
#[repr(C)]
#[allow(missing_docs, reason = "each type says what it holds")]
pub struct Table16 {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub rma_properties: GetRmaProperties,
    pub properties: GetProperties,
    pub setup: Setup,
    pub puts: Puts,
    pub ends: Ends,
}

/// `ncclRma_v15_t`.
#[repr(C)]
#[allow(missing_docs, reason = "each type says what it holds")]
pub struct Table15 {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub properties: GetProperties,
    pub setup: Setup,
    pub puts: Puts,
    pub ends: Ends,
}

/// `ncclRma_v14_t`.
#[repr(C)]
#[allow(missing_docs, reason = "each type says what it holds")]
pub struct Table14 {
    pub name: *const c_char,
    pub init: Init,
    pub devices: Devices,
    pub properties: GetProperties,
    pub setup: Setup,
    pub puts: Puts14,
    pub ends: Ends,
}

// SAFETY: the name is a constant of the program.
unsafe impl Sync for Table16 {}
// SAFETY: as above.
unsafe impl Sync for Table15 {}
// SAFETY: as above.
unsafe impl Sync for Table14 {}
