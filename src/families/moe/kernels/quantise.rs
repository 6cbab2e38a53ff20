//! Rows that are quantised on their way out: by their sender, so that what travels is small, and once for all ranks that get them.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

use super::config::Dispatch;
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

/// How dispatch rounds scales that are powers of two.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum ScaleRounding {
    /// Down, as OCP's MX specification has it: the power of two of the largest magnitude, less that of the largest element. A block's
    /// largest elements may exceed the largest e4m3 number then, and become it: they lose up to an eighth.
    Floor,
    /// Up: the least power of two by which no element exceeds the largest e4m3 number, as DeepGEMM has it.
    Up,
}

/// What dispatch can quantise rows to.
const MADE: [RowDtype; 3] = [RowDtype::Fp8, RowDtype::Fp8Ue8m0, RowDtype::Mxfp8];

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

/// The largest e4m3 number.
pub(super) const E4M3_MAX: f32 = 448.0;

/// The power of two of the largest e4m3 number.
const E4M3_EXPONENT: u32 = 8;

/// What, added to the bits of an f32, carries into its exponent if its mantissa is above that of the largest e4m3 number, 1.75.
const ABOVE_E4M3_MAX: u32 = 0x1f_ffff;

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
    /// How their scales are rounded, if they are powers of two.
    rounding: ScaleRounding,
    /// Quantises a piece of a row, given the largest magnitude of each block.
    quantise: Quantising,
}

impl Method {
    fn of(c: &Dispatch) -> Method {
        let powers = |block| Method { block, rounding: c.scale_rounding, quantise: Quantiser::by_powers };
        match c.dtype {
            RowDtype::Mxfp8 => powers(MX_BLOCK),
            RowDtype::Fp8Ue8m0 => powers(SCALE_BLOCK),
            _ => Method::FP8,
        }
    }

