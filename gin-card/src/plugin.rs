//! The calls that NCCL makes, and the tables that it finds them in.
//!
//! Objects are numbers to NCCL; a wrong one is an error. Nothing unwinds into C.
#![allow(clippy::too_many_arguments, reason = "NCCL's calls")]

use std::any::Any;
use std::ffi::{c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{NonNull, null, null_mut, without_provenance_mut};

use crate::abi::{
    Config, Ends, FORCE_STRONG_ORDER, GIN_PROXY, GPU_MEMORY, HANDLE_BYTES, HOST_MEMORY, Handle,
    INTERNAL_ERROR, Logger, Properties, Puts, Puts14, RmaProperties, SIGNAL_ADD, SIGNAL_INCREMENT,
    SIGNAL_NEVER_RESET, SUCCESS, Setup, Status, Table14, Table15, Table16, VirtualDevice,
};
use crate::collective::{Collective, Put, RANKS, Signal};
use crate::error::CardError;
use crate::journal;
use crate::manners::Settings;
use crate::region::Memory;
use crate::registry::Registry;
use crate::segment::{Address, Listener};

static CARDS: Registry<Settings> = Registry::new("context of a network");
static LISTENERS: Registry<Listener> = Registry::new("listener");
static COLLECTIVES: Registry<Collective> = Registry::new("collective");
/// Contexts of a collective, by the collective's handle.
static CONTEXTS: Registry<usize> = Registry::new("context");

const NAME: &std::ffi::CStr = c"peerwarp-gin-card";

/// Runs a call, and says what goes wrong.
fn guard(call: impl FnOnce() -> Result<(), CardError>) -> Status {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(())) => SUCCESS,
        Ok(Err(e)) => {
            journal::say(&e.to_string());
            e.status()
        }
        Err(panic) => {
            let reason = panic_words(panic.as_ref());
            journal::say(&CardError::Internal { reason }.to_string());
            INTERNAL_ERROR
        }
    }
}

fn panic_words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "a panic".into())
}

/// Stores a result.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn give<T>(call: &'static str, to: *mut T, value: T) -> Result<(), CardError> {
    let to = NonNull::new(to).ok_or(CardError::Null { call, argument: "the result" })?;
    // SAFETY: as the caller says.
    unsafe { to.write(value) };
    Ok(())
}

fn in_range(field: &'static str, value: c_int, end: usize) -> Result<usize, CardError> {
    let error = || CardError::Range { field, value: value.into(), allowed: format!("0 to {}", end - 1) };
    usize::try_from(value).ok().filter(|value| *value < end).ok_or_else(error)
}

fn collective_of(context: Handle) -> Result<std::sync::Arc<Collective>, CardError> {
    COLLECTIVES.get(without_provenance_mut(*CONTEXTS.get(context)?))
}

// SAFETY: results can be written or are null, as NCCL's interface says; so in all calls below.
unsafe extern "C" fn init(context: *mut Handle, _communicator: u64, logger: Logger) -> Status {
    guard(|| {
        // SAFETY: NCCL's log is there until the process ends.
        unsafe { journal::set_logger(logger) };
        let settings = Settings::from_environment()?;
        // SAFETY: as above.
        unsafe { give("init", context, CARDS.insert(settings)) }
    })
}

// SAFETY: as at `init`.
unsafe extern "C" fn devices(count: *mut c_int) -> Status {
    // SAFETY: as above.
    guard(|| unsafe { give("devices", count, 1) })
}

// SAFETY: as at `init`.
unsafe extern "C" fn rma_properties(_collective: Handle, properties: *mut RmaProperties) -> Status {
    // SAFETY: as above.
    guard(|| unsafe { give("getRmaProperties", properties, RmaProperties::default()) })
}

