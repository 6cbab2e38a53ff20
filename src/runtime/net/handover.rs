//! How processes of one machine pass each other handles of their memory: a Unix socket between any two of them.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::geteuid;
use tempfile::TempDir;

use super::channel::LONGEST;
use super::deadline::{Cut, Deadline, await_read, timespec};
use super::form::FormError;
use super::introductions::{Caller, Entrance, INTRODUCTION, Introductions, Next, Stranger, introduce};
use super::rendezvous::{Card, malformed};
use super::secret::Secret;
use crate::runtime::gpu::ShareHandle;

/// The socket on which a rank takes connections of others, in a folder that no other user's processes can enter.
#[derive(Debug)]
pub(in crate::runtime) struct Door {
    folder: TempDir,
    listener: UnixListener,
    /// The user whose processes may connect, and to whose processes is connected.
    user: u32,
}

impl AsFd for Door {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Entrance for Door {
    type Stream = UnixStream;

    fn accept(&self) -> io::Result<Caller<UnixStream>> {
        let (stream, _) = self.listener.accept()?;
        let stranger = check_user(&stream, self.user).err();
        Ok(Caller { stream, name: "a process of this machine".into(), place: place(&self.path()), stranger })
    }
}

/// Where ranks meet at a socket, in the same words on both sides.
fn place(path: &Path) -> String {
    format!("unix {}", path.display())
}

/// Whether the process at the other end is a certain user's. Other users can be root's, or hold a socket that was passed on.
fn check_user(stream: &UnixStream, user: u32) -> Result<(), Stranger> {
    let other = socket_peercred(stream).map_err(|_| Stranger::HungUp)?.uid.as_raw();
    if other == user { Ok(()) } else { Err(Stranger::User(other)) }
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
        // Others are told it as text.
        if path.to_str().is_none() {
            return Err(bad(path.display().to_string())(io::Error::other("its path has to be UTF-8")));
        }
        let listener = UnixListener::bind(&path).map_err(bad(path.display().to_string()))?;
        listener.set_nonblocking(true).map_err(bad(path.display().to_string()))?;
        Ok(Door { folder, listener, user: geteuid().as_raw() })
    }

    /// Its path.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join("rank")
    }

    /// Connects to all ranks: to those of lower rank at their doors, and at this one to those of higher rank.
    pub fn connect(
        self,
        rank: u32,
        secret: &Secret,
        cards: &[Card],
        deadline: &Deadline,
    ) -> Result<Handover, FormError> {
        let mut peers = vec![];
        for card in cards.iter().filter(|card| card.rank < rank) {
            peers.push((card.rank, self.visit(rank, secret, card, deadline)?));
        }
        let awaited = cards.iter().map(|c| c.rank).filter(|&r| r > rank).collect();
        peers.extend(self.admit(rank, secret, awaited, deadline)?);
        peers.sort_by_key(|(rank, _)| *rank);
        Ok(Handover { peers, view: 0 })
    }

    /// The connections of these ranks, who come to this door.
    pub fn admit(
        &self,
        rank: u32,
        secret: &Secret,
        mut awaited: Vec<u32>,
        deadline: &Deadline,
    ) -> Result<Vec<(u32, UnixStream)>, FormError> {
        let path = self.path().display().to_string();
        let bad = |e: io::Error| FormError::Socket { path: path.clone(), reason: e.to_string() };
        let mut peers = vec![];
        let mut introductions = Introductions::new(self, secret, rank);
        while let Some(&late) = awaited.first() {
            match introductions.next(&[], deadline).map_err(bad)? {
                Next::Guest(guest) => match awaited.iter().position(|&r| r == guest.rank) {
                    Some(at) => peers.push((awaited.remove(at), guest.stream)),
                    None => introductions.turned_away(&guest.name, Stranger::Unawaited),
                },
                _ => return Err(FormError::Late { rank: late, waited: deadline.timeout() }),
            }
        }
        peers.iter().try_for_each(|(_, stream)| stream.set_write_timeout(Some(INTRODUCTION))).map_err(bad)?;
        Ok(peers)
    }

    /// The connection to a rank that has a door of its own.
    pub fn visit(
        &self,
        rank: u32,
        secret: &Secret,
        card: &Card,
        deadline: &Deadline,
    ) -> Result<UnixStream, FormError> {
        let bad = |reason: String| FormError::Socket { path: card.socket.clone(), reason };
        let mut stream = UnixStream::connect(&card.socket).map_err(|e| bad(e.to_string()))?;
        let met = check_user(&stream, self.user).and_then(|()| {
            let place = place(Path::new(&card.socket));
            introduce(&mut stream, &place, secret, (rank, card.rank), deadline)
        });
        match met {
            Ok(_) => {
                stream.set_write_timeout(Some(INTRODUCTION)).map_err(|e| bad(e.to_string()))?;
                Ok(stream)
            }
            Err(Stranger::Silent) => Err(FormError::Late { rank: card.rank, waited: deadline.timeout() }),
            Err(stranger) => Err(bad(format!("the processes that listen there {stranger}"))),
        }
    }
}

