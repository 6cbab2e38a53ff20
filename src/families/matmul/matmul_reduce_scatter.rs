//! Matrix multiplication and reduce-scatter in one kernel.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::{Activation, Sums, epilogue};
use super::order::{self, Cut, Order, Pairs, Passage, Tiling};
use super::output::Output;
use super::scales::Scales;
use super::split::{Split, SplitArgs};

/// How parts of tiles get to who adds them up.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Who multiplies keeps them. The rank before reads them there, adds its own part, rounds the sum and keeps that, and so on around
    /// to the owner: each tile but the first turn's has one other on the link, for as long as it is multiplied.
    Pull,
    /// Who multiplies stores them into the owner's inbox, and the owner adds all of them up: one way over the link for each of them,
    /// whatever the number of ranks, of use where blocks have nothing else to do.
    Push,
}

/// A variant of matrix multiplication and reduce-scatter.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "matmul_reduce_scatter", kernel = matmul_reduce_scatter, args = MatmulReduceScatterArgs, warps = warps)]
pub struct MatmulReduceScatter {
    /// Rows of each rank's `x`; every rank gets as many of the result as every other one.
    #[key(short = "m", range = 2..=1048576)]
    pub m: u32,
    /// Rows of each rank's `w`: columns of the result.
    #[key(short = "n", range = 8..=1048576)]
    pub n: u32,
    /// Columns of both, on each rank.
    #[key(short = "k", range = 8..=1048576)]
    pub k: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Type of all elements. Products are summed up in `f32`, rounded where they go to another rank, and added up in `f32`.
    #[key(values = [Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Whether there is a vector that is added to each row of the result once, whatever the number of ranks.
    #[key(short = "b", default = false, omitted)]
    pub bias: bool,
    /// Activation applied to the accumulators.
    #[key(short = "f", default = Activation::None, omitted)]
    pub activation: Activation,
    /// How parts of tiles reach the rank that adds them: it pulls them, or their ranks push them.
    #[tune(rule = MatmulReduceScatter::algorithm_rule)]
    pub algorithm: Option<Algorithm>,
    /// Whether a block waits for another rank's part of a tile before it multiplies its own, and loads it meanwhile.
    #[tune(short = "e", rule = MatmulReduceScatter::early_rule)]
    pub early: Option<bool>,
    /// Tiles that a block multiplies for the last other rank before each second tile is of this rank's own rows, whose parts cross
    /// the link meanwhile. 0 if all tiles for others come first.
    #[tune(short = "ld", values = [0, 1, 2], rule = MatmulReduceScatter::lead_rule)]
    pub lead: Option<u32>,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], rule = |c| order::warps(c.tile_rows))]
    pub warps: Option<u32>,
    /// Rows of a tile of the result.
    #[tune(short = "tr", shrinks, values = [64, 128, 256], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of the result.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tiling(key).columns)]
    pub tile_columns: u32,
    /// Pieces of 64 columns of `x` and `w` in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| stages(key))]
    pub stages: u32,
    /// Height of a tile group; tiles inside it run column by column (L2 reuse).
    #[tune(short = "g", values = [1, 2, 4, 8, 16, 32], rule = |_| 16)]
    pub group: Option<u32>,
    /// Which tiles a block has: its own from the start, or the next one of a work counter whenever it is free.
    #[tune(short = "by", default = Order::Strided, omitted)]
    pub order: Order,
    /// Whether tiles of one place, one of each rank's rows, follow one another: blocks beside each other read the same rows of `w` then,
    /// and not all tiles for others come before own ones.
    #[tune(short = "ab", rule = MatmulReduceScatter::abreast_rule)]
    pub abreast: Option<bool>,
    /// Parts of the columns of `x` and `w`, which blocks share: sums over all of them are added up in order by one of them.
    #[tune(short = "sp", values = [1, 2, 4, 7, 8, 16], default = |key| tiling(key).split)]
    pub split: u32,
    /// Whether blocks 2i and 2i + 1 multiply together, by the same rows of `w`: each brings half of them (`tcgen05` with `cta_group::2`, for
    /// `sm_100a`, `sm_103a` and `sm_110a` alone).
    #[tune(short = "pair", rule = |_| false)]
    pub pair: Option<bool>,
    /// Blocks.
    #[tune(short = "bl", shrinks, range = 1..=1024, rule = |c| c.split_parts().items().clamp(1, order::SMS))]
    pub blocks: Option<u32>,
}

