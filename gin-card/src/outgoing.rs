//! Puts on their way to one rank: from windows into its ring, in the order of their calls.

use std::collections::VecDeque;

use crate::cuda::Gpu;
use crate::error::CardError;
use crate::region::{Memory, Place};
use crate::requests::Requests;
use crate::ring::{Message, Ring};

/// Messages that one step begins to read, at most.
const STEP: usize = 64;

/// A message whose bytes are still in their window.
pub struct Piece {
    /// The message, at no position yet.
    pub message: Message,
    /// Where its bytes are.
    pub source: Option<Place>,
    /// The request that is complete with this message.
    pub request: Option<usize>,
}

/// A message whose bytes are being read.
struct Reading {
    message: Message,
    request: Option<usize>,
    /// The batch that reads them; 0 if they have been read.
    batch: u64,
}

/// What this rank puts to another.
pub struct Outgoing {
    ring: Ring,
    waiting: VecDeque<Piece>,
    reading: VecDeque<Reading>,
    /// Messages that have been handed over.
    tail: u64,
    /// Where the next bytes go.
    position: u64,
}

// SAFETY: places belong to regions, which are there on any thread.
unsafe impl Send for Outgoing {}

impl Outgoing {
    /// Puts into a ring that has seen none.
    pub fn new(ring: Ring) -> Outgoing {
        Outgoing { ring, waiting: VecDeque::new(), reading: VecDeque::new(), tail: 0, position: 0 }
    }

    /// Lets a message follow the others.
    pub fn push(&mut self, piece: Piece) {
        self.waiting.push_back(piece);
    }

    /// Whether all messages have been handed over.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.reading.is_empty()
    }

    /// Reads what the ring has room for, and hands over what has been read.
    ///
    /// # Errors
    /// [`CardError::NoGpu`], [`CardError::Cuda`].
    pub fn step(&mut self, mut gpu: Option<&mut Gpu>, requests: &mut Requests) -> Result<(), CardError> {
        let before = self.reading.len();
        let mut gpu_reads = false;
        while self.reading.len() < before + STEP
            && let Some(piece) = self.waiting.front()
        {
            let number = self.tail + self.reading.len() as u64;
            let Some(position) = self.ring.place(number, self.position, piece.message.bytes) else { break };
            let (message, request) = (Message { position, ..piece.message }, piece.request);
            let (to, bytes) = (self.ring.data(position), message.bytes as usize);
            match piece.source {
                None => {}
                // SAFETY: the region has the bytes, and the ring gives their place to this message alone.
                Some(Place { memory: Memory::Host, address }) => unsafe {
                    std::ptr::copy_nonoverlapping(address.as_ptr(), to, bytes);
                },
                Some(Place { memory: Memory::Gpu, address }) => {
                    let gpu = gpu.as_deref().ok_or(CardError::NoGpu)?;
                    // SAFETY: as above; the message is handed over when the batch is sent.
                    unsafe { gpu.read(to, address, bytes) }?;
                    gpu_reads = true;
                }
            }
            self.position = message.end();
            self.reading.push_back(Reading { message, request, batch: 0 });
            self.waiting.pop_front();
        }
        if gpu_reads && let Some(gpu) = gpu.as_deref_mut() {
            let batch = gpu.end_sent()?;
            self.reading.iter_mut().skip(before).for_each(|reading| reading.batch = batch);
        }
        let sent = gpu.map_or(0, |gpu| gpu.sent());
        while let Some(Reading { message, request, .. }) =
            self.reading.pop_front_if(|read| read.batch <= sent)
        {
            self.ring.publish(self.tail, &message);
            self.tail += 1;
            if let Some(request) = request {
                requests.complete(request);
            }
        }
        Ok(())
    }
}
