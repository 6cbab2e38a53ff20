// What emitted CUDA sources use of CUDA C++, for a run on the CPU.
#pragma once

#include "../floats.h"
#include "../host.h"

// What emitted sources call of the C library: <cmath> would take longer to compile than a kernel.
extern "C" {
float expf(float);
float fabsf(float);
float fminf(float, float);
float fmaxf(float, float);
}

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__

#define threadIdx (::host::thread_index())
#define blockIdx (::host::block_index())

// ---- Meetings

PEERWARP_INLINE void __syncthreads() { ::host::barrier(0, ::host::block_threads(), true); }
PEERWARP_INLINE int __syncthreads_and(const int mine) { return ::host::barrier(0, ::host::block_threads(), mine != 0); }
PEERWARP_INLINE void __syncwarp() { ::host::warp_sync(); }

PEERWARP_INLINE void __whole_warp(const unsigned mask) {
    if (mask != 0xffffffffu) __builtin_trap();  // emitted sources name no other lanes
}
PEERWARP_INLINE int __all_sync(const unsigned mask, const int mine) {
    __whole_warp(mask);
    return ::host::ballot(mine != 0) == 0xffffffffu;
}
template <typename T>
PEERWARP_INLINE T __shfl_sync(const unsigned mask, const T x, const int from) {
    __whole_warp(mask);
    return ::host::from_bits<T>(::host::shuffle(::host::bits_of<::host::u64>(x), unsigned(from) % 32));
}
template <typename T>
PEERWARP_INLINE T __shfl_xor_sync(const unsigned mask, const T x, const int apart) {
    return __shfl_sync(mask, x, int(::host::lane() ^ unsigned(apart)));
}
template <typename T>
PEERWARP_INLINE T __shfl_up_sync(const unsigned mask, const T x, const unsigned by) {
    const unsigned lane = ::host::lane();
    return __shfl_sync(mask, x, int(lane < by ? lane : lane - by));
}
PEERWARP_INLINE unsigned __reduce_or_sync(const unsigned mask, const unsigned x) {
    unsigned all = 0;
    for (int lane = 0; lane < 32; ++lane) all |= __shfl_sync(mask, x, lane);
    return all;
}
PEERWARP_INLINE unsigned __match_any_sync(const unsigned mask, const unsigned x) {
    unsigned same = 0;
    for (int lane = 0; lane < 32; ++lane) same |= unsigned(__shfl_sync(mask, x, lane) == x) << lane;
    return same;
}

// ---- Atomics: relaxed, at gpu scope, or at block scope where the name says so

PEERWARP_INLINE void __threadfence() { ::host::fence(::host::Order::AcqRel, ::host::Scope::Gpu); }
PEERWARP_INLINE void __threadfence_block() { ::host::fence(::host::Order::AcqRel, ::host::Scope::Block); }
PEERWARP_INLINE void __threadfence_system() { ::host::fence(::host::Order::AcqRel, ::host::Scope::System); }

#define PEERWARP_ATOMIC(name, suffix, scope, expression)                                    \
    template <typename T>                                                                   \
    PEERWARP_INLINE T atomic##name##suffix(T* const p, const ::host::Value<T> x) {          \
        return ::host::atomic_update(p, ::host::Order::Relaxed, ::host::Scope::scope,       \
                                     [&](const T old) -> T { return expression; });         \
    }
#define PEERWARP_ATOMICS(suffix, scope)                          \
    PEERWARP_ATOMIC(Add, suffix, scope, old + x)                 \
    PEERWARP_ATOMIC(And, suffix, scope, old& x)                  \
    PEERWARP_ATOMIC(Or, suffix, scope, old | x)                  \
    PEERWARP_ATOMIC(Min, suffix, scope, x < old ? x : old)       \
    PEERWARP_ATOMIC(Max, suffix, scope, old < x ? x : old)       \
    PEERWARP_ATOMIC(Exch, suffix, scope, x)
PEERWARP_ATOMICS(, Gpu)
PEERWARP_ATOMICS(_block, Block)
PEERWARP_ATOMICS(_system, System)

template <typename T>
PEERWARP_INLINE T atomicCAS(T* const p, const ::host::Value<T> expected, const ::host::Value<T> x) {
    return ::host::atomic_update(p, ::host::Order::Relaxed, ::host::Scope::Gpu,
                                 [&](const T old) { return old == expected ? x : old; });
}

// ---- Stores that are written in PTX

// Addresses count bytes.
PEERWARP_INLINE char* __cvta_generic_to_global(const void* const p) { return (char*)p; }
PEERWARP_INLINE char* __cvta_generic_to_shared(const void* const p) { return (char*)p; }

