//! An all-gather between ranks of any machines: rows that a network card puts, by far channels.

use peerwarp::harness::elements::mixed;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Workload};
use peerwarp::prelude::*;

/// Rows of all ranks on each, over far channels.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "far_gather", kernel = far_gather, args = FarGatherArgs, warps = warps)]
pub struct FarGather {
    /// Elements of a row.
    #[key(short = "n", range = 4..=1048576)]
    pub elements: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Messages that a row is put in, each by a block.
    #[tune(short = "p", values = [1, 4, 16], default = 1)]
    pub pieces: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], default = 8)]
    pub warps: u32,
}

impl Legal for FarGather {
    fn legal(&self) -> Result<(), Illegal> {
        let allowed = || format!("a multiple of the {} pieces", self.pieces);
        Illegal::unless(self.elements.is_multiple_of(self.pieces), "elements", self.elements, allowed)
    }
}

impl FarGather {
    /// A row, as bytes.
    fn row(&self, turn: Turn) -> Vec<u8> {
        let first = turn.seed ^ u64::from(turn.round) << 40 ^ u64::from(turn.rank) << 32;
        (0..self.elements).flat_map(|i| (mixed(first ^ u64::from(i)) as u32).to_le_bytes()).collect()
    }

    fn piece(&self) -> u32 {
        self.elements / self.pieces
    }
}

#[derive(KernelArgs)]
#[args(config = FarGather)]
pub struct FarGatherArgs {
    /// A row.
    #[input]
    #[len(|c| c.elements.into())]
    x: Ptr<u32>,
    /// Rows of all ranks.
    #[output]
    #[len(|c| u64::from(c.ranks * c.elements))]
    out: Ptr<u32>,
    /// Pieces of rows on their way.
    #[channel(|c| ChannelShape::new(Transport::Far, c.ranks, Slots::BySender(c.pieces)))]
    #[len(|c| c.piece())]
    rows: Channel<u32>,
    /// Counts launches.
    epoch: EpochWord,
}

/// Brings the rows of all ranks to each.
#[kernel]
pub fn far_gather(c: &FarGather, a: &FarGatherArgs) {
    let rows = a.rows.open(a.epoch.begin());
    role("send", c.pieces, |b| {
        let row = rows.to(Peers::all()).slot(b.index());
        row.copy(0, &a.x, b.index() * c.piece(), c.piece());
        row.done();
        rows.settle();
    });
    role("receive", c.ranks, |b| {
        let all = rows.from(b.index()).wait(c.pieces);
        for piece in 0..c.pieces {
            a.out.store(b.index() * c.elements + piece * c.piece(), all.slot(piece).load(0, c.piece()));
        }
    });
    rows.credits();
}

impl Workload for FarGather {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::new("x", self.row(turn))]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let rows = (0..self.ranks).flat_map(|rank| self.row(Turn { rank, ..turn })).collect();
        vec![Expected::exactly("out", Dtype::U32, rows)]
    }
}
