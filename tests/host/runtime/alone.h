// One rank in a process of its own. Its engine of far channels is a proxy of another process: a file that both map has the buffers
// that they share.
#pragma once

#include "host.h"

namespace host {

struct Alone {
    u32 rank = 0;
    char* file = nullptr;  // nothing, where all ranks are in this process

    // Maps a file. The process ends with the one that has started it.
    static Alone map(const char* rank, const char* path, u64 bytes);
    explicit operator bool() const { return file != nullptr; }
    // Whether it is this rank's own memory that the file has.
    bool is(const u32 other) const { return file && other == rank; }
};

// The system's time.
u64 system_ns();
// A delay.
void rest(u64 ns);

}  // namespace host
