//! All-gather and matrix multiplication in one kernel.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::epilogue::{Activation, Sums, epilogue};
use super::order::{self, Cut, Order, Pairs, Passage, Tiling};
use super::output::Output;
use super::scales::Scales;
use super::split::{Split, SplitArgs};

/// A variant of all-gather and matrix multiplication.
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "all_gather_matmul", kernel = all_gather_matmul, args = AllGatherMatmulArgs, warps = warps)]
pub struct AllGatherMatmul {
    /// Rows of the gathered matrix; every rank has as many of them.
    #[key(short = "m", range = 2..=1048576)]
    pub m: u32,
    /// Rows of a rank's `w`: columns of its result.
    #[key(short = "n", range = 8..=1048576)]
    pub n: u32,
    /// Columns of both.
    #[key(short = "k", range = 8..=1048576)]
    pub k: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Type of all elements; sums are of `f32` and rounded once.
    #[key(values = [Dtype::Bf16, Dtype::Fp16])]
    pub dtype: Dtype,
    /// Whether the gathered rows are a result as well.
    #[key(short = "ga", default = false)]
    pub gathered: bool,
    /// Whether there is a vector that is added to each row of the result.
    #[key(short = "b", default = false, omitted)]
    pub bias: bool,
    /// Activation applied to the accumulators.
    #[key(short = "f", default = Activation::None, omitted)]
    pub activation: Activation,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], rule = |c| order::warps(c.tile_rows))]
    pub warps: Option<u32>,
    /// Rows of a tile of the result.
    #[tune(short = "tr", shrinks, values = [64, 128, 256], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of the result.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tiling(key).columns)]
    pub tile_columns: u32,
    /// Pieces of 64 columns in shared memory at once.
    #[tune(short = "s", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| stages(key))]
    pub stages: u32,
    /// Height of a tile group; tiles inside it run column by column (L2 reuse).
    #[tune(short = "g", values = [1, 2, 4, 8, 16, 32], rule = |_| 8)]
    pub group: Option<u32>,
    /// Which tiles a block has: its own from the start, or the next one of a work counter whenever it is free.
    #[tune(short = "by", default = Order::Strided, omitted)]
    pub order: Order,
    /// Whether the tiles at one place of every rank's rows follow one another, so that neighbouring blocks read the same rows of `w`.
    /// Otherwise all of a rank's own rows come first.
    #[tune(short = "ab", rule = AllGatherMatmul::abreast_rule)]
    pub abreast: Option<bool>,
    /// Parts of the columns of `x` and `w`, which blocks share: sums over all of them are added up in order by one of them.
    #[tune(short = "sp", values = [1, 2, 4, 7, 8, 16], default = |key| tiling(key).split)]
    pub split: u32,
    /// Whether tiles span the rows of all ranks. Each rank's inbox then holds its own rows as well, few rows make fewer tiles, and each row
    /// of `w` is read once.
    #[tune(short = "tg", rule = AllGatherMatmul::together_rule)]
    pub together: Option<bool>,
    /// Elements that a block sends at once.
    #[tune(short = "c", values = [512, 1024, 2048, 4096, 8192, 16384, 32768], rule = AllGatherMatmul::chunk_rule)]
    pub chunk: Option<u32>,
    /// Rows of tiles that each sender covers with one flag. Below `group`, multiplying blocks begin at different times and share less of
    /// the cache.
    #[tune(short = "sr", values = [1, 2, 4, 8, 16, 32], rule = |_| 8)]
    pub sent: Option<u32>,
    /// Whether each rank sends all rows to rank-1 first, because rank-1 consumes these rows first, then to rank-2, and so on.
    #[tune(short = "ph", rule = AllGatherMatmul::phases_rule)]
    pub phases: Option<bool>,
    /// Whether a warp beside the multiplying ones sends, in each of the first `send_blocks` blocks. No SM is then reserved for sending.
    #[tune(short = "bs", rule = |_| false)]
    pub beside: Option<bool>,
    /// Blocks that send, or warps.
    #[tune(short = "sb", shrinks, values = [1, 2, 4, 8, 16, 32, 64], default = |key| send_blocks(key))]
    pub send_blocks: u32,
    /// Whether blocks 2i and 2i + 1 multiply together, by the same rows of `w`: each brings half of them (`tcgen05` with `cta_group::2`, for
    /// `sm_100a`, `sm_103a` and `sm_110a` alone).
    #[tune(short = "pair", rule = |_| false)]
    pub pair: Option<bool>,
    /// Blocks that multiply.
    #[tune(short = "bl", shrinks, range = 1..=1024, rule = AllGatherMatmul::blocks_rule)]
    pub blocks: Option<u32>,
}

