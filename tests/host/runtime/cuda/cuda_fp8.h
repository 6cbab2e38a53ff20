#pragma once
#include "../floats.h"

struct __nv_fp8_e4m3 {
    std::uint8_t bits;
    __nv_fp8_e4m3() = default;
    explicit __nv_fp8_e4m3(const float x) : bits(host::fp8_from(x)) {}
    explicit operator float() const { return host::fp8_to(bits); }
};
