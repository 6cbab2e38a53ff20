//! What the kernel is specialised for.

use peerwarp::prelude::*;

use crate::kernel::{self, AddArgs};

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
    #[tune(values = [Transport::Flags, Transport::Packets, Transport::Ll], default = |key| protocol(key))]
    pub protocol: Transport,
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
fn protocol(key: &AddAllGatherKey) -> Transport {
    if Transport::Packets.carries(key.elements, key.dtype) { Transport::Packets } else { Transport::Flags }
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
        let carried = self.protocol.carries(self.elements, self.dtype);
        let allowed = || format!("flags, for {} elements of {}", self.elements, self.dtype);
        Illegal::unless(carried, "protocol", self.protocol.name(), allowed)?;
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

    /// The channel of sums: each rank sends its chunks to all others. Of small ones there is room for those of three launches, so
    /// that none waits for credits.
    pub(crate) fn channel(&self) -> ChannelShape {
        let bytes = u64::from(self.chunk) * u64::from(self.dtype.bytes());
        ChannelShape::new(self.protocol, self.ranks, Slots::BySender(self.chunks())).banks_for(bytes)
    }

    /// Elements of all ranks together.
    pub fn gathered(&self) -> u32 {
        self.elements * self.ranks
    }
}
