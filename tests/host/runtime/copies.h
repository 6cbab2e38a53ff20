// Copies that go on while the thread that asked for them does. They happen as late as its waits allow, so that a missing
// wait shows: what is copied is read when the thread waits for that, and is written when it waits for that.
#pragma once

#include <deque>
#include <vector>

#include "memory.h"

namespace host {

class Copies {
  public:
    // To shared memory: `room` bytes there, those from `bytes` on zero.
    void later(void* to, const void* from, u32 bytes, u32 room, Site site) {
        loads_.push_back({to, from, bytes, room, site, {}});
    }
    // Those since the last time are a group from here on.
    void group();
    // All groups are done but the newest `most`.
    void done_but(Actor& who, u32 most);
    void done(Actor& who);

    // From shared memory, in groups.
    void bulk(void* to, const void* from, u32 bytes, Site site) { open_.push_back({to, from, bytes, bytes, site, {}}); }
    void commit();
    void read(Actor& who);
    void written(Actor& who);

    // Whether nothing is on its way.
    bool waited_for() const;

  private:
    struct Copy {
        void* to;
        const void* from;
        u32 bytes, room;
        Site site;
        std::vector<char> content;  // once it has been read

        void read(Actor& who);
        void write(Actor& who);
    };
    static void finish(Actor& who, std::vector<Copy>& copies);

    std::vector<Copy> loads_, open_, committed_;
    std::deque<std::vector<Copy>> groups_;  // of loads, the oldest first
};

}  // namespace host
