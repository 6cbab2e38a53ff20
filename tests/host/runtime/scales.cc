#include "scales.h"

#include <cmath>
#include <limits>

namespace host {

using std::uint32_t;
using std::uint64_t;

static uint32_t bits(const uint64_t word, const uint32_t from, const uint32_t count) {
    return uint32_t(word >> from & ((uint64_t(1) << count) - 1));
}

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
ScaledWord scaled_word(const uint32_t word) {
    ScaledWord found = {bits(word, 27, 2) << 7, bits(word, 17, 6) << 3, bits(word, 29, 2), bits(word, 4, 2), ""};
    if (bits(word, 0, 3) != 0) found.wrong = "sparse products with scales are not modelled";
    else if (bits(word, 7, 6) != 0) found.wrong = "elements with scales are not e4m3";
    else if (bits(word, 13, 4) != 0) found.wrong = "negated and transposed operands with scales are not modelled";
    else if (bits(word, 23, 1) != 1) found.wrong = "scales of kind::mxf8f6f4 are not ue8m0";
    else if ((word & (1u << 3 | 1u << 6 | 7u << 24 | 1u << 31)) != 0) found.wrong = "reserved bits of a scaled product's descriptor are not 0";
    else if (found.rows != 128 || found.columns == 0 || found.columns > 256 || found.columns % 8 != 0) {
        found.wrong = "no product with scales has " + std::to_string(found.rows) + " x " + std::to_string(found.columns) + " sums";
    }
    return found;
}

// scale_vec::1X: a column has 32 rows.
ScalePlace scale_place(const uint32_t row) { return {row % 32, row / 32}; }

float scale_of(const uint32_t word, const uint32_t byte) {
    const uint32_t power = word >> 8 * byte & 0xff;
    return power == 0xff ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(power) - 127);
}

}  // namespace host