/// Bytes of a message before an IPC handle: its kind, and the size of the block.
const HEAD: usize = 9;

/// Bytes of an IPC handle, CUDA's and HIP's.
pub(super) const IPC: usize = 64;

/// Bytes of a message that goes with a handle.
pub(super) const PARCEL: usize = HEAD + IPC;

/// What goes with a handle of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parcel {
    /// Size of the block.
    pub bytes: u64,
    /// The IPC handle; none if a file descriptor is passed.
    pub ipc: Option<[u8; IPC]>,
}

impl Parcel {
    pub fn encode(&self) -> [u8; PARCEL] {
        let mut message = [0; PARCEL];
        message[0] = u8::from(self.ipc.is_none());
        message[1..HEAD].copy_from_slice(&self.bytes.to_le_bytes());
        message[HEAD..].copy_from_slice(&self.ipc.unwrap_or([0; IPC]));
        message
    }

    pub fn decode(message: &[u8; PARCEL]) -> Result<Parcel, &'static str> {
        let bytes = u64::from_le_bytes(message[1..HEAD].try_into().expect("eight bytes"));
        let handle: [u8; IPC] = message[HEAD..].try_into().expect("the rest");
        match message[0] {
            0 => Ok(Parcel { bytes, ipc: Some(handle) }),
            1 if handle == [0; IPC] => Ok(Parcel { bytes, ipc: None }),
            1 => Err("a file descriptor with an IPC handle"),
            _ => Err("a handle of an unknown kind"),
        }
    }
}

/// Bytes before those of a message: its view, and their number.
const FRAME: usize = 8;

/// The connections of one rank to all others of its machine that go on.
#[derive(Debug)]
pub(in crate::runtime) struct Handover {
    /// By rank.
    peers: Vec<(u32, UnixStream)>,
    /// The view in which they speak: what is left of earlier ones is not looked at.
    view: u32,
}

impl Handover {
    /// The view in which they speak: 0 as long as no rank has left.
    pub fn view(&self) -> u32 {
        self.view
    }

    /// Of a rank that knows no other one yet.
    pub fn alone() -> Handover {
        Handover { peers: vec![], view: 1 }
    }

    /// With these ranks too, in a view.
    pub fn with(&mut self, view: u32, peers: impl IntoIterator<Item = (u32, UnixStream)>) {
        self.view = view;
        self.peers.extend(peers);
        self.peers.sort_by_key(|(rank, _)| *rank);
    }

    /// Gives a rank a file.
    pub fn give(&self, rank: u32, file: OwnedFd) -> Result<(), FormError> {
        let peer = self.peers.iter().find(|(peer, _)| *peer == rank);
        let given = peer.map(|(_, stream)| give(stream, self.view, &ShareHandle::Fd(file), 0));
        given.and_then(Result::ok).ok_or(FormError::Lost { rank })
    }

