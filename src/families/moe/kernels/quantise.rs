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
pub(super) const E4M3_MAX: f32 = 448.0;

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

type Quantising = fn(&Quantiser, Tile<f32>, Tile<f32>, Piece) -> Quantised;

/// A piece of a row that is quantised.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Its elements.
    pub len: u32,
    /// Words of its scales.
    pub scales: u32,
    /// How many words of them travel: zeros fill a packet.
    pub sent: u32,
}

/// How rows of a type are quantised.
#[derive(Clone, Copy)]
struct Method {
    /// Elements that have a scale together.
    block: u32,
    /// Quantises a piece of a row, given the largest magnitude of each block.
    quantise: Quantising,
}

impl Method {
    fn of(dtype: RowDtype) -> Method {
        match dtype {
            RowDtype::Mxfp8 => Method { block: MX_BLOCK, quantise: Quantiser::by_powers },
            _ => Method::FP8,
        }
    }

    /// e4m3 with an f32 scale for each block of a row.
    const FP8: Method = Method { block: SCALE_BLOCK, quantise: Quantiser::by_numbers };
}

/// Where a group works out the scales of a piece.
#[derive(Clone, Copy)]
pub(super) struct Quantiser {
    method: Method,
    /// Magnitudes of elements; the elements themselves where they go through it.
    magnitudes: Shared<f32>,
    /// Whether a piece goes through shared memory, so that each lane has other elements of it.
    spreads: bool,
    /// The largest of each strip.
    strips: Shared<f32>,
    /// Factors of blocks: f32 numbers, or exponents of powers of two.
    factors: Shared<u32>,
}

/// Words of shared memory that a group takes to quantise pieces of so many elements, with room to align three arrays.
pub(super) fn shared_words(dtype: RowDtype, pieces: Pieces) -> u32 {
    words(Method::of(dtype), pieces.len)
}

/// The same of [`Quantiser::fp8`].
pub(super) fn fp8_shared_words(len: u32) -> u32 {
    words(Method::FP8, len)
}

fn words(method: Method, len: u32) -> u32 {
    len + len.div_ceil(STRIP) + factors(method.block, len) + 3 * 3
}

/// Factors that are worked out for a piece of `len` elements, as many as travel with it: of fp8 packets some more than it has blocks.
fn factors(block: u32, len: u32) -> u32 {
    len.div_ceil(block).next_multiple_of(4)
}

impl Quantiser {
    /// Room for a group, if dispatch quantises rows.
    pub fn new(c: &Dispatch) -> Option<Quantiser> {
        c.quantises().then(|| Quantiser::with(Method::of(c.dtype), c.pieces().len))
    }

    /// Room for a group that quantises pieces of at most `len` elements to fp8 with a scale for each block.
    pub fn fp8(len: u32) -> Quantiser {
        Quantiser::with(Method::FP8, len)
    }

    /// The same for pieces of which each lane has other elements than a packet of fp8 has: as many as packets of 16 bits have.
    #[must_use]
    pub fn spreading(self) -> Quantiser {
        Quantiser { spreads: true, ..self }
    }

    fn with(method: Method, len: u32) -> Quantiser {
        Quantiser {
            method,
            magnitudes: shared("magnitudes", len),
            spreads: false,
            strips: shared("strips", len.div_ceil(STRIP)),
            factors: shared("factors", factors(method.block, len)),
        }
    }

    /// A piece as it is sent, and the scales that go with it.
    #[kernel]
    pub fn quantise(&self, x: AnyTile, piece: Piece) -> Quantised {
        let x = x.to_f32();
        let x = self.stored(x, piece.len);
        let largest = self.largest(piece.len);
        (self.method.quantise)(self, x, largest, piece)
    }

    /// A piece whose magnitudes are in shared memory.
    fn stored(&self, x: Tile<f32>, len: u32) -> Tile<f32> {
        if self.spreads {
            self.magnitudes.store(0, x);
            self.magnitudes.load(0, len)
        } else {
            self.magnitudes.store(0, x.abs());
            x
        }
    }

    /// Magnitudes of some elements of the piece.
    fn magnitude(&self, element: Tile<u32>) -> Tile<f32> {
        let stored = self.magnitudes.gather(element, true, 0.0);
        if self.spreads { stored.abs() } else { stored }
    }

    /// The largest magnitude of each block, and zeros as far as there are factors.
    #[kernel]
    fn largest(&self, len: u32) -> Tile<f32> {
        let (strips, strip) = (len / STRIP, arange(len / STRIP));
        let mut largest = splat(0f32, strips);
        for i in 0..STRIP {
            // Strips that begin at the same bank begin with different elements, so that a warp asks all banks.
            let element = strip * STRIP + (strip / (BANKS / STRIP) + i) % STRIP;
            largest = largest.maximum(self.magnitude(element));
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
    fn by_numbers(&self, x: Tile<f32>, largest: Tile<f32>, piece: Piece) -> Quantised {
        let Piece { len, scales, sent } = piece;
        let scale = (largest == 0.0).select(1.0, largest / E4M3_MAX);
        self.factors.store(0, scale.bitcast::<u32>());
        let of_element = self.factors.gather(arange(len) / self.method.block, true, 0).bitcast::<f32>();
        let there = arange(sent) < scales;
        let scales = there.select(self.factors.load(0, sent).bitcast::<f32>(), 0.0);
        (AnyTile::rounded(x / of_element, Dtype::Fp8), scales.into())
    }

    /// mxfp8, as OCP's MX specification 1.0 has it (6.3): the scale is a power of two, that of the largest magnitude less that of the
    /// largest e4m3, and 1 in a block of zeros; elements are divided by it, which is exact, and rounded to the nearest e4m3, ties to
    /// even, those above 448 down to it.
    #[kernel]
    fn by_powers(&self, x: Tile<f32>, largest: Tile<f32>, Piece { len, .. }: Piece) -> Quantised {
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
