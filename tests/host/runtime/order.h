// Who knows of whose past: vector clocks over all agents, which are the GPU threads and the host of each rank.
//
// An agent's own time goes up after everything that it may have told others. What an agent knows is four clocks:
//
//   reads     events ordered before now: a store may overwrite what was read until then
//   writes    events whose stores can be read now
//   vouched   events that a release at gpu or system scope by this thread would cover
//   done      events whose stores have been performed, so that any warp of the block may vouch for them
//
// In PTX causality is transitive, and all four are the same. On AMD a block's barrier makes stores visible in the
// block, but a release waits for the stores of its own warp only: another warp's stores are covered only when that
// warp has waited for them (`s_waitcnt vmcnt(0)`) before the barrier.
#pragma once

#include <cstdlib>
#include <vector>

#include "host.h"

namespace host {

extern u32 agents;      // how many there are
extern bool warp_vouches;  // AMD's rule above

// A time for each agent. Shared, and never changed once made.
struct Clock {
    u32 users;
    u32 at[];
    static Clock* fresh();
    static void free(Clock* clock);
};

class ClockRef {
  public:
    ClockRef() = default;
    explicit ClockRef(Clock* fresh) : clock_(fresh) {}
    ClockRef(const ClockRef& other) : clock_(other.clock_) {
        if (clock_) ++clock_->users;
    }
    ClockRef& operator=(ClockRef other) {
        std::swap(clock_, other.clock_);
        return *this;
    }
    ~ClockRef() {
        if (clock_ && --clock_->users == 0) Clock::free(clock_);
    }
    u32 of(const u32 agent) const { return clock_ ? clock_->at[agent] : 0; }
    const Clock* get() const { return clock_; }
    bool operator==(const ClockRef& other) const { return clock_ == other.clock_; }

  private:
    Clock* clock_ = nullptr;
};

ClockRef join(const ClockRef& a, const ClockRef& b);

struct Knowledge {
    ClockRef reads, writes, vouched, done;

    // The same clock four times.
    static Knowledge all(const ClockRef& clock) { return {clock, clock, clock, clock}; }
    void join(const Knowledge& other);
    // What a release at this scope passes on.
    Knowledge published(Scope scope) const;
};

// Collects clocks and single times into one clock.
class Gather {
  public:
    Gather() : out_(Clock::fresh()) {
        for (u32 i = 0; i < agents; ++i) out_->at[i] = 0;
    }
    void add(const ClockRef& clock);
    void add(const u32 agent, const u32 time) {
        if (out_->at[agent] < time) out_->at[agent] = time;
    }
    ClockRef take() { return ClockRef(out_); }

  private:
    Clock* out_;
    std::vector<const Clock*> added_;
};

// An agent's knowledge together with its own time, which the clocks needn't have.
struct Knower {
    u32 agent = 0;
    u32 time = 1;
    u32 done_time = 0;  // its own time in `done`
    Knowledge knows;

    // Everything that the agents know and did, themselves included.
    template <typename Agents>
    static Knowledge gather(const Agents& all);
    Knowledge told() const;
    // Something has been told: what comes now is later.
    void tick() { ++time; }
    void performed() {
        knows.done = knows.vouched;
        done_time = time;
        tick();
    }
};

template <typename Agents>
Knowledge Knower::gather(const Agents& all) {
    const auto one = [&](ClockRef Knowledge::* which, u32 Knower::* time) {
        Gather sum;
        for (const auto* a : all) {
            sum.add(a->knows.*which);
            sum.add(a->agent, a->*time);
        }
        return sum.take();
    };
    const ClockRef reads = one(&Knowledge::reads, &Knower::time);
    if (!warp_vouches) return Knowledge::all(reads);
    return {reads, one(&Knowledge::writes, &Knower::time), one(&Knowledge::vouched, &Knower::time),
            one(&Knowledge::done, &Knower::done_time)};
}

}  // namespace host
