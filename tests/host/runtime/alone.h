// One rank in a process of its own. Its engine of far channels is a proxy of another process: a file that both map has the buffers
// that they share. Ranks of its node map it, too: what they reach of each other is in their files.
#pragma once

#include <utility>
#include <vector>

#include "host.h"

namespace host {

struct Alone {
    u32 rank = 0;
    std::vector<std::pair<u32, char*>> files;  // this rank's first; nothing, where all ranks are in this process

    // Maps the file of a rank, which is this one if it is the first. The process ends with the one that has started it.
    void map(const char* of, const char* path, u64 bytes);
    explicit operator bool() const { return !files.empty(); }
    bool is(const u32 other) const { return *this && other == rank; }
    // The file of a rank of this node.
    char* of(u32 other) const;
};

// The system's time.
u64 system_ns();
// A delay.
void rest(u64 ns);

}  // namespace host
