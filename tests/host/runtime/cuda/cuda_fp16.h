#pragma once
#include "../floats.h"

struct __half {
    std::uint16_t bits;
};
inline float __half2float(const __half x) { return host::fp16_to(x.bits); }
inline __half __float2half_rn(const float x) { return {host::fp16_from(x)}; }
