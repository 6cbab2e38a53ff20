//! A whole layer in one launch: tokens to their experts, both products there, and the weighted sums back.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::ir::Dtype;

use super::bases_in_memory::{BaseArgs, lay_out_in_memory};
use super::combine::{self, CombineArgs, ReturnArgs};
use super::device::at;
use super::dispatch::{self, DispatchArgs, TokenArgs, TokenLaunch};
use super::expert_major;
use super::layer_config::MoeLayer;
use super::pieces::each_piece;
use super::route::route;
use super::send::Sender;
use super::send_back;
use super::sums;
use super::wire::{Arriving, Given, InboxArgs, ReadyArgs, Received, RecordArgs};
use crate::families::moe::SCALE_BLOCK;

/// Parameters of [`moe_layer`].
#[derive(KernelArgs)]
#[args(config = MoeLayer)]
pub struct MoeLayerArgs {
    /// The tokens, and where they go.
    #[group(|c| c.dispatch())]
    #[input]
    pub tokens: TokenArgs,
    /// The weights of the first products, a row for each of their columns, `[expert][2 * inter][hidden]`: 16 rows for gates, 16 for
    /// values, and so on.
    #[input]
    #[shape(|c| [c.local_experts() * c.first_columns(), c.hidden])]
    #[dtype(|c| c.dtype)]
    pub w1: AnyMatrix,
    /// Those of the second products, `[expert][hidden][inter]`.
    #[input]
    #[shape(|c| [c.local_experts() * c.hidden, c.inter])]
    #[dtype(|c| c.dtype)]
    pub w2: AnyMatrix,
    /// Scales of the weights of first products of fp8, one of each 128 rows and columns, gates first,
    /// `[expert][2][inter / 128][hidden / 128]`.
    #[input]
    #[len(|c| c.scale_counts()[0])]
    pub w1_scales: Option<Ptr<f32>>,
    /// Those of second products, `[expert][hidden / 128][inter / 128]`.
    #[input]
    #[len(|c| c.scale_counts()[1])]
    pub w2_scales: Option<Ptr<f32>>,
    /// What is added to each row of an expert's first product, `[expert][2 * inter]`.
    #[input]
    #[len(|c| if c.bias { u64::from(c.local_experts() * c.first_columns()) } else { 0 })]
    #[dtype(|c| c.wide())]
    pub b1: Option<AnyPtr>,
    /// What is added to each row of an expert's second product, `[expert][hidden]`.
    #[input]
    #[len(|c| if c.bias { u64::from(c.local_experts() * c.hidden) } else { 0 })]
    #[dtype(|c| c.wide())]
    pub b2: Option<AnyPtr>,
    /// The layer's rows, `[token][hidden]`.
    #[output]
    #[len(|c| u64::from(c.tokens) * u64::from(c.hidden))]
    #[rows(rows_there, |c| c.tokens)]
    #[dtype(|c| c.wide())]
    pub out: AnyPtr,

    /// Rows that came, by expert, each expert's from a multiple of the rows of a tile on.
    #[shape(|c| [c.places(), c.hidden])]
    #[dtype(|c| c.dtype)]
    pub rows: AnyMatrix,
    /// Their scales if they are of fp8, one of each row and 128 columns, `[hidden / 128][row]`.
    #[len(|c| c.scale_room().all_words())]
    #[dtype(|_| Dtype::F32)]
    pub row_scale: Option<AnyPtr>,
    /// What the first products and the activation make of them.
    #[shape(|c| [c.places(), c.inter])]
    #[dtype(|c| c.dtype)]
    pub between: AnyMatrix,
    /// Scales of that, as those of rows.
    #[shape(|c| [c.between_scales(), 1])]
    #[dtype(|_| Dtype::F32)]
    pub between_scales: Option<AnyMatrix>,
    /// What the second products make of that.
    #[shape(|c| [c.places(), c.hidden])]
    #[dtype(|c| c.wide())]
    pub y: AnyMatrix,
    /// First row of each of this rank's experts, and after the last one the number of rows.
    #[len(|c| u64::from(c.local_experts()) + 1)]
    pub expert_start: Ptr<u32>,
    /// Rows of each of this rank's experts.
    #[len(|c| u64::from(c.local_experts()))]
    pub expert_rows: Ptr<u32>,
    /// Tokens of each source.
    #[len(|c| u64::from(c.ranks))]
    pub n_from: Ptr<u32>,
    /// The row of each entry, `[source][token][k]`, -1 for one that is not here.
    #[len(|c| c.dispatch().entries())]
    pub pos: Ptr<i32>,
    /// Weights of the entries, `[source][token][k]`.
    #[len(|c| c.dispatch().entries())]
    pub weight_from: Ptr<f32>,
    /// Tiles of rows of the experts before each, and of all.
    #[len(|c| u64::from(c.local_experts()) + 1)]
    pub bands: Ptr<u32>,
    /// Tiles of both products, in the order in which blocks draw them, `[tile][2]`.
    #[len(|c| 2 * c.most_tiles())]
    pub list: Ptr<u32>,
    /// How many there are.
    #[len(|_| 1)]
    pub tiles: Ptr<u32>,
    /// Where each row comes from, source * the most tokens + token; all ones between the rows of two experts.
    #[len(|c| c.places().into())]
    pub from: Ptr<u32>,
    /// Where rows arrive.
    #[group(|c| c.dispatch())]
    pub inbox: InboxArgs,
    /// Records, which say where entries go.
    #[group(|c| c.dispatch())]
    pub records: RecordArgs,
    /// Where each expert's rows begin.
    #[group(|c| c.dispatch())]
    pub bases: BaseArgs,
    /// Which ranks are ready for the next packets.
    #[group(|c| c.dispatch())]
    pub ready: ReadyArgs,
    /// Where rows come back.
    #[group(|c| c.combine())]
    pub back: ReturnArgs,

