//! Memory that ranks share, and how they meet: each rank owns a segment, to which its peers attach.
//!
//! A segment is a file without a name, which peers open through the owner's process. The system frees it with its last user.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::thread::futex;

use crate::abi::HANDLE_BYTES;
use crate::error::{CardError, system};
use crate::ring::{RING_BYTES, Ring};

/// Bytes before the rings.
pub const HEADER: usize = 4096;
/// "ginc", and the version of the layout.
const MAGIC: u64 = 0x6769_6e63_0000_0001;
/// How long one wait lasts until the peer's process is looked at again.
const SLICE: Duration = Duration::from_millis(20);

// Places in the header, in words of 8 bytes. Each is 4 or 8 bytes wide.
const NONCE: usize = 1;
const READY: usize = 16;
const ATTACHED: usize = 32;
const CLOSED: usize = 48;
/// Where the GPU counts the batches that it has read from windows.
pub const SENT: usize = 64;
/// Where the GPU counts the batches that it has written to windows.
pub const APPLIED: usize = 80;

/// Shared memory, mapped.
pub struct Mapping {
    first: NonNull<AtomicU64>,
    bytes: usize,
}

// SAFETY: the words are atomic; `ring` orders all use of the bytes behind them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &OwnedFd, bytes: usize) -> Result<Mapping, CardError> {
        // SAFETY: the system chooses the place.
        let first = unsafe {
            mmap(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        let first = NonNull::new(first.map_err(system("mmap"))?.cast());
        let null = || CardError::System { call: "mmap", reason: "it returned null".into() };
        Ok(Mapping { first: first.ok_or_else(null)?, bytes })
    }

    /// Its words.
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping holds so many aligned words and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.bytes / 8) }
    }

    /// The half of a word on which processes wait.
    fn half(&self, word: usize) -> &AtomicU32 {
        // SAFETY: the word lies in the header, which each mapping has; it is used in halves alone.
        unsafe { AtomicU32::from_ptr(self.words()[word].as_ptr().cast()) }
    }

    /// The address of its first byte.
    pub fn address(&self) -> *mut u8 {
        self.first.as_ptr().cast()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows it any more.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.bytes) };
    }
}

/// Where a segment is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    process: u32,
    file: u32,
    nonce: u64,
}

impl Address {
    /// For NCCL to pass around.
    pub fn encode(self) -> [u8; HANDLE_BYTES] {
        let mut bytes = [0; HANDLE_BYTES];
        bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.process.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.file.to_le_bytes());
        bytes
    }

    /// The address in a peer's handle, or nothing if it is not of such a card.
    pub fn decode(bytes: &[u8; HANDLE_BYTES]) -> Option<Address> {
        let (words, _) = bytes.as_chunks::<8>();
        let (halves, _) = bytes.as_chunks::<4>();
        let half = |n: usize| u32::from_le_bytes(halves[n]);
        let address = Address { process: half(4), file: half(5), nonce: u64::from_le_bytes(words[1]) };
        (u64::from_le_bytes(words[0]) == MAGIC).then_some(address)
    }
}

/// A segment that waits for its size and its peers.
pub struct Listener {
    file: OwnedFd,
    address: Address,
}

impl Listener {
    /// A segment of a header alone.
    ///
    /// # Errors
    /// The system has no memory or no file descriptor left.
    pub fn new() -> Result<Listener, CardError> {
        let file = memfd_create("peerwarp-gin", MemfdFlags::CLOEXEC).map_err(system("memfd_create"))?;
        ftruncate(&file, HEADER as u64).map_err(system("ftruncate"))?;
        let nonce = rand::random();
        let header = Mapping::new(&file, HEADER)?;
        header.words()[NONCE].store(nonce, Ordering::Relaxed);
        let number = std::os::fd::AsRawFd::as_raw_fd(&file);
        Ok(Listener { address: Address { process: std::process::id(), file: number as u32, nonce }, file })
    }

    /// Where peers find it.
    pub fn address(&self) -> Address {
        self.address
    }

    /// Makes room for a ring of each of these ranks, and lets peers attach.
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn open(&self, ranks: usize) -> Result<Segment, CardError> {
        let bytes = HEADER + ranks * RING_BYTES;
        ftruncate(&self.file, bytes as u64).map_err(system("ftruncate"))?;
        let mapping = Arc::new(Mapping::new(&self.file, bytes)?);
        let ready = mapping.half(READY);
        ready.store(ranks as u32, Ordering::Release);
        wake(ready)?;
        Ok(Segment { mapping })
    }
}

/// A rank's segment, as this process sees it.
pub struct Segment {
    mapping: Arc<Mapping>,
}

impl Segment {
    /// The ring into which a rank puts.
    pub fn ring(&self, source: usize) -> Ring {
        Ring::new(Arc::clone(&self.mapping), HEADER + source * RING_BYTES)
    }

    /// The memory.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Says that the owner takes no more puts.
    pub fn close(&self) {
        self.mapping.half(CLOSED).store(1, Ordering::Release);
    }

    /// Whether the owner takes no more puts.
    pub fn is_closed(&self) -> bool {
        self.mapping.half(CLOSED).load(Ordering::Acquire) != 0
    }

    /// Waits until all these peers have attached.
    ///
    /// # Errors
    /// A peer ended, or they do not come in time.
    pub fn wait_attached(&self, peers: &[&Peer], patience: Duration) -> Result<(), CardError> {
        let attached = self.mapping.half(ATTACHED);
        let there = |count: u32| count as usize >= peers.len();
        wait(attached, there, peers, "connect", patience).map(|_| ())
    }
}

