//! The card's shared library, through the table of one version, as NCCL calls it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

use libloading::Library;
use peerwarp_gin_card::abi::{
    Config, Ends, GetProperties, HANDLE_BYTES, Handle, Init, Properties, Puts, Puts14, Setup, Status,
    Table14, Table15, Table16,
};

enum Carry {
    WithOptions(&'static Puts),
    Without(&'static Puts14),
}

/// Calls of one version's table.
pub struct Table {
    init: Init,
    properties: GetProperties,
    pub setup: &'static Setup,
    puts: Carry,
    pub ends: &'static Ends,
}

/// A put, in the words of the interface.
#[derive(Clone, Copy)]
pub struct Put {
    pub context: Handle,
    pub from: (Handle, u64),
    pub to: (Handle, u64),
    pub bytes: usize,
    pub rank: u32,
    /// Region, offset, value, operation, and whether it is strong.
    pub signal: Option<(Handle, u64, u64, u32, bool)>,
}

impl Table {
    /// The table of a version, from the library beside the tests.
    pub fn load(version: u32) -> Table {
        let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
        // SAFETY: the library has no initialisers.
        let library = unsafe { Library::new(folder.join("libpeerwarp_gin_card.so")) };
        let library: &'static Library = Box::leak(Box::new(library.unwrap()));
        // SAFETY: the symbols are tables of these types, and the library stays.
        unsafe {
            match version {
                16 => {
                    let Table16 { init, properties, setup, puts, ends, .. } =
                        &**library.get::<*const Table16>("ncclRmaPlugin_v16").unwrap();
                    let (init, properties, puts) = (*init, *properties, Carry::WithOptions(puts));
                    Table { init, properties, setup, puts, ends }
                }
                15 => {
                    let Table15 { init, properties, setup, puts, ends, .. } =
                        &**library.get::<*const Table15>("ncclRmaPlugin_v15").unwrap();
                    let (init, properties, puts) = (*init, *properties, Carry::WithOptions(puts));
                    Table { init, properties, setup, puts, ends }
                }
                _ => {
                    let Table14 { init, properties, setup, puts, ends, .. } =
                        &**library.get::<*const Table14>("ncclRmaPlugin_v14").unwrap();
                    let (init, properties, puts) = (*init, *properties, Carry::Without(puts));
                    Table { init, properties, setup, puts, ends }
                }
            }
        }
    }

    /// What a device is.
    pub fn properties(&self, device: c_int) -> Result<Properties, Status> {
        let mut properties = MaybeUninit::uninit();
        // SAFETY: the result has room for the properties, which a call that succeeds writes.
        unsafe {
            match (self.properties)(device, properties.as_mut_ptr()) {
                0 => Ok(properties.assume_init()),
                status => Err(status),
            }
        }
    }

    /// The context of a network, or why there is none.
    pub fn init(&self) -> Result<Handle, Status> {
        let mut context = null_mut();
        // SAFETY: the result is a local.
        match unsafe { (self.init)(&mut context, 1, None) } {
            0 => Ok(context),
            status => Err(status),
        }
    }

    /// A listener and its handle.
    pub fn listen(&self, context: Handle) -> (Handle, [u8; HANDLE_BYTES]) {
        let (mut listener, mut handle) = (null_mut(), [0u8; HANDLE_BYTES]);
        // SAFETY: results are locals of the right size.
        let status = unsafe { (self.setup.listen)(context, 0, handle.as_mut_ptr().cast(), &mut listener) };
        assert_eq!(status, 0);
        (listener, handle)
    }

    /// A collective of the ranks with these handles.
    pub fn connect(
        &self,
        context: Handle,
        handles: &mut [[u8; HANDLE_BYTES]],
        rank: usize,
        listener: Handle,
    ) -> Handle {
        let mut pointers: Vec<*mut c_void> = handles.iter_mut().map(|h| h.as_mut_ptr().cast()).collect();
        let (mut collective, ranks) = (null_mut(), pointers.len() as c_int);
        // SAFETY: as many pointers as ranks, each to a handle.
        let status = unsafe {
            (self.setup.connect)(
                context,
                pointers.as_mut_ptr(),
                ranks,
                rank as c_int,
                listener,
                &mut collective,
            )
        };
        assert_eq!(status, 0);
        collective
    }

    /// A context of a collective.
    pub fn context(&self, collective: Handle) -> Handle {
        let (mut context, mut config) =
            (null_mut(), Config { contexts: 1, traffic_class: -1, rank_stride: 1 });
        // SAFETY: results are locals.
        assert_eq!(unsafe { (self.setup.create_context)(collective, &mut config, &mut context) }, 0);
        context
    }

    /// Registers words that outlive the collective, at their address and a mark of a GPU's.
    pub fn register(
        &self,
        collective: Handle,
        words: &'static [AtomicU64],
        mark: usize,
        kind: c_int,
        flags: u64,
    ) -> Result<Handle, Status> {
        let (mut region, bytes) = (null_mut(), size_of_val(words));
        let address = words.as_ptr().cast_mut().map_addr(|first| first + mark).cast();
        // SAFETY: the words stay, and are used atomically or not at the same time.
        match unsafe { (self.setup.register)(collective, address, bytes, kind, flags, &mut region) } {
            0 => Ok(region),
            status => Err(status),
        }
    }

    /// Begins a put, and returns its request.
    pub fn put(&self, put: &Put) -> Result<Handle, Status> {
        let mut request = null_mut();
        match self.put_into(put, &mut request) {
            0 => Ok(request),
            status => Err(status),
        }
    }

    /// Begins a put.
    pub fn put_into(&self, put: &Put, request: *mut Handle) -> Status {
        let Put { context, from: (source, from), to: (target, to), bytes, rank, signal } = *put;
        // SAFETY: the result is null or can be written; the rest are numbers.
        unsafe {
            match (&self.puts, signal) {
                (Carry::WithOptions(puts), None) => {
                    (puts.put)(context, 0, from, source, bytes, to, target, rank, 0, request)
                }
                (Carry::Without(puts), None) => {
                    (puts.put)(context, 0, from, source, bytes, to, target, rank, request)
                }
                (Carry::WithOptions(puts), Some((region, at, value, operation, is_strong))) => (puts
                    .put_signal)(
                    context, 0, from, source, bytes, to, target, rank, at, region, value, operation,
                    is_strong, 0, request,
                ),
                (Carry::Without(puts), Some((region, at, value, operation, is_strong))) => (puts.put_signal)(
                    context, 0, from, source, bytes, to, target, rank, at, region, value, operation,
                    is_strong, request,
                ),
            }
        }
    }

    /// What the library says to a get.
    pub fn get(&self, context: Handle) -> Status {
        let mut request = null_mut();
        match &self.puts {
            // SAFETY: the result is a local; the rest are numbers.
            Carry::WithOptions(puts) => unsafe {
                (puts.get)(context, 0, 0, null_mut(), 8, 0, null_mut(), 1, 0, &mut request)
            },
            // SAFETY: as above.
            Carry::Without(puts) => unsafe {
                (puts.get)(context, 0, 0, null_mut(), 8, 0, null_mut(), 1, &mut request)
            },
        }
    }

    /// Whether a request is complete.
    pub fn test(&self, collective: Handle, request: Handle) -> Result<bool, Status> {
        let mut done = 0;
        // SAFETY: the result is a local.
        match unsafe { (self.ends.test)(collective, request, &mut done) } {
            0 => Ok(done != 0),
            status => Err(status),
        }
    }

    /// Moves everything on.
    pub fn progress(&self, context: Handle) -> Result<(), Status> {
        // SAFETY: takes a number alone.
        match unsafe { (self.ends.progress)(context) } {
            0 => Ok(()),
            status => Err(status),
        }
    }

    /// Whether the card has failed.
    pub fn has_error(&self, context: Handle) -> bool {
        let mut has_error = false;
        // SAFETY: the result is a local.
        assert_eq!(unsafe { (self.ends.last_error)(context, &mut has_error) }, 0);
        has_error
    }
}
