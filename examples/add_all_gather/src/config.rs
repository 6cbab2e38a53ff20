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

/// Chunks of one length, next to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the first chunk.
    pub first: u32,
    /// How many chunks.
    pub count: u32,
    /// Elements of each.
    pub len: u32,
}

impl AddAllGather {
    /// Chunks of a vector, the last of which may be shorter.
    pub fn chunks(&self) -> u32 {
        self.elements.div_ceil(self.chunk)
    }

    /// The chunks by length: the full ones, then the rest. A tile's length is known when a kernel is specialised, so
    /// each length is a loop of its own.
    pub fn pieces(&self) -> Vec<Piece> {
        let full = self.elements / self.chunk;
        let rest = self.elements % self.chunk;
        let all =
            [Piece { first: 0, count: full, len: self.chunk }, Piece { first: full, count: 1, len: rest }];
        all.into_iter().filter(|p| p.count > 0 && p.len > 0).collect()
    }

    /// The channel of sums: each rank sends its chunks to all others.
    pub(crate) fn channel(&self) -> ChannelShape {
        ChannelShape::new(self.protocol, self.ranks, Slots::BySender(self.chunks()))
    }

    /// Elements of all ranks together.
    pub fn gathered(&self) -> u32 {
        self.elements * self.ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_element_once() {
        for (elements, chunk) in [(1, 256), (256, 256), (257, 256), (1000, 256), (4096, 1024)] {
            let settings =
                [("elements", elements), ("ranks", 2), ("chunk", chunk)].map(|(f, v)| (f, v.to_string()));
            let mut settings = settings.to_vec();
            settings.push(("dtype", "f32".into()));
            let config = AddAllGather::from_settings(&settings).unwrap();
            let pieces = config.pieces();
            assert_eq!(pieces.iter().map(|p| p.count * p.len).sum::<u32>(), elements);
            assert_eq!(pieces.iter().map(|p| p.count).sum::<u32>(), config.chunks());
            assert!(pieces.windows(2).all(|p| p[1].first == p[0].first + p[0].count));
        }
    }
}