    /// The other ranks, in order.
    pub fn ranks(&self) -> impl Iterator<Item = u32> + '_ {
        self.peers.iter().map(|(rank, _)| *rank)
    }

    /// Goes over to a view, without the ranks that are not in it.
    pub fn go_over(&mut self, view: u32, goes_on: impl Fn(u32) -> bool) {
        self.view = view;
        self.peers.retain(|(rank, _)| goes_on(*rank));
    }

    /// Gives one of `handles` to every other rank, for a block of `bytes` bytes, and takes theirs: rank, size and handle.
    pub fn exchange(
        &self,
        handles: &[ShareHandle],
        bytes: u64,
        deadline: &Deadline,
    ) -> Result<Vec<(u32, u64, ShareHandle)>, FormError> {
        self.to_all(|at| give(&self.peers[at].1, self.view, &handles[at], bytes))?;
        let handle = |(rank, message)| parcel(rank, message).map(|(bytes, handle)| (rank, bytes, handle));
        self.of_all(deadline)?.into_iter().map(handle).collect()
    }

    /// The next message of each other rank in this view, by rank, read as they come: one that waits for a rank that is there hears that
    /// another one is gone.
    fn of_all(&self, deadline: &Deadline) -> Result<Vec<(u32, Message)>, FormError> {
        let (mut heard, mut awaited) = (vec![], self.peers.iter().collect::<Vec<_>>());
        while let Some((first, _)) = awaited.first() {
            let late = FormError::Late { rank: *first, waited: deadline.timeout() };
            let fds =
                awaited.iter().map(|(_, stream)| PollFd::from_borrowed_fd(stream.as_fd(), PollFlags::IN));
            let mut fds: Vec<PollFd<'_>> = fds.collect();
            match poll(&mut fds, Some(&timespec(deadline.left()))) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return Err(late),
                Ok(_) => {}
            }
            let at = fds.iter().position(|fd| !fd.revents().is_empty()).ok_or(late)?;
            let (rank, stream) = awaited[at];
            if let Some(message) = receive(*rank, self.view, stream, deadline)? {
                awaited.remove(at);
                heard.push((*rank, message));
            }
        }
        heard.sort_by_key(|(rank, _)| *rank);
        Ok(heard)
    }

    /// Sends to each other rank by its place among them, also where one is gone: the rest wait for it.
    fn to_all(&self, send: impl Fn(usize) -> io::Result<()>) -> Result<(), FormError> {
        let sent = self.peers.iter().enumerate().map(|(at, (rank, _))| (*rank, send(at).is_ok()));
        let lost: Vec<u32> = sent.filter(|(_, well)| !well).map(|(rank, _)| rank).collect();
        lost.first().map_or(Ok(()), |rank| Err(FormError::Lost { rank: *rank }))
    }

    /// The file of the first of all ranks, which makes it.
    pub fn of_first(
        &self,
        own: u32,
        make: impl FnOnce() -> Result<OwnedFd, FormError>,
        deadline: &Deadline,
    ) -> Result<OwnedFd, FormError> {
        let bad = |e: io::Error| FormError::Socket { path: "shared memory".into(), reason: e.to_string() };
        match self.peers.first() {
            Some((first, _)) if *first < own => self.file_of(*first, deadline),
            _ => {
                let file = make()?;
                for (rank, stream) in &self.peers {
                    let copy = ShareHandle::Fd(file.try_clone().map_err(bad)?);
                    give(stream, self.view, &copy, 0).map_err(|_| FormError::Lost { rank: *rank })?;
                }
                Ok(file)
            }
        }
    }

    /// The file that a rank gives.
    pub fn file_of(&self, rank: u32, deadline: &Deadline) -> Result<OwnedFd, FormError> {
        let peer = self.peers.iter().find(|(peer, _)| *peer == rank);
        let (_, stream) = peer.ok_or(FormError::Lost { rank })?;
        let message = loop {
            if let Some(message) = receive(rank, self.view, stream, deadline)? {
                break message;
            }
        };
        match parcel(rank, message)?.1 {
            ShareHandle::Fd(file) => Ok(file),
            ShareHandle::Ipc(_) => Err(malformed(rank, "an IPC handle in place of a file")),
        }
    }

    /// What all ranks have to say, in their order.
    pub fn gather(
        &self,
        rank: u32,
        own: Vec<u8>,
        deadline: &Deadline,
    ) -> Result<Vec<(u32, Vec<u8>)>, FormError> {
        let said = frame(self.view, &own);
        self.to_all(|at| io::Write::write_all(&mut &self.peers[at].1, &said))?;
        let heard = self.of_all(deadline)?;
        let mut all: Vec<_> = heard.into_iter().map(|(peer, (body, _))| (peer, body)).collect();
        all.push((rank, own));
        all.sort_by_key(|(rank, _)| *rank);
        Ok(all)
    }

    /// The ranks that have closed their connection.
    pub fn lost(&self) -> Vec<u32> {
        let fds = self.peers.iter().map(|(_, s)| PollFd::from_borrowed_fd(s.as_fd(), PollFlags::RDHUP));
        let mut fds: Vec<PollFd<'_>> = fds.collect();
        if poll(&mut fds, Some(&timespec(std::time::Duration::ZERO))).is_err() {
            return vec![];
        }
        let gone = fds.iter().zip(&self.peers);
        let gone = gone.filter(|(fd, _)| fd.revents().intersects(PollFlags::RDHUP | PollFlags::HUP));
        gone.map(|(_, (rank, _))| *rank).collect()
    }
}

