//! What all-reduce is specialised for, and how it goes about it unless somebody says otherwise.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::all_reduce::{self, AllReduceArgs};
use super::cut::Cut;
use super::exchange::{self, Reduce, Reduction};
use super::legal;
use super::length::{Length, Lengths};
use super::norm::{NormForm, NormQuantise, ScaleLayout, Weights};
use super::pull::Pull;

/// How an all-reduce goes about it.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Every rank sends its vector to all, and every rank reduces all of it: one hop, `ranks - 1` vectors out of each rank.
    OneShot,
    /// Every rank reduces a part and sends the result to all: two hops, less than two vectors out of each rank.
    TwoShot,
    /// As one shot, but every rank reads the vectors of all where they are: nothing arrives in an inbox.
    Pull,
    /// As two shots, but parts are read where they are, and so are results.
    PullTwoShot,
    /// Every rank lets the switch between the GPUs reduce its part of all ranks' vectors and store the result to all: two hops, a vector
    /// and an `R`-th of one out of each rank. Only NVIDIA's GPUs that share multicast memory can.
    Multimem,
}

impl Algorithm {
    /// Whether ranks read of each other.
    pub(super) fn pulls(self) -> bool {
        matches!(self, Algorithm::Pull | Algorithm::PullTwoShot | Algorithm::Multimem)
    }

    /// Whether every rank reduces all of it.
    pub(super) fn reduces_all(self) -> bool {
        matches!(self, Algorithm::OneShot | Algorithm::Pull)
    }
}

/// What follows the reduction in the same launch.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hook {
    /// Nothing.
    None,
    /// A residual is added, and rows are normalised by their root mean square, as between the layers of a language model:
    /// `residual_out = all_reduce(x) + residual`, `out = residual_out / sqrt(mean(residual_out^2) + eps) * weight`.
    RmsNorm,
}

/// A variant of all-reduce.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "all_reduce", kernel = all_reduce::all_reduce, args = AllReduceArgs, warps = warps)]
pub struct AllReduce {
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
    /// Whether the result takes the vector's place.
    #[key(short = "i", default = false)]
    pub in_place: bool,
    /// What follows the reduction.
    #[key(default = Hook::None)]
    pub hook: Hook,
    /// Elements of a row that the hook normalises; 0 without one.
    #[key(short = "h", range = 0..=16384, default = 0)]
    pub hidden: u32,
    /// Type of the hook's weights.
    #[key(short = "wt", default = Weights::Elements, omitted)]
    pub weights: Weights,
    /// Whether the hook multiplies rows by `1 + weight`.
    #[key(short = "po", default = false, omitted)]
    pub plus_one: bool,
    /// What the hook quantises rows to.
    #[key(short = "q", default = NormQuantise::None, omitted)]
    pub quantise: NormQuantise,
    /// Whether rows that the hook quantises are stored as they were, too.
    #[key(short = "kn", default = false, omitted)]
    pub normalised: bool,
    /// Where the scales of nvfp4 stand.
    #[key(short = "sl", default = ScaleLayout::Row, omitted)]
    pub scale_layout: ScaleLayout,
    /// What says how many rows a launch has, up to all elements.
    #[key(short = "len", values = [Length::Whole, Length::Host, Length::Device], default = Length::Whole, omitted)]
    pub length: Length,
    /// Elements of a row that `length` counts.
    #[key(short = "row", range = 1..=65536, default = 1, omitted)]
    pub row: u32,
    /// How it goes about it.
    #[tune(default = |key| algorithm(key))]
    pub algorithm: Algorithm,
    /// How tiles travel.
    #[tune(values = [Transport::Packets, Transport::Flags], default = |key| legal::transport(key.dtype))]
    pub protocol: Transport,
    /// Warps of a block.
    #[tune(short = "w", values = [1, 2, 4, 8, 16, 32], default = |key| warps(key))]
    pub warps: u32,
    /// Elements of a tile; with a hook a tile is a row, and this is 256.
    #[tune(short = "c", values = [256, 512, 1024, 2048, 4096, 8192, 16384], default = |key| chunk(key))]
    pub chunk: u32,
    /// Blocks that only send, with one shot; with 0, those that reduce send first.
    #[tune(short = "s", shrinks, values = [0, 4, 8, 16, 32, 48, 64], default = |key| senders(key))]
    pub senders: u32,
    /// Blocks that reduce.
    #[tune(short = "b", shrinks, values = [1, 2, 4, 8, 16, 32, 48, 64, 96, 128], default = |key| blocks(key))]
    pub blocks: u32,
}

