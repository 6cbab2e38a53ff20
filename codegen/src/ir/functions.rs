//! Functions of `f32` that every target computes alike: the same operations in the same order, each rounded once.
//!
//! `templates/prim` has their text. Coefficients are of minimax polynomials, rounded to `f32`. Every NaN is the same one.

use std::f32::consts::{FRAC_2_PI, FRAC_PI_2, LN_2, SQRT_2};

/// A polynomial of `x`, its highest coefficient first.
fn polynomial<const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    coefficients.into_iter().reduce(|sum, c| sum.mul_add(x, c)).unwrap_or(0.0)
}

/// 1 / sqrt(x), rounded once: the way through `f64` rounds no `f32` to the wrong side.
pub(super) fn rsqrt(x: f32) -> f32 {
    if x >= 0.0 { (1.0 / f64::from(x).sqrt()) as f32 } else { f32::NAN }
}

/// The natural logarithm: x is m * 2^e with m from sqrt(1/2) to sqrt(2), and ln(m) is a polynomial of m - 1.
pub(super) fn log(x: f32) -> f32 {
    let least = (SQRT_2 / 2.0).to_bits();
    let subnormal = x < f32::MIN_POSITIVE;
    let bits = (if subnormal { x * 8_388_608.0 } else { x }).to_bits().wrapping_sub(least);
    let e = (bits as i32 >> 23) as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = f32::from_bits((bits & 0x7f_ffff) + least) - 1.0;
    let p = polynomial(
        f,
        [
            -0.07621779,
            0.12904434,
            -0.13242988,
            0.14181826,
            -0.16609083,
            0.20001973,
            -0.25001583,
            0.33333325,
            -0.49999988,
        ],
    );
    match x {
        f32::INFINITY => x,
        _ if x > 0.0 => e.mul_add(LN_2, p.mul_add(f * f, f)),
        0.0 => f32::NEG_INFINITY,
        _ => f32::NAN,
    }
}

/// The error function: below 1 an odd polynomial, from there on one around 2.5. From 4 on it is 1.
pub(super) fn erf(x: f32) -> f32 {
    let y = x.abs();
    let magnitude = if y < 1.0 {
        let small =
            [7.853861e-5, -0.00080101937, 0.0051883277, -0.026853811, 0.112835854, -0.37612626, 0.12837917];
        polynomial(y * y, small).mul_add(y, y)
    } else {
        let large = [
            -3.4958802e-7,
            8.882408e-7,
            3.4493994e-6,
            -1.5705127e-5,
            7.7970735e-6,
            8.105922e-5,
            -0.00025348674,
            0.00025878949,
            0.0005445845,
            -0.0027975983,
            0.006116567,
            -0.0086225895,
            0.008350215,
            -0.005445691,
            0.0021782783,
            0.999593,
        ];
        if y < 4.0 { polynomial(y - 2.5, large) } else { 1.0 }
    };
    if x.is_nan() { f32::NAN } else { magnitude.copysign(x) }
}

/// Largest magnitude whose sine and cosine are computed: beyond, both are NaN.
const FARTHEST: f32 = 1_048_576.0;

/// The sine of x and `turns` quarters of a turn: x less a multiple of pi/2, which three numbers add up to.
fn trig(x: f32, turns: u32) -> f32 {
    // As large a number has no fraction: the sum is rounded to a whole one, whose low bits are its own.
    let whole = 12_582_912.0;
    let turned = x.mul_add(FRAC_2_PI, whole);
    let k = whole - turned;
    let r = k.mul_add(FRAC_PI_2, x);
    let r = k.mul_add(-1.7151245e-15, k.mul_add(-4.371139e-8, r));
    let (quarter, s) = (turned.to_bits().wrapping_add(turns), r * r);
    let value = if quarter & 1 == 0 {
        (polynomial(s, [-0.00019503069, 0.008332071, -0.16666654]) * s).mul_add(r, r)
    } else {
        polynomial(s, [2.4419196e-5, -0.0013887194, 0.04166664, -0.5]).mul_add(s, 1.0)
    };
    match x.abs() <= FARTHEST {
        true if quarter & 2 == 0 => value,
        true => -value,
        false => f32::NAN,
    }
}

/// The sine, of at most [`FARTHEST`]. That of -0 is -0.
pub(super) fn sin(x: f32) -> f32 {
    if x == 0.0 { x } else { trig(x, 0) }
}

