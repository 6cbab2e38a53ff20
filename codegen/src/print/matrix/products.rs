//! Products of warpgroups, as their template is rendered.

use serde::Serialize;

use crate::family::{MatrixUnit, Target};
use crate::ir::{Dot, Dtype, Kernel, MatrixOp, OpKind, Rows, Type, scale_words};
use crate::print::analysis::signals::is_paired;
use crate::print::layout::fragments::WGMMA_COLUMNS;
use crate::print::text::prim;

/// Pieces of the operands of products, as templates say them: in numbers, unless some are of fp8 and have other ones.
#[derive(Debug, Serialize)]
pub(crate) struct PiecesText {
    /// Columns of a piece, in functions of the element type and of the ring.
    columns: &'static str,
    ring_columns: &'static str,
    /// One less.
    last: &'static str,
    /// Columns of 16 bytes, and of 8.
    unit: &'static str,
    half: &'static str,
    /// Whether some are of fp8, or of words.
    pub fp8: bool,
    /// Whether sums are made in tensor memory.
    tensor: bool,
    /// Whether products are `wmma`, of warps of 32 lanes.
    gfx12: bool,
    /// Whether lists name rows of left operands.
    pub gathers: bool,
    /// Whether some have scales of blocks.
    pub scaled: bool,
    /// Whether two neighbouring blocks multiply together, and the rows of the right operand that a block brings of N.
    pub paired: bool,
    right: &'static str,
}

impl PiecesText {
    pub fn of(kernel: &Kernel, target: Target) -> PiecesText {
        let tensor = target.matrix_unit() == MatrixUnit::TensorMemory;
        let gfx12 = target.is_gfx12();
        let fp8 = operands(kernel).any(|(_, dtype)| matches!(dtype, Dtype::Fp8 | Dtype::U32));
        let [columns, ring_columns, last, unit, half] = if fp8 {
            [
                "piece_columns<T>",
                "Ring::columns",
                "piece_columns<T> - 1",
                "unit_columns<T>",
                "unit_columns<T> / 2",
            ]
        } else {
            ["64", "64", "63", "8", "4"]
        };
        let (gathers, scaled) =
            (any_left(kernel, |a| a.list.is_some()), any_left(kernel, |a| a.scales.is_some()));
        let paired = is_paired(kernel);
        let right = if paired { "N / 2" } else { "N" };
        PiecesText {
            columns,
            ring_columns,
            last,
            unit,
            half,
            fp8,
            tensor,
            gfx12,
            gathers,
            scaled,
            paired,
            right,
        }
    }
}

/// Whether something holds for the left operand of a product.
fn any_left(kernel: &Kernel, holds: fn(&Rows) -> bool) -> bool {
    let of = |kind: &OpKind| matches!(kind, OpKind::Matrix(MatrixOp::Dot(Dot { a, .. })) if holds(a));
    kernel.ops.iter().any(|op| of(&op.kind))
}

/// Columns of the results of products, and types of operands.
fn operands(kernel: &Kernel) -> impl Iterator<Item = (u32, Dtype)> {
    kernel.ops.iter().filter_map(|op| {
        let OpKind::Matrix(MatrixOp::Dot(Dot { out, a, .. })) = &op.kind else { return None };
        let (_, columns) = kernel.ty(*out).shape()?;
        Some((columns, kernel.params[a.place.param()?.index()].dtype))
    })
}

/// What the template of products in tensor memory is rendered with: the types of operands, each once.
#[derive(Debug, Serialize)]
pub(crate) struct TensorText {
    operands: Vec<OperandText>,
    /// Those with scales of blocks.
    scaled: Vec<ScaledText>,
    /// Blocks that an instruction multiplies for: whether two, and how many.
    paired: bool,
    group: u32,
}

/// A type of operands with scales of blocks: how an instruction has it and the scales' number in its name, and what the word that
/// describes a product says of both (PTX ISA 9.0, table 43).
#[derive(Debug, Serialize)]
struct ScaledText {
    dtype: &'static str,
    kind: &'static str,
    vector: &'static str,
    types: &'static str,
}

impl ScaledText {
    fn of(dtype: Dtype) -> ScaledText {
        let (kind, vector, types) = match scale_words(dtype) {
            // e4m3 and ue8m0, or e2m1 and ue4m3.
            1 => ("mxf8f6f4", "1X", "1u << 23"),
            _ => ("mxf4nvf4", "4X", "1u << 7 | 1u << 10"),
        };
        ScaledText { dtype: prim::type_name(dtype), kind, vector, types }
    }
}

/// A type of operands: how an instruction has it in its name, and its number in the word that describes a product (PTX ISA 9.0,
/// 9.7.16.4.2).
#[derive(Debug, PartialEq, Serialize)]
struct OperandText {
    dtype: &'static str,
    kind: &'static str,
    number: u32,
}

impl TensorText {
    /// Those of a kernel.
    pub fn of(kernel: &Kernel) -> TensorText {
        let mut found = vec![];
        for (_, dtype) in operands(kernel).filter(|(_, dtype)| *dtype != Dtype::U32) {
            let (kind, number) = match dtype {
                Dtype::Fp8 => ("f8f6f4", 0),
                Dtype::Bf16 => ("f16", 1),
                Dtype::Fp16 | Dtype::Bool | Dtype::I32 | Dtype::U32 | Dtype::U64 | Dtype::F32 => ("f16", 0),
            };
            let operand = OperandText { dtype: prim::type_name(dtype), kind, number };
            if !found.contains(&operand) {
                found.push(operand);
            }
        }
        let types = [Dtype::Fp8, Dtype::U32].into_iter();
        let has = |dtype: &Dtype| operands(kernel).any(|(_, of)| of == *dtype);
        let some = any_left(kernel, |a| a.scales.is_some());
        let scaled = types.filter(|dtype| some && has(dtype)).map(ScaledText::of).collect();
        let paired = is_paired(kernel);
        TensorText { operands: found, scaled, paired, group: if paired { 2 } else { 1 } }
    }
}

/// What the template of a warpgroup's products of fp8 is rendered with.
#[derive(Debug, Serialize)]
pub(crate) struct Fp8ProductsText {
    products: Vec<ProductText>,
}

impl Fp8ProductsText {
    /// Columns that are multiplied at once: registers hold the sums of a piece beside all others.
    const MOST: u32 = 128;

    /// Whether all columns of sums are multiplied at once.
    pub fn has(sums: Type) -> bool {
        sums.shape().is_some_and(|(_, columns)| columns <= Self::MOST)
    }

    /// Those of a kernel, each once.
    pub fn of(kernel: &Kernel) -> Fp8ProductsText {
        let products = operands(kernel).filter(|(_, dtype)| *dtype == Dtype::Fp8);
        Fp8ProductsText { products: once(products.map(|(columns, dtype)| (columns.min(Self::MOST), dtype))) }
    }
}

/// The products of warpgroups among some, each once.
fn once(products: impl Iterator<Item = (u32, Dtype)>) -> Vec<ProductText> {
    let mut found = vec![];
    for (columns, dtype) in products.filter(|(columns, _)| WGMMA_COLUMNS.contains(columns)) {
        let product = ProductText::new(columns, dtype);
        if !found.contains(&product) {
            found.push(product);
        }
    }
    found
}

/// What the template of a warpgroup's products of 16-bit types is rendered with.
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
        ProductsText { products: once(operands(kernel).filter(|(_, dtype)| *dtype != Dtype::Fp8)) }
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
