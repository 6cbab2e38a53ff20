// What one round of dispatch, experts and combine has to give, computed the plain way.
#pragma once

#include <cstdint>
#include <vector>

struct Shape {
    std::uint32_t ranks, hidden, experts, topk, tokens;
};

// One rank's tokens.
struct Input {
    std::uint32_t n;
    std::vector<std::uint16_t> x;   // [token][hidden], bf16
    std::vector<std::int32_t> ids;  // [token][k], -1 masks
    std::vector<float> weights;     // [token][k]
};

// One rank's results.
struct Output {
    std::vector<std::uint16_t> rows;  // what dispatch delivers: by expert, source, token, k
    std::vector<std::uint32_t> expert_rows;
    std::vector<double> combined;   // [token][hidden]
    std::vector<double> magnitude;  // sum of the magnitudes that were added
};

float widen(std::uint16_t bf16);
std::uint16_t narrow(float x);

// Random tokens for every rank. Some rounds leave ranks without tokens, mask ids or repeat them.
std::vector<Input> random_inputs(const Shape& shape, std::uint32_t round);

std::vector<Output> reference(const Shape& shape, const std::vector<Input>& inputs);
