//! The hook behind an all-reduce: a residual is added, and rows are normalised, and quantised where they are asked for so.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::{Dtype, PACKET_BYTES};

use super::all_reduce::AllReduceArgs;
use super::all_reduce_config::{AllReduce, Hook};
use super::cut::{Part, Piece};
use crate::families::MAX_SHARED_BYTES;
use crate::families::quantise::{self, E4M3_MAX, Method, NVFP4_BLOCK, Quantiser, scale_of};
pub use crate::families::scales::ScaleLayout;
use crate::families::scales::ScaleRoom;

/// Type of the weights of normalised rows.
#[derive(Choice, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Weights {
    /// That of the vectors.
    #[default]
    Elements,
    /// `f32`.
    F32,
}

/// What normalised rows are quantised to, after they are rounded to the type of the vectors.
#[derive(Choice, Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NormQuantise {
    /// Nothing.
    #[default]
    None,
    /// e4m3 with one scale of all rows, which the caller gives.
    Fp8Tensor,
    /// e4m3 with a scale of each row: its largest magnitude over 448, or 1 for a row of zeros.
    Fp8Token,
    /// e2m1 with an e4m3 scale of each 16 elements, over a scale of all rows that the caller gives.
    Nvfp4,
}

/// How rows are normalised, and what becomes of them: fields of a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NormForm {
    /// Type of the weights.
    pub weights: Weights,
    /// Whether rows are multiplied by `1 + weight`.
    pub plus_one: bool,
    /// What rows are quantised to.
    pub quantise: NormQuantise,
    /// Whether rows that are quantised are stored as they were, too.
    pub normalised: bool,
    /// Where the scales of nvfp4 stand.
    pub scale_layout: ScaleLayout,
}

/// What the hook takes and yields besides the reduction.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct NormArgs {
    /// Added to the reduction.
    #[input]
    #[len(|c| c.with_hook(c.elements))]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub residual: Option<AnyPtr>,
    /// What the elements of a normalised row are multiplied with.
    #[input]
    #[len(|c| c.with_hook(c.hidden))]
    #[dtype(|c| c.weight_dtype())]
    pub weight: Option<AnyPtr>,
    /// Added to the mean of squares.
    #[input]
    #[len(|c| c.with_hook(1))]
    pub eps: Option<Ptr<f32>>,
    /// The reduction and the residual, as the next layer adds to it.
    #[output]
    #[len(|c| c.with_hook(c.elements))]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub residual_out: Option<AnyPtr>,
    /// The scale of all rows: a quantised value is a row's over it, and for nvfp4 over the scale of its block, too.
    #[input]
    #[len(|c| c.of_tensor().into())]
    pub scale: Option<Ptr<f32>>,
    /// The normalised rows before they are quantised.
    #[output]
    #[len(|c| if c.normalised { c.elements.into() } else { 0 })]
    #[rows(|c| c.lengths().of_rank())]
    #[dtype(|c| c.dtype)]
    pub normalised: Option<AnyPtr>,
    /// The scales of quantised rows: one of each, or of nvfp4 words of four.
    #[output]
    #[len(|c| c.scale_words())]
    #[dtype(|c| c.scale_dtype())]
    pub scales: Option<AnyPtr>,
}

impl AllReduce {
    /// How many of something there are with a hook.
    fn with_hook(&self, count: u32) -> u64 {
        if self.hook == Hook::None { 0 } else { count.into() }
    }

    /// How rows are normalised.
    pub fn form(&self) -> NormForm {
        let &AllReduce { weights, plus_one, quantise, normalised, scale_layout, .. } = self;
        NormForm { weights, plus_one, quantise, normalised, scale_layout }
    }

    /// Type of the weights.
    pub(super) fn weight_dtype(&self) -> Dtype {
        match self.weights {
            Weights::Elements => self.dtype,
            Weights::F32 => Dtype::F32,
        }
    }

    /// Type and number of the elements of the result: of nvfp4 words.
    pub(super) fn result(&self) -> (Dtype, u32) {
        match self.quantise {
            NormQuantise::None => (self.dtype, self.elements),
            NormQuantise::Fp8Tensor | NormQuantise::Fp8Token => (Dtype::Fp8, self.elements),
            NormQuantise::Nvfp4 => (Dtype::U32, self.elements / 8),
        }
    }

    /// Whether the caller gives a scale of all rows.
    pub(super) fn of_tensor(&self) -> bool {
        matches!(self.quantise, NormQuantise::Fp8Tensor | NormQuantise::Nvfp4)
    }

    /// Words of scales of a row.
    pub(super) fn row_scales(&self) -> u32 {
        match self.quantise {
            NormQuantise::None | NormQuantise::Fp8Tensor => 0,
            NormQuantise::Fp8Token => 1,
            NormQuantise::Nvfp4 => self.hidden / (4 * NVFP4_BLOCK),
        }
    }

    /// Where scales of rows stand.
    pub(super) fn scale_room(&self) -> ScaleRoom {
        let rows = self.elements / self.hidden.max(1);
        ScaleRoom::new(self.scale_layout, self.row_scales(), (rows.into(), 1))
    }

    fn scale_words(&self) -> u64 {
        self.scale_room().all_words()
    }

    /// Type of a word of scales.
    pub(super) fn scale_dtype(&self) -> Dtype {
        if self.quantise == NormQuantise::Nvfp4 { Dtype::U32 } else { Dtype::F32 }
    }

