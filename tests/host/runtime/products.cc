#include "products.h"

#include <cstring>

namespace host {

// The elements of 32 bytes of a row of 128: 16 bytes of eight rows have changed places by the address, as the hardware does it.
Products::Row Products::Product::row_of(Actor& who, const char* const shared, const u64 matrix, const u32 row) const {
    // A descriptor has the lowest 18 bits of an address, without the last four.
    const u64 begin = u64(shared);
    u64 first = (begin & ~u64(0x3ffff)) | (matrix & 0x3fff) << 4;
    if (first < begin) first += 0x40000;
    Row all = {};
    for (u32 half = 0; half < 2; ++half) {
        const u64 at = first + row * 128 + half * 16;
        const auto* const p = reinterpret_cast<const char*>(at ^ (at >> 7 & 7) << 4);
        memory.read(who, p, 16, site);
        for (u32 i = 0; i < 16 / bytes; ++i) {
            u32 word = 0;
            std::memcpy(&word, p + i * bytes, bytes);
            all.of[half * 16 / bytes + i] = to_float(word);
        }
    }
    return all;
}

void Products::Product::add(Actor& who, const u32 thread, const char* const shared) const {
    const u32 lane = thread % 32, first = thread / 32 % 4 * 16 + lane / 4;
    const Row rows[2] = {row_of(who, shared, a, first), row_of(who, shared, a, first + 8)};
    for (u32 i = 0; i < sums.size(); i += 4) {
        for (u32 next = 0; next < 2; ++next) {
            const Row other = row_of(who, shared, b, i / 4 * 8 + lane % 4 * 2 + next);
            for (u32 half = 0; half < 2; ++half) {
                for (u32 k = 0; k < 32 / bytes; ++k) *sums[i + half * 2 + next] += rows[half].of[k] * other.of[k];
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