// SAFETY: as at `init`.
unsafe extern "C" fn properties(device: c_int, properties: *mut Properties) -> Status {
    guard(|| {
        in_range("the device", device, 1)?;
        let card = Properties {
            name: NAME.as_ptr(),
            pci_path: null(),
            guid: 0x6769_6e63,
            ptr_support: HOST_MEMORY | GPU_MEMORY,
            reg_is_global: 0,
            force_flush: 0,
            speed: 100_000,
            port: 1,
            latency: 0.0,
            max_comms: 1 << 20,
            max_recvs: 32,
            net_device_type: GIN_PROXY,
            net_device_version: 100,
            v_props: VirtualDevice { ndevs: 1, devs: [0; 8] },
            max_p2p_bytes: 1 << 40,
            max_coll_bytes: 1 << 40,
            max_multi_request_size: 1,
            rail_id: 0,
            plane_id: 0,
        };
        // SAFETY: as above.
        unsafe { give("getProperties", properties, card) }
    })
}

// SAFETY: as at `init`; `handle` has room for HANDLE_BYTES.
unsafe extern "C" fn listen(
    context: Handle,
    device: c_int,
    handle: *mut c_void,
    listener: *mut Handle,
) -> Status {
    guard(|| {
        CARDS.get(context)?;
        in_range("the device", device, 1)?;
        let new = Listener::new()?;
        // SAFETY: as above.
        unsafe {
            give("listen", handle.cast::<[u8; HANDLE_BYTES]>(), new.address().encode())?;
            give("listen", listener, LISTENERS.insert(new))
        }
    })
}

// SAFETY: as at `init`; `handles` names so many handles of HANDLE_BYTES.
unsafe extern "C" fn connect(
    context: Handle,
    handles: *mut *mut c_void,
    ranks: c_int,
    rank: c_int,
    listener: Handle,
    collective: *mut Handle,
) -> Status {
    guard(|| {
        let null = CardError::Null { call: "connect", argument: "a handle" };
        let (settings, listener) = (CARDS.get(context)?, LISTENERS.get(listener)?);
        let ranks = in_range("the number of ranks", ranks, RANKS + 1)?;
        let rank = in_range("the rank", rank, ranks.max(1))?;
        let handles = NonNull::new(handles).ok_or(null.clone())?;
        let mut addresses = vec![];
        for n in 0..ranks {
            // SAFETY: as above.
            let handle = NonNull::new(unsafe { handles.add(n).read() }).ok_or(null.clone())?;
            // SAFETY: as above.
            let handle = unsafe { handle.cast::<[u8; HANDLE_BYTES]>().read() };
            addresses.push(Address::decode(&handle));
        }
        let connected = Collective::connect(&listener, &addresses, rank, &settings)?;
        // SAFETY: as above.
        unsafe { give("connect", collective, COLLECTIVES.insert(connected)) }
    })
}

// SAFETY: as at `init`; no field of the configuration matters to this card.
unsafe extern "C" fn create_context(
    collective: Handle,
    _config: *mut Config,
    context: *mut Handle,
) -> Status {
    guard(|| {
        COLLECTIVES.get(collective)?;
        // SAFETY: as above.
        unsafe { give("createContext", context, CONTEXTS.insert(collective.addr())) }
    })
}

// SAFETY: as at `init`; the memory is there until it is deregistered.
unsafe extern "C" fn register(
    collective: Handle,
    address: *mut c_void,
    bytes: usize,
    kind: c_int,
    flags: u64,
    region: *mut Handle,
) -> Status {
    guard(|| {
        let collective = COLLECTIVES.get(collective)?;
        let null = CardError::Null { call: "regMrSym", argument: "the address" };
        let address = NonNull::new(address.cast()).ok_or(null)?;
        let memory = match kind {
            HOST_MEMORY => Memory::Host,
            GPU_MEMORY => Memory::Gpu,
            _ => {
                let allowed = format!("{HOST_MEMORY} (host) and {GPU_MEMORY} (GPU)");
                return Err(CardError::Range { field: "the type of memory", value: kind.into(), allowed });
            }
        };
        let (takes_signals, is_reset) = (flags & FORCE_STRONG_ORDER != 0, flags & SIGNAL_NEVER_RESET == 0);
        // SAFETY: as above.
        unsafe {
            let number = collective.register(address, bytes as u64, memory, takes_signals, is_reset)?;
            give("regMrSym", region, without_provenance_mut(number as usize))
        }
    })
}