/// A rank in another process.
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    process: u32,
    alive: OwnedFd,
}

impl Peer {
    /// Finds the process of a rank, and attaches to its segment of so many ranks.
    ///
    /// # Errors
    /// The process has ended, its segment is another's, or it does not open it in time.
    pub fn attach(
        rank: usize,
        address: Address,
        ranks: usize,
        patience: Duration,
    ) -> Result<(Peer, Segment), CardError> {
        let process = address.process;
        let no_card = |reason: String| CardError::NoCard { rank, reason };
        let ended = |e: &dyn std::fmt::Display| no_card(format!("process {process} cannot be reached, {e}"));
        let pid = Pid::from_raw(process as i32).ok_or_else(|| no_card("it names no process".into()))?;
        let alive = pidfd_open(pid, PidfdFlags::empty()).map_err(|e| ended(&e))?;
        let peer = Peer { rank, process, alive };
        let path = format!("/proc/{process}/fd/{}", address.file);
        let file = File::options().read(true).write(true).open(path).map_err(|e| ended(&e))?;
        let length = file.metadata().map_err(|e| ended(&e))?.len();
        let file = OwnedFd::from(file);
        if length < HEADER as u64 {
            return Err(no_card("another file stands in its place".into()));
        }
        let header = Mapping::new(&file, HEADER)?;
        if header.words()[NONCE].load(Ordering::Relaxed) != address.nonce {
            return Err(no_card("another file stands in its place".into()));
        }
        let open = |ranks: u32| ranks != 0;
        let theirs = wait(header.half(READY), open, &[&peer], "connect", patience)? as usize;
        if theirs != ranks {
            return Err(no_card(format!("it connects {theirs} ranks, and this one {ranks}")));
        }
        let mapping = Arc::new(Mapping::new(&file, HEADER + ranks * RING_BYTES)?);
        let attached = mapping.half(ATTACHED);
        attached.fetch_add(1, Ordering::Release);
        wake(attached)?;
        Ok((peer, Segment { mapping }))
    }

    /// An error that names the peer if its process has ended.
    pub fn check(&self) -> Result<(), CardError> {
        let mut files = [PollFd::new(&self.alive, PollFlags::IN)];
        let ended = poll(&mut files, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).map_err(system("poll"))?;
        if ended == 0 { Ok(()) } else { Err(CardError::Ended { rank: self.rank, process: self.process }) }
    }

    /// An error that says what the peer does not do.
    pub fn silent(&self, what: &'static str, patience: Duration) -> CardError {
        CardError::Silent { rank: self.rank, process: self.process, what, patience }
    }
}

fn wake(word: &AtomicU32) -> Result<(), CardError> {
    futex::wake(word, futex::Flags::empty(), i32::MAX as u32).map(|_| ()).map_err(system("futex"))
}

/// Waits until a word has a value that is awaited of these peers, and returns it.
fn wait(
    word: &AtomicU32,
    is_there: impl Fn(u32) -> bool,
    peers: &[&Peer],
    what: &'static str,
    patience: Duration,
) -> Result<u32, CardError> {
    let end = Instant::now() + patience;
    loop {
        let value = word.load(Ordering::Acquire);
        if is_there(value) {
            return Ok(value);
        }
        peers.iter().try_for_each(|peer| peer.check())?;
        let left = end.saturating_duration_since(Instant::now());
        if let (true, Some(peer)) = (left.is_zero(), peers.first()) {
            return Err(peer.silent(what, patience));
        }
        let slice = left.min(SLICE);
        let slice = futex::Timespec { tv_sec: 0, tv_nsec: slice.as_nanos() as _ };
        match futex::wait(word, futex::Flags::empty(), value, Some(&slice)) {
            Ok(())
            | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR | rustix::io::Errno::TIMEDOUT) => {}
            Err(e) => return Err(system("futex")(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_survives_being_passed_around() {
        let address = Address { process: 77, file: 5, nonce: 0x1234_5678_9abc_def0 };
        assert_eq!(Address::decode(&address.encode()), Some(address));
        assert_eq!(Address::decode(&[0; HANDLE_BYTES]), None);
    }

    #[test]
    fn a_peer_that_does_not_open_its_segment_is_named() {
        let listener = Listener::new().unwrap();
        let patience = Duration::from_millis(1);
        let said = |result: Result<(Peer, Segment), CardError>| result.err().unwrap().to_string();
        let silent = said(Peer::attach(3, listener.address(), 2, patience));
        assert_eq!(silent, format!("rank 3, process {}, does not connect in 1ms", std::process::id()));
        let _segment = listener.open(4).unwrap();
        let other = said(Peer::attach(3, listener.address(), 2, patience));
        assert_eq!(other, "the handle of rank 3 leads to no card: it connects 4 ranks, and this one 2");
        let stale = Address { nonce: 1, ..listener.address() };
        assert!(said(Peer::attach(3, stale, 4, patience)).ends_with("another file stands in its place"));
        let gone = Address { file: 1 << 30, ..listener.address() };
        assert!(said(Peer::attach(3, gone, 4, patience)).contains("cannot be reached"));
        let (peer, theirs) = Peer::attach(3, listener.address(), 4, patience).unwrap();
        assert!(!theirs.is_closed() && peer.check().is_ok());
    }
}
