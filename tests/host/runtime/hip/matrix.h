// The instructions of matrices, which a wave runs together: CDNA's ISA says which lane has which elements.
#pragma once

namespace host {

// A 16x16x16 mfma of elements of 16 bits, or 16x16x32 of those of 8, with sums of f32: lane l has eight bytes of row l % 16 of either
// operand, the quarter l / 16 of all, and the sums of rows l / 16 * 4 on of the first with row l % 16 of the second.
template <u32 Bits, typename Words, typename Sums, typename To>
PEERWARP_INLINE Sums multiply_blocks(const Words& a, const Words& b, Sums sums, const To to) {
    const u64 mine[2] = {bits_of<u64>(a), bits_of<u64>(b)};
    const u64* const brought = exchange(mine, 2);
    const auto dot = [&](const u32 row, const u32 other) {
        float sum = 0;
        for (u32 quarter = 0; quarter < 4; ++quarter) {
            const u64 left = brought[(quarter * 16 + row) * 2];
            const u64 right = brought[(quarter * 16 + other) * 2 + 1];
            for (u32 at = 0; at < 64; at += Bits) sum += to(left >> at) * to(right >> at);
        }
        return sum;
    };
    for (u32 i = 0; i < 4; ++i) sums[i] += dot(lane() / 16 * 4 + i, lane() % 16);
    return sums;
}

// A 16x16 wmma of gfx1250 with sums of f32, by 32 lanes: lane l has 32 bytes of row l % 16 of either operand, the same half of all
// columns, and the sums of rows l / 16 * 8 on of the first with row l % 16 of the second.
template <u32 Bits, typename Words, typename Sums, typename To>
PEERWARP_INLINE Sums multiply_halves(const Words& a, const Words& b, Sums sums, const To to) {
    u64 mine[8];
    static_assert(sizeof(a) == 32 && sizeof(sums) == 32, "a lane has 32 bytes of each");
    __builtin_memcpy(mine, &a, 32);
    __builtin_memcpy(mine + 4, &b, 32);
    const u64* const brought = exchange(mine, 8);
    const auto dot = [&](const u32 row, const u32 other) {
        float sum = 0;
        for (u32 word = 0; word < 8; ++word) {
            const u64 left = brought[(word / 4 * 16 + row) * 8 + word % 4];
            const u64 right = brought[(word / 4 * 16 + other) * 8 + 4 + word % 4];
            for (u32 at = 0; at < 64; at += Bits) sum += to(left >> at) * to(right >> at);
        }
        return sum;
    };
    for (u32 i = 0; i < 8; ++i) sums[i] += dot(lane() / 16 * 8 + i, lane() % 16);
    return sums;
}

}  // namespace host

#define __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(a, b, c, ...) ::host::multiply_blocks<16>(a, b, c, ::host::bf16_to)
#define __builtin_amdgcn_mfma_f32_16x16x16f16(a, b, c, ...) ::host::multiply_blocks<16>(a, b, c, ::host::fp16_to)
#define __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(a, b, c, ...) ::host::multiply_blocks<8>(a, b, c, ::host::fp8_to)
#define __builtin_amdgcn_wmma_f32_16x16x32_bf16(na, a, nb, b, nc, c, ...) ::host::multiply_halves<16>(a, b, c, ::host::bf16_to)
#define __builtin_amdgcn_wmma_f32_16x16x32_f16(na, a, nb, b, nc, c, ...) ::host::multiply_halves<16>(a, b, c, ::host::fp16_to)
#define __builtin_amdgcn_wmma_f32_16x16x64_fp8_fp8(a, b, nc, c, ...) ::host::multiply_halves<8>(a, b, c, ::host::fp8_to)