    /// e4m3 with an f32 scale for each block of a row.
    const FP8: Method =
        Method { block: SCALE_BLOCK, rounding: ScaleRounding::Floor, quantise: Quantiser::by_numbers };
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

/// Words of shared memory that a group takes to quantise pieces, with room to align three arrays.
pub(super) fn shared_words(c: &Dispatch) -> u32 {
    words(Method::of(c), c.pieces().len)
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
        c.quantises().then(|| Quantiser::with(Method::of(c), c.pieces().len))
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

    /// e4m3 with scales of a byte, four to a word. As OCP's MX specification 1.0 has it (6.3), a scale is a power of two, that of the
    /// largest magnitude less that of the largest e4m3; or the next one, where it is rounded up and elements would be too large; and 1
    /// in a block of zeros. Elements are divided by it, which is exact, and rounded to the nearest e4m3, ties to even, those above 448
    /// down to it. Bytes of blocks that a row has not are 0.
    #[kernel]
    fn by_powers(&self, x: Tile<f32>, largest: Tile<f32>, Piece { len, .. }: Piece) -> Quantised {
        let block = self.method.block;
        let power = (self.rounded(largest) >> 23).maximum(E4M3_EXPONENT) - E4M3_EXPONENT;
        let power = (largest == 0.0).select(127, power);
        self.factors.store(0, self.there(power, len));
        let of_element = self.factors.gather(arange(len) / block, true, 0);
        // One over a power of two: its exponent with the other sign.
        let inverse = ((splat(254u32, len) - of_element) << 23).bitcast::<f32>();
        let word = arange(len.div_ceil(4 * block)) * 4;
        let byte = |i: u32| self.factors.gather(word + i, true, 0) << (8 * i);
        let scales = byte(0) | byte(1) | byte(2) | byte(3);
        (AnyTile::rounded(x * inverse, Dtype::Fp8), scales.into())
    }

    /// The bits of largest magnitudes, whose exponents are one larger where scales are rounded up.
    fn rounded(&self, largest: Tile<f32>) -> Tile<u32> {
        let bits = largest.bitcast::<u32>();
        match self.method.rounding {
            ScaleRounding::Floor => bits,
            ScaleRounding::Up => bits + ABOVE_E4M3_MAX,
        }
    }

    /// Powers of the blocks of a piece of `len` elements, and 0 of those that fill its last word.
    fn there(&self, power: Tile<u32>, len: u32) -> Tile<u32> {
        let block = self.method.block;
        if len.is_multiple_of(4 * block) {
            return power;
        }
        arange(factors(block, len)).lt(len.div_ceil(block)).select(power, 0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerwarp_codegen::dsl::{TraceMeta, trace};
    use peerwarp_codegen::ir::verify;
    use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

    use super::*;
    use crate::harness::blocks::Blocks;

    /// What a group makes of rows of one piece each: their bytes, and the bytes of their scales.
    fn quantised(method: Method, rows: &[Vec<f32>]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (len, n) = (rows[0].len() as u32, rows.len() as u32);
        let scales = len.div_ceil(4 * method.block);
        let kernel = trace(TraceMeta::new("quantise", 1, 32, 1), |p| {
            let x = p.erased("x", u64::from(n * len), Dtype::F32);
            let bytes = p.erased("bytes", u64::from(n * len), Dtype::Fp8);
            let words = p.erased("words", u64::from(n * scales), Dtype::U32);
            role("all", 1, |b| {
                let quantiser = Quantiser::with(method, len);
                for row in b.strided(n) {
                    let (y, scaled) =
                        quantiser.quantise(x.load(row * len, len), Piece { len, scales, sent: scales });
                    bytes.store(row * len, y);
                    words.store(row * scales, scaled);
                }
            });
        });
        let kernel = Arc::new(Compiled::new(verify(kernel.unwrap()).unwrap()));
        let mut machine = Machine::new(1);
        machine.buffers_of(kernel.kernel()).unwrap();
        machine.write(0, "x", 0, &rows.concat()).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let memory = machine.run(&Options::default()).unwrap().memory;
        let (bytes, words) = (memory.read::<u8>(0, "bytes").unwrap(), memory.read::<u8>(0, "words").unwrap());
        let (len, scales) = (len as usize, 4 * scales as usize);
        bytes.chunks(len).map(<[u8]>::to_vec).zip(words.chunks(scales).map(<[u8]>::to_vec)).collect()
    }

    /// Blocks whose largest element is one at which a scale changes, or next to it.
    fn on_edges(len: usize) -> Vec<Vec<f32>> {
        let most = [
            0.0,
            f32::from_bits(1),
            2f32.powi(-119),
            1.75 * 2f32.powi(-119),
            1e-30,
            256.0,
            448.0,
            480.0,
            511.9,
            512.0,
            f32::MAX,
        ];
        let next = |x: f32, by: i32| f32::from_bits(x.to_bits().saturating_add_signed(by)).min(f32::MAX);
        let each = most.iter().flat_map(|&x| [-1, 0, 1].map(|by| next(x, by)));
        each.map(|most| {
            (0..len).map(|i| if i % 32 == 5 { -most } else { most * (i as f32 / len as f32) }).collect()
        })
        .collect()
    }

    #[test]
    fn powers_of_two_are_the_references_at_every_edge() {
        for (block, blocks, len) in [(MX_BLOCK, Blocks::Mxfp8, 256), (SCALE_BLOCK, Blocks::Fp8Ue8m0, 328)] {
            for rounding in [ScaleRounding::Floor, ScaleRounding::Up] {
                let rows = on_edges(len);
                let method = Method { block, rounding, quantise: Quantiser::by_powers };
                for (row, found) in rows.iter().zip(quantised(method, &rows)) {
                    let right = blocks.quantise(row, rounding == ScaleRounding::Up);
                    assert_eq!(found, right, "{blocks:?}, {rounding:?}, largest {}", -row[5]);
                }
            }
        }
    }
}
