#include "reference.h"

#include <cmath>
#include <cstring>
#include <random>

#include "experts.h"

float widen(const std::uint16_t bf16) {
    const std::uint32_t bits = std::uint32_t(bf16) << 16;
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

std::uint16_t narrow(const float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return std::uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static std::uint32_t tokens_of(const Shape& s, const std::uint32_t round, const std::uint32_t rank, std::mt19937& random) {
    if (round % 4 == 0) return s.tokens;                 // as many as there can be
    if (round % 4 == 1) return rank == 0 ? 0 : s.tokens;  // one rank has none
    if (round % 8 == 2) return 0;                         // no rank has any
    return random() % (s.tokens + 1);
}

std::vector<Input> random_inputs(const Shape& s, const std::uint32_t round) {
    std::mt19937 random(round);  // the engine, unlike the distributions, gives the same numbers everywhere
    std::vector<Input> all(s.ranks);
    for (std::uint32_t rank = 0; rank < s.ranks; ++rank) {
        Input& in = all[rank];
        in.n = tokens_of(s, round, rank, random);
        // What lies behind the n-th token must not be looked at: it is filled, too.
        for (std::uint32_t i = 0; i < s.tokens * s.hidden; ++i) {
            in.x.push_back(narrow(float(random() % 2001) / 1000.0f - 1.0f));
        }
        for (std::uint32_t i = 0; i < s.tokens * s.topk; ++i) {
            const bool few = round % 5 == 3;                       // all tokens to three experts
            const bool masked = round % 3 == 2 && random() % 4 == 0;
            const std::uint32_t id = few ? random() % 3 * (s.experts / 3) : random() % s.experts;
            in.ids.push_back(masked ? -1 : std::int32_t(id));
            in.weights.push_back(float(random() % 1000 + 1) / 1000.0f);
        }
    }
    return all;
}

std::vector<Output> reference(const Shape& s, const std::vector<Input>& inputs) {
    const std::uint32_t owned = s.experts / s.ranks;
    std::vector<Output> all(s.ranks);
    for (std::uint32_t expert = 0; expert < s.experts; ++expert) {
        Output& owner = all[expert / owned];
        const std::size_t before = owner.rows.size();
        for (const Input& in : inputs) {
            for (std::uint32_t entry = 0; entry < in.n * s.topk; ++entry) {
                if (in.ids[entry] != std::int32_t(expert)) continue;
                const auto row = in.x.begin() + std::size_t(entry / s.topk) * s.hidden;
                owner.rows.insert(owner.rows.end(), row, row + s.hidden);
            }
        }
        owner.expert_rows.push_back(std::uint32_t((owner.rows.size() - before) / s.hidden));
    }
    for (std::uint32_t rank = 0; rank < s.ranks; ++rank) {
        const Input& in = inputs[rank];
        Output& out = all[rank];
        out.combined.assign(std::size_t(in.n) * s.hidden, 0.0);
        out.magnitude.assign(std::size_t(in.n) * s.hidden, 0.0);
        for (std::uint32_t entry = 0; entry < in.n * s.topk; ++entry) {
            if (in.ids[entry] < 0) continue;
            const float by = expert_factor(std::uint32_t(in.ids[entry]));
            const std::size_t first = std::size_t(entry / s.topk) * s.hidden;
            for (std::uint32_t i = 0; i < s.hidden; ++i) {
                const double y = double(widen(narrow(widen(in.x[first + i]) * by))) * in.weights[entry];
                out.combined[first + i] += y;
                out.magnitude[first + i] += std::fabs(y);
            }
        }
    }
    return all;
}