/// Where there are fewer tiles then, and a block has one or none: no block would multiply its own rows meanwhile.
fn together(key: &AllGatherMatmulKey) -> bool {
    let [all, apart] = [order::bands(key.m), key.ranks * order::bands(key.m / key.ranks)];
    all < apart && all * key.n.div_ceil(128) <= order::SMS
}

fn tile_rows(key: &AllGatherMatmulKey) -> u32 {
    order::tile_rows(if together(key) { key.m } else { key.m / key.ranks })
}

/// Rows of tiles of all ranks.
fn bands(key: &AllGatherMatmulKey) -> u32 {
    if together(key) { order::bands(key.m) } else { order::bands(key.m / key.ranks) * key.ranks }
}

fn tiling(key: &AllGatherMatmulKey) -> Tiling {
    // Tiles of all ranks' rows together all wait for them, whatever the cut.
    let passage = match together(key) {
        true => Passage { ranks: 1, arrival: 0 },
        false => Passage { ranks: key.ranks, arrival: arrival(key) },
    };
    Tiling::of([tile_rows(key), bands(key)], key.n, key.k, order::SMS - send_blocks(key), passage)
}

/// Nanoseconds until another rank's rows have come: a link moves 343 GB/s, and there is a trip before the first of them are there.
fn arrival(key: &AllGatherMatmulKey) -> u64 {
    1500 + 2 * elements(key) / 343
}

/// Blocks that send where no block has anything to do until rows arrive.
const SENDERS: u32 = 16;

/// Whether each block has one tile, or none, if tiles are wide.
fn one_each(key: &AllGatherMatmulKey) -> bool {
    bands(key) * key.n.div_ceil(256) <= order::SMS - SENDERS
}

/// A warp's elements of what a block sends at once: so many fit 64 registers of a lane.
const CHUNK_OF_A_WARP: u32 = 4096;

/// Elements that a block is worth.
const LEAST_SENT: u64 = 8192;

/// Those of a rank's rows.
fn elements(key: &AllGatherMatmulKey) -> u64 {
    u64::from(key.m / key.ranks) * u64::from(key.k)
}

/// Columns of `w` a sending block keeps up with: it sends the rows of one rank while others multiply the rows of two by these columns.
/// `LEAST_SENDERS` is the lower bound on the number of senders. Both are fitted to measurements on two and four ranks
/// (`bench/results/products.md`, senders and four H200s).
const COLUMNS_OF_A_BLOCK: u32 = 14_000;
const LEAST_SENDERS: u32 = 4;

/// So many that rows are with the others by the time that these have multiplied their own; all that a link has use for where each block
/// has one tile, as no block has anything to do until then.
fn send_blocks(key: &AllGatherMatmulKey) -> u32 {
    let pieces = elements(key).div_ceil(LEAST_SENT).next_power_of_two().min(SENDERS.into()) as u32;
    // Each row that a block sends is one that it writes to the gathered ones later.
    let moved = if key.gathered { 2 } else { 1 };
    // Of all rows, a rank sends its own to each of the others while it multiplies all.
    let wanted = (COLUMNS_OF_A_BLOCK * 2 * (key.ranks - 1) * moved).div_ceil(key.ranks * key.n);
    let wanted = wanted.next_power_of_two();
    if one_each(key) { pieces } else { pieces.min(wanted.max(LEAST_SENDERS)) }
}

fn stages(key: &AllGatherMatmulKey) -> u32 {
    let one_each = tiling(key).items(bands(key), key.n) <= order::SMS - send_blocks(key);
    order::stages(tile_rows(key), tiling(key).columns, one_each)
}

