//! Copies between GPUs by their copy engines, timed by events: with peer access where there is some, else through the host.

use std::sync::Arc;
use std::time::Duration;

use super::RuntimeError;
use super::gpu::{Gpu, SharedBlock, Sharing};
use super::handles::{Event, Stream};

/// GPUs of one process, with memory to copy from one to the other.
#[derive(Debug)]
pub(crate) struct PeerCopies {
    gpus: Vec<Arc<dyn Gpu>>,
    bytes: u64,
    /// What is copied, and where to: of each GPU one block, with a part for each GPU that it comes from.
    blocks: Vec<SharedBlock>,
    /// `[from][to]`: each copy has a stream of its own, so that those of one GPU go at once.
    lanes: Vec<Vec<Lane>>,
}

#[derive(Debug)]
struct Lane {
    stream: Stream,
    before: Event,
    after: Event,
}

impl PeerCopies {
    /// For copies of `bytes` bytes. A GPU gets access to the memory of each other one that it can reach.
    ///
    /// # Errors
    /// Memory runs out, or the driver refuses.
    pub fn new(gpus: &[Arc<dyn Gpu>], bytes: u64) -> Result<PeerCopies, RuntimeError> {
        let mut copies = PeerCopies { gpus: gpus.to_vec(), bytes, blocks: vec![], lanes: vec![] };
        for gpu in gpus {
            let own = gpu.info().ordinal;
            let mut peers = vec![];
            for peer in gpus.iter().filter(|peer| peer.info().ordinal != own) {
                if peer.can_access(own)? {
                    peers.push(peer.info().ordinal);
                }
            }
            let all = bytes * (gpus.len() as u64 + 1);
            copies.blocks.push(gpu.alloc_shared(all, Sharing::Ipc, &peers)?);
            let lane =
                |_| Ok(Lane { stream: Stream::new(gpu)?, before: Event::new(gpu)?, after: Event::new(gpu)? });
            copies.lanes.push(gpus.iter().map(lane).collect::<Result<_, RuntimeError>>()?);
        }
        Ok(copies)
    }

    /// How long these copies take, each `times` times over, `(from, to)` by their places among the GPUs; all begin at once.
    ///
    /// # Errors
    /// The driver's.
    pub fn time(&self, pairs: &[(usize, usize)], times: u32) -> Result<Vec<Duration>, RuntimeError> {
        let launched = pairs.iter().try_for_each(|&pair| self.launch(pair, times));
        // Also after an error: what has been launched has to end.
        let ended = pairs.iter().map(|&(from, to)| self.lanes[from][to].stream.synchronize());
        let ended = ended.fold(Ok(()), Result::and);
        launched.and(ended)?;
        let time = |&(from, to): &(usize, usize)| {
            let lane = &self.lanes[from][to];
            lane.after.since(&lane.before)
        };
        pairs.iter().map(time).collect()
    }

    fn launch(&self, (from, to): (usize, usize), times: u32) -> Result<(), RuntimeError> {
        let (lane, gpu) = (&self.lanes[from][to], &self.gpus[from]);
        let stream = lane.stream.raw();
        // The first part is what is copied, and those behind it are one for each GPU.
        let target = self.blocks[to].ptr + self.bytes * (from as u64 + 1);
        lane.before.record(stream)?;
        for _ in 0..times {
            let peer = self.gpus[to].info().ordinal;
            // SAFETY: both blocks are as large as that and live until the stream has ended; nothing else uses that part of the target.
            unsafe { gpu.copy_to_peer(peer, target, self.blocks[from].ptr, self.bytes, stream)? };
        }
        lane.after.record(stream)
    }
}

impl Drop for PeerCopies {
    fn drop(&mut self) {
        let idle = self.gpus.iter().map(|gpu| gpu.synchronize()).fold(Ok(()), Result::and);
        if idle.is_ok() {
            for (gpu, block) in self.gpus.iter().zip(&self.blocks) {
                // SAFETY: its own, for the last time; no copy is under way on any of the GPUs.
                let _ = unsafe { gpu.free_shared(block) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::mock::{Machine, MockGpu};

    #[test]
    fn bytes_go_from_the_first_part_to_the_part_of_their_source() {
        let machine = Machine::default();
        let gpus = MockGpu::all_ipc(&machine, 3);
        let copies = PeerCopies::new(&gpus, 4096).unwrap();
        for (gpu, block) in gpus.iter().zip(&copies.blocks) {
            let value = gpu.info().ordinal as u8 + 1;
            // SAFETY: the block's first part.
            unsafe { gpu.upload(block.ptr, &[value; 4096]).unwrap() };
        }
        assert_eq!(copies.time(&[(0, 1), (2, 1), (1, 0)], 3).unwrap().len(), 3);
        assert_eq!(machine.calls("copy_to_peer"), 9);
        let mut found = [0u8; 4 * 4096];
        // SAFETY: the block is that large.
        unsafe { gpus[1].download(copies.blocks[1].ptr, &mut found).unwrap() };
        assert_eq!([0, 4096, 3 * 4096, 4 * 4096 - 1].map(|at| found[at]), [2, 1, 3, 3]);
    }

    #[test]
    fn a_copy_that_fails_leaves_nothing_behind() {
        let machine = Machine::default();
        let gpus = MockGpu::all_ipc(&machine, 2);
        machine.fail("alloc_shared", 1);
        PeerCopies::new(&gpus, 4096).unwrap_err();
        let machine = Machine::default();
        let gpus = MockGpu::all_ipc(&machine, 2);
        let copies = PeerCopies::new(&gpus, 4096).unwrap();
        machine.fail("copy_to_peer", 1);
        let error = copies.time(&[(0, 1), (1, 0)], 1).unwrap_err().to_string();
        assert!(error.contains("copy_to_peer"), "{error}");
        assert!(machine.calls("synchronize_stream") >= 2);
    }
}
