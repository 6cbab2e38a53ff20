//! Operations on a tile's sums before they are rounded.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::{Choice, Illegal};
use peerwarp_codegen::ir::COLUMN_BLOCK;

/// What becomes of a sum of products, with what is added to it.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// Nothing.
    None,
    /// What is below zero becomes zero.
    Relu,
    /// `x / (1 + e^-x)`.
    Silu,
    /// `g / (1 + e^-g) * u` of gates `g` and values `u`: 16 rows of `w` for gates, 16 for values, and so on. The result has half of
    /// the columns.
    Swiglu,
    /// The same as gpt-oss has it: `g / (1 + e^(-1.702 g)) * (u + 1)`, with `g` at most 7 and `u` from -7 to 7.
    SwigluClamped,
}

/// The sums of a tile.
#[derive(Clone, Copy, Debug)]
pub(in crate::families) enum Sums {
    All(Tile<f32>),
    /// Gates, and the values that they open.
    Gated([Tile<f32>; 2]),
}

impl Sums {
    /// As many as there are, in order.
    pub fn parts(self) -> Vec<Tile<f32>> {
        match self {
            Sums::All(sums) => vec![sums],
            Sums::Gated(both) => both.into(),
        }
    }
}

impl Activation {
    /// Whether sums are gates and values.
    pub const fn is_gated(self) -> bool {
        matches!(self, Activation::Swiglu | Activation::SwigluClamped)
    }

    /// Columns of the result, of so many columns of sums.
    pub const fn columns(self, sums: u32) -> u32 {
        if self.is_gated() { sums / 2 } else { sums }
    }

    /// Whether so many columns of sums are whole pairs of blocks.
    pub(in crate::families) fn legal(self, n: u32) -> Result<(), Illegal> {
        let unit = 2 * COLUMN_BLOCK;
        let allowed = || {
            format!(
                "a multiple of {unit} with gates: {COLUMN_BLOCK} rows of w for gates, then as many for values"
            )
        };
        Illegal::unless(!self.is_gated() || n.is_multiple_of(unit), "n", n, allowed)
    }

    /// The column of the result where that of sums from `column` on begins.
    pub(in crate::families) fn place(self, column: Val<u32>) -> Val<u32> {
        if self.is_gated() { column / 2 } else { column }
    }

    /// Sums with gates and values apart.
    pub(in crate::families) fn apart(self, sums: Tile<f32>) -> Sums {
        if self.is_gated() { Sums::Gated(sums.deinterleave().into()) } else { Sums::All(sums) }
    }

    /// Of a matrix of sums.
    fn of(self, sums: Sums) -> Tile<f32> {
        match (self, sums) {
            (Activation::Relu, Sums::All(sums)) => sums.maximum(0.0),
            (Activation::Silu, Sums::All(sums)) => sums / ((-sums).exp() + 1.0),
            (Activation::SwigluClamped, Sums::Gated([gate, up])) => {
                let (gate, up) = (gate.minimum(7.0), up.maximum(-7.0).minimum(7.0));
                gate / ((gate * -1.702).exp() + 1.0) * (up + 1.0)
            }
            (_, Sums::Gated([gate, up])) => gate / ((-gate).exp() + 1.0) * up,
            (_, Sums::All(sums)) => sums,
        }
    }
}

/// What is stored of a tile's sums: with the bias added to each row, if there is one, whose element `at` is that of the first column.
#[kernel]
pub(in crate::families) fn epilogue(
    bias: Option<AnyPtr>,
    activation: Activation,
    at: Val<u32>,
    tile: [u32; 2],
    sums: Sums,
) -> Tile<f32> {
    let sums = match (bias, sums) {
        (Some(bias), Sums::All(sums)) => activation.apart(sums + bias.load_rows_f32(at, tile)),
        (Some(bias), Sums::Gated([gate, up])) => {
            let (of_gate, of_up) = bias.load_rows_f32(at, tile).deinterleave();
            Sums::Gated([gate + of_gate, up + of_up])
        }
        (None, Sums::All(sums)) => activation.apart(sums),
        (None, gated) => gated,
    };
    activation.of(sums)
}
