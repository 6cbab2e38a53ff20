//! Rows quantised to bytes other than e4m3: e4m3fnuz and signed integers.

use peerwarp_codegen::elements::e4m3::quantise_as;

/// The value of an e4m3fnuz byte: sign, 4 exponent bits with bias 8, 3 mantissa bits; a sign alone is NaN.
pub fn e4m3fnuz_to_f32(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match exponent {
        _ if byte == 0x80 => f32::NAN,
        0 => mantissa / 8.0 * 2f32.powi(-7),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 8),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest e4m3fnuz byte, ties to the even one; what is too large becomes 240, and what is next to -0 becomes 0.
pub fn e4m3fnuz_from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x80;
    }
    let off = |byte: &u8| (x.abs().min(240.0) - e4m3fnuz_to_f32(*byte)).abs();
    let nearer = |a: u8, b: u8| if off(&b) < off(&a) || (off(&b) == off(&a) && b & 1 == 0) { b } else { a };
    let magnitude = (0..=0x7f).reduce(nearer).unwrap_or(0);
    if x < 0.0 && magnitude > 0 { magnitude | 0x80 } else { magnitude }
}

/// The largest e4m3fnuz that is half a number of e4m3: what the largest of a block becomes.
const FNUZ_MAX: f32 = 224.0;

/// Quantises a row to e4m3fnuz: bytes, and for every `block` elements the scale that gives the values back.
pub fn quantise_fnuz(row: &[f32], block: u32) -> (Vec<u8>, Vec<f32>) {
    quantise_as(row, block, FNUZ_MAX, e4m3fnuz_from_f32)
}

/// The values of a row of e4m3fnuz with a scale for every `block` elements.
pub fn dequantise_fnuz(bytes: &[u8], scales: &[f32], block: u32) -> Vec<f32> {
    let of = |(i, byte): (usize, &u8)| e4m3fnuz_to_f32(*byte) * scales[i / block as usize];
    bytes.iter().enumerate().map(of).collect()
}

/// Quantises a row to integers from -127 to 127, ties to even, and the scale that gives the values back.
pub fn quantise_int8(row: &[f32]) -> (Vec<u8>, f32) {
    let largest = row.iter().fold(0f32, |m, x| m.max(x.abs()));
    let scale = if largest == 0.0 { 1.0 } else { largest / 127.0 };
    (row.iter().map(|x| (x / scale).round_ties_even() as i8 as u8).collect(), scale)
}

/// The values of a row of integers.
pub fn dequantise_int8(bytes: &[u8], scale: f32) -> Vec<f32> {
    bytes.iter().map(|&byte| f32::from(byte as i8) * scale).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::fp8::{e4m3_from_f32, e4m3_to_f32};

    #[test]
    fn every_e4m3fnuz_survives_a_round_trip_and_is_half_the_e4m3_of_its_bits() {
        for byte in 0..=u8::MAX {
            let value = e4m3fnuz_to_f32(byte);
            assert_eq!(value.is_nan(), byte == 0x80);
            assert_eq!(e4m3fnuz_from_f32(value), byte);
            if byte & 0x7f != 0x7f && byte != 0x80 {
                assert_eq!(value * 2.0, e4m3_to_f32(byte));
            }
        }
        assert_eq!([0x7f, 0xff, 0x01].map(e4m3fnuz_to_f32), [240.0, -240.0, 1.0 / 1024.0]);
    }

    #[test]
    fn numbers_that_only_e4m3_has_become_others() {
        assert_eq!([-0.0, -1e-9, -1.0 / 2048.0].map(e4m3fnuz_from_f32), [0; 3]);
        assert_eq!([448.0, f32::NEG_INFINITY, 232.0, 231.9].map(e4m3fnuz_from_f32), [0x7f, 0xff, 0x7e, 0x7e]);
        // Ties between neighbours go to the even one, as those of e4m3 do.
        for byte in 1..0x7eu8 {
            let middle = (e4m3fnuz_to_f32(byte) + e4m3fnuz_to_f32(byte + 1)) / 2.0;
            assert_eq!(e4m3fnuz_from_f32(middle), e4m3_from_f32(middle * 2.0));
        }
    }

    #[test]
    fn the_largest_of_a_row_is_the_largest_number() {
        let row = [-3.0, 0.0, 1.0, 3.0 / 254.0];
        let (bytes, scale) = quantise_int8(&row);
        assert_eq!((&bytes[..], scale), (&[0x81, 0, 42, 0][..], 3.0 / 127.0));
        assert!((dequantise_int8(&bytes, scale)[2] - 1.0).abs() < scale / 2.0);
        assert_eq!(quantise_int8(&[0.0; 2]), (vec![0; 2], 1.0));
        let (bytes, scales) = quantise_fnuz(&row, 2);
        assert_eq!(
            (&bytes[..], scales[0]),
            (&[0xfe, 0, 0x7e, e4m3fnuz_from_f32(224.0 * (3.0 / 254.0))][..], 3.0 / 224.0)
        );
        assert_eq!(dequantise_fnuz(&bytes, &scales, 2)[..3], [-3.0, 0.0, 1.0]);
    }
}
