//! The 8-bit float `e4m3fn` (OCP FP8): 4 exponent bits with bias 7, 3 mantissa bits, no infinities.
//!
//! Conversions are what the device instructions do: round to nearest even, finite values saturate to ±448. They are
//! shared by the simulator and by reference implementations, so that both round alike.

/// The largest finite value.
pub const MAX: f32 = 448.0;

const NAN: u8 = 0x7f;

const fn decode(bits: u8) -> f32 {
    let sign = ((bits & 0x80) as u32) << 24;
    let magnitude = (bits & 0x7f) as u32;
    if magnitude == 0x7f {
        return f32::from_bits(sign | 0x7fc0_0000);
    }
    let (exponent, mantissa) = (magnitude >> 3, magnitude & 7);
    if exponent == 0 {
        // Subnormal: mantissa * 2^-9, exact in f32.
        let value = mantissa as f32 / 512.0;
        return if sign == 0 { value } else { -value };
    }
    f32::from_bits(sign | ((exponent + 127 - 7) << 23) | (mantissa << 20))
}

static DECODED: [f32; 256] = {
    let mut table = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        table[bits] = decode(bits as u8);
        bits += 1;
    }
    table
};

/// The value of an fp8 number; exact.
pub fn to_f32(bits: u8) -> f32 {
    DECODED[bits as usize]
}

/// The value of the lower four bits as e2m1: a sign, and a magnitude of 0, 0.5, 1, 1.5, 2, 3, 4 or 6.
pub fn e2m1_to_f32(bits: u8) -> f32 {
    let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][usize::from(bits & 7)];
    if bits & 8 == 0 { magnitude } else { -magnitude }
}

/// The value of an e8m0 scale (OCP Microscaling Formats 1.0): 2 to the power of the byte less 127; all ones is NaN.
pub fn e8m0_to_f32(byte: u8) -> f32 {
    if byte == u8::MAX { f32::NAN } else { 2f64.powi(i32::from(byte) - 127) as f32 }
}

/// The nearest fp8 number, ties to even, saturating at ±[`MAX`]; infinities saturate too, NaN stays NaN.
pub fn from_f32(value: f32) -> u8 {
    let bits = value.to_bits();
    let sign = (bits >> 24) as u8 & 0x80;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | NAN;
    }
    if magnitude >= MAX.to_bits() {
        return sign | 0x7e;
    }
    if magnitude < 0x3c80_0000 {
        // Below 2^-6 the grid is uniform with step 2^-9: adding 2^14 in f32 (whose last place is then 2^-9) rounds to
        // it, ties to even. A carry out of the mantissa lands on the smallest normal number.
        let shifted = f32::from_bits(magnitude) + 16384.0;
        return sign | (shifted.to_bits() & 0xff) as u8;
    }
    // Drop 20 of 23 mantissa bits, rounding to nearest even; a carry moves into the exponent, which is right.
    let rounded = magnitude + 0x7_ffff + ((magnitude >> 20) & 1);
    let fp8 = (rounded >> 20) - ((127 - 7) << 3);
    sign | fp8.min(0x7e) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_survives_a_round_trip() {
        for bits in 0..=255u8 {
            let value = to_f32(bits);
            if value.is_nan() {
                assert_eq!(bits & 0x7f, 0x7f);
                assert!(to_f32(from_f32(value)).is_nan());
            } else {
                assert_eq!(from_f32(value), bits, "{value}");
            }
        }
        assert_eq!((to_f32(0x7e), to_f32(0x01), to_f32(0x08)), (448.0, 1.0 / 512.0, 1.0 / 64.0));
    }

    #[test]
    fn rounds_to_nearest_even_between_all_neighbours() {
        for low in 0..0x7eu8 {
            let (a, b) = (to_f32(low), to_f32(low + 1));
            let middle = (a + b) / 2.0;
            let even = if low & 1 == 0 { low } else { low + 1 };
            assert_eq!(from_f32(middle), even, "tie between {a} and {b}");
            assert_eq!(from_f32(-middle), even | 0x80);
            assert_eq!(from_f32(f32::from_bits(middle.to_bits() - 1)), low, "just below {middle}");
            assert_eq!(from_f32(f32::from_bits(middle.to_bits() + 1)), low + 1, "just above {middle}");
        }
    }

    #[test]
    fn saturates() {
        for v in [449.0, 464.0, 465.0, 1e9, f32::INFINITY] {
            assert_eq!((from_f32(v), from_f32(-v)), (0x7e, 0xfe), "{v}");
        }
        assert_eq!((from_f32(0.0), from_f32(-0.0), from_f32(1e-9)), (0, 0x80, 0));
    }
}
