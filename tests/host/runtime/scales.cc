#include "scales.h"

#include <cmath>
#include <limits>

#include "floats.h"
#include "words.h"

namespace host {

using std::uint32_t;
using std::uint64_t;

// Table 40. The distance along rows means nothing where they have one unit of 16 bytes.
CopyWord copy_word(const uint64_t word) {
    CopyWord found = {bits(word, 0, 14) << 4, bits(word, 32, 14) << 4, ""};
    if (bits(word, 46, 3) != 1) found.wrong = "bits 46 to 48 of a copy's descriptor are not 0b001";
    else if (bits(word, 53, 8) != 0) found.wrong = "bits 53 to 60 of a copy's descriptor are not 0";
    else if (bits(word, 14, 2) != 0 || bits(word, 30, 2) != 0) found.wrong = "reserved bits of a copy's descriptor are not 0";
    else if (bits(word, 49, 4) != 0) found.wrong = "a copy that begins inside a pattern is not modelled";
    else if (bits(word, 61, 3) != 0) found.wrong = "a copy of swizzled rows is not modelled";
    return found;
}

// Table 43.
ScaledWord scaled_word(const ScaledKind kind, const uint32_t word) {
    const bool mx = kind == ScaledKind::Mxf8f6f4;
    ScaledWord found = {bits(word, 27, 2) << 7, bits(word, 17, 6) << 3, bits(word, 29, 2), bits(word, 4, 2), mx ? 1u : 4u, ""};
    // The reserved bits: of e2m1 the right type has two bits.
    const uint32_t reserved = 1u << 3 | 1u << 6 | 7u << 24 | (mx ? 0 : 1u << 12);
    if (bits(word, 0, 3) != 0) found.wrong = "sparse products with scales are not modelled";
    else if ((word & reserved) != 0) found.wrong = "reserved bits of a scaled product's descriptor are not 0";
    else if (bits(word, 7, 6) != (mx ? 0u : 9u)) found.wrong = mx ? "elements with scales are not e4m3" : "elements with scales are not e2m1";
    else if (bits(word, 13, 4) != 0) found.wrong = "negated and transposed operands with scales are not modelled";
    else if (bits(word, 23, 1) != (mx ? 1u : 0u)) found.wrong = mx ? "scales of kind::mxf8f6f4 are not ue8m0" : "scales of 16 elements are not ue4m3";
    else if (bits(word, 31, 1) != 0) found.wrong = "products of 96 columns are not modelled";
    else if (!mx && (found.left_byte != 0 || found.right_byte != 0)) found.wrong = "four scales of a row begin inside a word";
    else if (found.rows != 128 || found.columns == 0 || found.columns > 256 || found.columns % 8 != 0) {
        found.wrong = "no product with scales has " + std::to_string(found.rows) + " x " + std::to_string(found.columns) + " sums";
    }
    return found;
}

// scale_vec::1X and 4X: a column has 32 rows.
ScalePlace scale_place(const uint32_t row) { return {row % 32, row / 32}; }

float scale_of(const ScaledKind kind, const uint32_t word, const uint32_t byte) {
    const uint32_t scale = word >> 8 * byte & 0xff;
    if (kind == ScaledKind::Mxf4nvf4) return fp8_to(std::uint8_t(scale));
    return scale == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(scale) - 127);
}

float e2m1_to(const uint32_t bits) {
    const uint32_t exponent = bits >> 1 & 3, mantissa = bits & 1;
    const float magnitude = exponent == 0 ? float(mantissa) / 2 : std::ldexp(1 + float(mantissa) / 2, int(exponent) - 1);
    return (bits & 8) != 0 ? -magnitude : magnitude;
}

}  // namespace host