impl Legal for AllGatherMatmul {
    fn legal(&self) -> Result<(), Illegal> {
        order::whole_rows(self.n, self.k, self.dtype)?;
        self.activation.legal(self.n)?;
        order::shared_rows(self.m, self.ranks)?;
        let (chunk, beside) = (self.chunk(), self.beside());
        let allowed = || format!("one that divides {}, the elements of {} rows", self.band(), self.tile_rows);
        Illegal::unless(self.band().is_multiple_of(chunk), "chunk", chunk, allowed)?;
        let most = CHUNK_OF_A_WARP * self.warps();
        let allowed = || format!("at most {most}, what {} warps have registers for", self.warps());
        Illegal::unless(chunk <= most, "chunk", chunk, allowed)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps(), self.stages)?;
        let allowed = || {
            let (most, stages) = (1 << self.most_sent().ilog2(), self.stages);
            format!(
                "at most {most} with beside = true: it goes by way of shared memory, beside {stages} stages"
            )
        };
        Illegal::unless(chunk <= self.most_sent(), "chunk", chunk, allowed)?;
        let whole = self.sent_elements().is_multiple_of(chunk.into());
        let allowed = || format!("false with chunk = {chunk}: a rank's rows are no whole number of these");
        Illegal::unless(!beside || whole, "beside", beside, allowed)?;
        let allowed = || "false with gathered = true: warps beside have no registers for rows".to_owned();
        Illegal::unless(!beside || !self.gathered, "beside", beside, allowed)?;
        let allowed = || format!("at most {}, the blocks that its warps are in", self.blocks());
        let there = !beside || self.send_blocks <= self.blocks();
        Illegal::unless(there, "send_blocks", self.send_blocks, allowed)?;
        let allowed = || "false with together = true: each tile is of all ranks' rows".to_owned();
        Illegal::unless(!self.abreast() || !self.together(), "abreast", self.abreast(), allowed)?;
        let allowed = || "false with together = true: no block multiplies one rank's rows first".to_owned();
        Illegal::unless(!self.phases() || !self.together(), "phases", self.phases(), allowed)?;
        self.order.legal(self.split)?;
        if self.pair() {
            self.pairs()?;
        }
        self.split_parts().legal()
    }
}

/// What rules choose.
impl AllGatherMatmul {
    /// Where each block has one tile or a part of one, so that no block is done with own rows before others' arrive.
    fn abreast_rule(&self) -> bool {
        !self.together() && !self.pair() && self.split_parts().items() <= order::SMS - self.send_blocks
    }

    /// Elements of one step of a sender. A block loads all of them before it stores any, so each step costs a trip to memory.
    /// The largest value that divides a band of tile rows, fits the warps' registers or their shared memory and leaves every sender
    /// some elements (measured in `bench/results/products.md`, senders).
    fn chunk_rule(&self) -> u32 {
        let share = (self.sent_elements() / u64::from(self.send_blocks)).max(LEAST_SENT);
        let most = u64::from(self.most_sent()).min(share);
        let whole = |chunk: u32| !self.beside() || self.sent_elements().is_multiple_of(chunk.into());
        let fits =
            |chunk: &u32| self.band().is_multiple_of(*chunk) && u64::from(*chunk) <= most && whole(*chunk);
        [32768, 16384, 8192, 4096, 2048, 1024].into_iter().find(fits).unwrap_or(512)
    }

    /// Where there are fewer tiles then, unless an order of ranks' rows is set: see [`together`].
    fn together_rule(&self) -> bool {
        let has_order = self.abreast == Some(true) || self.phases == Some(true);
        !has_order && together(&self.key())
    }

    /// Of more than two ranks, if blocks have other tiles to multiply meanwhile.
    fn phases_rule(&self) -> bool {
        self.ranks > 2 && !self.together() && !one_each(&self.key())
    }

    /// A block for each part of a tile, on the SMs that senders leave.
    fn blocks_rule(&self) -> u32 {
        self.split_parts().items().clamp(1, order::SMS - self.send_blocks)
    }
}

