#ifdef __HIP_PLATFORM_AMD__
#include <hip/hip_runtime.h>
#endif
#include "gpu.h"

#include "experts.h"

// bf16 is the upper half of a float.
static __device__ float widen(const std::uint16_t x) {
    return __uint_as_float(std::uint32_t(x) << 16);
}
// Rounds to the nearest, ties to even; the rows of this example hold no NaN.
static __device__ std::uint16_t narrow(const float x) {
    const std::uint32_t bits = __float_as_uint(x);
    return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static __global__ void scale_rows(
    const std::uint16_t* const rows, std::uint16_t* const y, const std::uint32_t* const expert_start,
    const std::uint32_t experts, const std::uint32_t first_expert, const std::uint32_t hidden) {
    for (std::uint32_t expert = blockIdx.x; expert < experts; expert += gridDim.x) {
        const std::uint64_t first = std::uint64_t(expert_start[expert]) * hidden;
        const std::uint64_t end = std::uint64_t(expert_start[expert + 1]) * hidden;
        const float by = expert_factor(first_expert + expert);
        for (std::uint64_t i = first + threadIdx.x; i < end; i += blockDim.x) y[i] = narrow(widen(rows[i]) * by);
    }
}

int run_experts(
    const std::uint16_t* const rows, std::uint16_t* const y, const std::uint32_t* const expert_start,
    const std::uint32_t experts, const std::uint32_t first_expert, const std::uint32_t hidden, void* const stream) {
    scale_rows<<<dim3(experts), dim3(1024), 0, static_cast<cudaStream_t>(stream)>>>(
        rows, y, expert_start, experts, first_expert, hidden);
    return cudaGetLastError();
}
