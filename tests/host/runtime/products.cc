#include "products.h"

namespace host {

// Sixteen elements of a row of 128 bytes: 16 bytes of eight rows have changed places by the address, as the hardware does it.
Products::Sixteen Products::Product::sixteen(Actor& who, const char* const shared, const u64 matrix, const u32 row) const {
    // A descriptor has the lowest 18 bits of an address, without the last four.
    const u64 begin = u64(shared);
    u64 first = (begin & ~u64(0x3ffff)) | (matrix & 0x3fff) << 4;
    if (first < begin) first += 0x40000;
    Sixteen all;
    for (u32 half = 0; half < 2; ++half) {
        const u64 at = first + row * 128 + half * 16;
        const auto* const p = reinterpret_cast<const std::uint16_t*>(at ^ (at >> 7 & 7) << 4);
        memory.read(who, p, 16, site);
        for (u32 i = 0; i < 8; ++i) all.of[half * 8 + i] = to_float(p[i]);
    }
    return all;
}

void Products::Product::add(Actor& who, const u32 thread, const char* const shared) const {
    const u32 lane = thread % 32, first = thread / 32 % 4 * 16 + lane / 4;
    const Sixteen rows[2] = {sixteen(who, shared, a, first), sixteen(who, shared, a, first + 8)};
    for (u32 i = 0; i < sums.size(); i += 4) {
        for (u32 next = 0; next < 2; ++next) {
            const Sixteen other = sixteen(who, shared, b, i / 4 * 8 + lane % 4 * 2 + next);
            for (u32 half = 0; half < 2; ++half) {
                for (u32 k = 0; k < 16; ++k) *sums[i + half * 2 + next] += rows[half].of[k] * other.of[k];
            }
        }
    }
}

void Products::group() {
    groups_.push_back(std::move(open_));
    open_.clear();
}

void Products::done_but(Actor& who, const u32 thread, const char* const shared, const u32 most) {
    while (groups_.size() > most) {
        for (const Product& product : groups_.front()) product.add(who, thread, shared);
        groups_.pop_front();
    }
}

}  // namespace host