impl AllGatherMatmul {
    /// Whether neighbouring blocks multiply, and have whole tiles of one rank's rows one below the other.
    fn pairs(&self) -> Result<(), Illegal> {
        let AllGatherMatmul { tile_rows, order, split, .. } = *self;
        let (group, blocks, warps) = (("group", self.group()), self.blocks(), self.warps());
        let (scales, out) = (Scales::None, Output::Wide);
        Pairs { tile_rows, group, blocks, order, scales, out, warps, split }.legal()?;
        Pairs::is_not_abreast(self.abreast())?;
        let allowed = || "false with pair = true: warps beside a role are in no pair";
        Illegal::unless(!self.beside(), "beside", self.beside(), allowed)?;
        let allowed = || "an even number with pair = true: blocks that multiply come behind those that send";
        Illegal::unless(self.send_blocks.is_multiple_of(2), "send_blocks", self.send_blocks, allowed)?;
        let unit = 2 * tile_rows * if self.together() { 1 } else { self.ranks };
        let allowed =
            || format!("a multiple of {unit} with pair = true: rows that arrive are whole pairs of tiles");
        Illegal::unless(self.m.is_multiple_of(unit), "m", self.m, allowed)
    }

    /// Elements of a tile's rows.
    fn band(&self) -> u32 {
        self.tile_rows * self.k
    }

    /// The most elements that a sender sends at once: what registers hold, or the shared memory that stages leave a warp beside.
    fn most_sent(&self) -> u32 {
        let registers = CHUNK_OF_A_WARP * self.warps();
        let left = || order::left(self.tile_rows, self.tile_columns, self.stages) / 2;
        if self.beside() { registers.min(left()) } else { registers }
    }

    /// Rows of each rank.
    pub fn rows(&self) -> u32 {
        self.m / self.ranks
    }

    /// The tiles of one rank's rows, or of all.
    fn cut(&self) -> Cut {
        let AllGatherMatmul { n: columns, tile_rows, tile_columns, .. } = *self;
        let rows = if self.together() { self.m } else { self.rows() };
        Cut { rows, columns, tile_rows, tile_columns, group: self.group(), pair: self.pair() }
    }

    fn split_parts(&self) -> Split {
        self.cut().split(self.split, self.k, self.dtype, if self.together() { 1 } else { self.ranks })
    }

    /// Elements of a rank's rows.
    fn sent_elements(&self) -> u64 {
        u64::from(self.rows()) * u64::from(self.k)
    }

    /// The first element of a row of the inbox, or of a matrix with fewer rows: in 64 bits if 32 do not count all elements.
    fn at(&self, row: Val<u32>) -> Index {
        if (2 * self.m).checked_mul(self.k).is_some() {
            (row * self.k).index()
        } else {
            (row.to_u64() * u64::from(self.k)).index()
        }
    }

    /// Where a piece is that a block sends at once, among a rank's elements.
    fn piece(&self, number: Val<u32>) -> Index {
        let all = self.sent_elements();
        if let Ok(elements) = u32::try_from(all) {
            return tiles(elements, self.chunk()).tile(number).at();
        }
        let first = number.to_u64() * u64::from(self.chunk());
        if all.is_multiple_of(self.chunk().into()) {
            first.index()
        } else {
            let there = (all.val() - first).min(u64::from(self.chunk())).to_u32();
            first.only(arange(self.chunk()).lt(there))
        }
    }

    /// Rows that have flags of their own, one of each block that sends.
    fn part_rows(&self) -> u32 {
        self.sent() * self.tile_rows
    }

    /// Such parts of a rank's rows.
    fn parts(&self) -> u32 {
        self.rows().div_ceil(self.part_rows())
    }

    /// The first piece of a part that a block sends, and the one behind the part.
    fn pieces_of(&self, part: Val<u32>, b: Group) -> (Val<u32>, Val<u32>) {
        // Tuning may have no more pieces than 32 bits number: a piece has 512 elements or more.
        let pieces = |elements: u64| elements.div_ceil(self.chunk().into()) as u32;
        let of_part = pieces(u64::from(self.part_rows()) * u64::from(self.k));
        (part * of_part + b.index(), ((part + 1) * of_part).min(pieces(self.sent_elements())))
    }

    /// Flags for the rows of a rank.
    fn flags(&self) -> u32 {
        self.parts() * self.send_blocks
    }
}