namespace host {
// One store of a vector of words.
template <typename... Words>
PEERWARP_INLINE void store_words(void* const p, const Words... words) {
    struct alignas(4 * sizeof...(words)) Vector {
        u32 words[sizeof...(words)];
    };
    *static_cast<Vector*>(p) = Vector{{u32(words)...}};
}

// One load of a vector of words.
template <typename... Words>
PEERWARP_INLINE void load_words(const void* const p, Words&... words) {
    struct alignas(4 * sizeof...(words)) Vector {
        u32 words[sizeof...(words)];
    };
    const Vector x = *static_cast<const Vector*>(p);
    u32 i = 0;
    ((words = x.words[i++]), ...);
}

// The elements of a 32-bit word that a switch reduces, or that are multiplied: how many, and what they are as floats.
struct Singles {
    static constexpr u32 count = 1;
    static float to(const u32 bits) { return float_of(bits); }
    static u32 from(const float x) { return float_bits(x); }
};
struct Bf16s {
    static constexpr u32 count = 2;
    static float to(const u32 bits) { return bf16_to(std::uint16_t(bits)); }
    static u32 from(const float x) { return bf16_from(x); }
};
struct Fp16s {
    static constexpr u32 count = 2;
    static float to(const u32 bits) { return fp16_to(std::uint16_t(bits)); }
    static u32 from(const float x) { return fp16_from(x); }
};
struct Fp8s {
    static constexpr u32 count = 4;
    static float to(const u32 bits) { return fp8_to(std::uint8_t(bits)); }
};

PEERWARP_INLINE void set_word(float& to, const u32 bits) { to = float_of(bits); }
PEERWARP_INLINE void set_word(u32& to, const u32 bits) { to = bits; }

// A vector of words of all ranks as one: in float, in the order of ranks, rounded once.
template <typename Elements, typename Combine, typename... Words>
PEERWARP_INLINE void multimem_load(const void* const everyone, const Combine combine, Words&... words) {
    constexpr u32 count = sizeof...(words) * Elements::count;
    constexpr u32 bits = 32 / Elements::count;
    struct alignas(4 * sizeof...(words)) Vector {
        u32 words[sizeof...(words)];
    };
    float all[count];
    for (u32 rank = 0; rank < world_ranks(); ++rank) {
        const Vector got = *static_cast<const Vector*>(instance(everyone, rank));
        for (u32 i = 0; i < count; ++i) {
            const u32 word = got.words[i / Elements::count] >> (bits * (i % Elements::count));
            const float x = Elements::to(word);
            all[i] = rank == 0 ? x : combine(all[i], x);
        }
    }
    u32 at = 0;
    const auto next = [&] {
        u32 word = 0;
        for (u32 i = 0; i < Elements::count; ++i) word |= Elements::from(all[at++]) << (bits * i);
        return word;
    };
    (set_word(words, next()), ...);
}
template <typename... Words>
PEERWARP_INLINE void multimem_store(void* const everyone, const Words... words) {
    for (u32 rank = 0; rank < world_ranks(); ++rank) store_words(instance(everyone, rank), float_bits(words)...);
}
}  // namespace host

#include "matrix.h"

// ---- Arithmetic

PEERWARP_INLINE int __popc(const unsigned x) { return __builtin_popcount(x); }
PEERWARP_INLINE int __popcll(const unsigned long long x) { return __builtin_popcountll(x); }
PEERWARP_INLINE int __ffs(const int x) { return __builtin_ffs(x); }
PEERWARP_INLINE int __ffsll(const long long x) { return __builtin_ffsll(x); }
PEERWARP_INLINE float __uint_as_float(const unsigned x) { return ::host::from_bits<float>(x); }
PEERWARP_INLINE float __int_as_float(const int x) { return ::host::from_bits<float>(unsigned(x)); }
PEERWARP_INLINE float __fmaf_rn(const float x, const float y, const float z) { return __builtin_fmaf(x, y, z); }
PEERWARP_INLINE float __fmul_rn(const float x, const float y) { return x * y; }
PEERWARP_INLINE float __frsqrt_rn(const float x) { return float(1.0 / __builtin_sqrt(double(x))); }
PEERWARP_INLINE float __fsqrt_rn(const float x) { return __builtin_sqrtf(x); }

PEERWARP_INLINE int __float2int_rz(const float x) {
    if (x != x) return 0;
    if (x >= 2147483648.0f) return 0x7fffffff;
    return x < -2147483648.0f ? -0x7fffffff - 1 : int(x);
}
PEERWARP_INLINE unsigned __float2uint_rz(const float x) {
    if (!(x > 0.0f)) return 0;
    return x >= 4294967296.0f ? 0xffffffffu : unsigned(x);
}
PEERWARP_INLINE unsigned long long __float2ull_rz(const float x) {
    if (!(x > 0.0f)) return 0;
    return x >= 18446744073709551616.0f ? ~0ull : static_cast<unsigned long long>(x);
}