    /// Whether rows can be normalised and quantised so.
    pub(super) fn normalises(&self) -> Result<(), Illegal> {
        let NormForm { weights, plus_one, quantise, normalised, scale_layout } = self.form();
        let hook = self.hook != Hook::None;
        let without = || "its default without a hook";
        Illegal::unless(hook || weights == Weights::Elements, "weights", weights.name(), without)?;
        Illegal::unless(hook || !plus_one, "plus_one", plus_one, without)?;
        Illegal::unless(hook || quantise == NormQuantise::None, "quantise", quantise.name(), without)?;
        let quantises = quantise != NormQuantise::None;
        let allowed = || "false, unless `quantise` says what becomes of rows: `out` has them as they are";
        Illegal::unless(quantises || !normalised, "normalised", normalised, allowed)?;
        let allowed = || "false with `quantise`: quantised rows are shorter than the vector";
        Illegal::unless(!quantises || !self.in_place, "in_place", self.in_place, allowed)?;
        let nvfp4 = quantise == NormQuantise::Nvfp4;
        let allowed = || "row, unless rows are quantised to nvfp4, whose scales are bytes of blocks";
        Illegal::unless(
            nvfp4 || scale_layout == ScaleLayout::Row,
            "scale_layout",
            scale_layout.name(),
            allowed,
        )?;
        let most = MAX_SHARED_BYTES / 4;
        let fits = |hidden: u32| u64::from(Method::nvfp4().shared_words(hidden)) <= most;
        let whole = self.hidden.is_multiple_of(4 * NVFP4_BLOCK);
        Illegal::unless(!nvfp4 || whole && fits(self.hidden), "hidden", self.hidden, || {
            let largest = (1..).map(|n| n * 4 * NVFP4_BLOCK).take_while(|&hidden| fits(hidden)).last();
            let largest = largest.unwrap_or_default();
            format!(
                "a multiple of {} up to {largest} with nvfp4: a block keeps a row in shared memory",
                4 * NVFP4_BLOCK
            )
        })?;
        let fp8 = matches!(quantise, NormQuantise::Fp8Tensor | NormQuantise::Fp8Token);
        Illegal::unless(!fp8 || self.hidden.is_multiple_of(PACKET_BYTES), "hidden", self.hidden, || {
            format!("a multiple of {PACKET_BYTES} where rows are quantised to fp8")
        })
    }
}

/// Where a role puts reduced tiles. It is made once, before loops over tiles.
pub(super) struct Results<'a> {
    c: &'a AllReduce,
    out: AnyPtr,
    norm: &'a NormArgs,
    quantiser: Option<Quantiser>,
}

impl<'a> Results<'a> {
    pub fn new(c: &'a AllReduce, a: &'a AllReduceArgs) -> Results<'a> {
        let by_blocks = c.quantise == NormQuantise::Nvfp4;
        let tensor = || a.norm.scale.map(|scale| scale.get(0));
        let quantiser = by_blocks.then(|| Quantiser::new(Method::nvfp4(), c.hidden).by_tensor(tensor()));
        Results { c, out: a.out, norm: &a.norm, quantiser }
    }

    /// Stores a tile of the reduction as the hook leaves it.
    #[kernel]
    pub fn store(&self, t: &Piece, sum: AnyTile) {
        match t.end {
            _ if self.c.hook == Hook::None => Part::whole().store(&self.out, t, sum),
            None => self.normalise(t, sum),
            // A tile is a row, which a launch has or not.
            Some(end) => {
                if t.at < end {
                    self.normalise(t, sum);
                }
            }
        }
    }

    /// Stores a row.
    fn normalise(&self, t: &Piece, sum: AnyTile) {
        let norm = self.norm;
        let (Some(residual), Some(weight), Some(eps), Some(residual_out)) =
            (norm.residual, norm.weight, norm.eps, norm.residual_out)
        else {
            return;
        };
        let row = AnyTile::rounded(sum.to_f32() + residual.load_f32(t.at, t.len), self.c.dtype);
        residual_out.store(t.at, row);
        let row = row.to_f32();
        let mean = (row * row).sum() / t.len as f32;
        let scale = 1.0f32.val() / (mean + eps.get(0)).sqrt();
        let weight = weight.load_f32(0, t.len);
        let weight = if self.c.plus_one { weight + 1.0 } else { weight };
        let row = AnyTile::rounded(row * scale * weight, self.c.dtype);
        if let Some(normalised) = norm.normalised {
            normalised.store(t.at, row);
        }
        self.quantise(t, row);
    }

    /// Stores a normalised row as it is asked for.
    fn quantise(&self, t: &Piece, row: AnyTile) {
        let store = |x: Tile<f32>| self.out.store(t.at, AnyTile::rounded(x, Dtype::Fp8));
        match (self.c.quantise, self.norm.scale, self.norm.scales, self.quantiser) {
            (NormQuantise::Fp8Tensor, Some(scale), ..) => store(row.to_f32() * (1.0f32.val() / scale.get(0))),
            (NormQuantise::Fp8Token, _, Some(scales), _) => {
                let row = row.to_f32();
                let scale = scale_of(row.abs().max(), E4M3_MAX);
                self.c.scale_room().store(&scales, t.index, splat(scale, 1).into());
                store(row / scale);
            }
            (NormQuantise::Nvfp4, _, Some(scales), Some(quantiser)) => {
                let words = self.c.row_scales();
                let piece = quantise::Piece { len: t.len, scales: words, sent: words, of_row: None };
                let (row, words) = quantiser.quantise(row, piece);
                self.out.store(t.index * (t.len / 8), row);
                self.c.scale_room().store(&scales, t.index, words);
            }
            _ => self.out.store(t.at, row),
        }
    }
}
