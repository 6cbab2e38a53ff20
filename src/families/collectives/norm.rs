//! The hook behind an all-reduce: a residual is added, and rows are normalised.

use peerwarp_codegen::dsl::prelude::*;

use super::all_reduce_config::AllReduce;
use super::cut::{Part, Piece};

/// What the hook takes and yields besides the reduction.
#[derive(KernelArgs)]
#[args(config = AllReduce)]
pub struct NormArgs {
    /// Added to the reduction.
    #[input]
    #[len(|c| c.with_hook(c.elements))]
    #[dtype(|c| c.dtype)]
    pub residual: Option<AnyPtr>,
    /// What the elements of a normalised row are multiplied with.
    #[input]
    #[len(|c| c.with_hook(c.hidden))]
    #[dtype(|c| c.dtype)]
    pub weight: Option<AnyPtr>,
    /// Added to the mean of squares.
    #[input]
    #[len(|c| c.with_hook(1))]
    pub eps: Option<Ptr<f32>>,
    /// The reduction and the residual, as the next layer adds to it.
    #[output]
    #[len(|c| c.with_hook(c.elements))]
    #[dtype(|c| c.dtype)]
    pub residual_out: Option<AnyPtr>,
}

impl NormArgs {
    /// Stores a tile of the reduction as the hook leaves it.
    pub(super) fn store(&self, out: &AnyPtr, t: &Piece, sum: AnyTile) {
        let all = Part::whole();
        let (Some(residual), Some(weight), Some(eps), Some(residual_out)) =
            (self.residual, self.weight, self.eps, self.residual_out)
        else {
            return all.store(out, t, sum);
        };
        // A tile is a row.
        let row = AnyTile::rounded(sum.to_f32() + residual.load_f32(t.at, t.len), out.dtype());
        residual_out.store(t.at, row);
        let row = row.to_f32();
        let mean = (row * row).sum() / t.len as f32;
        let scale = 1.0f32.val() / (mean + eps.get(0)).sqrt();
        out.store_f32(t.at, row * scale * weight.load_f32(0, t.len));
    }
}
