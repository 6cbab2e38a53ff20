// The engine of far channels as a kernel meets it: each rank has a card that takes commands from the rank's ring, and carries what
// they put in its own time: in pieces, late, in any order. The layouts are those of the crate peerwarp-fabric.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "memory.h"

namespace host {

// What a job has of far channels: buffers on every rank, by number.
struct FarJob {
    u32 log_slots = 0;  // 0 where no kernel has far channels
    u32 ring_buffer = 0, words_buffer = 0, memory_buffer = 0;
};

class Cards {
  public:
    // Agents from `first` on are theirs.
    void place(const FarJob& job, u32 ranks, u32 first, const std::vector<std::vector<char*>>& buffers);
    // Forgets everything. Under an odd seed a rank's puts to others go when nothing else can.
    void begin(u64 seed);
    // Whether something is to be done.
    bool busy() const;
    // Does a part of it.
    void go(u64 random);
    // Whether an agent is a card: the rank that it serves.
    bool is_card(u32 agent, u32& rank) const;

  private:
    struct Put {
        u32 rank;
        u64 number, from, to, bytes, read, written;
        u32 peer, channel;
        std::string content;
    };
    struct Card {
        Actor actor;
        u64 taken = 0, delivered = 0;
        std::deque<bool> done;  // from `delivered` on
    };
    FarJob job_;
    u32 ranks_ = 0, first_ = 0, slow_ = ~0u;
    std::vector<std::unique_ptr<Card>> cards_;
    std::vector<Put> puts_;
    std::vector<std::vector<char*>> buffers_;

    u64* ring_of(u32 rank) const { return reinterpret_cast<u64*>(buffers_[job_.ring_buffer][rank]); }
    u64* words_of(u32 rank) const { return reinterpret_cast<u64*>(buffers_[job_.words_buffer][rank]); }
    char* memory_of(u32 rank) const { return buffers_[job_.memory_buffer][rank]; }
    bool is_next(u32 rank) const;
    void take(u32 rank);
    void fly(std::size_t at);
    void arrive(const Put& put);
};

}  // namespace host
