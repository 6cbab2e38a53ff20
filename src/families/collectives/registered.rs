//! All-reduce of a buffer that its caller registers: peers read it where it is, and nothing is copied first.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{Cut, Part, Piece, owner, stand_in};
use super::exchange::{Reduce, Reduction};
use super::legal;

/// How it goes about it.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Shots {
    /// Every rank reads all vectors: they are read in one hop, and another one says that they have been.
    One,
    /// Every rank reduces a part, where it is, and reads the others' parts from the ranks that reduced them: less than two vectors into
    /// each rank, and three hops.
    Two,
}

/// A variant of all-reduce in place on registered buffers.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "registered_all_reduce", kernel = registered_all_reduce, args = RegisteredAllReduceArgs, warps = warps)]
pub struct RegisteredAllReduce {
    /// Elements of a rank's vector.
    #[key(short = "n", range = 1..=268435456)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Type of the elements.
    #[key(values = [Dtype::F32, Dtype::Fp16, Dtype::Bf16, Dtype::I32])]
    pub dtype: Dtype,
    /// How elements of different ranks become one.
    #[key(default = Reduction::Sum)]
    pub op: Reduction,
    /// How it goes about it.
    #[tune(short = "shots", default = |key| shots(key))]
    pub shots: Shots,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 2, 4, 8, 16, 32], default = |key| legal::warps(chunk(key), key.dtype))]
    pub warps: u32,
    /// Elements of a tile.
    #[tune(short = "c", values = [256, 512, 1024, 2048, 4096, 8192, 16384], default = |key| chunk(key))]
    pub chunk: u32,
    /// Blocks, as far as there are tiles.
    #[tune(short = "b", shrinks, values = [1, 2, 4, 8, 16, 32, 64, 128], default = |key| legal::blocks(shared(key), chunk(key), 1))]
    pub blocks: u32,
}

/// Bytes that a link carries in the time that the third hop takes: 2 us, at 343 GB/s.
const BYTES_OF_A_HOP: u64 = 686_000;

/// One shot where its tiles find a block each, so that blocks wait for readers once; and, with few ranks, where the bytes that two shots
/// save take no longer than their third hop.
fn shots(key: &RegisteredAllReduceKey) -> Shots {
    let (bytes, ranks) = (u64::from(key.elements) * u64::from(key.dtype.bytes()), u64::from(key.ranks));
    let saved = bytes * (ranks - 1) * ranks.saturating_sub(2) / ranks;
    let tiles = key.elements.div_ceil(legal::chunk(key.elements, 1));
    if saved > BYTES_OF_A_HOP || tiles > legal::blocks(key.elements, legal::chunk(key.elements, 1), 1) {
        Shots::Two
    } else {
        Shots::One
    }
}

/// Elements that blocks share: a vector, or the part of it that a rank reduces.
fn shared(key: &RegisteredAllReduceKey) -> u32 {
    if shots(key) == Shots::One { key.elements } else { key.elements.div_ceil(key.ranks) }
}

fn chunk(key: &RegisteredAllReduceKey) -> u32 {
    legal::chunk(shared(key), 1)
}

impl Legal for RegisteredAllReduce {
    fn legal(&self) -> Result<(), Illegal> {
        legal::reduced(self.op, self.dtype)?;
        legal::tile("chunk", self.chunk, self.warps)
    }
}

impl RegisteredAllReduce {
    fn cut(&self) -> Cut {
        Cut::new(self.elements, self.chunk, self.dtype)
    }

    fn reduce(&self) -> Reduce {
        Reduce::new(self.op, self.ranks, self.cut().longest(), self.dtype, self.warps)
    }

    /// Blocks that have tiles. One without would wait for no reader, and be two launches ahead of a block of its number.
    fn blocks(&self) -> u32 {
        self.blocks.min(self.cut().tiles())
    }

    /// Flags of which each block has one of every rank.
    fn of_blocks(&self) -> u64 {
        u64::from(self.blocks()) * u64::from(self.ranks)
    }
}

