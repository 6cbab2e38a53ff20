// Products of matrices that go on while the thread that asked for them does: they read shared memory and change sums as late as its
// waits allow, so that a missing wait shows.
#pragma once

#include <deque>
#include <vector>

#include "memory.h"

namespace host {

class Products {
  public:
    // Sums of a lane, those of wgmma.m64nN over 32 bytes of elements of so many: `a` and `b` say where 64 rows and N others are.
    void later(float (*to_float)(u32), u32 bytes, u64 a, u64 b, std::vector<float*> sums, Site site) {
        open_.push_back({to_float, bytes, a, b, std::move(sums), site});
    }
    void group();
    // All groups are done but the newest `most`. `shared` is where the block's shared memory begins.
    void done_but(Actor& who, u32 thread, const char* shared, u32 most);
    bool waited_for() const { return open_.empty() && groups_.empty(); }

  private:
    // At most 32 elements.
    struct Row {
        float of[32];
    };
    struct Product {
        float (*to_float)(u32);
        u32 bytes;
        u64 a, b;
        std::vector<float*> sums;
        Site site;

        Row row_of(Actor& who, const char* shared, u64 matrix, u32 row) const;
        void add(Actor& who, u32 thread, const char* shared) const;
    };
    std::vector<Product> open_;
    std::deque<std::vector<Product>> groups_;
};

}  // namespace host
