#include "words.h"

namespace host {

using std::uint32_t;
using std::uint64_t;

// Table 40: addresses and distances are (x & 0x3ffff) >> 4.
OperandWord operand_word(const uint64_t word) {
    OperandWord found = {bits(word, 0, 14) << 4, bits(word, 32, 14) << 4, 0, ""};
    const uint32_t swizzle = bits(word, 61, 3);
    found.row_bytes = swizzle == 2 ? 128 : swizzle == 4 ? 64 : swizzle == 6 ? 32 : 0;
    if (bits(word, 46, 3) != 1) found.wrong = "bits 46 to 48 of a descriptor are not 0b001";
    else if (bits(word, 53, 8) != 0) found.wrong = "bits 53 to 60 of a descriptor are not 0";
    else if (bits(word, 14, 2) != 0 || bits(word, 30, 2) != 0) found.wrong = "reserved bits of a descriptor are not 0";
    else if (bits(word, 49, 3) != 0) found.wrong = "a matrix that begins inside a pattern is not modelled";
    else if (found.row_bytes == 0) found.wrong = "swizzle mode " + std::to_string(swizzle) + " is not modelled";
    else if (found.start / found.row_bytes % 8 != 0) found.wrong = "a matrix begins in the middle of eight rows";
    return found;
}

uint64_t OperandWord::at(const uint64_t first, const uint32_t row, const uint32_t byte) const {
    const uint64_t plain = first + uint64_t(row / 8) * stride + row % 8 * row_bytes + byte;
    // 128 bytes: bits 4 to 6 by bits 7 to 9; 64 bytes: 4 and 5 by 7 and 8; 32 bytes: 4 by 7.
    const uint64_t units = row_bytes / 16 - 1;
    return plain ^ (plain >> 7 & units) << 4;
}

// Table 42.
ProductWord product_word(const ProductKind kind, const uint32_t word, const uint32_t group) {
    ProductWord found = {bits(word, 24, 5) << 4, bits(word, 17, 6) << 3, ElementType::Fp16, ElementType::Fp16, ""};
    const auto type = [&](const uint32_t number) {
        if (kind == ProductKind::F16 && number <= 1) return number == 0 ? ElementType::Fp16 : ElementType::Bf16;
        if (kind == ProductKind::F16 || number != 0) found.wrong = "element type " + std::to_string(number) + " is not modelled";
        return ElementType::E4m3;
    };
    found.left = type(bits(word, 7, 3));
    found.right = type(bits(word, 10, 3));
    const uint32_t rows = found.rows, columns = found.columns;
    const uint32_t step = rows == 256 ? 32 : rows == 128 ? 16 : 8;
    if (bits(word, 0, 4) != 0) found.wrong = "sparse and saturating products are not modelled";
    else if (bits(word, 4, 2) != 1) found.wrong = "sums are not of f32";
    else if (bits(word, 13, 4) != 0) found.wrong = "negated and transposed operands are not modelled";
    else if ((word & (1u << 6 | 1u << 23 | 1u << 29)) != 0) found.wrong = "reserved bits of a product's descriptor are not 0";
    else if (bits(word, 30, 2) != 0) found.wrong = "shifts are not modelled";
    else if (group == 2 && rows != 256) found.wrong = "a pair's product of " + std::to_string(rows) + " rows is not modelled";
    else if ((group == 1 && rows != 64 && rows != 128) || columns == 0 || columns > 256 || columns % step != 0) {
        found.wrong = "no product has " + std::to_string(rows) + " x " + std::to_string(columns) + " sums";
    }
    return found;
}

}  // namespace host
