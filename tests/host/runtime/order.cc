#include "order.h"

#include <array>

namespace host {

u32 agents = 0;
bool warp_vouches = false;

static std::vector<Clock*> spare;

Clock* Clock::fresh() {
    Clock* clock;
    if (spare.empty()) {
        clock = static_cast<Clock*>(std::malloc(sizeof(Clock) + agents * sizeof(u32)));
        if (!clock) std::abort();
    } else {
        clock = spare.back();
        spare.pop_back();
    }
    clock->users = 1;
    return clock;
}

void Clock::free(Clock* const clock) { spare.push_back(clock); }

// Clocks have thousands of times, and joining them is most of what checked runs do: by vectors, as wide as the machine has them.
#if defined(__x86_64__) && defined(__has_attribute)
#if __has_attribute(target_clones)
#define BY_VECTORS __attribute__((target_clones("avx2", "default")))
#endif
#endif
#ifndef BY_VECTORS
#define BY_VECTORS
#endif

// Whether the later of two times is anywhere not that of `a`, and not that of `b`.
struct Apart {
    u32 of_a, of_b;
};

BY_VECTORS static Apart later_of(u32* const out, const u32* const a, const u32* const b, const u32 count) {
    Apart apart{0, 0};
    for (u32 i = 0; i < count; ++i) {
        const u32 x = a[i], y = b[i], later = x < y ? y : x;
        out[i] = later;
        apart.of_a |= later ^ x;
        apart.of_b |= later ^ y;
    }
    return apart;
}

BY_VECTORS static void raise_to(u32* const out, const u32* const a, const u32 count) {
    for (u32 i = 0; i < count; ++i) out[i] = out[i] < a[i] ? a[i] : out[i];
}

static ClockRef join_anew(const ClockRef& a, const ClockRef& b) {
    Clock* const out = Clock::fresh();
    const ClockRef joined(out);
    const Apart apart = later_of(out->at, a.get()->at, b.get()->at, agents);
    return apart.of_a == 0 ? a : apart.of_b == 0 ? b : joined;
}

// The lanes of a warp mostly join the same clocks, one after the other.
struct Joined {
    ClockRef a, b, both;
};
static std::array<Joined, 64> joined;

ClockRef join(const ClockRef& a, const ClockRef& b) {
    if (a == b || !b.get()) return a;
    if (!a.get()) return b;
    Joined& last = joined[(u64(a.get()) / 64 * 31 + u64(b.get()) / 64) % joined.size()];
    if (!(last.a == a && last.b == b)) last = {a, b, join_anew(a, b)};
    return last.both;
}

void Knowledge::join(const Knowledge& other) {
    const bool one = !warp_vouches;
    reads = host::join(reads, other.reads);
    writes = one ? reads : host::join(writes, other.writes);
    vouched = one ? reads : host::join(vouched, other.vouched);
    done = one ? reads : host::join(done, other.done);
}

Knowledge Knowledge::published(const Scope scope) const {
    switch (scope) {
        case Scope::Warp: return *this;
        case Scope::Block: return {reads, writes, done, done};
        case Scope::Gpu:
        case Scope::System: break;
    }
    return {reads, vouched, vouched, vouched};
}

void Gather::add(const ClockRef& clock) {
    const Clock* const c = clock.get();
    if (!c) return;
    for (const Clock* seen : added_) {
        if (seen == c) return;
    }
    added_.push_back(c);
    raise_to(out_->at, c->at, agents);
}

Knowledge Knower::told() const { return gather(std::array<const Knower*, 1>{{this}}); }

}  // namespace host