/// The cosine, of at most [`FARTHEST`].
pub(super) fn cos(x: f32) -> f32 {
    trig(x, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How far a result is from the exact one, in units in the last place of the latter.
    fn units(got: f32, want: f64) -> f64 {
        let near = (want as f32).abs().max(f32::MIN_POSITIVE);
        (f64::from(got) - want).abs() / f64::from(near.next_up() - near)
    }

    /// The largest error over numbers of both signs up to `last`, dense in each binade.
    fn error(f: fn(f32) -> f32, exact: fn(f64) -> f64, last: f32) -> f64 {
        let bits = (0..=last.to_bits()).step_by(2_003).chain([last.to_bits()]);
        let both = bits.map(f32::from_bits).flat_map(|x| [x, -x]);
        both.map(|x| (x, exact(x.into())))
            .filter(|(_, want)| want.is_finite())
            .map(|(x, want)| {
                let got = f(x);
                assert_eq!(
                    got.is_sign_negative(),
                    want.is_sign_negative(),
                    "{x:e} gives {got:e}, not {want:e}"
                );
                units(got, want)
            })
            .fold(0.0, f64::max)
    }

    /// As `libm` has it, which Rust's floats have not: the series around zero, and the continued fraction of what is left to 1.
    fn exact_erf(x: f64) -> f64 {
        let y = x.abs();
        let value = if y < 3.0 {
            let terms = (0..120).scan(y, |term, n| {
                let now = *term / f64::from(2 * n + 1);
                *term *= -y * y / f64::from(n + 1);
                Some(now)
            });
            terms.sum::<f64>() * std::f64::consts::FRAC_2_SQRT_PI
        } else {
            let fraction = (1..60).rev().fold(y, |rest, n| y + f64::from(n) / 2.0 / rest);
            1.0 - (-y * y).exp() / fraction * std::f64::consts::FRAC_2_SQRT_PI / 2.0
        };
        value.copysign(x)
    }

    #[test]
    fn errors_stay_within_their_bounds() {
        assert!(error(log, f64::ln, f32::MAX) <= 1.0);
        assert!(error(erf, exact_erf, f32::MAX) <= 1.5);
        assert!(error(sin, f64::sin, FARTHEST) <= 2.0);
        assert!(error(cos, f64::cos, FARTHEST) <= 2.0);
        assert!(error(rsqrt, |x| 1.0 / x.sqrt(), f32::MAX) <= 0.5 + 1e-9);
    }

    /// A result is the nearest `f32` exactly if 1 lies between the squares of the midpoints beside it, times x.
    #[test]
    fn rsqrt_rounds_once() {
        for bits in (1.0f32.to_bits() + 1..4.0f32.to_bits()).step_by(101) {
            let got = rsqrt(f32::from_bits(bits));
            // In units of 2^-27 the midpoints are whole numbers, in units of 2^-23 x is.
            let midpoint =
                |other: f32| ((f64::from(got) + f64::from(other)) / 2.0 * f64::from(1 << 27)) as u128;
            let x = (f64::from(f32::from_bits(bits)) * f64::from(1 << 23)) as u128;
            let [below, above] = [midpoint(got.next_down()), midpoint(got.next_up())].map(|m| m * m * x);
            assert!(below < 1 << 77 && above > 1 << 77, "{bits:#x}");
        }
    }

    #[test]
    fn what_is_no_number_or_too_large_has_one_nan() {
        let nan = f32::NAN.to_bits();
        let infinities = [f32::INFINITY, f32::NEG_INFINITY];
        let nans = [f32::NAN, -f32::NAN, f32::from_bits(0xffc1_2345)];
        for f in [rsqrt, log, erf, sin, cos] {
            assert!(nans.iter().all(|&x| f(x).to_bits() == nan));
        }
        for f in [sin, cos] {
            let beyond = [FARTHEST.next_up(), -FARTHEST.next_up(), f32::MAX];
            assert!(beyond.into_iter().chain(infinities).all(|x| f(x).to_bits() == nan));
            assert!(f(FARTHEST).is_finite() && f(-FARTHEST).is_finite());
        }
        for f in [rsqrt, log] {
            assert!([-1.0, -1e-45, f32::NEG_INFINITY].iter().all(|&x| f(x).to_bits() == nan));
        }
        assert_eq!([0.0, -0.0, f32::INFINITY].map(log), [-f32::INFINITY, -f32::INFINITY, f32::INFINITY]);
        assert_eq!([0.0, -0.0, f32::INFINITY].map(rsqrt), [f32::INFINITY, -f32::INFINITY, 0.0]);
        assert_eq!(infinities.map(erf), [1.0, -1.0]);
    }
}
