// Copies that go on while the thread that asked for them does. They happen as late as its waits allow, so that a missing
// wait shows: what is copied is read when the thread waits for that, and is written when it waits for that.
#pragma once

#include <vector>

#include "memory.h"

namespace host {

class Copies {
  public:
    // To shared memory.
    void later(void* to, const void* from, u32 bytes, Site site) { loads_.push_back({to, from, bytes, site, {}}); }
    void done(Actor& who);

    // From shared memory, in groups.
    void bulk(void* to, const void* from, u32 bytes, Site site) { open_.push_back({to, from, bytes, site, {}}); }
    void commit();
    void read(Actor& who);
    void written(Actor& who);

    // Whether nothing is on its way.
    bool waited_for() const { return loads_.empty() && open_.empty() && committed_.empty(); }

  private:
    struct Copy {
        void* to;
        const void* from;
        u32 bytes;
        Site site;
        std::vector<char> content;  // once it has been read

        void read(Actor& who);
        void write(Actor& who);
    };
    std::vector<Copy> loads_, open_, committed_;
};

}  // namespace host
