// The experts of this example: each multiplies its rows by a number of its own.
#pragma once

#include <cstdint>

// What expert number `expert` (over all ranks) multiplies by.
#if defined(__CUDACC__) || defined(__HIPCC__)
__host__ __device__
#endif
constexpr float expert_factor(const std::uint32_t expert) {
    return 0.5f + 0.25f * float(expert % 7);
}

// Writes y[row] = rows[row] * factor of its expert, for all rows that dispatch delivered, bf16 both. `first_expert` is
// the number of this rank's first expert, of `experts`. Returns the runtime's error code.
int run_experts(
    const std::uint16_t* rows, std::uint16_t* y, const std::uint32_t* expert_start, std::uint32_t experts,
    std::uint32_t first_expert, std::uint32_t hidden, void* stream);
