//! The configuration of a layer: what comes from the problem, what tuning chooses, which points are legal.

use peerwarp_codegen::family::{Family, Illegal, Legal};
use peerwarp_codegen::ir::Dtype;

use super::combine_config::{Combine, CombinePlan};
use super::config::{Dispatch, DispatchPlan};
use super::deliver::Hook;
use super::layer::MoeLayerArgs;
use super::layout::Layout;
use super::limits::{resident, topk_of};
use super::plan::{Bases, Count, Own, Schedule, Then};
use super::protocol::Protocol;
use super::scales::{ScaleLayout, ScaleRoom};
use crate::families::matmul::{Activation, Output, Scales, order};
use crate::families::moe::{MoeKey, MoePlan, MoeShape, MoeTuning, RowDtype, SCALE_BLOCK};

/// Records of all ranks at most: a block has room for the tokens of each.
const MOST_RECORDS: u32 = 4096;

/// Blocks that bring sums home, as far as rules ask: all do.
const HOME_BLOCKS: u32 = 64;

/// How rows stand: each expert's from a multiple of the rows of the largest tile on.
const LAYOUT: Layout = Layout::ExpertMajor128;

/// Configuration of [`moe_layer`](super::moe_layer()).
#[derive(Family, Clone, Debug, PartialEq)]
#[family(name = "moe_layer", kernel = super::layer::moe_layer, args = MoeLayerArgs, warps = warps, revision = 2)]
pub struct MoeLayer {
    /// Elements of a row.
    #[key(short = "h", range = 8..=65536, multiple_of = 8)]
    pub hidden: u32,
    /// Columns of the rows between the two products.
    #[key(short = "i", range = 16..=65536, multiple_of = 16)]
    pub inter: u32,
    /// Experts of all ranks together.
    #[key(short = "e", range = 1..=65535)]
    pub experts: u32,
    /// Expert ids of a token.
    #[key(short = "k", range = 1..=32)]
    pub topk: u32,
    /// Tokens of a rank at most.
    #[key(short = "t", range = 1..=65536, covers)]
    pub tokens: u32,
    /// World size.
    #[key(short = "r", range = 1..=64, ranks)]
    pub ranks: u32,
    /// Type of rows and weights; sums are of `f32`, and rounded after each product.
    /// With fp8 (e4m3) rows have a scale for each 128 columns, weights one for each 128 rows and columns, and the rest is bf16.
    #[key(values = [Dtype::Bf16, Dtype::Fp16, Dtype::Fp8])]
    pub dtype: Dtype,
    /// The function of the first product.
    #[key(short = "f", default = Activation::Swiglu, omitted)]
    pub activation: Activation,
    /// Whether each expert has vectors that are added to the rows of its products.
    #[key(short = "b", default = false, omitted)]
    pub bias: bool,
    /// Warps of a block.
    #[tune(short = "w", values = [4, 8], default = |key| order::warps(tile_rows(key)))]
    pub warps: u32,
    /// Rows of a tile of a product.
    #[tune(short = "tr", values = [64, 128], default = |key| tile_rows(key))]
    pub tile_rows: u32,
    /// Columns of a tile of a product.
    #[tune(short = "tc", shrinks, values = [64, 128, 256], default = |key| tile_columns(key))]
    pub tile_columns: u32,
    /// Pieces of 64 columns in shared memory at once.
    #[tune(short = "st", shrinks, values = [2, 3, 4, 5, 6, 8, 10, 12], default = |key| order::stages_of_groups(tile_rows(key), tile_columns(key)))]
    pub stages: u32,
    /// Experts whose first products come before an expert's second one.
    #[tune(short = "lag", values = [1, 2, 4, 8, 16, 32, 64], default = |key| lag(key))]
    pub lag: u32,
    /// Warps of a block that send tokens and put those of others in their places, beside those that multiply.
    #[tune(short = "mw", values = [1, 2, 3], default = 1)]
    pub move_warps: u32,
    /// Blocks that multiply.
    #[tune(short = "bl", shrinks, range = 1..=1024, default = |key| blocks(key))]
    pub blocks: u32,
}

/// Experts of a rank.
fn local_experts(key: &MoeLayerKey) -> u32 {
    key.experts.div_ceil(key.ranks)
}

/// Columns of a first product, of which an activation makes so many.
const fn first_columns(activation: Activation, inter: u32) -> u32 {
    if activation.is_gated() { 2 * inter } else { inter }
}

/// Rows that come to a rank, if experts are equally popular.
fn rows(key: &MoeLayerKey) -> u32 {
    key.tokens.saturating_mul(key.topk)
}

