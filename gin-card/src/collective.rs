//! One rank among connected ones: its regions, its requests, and its traffic with each of them.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::cuda::Gpu;
use crate::error::CardError;
use crate::incoming::Incoming;
use crate::manners::Settings;
use crate::outgoing::{Outgoing, Piece};
use crate::region::{Memory, Place, Regions};
use crate::requests::Requests;
use crate::ring::{LONGEST, Message, RING_BYTES};
use crate::segment::{Address, Listener, Peer, Segment};

/// Ranks that connect, at most.
pub const RANKS: usize = 64;
/// How often the peers' processes are looked at.
const LOOK: Duration = Duration::from_millis(20);

/// A put that a kernel asks for.
pub struct Put {
    /// The context whose order counts.
    pub context: u32,
    /// The rank where it lands.
    pub rank: usize,
    /// How many bytes it has.
    pub bytes: u64,
    /// Region and offset of its source; of no meaning without bytes.
    pub from: (u64, u64),
    /// Region and offset of its target; of no meaning without bytes.
    pub to: (u64, u64),
    /// What grows when it has landed.
    pub signal: Option<Signal>,
}

/// A signal of a put.
pub struct Signal {
    /// Its region.
    pub region: u64,
    /// Its byte in the region.
    pub offset: u64,
    /// By how much it grows.
    pub value: u64,
    /// Whether it follows all earlier puts of the context.
    pub is_strong: bool,
}

/// One rank among connected ones.
pub struct Collective {
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    // The first to go: the GPU unpins memory that the others map.
    gpu: Option<Gpu>,
    own: Segment,
    /// Peers and their segments.
    peers: Vec<(Peer, Segment)>,
    regions: Regions,
    requests: Requests,
    /// By target.
    outgoing: Vec<Outgoing>,
    /// By source.
    incoming: Vec<Incoming>,
    failed: Option<CardError>,
    looked: Instant,
}