impl AllReduceKey {
    /// The sum of vectors, which stay as they are.
    pub fn new(elements: u32, ranks: u32, dtype: Dtype) -> AllReduceKey {
        let NormForm { weights, plus_one, quantise, normalised, scale_layout } = NormForm::default();
        let (op, in_place, hook, hidden) = (Reduction::Sum, false, Hook::None, 0);
        AllReduceKey {
            elements,
            ranks,
            dtype,
            op,
            in_place,
            hook,
            hidden,
            weights,
            plus_one,
            quantise,
            normalised,
            scale_layout,
            length: Length::Whole,
            row: 1,
        }
    }
}

/// Bytes that a link carries in the time that a second hop takes: 2 us, at 343 GB/s.
const BYTES_OF_A_HOP: u64 = 686_000;

/// From how many bytes on it pays to send and to reduce in blocks of their own: measured at 8 MiB, not yet at 2 MiB.
const BYTES_APART: u64 = 4 << 20;

fn bytes(key: &AllReduceKey) -> u64 {
    u64::from(key.elements) * u64::from(key.dtype.bytes())
}

/// Two shots where the bytes that they save take longer than their second hop: never with two ranks, from some 130 KB on with
/// eight.
fn algorithm(key: &AllReduceKey) -> Algorithm {
    let ranks = u64::from(key.ranks);
    // (ranks - 1) vectors against 2 (ranks - 1) / ranks.
    let saved = bytes(key) * (ranks - 1) * ranks.saturating_sub(2) / ranks;
    if saved > BYTES_OF_A_HOP { Algorithm::TwoShot } else { Algorithm::OneShot }
}

/// Elements that 128 blocks share: a vector, or the part of it that a rank reduces.
fn shared(key: &AllReduceKey) -> u32 {
    if algorithm(key).reduces_all() { key.elements } else { key.elements.div_ceil(key.ranks) }
}

/// Stands for rows.
const OF_ROWS: u32 = 256;

fn chunk(key: &AllReduceKey) -> u32 {
    if key.hook == Hook::None { legal::chunk(shared(key), 1) } else { OF_ROWS }
}

/// Elements of a tile.
fn tile(key: &AllReduceKey) -> u32 {
    if key.hook == Hook::None { chunk(key) } else { key.hidden.max(1) }
}

fn warps(key: &AllReduceKey) -> u32 {
    legal::warps(tile(key), key.dtype)
}

fn senders(key: &AllReduceKey) -> u32 {
    let apart = algorithm(key) == Algorithm::OneShot && !key.in_place && bytes(key) >= BYTES_APART;
    if apart { 32 } else { 0 }
}

fn blocks(key: &AllReduceKey) -> u32 {
    if senders(key) > 0 { 96 } else { legal::blocks(shared(key), tile(key), 1) }
}

impl Legal for AllReduce {
    fn legal(&self) -> Result<(), Illegal> {
        legal::reduced(self.op, self.dtype)?;
        legal::carried(self.protocol, self.dtype)?;
        let floats = self.dtype != Dtype::I32 || self.hook == Hook::None;
        Illegal::unless(floats, "hook", self.hook.name(), || "none with i32".to_owned())?;
        self.normalises()?;
        self.lengths().legal(self.elements, 1)?;
        self.rows()?;
        let apart = self.algorithm == Algorithm::OneShot && !self.in_place;
        let allowed = || {
            let where_else = "one-shot that is not in place";
            format!("0, except for {where_else}: blocks send what they reduce")
        };
        Illegal::unless(self.senders == 0 || apart, "senders", self.senders, allowed)?;
        let by_switch = match self.op {
            _ if self.dtype == Dtype::I32 => false,
            Reduction::Sum => true,
            Reduction::Max | Reduction::Min => self.dtype != Dtype::F32,
            Reduction::Avg | Reduction::MaxNan | Reduction::MinNan => false,
        };
        Illegal::unless(self.algorithm != Algorithm::Multimem || by_switch, "algorithm", "multimem", || {
            format!("another one for the {} of {}, which switches do not know", self.op.name(), self.dtype)
        })?;
        legal::flags(self.algorithm.pulls(), self.protocol)
    }
}

