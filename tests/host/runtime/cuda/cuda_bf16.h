#pragma once
#include "../floats.h"

struct __nv_bfloat16 {
    std::uint16_t bits;
};
inline float __bfloat162float(const __nv_bfloat16 x) { return host::bf16_to(x.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(const float x) { return {host::bf16_from(x)}; }
