//! The two products of an expert's rows.

use peerwarp_codegen::dsl::prelude::*;

use super::layer::MoeLayerArgs;
use super::layer_config::MoeLayer;
use crate::families::matmul::{Activation, Output, Product, Scales, Stored, epilogue};

/// One of both: rows of all experts times each expert's weights.
pub(super) struct ExpertProduct {
    scales: Scales,
    activation: Activation,
    output: Output,
    x: AnyMatrix,
    w: AnyMatrix,
    /// Scales of both.
    of: [Option<Ptr<f32>>; 2],
    bias: Option<AnyPtr>,
    out: AnyMatrix,
    out_scales: Option<AnyMatrix>,
    /// All rows, rows of an expert's weights, and columns of both.
    shape: [u32; 3],
    tile: [u32; 2],
    stages: u32,
}

impl MoeLayer {
    /// Rows that came, times gates and values.
    pub(super) fn first_product(&self, a: &MoeLayerArgs) -> ExpertProduct {
        ExpertProduct {
            scales: self.scales(),
            activation: self.activation,
            output: self.between(),
            x: a.rows,
            w: a.w1,
            of: [a.row_scale.map(AnyPtr::typed), a.w1_scales],
            bias: a.b1,
            out: a.between,
            out_scales: a.between_scales,
            shape: [self.places(), self.first_columns(), self.hidden],
            tile: [self.tile_rows, self.tile_columns],
            stages: self.stages,
        }
    }

    /// What the first one and the activation make, times the second weights.
    pub(super) fn second_product(&self, a: &MoeLayerArgs) -> ExpertProduct {
        ExpertProduct {
            activation: Activation::None,
            output: Output::Wide,
            x: a.between,
            w: a.w2,
            of: [a.between_scales.map(|scales| scales.elements().typed()), a.w2_scales],
            bias: a.b2,
            out: a.y,
            out_scales: None,
            shape: [self.places(), self.hidden, self.inter],
            ..self.first_product(a)
        }
    }
}

impl ExpertProduct {
    /// Makes what a strip of columns has of a tile's rows, which begin at `row` and are an expert's up to `end`.
    #[track_caller]
    pub fn make(&self, b: Group, expert: Val<u32>, strip: Val<u32>, [row, end]: [Val<u32>; 2]) {
        let ([all, n, _], [rows, columns]) = (self.shape, self.tile);
        let beside = self.output.beside(self.activation, columns);
        let x = self.x.rows(row, rows).known_below(end);
        let tiles = Output::tiles(beside, (strip * (beside * columns), columns), |column| {
            let weights = expert * n + column;
            let w = self.w.rows(weights, columns).known_below((expert + 1) * n);
            let product = Product {
                scales: self.scales,
                activation: self.activation,
                rows: [x, w],
                of: self.of,
                index: None,
                at: [row, column],
                group: expert,
                tile: self.tile,
                shape: self.shape,
                stages: self.stages,
                told: true,
            };
            epilogue(self.bias, self.activation, weights, self.tile, product.sums(b))
        });
        let (out, scales, activation) = (self.out, self.out_scales, self.activation);
        // The product that comes next reads scales of whole tiles.
        let end = scales.is_none().then_some(end);
        Stored { out, scales, activation, all, row, rows, end }.store(tiles);
    }
}
