// Boxes of matrices that are brought to shared memory while no lane does it, and the mbarriers that count what arrived. A
// box lands at a random time after it was asked for, so that a thread that does not wait for it finds what was there before.
#pragma once

#include <unordered_map>
#include <vector>

#include "memory.h"

namespace host {

struct Thread;

// What the argument struct has of a matrix: where a CUtensorMap would be.
struct BoxMap {
    const char* matrix;
    u64 rows, columns, box_rows, element_bytes;
};

class Boxes {
  public:
    void begin_barrier(const void* barrier, u32 arrivals, Site site);
    // This thread arrives, and so many bytes more have to come before the phase ends.
    void arrive(const void* barrier, u32 bytes, Site site);
    // So many bytes are to come, and an arrival, too.
    void expect(const void* barrier, u32 bytes, Site site);
    // Until a phase of this parity has ended.
    void wait(const void* barrier, u32 parity, Site site);
    // Whether it has.
    bool test(const void* barrier, u32 parity, Site site);
    void bring(void* to, const BoxMap& map, u32 column, u32 row, const void* barrier, Site site);
    // So many bytes as they are, whole 16 of them.
    void bring_bytes(void* to, const void* from, u32 bytes, const void* barrier, Site site);

    // What a thread has committed is done: an arrival.
    void committed(Actor& by, const void* barrier, Site site);

    bool on_their_way() const { return !coming_.empty(); }
    bool on_their_way_to(u32 rank) const;
    // One of them is there.
    void land(u64 random);
    // Forgets everything.
    void clear();

  private:
    struct Barrier {
        u32 expected = 0, missing = 0;  // arrivals
        long long bytes = 0;            // that have not come
        u32 phase = 0;
        Knowledge arriving, ended;
        std::vector<Thread*> waiting;
    };
    struct Box {
        Thread* by;
        char* to;
        BoxMap map;
        u32 column, row;
        const void* barrier;
        Site site;
        u32 plain = 0;  // bytes of `map.matrix`, if it is no box
    };
    std::unordered_map<const void*, Barrier> barriers_;
    std::vector<Box> coming_;

    Barrier& at(const void* barrier, Site site);
    void counted(Barrier& barrier);
    // Brings a box; how many bytes it has.
    u32 bring_rows(const Box& box);
};

}  // namespace host
