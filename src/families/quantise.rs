//! Rows that a group quantises, with scales for blocks of their elements.

use peerwarp_codegen::dsl::prelude::*;
use peerwarp_codegen::family::Choice;
use peerwarp_codegen::ir::Dtype;

/// How scales that are powers of two are rounded.
#[derive(Choice, Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[choice(serde)]
pub enum ScaleRounding {
    /// Down, as OCP's MX specification has it: the power of two of the largest magnitude, less that of the largest element. A block's
    /// largest elements may exceed the largest e4m3 number then, and become it: they lose up to an eighth.
    Floor,
    /// Up: the least power of two by which no element exceeds the largest e4m3 number, as DeepGEMM has it.
    Up,
}

/// The largest number of eight bits whose negative is one, too.
pub(super) const INT8_MAX: f32 = 127.0;

/// What, added to a number of few bits, leaves it in the lowest bits, rounded to nearest even: 1.5 * 2^23.
const TO_INTEGER: f32 = 12_582_912.0;

/// The largest e4m3fnuz that is half a number of e4m3.
const FNUZ_MAX: f32 = 224.0;

/// Half the least e4m3 number: what is not above it is rounded to zero.
const HALF_E4M3_LEAST: f32 = 1.0 / 1024.0;

/// The least e4m3 number above zero.
const E4M3_LEAST: f32 = 1.0 / 512.0;

/// The least e4m3 number that is not subnormal.
const E4M3_NORMAL: f32 = 1.0 / 64.0;

/// The largest e2m1 number.
const E2M1_MAX: f32 = 6.0;

/// Elements of a block of nvfp4.
pub(super) const NVFP4_BLOCK: u32 = 16;

/// What the largest of a row of nvfp4 is, over the scale of the row: the largest e2m1 times the largest e4m3.
pub(super) const NVFP4_MAX: f32 = E2M1_MAX * E4M3_MAX;

/// Eight e2m1 without their signs.
const MAGNITUDES: u32 = 0x7777_7777;

/// The largest e4m3 number.
pub(super) const E4M3_MAX: f32 = 448.0;

/// The power of two of the largest e4m3 number.
const E4M3_EXPONENT: u32 = 8;

/// What, added to the bits of an f32, carries into its exponent if its mantissa is above that of the largest e4m3 number, 1.75.
const ABOVE_E4M3_MAX: u32 = 0x1f_ffff;

/// Elements of an MX block, which have a scale together.
pub(super) const MX_BLOCK: u32 = 32;

/// Elements that a lane takes the largest of, before several lanes' are taken together.
const STRIP: u32 = 8;

/// Banks of shared memory, a word wide.
const BANKS: u32 = 32;

/// A piece as it is sent or stored, and the scales that go with it.
pub(super) type Quantised = (AnyTile, AnyTile);

type Quantising = fn(&Quantiser, Tile<f32>, Piece) -> Quantised;

/// A piece of a row that is quantised.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    /// Its elements.
    pub len: u32,
    /// Words of its scales.
    pub scales: u32,
    /// How many words of them travel: zeros fill a packet.
    pub sent: u32,
    /// The scale of the row, where it has one for all its elements.
    pub of_row: Option<Val<f32>>,
}

/// How rows of a type are quantised.
#[derive(Clone, Copy)]
pub(super) struct Method {
    /// Elements that have a scale together.
    block: u32,
    /// How their scales are rounded, if they are powers of two.
    rounding: ScaleRounding,
    /// Whether several elements are packed into a word, which a lane takes from shared memory.
    packs: bool,
    /// Quantises a piece of a row.
    quantise: Quantising,
}

impl Method {
    fn new(block: u32, quantise: Quantising) -> Method {
        Method { block, rounding: ScaleRounding::Floor, packs: false, quantise }
    }

    /// e4m3 with an f32 scale for each block of so many elements.
    pub fn fp8(block: u32) -> Method {
        Method::new(block, Quantiser::by_numbers)
    }

    /// The same in e4m3fnuz.
    pub fn fp8_fnuz(block: u32) -> Method {
        Method::new(block, Quantiser::by_halves)
    }

    /// e4m3 with a power of two for each block.
    pub fn fp8_by_powers(block: u32, rounding: ScaleRounding) -> Method {
        Method { rounding, ..Method::new(block, Quantiser::by_powers) }
    }