/// Of tiles of one rank's rows.
fn tile_rows(key: &MatmulReduceScatterKey) -> u32 {
    order::tile_rows(key.m / key.ranks)
}

/// Rows of tiles of all ranks.
fn bands(key: &MatmulReduceScatterKey) -> u32 {
    order::bands(key.m / key.ranks) * key.ranks
}

fn tiling(key: &MatmulReduceScatterKey) -> Tiling {
    let passage = Passage { ranks: key.ranks, arrival: 0 };
    Tiling::of([tile_rows(key), bands(key)], key.n, key.k, order::SMS, passage)
}

fn stages(key: &MatmulReduceScatterKey) -> u32 {
    order::stages(tile_rows(key), tiling(key).columns, tiles(key) <= order::SMS)
}

fn tiles(key: &MatmulReduceScatterKey) -> u32 {
    bands(key) * key.n.div_ceil(tiling(key).columns)
}

/// Columns of a product up to which its parts are longer on the link than they take to multiply. With 1792 own
/// tiles in between save 10 %, with 3584 one in a hundred or nothing, and with 7168 they cost 2 %.
const LINK_COLUMNS: u32 = 2560;

impl Legal for MatmulReduceScatter {
    fn legal(&self) -> Result<(), Illegal> {
        order::whole_rows(self.n, self.k, self.dtype)?;
        self.activation.legal(self.n)?;
        order::shared_rows(self.m, self.ranks)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps(), self.stages)?;
        let (lead, abreast) = (self.lead(), self.abreast());
        let allowed = || format!("false with lead = {lead}: own tiles have an order already");
        Illegal::unless(!abreast || lead == 0, "abreast", abreast, allowed)?;
        self.order.legal(self.split)?;
        if self.pair() {
            let MatmulReduceScatter { tile_rows, order, split, .. } = *self;
            let (group, blocks, warps) = (("group", self.group()), self.blocks(), self.warps());
            let (scales, out) = (Scales::None, Output::Wide);
            Pairs { tile_rows, group, blocks, order, scales, out, warps, split }.legal()?;
            Pairs::is_not_abreast(abreast)?;
            let allowed = || "0 with pair = true: neighbouring blocks have tiles of one rank's rows";
            Illegal::unless(lead == 0, "lead", lead, allowed)?;
        }
        self.split_parts().legal()?;
        // Rows of tiles that are sent, in two banks, are counted in 32 bits.
        let of_a_band = 2 * (self.ranks - 1) * self.cut().strips();
        let most = u32::MAX / of_a_band.max(1) / self.tile_rows * self.tile_rows;
        let allowed = || format!("at most {} with n = {}", u64::from(most) * u64::from(self.ranks), self.n);
        Illegal::unless(self.rows() <= most, "m", self.m, allowed)
    }
}

/// What rules choose.
impl MatmulReduceScatter {
    /// Pushed where every block has one tile. Blocks with more of them would store at the same time, all of them, and stand still
    /// for as long as the link takes.
    fn algorithm_rule(&self) -> Algorithm {
        if self.ranks * self.cut().tiles() <= order::SMS { Algorithm::Push } else { Algorithm::Pull }
    }

    /// If what is read early has been multiplied by then: where as many tiles are multiplied in the turn before as there are blocks.
    fn early_rule(&self) -> bool {
        self.cut().tiles() >= order::SMS
    }

    /// If the other's parts of this rank's rows are many, and take the link longer than own tiles take: they would all come at the end.
    /// Of more than two ranks all turns but the first have something come over the link.
    fn lead_rule(&self) -> u32 {
        u32::from(
            !self.pair() && self.ranks == 2 && self.k <= LINK_COLUMNS && self.cut().tiles() >= 2 * order::SMS,
        )
    }

    /// Where each block has one tile or a part of one: a block that has to wait waits at the end in either order.
    fn abreast_rule(&self) -> bool {
        self.lead() == 0 && !self.pair() && self.split_parts().items() <= order::SMS
    }
}

impl MatmulReduceScatter {
    /// Rows of the result that each rank gets.
    pub fn rows(&self) -> u32 {
        self.m / self.ranks
    }

    /// The tiles of one rank's rows.
    fn cut(&self) -> Cut {
        let MatmulReduceScatter { n: columns, tile_rows, tile_columns, .. } = *self;
        Cut { rows: self.rows(), columns, tile_rows, tile_columns, group: self.group(), pair: self.pair() }
    }

