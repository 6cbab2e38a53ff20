// Whose turn is next: random numbers, and the threads that can go on.
#pragma once

#include <array>
#include <vector>

#include "host.h"

namespace host {

struct Thread;

// SplitMix64. A machine draws several numbers a turn, and this state stays in a register.
class Random {
  public:
    void seed(const u64 seed) { state_ = seed; }
    u64 operator()() {
        u64 z = state_ += 0x9e3779b97f4a7c15;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
        z = (z ^ z >> 27) * 0x94d049bb133111eb;
        return z ^ z >> 31;
    }

  private:
    u64 state_ = 0;
};

// The threads that can go on, by the priorities of their blocks. Each entry repeats its thread's rank: a look at the thread itself
// mostly misses the caches.
class Runnable {
  public:
    static constexpr u32 priorities = 8;
    struct Entry {
        Thread* thread;
        u32 rank;
    };

    bool empty() const { return count_ == 0; }
    void clear();
    void add(Thread* thread);
    // Looks at the priorities again.
    void sort();
    // The threads of the highest priority that has any.
    const std::vector<Entry>& first() const { return entries_[highest()]; }
    // Takes one of them out.
    Thread* take(std::size_t i);

  private:
    std::array<std::vector<Entry>, priorities> entries_;
    std::size_t count_ = 0;

    std::size_t highest() const;
};

}  // namespace host
