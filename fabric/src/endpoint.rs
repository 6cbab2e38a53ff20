//! One endpoint of libfabric with all that belongs to it: addresses, memory, puts and their completions.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_void};
use std::ptr::{null, null_mut};

use crate::command::IMMEDIATE_BYTES;
use crate::error::FabricError;
use crate::library::{API, Fabric};
use crate::memory::Memory;
use crate::provider::{Offer, Provider, choose};
use crate::sys;

/// Puts under way at most, however deep a provider's queue is.
const MOST_PUTS: usize = 4096;
/// Completions that one call reads at most.
const BATCH: usize = 32;
/// Bytes of an address at most.
pub(crate) const ADDRESS: usize = 512;

/// What an endpoint is opened with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointOptions {
    /// The provider. None takes what `FI_PROVIDER` says, or the best one on offer.
    pub provider: Option<Provider>,
    /// The domain, such as `mlx5_0` or `eth0`. None takes the first one.
    pub domain: Option<String>,
}

/// An open endpoint. One thread at a time uses it.
///
/// Dropping it closes the endpoint, its memory registrations and its queues, in this order; the memory itself goes last.
pub struct Endpoint {
    fabric: &'static Fabric,
    contexts: Box<[Context]>,
    free: Vec<u32>,
    regions: Vec<Registered>,
    objects: Objects,
    provider: Provider,
    domain: String,
    limits: Limits,
    strays: u64,
}

// SAFETY: the endpoint is opened for one thread at a time (FI_THREAD_DOMAIN), whichever thread that is, and the pointers
// are its own.
unsafe impl Send for Endpoint {}

/// A put's context: libfabric keeps notes in it, and hands its address back.
struct Context(UnsafeCell<[u64; 8]>);

/// Memory and its registration.
struct Registered {
    mr: *mut sys::fid_mr,
    memory: Memory,
    /// What peers need; none until it is known.
    target: Option<Target>,
}

/// What the provider allows and asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    mr_mode: i32,
    longest: usize,
}

/// The objects that hang together; null until they are opened.
struct Objects {
    info: *mut sys::fi_info,
    fabric: *mut sys::fid_fabric,
    domain: *mut sys::fid_domain,
    av: *mut sys::fid_av,
    cq: *mut sys::fid_cq,
    ep: *mut sys::fid_ep,
}

/// A peer's place in the endpoint's table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(u64);

/// Registered memory of this endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    index: usize,
    /// What peers need to write to it.
    pub target: Target,
}

/// Registered memory as peers address it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The registration's key.
    pub key: u64,
    /// What the provider takes for the first byte: an address, or 0.
    pub base: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// A put: bytes of a region that go to a peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put {
    /// The peer.
    pub peer: Peer,
    /// What is read.
    pub region: Region,
    /// The first byte that is read.
    pub from: u64,
    /// What is written.
    pub target: Target,
    /// The first byte that is written.
    pub to: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// What arrives beside the bytes. With none, the peer does not notice the put.
    pub immediate: Option<u64>,
}

/// What became of a request to put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted {
    /// The put is under way; a later [`Event`] has this token.
    Token(u32),
    /// Queues are full or the connection is being made. Poll, then ask again.
    Busy,
}

/// What [`Endpoint::poll`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A put is delivered: its source may be written again, and its bytes are in the peer's memory.
    Delivered(u32),
    /// A put failed.
    Failed {
        /// Its token.
        token: u32,
        /// The error's number.
        errno: i32,
        /// The provider's words.
        reason: String,
    },
    /// A peer's put with this immediate is in this rank's memory.
    Arrived(u64),
}

