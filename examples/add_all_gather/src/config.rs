//! What the kernel is specialised for.

use peerwarp::prelude::*;

use crate::kernel::{self, AddArgs};

/// How sums travel.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Stores, then a flag for the chunk that is released after them: three trips until a chunk is there.
    Flags,
    /// Packets of 16 bytes, each of which is there after one trip. A vector is a whole number of them.
    Packets,
}

/// A variant: the problem (`key`) and how to go about it (`tune`).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "add_all_gather", kernel = kernel::add_all_gather, args = AddArgs, warps = warps)]
pub struct AddAllGather {
    /// Elements of each rank's vectors.
    #[key(short = "n", range = 1..=16777216)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements; sums are rounded to it once.
    #[key(values = [Dtype::F32, Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Warps of a block.
    #[tune(short = "w", values = [2, 4, 8, 16, 32], default = 8)]
    pub warps: u32,
    /// How sums travel.
    #[tune(default = |key| protocol(key))]
    pub protocol: Protocol,
    /// Elements that go under one flag, or in one tile of packets.
    #[tune(short = "c", values = [256, 512, 1024, 2048, 4096, 8192, 16384], default = |key| chunk(key))]
    pub chunk: u32,
    /// Blocks that add and send.
    #[tune(short = "s", values = [1, 2, 4, 8, 16, 32, 64], default = |key| blocks(key))]
    pub send_blocks: u32,
    /// Blocks that receive.
    #[tune(short = "r", values = [1, 2, 4, 8, 16, 32, 64], default = |key| blocks(key))]
    pub recv_blocks: u32,
}

/// Packets, wherever vectors are whole packets: they were faster than flags at every length measured.
fn protocol(key: &AddAllGatherKey) -> Protocol {
    let whole = (key.elements * key.dtype.bytes()).is_multiple_of(16);
    if whole { Protocol::Packets } else { Protocol::Flags }
}

/// What each of 64 blocks has, within limits.
fn chunk(key: &AddAllGatherKey) -> u32 {
    key.elements.div_ceil(64).next_power_of_two().clamp(256, 4096)
}

/// A block for each chunk, up to 64: with as many that receive and one more, each has one of an H200's 132 SMs to itself.
fn blocks(key: &AddAllGatherKey) -> u32 {
    key.elements.div_ceil(chunk(key)).next_power_of_two().min(64)
}

impl Legal for AddAllGather {
    fn legal(&self) -> Result<(), Illegal> {
        // Both halves of the inbox are indexed with 32 bits.
        let most = u32::MAX / 2 / self.ranks;
        let allowed = || format!("at most {most} with {} ranks", self.ranks);
        Illegal::unless(self.elements <= most, "elements", self.elements, allowed)?;
        let vector = self.elements * self.dtype.bytes();
        let whole = self.protocol != Protocol::Packets || vector.is_multiple_of(16);
        let allowed = || {
            format!(
                "flags, where {} elements of {} are not whole packets of 16 bytes",
                self.elements, self.dtype
            )
        };
        Illegal::unless(whole, "protocol", "packets", allowed)?;
        // A tile is kept in registers: 64 elements a thread.
        let most = 64 * 32 * self.warps;
        let allowed = || format!("at most {most} with {} warps", self.warps);
        Illegal::unless(self.chunk <= most, "chunk", self.chunk, allowed)
    }
}

impl AddAllGather {
    /// Chunks of a vector, the last of which may be shorter.
    pub fn chunks(&self) -> u32 {
        self.elements.div_ceil(self.chunk)
    }

    /// Chunks of all ranks together: each has a flag.
    pub fn flags(&self) -> u32 {
        self.ranks * self.chunks()
    }

    /// What a protocol needs so many of; none with the other one.
    pub(crate) fn only(&self, protocol: Protocol, count: u32) -> u64 {
        if self.protocol == protocol { count.into() } else { 0 }
    }

    /// Elements of all ranks together.
    pub fn gathered(&self) -> u32 {
        self.elements * self.ranks
    }
}