    /// A block has noted where its share of the entries is.
    #[len(|c| c.blocks.into())]
    pub noted: BlockFlags,
    /// Tiles are listed, and places without rows are marked.
    #[len(|_| 1)]
    pub listed: BlockFlags,
    /// A row is in its place.
    #[len(|c| u64::from(c.places()))]
    pub placed: BlockFlags,
    /// A tile of the first products is there, `[band][strip]`.
    #[len(|c| u64::from(c.places() / c.tile_rows * c.first_strips()))]
    pub activated: BlockFlags,
    /// A block has multiplied all its tiles.
    #[len(|c| c.blocks.into())]
    pub multiplied: BlockFlags,
    /// Work counter of the tiles.
    #[len(|_| 1)]
    pub next_tile: Counters,
    /// Counts layers.
    pub epoch: EpochWord,
}

impl MoeLayerArgs {
    /// Those of a dispatch into `rows`.
    fn dispatch(&self) -> DispatchArgs {
        DispatchArgs {
            tokens: self.tokens.clone(),
            expert_load: None,
            rows: Some(self.rows.elements()),
            row_scale: self.row_scale,
            expert_start: self.expert_start,
            expert_rows: self.expert_rows,
            gather: None,
            entry_expert: None,
            empty_id: (-1i32).val(),
            node_first: None,
            routed: None,
            n_from: self.n_from,
            overflow: None,
            needed: None,
            pos: Some(self.pos),
            weight_from: Some(self.weight_from),
            inbox: self.inbox.clone(),
            records: self.records.clone(),
            bases: self.bases.clone(),
            ready: self.ready.clone(),
            next_row: None,
            epoch: self.epoch,
        }
    }

    /// Those of a combine of `y`.
    fn combine(&self) -> CombineArgs {
        CombineArgs {
            y: self.y.elements(),
            n_from: self.n_from,
            entry_expert: None,
            empty_id: (-1i32).val(),
            pos: Some(self.pos),
            weight_from: Some(self.weight_from),
            n: self.tokens.n,
            rows_there: self.tokens.rows_there,
            ids: Some(self.tokens.ids.typed()),
            routed: None,
            weights: self.tokens.weights,
            out: self.out,
            missing: None,
            back: self.back.clone(),
            ready: None,
            next_send: None,
            next_token: None,
            epoch: self.epoch,
        }
    }
}

