#include "boxes.h"

#include <algorithm>
#include <cstring>

#include "machine.h"

namespace host {

// Boxes are of rows of 128 bytes, of which eight 16 bytes change places by the row's address.
static constexpr u32 row_bytes = 128, chunk_bytes = 16;

void Boxes::begin_barrier(const void* const barrier, const u32 arrivals, const Site site) {
    if (machine->checks()) memory.write(*me, barrier, 8, site);
    Barrier& b = barriers_[barrier];
    b = {};
    b.expected = b.missing = arrivals;
}

Boxes::Barrier& Boxes::at(const void* const barrier, const Site site) {
    if (machine->checks()) memory.read(*me, barrier, 8, site);
    const auto found = barriers_.find(barrier);
    if (found == barriers_.end()) machine->wrong("mbarrier", "no thread has begun the one at " + name_of_site(site), site);
    return found->second;
}

// A phase ends when all have arrived and all bytes have come.
void Boxes::counted(Barrier& barrier) {
    if (barrier.missing != 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.missing = barrier.expected;
    barrier.ended = barrier.arriving;
    barrier.arriving = {};
    for (Thread* thread : barrier.waiting) machine->wake(thread);
    barrier.waiting.clear();
}

void Boxes::arrive(const void* const barrier, const u32 bytes, const Site site) {
    Barrier& b = at(barrier, site);
    if (machine->checks()) {
        b.arriving.join(me->told());
        me->tick();
    }
    b.bytes += bytes;
    --b.missing;
    counted(b);
}

void Boxes::expect(const void* const barrier, const u32 bytes, const Site site) { at(barrier, site).bytes += bytes; }

void Boxes::wait(const void* const barrier, const u32 parity, const Site site) {
    Barrier& b = at(barrier, site);
    while (b.phase % 2 == parity) {
        b.waiting.push_back(me);
        machine->block("a phase of an mbarrier", site);
    }
    if (machine->checks()) me->knows.join(b.ended);
}

bool Boxes::test(const void* const barrier, const u32 parity, const Site site) {
    Barrier& b = at(barrier, site);
    if (b.phase % 2 == parity) return false;
    if (machine->checks()) me->knows.join(b.ended);
    return true;
}

void Boxes::bring(void* const to, const BoxMap& map, const u32 column, const u32 row, const void* const barrier,
                  const Site site) {
    at(barrier, site);
    coming_.push_back({me, static_cast<char*>(to), map, column, row, barrier, site});
}

void Boxes::bring_bytes(void* const to, const void* const from, const u32 bytes, const void* const barrier, const Site site) {
    at(barrier, site);
    if ((u64(to) | u64(from) | bytes) % 16 != 0) machine->wrong("bulk copy", "not of whole 16 bytes at " + name_of_site(site), site);
    coming_.push_back({me, static_cast<char*>(to), {static_cast<const char*>(from), 0, 0, 0, 0}, 0, 0, barrier, site, bytes});
}

void Boxes::committed(Actor& by, const void* const barrier, const Site site) {
    const auto found = barriers_.find(barrier);
    if (found == barriers_.end()) {
        machine->wrong("mbarrier", "no thread has begun the one at " + name_of_site(site), site);
        return;
    }
    if (machine->checks()) {
        found->second.arriving.join(by.told());
        by.tick();
    }
    --found->second.missing;
    counted(found->second);
}

bool Boxes::on_their_way_to(const u32 rank) const {
    return std::any_of(coming_.begin(), coming_.end(), [&](const Box& box) { return box.by->rank == rank; });
}

u32 Boxes::bring_rows(const Box& box) {
    if (box.plain > 0) {
        if (machine->checks()) {
            memory.read(*box.by, box.map.matrix, box.plain, box.site);
            memory.write(*box.by, box.to, box.plain, box.site);
        }
        std::memcpy(box.to, box.map.matrix, box.plain);
        return box.plain;
    }
    const u64 columns = box.column < box.map.columns ? box.map.columns - box.column : 0;
    const u64 bytes = std::min<u64>(columns * box.map.element_bytes, row_bytes);
    for (u32 r = 0; r < box.map.box_rows; ++r) {
        char row[row_bytes] = {};  // zeros for what the matrix has not
        const u64 number = u64(box.row) + r;
        if (number < box.map.rows && bytes > 0) {
            const char* const from = box.map.matrix + (number * box.map.columns + box.column) * box.map.element_bytes;
            if (machine->checks()) memory.read(*box.by, from, bytes, box.site);
            std::memcpy(row, from, bytes);
        }
        char* const to = box.to + r * row_bytes;
        if (machine->checks()) memory.write(*box.by, to, row_bytes, box.site);
        for (u32 chunk = 0; chunk < row_bytes / chunk_bytes; ++chunk) {
            const u32 place = chunk ^ u32(u64(to) / row_bytes % 8);
            std::memcpy(to + place * chunk_bytes, row + chunk * chunk_bytes, chunk_bytes);
        }
    }
    return box.map.box_rows * row_bytes;
}

void Boxes::land(const u64 random) {
    std::swap(coming_[random % coming_.size()], coming_.back());
    const Box box = coming_.back();
    coming_.pop_back();
    const u32 bytes = bring_rows(box);
    Barrier& barrier = barriers_[box.barrier];
    if (machine->checks()) {
        barrier.arriving.join(box.by->told());
        box.by->tick();
    }
    barrier.bytes -= bytes;
    counted(barrier);
}

void Boxes::clear() {
    barriers_.clear();
    coming_.clear();
}

}  // namespace host