/// Closes an object; null is none.
fn close<T>(object: &mut *mut T) {
    let fid: *mut sys::fid = std::mem::replace(object, null_mut()).cast();
    if !fid.is_null() {
        // SAFETY: every object begins with its `fid`. This one is open, and is closed once, as its pointer is gone.
        unsafe { ((*(*fid).ops).close)(fid) };
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        close(&mut self.ep);
        close(&mut self.cq);
        close(&mut self.av);
        close(&mut self.domain);
        close(&mut self.fabric);
        if let (false, Ok(library)) = (self.info.is_null(), Fabric::get()) {
            // SAFETY: libfabric allocated it, and it is freed once.
            unsafe { (library.freeinfo)(self.info) };
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // With the endpoint gone, no put reads or writes a region. Registrations that are bound to the endpoint go first.
        if self.limits.mr_mode & sys::FI_MR_ENDPOINT == 0 {
            close(&mut self.objects.ep);
        }
        self.regions.iter_mut().for_each(|region| close(&mut region.mr));
        close(&mut self.objects.ep);
    }
}

/// Words at a pointer of libfabric's; empty at null.
///
/// # Safety
/// The pointer is null or points to a NUL-terminated string.
unsafe fn string(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().into_owned()
}

/// What is asked of providers, filled into `hints`.
///
/// # Safety
/// `hints` comes from `fi_dupinfo(NULL)`.
unsafe fn ask(hints: *mut sys::fi_info) {
    // SAFETY: libfabric allocated the structure and the attributes that it points to, and nothing else has it.
    unsafe {
        (*hints).caps = sys::FI_RMA | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
        (*hints).mode = sys::FI_CONTEXT | sys::FI_CONTEXT2;
        (*(*hints).ep_attr).type_ = sys::FI_EP_RDM;
        // Counts and `delivered` mean that bytes are in the peer's memory.
        (*(*hints).tx_attr).op_flags = sys::FI_DELIVERY_COMPLETE;
        let domain = (*hints).domain_attr;
        (*domain).mr_mode = sys::FI_MR_LOCAL
            | sys::FI_MR_VIRT_ADDR
            | sys::FI_MR_ALLOCATED
            | sys::FI_MR_PROV_KEY
            | sys::FI_MR_ENDPOINT;
        (*domain).threading = sys::FI_THREAD_DOMAIN;
        (*domain).resource_mgmt = sys::FI_RM_ENABLED;
        // The proxy polls anyway. An answer to a put then means that the peer's proxy runs.
        (*domain).control_progress = sys::FI_PROGRESS_MANUAL;
        (*domain).data_progress = sys::FI_PROGRESS_MANUAL;
    }
}

impl Objects {
    /// The best offer that fits the options, with nothing opened yet.
    fn find(library: &'static Fabric, options: &EndpointOptions) -> Result<(Objects, Provider), FabricError> {
        let wanted = match options.provider {
            Some(provider) => Some(provider),
            None => Provider::from_environment()?,
        };
        let mut list = null_mut();
        // SAFETY: `hints` is libfabric's own and freed once; `getinfo` reads it and writes one pointer.
        unsafe {
            let hints = (library.dupinfo)(null());
            if hints.is_null() {
                return Err(FabricError::Call { call: "fi_dupinfo", reason: "no memory".into() });
            }
            ask(hints);
            let returned = (library.getinfo)(API, null(), null(), 0, hints, &mut list);
            (library.freeinfo)(hints);
            // An empty list is explained below, with what was looked for.
            if returned != -sys::FI_ENODATA {
                library.check("fi_getinfo", returned)?;
            }
        }
        let (mut infos, mut offers) = (vec![], vec![]);
        let mut next = list;
        while !next.is_null() {
            // SAFETY: the list is libfabric's, ends with null, and each of its items has these attributes.
            unsafe {
                let info = &*next;
                offers.push(Offer {
                    provider: string((*info.fabric_attr).prov_name),
                    domain: string((*info.domain_attr).name),
                    ipv4: info.addr_format == sys::FI_SOCKADDR_IN,
                });
                infos.push(next);
                next = info.next;
            }
        }
        let chosen = choose(&offers, library.version(), wanted, options.domain.as_deref());
        // SAFETY: the item is one of the list's, which is whole.
        let found = chosen.map(|(at, provider)| (unsafe { (library.dupinfo)(infos[at]) }, provider));
        if !list.is_null() {
            // SAFETY: the list is freed once; the copy is its own.
            unsafe { (library.freeinfo)(list) };
        }
        match found {
            Some((info, provider)) if !info.is_null() => {
                let (fabric, domain, av) = (null_mut(), null_mut(), null_mut());
                let objects = Objects { info, fabric, domain, av, cq: null_mut(), ep: null_mut() };
                Ok((objects, provider))
            }
            _ => Err(no_provider(library, &offers, wanted, options)),
        }
    }

    /// Opens all objects.
    fn open(&mut self, library: &'static Fabric) -> Result<(), FabricError> {
        let info = self.info;
        // SAFETY: `info` is whole. Each call writes one pointer that this structure keeps, and is given objects that the
        // calls before it opened. The attributes are read during the calls only.
        unsafe {
            let opened = (library.fabric)((*info).fabric_attr, &mut self.fabric, null_mut());
            library.check("fi_fabric", opened)?;
            let opened = ((*(*self.fabric).ops).domain)(self.fabric, info, &mut self.domain, null_mut());
            library.check("fi_domain", opened)?;
            let mut attr: sys::fi_av_attr = std::mem::zeroed();
            attr.type_ = sys::FI_AV_TABLE;
            let opened = ((*(*self.domain).ops).av_open)(self.domain, &mut attr, &mut self.av, null_mut());
            library.check("fi_av_open", opened)?;
            let mut attr: sys::fi_cq_attr = std::mem::zeroed();
            attr.format = sys::FI_CQ_FORMAT_DATA;
            attr.wait_obj = sys::FI_WAIT_NONE;
            attr.size = (*(*info).tx_attr).size.saturating_add((*(*info).rx_attr).size).clamp(1024, 1 << 16);
            let opened = ((*(*self.domain).ops).cq_open)(self.domain, &mut attr, &mut self.cq, null_mut());
            library.check("fi_cq_open", opened)?;
            let opened = ((*(*self.domain).ops).endpoint)(self.domain, info, &mut self.ep, null_mut());
            library.check("fi_endpoint", opened)?;
            let ep: *mut sys::fid = self.ep.cast();
            library.check("fi_ep_bind", ((*(*ep).ops).bind)(ep, self.av.cast(), 0))?;
            let both = sys::FI_TRANSMIT | sys::FI_RECV;
            library.check("fi_ep_bind", ((*(*ep).ops).bind)(ep, self.cq.cast(), both))?;
            library.check("fi_enable", ((*(*ep).ops).control)(ep, sys::FI_ENABLE, null_mut()))
        }
    }
}

fn no_provider(
    library: &Fabric,
    offers: &[Offer],
    wanted: Option<Provider>,
    options: &EndpointOptions,
) -> FabricError {
    let version = library.version();
    let provider = wanted.map_or_else(|| "puts".into(), |p| format!("`{}`", p.name(version)));
    let wanted = match &options.domain {
        Some(domain) => format!("{provider} on domain `{domain}`"),
        None => provider,
    };
    let mut names: Vec<String> = offers.iter().map(|o| format!("{} on {}", o.provider, o.domain)).collect();
    names.dedup();
    let offered = if names.is_empty() { "none".into() } else { names.join(", ") };
    FabricError::NoProvider { version: format!("{}.{}", version.0, version.1), wanted, offered }
}

impl Endpoint {
    /// Opens an endpoint.
    ///
    /// # Errors
    /// libfabric is absent or of another version, no provider fits, or a call fails.
    pub fn open(options: &EndpointOptions) -> Result<Endpoint, FabricError> {
        let fabric = Fabric::get()?;
        let (mut objects, provider) = Objects::find(fabric, options)?;
        // SAFETY: the chosen item has these attributes.
        let (limits, immediate, depth, domain) = unsafe {
            let info = &*objects.info;
            let limits =
                Limits { mr_mode: (*info.domain_attr).mr_mode, longest: (*info.ep_attr).max_msg_size };
            let depth = (*info.tx_attr).size.clamp(1, MOST_PUTS);
            (limits, (*info.domain_attr).cq_data_size, depth, string((*info.domain_attr).name))
        };
        if immediate < IMMEDIATE_BYTES {
            let provider = provider.to_string();
            return Err(FabricError::ShortImmediate { provider, bytes: immediate, needed: IMMEDIATE_BYTES });
        }
        objects.open(fabric)?;
        let contexts = (0..depth).map(|_| Context(UnsafeCell::new([0; 8]))).collect();
        // At most `MOST_PUTS`.
        let free = (0..depth as u32).rev().collect();
        Ok(Endpoint { fabric, contexts, free, regions: vec![], objects, provider, domain, limits, strays: 0 })
    }

    /// The provider.
    pub fn provider(&self) -> Provider {
        self.provider
    }

    /// The domain: an interface or a card.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Puts under way at most.
    pub fn depth(&self) -> usize {
        self.contexts.len()
    }

    /// Length of a put at most, in bytes.
    pub fn longest(&self) -> u64 {
        self.limits.longest as u64
    }

    /// Errors that belong to no put of this rank, such as a peer's connection that ended.
    pub fn strays(&self) -> u64 {
        self.strays
    }

    /// The endpoint's address, for [`Endpoint::add_peer`] of the same provider elsewhere.
    ///
    /// # Errors
    /// The call fails.
    pub fn address(&self) -> Result<Vec<u8>, FabricError> {
        let mut bytes = vec![0u8; ADDRESS];
        let mut length = bytes.len();
        let ep: *mut sys::fid = self.objects.ep.cast();
        // SAFETY: the endpoint is open, and the call writes at most `length` bytes.
        let returned =
            unsafe { ((*(*self.objects.ep).cm).getname)(ep, bytes.as_mut_ptr().cast(), &mut length) };
        self.fabric.check("fi_getname", returned)?;
        bytes.truncate(length);
        Ok(bytes)
    }

    /// Adds a peer by its address.
    ///
    /// # Errors
    /// The address is none of this provider's.
    pub fn add_peer(&mut self, address: &[u8]) -> Result<Peer, FabricError> {
        if address.is_empty() || address.len() > ADDRESS {
            let allowed = format!("1 to {ADDRESS}");
            return Err(FabricError::Range {
                field: "bytes of an address",
                value: address.len() as u64,
                allowed,
            });
        }
        // The provider may read up to the end of its own kind of address.
        let mut bytes = [0u8; ADDRESS];
        bytes[..address.len()].copy_from_slice(address);
        let (av, mut peer) = (self.objects.av, u64::MAX);
        // SAFETY: the table is open; the call reads one address and writes one number.
        let added = unsafe { ((*(*av).ops).insert)(av, bytes.as_ptr().cast(), 1, &mut peer, 0, null_mut()) };
        match added {
            1 if peer != u64::MAX => Ok(Peer(peer)),
            errno if errno < 0 => Err(FabricError::Call {
                call: "fi_av_insert",
                reason: self.fabric.words(errno.saturating_neg()),
            }),
            _ => Err(FabricError::Call { call: "fi_av_insert", reason: "the address is not valid".into() }),
        }
    }

    /// Registers memory, as a source of puts and a target of peers' puts. The endpoint keeps it. The same memory is registered once.
    ///
    /// # Errors
    /// The provider refuses it.
    pub fn register(&mut self, memory: &Memory) -> Result<Region, FabricError> {
        let bytes = memory.bytes();
        let same = |r: &Registered| (r.memory.address(), r.memory.bytes()) == (memory.address(), bytes);
        if let Some(index) = self.regions.iter().position(same)
            && let Some(target) = self.regions[index].target
        {
            return Ok(Region { index, target });
        }
        let iov = sys::iovec { iov_base: memory.address().cast(), iov_len: bytes };
        let mode = self.limits.mr_mode;
        let mut mr: *mut sys::fid_mr = null_mut();
        let domain = self.objects.domain;
        // SAFETY: the domain is open. The attributes are read during the call only; zeros are "none" in all of them. The
        // endpoint keeps the memory for longer than its registration.
        let returned = unsafe {
            let mut attr: sys::fi_mr_attr = std::mem::zeroed();
            attr.mr_iov = &iov;
            attr.iov_count = 1;
            attr.access = sys::FI_READ | sys::FI_WRITE | sys::FI_REMOTE_WRITE;
            attr.requested_key = match mode & sys::FI_MR_PROV_KEY {
                0 => self.regions.len() as u64 + 1,
                _ => 0,
            };
            attr.iface = sys::FI_HMEM_SYSTEM;
            ((*(*domain).mr).regattr)(domain.cast(), &attr, 0, &mut mr)
        };
        self.fabric.check("fi_mr_regattr", returned)?;
        let index = self.regions.len();
        self.regions.push(Registered { mr, memory: memory.clone(), target: None });
        // SAFETY: the registration is open.
        let key = unsafe {
            if mode & sys::FI_MR_ENDPOINT != 0 {
                let fid: *mut sys::fid = mr.cast();
                self.fabric.check("fi_mr_bind", ((*(*fid).ops).bind)(fid, self.objects.ep.cast(), 0))?;
                self.fabric
                    .check("fi_mr_enable", ((*(*fid).ops).control)(fid, sys::FI_ENABLE, null_mut()))?;
            }
            (*mr).key
        };
        let base = match mode & sys::FI_MR_VIRT_ADDR {
            0 => 0,
            _ => memory.address().expose_provenance() as u64,
        };
        let target = Target { key, base, bytes: bytes as u64 };
        self.regions[index].target = Some(target);
        Ok(Region { index, target })
    }

    /// Starts a put.
    ///
    /// # Errors
    /// The put leaves its region, is too long, or the provider refuses it.
    pub fn put(&mut self, put: &Put) -> Result<Posted, FabricError> {
        let inside = |from: u64, bytes| from.checked_add(put.bytes).is_some_and(|end| end <= bytes);
        let region = self.regions.get(put.region.index).filter(|r| inside(put.from, r.memory.bytes() as u64));
        let Some(Registered { mr, memory, .. }) = region.filter(|_| inside(put.to, put.target.bytes)) else {
            return Err(FabricError::Range {
                field: "end of a put",
                value: put.from.max(put.to).saturating_add(put.bytes),
                allowed: format!("up to {} and {} bytes", put.region.target.bytes, put.target.bytes),
            });
        };
        if put.bytes == 0 || put.bytes > self.longest() {
            let allowed = format!("1 to {}", self.longest());
            return Err(FabricError::Range { field: "bytes of a put", value: put.bytes, allowed });
        }
        let Some(&token) = self.free.last() else { return Ok(Posted::Busy) };
        let context: *mut c_void = self.contexts[token as usize].0.get().cast();
        let (ep, to) = (self.objects.ep, put.target.base.wrapping_add(put.to));
        // SAFETY: the endpoint and the registration are open. The source is inside the region, which outlives the put. The
        // context is free, and stays where it is until the put's completion is read or the endpoint is closed.
        let returned = unsafe {
            let source = memory.address().add(put.from as usize).cast();
            let (mut desc, bytes) = ((**mr).mem_desc, put.bytes as usize);
            let (peer, key, data) = (put.peer.0, put.target.key, put.immediate.unwrap_or(0));
            let rma = &*(*ep).rma;
            match (self.provider, put.immediate) {
                // Its messages carry no immediates.
                (Provider::Cxi, Some(data)) => {
                    (rma.writedata)(ep, source, bytes, desc, data, peer, to, key, context)
                }
                (Provider::Cxi, None) => (rma.write)(ep, source, bytes, desc, peer, to, key, context),
                // `tcp` heeds the flags of messages only.
                _ => {
                    let iov = sys::iovec { iov_base: source, iov_len: bytes };
                    let rma_iov = sys::fi_rma_iov { addr: to, len: bytes, key };
                    let message = sys::fi_msg_rma {
                        msg_iov: &iov,
                        desc: &mut desc,
                        iov_count: 1,
                        addr: peer,
                        rma_iov: &rma_iov,
                        rma_iov_count: 1,
                        context,
                        data,
                    };
                    let counted = if put.immediate.is_some() { sys::FI_REMOTE_CQ_DATA } else { 0 };
                    (rma.writemsg)(ep, &message, sys::FI_COMPLETION | sys::FI_DELIVERY_COMPLETE | counted)
                }
            }
        };
        // Error numbers fit.
        match returned as i32 {
            0 => {
                self.free.pop();
                Ok(Posted::Token(token))
            }
            errno if errno == -sys::FI_EAGAIN => Ok(Posted::Busy),
            errno => Err(FabricError::Call {
                call: "fi_writemsg",
                reason: self.fabric.words(errno.saturating_neg()),
            }),
        }
    }

    /// The token of a put's context; none for contexts that are not this endpoint's.
    fn token(&self, context: *mut c_void) -> Option<u32> {
        let offset = context.addr().checked_sub(self.contexts.as_ptr().addr())?;
        let index = offset / size_of::<Context>();
        (index < self.contexts.len()).then_some(index as u32)
    }

    /// Makes progress, and adds what happened to `events`.
    ///
    /// # Errors
    /// The queue of completions itself fails: the endpoint is of no more use.
    pub fn poll(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let cq = self.objects.cq;
        let mut entries: [sys::fi_cq_data_entry; BATCH] = std::array::from_fn(|_| sys::fi_cq_data_entry {
            op_context: null_mut(),
            flags: 0,
            len: 0,
            buf: null_mut(),
            data: 0,
        });
        // SAFETY: the queue is open, its entries are of this format, and the call writes at most `BATCH` of them.
        let read = unsafe { ((*(*cq).ops).read)(cq, entries.as_mut_ptr().cast(), BATCH) };
        if read >= 0 {
            for entry in entries.iter().take(read as usize) {
                if let Some(token) = self.token(entry.op_context) {
                    self.free.push(token);
                    events.push(Event::Delivered(token));
                } else if entry.flags & sys::FI_REMOTE_CQ_DATA != 0 {
                    events.push(Event::Arrived(entry.data));
                }
            }
            return Ok(());
        }
        match read as i32 {
            errno if errno == -sys::FI_EAGAIN => Ok(()),
            errno if errno == -sys::FI_EAVAIL => self.poll_error(events),
            errno => Err(FabricError::Call {
                call: "fi_cq_read",
                reason: self.fabric.words(errno.saturating_neg()),
            }),
        }
    }

    fn poll_error(&mut self, events: &mut Vec<Event>) -> Result<(), FabricError> {
        let cq = self.objects.cq;
        // SAFETY: the queue is open. The entry is zeroed, so that the provider keeps its details to itself, and longer than
        // any version's.
        let (read, entry, detail) = unsafe {
            let mut entry: sys::fi_cq_err_entry = std::mem::zeroed();
            let read = ((*(*cq).ops).readerr)(cq, &mut entry, 0);
            let detail = match read {
                1 => string(((*(*cq).ops).strerror)(cq, entry.prov_errno, entry.err_data, null_mut(), 0)),
                _ => String::new(),
            };
            (read as i32, entry, detail)
        };
        match read {
            1 => {}
            errno if errno == -sys::FI_EAGAIN => return Ok(()),
            errno => {
                return Err(FabricError::Call {
                    call: "fi_cq_readerr",
                    reason: self.fabric.words(errno.saturating_neg()),
                });
            }
        }
        match self.token(entry.op_context) {
            Some(token) => {
                self.free.push(token);
                let words = self.fabric.words(entry.err);
                let reason = if detail.is_empty() { words } else { format!("{words}, {detail}") };
                events.push(Event::Failed { token, errno: entry.err, reason });
            }
            None => self.strays += 1,
        }
        Ok(())
    }
}
