//! Rows quantised with scales of a byte for blocks of elements: MX formats (OCP Microscaling Formats 1.0) and NVFP4.

pub use peerwarp_codegen::fp8::{e2m1_to_f32, e8m0_to_f32};

use super::fp8::{E4M3_MAX, e4m3_from_f32, e4m3_to_f32};

/// The magnitudes of e2m1: 2 exponent bits with bias 1, 1 mantissa bit.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// The nearest e2m1, ties to the even one; what is too large becomes 6. There is no NaN: it becomes 0.
pub fn e2m1_from_f32(x: f32) -> u8 {
    let magnitude = x.abs().min(6.0);
    let above = E2M1.iter().position(|&value| value >= magnitude).unwrap_or(0);
    let below = above.saturating_sub(1);
    let (down, up) = (magnitude - E2M1[below], E2M1[above] - magnitude);
    let bits = if up < down || (up == down && above % 2 == 0) { above } else { below };
    bits as u8 | if x.is_sign_negative() { 8 } else { 0 }
}

/// The e8m0 scale of a block whose largest magnitude is `largest`, and whose elements are at most `most`: the largest magnitude's power of
/// two, less that of `most`. Rounded up, it is the least one by which no element exceeds `most`.
fn e8m0_of(largest: f32, most: f32, up: bool) -> u8 {
    if largest == 0.0 {
        return 127;
    }
    // The exponent's bits: a logarithm would round.
    let exponent = |x: f32| (x.to_bits() >> 23) as i32;
    let mut power = (exponent(largest) - exponent(most) + 127).max(0);
    while up && f64::from(largest) > f64::from(most) * 2f64.powi(power - 127) {
        power += 1;
    }
    power.min(254) as u8
}

/// How elements of a row are quantised with others of their block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// e4m3 with an e8m0 scale for 128 elements, and zeros after a row's last scale as far as four make a word.
    Fp8Ue8m0,
    /// e4m3 with an e8m0 scale for 32 elements.
    Mxfp8,
    /// e2m1 with an e8m0 scale for 32 elements.
    Mxfp4,
    /// e2m1 with an e4m3 scale for 16 elements, and one for all rows, which does not travel with them.
    Nvfp4,
}

/// What scales depend on beside the elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scaling {
    /// Whether powers of two are rounded up.
    pub up: bool,
    /// The scale of all rows, of those that have one.
    pub tensor: f32,
}

impl Default for Scaling {
    fn default() -> Scaling {
        Scaling { up: false, tensor: 1.0 }
    }
}

impl Blocks {
    /// Elements that have a scale together.
    pub fn elements(self) -> usize {
        match self {
            Blocks::Fp8Ue8m0 => 128,
            Blocks::Mxfp8 | Blocks::Mxfp4 => 32,
            Blocks::Nvfp4 => 16,
        }
    }

    /// Quantises a row of whole blocks: its bytes, of two elements the lower bits first, and a scale for each block.
    pub fn quantise(self, row: &[f32], Scaling { up, tensor }: Scaling) -> (Vec<u8>, Vec<u8>) {
        let (mut bytes, mut scales) = (vec![], vec![]);
        for block in row.chunks(self.elements()) {
            let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
            let scale = match self {
                Blocks::Fp8Ue8m0 | Blocks::Mxfp8 => e8m0_of(largest, E4M3_MAX, up),
                Blocks::Mxfp4 => e8m0_of(largest, 6.0, up),
                // A block of zeros, or of almost nothing, has no scale of 0 to be divided by.
                Blocks::Nvfp4 => e4m3_from_f32(largest / 6.0 / tensor).max(1),
            };
            let by = self.scale(scale) * if self == Blocks::Nvfp4 { tensor } else { 1.0 };
            match self {
                Blocks::Fp8Ue8m0 | Blocks::Mxfp8 => bytes.extend(block.iter().map(|x| e4m3_from_f32(x / by))),
                Blocks::Mxfp4 | Blocks::Nvfp4 => bytes.extend(
                    block.chunks(2).map(|two| e2m1_from_f32(two[0] / by) | e2m1_from_f32(two[1] / by) << 4),
                ),
            }
            scales.push(scale);
        }
        if self == Blocks::Fp8Ue8m0 {
            scales.resize(scales.len().next_multiple_of(4), 0);
        }
        (bytes, scales)
    }

    /// The values of a row that was quantised so, over the scale of all rows where there is one.
    pub fn dequantise(self, bytes: &[u8], scales: &[u8]) -> Vec<f32> {
        let elements: Vec<f32> = match self {
            Blocks::Fp8Ue8m0 | Blocks::Mxfp8 => bytes.iter().map(|&byte| e4m3_to_f32(byte)).collect(),
            Blocks::Mxfp4 | Blocks::Nvfp4 => {
                bytes.iter().flat_map(|&two| [e2m1_to_f32(two), e2m1_to_f32(two >> 4)]).collect()
            }
        };
        let blocks = elements.chunks(self.elements()).zip(scales);
        blocks.flat_map(|(block, &scale)| block.iter().map(move |x| x * self.scale(scale))).collect()
    }