/// Brings every token to the ranks that own its experts, multiplies it there with each expert's weights, and brings the weighted sums
/// back: what dispatch, two grouped products and combine yield, in one launch.
///
/// Warps beside those that multiply send tokens, and put rows in their places, expert by expert; all blocks bring sums home then. A tile of a first
/// product waits for its own rows alone, and one of a second product for the columns of its rows. Its weights are on their way
/// meanwhile. A rank waits for other ranks' records and rows, and for no barrier.
///
/// Every rank launches it in turn, ranks without tokens too, with n = 0. A token whose ids are all masked gets zeros.
#[kernel]
pub fn moe_layer(c: &MoeLayer, a: &MoeLayerArgs) {
    let (out, back) = (c.dispatch(), c.combine());
    let (sent, returned) = (a.dispatch(), a.combine());
    let epoch = a.epoch.begin();
    let bank = epoch.parity() * out.records();
    let there = dispatch::Launch { c: &out, a: &sent, epoch, bank };
    let home = combine::Launch { c: &back, a: &returned, back: returned.back.returns.open(epoch) };
    role("route", out.route_blocks(), |b| {
        route(there, b);
        b.goes_on_as("home");
    });
    role("bases", 1, |b| {
        lay_out_in_memory(there, b);
        b.split(1, |g| mark_gaps(c, a, g));
        list_tiles(c, a, b);
        a.listed.signal(0, epoch);
        b.goes_on_as("home");
    });
    role("multiply", c.blocks, |b| {
        multiply(c, a, b, epoch);
        b.goes_on_as("home");
    });
    role_beside("multiply", "move", c.move_warps, |g| {
        Sender { c: &out, a: &a.tokens, inbox: &a.inbox, epoch }.send(g);
        expert_major::note_places(there, g, &a.from, &a.noted);
        a.noted.from(0).wait_all(0, c.blocks, 1, epoch);
        put_rows(c, there, a, g);
    });
    role("home", 1, |b| {
        // Where entries are, and what came of them.
        a.noted.from(0).wait_all(0, c.blocks, 1, epoch);
        a.multiplied.from(0).wait_all(0, c.blocks, 1, epoch);
        b.split(back.group_warps, |g| send_back::send(home, g));
        b.split(back.group_warps, |g| sums::receive(home, g));
    });
}

/// Marks the places behind each expert's rows, which no row has.
#[kernel]
fn mark_gaps(c: &MoeLayer, a: &MoeLayerArgs, g: Group) {
    for expert in g.strided(c.local_experts()) {
        let (end, next) = (c.end(a, expert), a.expert_start.get(expert + 1));
        let place = arange(c.align()) + end;
        a.from.scatter(place, splat(u32::MAX, c.align()), place < next);
    }
}

/// Puts rows in their places as they arrive, in the order of places: so those of the first experts are there first.
#[kernel]
fn put_rows(layer: &MoeLayer, l: dispatch::Launch<'_>, a: &MoeLayerArgs, g: Group) {
    a.listed.from(0).wait(0, l.epoch);
    let places = a.expert_start.get(l.c.map().at_most());
    let sources = shared::<u32>("sources", PLACES);
    for first in (0u32.val()..places).step_by(g.count() * PLACES) {
        let place = arange(PLACES) * g.count() + (first + g.index());
        sources.store(0, a.from.gather(place, place < places, u32::MAX));
        for i in 0..PLACES.val() {
            let from = sources.get(i);
            if from != u32::MAX {
                put_row(layer, l, a, from, i * g.count() + (first + g.index()));
            }
        }
    }
}

/// Puts a row in its place.
#[kernel]
fn put_row(layer: &MoeLayer, l: dispatch::Launch<'_>, a: &MoeLayerArgs, from: Val<u32>, place: Val<u32>) {
    let dispatch::Launch { c, epoch, .. } = l;
    let rows = a.rows.elements();
    let (source, token) = (from / c.tokens, from % c.tokens);
    let put = |row: &dyn Arriving| {
        c.pieces().each(0u32.val(), |start, len| {
            rows.store(at(place, c.row()) + start.to_u64(), row.piece(start, len));
            c.scaling().with_piece(start, len, &|words| {
                if let (Some(to), Some(scales)) = (&a.row_scale, row.scales(words)) {
                    words.scatter(&layer.scale_room(), to, place, scales);
                }
            });
        });
    };
    if source == rank() {
        put(&Given { c, a: &a.tokens, token });
    } else {
        put(&Received::wait(&a.inbox, source, token, epoch));
    }
    if let Some(scales) = a.row_scale {
        end_scales(layer, a, &scales, place);
    }
    a.placed.signal(place, epoch);
}

/// Clears the scales behind an expert's last row: a product reads those of whole tiles.
#[kernel]
fn end_scales(c: &MoeLayer, a: &MoeLayerArgs, scales: &AnyPtr, last: Val<u32>) {
    let next = last + 1;
    let of_tile = next % c.tile_rows;
    if of_tile != 0 {
        if a.from.get(next) == u32::MAX {
            let place = arange(c.tile_rows) + next;
            let end = (next + (c.tile_rows - 1)) / c.tile_rows * c.tile_rows;
            for block in 0..(c.hidden / SCALE_BLOCK).val() {
                let zero = scales.typed::<f32>();
                zero.scatter(place + block * c.places(), splat(0.0, c.tile_rows), place < end);
            }
        }
    }
}

