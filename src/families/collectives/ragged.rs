//! Ragged all-to-all: every rank sends every other one as many elements as it says at launch.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::cut::{self, Cut, Part};
use super::exchange::{self, Tiles, send};
use super::legal;
use super::length::{Length, Lengths};
use super::tiled::tiled;

tiled! {
    /// A variant of ragged all-to-all.
    #[derive(Family, Clone, Debug, PartialEq)]
    #[family(name = "ragged_all_to_all", kernel = ragged_all_to_all, args = RaggedAllToAllArgs, warps = warps)]
    pub struct RaggedAllToAll, RaggedAllToAllKey {
        /// The most elements that a rank sends to another: a row of `x` and of `out` has room for them.
        #[key(short = "n", range = 1..=268435456)]
        pub capacity: u32,
        /// Whether the result takes the rows' place.
        #[key(short = "i", default = false)]
        pub in_place: bool,
    }
    dtypes = [F32, Fp16, Bf16, I32, Fp8], length = |key| key.capacity, roles = 2, blocks = [1, 2, 4, 8, 16, 32, 64]
}

impl RaggedAllToAll {
    /// What it sends has lengths of its own.
    fn lengths(&self) -> Lengths {
        Lengths::new(Length::Whole, 1, self.capacity, self.ranks)
    }

    fn channel(&self) -> ChannelShape {
        exchange::tiles(self.protocol, self.ranks, self.cut().tiles(), self.cut())
    }

    /// The channel of counts. Every rank gets one of every other in every launch, which with flags orders the launches; else the
    /// credits of the tiles do so for both, which takes as many banks here as there.
    fn counted(&self) -> ChannelShape {
        let transport = if self.protocol == Transport::Flags { Transport::Flags } else { Transport::Ll };
        let counts = ChannelShape::new(transport, self.ranks, Slots::BySender(1)).read_many();
        counts.credits(false).banks_of(&self.channel())
    }

    /// As many elements as there are, and no more than there is room for, whatever anybody says.
    fn count(&self, said: Val<u32>) -> Val<u32> {
        said.min(self.capacity)
    }

    /// A row of a tensor, with so many elements in it.
    fn row(&self, rank: Val<u32>, count: Val<u32>) -> Part {
        Part::of(cut::row(rank, self.capacity, self.ranks), count)
    }
}

/// Parameters of [`ragged_all_to_all`].
#[derive(KernelArgs)]
#[args(config = RaggedAllToAll)]
pub struct RaggedAllToAllArgs {
    /// A row for each rank, `[rank][element]`; in place, it is `out`.
    #[input]
    #[len(|c| if c.in_place { 0 } else { u64::from(c.ranks) * u64::from(c.capacity) })]
    #[dtype(|c| c.dtype)]
    pub x: Option<AnyPtr>,
    /// How many elements of its row each rank is sent. More than the capacity count as the capacity.
    #[input]
    #[len(|c| c.ranks.into())]
    pub send_counts: Ptr<u32>,
    /// Each rank's row for this rank, `[rank][element]`. Nothing is written behind what was received.
    #[output]
    #[len(|c| u64::from(c.ranks) * u64::from(c.capacity))]
    #[dtype(|c| c.dtype)]
    pub out: AnyPtr,
    /// How many elements each rank has sent.
    #[output]
    #[len(|c| c.ranks.into())]
    pub recv_counts: Ptr<u32>,
    /// All ranks' rows, a tile a message.
    #[channel(|c| c.channel())]
    #[len(|c| c.cut().longest())]
    #[dtype(|c| c.dtype)]
    pub tiles: AnyChannel,
    /// How many elements come from each rank.
    #[channel(|c| c.counted())]
    #[len(1)]
    pub counts: Channel<u32>,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends each rank as many elements of its row as `send_counts` says. Tiles that hold none do not travel.
///
/// A count above the capacity is cut to it, on both sides: no memory is touched beyond a row, and `recv_counts` says what came.
#[kernel]
pub fn ragged_all_to_all(c: &RaggedAllToAll, a: &RaggedAllToAllArgs) {
    let epoch = a.epoch.begin();
    let (tiles, counts) = (a.tiles.open(epoch), a.counts.open(epoch));
    match a.x {
        Some(x) => {
            role("send", c.blocks, |b| {
                send_rows(c, a, b, &tiles, &counts, &x);
                let own = c.row(rank(), c.count(a.send_counts.get(rank())));
                c.cut().each_of(b, own, |t| own.store(&a.out, &t, own.load(&x, &t)));
            });
            role("receive", c.blocks, |b| receive_rows(c, a, b, &tiles, &counts));
        }
        // A block has sent what was where it puts what comes.
        None => role("exchange", c.blocks, |b| {
            send_rows(c, a, b, &tiles, &counts, &a.out);
            receive_rows(c, a, b, &tiles, &counts);
        }),
    }
    tiles.credits();
}

/// Sends every other rank a count and the tiles of its row that hold something. The next rank's is the first.
#[kernel]
fn send_rows(
    c: &RaggedAllToAll,
    a: &RaggedAllToAllArgs,
    b: Group,
    tiles: &Tiles<'_>,
    counts: &OpenChannel<'_, u32>,
    x: &AnyPtr,
) {
    for i in 1..ranks().val() {
        let to = (rank() + i) % ranks();
        let count = c.count(a.send_counts.get(to));
        if b.index() == 0 {
            let message = counts.to(Peers::rank(to)).slot(0);
            message.put(0, count.splat(1));
            message.done();
        }
        let row = c.row(to, count);
        c.cut().each_of(b, row, |t| send(tiles, Peers::rank(to), t.index, row.load(x, &t)));
    }
}

/// Takes what every other rank sends: every block waits for all counts, and for those of its tiles that they say come.
#[kernel]
fn receive_rows(
    c: &RaggedAllToAll,
    a: &RaggedAllToAllArgs,
    b: Group,
    tiles: &Tiles<'_>,
    counts: &OpenChannel<'_, u32>,
) {
    if b.index() == 0 {
        a.recv_counts.set(rank(), c.count(a.send_counts.get(rank())));
    }
    for i in 1..ranks().val() {
        let from = (rank() + i) % ranks();
        let count = c.count(counts.from(from).slot(0).load(0, 1).max());
        if b.index() == 0 {
            a.recv_counts.set(from, count);
        }
        let row = c.row(from, count);
        c.cut().each_of(b, row, |t| row.store(&a.out, &t, tiles.from(from).slot(t.index).load(0, t.len)));
    }
}
