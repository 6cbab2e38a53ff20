//! How processes of one machine pass each other handles of their memory: a Unix socket between any two of them.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use tempfile::TempDir;

use super::form::FormError;
use super::rendezvous::{Card, Deadline, timespec};
use crate::runtime::gpu::ShareHandle;

/// The socket on which a rank takes connections of others, in a folder that nobody else's processes can enter.
#[derive(Debug)]
pub(in crate::runtime) struct Door {
    folder: TempDir,
    listener: UnixListener,
}

impl Door {
    /// Opens it.
    pub fn open() -> Result<Door, FormError> {
        let temporary = std::env::temp_dir();
        let bad = |path: String| move |e: io::Error| FormError::Socket { path, reason: e.to_string() };
        // A folder of mkdtemp is its owner's alone.
        let folder = tempfile::Builder::new().prefix("peerwarp-").tempdir_in(&temporary);
        let folder = folder.map_err(bad(temporary.display().to_string()))?;
        let path = folder.path().join("rank");
        let listener = UnixListener::bind(&path).map_err(bad(path.display().to_string()))?;
        Ok(Door { folder, listener })
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("rank")
    }

    /// Connects to everybody: to those of lower rank at their doors, and at this one to those of higher rank.
    pub fn connect(self, rank: u32, cards: &[Card], deadline: &Deadline) -> Result<Handover, FormError> {
        let mut peers = vec![];
        for card in cards.iter().filter(|card| card.rank < rank) {
            let bad = |e: io::Error| FormError::Socket { path: card.socket.clone(), reason: e.to_string() };
            let mut stream = UnixStream::connect(&card.socket).map_err(bad)?;
            stream.write_all(&rank.to_le_bytes()).map_err(|_| FormError::Lost { rank: card.rank })?;
            peers.push((card.rank, stream));
        }
        let mut awaited: Vec<u32> = cards.iter().map(|c| c.rank).filter(|&r| r > rank).collect();
        let path = self.path().display().to_string();
        let bad = |e: io::Error| FormError::Socket { path: path.clone(), reason: e.to_string() };
        while let Some(&late) = awaited.first() {
            self.wait(deadline)
                .map_err(bad)?
                .ok_or(FormError::Late { rank: late, waited: deadline.timeout() })?;
            let (mut stream, _) = self.listener.accept().map_err(bad)?;
            let mut number = [0; 4];
            stream.set_read_timeout(Some(deadline.left().max(MOMENT))).map_err(bad)?;
            if stream.read_exact(&mut number).is_err() {
                continue;
            }
            let number = u32::from_le_bytes(number);
            if let Some(at) = awaited.iter().position(|&r| r == number) {
                awaited.remove(at);
                peers.push((number, stream));
            }
        }
        peers.sort_by_key(|(rank, _)| *rank);
        Ok(Handover { peers })
    }

    /// Waits until somebody connects; none when the time is up.
    fn wait(&self, deadline: &Deadline) -> io::Result<Option<()>> {
        loop {
            let mut fds = [PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&timespec(deadline.left()))) {
                Ok(0) => return Ok(None),
                Ok(_) => return Ok(Some(())),
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The shortest time that a socket can be told to wait: none means for ever.
const MOMENT: std::time::Duration = std::time::Duration::from_millis(1);

/// Bytes of a message before an IPC handle: its kind, and the size of the block.
const HEAD: usize = 9;

/// More than any message has.
const LONGEST: usize = 256;

/// The connections of one rank to all others of its machine.
#[derive(Debug)]
pub(in crate::runtime) struct Handover {
    /// By rank.
    peers: Vec<(u32, UnixStream)>,
}

impl Handover {
    /// Gives one of `handles` to every other rank, for a block of `bytes` bytes, and takes theirs: rank, size and handle.
    pub fn exchange(
        &self,
        handles: &[ShareHandle],
        bytes: u64,
        deadline: &Deadline,
    ) -> Result<Vec<(u32, u64, ShareHandle)>, FormError> {
        for ((rank, stream), handle) in self.peers.iter().zip(handles) {
            give(stream, handle, bytes).map_err(|_| FormError::Lost { rank: *rank })?;
        }
        let take = |(rank, stream): &(u32, UnixStream)| {
            let (bytes, handle) = take(*rank, stream, deadline)?;
            Ok((*rank, bytes, handle))
        };
        self.peers.iter().map(take).collect()
    }
}

impl Handover {
    /// A rank that has closed its connection, if there is one.
    pub fn lost(&self) -> Option<u32> {
        let fds = self.peers.iter().map(|(_, s)| PollFd::from_borrowed_fd(s.as_fd(), PollFlags::RDHUP));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        poll(&mut fds, Some(&timespec(std::time::Duration::ZERO))).ok()?;
        let at = fds.iter().position(|fd| fd.revents().intersects(PollFlags::RDHUP | PollFlags::HUP))?;
        Some(self.peers[at].0)
    }
}

fn give(stream: &UnixStream, handle: &ShareHandle, bytes: u64) -> io::Result<()> {
    let mut message = [0; HEAD].to_vec();
    message[1..].copy_from_slice(&bytes.to_le_bytes());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fd;
    match handle {
        ShareHandle::Ipc(raw) => message.extend(raw),
        ShareHandle::Fd(owned) => {
            message[0] = 1;
            fd = [owned.as_fd()];
            control.push(SendAncillaryMessage::ScmRights(&fd));
        }
    }
    // A message of this size goes as a whole.
    message.resize(LONGEST, 0);
    let sent = sendmsg(stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == message.len() { Ok(()) } else { Err(io::Error::other("a part of a message was sent")) }
}

fn take(rank: u32, stream: &UnixStream, deadline: &Deadline) -> Result<(u64, ShareHandle), FormError> {
    let malformed = |reason: &str| FormError::Malformed { rank, reason: reason.into() };
    let lost = FormError::Lost { rank };
    let mut message = [0; LONGEST];
    let mut have = 0;
    let mut fd: Option<OwnedFd> = None;
    while have < LONGEST {
        let left = deadline.left();
        if left.is_zero() {
            return Err(FormError::Late { rank, waited: deadline.timeout() });
        }
        stream.set_read_timeout(Some(left.max(MOMENT))).map_err(|_| lost.clone())?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut message[have..])];
        match recvmsg(stream, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(got) if got.bytes == 0 => return Err(lost),
            Ok(got) => have += got.bytes,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => continue,
            Err(_) => return Err(lost),
        }
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                fd = fds.last().or(fd);
            }
        }
    }
    let bytes = u64::from_le_bytes(message[1..HEAD].try_into().expect("eight bytes"));
    match (message[0], fd) {
        (0, None) => Ok((bytes, ShareHandle::Ipc(message[HEAD..HEAD + IPC].to_vec()))),
        (1, Some(fd)) => Ok((bytes, ShareHandle::Fd(fd))),
        (1, None) => Err(malformed("a message without its file descriptor")),
        _ => Err(malformed("a handle of an unknown kind")),
    }
}

/// Bytes of an IPC handle, CUDA's and HIP's.
const IPC: usize = 64;