fn tile_rows(key: &MoeLayerKey) -> u32 {
    order::tile_rows_of_groups(rows(key).div_ceil(local_experts(key)), local_experts(key))
}

/// Rows of tiles of an expert.
fn bands(key: &MoeLayerKey) -> u32 {
    rows(key).div_ceil(local_experts(key)).div_ceil(tile_rows(key)).max(1)
}

fn tile_columns(key: &MoeLayerKey) -> u32 {
    let bands = local_experts(key).min(rows(key)) * bands(key);
    let columns = key.hidden.max(2 * key.inter);
    let weights = u64::from(local_experts(key)) * u64::from(columns) * u64::from(key.hidden.min(key.inter));
    let rows = tile_rows(key);
    // Two blocks of 64 x 128 are 1 to 4 % faster than one of 64 x 256.
    let most = if rows == 64 { 128 } else { order::most_columns(key.dtype) };
    order::columns_of_groups([rows, bands], [columns, key.hidden], weights, most)
}

/// So many that the second products of an expert begin when its first ones have long ended on all blocks (`bench/results/products.md`,
/// layers in one launch).
fn lag(key: &MoeLayerKey) -> u32 {
    let columns = first_columns(key.activation, key.inter) + key.hidden;
    let tiles = bands(key) * columns.div_ceil(tile_columns(key));
    (6 * resident_blocks(key)).div_ceil(tiles).next_power_of_two().clamp(1, 64)
}

/// Blocks that tell ranks where entries go.
fn tellers(tokens: u32) -> u32 {
    (tokens / 1024).clamp(1, 4)
}

/// Blocks that all SMs have at once.
fn resident_blocks(key: &MoeLayerKey) -> u32 {
    let (rows, columns) = (tile_rows(key), tile_columns(key));
    order::resident_blocks(rows, columns, order::stages_of_groups(rows, columns))
}

/// The others, but for one that lays rows out, and one that brings sums home alone.
fn blocks(key: &MoeLayerKey) -> u32 {
    resident_blocks(key) - tellers(key.tokens) - 2
}

impl MoeLayer {
    /// The dispatch that it begins with.
    pub(super) fn dispatch(&self) -> Dispatch {
        self.operation().dispatch()
    }

    /// The combine that it ends with.
    pub(super) fn combine(&self) -> Combine {
        self.operation().combine()
    }

    /// The problem's shape.
    pub(in crate::families::moe) fn shape(&self) -> MoeShape {
        let MoeLayer { hidden, experts, topk, tokens, ranks, .. } = *self;
        let dtype = match self.dtype {
            Dtype::Fp8 => RowDtype::Fp8,
            Dtype::Fp16 => RowDtype::Fp16,
            _ => RowDtype::Bf16,
        };
        MoeShape { hidden, experts, topk, tokens, ranks, dtype }
    }

    /// What moves its rows.
    fn operation(&self) -> MoeTuning {
        let MoeLayer { tokens, warps, .. } = *self;
        let key = MoeKey { hook: Hook::Custom, layout: LAYOUT, ..MoeKey::new(self.shape()) };
        let dispatch = DispatchPlan {
            warps,
            // Warps beside those that multiply send and receive.
            send_blocks: 1,
            recv_blocks: 1,
            group_warps: 1,
            // Where an SM has two blocks, lanes that move rows have registers for no more.
            vectors: if self.blocks > order::SMS { 2 } else { 4 },
            chunk: self.chunk(),
            count: Some(Count::Sender),
            bases: Some(Bases::Memory),
            schedule: Some(Schedule::Strided),
            own: Some(Own::InPlace),
            route_blocks: Some(tellers(tokens)),
            after_route: Some(Then::Leave),
            after_send: Some(Then::Leave),
            ..DispatchPlan::default()
        };
        let combine = CombinePlan {
            warps,
            send_blocks: HOME_BLOCKS,
            recv_blocks: HOME_BLOCKS,
            group_warps: warps,
            vectors: 2,
            batch: 1,
            schedule: Some(Schedule::Strided),
            sums: Some(Schedule::Strided),
            ..CombinePlan::default()
        };
        let plan = MoePlan { dedup: true, way: Protocol::Flags.into(), dispatch, combine, nodes: None };
        MoeTuning { key, plan }
    }

    /// Tokens of a record: as many as a block has at once, and more where there would be too many records.
    fn chunk(&self) -> u32 {
        let entries = self.warps * 32 * super::config::MAX_A_LANE;
        let most = (entries / self.topk).max(1);
        let mut chunk = 1 << most.min(self.tokens.next_power_of_two()).min(512).ilog2();
        while self.ranks * self.tokens.div_ceil(chunk) > MOST_RECORDS {
            chunk *= 2;
        }
        chunk
    }