    /// Signed integers with the scale of their row, of so many elements.
    pub fn int8(row: u32) -> Method {
        Method { packs: true, ..Method::new(row, Quantiser::by_row) }
    }

    /// e2m1 with an e4m3 scale for each block of a row.
    pub fn nvfp4() -> Method {
        Method { packs: true, ..Method::new(NVFP4_BLOCK, Quantiser::by_sixteen) }
    }

    /// Words of shared memory that a group takes to quantise pieces of at most `len` elements, with room to align three arrays.
    pub fn shared_words(self, len: u32) -> u32 {
        len + len.div_ceil(STRIP) + factors(self.block, len) + 3 * 3
    }
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
    /// The scale of all rows, where there is one.
    tensor: Option<Val<f32>>,
}

/// Factors that are worked out for a piece of `len` elements, as many as travel with it: of fp8 packets some more than it has blocks.
fn factors(block: u32, len: u32) -> u32 {
    len.div_ceil(block).next_multiple_of(4)
}

impl Quantiser {
    /// The same for pieces of which each lane has other elements than a packet of fp8 has: as many as packets of 16 bits have.
    #[must_use]
    pub fn spreading(self) -> Quantiser {
        Quantiser { spreads: true, ..self }
    }

    /// Room for a group that quantises pieces of at most `len` elements. It is made once, before the loop over pieces.
    pub fn new(method: Method, len: u32) -> Quantiser {
        Quantiser {
            method,
            magnitudes: shared("magnitudes", len),
            spreads: false,
            strips: shared("strips", len.div_ceil(STRIP)),
            factors: shared("factors", factors(method.block, len)),
            tensor: None,
        }
    }

    /// The same by a scale of all rows, where there is one.
    #[must_use]
    pub fn by_tensor(self, tensor: Option<Val<f32>>) -> Quantiser {
        Quantiser { tensor, ..self }
    }

    /// A piece as it is sent, and the scales that go with it.
    #[kernel]
    pub fn quantise(&self, x: AnyTile, piece: Piece) -> Quantised {
        let x = x.to_f32();
        let x = self.stored(x, piece.len);
        (self.method.quantise)(self, x, piece)
    }

