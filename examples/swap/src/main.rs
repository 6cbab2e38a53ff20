use std::process::ExitCode;

use peerwarp::harness::elements::encode;
use peerwarp::harness::verdict::Expected;
use peerwarp::harness::workload::{Contents, Turn, Work, Workload};
use peerwarp::prelude::*;

/// Neighbouring ranks swap rows.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "swap_rows", kernel = swap_rows, args = SwapArgs, warps = warps)]
pub struct Swap {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    /// Rows of a rank.
    #[key(short = "n", range = 1..=4096)]
    pub rows: u32,
    /// World size.
    #[key(short = "r", range = 2..=64, ranks)]
    pub ranks: u32,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8, 16], default = 8)]
    pub warps: u32,
    /// Blocks of each role.
    #[tune(short = "b", values = [1, 8, 32], default = 8)]
    pub blocks: u32,
}

impl Legal for Swap {
    fn legal(&self) -> Result<(), Illegal> {
        let even = || String::from("an even number: every rank needs a neighbour");
        Illegal::unless(self.ranks.is_multiple_of(2), "ranks", self.ranks, even)
    }
}

#[derive(KernelArgs)]
#[args(config = Swap)]
pub struct SwapArgs {
    /// This rank's rows, `[row][element]`.
    #[input]
    #[len(|c| u64::from(c.rows) * u64::from(c.hidden))]
    pub x: Ptr<f32>,
    /// Added to every row.
    #[input]
    #[len(|c| c.hidden.into())]
    pub bias: Ptr<f32>,
    /// The neighbour's sums.
    #[output]
    #[len(|c| u64::from(c.rows) * u64::from(c.hidden))]
    pub out: Ptr<f32>,
    /// Rows that the neighbour sends, `[parity][row][element]`.
    #[len(|c| 2 * u64::from(c.rows) * u64::from(c.hidden))]
    pub inbox: Sym<f32>,
    /// A row has arrived, `[parity][row]`.
    #[len(|c| 2 * u64::from(c.rows))]
    pub arrived: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Sends every row plus a bias to the neighbour.
#[kernel]
pub fn swap_rows(c: &Swap, a: &SwapArgs) {
    let epoch = a.epoch.begin();
    let neighbour = rank() ^ 1;
    let half = epoch.parity() * c.rows;

    role("send", c.blocks, |b| {
        let bias = a.bias.load(0, c.hidden);
        for row in b.strided(c.rows) {
            let x = a.x.load(row * c.hidden, c.hidden);
            let mut parcel = send_to(Peers::rank(neighbour));
            parcel.put(&a.inbox, (half + row) * c.hidden, x + bias);
            parcel.signal(&a.arrived, half + row, epoch);
        }
    });

    role("recv", c.blocks, |b| {
        for row in b.strided(c.rows) {
            let got = a.arrived.from(neighbour).wait(half + row, epoch);
            let x = a.inbox.load(&got, (half + row) * c.hidden, c.hidden);
            a.out.store(row * c.hidden, x);
        }
    });
}

impl Workload for Swap {
    fn inputs(&self, turn: Turn) -> Vec<Contents> {
        vec![Contents::of("x", &self.x(turn)), Contents::of("bias", &self.bias())]
    }

    fn expected(&self, turn: Turn) -> Vec<Expected> {
        let neighbour = self.x(Turn { rank: turn.rank ^ 1, ..turn });
        let bias = self.bias();
        let sums: Vec<f32> = neighbour.iter().zip(bias.iter().cycle()).map(|(x, b)| x + b).collect();
        vec![Expected::exactly("out", Dtype::F32, encode(Dtype::F32, &sums))]
    }

    fn work(&self) -> Work {
        let bytes = u64::from(self.rows * self.hidden) * 4;
        let to = |from: u32| (0..self.ranks).map(|to| if to == from ^ 1 { bytes } else { 0 }).collect();
        Work { bytes: (0..self.ranks).map(to).collect(), hops: 1, ..Work::default() }
    }
}

impl Swap {
    /// Rows of a rank, which differ by seed, rank and round.
    fn x(&self, turn: Turn) -> Vec<f32> {
        let first = turn.seed % 64 + u64::from(1000 * turn.rank + 100 * turn.round);
        (0..u64::from(self.rows * self.hidden)).map(|i| (first + i % 97) as f32).collect()
    }

    fn bias(&self) -> Vec<f32> {
        (0..self.hidden).map(|i| i as f32 / 4.0).collect()
    }
}

fn main() -> ExitCode {
    peerwarp::cli::main(&[peerwarp::cli::workload::<Swap>()])
}
