//! The 8-bit float e4m3 (no infinities), and rows quantised to it with a scale for every block of elements.

/// The largest e4m3 value.
pub const E4M3_MAX: f32 = 448.0;

/// The value of an e4m3 byte: sign, 4 exponent bits with bias 7, 3 mantissa bits; all ones is NaN.
pub fn e4m3_to_f32(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7));
    let magnitude = match (exponent, byte & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if byte & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The nearest e4m3 byte, ties to the even one; what is too large becomes [`E4M3_MAX`].
pub fn e4m3_from_f32(x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let magnitude = x.abs().min(E4M3_MAX);
    // Bytes below 0x7f are in the order of their values: find the last one that is not above.
    let (mut below, mut above) = (0u8, 0x7f);
    while above - below > 1 {
        let middle = below + (above - below) / 2;
        if e4m3_to_f32(middle) <= magnitude { below = middle } else { above = middle }
    }
    if below == 0x7e {
        return sign | below;
    }
    let (down, up) = (magnitude - e4m3_to_f32(below), e4m3_to_f32(below + 1) - magnitude);
    let rounds_up = up < down || (up == down && below & 1 == 1);
    sign | (below + u8::from(rounds_up))
}

/// Quantises a row: bytes, and for every `block` elements the scale that gives the values back.
pub fn quantise(row: &[f32], block: u32) -> (Vec<u8>, Vec<f32>) {
    quantise_as(row, block, E4M3_MAX, e4m3_from_f32)
}

/// The same in any type of a byte: the largest element of a block becomes `most`.
pub fn quantise_as(row: &[f32], block: u32, most: f32, byte: fn(f32) -> u8) -> (Vec<u8>, Vec<f32>) {
    let (mut bytes, mut scales) = (vec![], vec![]);
    for block in row.chunks(block as usize) {
        let largest = block.iter().fold(0f32, |m, x| m.max(x.abs()));
        let scale = if largest == 0.0 { 1.0 } else { largest / most };
        bytes.extend(block.iter().map(|x| byte(x / scale)));
        scales.push(scale);
    }
    (bytes, scales)
}

/// The values of a row that was quantised with a scale for every `block` elements.
pub fn dequantise(bytes: &[u8], scales: &[f32], block: u32) -> Vec<f32> {
    let scale = |i: usize| scales[i / block as usize];
    bytes.iter().enumerate().map(|(i, &b)| e4m3_to_f32(b) * scale(i)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_bytes() {
        let table = [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x07, 0.013671875),
            (0x08, 0.015625),
            (0x38, 1.0),
            (0x3c, 1.5),
            (0xc0, -2.0),
            (0x7e, 448.0),
            (0xfe, -448.0),
        ];
        for (byte, value) in table {
            assert_eq!(e4m3_to_f32(byte), value, "{byte:#x}");
        }
        assert!(e4m3_to_f32(0x7f).is_nan() && e4m3_to_f32(0xff).is_nan());
    }

    #[test]
    fn every_value_converts_to_its_byte() {
        for byte in (0..=255u8).filter(|b| b & 0x7f != 0x7f) {
            assert_eq!(e4m3_from_f32(e4m3_to_f32(byte)), byte);
        }
    }

    #[test]
    fn rounds_to_nearest_even_and_saturates() {
        assert_eq!(e4m3_from_f32(1.0625), 0x38, "a tie goes down to the even byte");
        assert_eq!(e4m3_from_f32(1.1875), 0x3a, "a tie goes up to the even byte");
        assert_eq!(e4m3_from_f32(1.07), 0x39);
        assert_eq!(e4m3_from_f32(0.0009), 0x00);
        assert_eq!(e4m3_from_f32(0.00098), 0x01);
        assert_eq!(e4m3_from_f32(1e9), 0x7e);
        assert_eq!(e4m3_from_f32(f32::NEG_INFINITY), 0xfe);
        assert_eq!(e4m3_from_f32(f32::NAN), 0x7f);
        assert_eq!(e4m3_from_f32(-0.0), 0x80);
    }

    #[test]
    fn a_row_has_a_scale_for_every_block_and_its_tail() {
        let row: Vec<f32> = (0..136).map(|i| if i < 128 { 448.0 } else { 1.0 }).collect();
        let (bytes, scales) = quantise(&row, 128);
        assert_eq!(scales, [1.0, 1.0 / 448.0]);
        assert!(bytes.iter().all(|&b| b == 0x7e));
        assert!(dequantise(&bytes, &scales, 128).iter().zip(&row).all(|(a, b)| (a - b).abs() < 1e-6));
        assert_eq!(quantise(&[0.0; 8], 128), (vec![0; 8], vec![1.0]));
    }
}