// SAFETY: as at `register`.
unsafe extern "C" fn register_dma_buf(
    _collective: Handle,
    _address: *mut c_void,
    _bytes: usize,
    _kind: c_int,
    _offset: u64,
    _file: c_int,
    _flags: u64,
    _region: *mut Handle,
) -> Status {
    guard(|| Err(CardError::NotOffered { call: "regMrSymDmaBuf", instead: "register by `regMrSym`" }))
}

// SAFETY: takes numbers alone.
unsafe extern "C" fn deregister(collective: Handle, region: Handle) -> Status {
    guard(|| COLLECTIVES.get(collective)?.deregister(region.addr() as u64))
}

// SAFETY: takes a number alone.
unsafe extern "C" fn destroy_context(context: Handle) -> Status {
    guard(|| CONTEXTS.remove(context).map(|_| ()))
}

// SAFETY: takes a number alone.
unsafe extern "C" fn close_collective(collective: Handle) -> Status {
    guard(|| COLLECTIVES.remove(collective)?.close())
}

// SAFETY: takes a number alone.
unsafe extern "C" fn close_listener(listener: Handle) -> Status {
    guard(|| LISTENERS.remove(listener).map(|_| ()))
}

/// Begins a put.
///
/// # Safety
/// `request` is null or can be written.
unsafe fn begin(call: &'static str, context: Handle, put: &Put, request: *mut Handle) -> Status {
    guard(|| {
        let number = collective_of(context)?.put(put)?;
        // SAFETY: as the caller says. Null means that there is no request.
        unsafe { give(call, request, without_provenance_mut(number + 1)) }
    })
}

// SAFETY: as at `init`.
unsafe extern "C" fn put(
    context: Handle,
    number: c_int,
    from: u64,
    source: Handle,
    bytes: usize,
    to: u64,
    target: Handle,
    rank: u32,
    _options: u32,
    request: *mut Handle,
) -> Status {
    // SAFETY: as above.
    unsafe { put14(context, number, from, source, bytes, to, target, rank, request) }
}

// SAFETY: as at `init`.
unsafe extern "C" fn put14(
    context: Handle,
    number: c_int,
    from: u64,
    source: Handle,
    bytes: usize,
    to: u64,
    target: Handle,
    rank: u32,
    request: *mut Handle,
) -> Status {
    let (from, to) = ((source.addr() as u64, from), (target.addr() as u64, to));
    let put =
        Put { context: number as u32, rank: rank as usize, bytes: bytes as u64, from, to, signal: None };
    // SAFETY: as above.
    unsafe { begin("iput", context, &put, request) }
}

// SAFETY: as at `init`.
unsafe extern "C" fn put_signal(
    context: Handle,
    number: c_int,
    from: u64,
    source: Handle,
    bytes: usize,
    to: u64,
    target: Handle,
    rank: u32,
    at: u64,
    signals: Handle,
    value: u64,
    operation: u32,
    is_strong: bool,
    _options: u32,
    request: *mut Handle,
) -> Status {
    // SAFETY: as above.
    unsafe {
        put_signal14(
            context, number, from, source, bytes, to, target, rank, at, signals, value, operation, is_strong,
            request,
        )
    }
}

// SAFETY: as at `init`.
unsafe extern "C" fn put_signal14(
    context: Handle,
    number: c_int,
    from: u64,
    source: Handle,
    bytes: usize,
    to: u64,
    target: Handle,
    rank: u32,
    at: u64,
    signals: Handle,
    value: u64,
    operation: u32,
    is_strong: bool,
    request: *mut Handle,
) -> Status {
    let value = match operation {
        SIGNAL_INCREMENT => 1,
        SIGNAL_ADD => value,
        _ => {
            let allowed = format!("{SIGNAL_INCREMENT} (increment) and {SIGNAL_ADD} (add)");
            let (field, value) = ("the operation of a signal", operation.into());
            return guard(|| Err(CardError::Range { field, value, allowed }));
        }
    };
    let (from, to) = ((source.addr() as u64, from), (target.addr() as u64, to));
    let signal = Some(Signal { region: signals.addr() as u64, offset: at, value, is_strong });
    let put = Put { context: number as u32, rank: rank as usize, bytes: bytes as u64, from, to, signal };
    // SAFETY: as above.
    unsafe { begin("iputSignal", context, &put, request) }
}

