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

static ClockRef join_anew(const ClockRef& a, const ClockRef& b) {
    bool is_a = true, is_b = true;
    Clock* const out = Clock::fresh();
    for (u32 i = 0; i < agents; ++i) {
        const u32 x = a.get()->at[i], y = b.get()->at[i];
        out->at[i] = x < y ? y : x;
        is_a &= y <= x;
        is_b &= x <= y;
    }
    const ClockRef joined(out);
    return is_a ? a : is_b ? b : joined;
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
    for (u32 i = 0; i < agents; ++i) out_->at[i] = out_->at[i] < c->at[i] ? c->at[i] : out_->at[i];
}

Knowledge Knower::told() const { return gather(std::array<const Knower*, 1>{{this}}); }

}  // namespace host