impl Collective {
    /// Connects a rank with those whose addresses these are, its own among them. Waits for all of them.
    ///
    /// # Errors
    /// A peer ended, does not come in time, or is no card; the system or CUDA fails.
    pub fn connect(
        listener: &Listener,
        addresses: &[Option<Address>],
        rank: usize,
        settings: &Settings,
    ) -> Result<Collective, CardError> {
        let (ranks, patience) = (addresses.len(), settings.patience);
        let own = listener.open(ranks)?;
        let mut peers = vec![];
        for (peer, address) in addresses.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            let no_card = || CardError::NoCard { rank: peer, reason: "it is another plug-in's".into() };
            peers.push(Peer::attach(peer, address.ok_or_else(no_card)?, ranks, patience)?);
        }
        let others: Vec<&Peer> = peers.iter().map(|(peer, _)| peer).collect();
        own.wait_attached(&others, patience)?;
        let mut gpu = Gpu::current(own.mapping())?;
        let mut outgoing = vec![];
        for target in 0..ranks {
            let segment = peers.iter().find(|(peer, _)| peer.rank == target).map(|(_, segment)| segment);
            let ring = segment.unwrap_or(&own).ring(rank);
            // The own segment is pinned as a whole.
            if let (Some(gpu), Some(_)) = (&mut gpu, segment) {
                gpu.pin(ring.address(), RING_BYTES)?;
            }
            outgoing.push(Outgoing::new(ring));
        }
        let incoming = (0..ranks)
            .map(|source| Incoming::new(own.ring(source), source, rank, settings.manners))
            .collect();
        let state = State {
            gpu,
            own,
            peers,
            regions: Regions::default(),
            requests: Requests::default(),
            outgoing,
            incoming,
            failed: None,
            looked: Instant::now(),
        };
        Ok(Collective { patience, state: Mutex::new(state) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers memory, and returns the region's number, from 1. All ranks register in the same order.
    ///
    /// # Safety
    /// The memory has so many bytes until it is deregistered. Meanwhile the card reads and writes it where puts say so.
    ///
    /// # Errors
    /// [`CardError::NoGpu`], [`CardError::Cuda`].
    pub unsafe fn register(
        &self,
        address: NonNull<u8>,
        bytes: u64,
        memory: Memory,
        takes_signals: bool,
        is_reset: bool,
    ) -> Result<u64, CardError> {
        let mut state = self.state();
        if memory == Memory::Gpu {
            let gpu = state.gpu.as_ref().ok_or(CardError::NoGpu)?;
            gpu.enter()?;
            if bytes >= 8 {
                gpu.warm(address)?;
            }
        }
        Ok(state.regions.insert(Place { memory, address }, bytes, takes_signals, is_reset))
    }

    /// Gives up a region.
    ///
    /// # Errors
    /// There is none of this number.
    pub fn deregister(&self, region: u64) -> Result<(), CardError> {
        self.state().regions.remove(region)
    }

    /// Begins a put, and returns its request.
    ///
    /// # Errors
    /// It names a rank or bytes that do not exist, or the rank has failed.
    pub fn put(&self, put: &Put) -> Result<usize, CardError> {
        let mut state = self.state();
        state.check()?;
        let State { regions, requests, outgoing, .. } = &mut *state;
        let ranks = outgoing.len();
        let target = outgoing.get_mut(put.rank).ok_or_else(|| CardError::Range {
            field: "the rank of a put",
            value: put.rank as i64,
            allowed: format!("0 to {}", ranks - 1),
        })?;
        if put.bytes > 0 {
            regions.get(put.from.0)?.place(put.from.1, put.bytes)?;
            regions.get(put.to.0)?;
        }
        if let Some(signal) = &put.signal {
            regions.get(signal.region)?;
        }
        let request = requests.open();
        let is_ordered = put.signal.as_ref().is_some_and(|signal| signal.is_strong || put.bytes == 0);
        let mut done = 0;
        loop {
            let bytes = (put.bytes - done).min(LONGEST);
            let source = match bytes {
                0 => None,
                _ => Some(regions.get(put.from.0)?.place(put.from.1 + done, bytes)?),
            };
            let continues = done > 0;
            let is_last = done + bytes == put.bytes;
            let signal = put.signal.as_ref().filter(|_| is_last);
            let message = Message {
                bytes,
                target: (put.to.0, put.to.1 + done),
                signal: signal.map(|signal| (signal.region, signal.offset, signal.value)),
                context: put.context,
                is_ordered,
                continues,
                position: 0,
            };
            target.push(Piece { message, source, request: is_last.then_some(request) });
            done += bytes;
            if is_last {
                return Ok(request);
            }
        }
    }

    /// Whether the source of a request's put has been read. A complete request is gone after that.
    ///
    /// # Errors
    /// There is no such request, or the rank has failed.
    pub fn test(&self, request: usize) -> Result<bool, CardError> {
        let mut state = self.state();
        state.check()?;
        state.requests.take(request).ok_or(CardError::Handle { what: "request", handle: request })
    }

    /// Moves everything on.
    ///
    /// # Errors
    /// A peer ended without closing, asked for something that does not exist, or CUDA failed. The rank has failed then.
    pub fn progress(&self) -> Result<(), CardError> {
        let mut state = self.state();
        state.check()?;
        let moved = state.step();
        state.failed = moved.clone().err();
        moved
    }

    /// Whether the rank has failed.
    pub fn has_failed(&self) -> bool {
        self.state().failed.is_some()
    }

    /// Hands over all messages on their way, and tells the peers that this rank takes no more.
    ///
    /// # Errors
    /// A peer does not make room in time, or the rank fails.
    pub fn close(&self) -> Result<(), CardError> {
        let mut state = self.state();
        let end = Instant::now() + self.patience;
        let mut closed = Ok(());
        while closed.is_ok() && state.failed.is_none() {
            let Some(peer) = state.busy() else { break };
            if Instant::now() >= end {
                closed = Err(peer.silent("take the puts to it", self.patience));
            } else {
                closed = state.step();
                std::thread::yield_now();
            }
        }
        if let Some(gpu) = &state.gpu {
            closed = closed.and(gpu.enter()).and_then(|()| gpu.settle());
        }
        state.own.close();
        closed
    }
}

impl State {
    fn check(&self) -> Result<(), CardError> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn step(&mut self) -> Result<(), CardError> {
        let State { gpu, regions, requests, outgoing, incoming, peers, looked, .. } = self;
        if let Some(gpu) = gpu {
            gpu.enter()?;
        }
        for outgoing in outgoing {
            outgoing.step(gpu.as_mut(), requests)?;
        }
        let now = Instant::now();
        for incoming in incoming {
            incoming.step(now, regions, gpu.as_mut())?;
        }
        if now - *looked >= LOOK {
            *looked = now;
            for (peer, segment) in peers {
                // A process that ended has closed or never will: the order of these questions matters.
                peer.check().or_else(|ended| if segment.is_closed() { Ok(()) } else { Err(ended) })?;
            }
        }
        Ok(())
    }

    /// A peer with messages on their way to it.
    fn busy(&self) -> Option<&Peer> {
        let busy = |(peer, segment): &&(Peer, Segment)| {
            !segment.is_closed() && !self.outgoing.get(peer.rank).is_none_or(Outgoing::is_empty)
        };
        self.peers.iter().find(busy).map(|(peer, _)| peer)
    }
}
