//! Products of warpgroups, as their template is rendered.

use serde::Serialize;

use crate::ir::{Dot, Dtype, Kernel, MatrixOp, OpKind};
use crate::print::layout::fragments::WGMMA_COLUMNS;
use crate::print::text::prim;

/// What the template of a warpgroup's products is rendered with.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct ProductsText {
    products: Vec<ProductText>,
}

/// A product of 64 rows and so many columns.
#[derive(Debug, PartialEq, Serialize)]
struct ProductText {
    columns: u32,
    dtype: &'static str,
    ptx: &'static str,
    /// Pairs of sums of a lane.
    steps: u32,
    /// The operands of the sums, a line each eight.
    registers: Vec<String>,
    outputs: Vec<String>,
    /// Numbers of the other operands.
    a: u32,
    b: u32,
}

impl ProductsText {
    /// Those of a kernel, each once.
    pub fn of(kernel: &Kernel) -> ProductsText {
        let mut products = vec![];
        for op in &kernel.ops {
            let OpKind::Matrix(MatrixOp::Dot(Dot { out, a, .. })) = &op.kind else { continue };
            let (Some((_, columns)), Some(param)) = (kernel.ty(*out).shape(), a.place.param()) else {
                continue;
            };
            let product = ProductText::new(columns, kernel.params[param.index()].dtype);
            if WGMMA_COLUMNS.contains(&columns) && !products.contains(&product) {
                products.push(product);
            }
        }
        ProductsText { products }
    }
}

impl ProductText {
    fn new(columns: u32, dtype: Dtype) -> ProductText {
        let sums = columns / 2;
        let lines = |each: &dyn Fn(u32) -> String, per_line: u32| -> Vec<String> {
            let line =
                |first: u32| (first..sums.min(first + per_line)).map(each).collect::<Vec<_>>().join(", ");
            let end = |first: u32| if first + per_line < sums { ", " } else { "" };
            (0..sums).step_by(per_line as usize).map(|first| line(first) + end(first)).collect()
        };
        let output = |n: u32| format!("\"+f\"(sums[{}][{}])", n / 2, n % 2);
        ProductText {
            columns,
            dtype: prim::type_name(dtype),
            ptx: if dtype == Dtype::Fp16 { "f16" } else { "bf16" },
            steps: sums / 2,
            registers: lines(&|n| format!("%{n}"), 16),
            outputs: lines(&output, 4).into_iter().map(|line| line.trim_end().to_owned()).collect(),
            a: sums,
            b: sums + 1,
        }
    }
}