fn no_get() -> Status {
    guard(|| Err(CardError::NotOffered { call: "iget", instead: "let the other rank put" }))
}

// SAFETY: reads and writes nothing.
unsafe extern "C" fn get(
    _context: Handle,
    _number: c_int,
    _from: u64,
    _source: Handle,
    _bytes: usize,
    _to: u64,
    _target: Handle,
    _rank: u32,
    _options: u32,
    _request: *mut Handle,
) -> Status {
    no_get()
}

// SAFETY: reads and writes nothing.
unsafe extern "C" fn get14(
    _context: Handle,
    _number: c_int,
    _from: u64,
    _source: Handle,
    _bytes: usize,
    _to: u64,
    _target: Handle,
    _rank: u32,
    _request: *mut Handle,
) -> Status {
    no_get()
}

// SAFETY: as at `init`. Without gets there is nothing to flush, and no request is that of something done.
unsafe extern "C" fn flush(
    context: Handle,
    _number: c_int,
    _region: Handle,
    _rank: u32,
    request: *mut Handle,
) -> Status {
    guard(|| {
        CONTEXTS.get(context)?;
        // SAFETY: as above.
        unsafe { give("iflush", request, null_mut()) }
    })
}

// SAFETY: as at `init`.
unsafe extern "C" fn test(collective: Handle, request: Handle, done: *mut c_int) -> Status {
    guard(|| {
        let collective = COLLECTIVES.get(collective)?;
        let is_done = match request.addr() {
            0 => true,
            number => collective.test(number - 1)?,
        };
        // SAFETY: as above.
        unsafe { give("test", done, c_int::from(is_done)) }
    })
}

// SAFETY: takes a number alone.
unsafe extern "C" fn progress(context: Handle) -> Status {
    guard(|| collective_of(context)?.progress())
}

// SAFETY: as at `init`.
unsafe extern "C" fn last_error(context: Handle, has_error: *mut bool) -> Status {
    guard(|| {
        let has_failed = collective_of(context)?.has_failed();
        // SAFETY: as above.
        unsafe { give("queryLastError", has_error, has_failed) }
    })
}

// SAFETY: takes a number alone.
unsafe extern "C" fn finalize(context: Handle) -> Status {
    guard(|| CARDS.remove(context).map(|_| ()))
}

const NAME_OF_TABLE: *const c_char = NAME.as_ptr();

const SETUP: Setup = Setup {
    listen,
    connect,
    create_context,
    register,
    register_dma_buf,
    deregister,
    destroy_context,
    close_collective,
    close_listener,
};

const ENDS: Ends = Ends { flush, test, progress, last_error, finalize };
const PUTS: Puts = Puts { put, put_signal, get };

/// The table of version 16, which NCCL looks for first.
#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v16: Table16 = Table16 {
    name: NAME_OF_TABLE,
    init,
    devices,
    rma_properties,
    properties,
    setup: SETUP,
    puts: PUTS,
    ends: ENDS,
};

/// The table of version 15.
#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v15: Table15 =
    Table15 { name: NAME_OF_TABLE, init, devices, properties, setup: SETUP, puts: PUTS, ends: ENDS };

/// The table of version 14.
#[allow(non_upper_case_globals, reason = "NCCL's name")]
#[unsafe(no_mangle)]
pub static ncclRmaPlugin_v14: Table14 = Table14 {
    name: NAME_OF_TABLE,
    init,
    devices,
    properties,
    setup: SETUP,
    puts: Puts14 { put: put14, put_signal: put_signal14, get: get14 },
    ends: ENDS,
};
