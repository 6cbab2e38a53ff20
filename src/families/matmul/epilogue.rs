//! What becomes of the sums of a tile before they are rounded.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;

/// What becomes of a sum of products, with what is added to it.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// What is below zero becomes zero.
    Relu,
    /// `x / (1 + e^-x)`.
    Silu,
}

impl Activation {
    /// Of a matrix of sums.
    fn of(self, sums: Tile<f32>) -> Tile<f32> {
        match self {
            Activation::None => sums,
            Activation::Relu => sums.maximum(0.0),
            Activation::Silu => sums / ((-sums).exp() + 1.0),
        }
    }
}

/// What is stored of a tile's sums, whose columns begin with `column`: with the bias added to each row, if there is one.
#[kernel]
pub(super) fn epilogue(
    bias: Option<AnyPtr>,
    activation: Activation,
    column: Val<u32>,
    tile: [u32; 2],
    sums: Tile<f32>,
) -> Tile<f32> {
    let sums = match bias {
        Some(bias) => sums + bias.load_rows_f32(column, tile),
        None => sums,
    };
    activation.of(sums)
}