/// Parameters of [`all_gather_matmul`].
#[derive(KernelArgs)]
#[args(config = AllGatherMatmul)]
pub struct AllGatherMatmulArgs {
    /// This rank's rows, `[m / ranks][k]`.
    #[input]
    #[shape(|c| [c.rows(), c.k])]
    #[dtype(|c| c.dtype)]
    pub x: AnyMatrix,
    /// A row for each column of the result, `[n][k]`.
    #[input]
    #[shape(|c| [c.n, c.k])]
    #[dtype(|c| c.dtype)]
    pub w: AnyMatrix,
    /// What is added to each row of the result, `[n]`.
    #[input]
    #[len(|c| if c.bias { c.n.into() } else { 0 })]
    #[dtype(|c| c.dtype)]
    pub bias: Option<AnyPtr>,
    /// All ranks' rows times this rank's, `[m][n]`; with gates `[m][n / 2]`.
    #[output]
    #[shape(|c| [c.m, c.activation.columns(c.n)])]
    #[dtype(|c| c.dtype)]
    pub out: AnyMatrix,
    /// All ranks' rows, `[m][k]`, if they are asked for.
    #[output]
    #[shape(|c| [if c.gathered { c.m } else { 0 }, c.k])]
    #[dtype(|c| c.dtype)]
    pub gathered: Option<AnyMatrix>,
    /// Others' rows, `[parity][rank][row][k]`; where tiles are of all ranks' rows, this rank's own as well.
    #[shape(|c| [2 * c.m, c.k])]
    #[dtype(|c| c.dtype)]
    pub inbox: AnySymMatrix,
    /// Work counter of the tiles, if blocks draw them.
    #[len(|c| c.order.counters())]
    pub next_tile: Option<Counters>,
    /// What blocks need that share the columns of tiles.
    #[group(|c| c.split_parts())]
    pub split: SplitArgs,
    /// What a block sends of a part of a rank's rows has arrived, `[parity][rank][part][block]`.
    #[len(|c| 2 * u64::from(c.ranks) * u64::from(c.flags()))]
    pub arrived: Flags,
    /// Counts launches.
    pub epoch: EpochWord,
}

/// Multiplies all ranks' rows with this rank's `w`: its own at once, the others' as they arrive.
///
/// Every rank waits for all others in each launch: a rank that sends in a bank again knows that all are done with it.
#[kernel]
pub fn all_gather_matmul(c: &AllGatherMatmul, a: &AllGatherMatmulArgs) {
    let (epoch, cut, parts) = (a.epoch.begin(), c.cut(), c.split_parts());
    let tiles = a.next_tile.map(|next| next.counter(0));
    let (bank, flags) = (epoch.parity() * c.m, epoch.parity() * (c.ranks * c.flags()));
    // Where rows end within a tile, what comes behind is not read nor written: it has not arrived.
    let ragged = !cut.rows.is_multiple_of(c.tile_rows);
    let of_rank =
        |rows: MatrixRows, first: Val<u32>| if ragged { rows.below(first + cut.rows) } else { rows };
    let to = Inbox { bank, flags, epoch };
    if !c.beside() {
        role("send", c.send_blocks, |b| send(b, c, a, to));
    }

    role("multiply", c.blocks(), |b| {
        for i in b.dynamic(parts.items(), tiles) {
            let part = parts.item(i);
            // This rank's own rows first: the others' travel meanwhile.
            let (turn, tile) = cut.of_ranks(part.tile, c.ranks, c.abreast());
            let from = (turn + rank()) % c.ranks;
            let (row, column) = cut.corner(tile);
            let w = part.of(a.w.rows(column, c.tile_columns));
            let w = if c.pair() { w.in_pairs() } else { w };
            let product = |x: MatrixRows| b.dot(x, w, c.stages);
            let out = if c.together() { 0u32.val() } else { from * c.rows() };
            let gathered = |first: Val<u32>, blocks: u32| {
                let got = a.arrived.wait_all(first, blocks, c.flags(), epoch);
                let rows = a.inbox.rows(&got, bank + out + row, c.tile_rows);
                product(of_rank(rows, bank + out))
            };
            let sums = if c.together() {
                gathered(flags, c.ranks * c.flags())
            } else if from == rank() {
                product(a.x.rows(row, c.tile_rows))
            } else {
                let first = flags + from * c.flags() + row / c.part_rows() * c.send_blocks;
                gathered(first, c.send_blocks)
            };
            a.split.whole(b, part, sums, Some(epoch), |sums| {
                let tile = [c.tile_rows, c.tile_columns];
                let done = epilogue(a.bias, c.activation, column, tile, Sums::All(sums));
                of_rank(a.out.rows(out + row, c.tile_rows), out).store_f32(c.activation.place(column), done);
            });
        }
    });

    if c.beside() {
        role_beside("multiply", "send", 1, |b| {
            if b.index() < c.send_blocks {
                send(b, c, a, to);
            }
        });
    }
}

