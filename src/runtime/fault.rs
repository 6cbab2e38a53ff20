//! A word on the GPU that says whether the world was aborted.

use super::gpu::DevicePtr;
use super::{RuntimeError, World};

impl World {
    /// Where a rank of this process finds, in memory of its own GPU, whether the world was aborted: a `u32` that is 0 while all is well,
    /// and 1 + the rank that gave up first after a wait has run out of time, on every rank of its node and by its number there. A kernel
    /// or a copy on a stream can read it, so that an engine looks without waiting for anything; [`World::check`] then says what happened.
    /// It stays where it is until the world is dropped, and [`World::reset`] sets it to 0 again. No other code may write it.
    ///
    /// # Errors
    /// The rank is not of this process.
    pub fn fault_word(&self, rank: u32) -> Result<DevicePtr, RuntimeError> {
        let member = self.members().iter().position(|member| member.rank == rank).ok_or_else(|| {
            let here: Vec<String> = self.members().iter().map(|member| member.rank.to_string()).collect();
            RuntimeError::invalid("rank", rank, format!("one of this process: {}", here.join(", ")))
        })?;
        // A record begins with it.
        const { assert!(std::mem::offset_of!(super::status::Status, aborted) == 0) };
        Ok(self.own_status(member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::WorldOptions;
    use crate::runtime::gpu::RawStream;
    use crate::runtime::mock::{Machine, MockGpu, world};
    use crate::runtime::status::Status;

    #[test]
    fn every_rank_of_several_nodes_has_a_word() {
        let (machine, options) = (Machine::default(), WorldOptions { nodes: 2, ..WorldOptions::default() });
        let world = World::of_gpus(&MockGpu::all(&machine, 4), &options).unwrap();
        let words: Vec<DevicePtr> = (0..4).map(|rank| world.fault_word(rank).unwrap()).collect();
        assert_eq!(words, (0..4).map(|member| world.own_status(member)).collect::<Vec<_>>());
        assert_eq!(words[2..], world.status_pointers(3), "those of the second node");
    }

    #[test]
    fn a_word_on_each_gpu_says_who_gave_up() {
        let machine = Machine::default();
        let world = world(&machine);
        let read = |rank: u32| {
            let mut word = [0; 4];
            let at = world.fault_word(rank).unwrap();
            // SAFETY: a word of the world's.
            unsafe { world.members()[rank as usize].gpu.download(at, &mut word).unwrap() };
            u32::from_ne_bytes(word)
        };
        assert_eq!([read(0), read(1)], [0, 0]);
        // As a kernel of rank 1 does.
        for rank in [0, 1] {
            let status = Status { aborted: 2, ..Status::default() };
            let at = world.fault_word(rank).unwrap();
            // SAFETY: as above.
            unsafe { world.members()[rank as usize].gpu.upload(at, bytemuck::bytes_of(&status)).unwrap() };
        }
        assert_eq!([read(0), read(1)], [2, 2]);
        assert!(matches!(world.finish(0, RawStream::DEFAULT), Err(RuntimeError::Aborted(_))));
        world.reset().unwrap();
        assert_eq!([read(0), read(1)], [0, 0]);
        let said = world.fault_word(2).unwrap_err().to_string();
        assert_eq!(said, "rank = 2: one of this process: 0, 1");
    }
}
