//! Rows that are quantised on their way out: by their sender, so that what travels is small, and once for all ranks that get them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

use super::config::Dispatch;
use super::pieces::Pieces;
use crate::families::moe::{RowDtype, SCALE_BLOCK};

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

/// The largest e4m3 number.
const E4M3_MAX: f32 = 448.0;

/// The power of two of the largest e4m3 number.
const E4M3_EXPONENT: u32 = 8;

/// Elements of an MX block, which have a scale together.
const MX_BLOCK: u32 = 32;

/// Elements that a lane takes the largest of, before several lanes' are taken together.
const STRIP: u32 = 8;

/// Banks of shared memory, a word wide.
const BANKS: u32 = 32;

/// A piece as it is sent, and the scales that go with it.
type Quantised = (AnyTile, AnyTile);

type Quantising = fn(&Quantiser, &Dispatch, Tile<f32>, Tile<f32>, u32) -> Quantised;

/// How rows of a type are quantised.
#[derive(Clone, Copy)]
struct Method {
    /// Elements that have a scale together.
    block: u32,
    /// Quantises a piece of a row of so many elements, given the largest magnitude of each block.
    quantise: Quantising,
}

impl Method {
    fn of(dtype: RowDtype) -> Method {
        match dtype {
            RowDtype::Mxfp8 => Method { block: MX_BLOCK, quantise: Quantiser::by_powers },
            _ => Method { block: SCALE_BLOCK, quantise: Quantiser::by_numbers },
        }
    }
}

/// Where a group works out the scales of a piece.
#[derive(Clone, Copy)]
pub(super) struct Quantiser {
    method: Method,
    /// Magnitudes of elements.
    magnitudes: Shared<f32>,
    /// The largest of each strip.
    strips: Shared<f32>,
    /// Factors of blocks: f32 numbers, or exponents of powers of two.
    factors: Shared<u32>,
}

/// Words of shared memory that a group takes to quantise pieces of so many elements, with room to align three arrays.
pub(super) fn shared_words(dtype: RowDtype, pieces: Pieces) -> u32 {
    pieces.len + pieces.len.div_ceil(STRIP) + factors(Method::of(dtype).block, pieces.len) + 3 * 3
}

/// Factors that are worked out for a piece of `len` elements, as many as travel with it: of fp8 packets some more than it has blocks.
fn factors(block: u32, len: u32) -> u32 {
    len.div_ceil(block).next_multiple_of(4)
}

impl Quantiser {
    /// Room for a group, if rows are quantised.
    pub fn new(c: &Dispatch) -> Option<Quantiser> {
        let (method, len) = (Method::of(c.dtype), c.pieces().len);
        c.quantises().then(|| Quantiser {
            method,
            magnitudes: shared("magnitudes", len),
            strips: shared("strips", len.div_ceil(STRIP)),
            factors: shared("factors", factors(method.block, len)),
        })
    }

    /// A piece as it is sent, and the scales that go with it.
    #[kernel]
    pub fn quantise(&self, c: &Dispatch, x: AnyTile, len: u32) -> Quantised {
        let x = x.to_f32();
        let largest = self.largest(x, len);
        (self.method.quantise)(self, c, x, largest, len)
    }

    /// The largest magnitude of each block, and zeros as far as there are factors.
    #[kernel]
    fn largest(&self, x: Tile<f32>, len: u32) -> Tile<f32> {
        self.magnitudes.store(0, x.abs());
        let (strips, strip) = (len / STRIP, arange(len / STRIP));
        let mut largest = splat(0f32, strips);
        for i in 0..STRIP {
            // Strips that begin at the same bank begin with different elements, so that a warp asks all banks.
            let element = strip * STRIP + (strip / (BANKS / STRIP) + i) % STRIP;
            largest = largest.maximum(self.magnitudes.gather(element, true, 0.0));
        }
        self.strips.store(0, largest);
        let blocks = factors(self.method.block, len);
        let of_block = self.method.block / STRIP;
        let mut largest = splat(0f32, blocks);
        for i in 0..of_block {
            let strip = arange(blocks) * of_block + i;
            largest = largest.maximum(self.strips.gather(strip, strip < strips, 0.0));
        }
        largest
    }

    /// fp8: a scale is the largest magnitude over 448, or 1 in a block of zeros; elements are divided by it, and rounded to the nearest
    /// e4m3, ties to even.
    #[kernel]
    fn by_numbers(&self, c: &Dispatch, x: Tile<f32>, largest: Tile<f32>, len: u32) -> Quantised {
        let scale = (largest == 0.0).select(1.0, largest / E4M3_MAX);
        self.factors.store(0, scale.bitcast::<u32>());
        let of_element = self.factors.gather(arange(len) / self.method.block, true, 0).bitcast::<f32>();
        let sent = c.sent_scales_of(len);
        let there = arange(sent) < c.scales_of(len);
        let scales = there.select(self.factors.load(0, sent).bitcast::<f32>(), 0.0);
        (AnyTile::rounded(x / of_element, Dtype::Fp8), scales.into())
    }

    /// mxfp8, as OCP's MX specification 1.0 has it (6.3): the scale is a power of two, that of the largest magnitude less that of the
    /// largest e4m3, and 1 in a block of zeros; elements are divided by it, which is exact, and rounded to the nearest e4m3, ties to
    /// even, those above 448 down to it.
    #[kernel]
    fn by_powers(&self, _: &Dispatch, x: Tile<f32>, largest: Tile<f32>, len: u32) -> Quantised {
        let power = (largest.bitcast::<u32>() >> 23).maximum(E4M3_EXPONENT) - E4M3_EXPONENT;
        let power = (largest == 0.0).select(127, power);
        self.factors.store(0, power);
        let of_element = self.factors.gather(arange(len) / self.method.block, true, 0);
        // One over a power of two: its exponent with the other sign.
        let inverse = ((splat(254u32, len) - of_element) << 23).bitcast::<f32>();
        let word = arange(len / (4 * self.method.block)) * 4;
        let byte = |i: u32| self.factors.gather(word + i, true, 0) << (8 * i);
        let scales = byte(0) | byte(1) | byte(2) | byte(3);
        (AnyTile::rounded(x * inverse, Dtype::Fp8), scales.into())
    }
}
