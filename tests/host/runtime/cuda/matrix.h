// The instructions of matrices, which a warp runs together: PTX's ISA says which lane has which elements.
#pragma once

namespace host {

// ldmatrix.m8n8.x4: four blocks of 8 rows and 8 elements of 16 bits. Lane i says where row i % 8 of block i / 8 begins, and
// gets two neighbours of row i / 4 of each.
PEERWARP_INLINE void load_blocks(const void* const row, u32& a, u32& b, u32& c, u32& d) {
    const u64 mine = bits_of<u64>(row);
    const u64* const rows = exchange(&mine, 1);
    const auto of = [&](const u32 block) {
        return static_cast<const u32*>(from_bits<const void*>(rows[block * 8 + lane() / 4]))[lane() % 4];
    };
    const u32 words[4] = {of(0), of(1), of(2), of(3)};
    a = words[0];
    b = words[1];
    c = words[2];
    d = words[3];
}

// Two bf16 of a word, each times one of another plus one of a third.
PEERWARP_INLINE u32 fma_bf16s(const u32 a, const u32 b, const u32 c) {
    const auto at = [](const u32 word, const u32 half) { return bf16_to(std::uint16_t(word >> 16 * half)); };
    const auto one = [&](const u32 half) { return u32(bf16_from(__builtin_fmaf(at(a, half), at(b, half), at(c, half)))); };
    return one(0) | one(1) << 16;
}

// mma.m16n8k16 of elements of 16 bits, or mma.m16n8k32 of those of 8, with sums of f32.
template <typename Elements>
PEERWARP_INLINE void multiply_blocks(
    float& upper, float& upper_next, float& lower, float& lower_next, const u32 a0, const u32 a1, const u32 a2,
    const u32 a3, const u32 b0, const u32 b1) {
    // The columns of a row or of the other matrix's, 32 bytes: lane `first` has the first 4 of either half, the next 4 behind them.
    constexpr u32 each = Elements::count, columns = 8 * each;
    struct Row {
        float of[columns];
    };
    const u64 mine[3] = {a0 | u64(a2) << 32, a1 | u64(a3) << 32, b0 | u64(b1) << 32};
    const u64* const brought = exchange(mine, 3);
    const auto columns_of = [&](const u32 which, const u32 first) {
        Row all;
        for (u32 i = 0; i < 4; ++i) {
            const u64 words = brought[(first + i) * 3 + which];
            for (u32 half = 0; half < 2; ++half) {
                const u32 word = u32(words >> (32 * half));
                for (u32 j = 0; j < each; ++j) {
                    all.of[(half * 4 + i) * each + j] = Elements::to(word >> (32 / each * j));
                }
            }
        }
        return all;
    };
    const u32 row = lane() / 4 * 4;
    const Row above = columns_of(0, row), below = columns_of(1, row);
    // The same lanes ask for two rows of the other matrix: those with the numbers of the sums' columns.
    const Row left = columns_of(2, lane() % 4 * 8), right = columns_of(2, lane() % 4 * 8 + 4);
    for (u32 k = 0; k < columns; ++k) {
        upper += above.of[k] * left.of[k];
        upper_next += above.of[k] * right.of[k];
        lower += below.of[k] * left.of[k];
        lower_next += below.of[k] * right.of[k];
    }
}

// wgmma.m64nNk16, or m64nNk32 of elements of 8 bits, with sums of f32: products.h says what it reads and changes, and when.
template <typename Elements, typename... Sums>
PEERWARP_INLINE void multiply_later(const u64 a, const u64 b, Sums&... sums) {
    float* const all[] = {&sums...};
    products_later(Elements::to, 4 / Elements::count, a, b, all, sizeof...(sums));
}

// tcgen05.ld.16x256b: tensor.h says which lane gets what.
template <typename... Sums>
PEERWARP_INLINE void tensor_load(const u32 at, Sums&... sums) {
    float* const all[] = {&sums...};
    tensor_load_all(at, all, sizeof...(sums));
}

}  // namespace host