/// Parameters of [`registered_all_reduce`].
#[derive(KernelArgs)]
#[args(config = RegisteredAllReduce)]
pub struct RegisteredAllReduceArgs {
    /// This rank's vector, where peers read it; and then the reduction.
    #[inout]
    #[len(|c| c.elements.into())]
    #[dtype(|c| c.dtype)]
    pub data: AnyWindow,
    /// A rank's `data` may be read, `[block][rank]`.
    #[len(|c| c.of_blocks())]
    pub data_ready: Flags,
    /// What says that it has been read.
    #[group]
    pub read: ReadArgs,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// What says that a rank's vector has been read.
#[derive(KernelArgs)]
#[args(config = RegisteredAllReduce)]
pub enum ReadArgs {
    /// All of it, by every rank.
    #[when(|c| c.shots == Shots::One)]
    ByTile(TileReadArgs),
    /// Each part by its owner, and then all reductions by every rank.
    ByBlock(SumReadArgs),
}

/// Flags of tiles that every rank reads.
#[derive(KernelArgs)]
#[args(config = RegisteredAllReduce)]
pub struct TileReadArgs {
    /// A rank has read a tile of all ranks, `[tile][rank]`.
    #[len(|c| u64::from(c.cut().tiles()) * u64::from(c.ranks))]
    pub tile_read: Flags,
}

/// Flags of tiles that their owners read.
#[derive(KernelArgs)]
#[args(config = RegisteredAllReduce)]
pub struct SumReadArgs {
    /// A rank has reduced the tiles that it owns of a block, `[block][rank]`.
    #[len(|c| c.of_blocks())]
    pub sums_ready: Flags,
    /// A rank has read the reductions of a block's tiles, `[block][rank]`.
    #[len(|c| c.of_blocks())]
    pub sums_read: Flags,
}

/// Reduces a vector over all ranks, in the order of ranks, where it is: all of them get the same bits.
///
/// `data` is memory that all ranks of the world can reach, and each rank has its vector in it when its launch begins. When a launch
/// ends, all ranks have read what they want of this rank's, which may be written again.
#[kernel]
pub fn registered_all_reduce(c: &RegisteredAllReduce, a: &RegisteredAllReduceArgs) {
    let epoch = a.epoch.begin();
    role("exchange", c.blocks(), |b| {
        let got = published(b, &a.data, &a.data_ready, epoch);
        match &a.read {
            ReadArgs::ByTile(read) => one_shot(c, a, b, read, &got, epoch),
            ReadArgs::ByBlock(read) => two_shots(c, a, b, read, &got, epoch),
        }
    });
}

/// Publishes what this block may be asked for, and waits until the same block of every rank has done so.
///
/// Flags have one bank: who signals again has ended its launch, in which it has waited for all ranks, which had waited for this.
fn published(b: Group, data: &AnyWindow, flags: &Flags, epoch: Epoch) -> Arrived {
    let first = b.index() * ranks();
    data.signal(Peers::all(), flags, first + rank(), epoch);
    flags.wait_all(first, ranks(), 1, epoch)
}

/// All ranks' tiles as one.
fn reduced(c: &RegisteredAllReduce, a: &RegisteredAllReduceArgs, got: &Arrived, t: &Piece) -> AnyTile {
    let load = |of: Val<u32>| Part::whole().load_of(&a.data, of, got, t);
    c.reduce().rounded(c.reduce().loaded(t.len, load))
}

/// Every rank reduces all tiles, and stores one where it was when all ranks have read it.
#[kernel]
fn one_shot(
    c: &RegisteredAllReduce,
    a: &RegisteredAllReduceArgs,
    b: Group,
    read: &TileReadArgs,
    got: &Arrived,
    epoch: Epoch,
) {
    c.cut().each(b, |t| {
        let sum = reduced(c, a, got, &t);
        let first = t.index * c.ranks;
        read.tile_read.signal(Peers::all(), first + rank(), epoch);
        let _all_ranks = read.tile_read.wait_all(first, c.ranks, 1, epoch);
        Part::whole().store(&a.data, &t, sum);
    });
}

/// Every tile has an owner, which alone reads it of all ranks, and stores the reduction where its own was. From there all others take
/// it, to where the owner has read theirs.
#[kernel]
fn two_shots(
    c: &RegisteredAllReduce,
    a: &RegisteredAllReduceArgs,
    b: Group,
    read: &SumReadArgs,
    got: &Arrived,
    epoch: Epoch,
) {
    let (cut, all) = (c.cut(), Part::whole());
    cut.each(b, |t| {
        if stand_in(owner(c.ranks, b, &t)) == rank() {
            all.store(&a.data, &t, reduced(c, a, got, &t));
        }
    });
    let got = published(b, &a.data, &read.sums_ready, epoch);
    cut.each(b, |t| {
        let from = stand_in(owner(c.ranks, b, &t));
        if from != rank() {
            all.store(&a.data, &t, all.load_of(&a.data, from, &got, &t));
        }
    });
    let first = b.index() * c.ranks;
    read.sums_read.signal(Peers::all(), first + rank(), epoch);
    let _all_ranks = read.sums_read.wait_all(first, c.ranks, 1, epoch);
}