    fn scale(self, byte: u8) -> f32 {
        match self {
            Blocks::Fp8Ue8m0 | Blocks::Mxfp8 | Blocks::Mxfp4 => e8m0_to_f32(byte),
            Blocks::Nvfp4 => e4m3_to_f32(byte),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bits_round_to_nearest_even_and_saturate() {
        for bits in 0..16 {
            assert_eq!(e2m1_from_f32(e2m1_to_f32(bits)), bits);
        }
        let cases = [(0.25, 0), (0.26, 1), (0.75, 2), (1.25, 2), (2.5, 4), (3.5, 6), (5.0, 6), (5.1, 7)];
        for (x, bits) in cases {
            assert_eq!((e2m1_from_f32(x), e2m1_from_f32(-x)), (bits, bits | 8), "{x}");
        }
        assert_eq!((e2m1_from_f32(1e9), e2m1_from_f32(f32::NEG_INFINITY)), (7, 15));
    }

    #[test]
    fn powers_of_two_of_a_byte() {
        assert_eq!((e8m0_to_f32(127), e8m0_to_f32(128), e8m0_to_f32(120)), (1.0, 2.0, 0.0078125));
        assert!(e8m0_to_f32(255).is_nan() && e8m0_to_f32(0) > 0.0 && e8m0_to_f32(254) < f32::INFINITY);
    }

    #[test]
    fn a_row_has_a_scale_for_every_block() {
        let row: Vec<f32> = (0..64).map(|i| if i < 32 { 448.0 } else { -3.0 }).collect();
        let (bytes, scales) = Blocks::Mxfp8.quantise(&row, Scaling::default());
        assert_eq!(scales, [127, 120]);
        assert_eq!((bytes[0], bytes[32]), (0x7e, 0xfc));
        assert_eq!(Blocks::Mxfp8.dequantise(&bytes, &scales), row);
        let (bytes, scales) = Blocks::Mxfp4.quantise(&row, Scaling::default());
        assert_eq!((bytes.len(), scales), (32, vec![133, 126]));
        // 448 is 7 times the scale, of which the largest element is 6.
        assert_eq!(Blocks::Mxfp4.dequantise(&bytes, &[133, 126])[31..33], [384.0, -3.0]);
        let row: Vec<f32> = (0..32).map(|i| if i < 16 { i as f32 - 6.0 } else { 0.0 }).collect();
        let (bytes, scales) = Blocks::Nvfp4.quantise(&row, Scaling::default());
        assert_eq!((bytes.len(), scales.clone()), (16, vec![0x3c, 1]));
        let got = Blocks::Nvfp4.dequantise(&bytes, &scales);
        assert_eq!((got[0], got[6], got[15], got[16]), (-6.0, 0.0, 9.0, 0.0));
    }
    #[test]
    fn powers_of_two_are_rounded_up_only_where_elements_would_be_too_large() {
        let scale = |largest: f32, up| {
            Blocks::Mxfp8.quantise(&[largest; 32], Scaling { up, ..Scaling::default() }).1[0]
        };
        let above = f32::from_bits(448f32.to_bits() + 1);
        for (largest, down, rounded_up) in
            [(448.0, 127, 127), (above, 127, 128), (511.0, 127, 128), (512.0, 128, 128), (0.0, 127, 127)]
        {
            assert_eq!((scale(largest, false), scale(largest, true)), (down, rounded_up), "{largest}");
            assert_eq!(scale(largest / 4096.0, true) + if largest == 0.0 { 0 } else { 12 }, rounded_up);
        }
        assert_eq!((scale(f32::from_bits(1), true), scale(f32::MAX, true)), (0, 247));
        // Rounded down, the largest element loses an eighth.
        let back = |up| {
            let (bytes, scales) = Blocks::Mxfp8.quantise(&[511.0; 32], Scaling { up, ..Scaling::default() });
            Blocks::Mxfp8.dequantise(&bytes, &scales)[0]
        };
        assert_eq!((back(false), back(true)), (448.0, 512.0));
    }

    #[test]
    fn four_scales_of_128_elements_are_a_word() {
        let (bytes, scales) =
            Blocks::Fp8Ue8m0.quantise(&[3.0; 272], Scaling { up: true, ..Scaling::default() });
        assert_eq!((bytes.len(), &scales[..]), (272, &[120, 120, 120, 0][..]));
        assert_eq!(Blocks::Fp8Ue8m0.dequantise(&bytes, &scales), [3.0; 272]);
    }
    #[test]
    fn a_scale_of_all_rows_brings_blocks_into_the_range_of_their_scales() {
        let row: Vec<f32> = (0..16).map(|i| (i as f32 - 8.0) * 1e6).collect();
        let scaling = Scaling { tensor: 2f32.powi(14), ..Scaling::default() };
        let (bytes, scales) = Blocks::Nvfp4.quantise(&row, scaling);
        // 8e6 / 6 / 16384 is 81.4, whose next e4m3 is 80.
        assert_eq!(scales, [e4m3_from_f32(80.0)]);
        let back: Vec<f32> =
            Blocks::Nvfp4.dequantise(&bytes, &scales).iter().map(|x| x * scaling.tensor).collect();
        assert_eq!((back[0], back[8], back[12]), (-6.0 * 80.0 * 16384.0, 0.0, 3.0 * 80.0 * 16384.0));
        assert_eq!(Blocks::Nvfp4.quantise(&row, Scaling::default()).1, [0x7e]);
    }
}