    /// Experts of a rank at most.
    pub(in crate::families::moe) fn local_experts(&self) -> u32 {
        self.dispatch().map().at_most()
    }

    /// Columns of the first products.
    pub(in crate::families::moe) fn first_columns(&self) -> u32 {
        first_columns(self.activation, self.inter)
    }

    /// Type of results, and of what is added to sums.
    pub(in crate::families::moe) fn wide(&self) -> Dtype {
        Output::Wide.dtype(self.dtype)
    }

    /// Scales of the operands of both products.
    pub(in crate::families::moe) fn scales(&self) -> Scales {
        if self.dtype == Dtype::Fp8 { Scales::Block } else { Scales::None }
    }

    /// What the rows between the products are rounded to.
    pub(super) fn between(&self) -> Output {
        if self.dtype == Dtype::Fp8 { Output::Fp8 } else { Output::Wide }
    }

    /// Scales of the weights of either product.
    pub(in crate::families::moe) fn scale_counts(&self) -> [u64; 2] {
        let of = |n, k, activation| self.scales().counts([0, n, k], self.local_experts(), activation)[1];
        [
            of(self.first_columns(), self.hidden, self.activation),
            of(self.hidden, self.inter, Activation::None),
        ]
    }

    /// Where the scales of the rows that came stand: one of each 128 columns behind the other, of all rows, as a product takes them.
    pub(super) fn scale_room(&self) -> ScaleRoom {
        ScaleRoom::new(ScaleLayout::Column, self.dispatch().scales(), (self.places().into(), 1))
    }

    /// Scales of the rows between the products.
    pub(super) fn between_scales(&self) -> u32 {
        self.between().scales(self.places(), self.first_columns(), self.activation)
    }

    /// Parts of the columns of a first product, each of which a block makes at once.
    pub(super) fn first_strips(&self) -> u32 {
        let beside = self.between().beside(self.activation, self.tile_columns);
        self.first_columns().div_ceil(beside * self.tile_columns)
    }

    /// Those of a second product.
    pub(super) fn second_strips(&self) -> u32 {
        self.hidden.div_ceil(self.tile_columns)
    }

    /// Rows that there is room for.
    pub(super) fn places(&self) -> u32 {
        self.dispatch().room().places as u32
    }

    /// The most tiles that both products have together.
    pub(super) fn most_tiles(&self) -> u64 {
        let strips = self.first_strips() + self.second_strips();
        u64::from(self.places() / self.tile_rows) * u64::from(strips)
    }

    /// What each expert's first row is a multiple of: no tile has rows of two experts.
    pub(super) fn align(&self) -> u32 {
        LAYOUT.align().expect("rows of experts are packed")
    }

    /// Blocks of a launch.
    fn all_blocks(&self) -> u32 {
        self.dispatch().route_blocks() + 2 + self.blocks
    }
}

impl Legal for MoeLayer {
    fn legal(&self) -> Result<(), Illegal> {
        topk_of(self.topk, self.experts)?;
        order::whole_rows(self.hidden, self.inter, self.dtype)?;
        for (field, columns) in [("hidden", self.hidden), ("inter", self.inter)] {
            let allowed = || "a multiple of 128 with dtype = fp8: a scale is of 128 columns";
            let whole = columns.is_multiple_of(SCALE_BLOCK);
            Illegal::unless(self.dtype != Dtype::Fp8 || whole, field, columns, allowed)?;
        }
        order::columns_fit(self.tile_columns, self.dtype)?;
        self.activation.legal(self.first_columns())?;
        let rows = u64::from(self.local_experts()) * u64::from(self.first_columns().max(self.hidden));
        let allowed = || "fewer: rows of all experts' weights are counted in 32 bits".to_owned();
        Illegal::unless(rows >> 32 == 0, "experts", self.experts, allowed)?;
        let parts = u64::from(self.places()) * u64::from(self.first_strips());
        let allowed = || "fewer: scales are counted in 32 bits".to_owned();
        let scales = self.scale_room().all_words().max(self.scale_counts()[0]).max(self.scale_counts()[1]);
        Illegal::unless(scales >> 32 == 0, "tokens", self.tokens, allowed)?;
        let allowed = || "fewer: tiles, and rows of tiles, are counted in 31 bits".to_owned();
        Illegal::unless(self.most_tiles().max(parts) >> 31 == 0, "tokens", self.tokens, allowed)?;
        order::legal(self.tile_rows, self.tile_columns, self.warps, self.stages)?;
        self.dispatch().fits()?;
        self.combine().legal()?;
        let most = order::resident_blocks(self.tile_rows, self.tile_columns, self.stages);
        resident("blocks", self.blocks, self.all_blocks(), most)
    }
}
