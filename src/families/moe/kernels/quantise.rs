//! Rows that are quantised on their way out: by their sender, so that what travels is small, and once for all ranks that get them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

use super::config::Dispatch;
use super::dispatch::TokenArgs;
use super::pieces::each_piece;
use crate::families::moe::{RowDtype, SCALE_BLOCK};
use crate::families::quantise::{self, MX_BLOCK, Method, Quantiser};

pub use crate::families::quantise::ScaleRounding;

/// What dispatch quantises rows from.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum Quantise {
    /// Nothing: rows are given as they are sent, with their scales.
    None,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
}

impl Quantise {
    /// Type of the rows that are given, where they are not given as they are sent.
    pub const fn from(self) -> Option<Dtype> {
        match self {
            Quantise::None => None,
            Quantise::Bf16 => Some(Dtype::Bf16),
            Quantise::Fp16 => Some(Dtype::Fp16),
        }
    }
}

/// What dispatch can quantise rows to.
const MADE: [RowDtype; 6] =
    [RowDtype::Fp8, RowDtype::Fp8Ue8m0, RowDtype::Fp8Fnuz, RowDtype::Int8, RowDtype::Mxfp8, RowDtype::Nvfp4];

/// Whether dispatch can quantise rows to a type.
pub(super) fn makes(dtype: RowDtype) -> bool {
    MADE.contains(&dtype)
}

/// The names of what dispatch can quantise rows to.
pub(super) fn made() -> String {
    let names: Vec<&str> = MADE.iter().map(Choice::name).collect();
    let (last, others) = names.split_last().expect("there are some");
    format!("{} or {last}", others.join(", "))
}

/// Type in which rows move that dispatch has quantised: words, where several elements are packed into one.
pub(super) fn moved(dtype: RowDtype) -> Dtype {
    if matches!(dtype, RowDtype::Int8 | RowDtype::Nvfp4) { Dtype::U32 } else { Dtype::Fp8 }
}

/// How rows of dispatch are quantised.
fn method(c: &Dispatch) -> Method {
    match c.dtype {
        RowDtype::Mxfp8 => Method::fp8_by_powers(MX_BLOCK, c.scale_rounding),
        RowDtype::Fp8Ue8m0 => Method::fp8_by_powers(SCALE_BLOCK, c.scale_rounding),
        RowDtype::Fp8Fnuz => Method::fp8_fnuz(SCALE_BLOCK),
        RowDtype::Int8 => Method::int8(c.hidden),
        RowDtype::Nvfp4 => Method::nvfp4(),
        _ => Method::fp8(SCALE_BLOCK),
    }
}

/// Words of shared memory that a group takes to quantise pieces.
pub(super) fn shared_words(c: &Dispatch) -> u32 {
    method(c).shared_words(c.elements(c.pieces().len))
}

/// Room for a group, if dispatch quantises rows.
pub(super) fn quantiser(c: &Dispatch, a: &TokenArgs) -> Option<Quantiser> {
    let quantiser = || {
        let tensor = a.tensor_scale.map(|scale| scale.get(0));
        Quantiser::new(method(c), c.elements(c.pieces().len)).by_tensor(tensor)
    };
    c.quantises().then(quantiser)
}

/// The scale of a row of so many elements, of which a group has so many at once: its largest magnitude over `most`, or 1 for a row of
/// zeros.
#[kernel]
pub(super) fn scale_of_row(
    (row, len): (u32, u32),
    most: f32,
    piece: &dyn Fn(Val<u32>, u32) -> AnyTile,
) -> Val<f32> {
    let mut largest = var(0f32);
    each_piece(row, len, |start, len| {
        let piece = piece(start, len).to_f32().abs().max();
        largest = largest.get().max(piece);
    });
    let largest = largest.get();
    quantise::scale_of(largest, most)
}