    /// A piece whose magnitudes are in shared memory.
    fn stored(&self, x: Tile<f32>, len: u32) -> Tile<f32> {
        if self.method.packs {
            self.magnitudes.store(0, x);
            x
        } else if self.spreads {
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
        if self.spreads || self.method.packs { stored.abs() } else { stored }
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
    fn by_numbers(&self, x: Tile<f32>, piece: Piece) -> Quantised {
        let (x, scales) = self.divided(x, piece, E4M3_MAX);
        (AnyTile::rounded(x, Dtype::Fp8), scales)
    }

    /// e4m3fnuz: the same with 224, whose double is the largest e4m3 number. Its numbers are half those of e4m3 with the same bits, so that
    /// elements are rounded as e4m3 and doubled before; but for -0, whose bits are its NaN: what is rounded to it becomes 0.
    #[kernel]
    fn by_halves(&self, x: Tile<f32>, piece: Piece) -> Quantised {
        let (x, scales) = self.divided(x, piece, FNUZ_MAX);
        let x = x * 2.0;
        let x = (x.abs() <= HALF_E4M3_LEAST).select(0.0, x);
        (AnyTile::rounded(x, Dtype::Fp8), scales)
    }

    /// Elements over the scales of their blocks, and these scales: the largest magnitude over `most`, or 1 in a block of zeros.
    #[kernel]
    fn divided(&self, x: Tile<f32>, piece: Piece, most: f32) -> (Tile<f32>, AnyTile) {
        let Piece { len, scales, sent, .. } = piece;
        let largest = self.largest(len);
        let scale = (largest == 0.0).select(1.0, largest / most);
        self.factors.store(0, scale.bitcast::<u32>());
        let of_element = self.factors.gather(arange(len) / self.method.block, true, 0).bitcast::<f32>();
        let there = arange(sent) < scales;
        let scales = there.select(self.factors.load(0, sent).bitcast::<f32>(), 0.0);
        (x / of_element, scales.into())
    }

    /// Signed integers with the scale of their row, four to a word.
    #[kernel]
    fn by_row(&self, _: Tile<f32>, Piece { len, of_row, .. }: Piece) -> Quantised {
        let scale = of_row.expect("rows of integers have a scale");
        let words = self.packed(len, 8, &|_, x| (x / scale + TO_INTEGER).bitcast::<u32>() & 0xff);
        (words.into(), splat(scale, 1).into())
    }

    /// nvfp4: e2m1, eight to a word, and of each block an e4m3 scale, four to a word: the largest magnitude over 6 and over the scale of
    /// all rows, to the nearest e4m3, ties to even, and no less than the least. Elements are divided by both, and rounded to the nearest
    /// e2m1, ties to even.
    #[kernel]
    fn by_sixteen(&self, _: Tile<f32>, Piece { len, .. }: Piece) -> Quantised {
        let tensor = self.tensor.unwrap_or_else(|| 1f32.val());
        let words = self.sixteen(len, tensor);
        let blocks = len / (4 * NVFP4_BLOCK);
        let scales = self.words_of_e4m3(blocks, blocks);
        (words.into(), scales.into())
    }

    /// Elements of a piece by the scales of their blocks, which are `factors` then, and by another scale.
    #[kernel]
    fn sixteen(&self, len: u32, by: Val<f32>) -> Tile<u32> {
        let scale = self.largest(len) / E2M1_MAX / by;
        let scale = AnyTile::rounded(scale, Dtype::Fp8).to_f32().maximum(E4M3_LEAST);
        self.factors.store(0, scale.bitcast::<u32>());
        let of = |element: Tile<u32>| self.factors.gather(element / NVFP4_BLOCK, true, 0).bitcast::<f32>();
        self.packed(len, 4, &|element, x| bits_of_e2m1(x / (of(element) * by)))
    }

    /// Words of four `factors` each as e4m3, `n` of them, and zeros as far as `sent`.
    #[kernel]
    fn words_of_e4m3(&self, n: u32, sent: u32) -> Tile<u32> {
        let word = arange(sent);
        let there = word < n;
        let byte = |i: u32| {
            let scale = self.factors.gather(word * 4 + i, there, 0).bitcast::<f32>();
            bits_of_e4m3(scale) << (8 * i)
        };
        let words = byte(0) | byte(1) | byte(2) | byte(3);
        there.select(words, 0)
    }

    /// A piece of a row as it travels back as nvfp4: its words, and words of scales: those of its blocks, the row's, and zeros that fill a
    /// packet. No word is all ones, as one that has not arrived: -0 becomes 0, and the bits of magnitudes change places, so that all ones
    /// would be eight times -0.
    #[kernel]
    pub fn returned(&self, x: AnyTile, piece: Piece) -> (AnyTile, Tile<f32>) {
        let Piece { len, scales, sent, of_row } = piece;
        let by = of_row.expect("rows that come back have a scale");
        let _stored = self.stored(x.to_f32(), len);
        let words = self.sixteen(len, by);
        let not_zero = (words | words >> 1 | words >> 2) & 0x1111_1111;
        let words = (words & (not_zero << 3 | MAGNITUDES)) ^ MAGNITUDES;
        let word = arange(sent);
        let of_blocks = self.words_of_e4m3(scales - 1, sent);
        let all = of_blocks | (word == scales - 1).select(by.bitcast::<u32>(), 0);
        (words.into(), all.bitcast::<f32>())
    }

    /// Words of so many bits of each element, the first element's lowest.
    #[kernel]
    fn packed(&self, len: u32, bits: u32, of: &dyn Fn(Tile<u32>, Tile<f32>) -> Tile<u32>) -> Tile<u32> {
        let of_word = 32 / bits;
        let word = arange(len / of_word);
        let mut words = splat(0u32, len / of_word);
        for i in 0..of_word {
            // Words that begin at the same bank begin with different elements, as strips do.
            let place = (word / (BANKS / of_word) + i) % of_word;
            let element = word * of_word + place;
            let x = self.magnitudes.gather(element, true, 0.0);
            words = words | (of(element, x) << (place * bits));
        }
        words
    }

    /// e4m3 with scales of a byte, four to a word. As OCP's MX specification 1.0 has it (6.3), a scale is a power of two, that of the
    /// largest magnitude less that of the largest e4m3; or the next one, where it is rounded up and elements would be too large; and 1
    /// in a block of zeros. Elements are divided by it, which is exact, and rounded to the nearest e4m3, ties to even, those above 448
    /// down to it. Bytes of blocks that a row has not are 0.
    #[kernel]
    fn by_powers(&self, x: Tile<f32>, Piece { len, .. }: Piece) -> Quantised {
        let block = self.method.block;
        let largest = self.largest(len);
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

/// The bits of positive numbers that e4m3 has.
#[kernel]
fn bits_of_e4m3(x: Tile<f32>) -> Tile<u32> {
    // Adding 2^14 leaves the multiple of 2^-9 that a subnormal is in the lowest bits; the exponent's bias goes from 127 to 7.
    let subnormal = (x + 16384.0).bitcast::<u32>() & 7;
    let normal = (x.bitcast::<u32>() >> 20) - (120 << 3);
    (x < E4M3_NORMAL).select(subnormal, normal)
}

/// The e4m3 numbers of bits without a sign.
#[kernel]
fn value_of_e4m3(bits: Tile<u32>) -> Tile<f32> {
    let subnormal = bits.cast::<f32>() * E4M3_LEAST;
    let normal = ((bits << 20) + (120 << 23)).bitcast::<f32>();
    (bits < 8).select(subnormal, normal)
}

/// The e2m1 numbers of the lower four bits as they travel back: those of magnitudes are inverted.
#[kernel]
fn value_of_returned(bits: Tile<u32>) -> Tile<f32> {
    let magnitude = !bits & 7;
    // Up to 1 they are halves; above, the lowest bit is the mantissa's and the exponent's bias is 1.
    let halves = (magnitude.cast::<f32>() * 0.5).bitcast::<u32>();
    let normal = (magnitude << 22) + (126 << 23);
    let value = (magnitude < 2).select(halves, normal);
    (value | (bits >> 3 & 1) << 31).bitcast::<f32>()
}

/// A piece of a row that came back as nvfp4, whose words and scales a group has at hand from `first` on of each: elements by the scales of
/// their blocks, which is exact, and the scale of the row.
#[kernel]
pub(super) fn of_sixteen(
    (words, scales): (Shared<u32>, Shared<f32>),
    (first_word, first_scale): (u32, u32),
    Piece { len, scales: n, .. }: Piece,
) -> (AnyTile, Tile<f32>) {
    let element = arange(len);
    let bits = words.gather(element / 8 + first_word, true, 0) >> (element % 8 * 4);
    let block = element / NVFP4_BLOCK;
    let four = scales.gather(block / 4 + first_scale, true, 0.0).bitcast::<u32>();
    let scale = value_of_e4m3(four >> (block % 4 * 8) & 0xff);
    let of_row = scales.get(first_scale + n - 1);
    ((value_of_returned(bits) * scale).into(), splat(of_row, len))
}

/// The bits of the nearest e2m1, ties to even; above 6 it is 6.
#[kernel]
fn bits_of_e2m1(x: Tile<f32>) -> Tile<u32> {
    // Steps are a half up to 2, 1 up to 4, and 2 up to 6: what is added leaves the number of steps in the lowest bits, rounded.
    let magnitude = x.abs().minimum(E2M1_MAX);
    let (below_two, below_four) = (magnitude < 2.0, magnitude < 4.0);
    let large = below_four.select(splat(8_388_608f32, x.len()), 16_777_216.0);
    let steps = (magnitude + below_two.select(4_194_304.0, large)).bitcast::<u32>() & 7;
    let before = below_two.select(0, below_four.select(splat(2u32, x.len()), 4));
    (steps + before) | (x.bitcast::<u32>() >> 31 << 3)
}

/// The scale of numbers whose largest magnitude is `largest`, so that it becomes `most`; 1 for zeros.
#[kernel]
pub(super) fn scale_of(largest: Val<f32>, most: f32) -> Val<f32> {
    (largest == 0.0).select(1.0, largest / most)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use peerwarp_codegen::dsl::{TraceMeta, trace};
    use peerwarp_codegen::ir::verify;
    use peerwarp_codegen::sim::{Bindings, Compiled, Machine, Options};

    use super::*;
    use crate::harness::blocks::{Blocks, Scaling};

    #[kernel]
    fn each_row(
        b: Group,
        (method, piece): (Method, Piece),
        (n, row): (u32, u32),
        [x, bytes, words]: [AnyPtr; 3],
    ) {
        let quantiser = Quantiser::new(method, piece.len);
        for i in b.strided(n) {
            let x = x.load(i * piece.len, piece.len);
            let (y, scales) = quantiser.quantise(x, piece);
            bytes.store(i * row, y);
            words.store(i * piece.scales, scales);
        }
    }

    /// What a group makes of rows of one piece each, in elements of so many bits: their bytes, and the bytes of their scales.
    fn quantised(method: Method, bits: u32, rows: &[Vec<f32>]) -> Vec<(Vec<u8>, Vec<u8>)> {
        let (len, n) = (rows[0].len() as u32, rows.len() as u32);
        let (scales, bytes) = (len.div_ceil(4 * method.block), len * bits / 8);
        let moved = if method.packs { Dtype::U32 } else { Dtype::Fp8 };
        let row = bytes / moved.bytes();
        let kernel = trace(TraceMeta::new("quantise", 1, 32, 1), |p| {
            let x: AnyPtr = p.erased("x", u64::from(n * len), Dtype::F32);
            let bytes: AnyPtr = p.erased("bytes", u64::from(n * row), moved);
            let words: AnyPtr = p.erased("words", u64::from(n * scales), Dtype::U32);
            let piece = Piece { len, scales, sent: scales, of_row: None };
            role("all", 1, |b| each_row(b, (method, piece), (n, row), [x, bytes, words]));
        });
        let kernel = Arc::new(Compiled::new(verify(kernel.unwrap()).unwrap()));
        let mut machine = Machine::new(1);
        machine.buffers_of(kernel.kernel()).unwrap();
        machine.write(0, "x", 0, &rows.concat()).unwrap();
        machine.launch_all(&kernel, &Bindings::new()).unwrap();
        let memory = machine.run(&Options::default()).unwrap().memory;
        let (rows, words) = (memory.read::<u8>(0, "bytes").unwrap(), memory.read::<u8>(0, "words").unwrap());
        let chunks = |of: &[u8], len: u32| of.chunks(len as usize).map(<[u8]>::to_vec).collect::<Vec<_>>();
        chunks(rows, bytes).into_iter().zip(chunks(words, 4 * scales)).collect()
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
        for (block, blocks, len) in [(MX_BLOCK, Blocks::Mxfp8, 256), (128, Blocks::Fp8Ue8m0, 328)] {
            for rounding in [ScaleRounding::Floor, ScaleRounding::Up] {
                let rows = on_edges(len);
                let method = Method::fp8_by_powers(block, rounding);
                for (row, found) in rows.iter().zip(quantised(method, 8, &rows)) {
                    let scaling = Scaling { up: rounding == ScaleRounding::Up, ..Scaling::default() };
                    let right = blocks.quantise(row, scaling);
                    assert_eq!(found, right, "{blocks:?}, {rounding:?}, largest {}", -row[5]);
                }
            }
        }
    }

    /// Rows of all quarters of the numbers that e2m1 has, which are ties of all kinds, by scales that are subnormal, normal, and too large
    /// and too small for e4m3.
    #[test]
    fn nvfp4_is_the_references_at_every_tie_and_for_scales_of_every_size() {
        let quarters: Vec<f32> = (-32..32).map(|i| (i as f32 / 4.0).clamp(-6.0, 6.0)).collect();
        let sizes =
            [0.0, 1e-30, 1.0 / 2048.0, 1.0 / 512.0, 3.0 / 512.0, 1.0 / 64.0, 1.0, 1.0625, 448.0, 460.0, 1e30];
        let rows: Vec<Vec<f32>> =
            sizes.iter().map(|size| quarters.iter().map(|x| x * size).collect()).collect();
        for (row, found) in rows.iter().zip(quantised(Method::nvfp4(), 4, &rows)) {
            assert_eq!(found, Blocks::Nvfp4.quantise(row, Scaling::default()), "{row:?}");
        }
    }
}
