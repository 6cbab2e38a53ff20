// What emitted HIP sources use of HIP and of AMD's builtins, for a run on the CPU.
#pragma once

#include "../floats.h"
#include "../host.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define address_space(number)  // there is one

#define __builtin_amdgcn_workitem_id_x() (::host::thread_index().x)
#define __builtin_amdgcn_workgroup_id_x() (::host::block_index().x)
#define __builtin_amdgcn_kernarg_segment_ptr() (::host::kernel_arguments())

// ---- Meetings

#define __builtin_amdgcn_s_barrier() ::host::block_barrier()
#define __builtin_amdgcn_wave_barrier() ::host::wave_barrier()
#define __builtin_amdgcn_ballot_w64(mine) ::host::ballot(mine)
#define __builtin_amdgcn_ballot_w32(mine) ::host::u32(::host::ballot(mine))
#define __builtin_amdgcn_ds_bpermute(address, x) \
    int(::host::shuffle(::host::u32(x), ::host::u32(address) / 4 % 64))
#define __builtin_amdgcn_readfirstlane(x) int(::host::shuffle(::host::u32(x), 0))
#define __builtin_amdgcn_s_sleep(count) ::host::pause()

// 100 MHz.
#define __builtin_amdgcn_s_memrealtime() (::host::now_ns() / 10)
// The message that asks for it, in gfx12: 0x83.
#define __builtin_amdgcn_s_sendmsg_rtnl(message) (::host::now_ns() / ((message) == 0x83 ? 10 : 0))

// ---- Fences and atomics

namespace host {

constexpr bool same(const char* a, const char* b) {
    return *a == *b && (*a == 0 || same(a + 1, b + 1));
}
// Fails to compile where a scope is unknown: an exception is no constant.
constexpr Scope scope_named(const char* name) {
    if (same(name, "wavefront")) return Scope::Warp;
    if (same(name, "workgroup")) return Scope::Block;
    if (same(name, "agent")) return Scope::Gpu;
    if (same(name, "")) return Scope::System;
    __builtin_trap();
}
constexpr Order order_of(const int order) {
    switch (order) {
        case __ATOMIC_RELAXED: return Order::Relaxed;
        case __ATOMIC_ACQUIRE: return Order::Acquire;
        case __ATOMIC_RELEASE: return Order::Release;
        case __ATOMIC_ACQ_REL: return Order::AcqRel;
    }
    __builtin_trap();
}

template <typename T>
PEERWARP_INLINE bool compare_exchange(T* const p, T* const expected, const Value<T> x, const Order order, const Scope scope) {
    const T wanted = *expected;
    *expected = atomic_update(p, order, scope, [&](const T old) { return old == wanted ? x : old; });
    return *expected == wanted;
}

}  // namespace host

#define __HIP_MEMORY_SCOPE_WAVEFRONT ::host::Scope::Warp
#define __HIP_MEMORY_SCOPE_WORKGROUP ::host::Scope::Block
#define __HIP_MEMORY_SCOPE_AGENT ::host::Scope::Gpu
#define __HIP_MEMORY_SCOPE_SYSTEM ::host::Scope::System

#define __builtin_amdgcn_fence(order, scope)                           \
    do {                                                               \
        constexpr ::host::Scope named = ::host::scope_named(scope);    \
        ::host::fence(::host::order_of(order), named);                 \
    } while (0)

#define __hip_atomic_load(p, order, scope) ::host::atomic_load(p, ::host::order_of(order), scope)
#define __hip_atomic_store(p, x, order, scope) ::host::atomic_store(p, x, ::host::order_of(order), scope)
#define PEERWARP_UPDATE(p, x, order, scope, expression)                     \
    ::host::atomic_update(p, ::host::order_of(order), scope, [&](const auto old) { \
        const decltype(old) given = (x);                                    \
        return expression;                                                  \
    })
#define __hip_atomic_fetch_add(p, x, order, scope) PEERWARP_UPDATE(p, x, order, scope, old + given)
#define __hip_atomic_fetch_and(p, x, order, scope) PEERWARP_UPDATE(p, x, order, scope, old& given)
#define __hip_atomic_fetch_or(p, x, order, scope) PEERWARP_UPDATE(p, x, order, scope, old | given)
#define __hip_atomic_fetch_min(p, x, order, scope) PEERWARP_UPDATE(p, x, order, scope, given < old ? given : old)
#define __hip_atomic_fetch_max(p, x, order, scope) PEERWARP_UPDATE(p, x, order, scope, old < given ? given : old)
#define __hip_atomic_compare_exchange_strong(p, expected, x, success, failure, scope) \
    ::host::compare_exchange(p, expected, x, ::host::order_of(success), scope)

// ---- Types that the CPU's compiler may lack

#if !defined(__FLT16_MANT_DIG__) || !defined(__clang__)
namespace host {
struct Half {
    std::uint16_t bits;
    Half() = default;
    explicit Half(const float x) : bits(fp16_from(x)) {}
    explicit operator float() const { return fp16_to(bits); }
};
}  // namespace host
#define _Float16 ::host::Half
#endif

// Bits of a vector operand: as large as they are there.
#define __fp16 short
#define __bf16 short
#include "matrix.h"
