// Narrow floats, converted in software: round to nearest even.
#pragma once

#include <cstdint>
#include <cstring>

namespace host {

inline std::uint32_t float_bits(const float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float float_of(const std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline std::uint16_t bf16_from(const float x) {
    const std::uint32_t bits = float_bits(x);
    if (x != x) return std::uint16_t((bits >> 16) | 0x40);
    return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float bf16_to(const std::uint16_t bits) { return float_of(std::uint32_t(bits) << 16); }

// A float with fewer bits: `Exponent` of them for the exponent, `Mantissa` for the mantissa.
template <int Exponent, int Mantissa>
struct Narrow {
    static constexpr int bias = (1 << (Exponent - 1)) - 1;
    static constexpr int least_normal = 1 - bias;

    // The value's magnitude in units of the last place of its binade, rounded; `binade` is at least the least normal.
    static std::uint32_t from_finite(const float magnitude) {
        if (magnitude == 0) return 0;
        int exponent;
        __builtin_frexpf(magnitude, &exponent);  // magnitude is in [0.5, 1) * 2^exponent
        const int binade = exponent - 1 < least_normal ? least_normal : exponent - 1;
        const double units = __builtin_ldexp(double(magnitude), Mantissa - binade);
        const auto rounded = std::uint32_t(__builtin_nearbyint(units));
        // Adding carries a full mantissa over into the exponent.
        const std::uint32_t below = std::uint32_t(binade - least_normal) << Mantissa;
        return below + rounded;
    }
    static float to_finite(const std::uint32_t bits) {
        const std::uint32_t exponent = bits >> Mantissa;
        const std::uint32_t mantissa = bits & ((1u << Mantissa) - 1);
        if (exponent == 0) return __builtin_ldexpf(float(mantissa), least_normal - Mantissa);
        return __builtin_ldexpf(float(mantissa | (1u << Mantissa)), int(exponent) - bias - Mantissa);
    }
};

using Fp16 = Narrow<5, 10>;
inline std::uint16_t fp16_from(const float x) {
    const auto sign = std::uint16_t((float_bits(x) >> 16) & 0x8000);
    const float magnitude = __builtin_fabsf(x);
    if (x != x) return std::uint16_t(sign | 0x7e00);
    if (magnitude >= 65520.0f) return std::uint16_t(sign | 0x7c00);
    return std::uint16_t(sign | Fp16::from_finite(magnitude));
}
inline float fp16_to(const std::uint16_t bits) {
    const std::uint32_t sign = std::uint32_t(bits & 0x8000) << 16;
    const std::uint32_t magnitude = bits & 0x7fff;
    if (magnitude > 0x7c00) return float_of(sign | 0x7fc00000);
    if (magnitude == 0x7c00) return float_of(sign | 0x7f800000);
    return float_of(sign | float_bits(Fp16::to_finite(magnitude)));
}

// OCP e4m3fn: no infinities, out of range becomes the largest finite value.
using Fp8 = Narrow<4, 3>;
inline std::uint8_t fp8_from(const float x) {
    const auto sign = std::uint8_t((float_bits(x) >> 24) & 0x80);
    const float magnitude = __builtin_fabsf(x);
    if (x != x) return std::uint8_t(sign | 0x7f);
    if (magnitude >= 448.0f) return std::uint8_t(sign | 0x7e);
    return std::uint8_t(sign | Fp8::from_finite(magnitude));
}
inline float fp8_to(const std::uint8_t bits) {
    const std::uint32_t sign = std::uint32_t(bits & 0x80) << 24;
    if ((bits & 0x7f) == 0x7f) return float_of(sign | 0x7fc00000);
    return float_of(sign | float_bits(Fp8::to_finite(bits & 0x7f)));
}

}  // namespace host