fn frame(view: u32, body: &[u8]) -> Vec<u8> {
    [&view.to_le_bytes(), &(body.len() as u32).to_le_bytes(), body].concat()
}

fn give(stream: &UnixStream, view: u32, handle: &ShareHandle, bytes: u64) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fd;
    let ipc = match handle {
        ShareHandle::Ipc(raw) => Some(raw.as_slice().try_into().map_err(io::Error::other)?),
        ShareHandle::Fd(owned) => {
            fd = [owned.as_fd()];
            control.push(SendAncillaryMessage::ScmRights(&fd));
            None
        }
    };
    // A message of this size goes as a whole.
    let message = frame(view, &Parcel { bytes, ipc }.encode());
    let sent = sendmsg(stream, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
    if sent == message.len() { Ok(()) } else { Err(io::Error::other("a part of a message was sent")) }
}

/// What a rank says, and the file that comes with it.
type Message = (Vec<u8>, Option<OwnedFd>);

/// Reads so many bytes, and the file that comes with them.
fn read(rank: u32, stream: &UnixStream, bytes: usize, deadline: &Deadline) -> Result<Message, FormError> {
    let lost = FormError::Lost { rank };
    let mut message = vec![0; bytes];
    let mut have = 0;
    let mut fd: Option<OwnedFd> = None;
    while have < bytes {
        await_read(stream, deadline).map_err(|cut| match cut {
            Cut::Late => FormError::Late { rank, waited: deadline.timeout() },
            Cut::Gone => lost.clone(),
        })?;
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
    Ok((message, fd))
}

/// The next message, and the file that comes with it; none if it is of an earlier view.
fn receive(
    rank: u32,
    view: u32,
    stream: &UnixStream,
    deadline: &Deadline,
) -> Result<Option<Message>, FormError> {
    let (head, fd) = read(rank, stream, FRAME, deadline)?;
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
    let (of_view, bytes) = (word(0), word(4));
    if bytes > LONGEST {
        return Err(malformed(rank, format!("a message of {bytes} bytes")));
    }
    let (body, more) = read(rank, stream, bytes as usize, deadline)?;
    match of_view.cmp(&view) {
        std::cmp::Ordering::Less => Ok(None),
        std::cmp::Ordering::Equal => Ok(Some((body, fd.or(more)))),
        std::cmp::Ordering::Greater => Err(FormError::Lost { rank }),
    }
}

/// The handle in a message, and the bytes of its block.
fn parcel(rank: u32, (body, fd): Message) -> Result<(u64, ShareHandle), FormError> {
    let message: &[u8; PARCEL] = body
        .as_slice()
        .try_into()
        .map_err(|_| malformed(rank, format!("a message of {} bytes in place of {PARCEL}", body.len())))?;
    let parcel = Parcel::decode(message).map_err(|reason| malformed(rank, reason))?;
    match (parcel.ipc, fd) {
        (Some(ipc), None) => Ok((parcel.bytes, ShareHandle::Ipc(ipc.to_vec()))),
        (None, Some(fd)) => Ok((parcel.bytes, ShareHandle::Fd(fd))),
        (None, None) => Err(malformed(rank, "a message without its file descriptor")),
        (Some(_), Some(_)) => Err(malformed(rank, "an IPC handle with a file descriptor")),
    }
}

#[cfg(test)]
#[path = "handover_tests.rs"]
mod tests;