    fn split_parts(&self) -> Split {
        self.cut().split(self.split, self.k, self.dtype, self.ranks)
    }

    /// Tiles for others that come before each second one is this rank's own; all of them if there are no more.
    fn first_own(&self) -> u32 {
        let lead = self.lead() * self.blocks() / self.split;
        self.sent().min(if lead == 0 {
            u32::MAX
        } else {
            self.ranks.saturating_sub(2) * self.cut().tiles() + lead
        })
    }

    /// Tiles that a rank multiplies for the others.
    fn sent(&self) -> u32 {
        (self.ranks - 1) * self.cut().tiles()
    }

    /// Whether ranks in between add their parts to what goes by: two ranks have none in between.
    pub(super) fn adds_on(&self) -> bool {
        self.algorithm() == Algorithm::Pull && self.ranks > 2
    }

    /// The shape of parts of tiles in two banks, one below the other; of nothing if they travel in another way.
    fn parts(&self, how: Algorithm) -> [u32; 2] {
        let there = self.algorithm() == how;
        [if there { 2 * self.sent() * self.tile_rows } else { 0 }, self.tile_columns]
    }
}

/// Parameters of [`matmul_reduce_scatter`].
#[derive(KernelArgs)]
#[args(config = MatmulReduceScatter)]
pub struct MatmulReduceScatterArgs {
    /// This rank's columns of the left matrix, `[m][k]`.
    #[input]
    #[shape(|c| [c.m, c.k])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// The same columns of the right matrix, a row for each column of the result, `[n][k]`.
    #[input]
    #[shape(|c| [c.n, c.k])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// What is added to each row of the result once, `[n]`: each rank adds its own to its own rows.
    #[input]
    #[len(|c| if c.bias { c.n.into() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub bias: Option<AnyPtr>,
    /// This rank's rows of the sum over all ranks, `[m / ranks][n]`; with gates `[m / ranks][n / 2]`.
    #[output]
    #[shape(|c| [c.rows(), c.activation.columns(c.n)])]
    #[dtype(|c| c.dtype)]
    pub out: AnyMatrix,
    /// This rank's part of others' rows, with what came before it, `[parity][turn][tile][row][column]`.
    #[shape(|c| c.parts(Algorithm::Pull))]
    #[dtype(|c| c.dtype)]
    pub partials: Option<AnyWindowMatrix>,
    /// Others' parts of this rank's rows, `[parity][turn][tile][row][column]`.
    #[shape(|c| c.parts(Algorithm::Push))]
    #[dtype(|c| c.dtype)]
    pub inbox: Option<AnySymMatrix>,
    /// Another rank has multiplied its part of a tile, `[parity][turn][tile]`.
    #[len(|c| 2 * u64::from(c.sent()))]
    pub multiplied: Option<Flags>,
    /// Work counter of the tiles, if blocks draw them.
    #[len(|c| c.order.counters())]
    pub next_tile: Option<Counters>,
    /// What blocks need that share the columns of tiles.
    #[group(|c| c.split_parts())]
    pub split: SplitArgs,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Multiplies for all ranks, and adds up for its own rows what all have.
///
/// Every rank waits for all others in each launch: a rank that multiplies into a bank again knows that all have read it.
#[kernel]
pub fn matmul_reduce_scatter(c: &MatmulReduceScatter, a: &MatmulReduceScatterArgs) {
    let (epoch, cut, parts) = (a.epoch.begin(), c.cut(), c.split_parts());
    let tiles = a.next_tile.map(|next| next.counter(0));
    let bank = epoch.parity() * c.sent();

    role("multiply", c.blocks(), |b| {
        for i in b.dynamic(parts.items(), tiles) {
            // The next rank's rows first, this rank's own last: by then the others have multiplied their part.
            let columns = parts.item(i);
            let (turn, tile) = turn(c, columns.tile);
            let owner = (rank() + 1 + turn) % c.ranks;
            let (row, column) = cut.corner(tile);
            let x = columns.of(a.x.rows(owner * c.rows() + row, c.tile_rows));
            let w = a.w.rows(column, c.tile_columns);
            let w = if c.pair() { w.in_pairs() } else { w };
            let of_turn = |turn: Val<u32>| bank + (turn * cut.tiles() + tile) % c.sent();
            // The sum of the rank behind is added, if it is given.
            let send = |come: Option<Val<u32>>| {
                let part = |slot| a.part(c, (rank() + 1) % c.ranks, slot, epoch);
                let first = come.filter(|_| c.early()).map(part);
                let sums = b.dot(x, w, c.stages);
                a.split.whole(b, columns, sums, Some(epoch), |sums| {
                    let sums = match come {
                        Some(slot) => sums + first.unwrap_or_else(|| part(slot)).to_f32(),
                        None => sums,
                    };
                    a.send_part(c, owner, of_turn(turn), sums, epoch);
                });
            };
            if owner == rank() {
                // Whose turn this rank's rows were first has multiplied them first.
                let part = |turn: u32| {
                    let peer = (rank() + (c.ranks - 1 - turn)) % c.ranks;
                    a.part(c, peer, bank + turn * cut.tiles() + tile, epoch)
                };
                // The last rank behind has added what others have. A rank alone adds no part.
                let first_turn = if c.adds_on() { c.ranks - 2 } else { 0 };
                let first = (first_turn..c.ranks - 1).next().filter(|_| c.early()).map(part);
                let sums = b.dot(x, w, c.stages);
                a.split.whole(b, columns, sums, Some(epoch), |sums| {
                    let mut sums = sums;
                    for turn in first_turn..c.ranks - 1 {
                        let come = first.filter(|_| turn == first_turn);
                        sums = sums + come.unwrap_or_else(|| part(turn)).to_f32();
                    }
                    let tile = [c.tile_rows, c.tile_columns];
                    let done = epilogue(a.bias, c.activation, column, tile, Sums::All(sums));
                    a.out.rows(row, c.tile_rows).store_f32(c.activation.place(column), done);
                });
            } else if c.adds_on() {
                if turn > 0 {
                    send(Some(of_turn(turn - 1)));
                } else {
                    send(None);
                }
            } else {
                send(None);
            }
        }
    });
}

/// The `i`-th tile of a rank: whose turn it is, the next rank's first and its own last, and which of that rank's tiles.
#[kernel]
fn turn(c: &MatmulReduceScatter, i: Val<u32>) -> (Val<u32>, Val<u32>) {
    let (tiles, own, first_own) = (c.cut().tiles(), c.ranks - 1, c.first_own());
    if first_own == c.sent() {
        c.cut().of_ranks(i, c.ranks, c.abreast())
    } else {
        // An own tile comes after the others' tile of the same number.
        let others = c.sent() - first_own;
        let since = i - first_own;
        let before = i < first_own;
        let by_turns = since < 2 * others;
        let for_other = before.select(1, by_turns.select(since % 2, 0));
        let turn = (for_other < 1).select(own, (i / tiles).min(own - 1));
        let number = before.select(i, by_turns.select(since / 2 + for_other * first_own, since - others));
        (turn, number % tiles)
    }
}

impl MatmulReduceScatterArgs {
    /// Lets the owner of a tile, or who adds to it next, have this rank's part of it.
    fn send_part(
        &self,
        c: &MatmulReduceScatter,
        owner: Val<u32>,
        slot: Val<u32>,
        part: Tile<f32>,
        epoch: Epoch,
    ) {
        let next = if c.adds_on() { (rank() + (c.ranks - 1)) % c.ranks } else { owner };
        let (next, row) = (Peers::rank(next), slot * c.tile_rows);
        let multiplied = self.multiplied.expect("there is another rank");
        if let Some(partials) = self.partials {
            partials.rows(row, c.tile_rows).store_f32(0, part);
            partials.signal(next, &multiplied, slot, epoch);
        } else if let Some(inbox) = self.inbox {
            let mut tile = send_to(next);
            tile.put_rows_f32(&inbox, row, 0, part);
            tile.signal(&multiplied, slot, epoch);
        }
    }

    /// Another rank's part of a tile of this rank's.
    fn part(&self, c: &MatmulReduceScatter, peer: Val<u32>, slot: Val<u32>, epoch: Epoch) -> AnyTile {
        let multiplied = self.multiplied.expect("there is another rank");
        let (got, row) = (multiplied.from(peer).wait(slot, epoch), slot * c.tile_rows);
        let window = self.partials.map(|window| window.of(peer).rows(&got, row, c.tile_rows));
        let inbox = self.inbox.map(|inbox| inbox.rows(&got, row, c.tile_rows));
        let rows = window.or(inbox).expect("parts travel in one way or the other");
        rows.load(0, c.tile_columns)
    }
}