/// Lists the tiles of both products in steps: those of an expert's first product, then those of the second product of the expert `lag`
/// before it, so that few of these wait for what others still multiply. Rows of tiles come first, as they share weights.
#[kernel]
fn list_tiles(c: &MoeLayer, a: &MoeLayerArgs, b: Group) {
    let experts = c.local_experts();
    let mut all = var(0u32);
    each_piece(experts + 1, (experts + 1).min(b.warps() * 32 * 4), |start, len| {
        let expert = arange(len) + start;
        let rows = a.expert_rows.gather(expert, expert < experts, 0);
        let bands = (rows + (c.tile_rows - 1)) / c.tile_rows;
        a.bands.store(start, bands.scan_sum(true) + all.get());
        all += bands.sum();
    });
    let (ups, downs) = (c.first_strips(), c.second_strips());
    a.tiles.set(0, all.get() * (ups + downs));
    b.split(1, |g| {
        for expert in g.strided(experts) {
            let (before, behind) = (a.bands.get(expert), a.bands.get(expert.max(c.lag) - c.lag));
            let ahead = a.bands.get((expert + (c.lag + 1)).min(experts));
            list(c, a, expert, (before * ups + behind * downs, ups, false));
            list(c, a, expert, (ahead * ups + before * downs, downs, true));
        }
    });
}

/// Lists the tiles of one product of an expert, from the tile `first` on.
#[kernel]
fn list(c: &MoeLayer, a: &MoeLayerArgs, expert: Val<u32>, (first, strips, second): (Val<u32>, u32, bool)) {
    let (start, end) = (a.expert_start.get(expert), c.end(a, expert));
    let bands = a.bands.get(expert + 1) - a.bands.get(expert);
    for at in (0u32.val()..bands * strips).step_by(LISTED) {
        let tile = arange(LISTED) + at;
        let row = tile % bands * c.tile_rows + start;
        let rows = (splat(0u32, LISTED) + end - row).minimum(c.tile_rows);
        let there = tile < bands * strips;
        let place = (tile + first) * 2;
        a.list.scatter(place, (row / c.tile_rows) | (rows << ROWS), there);
        let what = (tile / bands) | if second { SECOND } else { 0 };
        a.list.scatter(place + 1, what | (expert << EXPERT), there);
    }
}

/// Places whose rows' sources a warp reads at once.
const PLACES: u32 = 32;
/// Tiles that a warp lists at once.
const LISTED: u32 = 64;
/// In a tile's first word, its band and, from this bit on, its rows.
const ROWS: u32 = 24;
/// In its second word, its strip, whether it is of a second product, and, from a bit on, its expert.
const SECOND: u32 = 1 << 15;
const EXPERT: u32 = 16;

/// Makes tiles of both products, as their rows are there.
#[kernel]
fn multiply(c: &MoeLayer, a: &MoeLayerArgs, b: Group, epoch: Epoch) {
    a.listed.from(0).wait(0, epoch);
    let (first, second) = (c.first_product(a), c.second_product(a));
    for i in b.dynamic(a.tiles.get(0), Some(a.next_tile.counter(0))) {
        let (rows, what) = (a.list.get(i * 2), a.list.get(i * 2 + 1));
        let (band, expert, strip) = (rows & ((1 << ROWS) - 1), what >> EXPERT, what & (SECOND - 1));
        let (row, rows) = (band * c.tile_rows, rows >> ROWS);
        let strips = c.first_strips();
        if what & SECOND == 0 {
            a.placed.wait_drawn(row, rows, epoch);
            first.make(b, expert, strip, [row, row + rows]);
            a.activated.signal(band * strips + strip, epoch);
        } else {
            a.activated.wait_drawn(band * strips, strips, epoch);
            second.make(b, expert, strip, [row, row + rows]);
        }
    }
    a.multiplied.signal(b.index(), epoch);
}

impl MoeLayer {
    /// The row behind an expert's last one.
    #[kernel]
    fn end(&self, a: &MoeLayerArgs, expert: Val<u32>) -> Val<u32> {
        let rows = a.expert_rows.get(expert);
        rows + a.expert_start.get(expert)
    }
}