/// Where a launch's rows arrive.
#[derive(Clone, Copy)]
struct Inbox {
    /// The first row of the bank.
    bank: Val<u32>,
    /// Its first flag.
    flags: Val<u32>,
    epoch: Epoch,
}

impl Inbox {
    /// The flag for what a block sends of a part of a rank's rows.
    fn flag(&self, c: &AllGatherMatmul, from: Val<u32>, part: Val<u32>, b: Group) -> Val<u32> {
        self.flags + from * c.flags() + part * c.send_blocks + b.index()
    }
}

/// Sends this rank's rows, to all at once or to one rank after the other, and gathers those of all ranks if they are asked for.
#[kernel]
fn send(b: Group, c: &AllGatherMatmul, a: &AllGatherMatmulArgs, to: Inbox) {
    let gathered = a.gathered.map(|gathered| gathered.elements());
    if c.phases() {
        // The rank before this one multiplies these rows first of others'.
        for before in 1u32.val()..c.ranks.val() {
            let peer = (rank() + (c.ranks - before)) % c.ranks;
            let kept = gathered.map(|gathered| (gathered, before < 2));
            send_rows(b, c, a, to, Peers::rank(peer), kept);
        }
    } else {
        let all = if c.together() { Peers::all() } else { Peers::others() };
        send_rows(b, c, a, to, all, gathered.map(|gathered| (gathered, true.val())));
    }
    if let Some(gathered) = gathered {
        gather(b, c, a, to, gathered);
    }
}

/// Sends this rank's rows, each block or warp its pieces of each part, and keeps them among the gathered ones if something holds.
#[kernel]
fn send_rows(
    b: Group,
    c: &AllGatherMatmul,
    a: &AllGatherMatmulArgs,
    to: Inbox,
    peers: Peers,
    kept: Option<(AnyPtr, Val<bool>)>,
) {
    let (inbox, x, own) = (a.inbox.elements(), a.x.elements(), c.at(rank() * c.rows()));
    for part in 0u32.val()..c.parts().val() {
        let mut rows = send_to(peers);
        let (first, end) = c.pieces_of(part, b);
        for number in (first..end).step_by(c.send_blocks) {
            let piece = c.piece(number);
            let place = c.at(to.bank) + own + piece;
            if c.beside() {
                // Nothing of it goes through registers, of which the multiplying warps need most.
                rows.copy_any(&inbox, place, &x, piece, c.chunk());
            } else {
                let elements = x.load(piece, c.chunk());
                rows.put_any(&inbox, place, elements);
                if let Some((kept, here)) = kept {
                    if here {
                        kept.store(own + piece, elements);
                    }
                }
            }
        }
        rows.signal(&a.arrived, to.flag(c, rank(), part, b), to.epoch);
    }
}

/// Writes others' rows from the inbox to the gathered ones, each block those that the block of its number has sent on the other ranks:
/// by now this rank's own are on their way. Nothing crosses a link a second time, and no multiplying warp does it.
#[kernel]
fn gather(b: Group, c: &AllGatherMatmul, a: &AllGatherMatmulArgs, to: Inbox, gathered: AnyPtr) {
    for part in 0u32.val()..c.parts().val() {
        for back in 1u32.val()..c.ranks.val() {
            let from = (rank() + back) % c.ranks;
            let got = a.arrived.from(from).wait(to.flag(c, from, part, b), to.epoch);
            let (first, end) = c.pieces_of(part, b);
            for number in (first..end).step_by(c.send_blocks) {
                let piece = c.piece(number);
                let place = c.at(from * c.rows()) + piece;
                let elements = a.inbox.elements().load(&got, c.at(to.bank) + place, c.chunk());
                gathered.store(place, elements);
            }
        }
    }
}
