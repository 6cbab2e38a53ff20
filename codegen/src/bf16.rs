//! The 16-bit float `bfloat16`: the upper half of an `f32`.
//!
//! As in [`fp8`](crate::fp8), the simulator and reference implementations share the conversion, so that both round alike.

/// The bits of the nearest bfloat16, ties to even. There are no branches in it, so that loops of it vectorise.
#[inline(always)]
pub fn bits_of(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = (bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16;
    // A NaN must stay one: rounding could carry out of its mantissa.
    if value.is_nan() { (bits >> 16) as u16 | 0x40 } else { rounded }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;

    #[test]
    fn it_is_what_the_library_says() {
        let of = |bits: u32| f32::from_bits(bits);
        let near = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff]
            .map(|low| [0x3f80, 0x3f81, 0x7f7f, 0xff7f].map(|up| of(up << 16 | low)));
        let rest = [
            0.0,
            -0.0,
            f32::INFINITY,
            -f32::INFINITY,
            f32::NAN,
            of(0x7f80_0001),
            of(0xff80_ffff),
            of(1),
            of(0x0080_8000),
        ];
        let all = (0..=u32::MAX).step_by(65521).map(of);
        for x in near.into_iter().flatten().chain(rest).chain(all) {
            assert_eq!(bits_of(x), bf16::from_f32(x).to_bits(), "{x}");
        }
    }
}