impl AllReduce {
    /// Whether tiles, or rows where there is a hook, are what a block can hold.
    fn rows(&self) -> Result<(), Illegal> {
        if self.hook == Hook::None {
            Illegal::unless(self.hidden == 0, "hidden", self.hidden, || "0 without a hook")?;
            return legal::tile("chunk", self.chunk, self.warps);
        }
        let packet = PACKET_BYTES / self.dtype.bytes();
        let whole = self.hidden > 0
            && self.hidden.is_multiple_of(packet)
            && self.elements.is_multiple_of(self.hidden);
        Illegal::unless(whole, "hidden", self.hidden, || {
            format!("elements of a row: a multiple of {packet} that divides {} elements", self.elements)
        })?;
        let rows = self.length == Length::Whole || self.row.is_multiple_of(self.hidden);
        Illegal::unless(rows, "row", self.row, || {
            format!("a multiple of {}, the elements that the hook normalises", self.hidden)
        })?;
        legal::tile("hidden", self.hidden, self.warps)?;
        let allowed = || format!("{OF_ROWS} with a hook: a tile is a row then");
        Illegal::unless(self.chunk == OF_ROWS, "chunk", self.chunk, allowed)
    }

    pub(super) fn cut(&self) -> Cut {
        let tile = if self.hook == Hook::None { self.chunk } else { self.hidden.max(1) };
        Cut::new(self.elements, tile, self.dtype).of_any(self.lengths())
    }

    /// How the vector is cut in a launch.
    pub(super) fn in_launch(&self, a: &AllReduceArgs) -> Cut {
        self.cut().of_launch(self.lengths(), &a.length)
    }

    pub(super) fn lengths(&self) -> Lengths {
        Lengths::new(self.length, self.row, self.elements, self.ranks)
    }

    /// Tiles that a rank owns at most with two shots.
    pub(super) fn owned(&self) -> u32 {
        self.cut().tiles().div_ceil(self.blocks * self.ranks) * self.blocks
    }

    pub(super) fn reduce(&self) -> Reduce {
        Reduce::new(self.op, self.ranks, self.cut().longest(), self.dtype, self.warps)
    }

    /// What ranks read of each other's vectors.
    pub(super) fn pull(&self) -> Pull {
        let pull = Pull::new(self.cut(), (self.ranks, self.blocks), self.dtype);
        // The reductions of all prove that all have read; a vector published again proves that all have what was reduced.
        if self.algorithm.reduces_all() { pull } else { pull.once() }
    }

    /// What the switch stores to all ranks.
    pub(super) fn multimem(&self) -> Pull {
        Pull::new(self.cut(), (self.ranks, self.blocks), self.dtype).once()
    }

    /// What they read of each other's reductions.
    pub(super) fn pull_sums(&self) -> Pull {
        self.multimem().slots(self.owned(), self.cut())
    }

    pub(super) fn channel(&self) -> ChannelShape {
        let all = |slots| exchange::tiles(self.protocol, self.ranks, slots, self.cut());
        match self.algorithm {
            // What comes back says that the owner has read what was sent, and what is sent again that the result was read: with
            // flags that orders the reuse of either by itself, in launches of any length. Packets order nothing.
            Algorithm::TwoShot if self.protocol == Transport::Flags => all(2 * self.owned()).banks(1),
            Algorithm::TwoShot => self.lengths().keeps_apart(all(2 * self.owned())),
            _ => self.lengths().keeps_apart(all(self.cut().tiles())),
        }
    }
}
